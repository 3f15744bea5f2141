"""The order, merging and compilation of findings, with rules that return findings written by hand."""

import threading
import types

import pytest

from tests.advice.hand_written import GATHER, changed, compiled, line, with_module
from workbench.advice import advise_call, advise_record
from workbench.advice._advise import _for_pmap, _merged, _once, _overlaps, _rank, _without_effects
from workbench.advice._remat import KEPT
from workbench.errors import InspectionError
from workbench.records.advice import AdviceRecord, FindingRecord, GainRecord
from workbench.records.compiled import CostRecord


def gain(before=100.0, after=50.0, quantity="bytes sent", *, verified=True):
    return GainRecord(quantity=quantity, before=before, after=after, verified=verified)


def finding(rule="r", weight=0.5, **fields):
    given = {"what": f"{rule} is slow.", "why": "y", "change": "c", "evidence": ("e",)} | fields
    return FindingRecord(rule=rule, weight=weight, **given)


class Rules:
    """Rules that return the given findings; each has the name of its position as docstring."""

    def __init__(self, monkeypatch, *findings):
        rules = [self.rule(at, group) for at, group in enumerate(findings)]
        monkeypatch.setattr("workbench.advice._advise.RULES", tuple(rules))

    def rule(self, number, findings):
        def found(_):
            yield from findings

        found.__doc__ = f"Rule {number}.\nMore."
        return found


def names(advice):
    return [each.rule for each in advice.findings]


def test_findings_are_ranked_and_reported_one_rule_at_a_time(monkeypatch):
    Rules(monkeypatch, [finding("a", 0.2)], [], [finding("b", 0.9), finding("c", 0.5)])
    parts, phases = [], []
    record = compiled(cost=CostRecord(stages=(), seconds=1.0, error_bar="±21 %")).record
    advice = advise_record(record, found=parts.append, progress=lambda phase, seconds: phases.append((phase, seconds)))
    assert [names(part) for part in parts] == [["a"], ["b", "c", "a"]]
    assert [part.checked for part in parts] == [("Rule 0.",), ("Rule 0.", "Rule 1.", "Rule 2.")]
    assert advice == parts[-1] == AdviceRecord(
        name="step", target="here", findings=tuple(finding(name, weight) for name, weight in
                                                   (("b", 0.9), ("c", 0.5), ("a", 0.2))),
        checked=("Rule 0.", "Rule 1.", "Rule 2."), error_bar="±21 %",
    )  # fmt: skip
    assert [phase for phase, _ in phases] == ["reading the program"]
    assert 0 <= phases[0][1] < 60
    assert advise_record(compiled(cost=CostRecord(stages=(), error_bar="x")).record).error_bar == ""


def test_most_important_findings_are_kept(monkeypatch):
    Rules(monkeypatch, [finding(str(at), at / 100) for at in range(30)])
    assert names(advise_record(compiled().record)) == [str(at) for at in range(29, 9, -1)]
    assert names(advise_record(compiled().record, at_most=2)) == ["29", "28"]


def test_rule_without_a_docstring_is_named(monkeypatch):
    def slow_axis(_):
        return iter(())

    monkeypatch.setattr("workbench.advice._advise.RULES", (slow_axis,))
    assert advise_record(compiled().record).checked == ("slow axis",)


def recompiling(*results, asked):
    def recompile(**change):
        asked.append(change)
        result = results[len(asked) - 1]
        if isinstance(result, BaseException):
            raise result
        return result.record

    return recompile


STATIC = "shift known only at run time"  # compiled with `static=True`, and verified by the bytes sent


def shifted(number, **fields):
    return finding(STATIC, instructions=(f"g{number}",), sources=(line(number),), axes=("data",), size_bytes=1.0,
                   **fields)  # fmt: skip


def test_changes_are_compiled_in_order_of_their_weight(monkeypatch):
    Rules(monkeypatch, [shifted(1, weight=0.1), shifted(2, weight=0.3)])
    base, asked, phases, parts = compiled(GATHER), [], [], []
    less, none = changed(base, wire_bytes=1.0), changed(base, wire_bytes=24575.0)
    advice = advise_record(
        base.record, recompile=recompiling(none, less, asked=asked), found=parts.append,
        progress=lambda phase, _: phases.append(phase),
    )  # fmt: skip
    assert phases[1:] == [f"compiling change {at} of 2: {STATIC}" for at in (1, 2)]
    assert [each.sources for each in advice.findings] == [(line(1),)]  # the other change saves nothing
    assert advice.findings[0].gain == gain(24576.0, 1.0).replace(how="compiled with a static shift")
    assert len(parts) == 3
    assert asked == [{"static": True}] * 2


