"""Tables of compared runs, measured trees of profiles and impossible client profiles, derived by hand."""

import math
from typing import Any

import numpy as np
import pytest
from records_parts import toy_module

from workbench.errors import DataError, MeasureError
from workbench.measurement import ClientProfiles, History, RunComparison
from workbench.measurement._intervals import corrected, mean_interval, paired_tests
from workbench.measurement._profile_tree import UNKNOWN, measured_tree, tree_of_names
from workbench.measurement._run_overlay import _thinned
from workbench.measurement._run_tables import _spread
from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.compiled import InstructionRecord
from workbench.records.live import RoundRecord
from workbench.records.profile import ProfiledOperationRecord
from workbench.records.program import SourceLine

T975 = {1: 12.706204736, 2: 4.302652730}  # quantiles of Student's t


def history(*values: Any, seconds: float = 2.0) -> History:
    return History([RoundRecord(round=n, seconds=seconds, metrics={"loss": v}) for n, v in enumerate(values)])


def compared(results: dict[str, dict[int, History]], *, minimize: bool = True, last: int = 1) -> RunComparison:
    return RunComparison(results, "loss", minimize, last, 0.95, 999, "t", "holm")


RUNS = compared({
    "a": {0: history(9.0, 4.0, 2.0), 1: history(9.0, 3.0, 4.0), 2: history(9.0, math.nan, math.nan)},
    "b": {0: history(8.0, 6.0, 6.0), 1: history(8.0, 7.0, 5.0)},
    "one": {0: history(3.0, 3.0, 3.0)},
    "none": {0: history(1.0, 1.0)},
})  # fmt: skip


@pytest.mark.parametrize(("minimize", "best", "worst"), [(True, 2.0, 4.0), (False, 4.0, 2.0)])
def test_row_of_a_result(minimize, best, worst):
    table = compared(RUNS.results, minimize=minimize).table().set_index("result")
    a = table.loc["a"]
    assert (a.seeds, a.left_out, a["mean"], a["best"], a["worst"]) == (2, 1, 3.0, best, worst)
    assert a["std"] == pytest.approx(math.sqrt(2))  # of 2 and 4, with n - 1
    assert (a.low, a.high) == pytest.approx((3 - T975[1], 3 + T975[1]))  # √2 / √2 = 1
    one, none = table.loc["one"], table.loc["none"]
    assert (one.seeds, one["mean"], one["best"], one["worst"]) == (1, 3.0, 3.0, 3.0)
    assert np.isnan([one["std"], one.low, one.high, none["mean"], none["best"]]).all()
    assert (none.seeds, none.left_out) == (0, 1)  # it ended before the others


def test_last_rounds_are_averaged():
    assert compared(RUNS.results, last=2).finals() == {
        "a": {0: 3.0, 1: 3.5}, "b": {0: 6.0, 1: 6.0}, "one": {0: 3.0}, "none": {},
    }  # fmt: skip


def test_curves_are_means_of_complete_seeds():
    curves = RUNS.curves()
    a = curves[curves["result"] == "a"]
    assert (a["round"].tolist(), a["mean"].tolist()) == ([0, 1, 2], [9.0, 3.5, 3.0])
    assert a["high"].tolist() == pytest.approx([9.0, 3.5 + T975[1] / 2, 3 + T975[1]])
    assert set(curves["result"]) == {"a", "b", "one"}


@pytest.mark.parametrize(
    ("minimize", "target", "rounds"),
    [(True, 4.0, [2.0, 2.0]), (True, 3.9, [3.0, 2.0]), (True, 1.9, []), (False, 9.0, [1.0] * 3), (False, 9.1, [])],
)
def test_rounds_until_a_target_is_reached(minimize, target, rounds):
    table = compared({"a": RUNS.results["a"]}, minimize=minimize).to_target(target, bytes_per_round={"a": 10.0})
    rows = {row["unit"]: row for row in table.to_dict("records")}
    assert all((row["reached"], row["seeds"]) == (len(rounds), 3) for row in rows.values())
    if rounds:
        means = [rows[unit]["mean"] for unit in ("rounds", "seconds", "bytes")]
        assert means == pytest.approx([np.mean(rounds), 2 * np.mean(rounds), 10 * np.mean(rounds)])
    else:
        assert np.isnan(rows["rounds"]["mean"])
        assert "seconds" not in rows


