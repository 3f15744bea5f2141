"""Stated errors are those of the published points that no rate was fitted to."""

import json
import statistics
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import workbench as wb
from benchmarks import predictions
from workbench.cost import accuracy_text, error_bar, estimate_cost, family_of, known_chip
from workbench.cost._accuracy import ACCURACY, accuracy_of
from workbench.cost._rates import rates_of
from workbench.inspection import inspect_module

RESULTS = json.loads(predictions.RESULTS.read_text())
POINTS = {point.id: point for point in predictions.points()}


def judged():
    """Errors of the points that are kept out of every fit, by family and kind."""
    found = defaultdict(list)
    for name in POINTS.keys() - predictions.fitted(POINTS.values()):
        predicted = RESULTS.get(name, {}).get("predicted")
        if predicted:
            point = POINTS[name]
            found[family_of(known_chip(point.chip)), point.kind].append(abs(predicted / point.seconds - 1))
    return found


def test_stated_errors_are_those_of_the_points():
    stated = {key: each for key, each in ACCURACY.items() if key[1] != "operation of a profile"}
    found = judged()
    assert stated.keys() == found.keys()
    for key, errors in found.items():
        assert stated[key].points == len(errors)
        assert stated[key].median == pytest.approx(statistics.median(errors), abs=0.005)
        assert stated[key].largest == pytest.approx(max(errors), abs=0.005)


def test_no_point_is_fitted_and_judged_and_every_group_is_judged():
    fitted = predictions.fitted(POINTS.values())
    groups = defaultdict(list)
    for point in POINTS.values():
        groups[point.kind, point.chip].append(point.id in fitted)
    assert all(not all(group) for group in groups.values())
    steps = {key: groups.pop(key) for key in list(groups) if key[0] == "training step"}
    assert not any(any(group) for group in steps.values())
    assert all(abs(2 * sum(group) - len(group)) <= 1 for group in groups.values())


def test_predictions_of_a_family_state_its_errors():
    row = accuracy_of(known_chip("v5e"), "memory")
    assert row is not None
    assert (
        f"memory ±{100 * row.median:.0f} % (at most {100 * row.largest:.0f} %, {row.points} points)"
        in accuracy_text(known_chip("v5e"))
    )


def test_an_error_bar_states_median_and_largest_error_in_percent():
    row = accuracy_of(known_chip("v5e"), "memory")
    assert row is not None
    text = error_bar(known_chip("v5e"), "memory")
    assert text.startswith(f"median error ±{row.median * 100:.0f} % over {row.points} memory points")
    assert text.endswith(f"at most {row.largest * 100:.0f} %")


def test_errors_are_unknown_without_points():
    unlisted = known_chip("v5e").replace(name="unlisted")
    assert accuracy_of(unlisted, "memory") is None
    assert accuracy_text(unlisted) == "The error in predicted seconds on unlisted is unknown."


def _cost(text, platform="tpu"):
    return estimate_cost(inspect_module(text, platform=platform), chip=known_chip("v5e"))


PRODUCT = """HloModule m, is_scheduled=true
ENTRY %main (a: bf16[4096,4096]) -> bf16[4096,4096] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  ROOT %d = bf16[4096,4096]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
CHAIN = PRODUCT.replace("ROOT %d", "%d").replace("\n}", "\n  ROOT %e = bf16[4096,4096]{1,0} dot(%d, %d), "
                                                   "lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}")  # fmt: skip


def test_a_program_carries_the_error_of_its_largest_operation_else_of_training_steps():
    product, chain = accuracy_of(known_chip("v5e"), "matrix product"), accuracy_of(known_chip("v5e"), "training step")
    assert product is not None
    assert chain is not None
    assert _cost(PRODUCT).error_bar == (
        f"median error ±{100 * product.median:.0f} % over {product.points} matrix product points of TPU chips, at most "
        f"{100 * product.largest:.0f} %"
    )
    assert _cost(CHAIN).error_bar.startswith(f"median error ±{100 * chain.median:.0f} % over {chain.points} training")


def test_modules_of_the_cpus_compiler_have_no_fixed_costs_of_another_chip_and_an_unknown_error():
    there, here = _cost(CHAIN), _cost(CHAIN, "cpu")
    fixed = rates_of(known_chip("v5e")).operation_seconds
    assert there.seconds - here.seconds == pytest.approx(2 * fixed)
    assert here.error_bar == "error unknown: compiled for CPU devices, priced as v5e"
    assert any("the fixed cost of an operation is not counted" in each for each in here.assumptions)
    assert here.error_bar in str(here)


@pytest.mark.parametrize("call", [jax.pure_callback, io_callback], ids=["pure", "io"])
def test_host_callback_makes_the_error_unknown(call):
    def f(x):
        return jnp.exp(call(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

    record = wb.inspect(f, on="v5e")(jnp.ones(64))
    assert record.cost.error_bar.startswith("error unknown: the time of host callbacks (`xla_")
    assert "is not counted" in record.cost.error_bar
    assert "of host callbacks" in next(line for line in str(record).splitlines() if line.startswith("Predicted"))
