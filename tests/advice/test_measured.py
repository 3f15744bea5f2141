"""Changes and choices that are run: seconds before and after, memory checked first, and Stop."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import workbench as wb
from workbench.advice._search._run import median_interval
from workbench.api import Traced
from workbench.errors import InspectionError, MeshError
from workbench.records.advice import AdviceRecord, SearchRecord

OLD = jax.ShapeDtypeStruct((256, 256), "float32")


def average(old, new):
    return 0.9 * old + 0.1 * new


def measured_rows(advice):
    return [row for each in advice.findings for row in each.compared if row.quantity == "measured seconds"]


@pytest.mark.parametrize("given", [OLD, jnp.ones((256, 256))], ids=["shapes", "arrays"])
def test_change_is_run_before_and_after(given):
    advice = wb.advise(jax.jit(average), measure=True)(given, given)
    (row,) = measured_rows(advice)
    low, high = row.saved_interval
    assert row.before > 0
    assert row.after > 0
    assert low <= high < 1
    assert f"interval {100 * low:.1f} % to {100 * high:.1f} %" in str(advice)
    assert AdviceRecord.from_json(advice.to_json()) == advice


def test_text_has_the_median_and_the_interval_of_what_was_saved(monkeypatch):
    monkeypatch.setattr("workbench.advice._verify.run_interleaved", lambda *_: ([2.0] * 9, [1.5] * 9))
    text = str(wb.advise(jax.jit(average), measure=True)(OLD, OLD))
    assert "9 calls each, interleaved: 25.0 % saved, 95 % interval 25.0 % to 25.0 %" in text


def test_nothing_runs_without_the_option():
    assert not measured_rows(wb.advise(jax.jit(average))(OLD, OLD))


def test_programs_that_need_more_than_is_free_are_not_run():
    large = jax.ShapeDtypeStruct((1 << 20, 1 << 18), "float32")  # 1 TiB
    advice = wb.advise(jax.jit(average), measure=True)(large, large)
    assert not measured_rows(advice)
    assert "MiB are free" in advice.notes[0]
    assert advice.notes[0] in str(advice)


def test_stop_ends_the_runs():
    cancel = threading.Event()
    phases = []

    def stop(phase, _):
        phases.append(phase)
        if phase.startswith("running"):
            cancel.set()

    advice = wb.advise(jax.jit(average), measure=True, cancel=cancel, progress=stop)(OLD, OLD)
    assert any(phase.startswith("running") for phase in phases)
    assert not measured_rows(advice)
    assert "stopped" in advice.notes[0]


@pytest.mark.parametrize("options", [{"verify": False}, {"on": "v5e:1x1"}], ids=["not compiled", "absent"])
def test_gains_are_measured_on_attached_devices_alone(options, monkeypatch):
    record = wb.inspect(jax.jit(average))(OLD, OLD)
    monkeypatch.setattr(Traced, "inspect", lambda self, **_: record)
    with pytest.raises(InspectionError, match="attached devices"):
        wb.advise(jax.jit(average), measure=True, **options)(OLD, OLD)


def test_best_choices_of_a_search_are_run():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    options = {"measure": True, "compiler": "cpu", "seconds": 1e6}  # until the choices are exhausted
    found = wb.search(lambda w, x: jnp.tanh(x @ w), on=(mesh, "v5e"), **options)(OLD, OLD)
    ran = [each for each in found.choices if each.measured_seconds is not None]
    assert found.ended == "complete"
    assert len(ran) == 3
    assert list(found.choices[:3]) == sorted(ran, key=lambda each: each.measured_seconds)
    assert all(low <= each.measured_seconds <= high for each in ran for low, high in [each.measured_interval])
    assert "interleaved calls each" in str(found)
    assert SearchRecord.from_json(found.to_json()) == found
    with pytest.raises(MeshError, match="attached"):
        wb.search(average, on=jax.sharding.AbstractMesh((2,), ("data",)), measure=True)(OLD, OLD)


@pytest.mark.parametrize(
    ("count", "ranks"), [(8, (1, 8)), (9, (2, 8)), (20, (6, 15)), (40, (14, 27))]
)  # of tables of the sign test
def test_interval_of_the_median_is_that_of_the_sign_test(count, ranks):
    values = [float(value) for value in range(count, 0, -1)]
    assert median_interval(values)[1:] == ranks