def test_share_of_seeds_within_a_ratio_of_the_lowest_cost():
    table = RUNS.profile()
    # final values: a 2, 4; b 6, 5; one 3. The lowest of seed 0 is 2, of seed 1 is 4; seed 2 has no value.
    assert table.tau.unique().tolist() == [1.0, 1.25, 1.5, 3.0]
    shares = {name: rows.share.tolist() for name, rows in table.groupby("result")}
    assert shares["a"] == pytest.approx([2 / 3] * 4)
    assert shares["b"] == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3])
    assert shares["one"] == pytest.approx([0, 0, 1 / 3, 1 / 3])
    # rounds to 6: a 2 and 2 and none; b 2 and 3; one 1; none 1
    rounds = {name: rows.share.tolist() for name, rows in RUNS.profile(target=6.0).groupby("result")}
    assert rounds["a"] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert rounds["b"] == pytest.approx([0, 1 / 3, 2 / 3])


@pytest.mark.parametrize(("minimize", "value"), [(False, 1.0), (True, 0.0)])
def test_ratios_need_a_positive_metric_that_is_minimised(minimize, value):
    with pytest.raises(DataError, match="maximised or not positive"):
        compared({"a": {0: history(value)}}, minimize=minimize).profile()


@pytest.mark.parametrize(("minimize", "worst", "best"), [(True, 19.5, 1.5), (False, 1.5, 19.5)])
def test_spread_over_clients(minimize, worst, best):
    figures = _spread(np.arange(20.0, 0.0, -1.0), minimize)  # 1 to 20: a tenth is 2 clients
    assert (figures["worst 10 %"], figures["best 10 %"]) == (worst, best)
    assert (figures["mean"], figures["std"]) == (10.5, pytest.approx(math.sqrt((20**2 - 1) / 12)))
    assert figures["decile 1"] == pytest.approx(1 + 0.1 * 19)
    assert figures["decile 9"] == pytest.approx(1 + 0.9 * 19)
    few = _spread(np.array([3.0, 1.0]), minimize)
    assert {few["worst 10 %"], few["best 10 %"]} == {1.0, 3.0}


def test_fairness_takes_the_last_round_of_every_seed():
    seeds = {0: history((9.0, 9.0), (1.0, 3.0)), 1: history((9.0, 9.0), ((5.0, 7.0), (8.0, 8.0)))}
    table = compared({"a": seeds, "mean": {0: history(1.0)}}).fairness().set_index("statistic")
    assert set(table["result"]) == {"a"}
    assert (table.loc["mean", "mean"], table.loc["worst 10 %", "mean"]) == (4.5, 5.5)  # of (1, 3) and of (6, 8)
    with pytest.raises(DataError, match="per-client"):
        compared({"mean": {0: history(1.0)}}).fairness()


@pytest.mark.parametrize(
    ("length", "places"),
    [(1, [0]), (4, [0, 1, 2, 3]), (5, [0, 2, 4]), (6, [0, 2, 4, 5]), (9, [0, 3, 6, 8]), (8, [0, 2, 4, 6, 7])],
)
def test_rounds_of_a_long_curve_are_thinned_and_the_last_is_kept(monkeypatch, length, places):
    monkeypatch.setattr("workbench.measurement._run_overlay.MOST_POINTS", 4)
    assert _thinned(length) == places


def test_interval_of_one_value_is_unknown_and_of_three_is_students():
    assert np.isnan(mean_interval(np.array([3.0]), confidence=0.95)[1:]).all()
    mean, low, high = mean_interval(np.array([[1.0, 2.0, 3.0]]), confidence=0.95)
    half = T975[2] / math.sqrt(3)
    assert (mean.tolist(), low.tolist(), high.tolist()) == ([2.0], pytest.approx([2 - half]), pytest.approx([2 + half]))


