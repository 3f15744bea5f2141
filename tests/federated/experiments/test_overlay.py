"""Sweeps over one another: what is said of their trials, and what `show` and `explore` take."""

from typing import Any

import jax.numpy as jnp
import optax
import pytest
import workbench_widgets

import workbench as wb
from workbench import compare
from workbench.errors import DataError, InspectionError
from workbench.federated import algorithms
from workbench.federated.experiments import sweep
from workbench.measurement import History, overlay_runs
from workbench.records.live import RoundRecord
from workbench.records.run import RunOverlayRecord


def run(*losses: float, name: str = "loss") -> History:
    return History([RoundRecord(round=r, seconds=1.0, metrics={name: x}) for r, x in enumerate(losses)])


def result_of(overlay: RunOverlayRecord, name: str) -> Any:
    return next(result for result in overlay.results if result.name == name)


@pytest.fixture(scope="module")
def broken() -> Any:
    def make(lr: float, clients: int) -> algorithms.Algorithm:
        return algorithms.fedavg(lambda w, x: (w - x) ** 2, clients=clients, client_optimizer=optax.sgd(lr))

    data = jnp.array([[1.0], [3.0]])
    return sweep(
        make, {"lr": [0.1, 1e30], "clients": [2, 3]}, params=jnp.float32(0), data=data, rounds=3, progress=False
    )


def test_a_sweep_reports_diverged_and_failed_trials(broken: Any) -> None:
    drawn = overlay_runs(broken)
    states = {result.name: result.status for result in drawn.results}
    assert states == {
        "lr=0.1, clients=2": "finished",
        "lr=1e+30, clients=2": "diverged",
        "lr=0.1, clients=3": "failed",
        "lr=1e+30, clients=3": "failed",
    }
    assert "diverged" in result_of(drawn, "lr=1e+30, clients=2").left_out[0]
    assert result_of(drawn, "lr=0.1, clients=3").left_out[0].endswith("(0 of 3 rounds)")


def test_show_prints_a_sweep_in_a_terminal(broken: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wb.show(broken)
    assert "lr=0.1, clients=2: loss " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["sweep", "comparison", "list", "dictionary", "record"])
def test_explore_opens_runs_over_one_another(kind: str, broken: Any) -> None:
    given = {
        "sweep": broken,
        "comparison": compare({"a": run(1.0)}, metric="loss"),
        "list": [run(1.0), run(2.0)],
        "dictionary": {"a": [run(1.0), run(2.0)]},
        "record": overlay_runs([run(1.0)]),
    }[kind]
    view = wb.explore(given)
    assert isinstance(view, workbench_widgets.RunsView)
    view.close()


def test_runs_are_a_tab_of_the_explorer_of_their_program() -> None:
    made = wb.explore(lambda x: x + 1, runs=[run(1.0), run(2.0)])(jnp.float32(0))
    assert "overlay" in [each["key"] for each in made.data["views"]]
    assert [each["name"] for each in made.data["overlay"]["results"]] == ["run 1", "run 2"]
    made.close()


def test_a_sweep_whose_trials_all_failed_reports_why() -> None:
    def evaluate(w: Any) -> Any:
        return {"accuracy": w["missing"]}

    result = sweep(
        lambda lr: algorithms.fedavg(lambda w, x: ((w - x) ** 2).mean(), clients=2, client_optimizer=optax.sgd(lr)),
        {"lr": [0.1, 0.2]},
        params=lambda key: jnp.zeros(3),
        data=jnp.ones((2, 1, 3)),
        evaluate=evaluate,
        seeds=2,
        rounds=1,
        progress=False,
    )
    with pytest.raises(DataError, match=r"The results have no metrics. Of the runs, 4 failed with \w+Error: "):
        compare(result, metric="accuracy")


def test_a_list_of_other_things_is_no_list_of_runs() -> None:
    with pytest.raises(InspectionError, match="sweeps and lists of runs"):
        wb.show([run(1.0), object()])
