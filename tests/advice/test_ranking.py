"""Findings rank by what the whole change does: a trade is no first advice."""

from workbench import render
from workbench.advice._advise import _overlaps, _rank
from workbench.records.advice import AdviceRecord, FindingRecord, GainRecord


def gain(quantity, before, after):
    return GainRecord(quantity=quantity, before=before, after=after, verified=True, how="compiled")


def finding(what, weight, *compared):
    return FindingRecord(
        rule=what, what=what, why="", change="", evidence=(), weight=weight, gain=compared[0], compared=compared
    )


MEMORY = finding("memory", 0.2, gain("peak bytes", 100, 80), gain("bytes sent", 50, 50), gain("FLOPs", 10, 10))
TRADE = finding("trade", 0.9, gain("bytes sent", 667, 512), gain("peak bytes", 100, 179), gain("FLOPs", 100, 151))
FASTER = finding("faster", 0.1, gain("peak bytes", 100, 120), gain("seconds", 1.0, 0.6))
SLOWER = finding("slower", 0.8, gain("peak bytes", 100, 50), gain("seconds", 1.0, 1.2))


def test_a_change_that_costs_memory_and_work_comes_after_one_that_costs_nothing():
    assert [each.what for each in sorted([TRADE, MEMORY], key=_rank)] == ["memory", "trade"]


def test_predicted_seconds_decide_where_they_are_known():
    assert [each.what for each in sorted([SLOWER, TRADE, FASTER], key=_rank)] == ["faster", "trade", "slower"]


def test_the_text_states_every_side_of_a_trade():
    text = render.text(AdviceRecord(name="step", target="here", findings=(TRADE, MEMORY), checked=("a",)))
    assert "Price: peak bytes 100 B -> 179 B (+79 %), matrix FLOPs 100 FLOP -> 151 FLOP (+51 %)" in text
    assert text.count("Price:") == 1


def test_elementwise_work_alone_is_no_price():
    rewritten = finding("rewritten", 0.2, gain("peak bytes", 100, 50), gain("elementwise FLOPs", 10, 30))
    assert rewritten.costs == ()


def test_the_text_of_a_finding_has_every_figure_that_was_compiled():
    figures = {"peak bytes": (4096, 2048), "bytes sent": (1024, 2048), "FLOPs": (1e6, 1e6), "seconds": (2e-6, 1e-6)}
    compared = tuple(
        GainRecord(quantity=name, before=before, after=after, verified=True)
        for name, (before, after) in figures.items()
    )
    finding = FindingRecord(
        rule="r", what="w", why="y", change="c", evidence=(), weight=1.0, gain=compared[0], compared=compared
    )
    text = render.text(AdviceRecord(name="f", target="t", findings=(finding,), checked=("r",)))
    assert "Gain: peak bytes 4 KiB -> 2 KiB" in text
    assert "Price: bytes sent 1 KiB -> 2 KiB (+100 %)" in text
    assert "Other figures: matrix FLOPs 1 MFLOP (unchanged), seconds 2 µs -> 1 µs" in text


def test_gains_that_exceed_the_whole_are_said_to_overlap():
    halves = finding("half", 0.5, gain("bytes sent", 100, 50), gain("peak bytes", 100, 90))
    more = finding("more", 0.5, gain("bytes sent", 100, 40), gain("peak bytes", 100, 95))
    assert _overlaps([halves]) == []
    (note,) = _overlaps([halves, more])
    assert "claim to save more bytes sent than the program's total" in note


def test_gains_that_fit_into_the_whole_may_be_independent():
    assert _overlaps([finding("one", 0.5, gain("FLOPs", 100, 50)), finding("two", 0.5, gain("FLOPs", 100, 50))]) == []
