"""Overlays, figures and names of compared runs, derived by hand."""

import math
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pytest

from workbench.errors import DataError
from workbench.measurement import History, RunComparison, StoredRun, compare_runs, is_runs, overlay_runs
from workbench.measurement._compare_runs import named_runs
from workbench.measurement._run_overlay import _status, _why
from workbench.measurement._run_tables import _spread
from workbench.records.live import RoundRecord

T975 = 12.706204736  # quantile of Student's t with one degree of freedom


def history(*losses: Any, first: int = 0, **others: float) -> History:
    rounds = enumerate(losses, first)
    return History([RoundRecord(round=number, seconds=2.0, metrics={"loss": loss} | others) for number, loss in rounds])


Outcomes = dict[str, dict[int, tuple[str, str]]]


def compared(results: Any, outcomes: Outcomes | None = None, *, last: int = 1, minimize: bool = True) -> RunComparison:
    return RunComparison(results, "loss", minimize, last, 0.95, 999, "t", "holm", outcomes)


RESULTS = {
    "a": {1: history(9.0, 4.0, 2.0), 0: history(9.0, 3.0, 4.0), 2: history(9.0, math.nan),
          3: history(9.0, 1.0, math.inf)},
    "b": {0: history(8.0, 6.0, 6.0)},
}  # fmt: skip
ENDED: Outcomes = {
    "a": {0: ("finished", ""), 1: ("finished", ""), 2: ("stopped", ""), 3: ("failed", "ValueError: x")},
    "c": {4: ("failed", "OSError: full")},
}


def test_overlay_of_finished_runs():
    record = compared(RESULTS, ENDED).record
    assert (record.name, record.running, record.minimize, record.confidence) == ("3 results by loss", False, True, 0.95)
    a, b, c = record.results
    assert (a.name, a.status, a.seeds, a.compared) == ("a", "2 finished, 1 stopped, 1 failed", (0, 1), 2)
    assert a.left_out == (
        "seed 2: stopped (2 of 3 rounds)", "seed 3: failed: ValueError: x (its last value is missing or not finite)",
    )  # fmt: skip
    (loss,) = a.metrics
    assert (loss.rounds, loss.mean) == ((0, 1, 2), (9.0, 3.5, 3.0))
    assert loss.low == pytest.approx((9.0, 3.5 - T975 / 2, 3 - T975))
    assert loss.high == pytest.approx((9.0, 3.5 + T975 / 2, 3 + T975))
    assert (loss.final, loss.final_low, loss.final_high) == pytest.approx((3.0, 3 - T975, 3 + T975))
    assert loss.seeds == ((9.0, 3.0, 4.0), (9.0, 4.0, 2.0))
    (loss,) = b.metrics
    assert (loss.mean, loss.low, loss.seeds) == ((8.0, 6.0, 6.0), (None, None, None), ())
    assert (loss.final, loss.final_low) == (6.0, None)
    assert (c.status, c.seeds, c.compared, c.metrics) == ("failed", (), 0, ())
    assert c.left_out == ("seed 4: failed: OSError: full (0 of 3 rounds)",)
    assert [(pair.a, pair.b, pair.pairs, pair.difference) for pair in record.pairs] == [("a", "b", 1, -2.0)]


def test_overlay_of_running_runs_draws_every_seed_as_far_as_all_have_come():
    outcomes = {**ENDED, "a": ENDED["a"] | {5: ("ready", "")}}
    record = compared({"a": {0: history(9.0, 4.0, 2.0), 1: history(7.0, 2.0)}}, outcomes).record
    a, c = record.results
    assert (record.running, record.pairs, a.seeds, a.compared) == (True, (), (0, 1), 2)
    assert a.left_out == (
        "seed 2: stopped (0 of 3 rounds)", "seed 3: failed: ValueError: x (0 of 3 rounds)",
        "seed 5: ready (0 of 3 rounds)",
    )  # fmt: skip
    assert (a.metrics[0].rounds, a.metrics[0].mean, a.metrics[0].final) == ((0, 1), (8.0, 3.0), 2.0)
    assert c.name == "c"


def test_the_last_rounds_count_and_other_metrics_follow():
    seeds = {0: history(1.0, math.nan, 4.0, 2.0, accuracy=0.5), 1: history(1.0, 2.0, math.nan, 6.0, accuracy=0.7)}
    record = compared({"a": seeds}, last=2).record
    assert record.name == "1 result by loss"
    loss, accuracy = record.results[0].metrics
    assert (record.results[0].seeds, loss.final, loss.mean) == ((0,), 3.0, (1.0, None, 4.0, 2.0))
    assert (accuracy.metric, accuracy.final) == ("accuracy", 0.5)