@pytest.mark.parametrize(("after", "count"), [(24576 * 0.981, 0), (24576 * 0.97, 1), (30000, 0)])
def test_compiled_change_must_save_more_than_2_percent(monkeypatch, after, count):
    Rules(monkeypatch, [shifted(1)])
    base = compiled(GATHER)
    recompile = recompiling(changed(base, wire_bytes=float(after)), asked=[])
    assert len(advise_record(base.record, recompile=recompile).findings) == count


def test_unknown_gain_stays(monkeypatch):
    Rules(monkeypatch, [finding("unknown", gain=gain(after=100.0, verified=False)), finding("none")])
    assert set(names(advise_record(compiled().record))) == {"unknown", "none"}
    Rules(monkeypatch, [finding("none", gain=gain(after=100.0)), finding("little", gain=gain(after=98.1))])
    assert names(advise_record(compiled().record)) == []


def test_change_that_no_longer_fits_is_left_out(monkeypatch):
    def peaks(before, after):
        return gain(before, after, "peak bytes")

    large = finding("large", compared=(gain(), peaks(100.0, 101.0)))
    Rules(monkeypatch, [large, finding("fits", compared=(peaks(50.0, 100.0),)),
                        finding("never fitted", compared=(peaks(101.0, 200.0),))])  # fmt: skip
    assert set(names(advise_record(compiled(memory={"available_bytes": 100}).record))) == {"fits", "never fitted"}
    assert len(advise_record(compiled().record).findings) == 3


def test_stop_is_noted_before_a_rule_and_before_a_change(monkeypatch):
    Rules(monkeypatch, [shifted(1)], [shifted(2)])
    cancel, asked = threading.Event(), []
    cancel.set()
    advice = advise_record(compiled(GATHER).record, cancel=cancel)
    assert (advice.findings, advice.checked, advice.notes) == ((), (), ("stopped before every rule was checked",))
    cancel.clear()

    def stop(part):
        if len(part.checked) == 2:
            cancel.set()

    recompile = recompiling(compiled(GATHER), asked=asked)
    advice = advise_record(compiled(GATHER).record, cancel=cancel, found=stop, recompile=recompile)
    assert (asked, advice.notes) == ([], ("stopped before every change was compiled",))
    assert len(advice.findings) == 2


class Time:
    """A clock that only compilations advance, by 0.25 s each."""

    def __init__(self, monkeypatch, base):
        self.now, self.asked, self.record = 0.0, [], changed(base, wire_bytes=1.0).record
        monkeypatch.setattr("workbench.advice._advise.time", types.SimpleNamespace(monotonic=lambda: self.now))

    def recompile(self, **change):
        self.asked.append(change)
        self.now += 0.25
        return self.record


def test_compilations_end_at_the_time_limit(monkeypatch):
    Rules(monkeypatch, [shifted(at) for at in (1, 2, 3)])
    base = compiled(GATHER)
    clock = Time(monkeypatch, base)

    def advice(until, compiling):
        clock.now, clock.asked = 1.0, []
        return advise_record(base.record, recompile=clock.recompile, until=until, compiling=compiling)

    given = advice(6.0, 6.0)
    assert given.notes == (
        "3 of 3 changes were not compiled: a compilation takes about 6 s, but only 5 s of the time limit "
        "(`seconds`) are left",
    )
    assert clock.asked == []
    given = advice(1.45, 0.125)  # the first compilation takes 0.25 s, which is longer than expected
    assert clock.asked == [{"static": True}]
    assert given.notes[0].startswith(
        "2 of 3 changes were not compiled: a compilation takes about 0.25 s, but only 0.2 s"
    )
    assert [each.is_verified for each in given.findings] == [True, False, False]
    assert [each.is_verified for each in advice(1.5, 0.125).findings] == [True, True, False]
    assert [each.is_verified for each in advice(1.6, 0.5).findings] == [True, False, False]
    assert "but only 0 s of" in advice(0.5, 0.125).notes[0]


def test_several_compilations_of_one_change_end_at_the_time_limit(monkeypatch):
    Rules(monkeypatch, [finding("recomputation", gain=gain(quantity="FLOPs", verified=False))])
    base = compiled(GATHER)
    clock = Time(monkeypatch, base)
    for until, count in (0.4, 1), (0.5, 2), (0.7, 2), (0.75, 3):
        clock.now, clock.asked = 0.0, []
        [only] = advise_record(base.record, recompile=clock.recompile, until=until).findings or [None]
        assert len(clock.asked) == count
        assert count == 3 or only.gain.how.endswith("TimeLimitError: the time limit ended, or the advice was stopped")