@pytest.mark.parametrize(
    ("test", "differences", "p"),
    [
        ("t", [1.0], math.nan),
        ("t", [0.0, 0.0], 1.0),
        ("t", [2.0, 2.0], 0.0),  # every seed differs by the same value
        ("t", [0.1, 0.1, 0.1], 0.0),  # whose mean is not exactly 0.1
        ("t", [0.0, 2.0], 2 * (0.5 - math.atan(1.0) / math.pi)),  # t = 1 with one degree of freedom
        ("permutation", [1.0, 2.0, 3.0], 2 / 8),  # all signs equal: 2 of 8
        ("permutation", [1.0, 2.0, 4.0, -0.5], 2 * 2 / 16),  # only the sum of 7.5 is larger than 6.5
        ("wilcoxon", [1.0, 2.0, 3.0], 2 / 8),
    ],
)
def test_p_value_of_paired_differences(test, differences, p):
    a, b = dict(enumerate(differences)), dict.fromkeys(range(len(differences)), 0.0)
    a[99] = 7.0  # a seed without a partner
    (row,) = paired_tests({"a": a, "b": b}, test=test, correction="holm", confidence=0.95, resamples=99)
    assert (row["pairs"], row["difference"]) == (len(differences), pytest.approx(np.mean(differences)))
    assert row["p"] == pytest.approx(p, nan_ok=True)
    assert row["p_corrected"] == pytest.approx(p, nan_ok=True)


@pytest.mark.parametrize(("resamples", "parts"), [(99, 100), (199, 200)])
def test_number_of_random_permutations_of_many_seeds(resamples, parts):
    a, b = {seed: float(seed) for seed in range(14)}, dict.fromkeys(range(14), 6.0)  # 2**14 signs
    (row,) = paired_tests({"a": a, "b": b}, test="permutation", correction="holm", confidence=0.95, resamples=resamples)
    assert row["p"] * parts == pytest.approx(round(row["p"] * parts), abs=1e-9)
    assert 0.1 < row["p"] < 0.9


def test_results_without_common_seeds_have_no_difference():
    (row,) = paired_tests({"a": {0: 1.0}, "b": {1: 2.0}}, test="t", correction="holm", confidence=0.95, resamples=99)
    assert row["pairs"] == 0
    assert np.isnan([row["difference"], row["low"], row["high"], row["p"], row["p_corrected"]]).all()


@pytest.mark.parametrize(
    ("correction", "expected"),
    [("holm", [0.04, 0.06, 0.06, 0.2]), ("benjamini-hochberg", [0.04, 0.04, 0.04, 0.2])],
)
def test_p_values_are_corrected_for_their_number(correction, expected):
    # Holm: 4 · 0.01, 3 · 0.02, 2 · 0.03 (not below the value before), 0.2; BH: 4/1 · 0.01, 4/2 · 0.02, 4/3 · 0.03, 0.2
    assert corrected([0.01, 0.02, 0.03, 0.2], correction) == pytest.approx(expected)
    assert corrected([0.2, 0.03, 0.01, 0.02], correction) == pytest.approx([expected[i] for i in (3, 2, 0, 1)])
    assert corrected([0.6, 0.7], correction) == pytest.approx([1.0, 1.0] if correction == "holm" else [0.7, 0.7])


# ---- trees of profiles


def operation(name: str, category: str = "loop fusion", path: str = "", **seconds: float) -> ProfiledOperationRecord:
    return ProfiledOperationRecord(
        name=name, program="p", category=category, executions=1, seconds=sum(seconds.values()), op_name=path,
        seconds_by_device=seconds, source=SourceLine(file="a.py", line=3) if path.endswith("sin") else None,
    )  # fmt: skip


def drawn(tree: CallTreeRecord) -> list[Any]:
    return [(n.kind, n.name, n.own.measured_seconds, n.total.measured_seconds) for n in tree.nodes]


def test_tree_of_operation_names():
    tree = tree_of_names("step", [
        operation("a", path="jit(f)/mlp/sin", d0=1.0, d1=2.0), operation("b", path="jit(f)/mlp/sin:", d0=4.0),
        operation("c", path="jit(f)/cos", d0=8.0), operation("e", category="copy-done", d1=16.0),
    ])  # fmt: skip
    assert drawn(tree) == [
        ("root", "step", {}, {"d0": 13.0, "d1": 18.0}),
        ("scope", "jit(f)", {}, {"d0": 13.0, "d1": 2.0}),
        ("scope", "mlp", {}, {"d0": 5.0, "d1": 2.0}),
        ("operation", "sin", {"d0": 5.0, "d1": 2.0}, {"d0": 5.0, "d1": 2.0}),
        ("operation", "cos", {"d0": 8.0}, {"d0": 8.0}),
        ("operation", "(copy-done)", {"d1": 16.0}, {"d1": 16.0}),
    ]
    leaf = tree.nodes[3]
    assert (leaf.parent, leaf.file, leaf.line, leaf.scope) == (2, "a.py", 3, "jit(f)/mlp/sin")
    assert leaf.instructions == {"a": 1.0, "b": 1.0}
    assert [node.parent for node in tree.nodes] == [None, 0, 1, 2, 1, 0]