@pytest.mark.parametrize(("results", "pairs"), [(1, 0), (2, 1), (3, 3), (4, 0)])
def test_pairs_of_few_results_are_tested(monkeypatch, results, pairs):
    monkeypatch.setattr("workbench.measurement._run_overlay.MOST_TESTED", 3)
    record = compared({str(number): {0: history(1.0 + number)} for number in range(results)}).record
    assert len(record.pairs) == pairs


@pytest.mark.parametrize(
    ("status", "reason", "rounds", "text"),
    [
        ("failed", "x", 2, "failed: x (2 of 3 rounds)"), ("failed", "", 2, "failed (2 of 3 rounds)"),
        ("", "x", 2, "x (2 of 3 rounds)"), ("", "", 2, "2 of 3 rounds"),
        ("finished", "", 3, "finished (its last value is missing or not finite)"),
    ],
)  # fmt: skip
def test_why_a_seed_is_left_out(status, reason, rounds, text):
    assert _why(status, reason, rounds, 3) == text


@pytest.mark.parametrize(
    ("states", "text"),
    [([], ""), (["", ""], ""), (["x", "x"], "x"), (["x", "", "y", "x"], "2 x, 1 y"), (["y", "x"], "1 y, 1 x")],
)
def test_status_of_several_seeds(states, text):
    assert _status(states) == text


# ---- tables


def test_columns_of_numbers_have_their_types():
    types = compared(RESULTS).table().dtypes.astype(str).to_dict()
    counts = {name for name, dtype in types.items() if dtype == "int64"}
    assert counts == {"seeds", "left_out"}
    assert {name for name, dtype in types.items() if dtype == "float64"} == set(types) - counts - {"result"}


def test_statistics_over_clients_are_nine_deciles_and_four_others():
    names = {f"decile {number}" for number in range(1, 10)} | {"mean", "std", "worst 10 %", "best 10 %"}
    figures = _spread(np.arange(19.0), minimize=True)
    assert figures.keys() == names
    assert (figures["worst 10 %"], figures["best 10 %"]) == (18.0, 0.0)  # whole clients


def test_results_without_values_have_no_curve():
    table = compared({"a": {0: history(math.nan)}}).curves()
    assert (len(table), list(table.columns)) == (0, ["result", "round", "mean", "low", "high"])


# ---- names


def stored(name: str) -> StoredRun[Any]:
    return StoredRun(path=Path("x"), about={"name": name, "status": "stopped"}, history=history(1.0), make_run=print)


def test_names_of_runs_in_a_list():
    runs = [history(1.0), stored("b"), history(2.0), stored("b"), stored("")]
    named: Any = named_runs(runs)
    assert {name: [runs.index(run) for run in members] for name, members in named.items()} == {
        "run 1": [0], "b": [1, 1], "run 3": [2], "run 5": [4],
    }  # fmt: skip
    record = overlay_runs([stored("b"), stored("b")])
    assert [(result.name, result.seeds, result.status) for result in record.results] == [("b", (0, 1), "stopped")]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [([history()], True), ({"a": history()}, True), ({"a": {3: history()}}, True), ([], False), ({}, False),
     ([[]], False), ([history(), 1.0], False), (history(1.0), False), ("ab", False)],
)  # fmt: skip
def test_what_counts_as_runs(runs, expected):
    assert is_runs(runs) is expected


def test_loss_is_the_first_metric_and_otherwise_the_first_that_a_run_has():
    def metric_of(*histories: History) -> str:
        return compare_runs({"a": list(histories)}).metric

    with_others = History([RoundRecord(round=0, seconds=1.0, metrics={"z": 1.0, "loss": 1.0, "a": 1.0})])
    without = History([RoundRecord(round=0, seconds=1.0, metrics={"z": 1.0, "a": 1.0})])
    assert (metric_of(with_others), metric_of(without)) == ("loss", "z")


def test_seeds_are_counted_from_0():
    compared = compare_runs({7: [history(1.0), history(2.0)], "b": history(3.0)}, metric="loss")
    assert compared.finals() == {"7": {0: 1.0, 1: 2.0}, "b": {0: 3.0}}
    with pytest.raises(DataError, match=r"of type set for 'a'"):
        compare_runs({"a": {1}}, metric="loss")


# ---- figures

PAIR = compared({"a": {0: history(4.0, 2.0), 1: history(4.0, 4.0)}, "b": {0: history(8.0, 6.0), 1: history(8.0, 8.0)}})