def test_interrupt_keeps_the_findings(monkeypatch):
    Rules(monkeypatch, [shifted(1)])
    recompile = recompiling(KeyboardInterrupt(), asked=[])
    advice = advise_record(compiled(GATHER).record, recompile=recompile)
    assert (len(advice.findings), advice.notes) == (1, ("interrupted before all changes were compiled",))


def test_loop_of_unknown_length_is_noted(monkeypatch):
    Rules(monkeypatch)
    base = compiled(GATHER)
    assert advise_record(base.record).notes == ()
    first, *rest = base.module.instructions
    unknown = with_module(base, instructions=(*rest, first.replace(executions=None)))
    assert advise_record(unknown.record).notes == (
        "in a loop whose length is unknown, every instruction counts once, so bytes and FLOPs are lower bounds",
    )


def test_program_that_was_only_planned_is_refused():
    record = compiled().record.replace(module=None)
    with pytest.raises(InspectionError, match="received the record of step, which was only planned, not compiled"):
        advise_record(record)


class Given:
    """Variants of a call for a target, or for the devices of this process."""

    references = ()

    def __init__(self, target=None):
        self.options, self.fn, self.chunk_size, self.asked = {"target": target}, None, "auto", []

    def planner(self):
        return None

    def recompile(self, **change):
        self.asked.append(change)
        raise ValueError("not here")


def test_measurement_needs_attached_devices_and_compiled_changes(monkeypatch):
    Rules(monkeypatch, [shifted(1)])
    record = compiled(GATHER).record
    for given, verify, why in (Given(), False, "verify=False"), (Given("v5e:2x4"), True, "the target here"):
        with pytest.raises(InspectionError, match=f"was given measure=True for step with {why}"):
            advise_call(record, given, verify=verify, measure=True)  # pyright: ignore[reportArgumentType]
    given = Given()
    assert not advise_call(record, given, verify=False).findings[0].is_verified  # pyright: ignore[reportArgumentType]
    assert given.asked == []
    phases = []
    advice = advise_call(record, given, measure=True, progress=lambda phase, _: phases.append(phase))  # pyright: ignore
    assert given.asked == [{"static": True}]
    assert phases[1:] == [f"compiling change 1 of 1: {STATIC}", f"running change 1 of 1: {STATIC}"]
    assert advice.findings[0].gain.how == "could not be verified: ValueError: not here"


def test_shardings_of_pmap_are_advised_for_jit():
    specs = finding(specs={"w": (("data",),)}, code="x")
    in_words = (
        "`jax.pmap` keeps such an argument unsharded on every device. Move the step to `jax.jit` on a mesh with the "
        "same axis, and then: c"
    )
    mapped = compiled(options={"wrapper": "jax.pmap"})
    assert _for_pmap(specs, mapped) == specs.replace(change=in_words, code="")
    assert _for_pmap(finding(), mapped) == finding()
    assert _for_pmap(specs, compiled()) == specs


def compared(*rows, rule="r", gain_=None, weight=0.5):
    return finding(rule, weight, gain=gain_ or rows[0], compared=rows)


PEAK = gain(100.0, 60.0, "peak bytes")


@pytest.mark.parametrize(
    ("one", "available", "expected"),
    [
        (finding(weight=0.3), None, (True, False, -0.3)),
        (finding(gain=gain()), None, (True, False, -0.5)),
        (finding(gain=gain(after=75.0, verified=False), weight=0.3), None, (True, False, -0.3)),
        (finding(gain=gain(after=100.0, verified=False), weight=0.3), None, (True, True, -0.3)),
        (finding(KEPT, weight=0.3), None, (True, True, -0.3)),
        (compared(PEAK), 60.0, (False, False, -0.4)),
        (compared(PEAK), 59.0, (True, False, -0.4)),
        (compared(PEAK), 100.0, (True, False, -0.4)),
        (compared(PEAK), 99.0, (False, False, -0.4)),
        (compared(PEAK, gain(10.0, 11.0)), None, (True, True, -0.4)),
        (compared(PEAK, gain(10.0, 11.0), gain(4.0, 3.0, "seconds")), None, (True, False, -0.25)),
        (compared(PEAK, gain(10.0, 11.0), gain(4.0, 4.0, "seconds")), None, (True, True, 0.0)),
        (compared(PEAK, gain(4.0, 5.0, "seconds")), None, (True, True, 0.25)),
    ],
)
def test_rank_of_a_finding(one, available, expected):
    assert _rank(one, available) == pytest.approx(expected)