def node(number: int, parent: int | None, name: str, **instructions: float) -> CallNodeRecord:
    kind: Any = "root" if parent is None else "operation"
    return CallNodeRecord(id=number, parent=parent, kind=kind, name=name, instructions=instructions)


def test_seconds_of_operations_are_divided_as_in_the_tree():
    tree = CallTreeRecord(made_from="compiled", nodes=(
        node(0, None, "step"), node(1, 0, "line", fused=0.25), node(2, 1, "sin", fused=0.25, alone=1.0),
        node(3, 0, "copy-start", start=1.0),
    ))  # fmt: skip

    def instruction(name: str, *operands: str) -> InstructionRecord:
        return InstructionRecord(name=name, opcode="copy", computation="main", shape="f32[]", size_bytes=4,
                                 executions=1, operands=operands)  # fmt: skip

    module = toy_module(instructions=(
        instruction("x-done.1", "x-start"), instruction("x-start", "alone"), instruction("start-done", "start"),
        instruction("deep-done", "d1-start"), instruction("d1-start", "d2-start"), instruction("d2-start", "d3-start"),
        instruction("d3-start", "alone"), instruction("lost", "alone"),
    ))  # fmt: skip
    operations = [
        operation("fused", d0=8.0), operation("alone", d0=1.0, d1=1.0), operation("x-done.1", "copy-done", d0=2.0),
        operation("start-done", "copy-done", d1=4.0), operation("lost", d0=16.0), operation("deep-done", d1=32.0),
    ]  # fmt: skip
    measured = measured_tree(tree, operations, module)
    assert drawn(measured) == [
        ("root", "step", {}, {"d0": 27.0, "d1": 37.0}),
        ("operation", "line", {"d0": 4.0}, {"d0": 11.0, "d1": 1.0}),
        ("operation", "sin", {"d0": 7.0, "d1": 1.0}, {"d0": 7.0, "d1": 1.0}),  # a copy counts at the copied value
        ("operation", "copy-start and copy-done", {"d1": 4.0}, {"d1": 4.0}),
        ("unattributed", UNKNOWN, {}, {"d0": 16.0, "d1": 32.0}),
        ("operation", "lost", {"d0": 16.0}, {"d0": 16.0}),
        ("operation", "deep-done", {"d1": 32.0}, {"d1": 32.0}),  # the copied value is more than three steps away
    ]
    assert [(n.id, n.parent) for n in measured.nodes[4:]] == [(4, 0), (5, 4), (6, 4)]
    assert measured.nodes[5].instructions == {"lost": 1.0}
    without = measured_tree(tree, operations)
    assert without.nodes[2].own.measured_seconds == {"d0": 5.0, "d1": 1.0}
    assert [n.name for n in without.nodes[5:]] == ["x-done.1", "start-done", "lost", "deep-done"]


# ---- client profiles


@pytest.mark.parametrize(
    ("column", "values", "fact"),
    [
        ("dropout_probability", [0.0, 1.0], ""),
        ("dropout_probability", [-0.1, 0.5], "dropout_probability -0.1 for client 0"),
        ("dropout_probability", [0.5, 1.1], "dropout_probability 1.1 for client 1"),
        ("flops_per_second", [1e-9, 5.0], ""),
        ("flops_per_second", [0.0, 5.0], "flops_per_second 0 for client 0"),
        ("up_bytes_per_second", [1.0, math.inf], "up_bytes_per_second inf for client 1"),
        ("down_bytes_per_second", [math.nan] * 5, "nan for client 4."),
        ("down_bytes_per_second", [-1.0] * 7, "-1 for client 4 and 2 more"),
    ],
)
def test_impossible_numbers_of_clients_are_named(column, values, fact):
    table = {
        name: np.ones(len(values)) for name in ("flops_per_second", "down_bytes_per_second", "up_bytes_per_second")
    }
    table |= {"dropout_probability": np.zeros(len(values)), column: np.array(values)}
    if not fact:
        assert [record.client for record in ClientProfiles(**table).records()] == [0, 1]
        return
    with pytest.raises(MeasureError) as error:
        ClientProfiles(**table)
    assert fact.rstrip(".") in str(error.value)
    assert (" more" in str(error.value)) == (" more" in fact)
