"""Several runs over one another: which seeds count, what is said of the others, and what `show` and `explore` take."""

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


def test_bands_are_those_of_the_comparison() -> None:
    compared = compare({"a": [run(3.0, 1.0), run(4.0, 2.0)], "b": [run(3.0, 2.0), run(4.0, 3.0)]}, metric="loss")
    drawn = compared.record
    curve = result_of(drawn, "a").metrics[0]
    assert (curve.mean, curve.final, curve.seeds) == ((3.5, 1.5), 1.5, ((3.0, 1.0), (4.0, 2.0)))
    assert [(pair.a, pair.b, pair.difference) for pair in drawn.pairs] == [("a", "b", -1.0)]


def test_a_seed_that_ended_early_or_diverged_is_left_out_and_reported() -> None:
    drawn = overlay_runs({"a": [run(3.0, 1.0), run(3.0, float("nan")), run(3.0)], "b": [run(2.0, 2.0)]})
    assert result_of(drawn, "a").left_out == (
        "seed 1: its last value is missing or not finite",
        "seed 2: 1 of 2 rounds",
    )
    assert result_of(drawn, "a").metrics[0].mean == (3.0, 1.0)


def test_a_result_of_which_nothing_is_left_is_drawn_as_far_as_it_came() -> None:
    drawn = overlay_runs({"a": [run(3.0)], "b": [run(2.0, 2.0)]})
    assert result_of(drawn, "a").compared == 0
    assert (result_of(drawn, "a").metrics[0].mean, result_of(drawn, "a").metrics[0].final) == ((3.0,), None)


def test_where_a_seed_is_infinite_there_is_no_mean() -> None:
    drawn = overlay_runs({"a": [run(1.0, float("inf"), 2.0), run(1.0, 1.0, 4.0)]})
    assert drawn.results[0].metrics[0].mean == (1.0, None, 3.0)


def test_long_runs_are_thinned_to_their_ends() -> None:
    curve = overlay_runs([run(*map(float, range(1000)))]).results[0].metrics[0]
    assert len(curve.rounds) <= 301
    assert (curve.rounds[0], curve.rounds[-1]) == (0, 999)


def test_metrics_that_only_some_results_have_are_kept_apart() -> None:
    drawn = overlay_runs({"a": [run(1.0)], "b": [run(0.5, name="accuracy")]})
    assert drawn.metrics == ("loss", "accuracy")
    assert [m.metric for m in result_of(drawn, "b").metrics] == ["accuracy"]


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


def test_runs_in_which_no_round_has_finished_are_refused() -> None:
    with pytest.raises(DataError, match="none of which has finished a round"):
        overlay_runs([run()])


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