def test_constraint_in_a_loop_whose_gather_could_move_is_an_effect():
    loop = finding("loop-invariant collective", sources=(line(1), line(2)))
    effect, other = finding("costly constraint", sources=(line(2),)), finding("costly constraint", sources=(line(3),))
    elsewhere = finding("costly constraint", sources=(line(2).replace(file="other.py"),))
    assert _without_effects([effect, loop, other, elsewhere]) == [loop, other, elsewhere]
    assert _without_effects([finding(sources=(line(2),)), loop]) == [finding(sources=(line(2),)), loop]


def test_findings_of_one_rule_and_line_are_merged():
    first = finding(instructions=("a", "b"), sources=(line(1),), weight=0.3, size_bytes=2.0, seconds=1.0,
                    gain=gain(100.0, 90.0), evidence=("e", "f"), nodes=(1, 2))  # fmt: skip
    second = finding(instructions=("b", "c"), sources=(line(1),), weight=0.4, size_bytes=3.0, seconds=2.0,
                     gain=gain(100.0, 70.0), evidence=("e", "g"), nodes=(2, 3), what="Second.")  # fmt: skip
    third = finding(instructions=("d",), sources=(line(1),), weight=0.4, size_bytes=4.0, seconds=4.0,
                    gain=gain(100.0, 80.0))  # fmt: skip
    assert _once([first, second]) == [
        second.replace(
            what="Second. The same applies to 1 more case at this line.", evidence=("e", "f", "g"), weight=0.7,
            instructions=("a", "b", "c"), nodes=(1, 2, 3), size_bytes=5.0, seconds=3.0, gain=gain(100.0, 60.0),
        )
    ]  # fmt: skip
    [three] = _once([first, second, third])
    assert three.what == "Second. The same applies to 2 more cases at this line."
    assert (three.weight, three.size_bytes, three.seconds, three.gain.after) == (1.0, 9.0, 7.0, 40.0)
    [unknown] = _once([first.replace(size_bytes=None), second.replace(seconds=None)])
    assert (unknown.size_bytes, unknown.seconds) == (None, None)
    [partial] = _once([first.replace(gain=None), second])
    assert partial.gain == second.gain
    [all_of_it] = _once([first.replace(gain=gain(100.0, 0.0)), second])
    assert all_of_it.gain.after == 0


def test_findings_of_equal_layers_are_merged():
    def layer(number, spec=(("data",),), rule="r"):
        path = f"layers[{number}]['w']"
        return finding(rule, leaves=(path,), specs={path: spec}, weight=0.25, sources=(line(number),))

    [both] = _once([layer(0), layer(11)])
    assert both == layer(0).replace(
        what="r is slow. The same applies to 1 more argument of equal layers.", weight=0.5,
        leaves=("layers[0]['w']", "layers[11]['w']"),
        specs={"layers[0]['w']": (("data",),), "layers[11]['w']": (("data",),)},
        size_bytes=None, seconds=None,
    )  # fmt: skip
    assert len(_once([layer(0), layer(1, ((), ("data",)))])) == 2
    assert len(_once([layer(0), layer(1, rule="other")])) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"instructions": ("a",), "sources": (line(1),)}, {"instructions": ("a",), "sources": (line(2),)}),
        ({"instructions": ("a",)}, {"instructions": ("a",)}),
        ({"sources": (line(1),)}, {"sources": (line(1),)}),
        ({"instructions": ("a",), "sources": (line(1),), "leaves": ("w",)},) * 2,
    ],
)
def test_other_findings_are_not_merged(one, other):
    assert _once([finding(**one), finding(**other)]) == [finding(**one), finding(**other)]
    assert _merged([finding(**one)]) == finding(**one)


def test_overlaps_count_verified_changes():
    half, more = finding(gain=gain(), compared=(gain(100.0, 49.0),)), finding(gain=gain(), compared=(gain(),))
    assert len(_overlaps([half, more])) == 1
    assert _overlaps([more, more]) == []
    assert _overlaps([half, half.replace(gain=gain(verified=False))]) == []
    assert _overlaps([half, finding(gain=gain(), compared=(gain(100.0, 150.0),)), more])[0].startswith("together")
    others = finding(gain=gain(), compared=(gain(100.0, 1.0, "seconds"),))
    assert _overlaps([others, others]) == []
    both = finding(gain=gain(), compared=(gain(100.0, 1.0), gain(100.0, 1.0, "FLOPs")))
    assert "more bytes sent and FLOPs than" in _overlaps([both, both])[0]
