"""Comparisons of runs against numbers by hand and against scipy called directly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from workbench import compare
from workbench.errors import DataError
from workbench.measurement import History
from workbench.measurement._intervals import mean_interval
from workbench.records.live import RoundRecord


def run(*values: Any, seconds: float = 2.0) -> History:
    return History([RoundRecord(round=r, seconds=seconds, metrics={"loss": v}) for r, v in enumerate(values)])


def three(offset: float) -> list[History]:
    return [run(4.0, offset + x) for x in (1.0, 1.2, 1.7, 1.1, 1.4, 1.6)]


def test_the_mean_is_that_of_final_values_and_the_interval_that_of_scipy() -> None:
    row = compare({"a": three(0.0)}, metric="loss").table().iloc[0]
    values = np.array([1.0, 1.2, 1.7, 1.1, 1.4, 1.6])
    expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert row["mean"] == pytest.approx(values.mean())
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_intervals_cover_the_mean_as_often_as_they_say(seeds: int) -> None:
    drawn = np.random.default_rng(seeds).normal(size=(4000, seeds))
    _, low, high = mean_interval(drawn, confidence=0.95)
    assert ((low < 0) & (high > 0)).mean() == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


def test_paired_tests_are_exact_for_few_seeds_and_holm_corrects_them() -> None:
    tests = compare({"a": three(0.0), "b": three(0.5), "c": three(0.5)}, metric="loss").tests()
    # All six differences have one sign: 2 of the 64 sign patterns are as extreme.
    assert tests["p"].tolist() == pytest.approx([2 / 64, 2 / 64, 1.0])
    assert tests["p_corrected"].tolist() == pytest.approx([6 / 64, 6 / 64, 1.0])
    assert tests["difference"].tolist() == pytest.approx([-0.5, -0.5, 0.0])


@pytest.mark.parametrize("test", ["t", "wilcoxon"])
def test_other_tests_are_those_of_scipy(test: Any) -> None:
    a, b = [1.0, 1.2, 1.7, 1.1, 1.4], [1.3, 1.1, 2.2, 1.5, 1.9]
    found = compare({"a": [run(x) for x in a], "b": [run(x) for x in b]}, metric="loss", test=test).tests()["p"][0]
    expected = {"t": scipy.stats.ttest_rel, "wilcoxon": scipy.stats.wilcoxon}[test](a, b).pvalue
    assert found == pytest.approx(expected)


def test_seeds_are_paired_by_their_number() -> None:
    tests = compare({"a": {1: run(1.0), 2: run(2.0)}, "b": {2: run(5.0), 3: run(9.0)}}, metric="loss").tests()
    assert (tests["pairs"][0], tests["difference"][0]) == (1, -3.0)
    assert np.isnan(tests["p"][0])


def test_rounds_seconds_and_bytes_to_a_target() -> None:
    compared = compare({"a": [run(3.0, 1.0, 0.5), run(3.0, 2.0, 1.0), run(3.0, 3.0, 3.0)]}, metric="loss")
    table = compared.to_target(1.0, bytes_per_round=10).set_index("unit")
    assert table["mean"].to_dict() == {"rounds": 2.5, "seconds": 5.0, "bytes": 25.0}
    assert table["reached"].tolist() == [2, 2, 2]
    assert table["seeds"].tolist() == [3, 3, 3]


def test_a_performance_profile_counts_seeds_within_tau_of_the_best() -> None:
    compared = compare({"a": [run(1.0), run(4.0)], "b": [run(2.0), run(2.0)]}, metric="loss")
    table = compared.profile()
    assert table.query("result == 'a'")[["tau", "share"]].to_numpy().tolist() == [[1.0, 0.5], [2.0, 1.0]]
    assert table.query("result == 'b'")[["tau", "share"]].to_numpy().tolist() == [[1.0, 0.5], [2.0, 1.0]]


def test_fairness_has_deciles_and_the_worst_tenth_of_the_clients() -> None:
    clients = tuple(float(x) for x in range(20))
    found = compare({"a": run(clients)}, metric="loss").fairness().set_index("statistic")["mean"]
    assert found["mean"] == 9.5
    assert found["decile 5"] == 9.5
    assert (found["worst 10 %"], found["best 10 %"]) == (18.5, 0.5)


def test_fairness_leaves_out_runs_that_ended_early() -> None:
    found = compare({"a": [run((1.0, 1.0), (1.0, 3.0)), run((9.0, 9.0))]}, metric="loss").fairness()
    assert found.set_index("statistic")["mean"]["mean"] == 2.0


def test_runs_that_diverged_or_ended_early_are_counted_and_left_out() -> None:
    table = compare({"a": [run(1.0, 1.0), run(1.0, float("nan")), run(1.0)]}, metric="loss").table()
    assert (table["seeds"][0], table["left_out"][0], table["mean"][0]) == (1, 2, 1.0)


def test_a_metric_that_nothing_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(DataError, match="'loss'"):
        compare({"a": run(1.0)}, metric="accuracy")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"confidence": 95}, "confidence=95"),
        ({"last": 0}, "last=0"),
        ({"test": "t-test"}, "'permutation', 't', 'wilcoxon'"),
        ({"correction": "bonferroni"}, "'holm' or 'benjamini-hochberg'"),
    ],
    ids=["percent", "no rounds", "test", "correction"],
)
def test_options_that_do_not_exist_are_refused(options: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        compare({"a": three(0.0), "b": three(1.0)}, **options)


def test_something_else_than_runs_is_refused() -> None:
    with pytest.raises(DataError, match="'a'"):
        compare({"a": [3.0]}, metric="loss")


@pytest.mark.parametrize("kind", ["curves", "finals", "profile", "fairness"])
def test_figures_are_vector_files_whose_text_is_text(kind: str, tmp_path: Path) -> None:
    runs = {name: [run((4.0, 5.0), (x, x + 1)) for x in (1.0, 2.0)] for name in ("FedAvg", "FedAdam")}
    figure = compare(runs, metric="loss").figure(kind, tmp_path / "figure.svg")
    assert figure._repr_png_().startswith(b"\x89PNG")  # a notebook that never imported pyplot shows it
    text = (tmp_path / "figure.svg").read_text()
    assert "FedAdam" in text
    compare(runs, metric="loss").figure(kind, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