def axes_of(comparison: RunComparison, kind: str, **options: Any) -> Any:
    (axes,) = comparison.figure(kind, **options).axes
    return axes


def test_curves_begin_in_round_1_and_have_colours_and_line_styles():
    axes = axes_of(PAIR, "curves", width_inches=4.0, height_inches=3.0)
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2]] * 2
    assert [line.get_ydata().tolist() for line in axes.lines] == [[4.0, 3.0], [8.0, 7.0]]
    assert [(line.get_linestyle(), line.get_color()) for line in axes.lines] == [("-", "#0072B2"), ("--", "#D55E00")]
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert [(band.get_alpha(), band.get_linewidth().tolist()) for band in axes.collections] == [(0.2, [0.0])] * 2
    (corners,) = {tuple(sorted(set(band.get_paths()[0].vertices[:, 0]))) for band in axes.collections}
    assert corners == (1.0, 2.0)
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("round", "loss", "linear")
    assert axes.get_legend() is not None
    assert tuple(axes.figure.get_size_inches()) == (4.0, 3.0)
    assert axes_of(PAIR, "curves", log=True).get_yscale() == "log"
    assert axes_of(compared({"a": PAIR.results["a"]}), "curves").get_legend() is None


def test_colours_and_line_styles_repeat():
    many = compared({str(number): {0: history(1.0 + number)} for number in range(8)})
    lines = axes_of(many, "curves").lines
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-.", ":"] * 2
    assert len({line.get_color() for line in lines[:7]}) == 7
    assert lines[7].get_color() == lines[0].get_color()


def test_finals_are_dots_with_a_mean_and_an_interval():
    axes = axes_of(PAIR, "finals")
    first, _, second, _ = axes.collections
    assert first.get_offsets().tolist() == [[0, 2], [0, 4]]
    assert second.get_offsets().tolist() == [[1, 6], [1, 8]]
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 3]], [[1, 7]]]
    segment = axes.collections[1].get_segments()[0]
    assert np.asarray(segment) == pytest.approx(np.array([[0, 3 - T975], [0, 3 + T975]]))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert (axes.get_ylabel(), axes.get_legend()) == ("loss", None)
    one = axes_of(compared({"a": {0: history(1.0)}}), "finals")
    assert len(one.collections) == 1  # no interval
    colours = [matplotlib.colors.to_hex(item.get_facecolor()[0]).upper() for item in (first, second)]
    assert colours == ["#0072B2", "#D55E00"]


@pytest.mark.parametrize(("name", "rotation", "side"), [("ten letters", 30, "right"), ("ten letter", 0, "center")])
def test_long_names_are_slanted(name, rotation, side):
    (label,) = axes_of(compared({name: {0: history(1.0)}}), "finals").get_xticklabels()
    assert (label.get_rotation(), label.get_ha()) == (rotation, side)


@pytest.mark.parametrize(("target", "text"), [(None, "final value"), (4.0, "rounds")])
def test_profile_is_a_share(target, text):
    axes = axes_of(PAIR, "profile", target=target, log=True)
    assert (axes.get_xlabel(), axes.get_ylabel()) == (f"τ: times the best {text}", "share of seeds")
    assert (axes.get_ylim(), axes.get_yscale()) == ((0, 1.02), "linear")
    assert [line.get_drawstyle() for line in axes.lines] == ["steps-post"] * 2
    if target is None:
        assert axes.lines[0].get_xydata().tolist() == [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]
        assert axes.lines[1].get_xydata().tolist() == [[1.0, 0.0], [2.0, 0.5], [3.0, 1.0]]


def test_fairness_is_drawn_by_percentile():
    clients = tuple(float(client) for client in range(11))
    comparison = compared({"a": {0: history(clients)}, "b": {0: history(tuple(x + 1 for x in clients))}})
    axes = axes_of(comparison, "fairness")
    assert [line.get_xydata().tolist() for line in axes.lines] == [
        [[10.0 * n, pytest.approx(n + offset)] for n in range(1, 10)] for offset in (0, 1)
    ]
    assert [(band.get_alpha(), band.get_linewidth().tolist()) for band in axes.collections] == [(0.2, [0.0])] * 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("percentile of the clients", "loss")
    assert axes.get_legend() is not None


def test_an_unknown_figure_is_refused_with_those_there_are():
    with pytest.raises(DataError, match=r"kind='bars'.*'curves', 'finals', 'profile', 'fairness'"):
        PAIR.figure("bars")
