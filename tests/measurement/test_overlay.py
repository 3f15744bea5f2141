"""Several runs over one another: which seeds count, and what is said of the others."""

from typing import Any

import pytest

from workbench import compare
from workbench.errors import DataError
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


def test_runs_in_which_no_round_has_finished_are_refused() -> None:
    with pytest.raises(DataError, match="none of which has finished a round"):
        overlay_runs([run()])
