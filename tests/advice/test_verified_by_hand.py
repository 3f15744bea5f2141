"""Compiled changes: the complete finding, from records of the program before and after that are written by hand."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from tests.advice.hand_written import GATHER, changed, compiled, leaf, line, mesh, sent, torus, value, with_module
from workbench.advice._batch_axis import RULE as LOST, CandidateLine, LostAxis
from workbench.advice._links import crossed_links
from workbench.advice._remat import KEPT
from workbench.advice._sharding import large_replicated
from workbench.advice._verify import (
    NothingToChangeError,
    TimeLimitError,
    Trials,
    _is_free,
    _is_worth,
    _same_work,
    _score,
    _with_static_numbers,
    compared,
    is_gradient,
    parameters_of,
    verified,
    wrapper_of,
)
from workbench.errors import EngineError
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.compiled import CostRecord


def program(peak=100, sent=1000.0, flops=50.0, seconds=None, platform="tpu", fits=None, **fields):
    """A program with these figures; its elementwise FLOPs are 0."""
    cost = None if seconds is None else CostRecord(stages=(), seconds=seconds)
    base = compiled(GATHER, memory={"peak_bytes": peak, "fits": fits}, platform=platform, cost=cost, **fields)
    return with_module(changed(base, wire_bytes=sent), flops=flops)


def gain(quantity, before, after, how="compiled", *, verified=True):
    return GainRecord(quantity=quantity, before=float(before), after=float(after), verified=verified, how=how)


def rows(peak=(100, 100), sent=(1000, 1000), flops=(50, 50), seconds=None):
    listed = [("peak bytes", peak), ("bytes sent", sent), ("FLOPs", flops), ("elementwise FLOPs", (0, 0))]
    listed += [] if seconds is None else [("seconds", seconds)]
    return tuple(gain(name, *pair) for name, pair in listed)


def finding(rule, quantity="bytes sent", before=1000.0, after=0.0, **fields):
    given = {"what": "w", "why": "y", "change": "c.", "evidence": ("e",), "weight": 1.0}
    estimate = gain(quantity, before, after, "estimated", verified=False)
    return FindingRecord(**{"rule": rule, "gain": estimate} | given | fields)


class Recompiled:
    """Returns programs in turn, or raises errors, and notes the changes that were asked for."""

    def __init__(self, *results):
        self.results, self.asked = list(results), []

    def __call__(self, **change):
        self.asked.append(change)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result.record


def test_every_figure_is_compared():
    before, after = program(seconds=2.0), program(90, 500.0, 60.0, seconds=1.0)
    assert compared(before, after.record) == rows((100, 90), (1000, 500), (50, 60), (2, 1))
    assert compared(before, program(None, flops=None).record) == (gain("bytes sent", 1000, 1000),)


def test_rule_without_a_check_stays_an_estimate():
    plain = finding("retraces")
    assert verified(plain, program(), Recompiled()) is plain


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EngineError("broken  pipe"), "EngineError: broken pipe"),
        (ValueError("x"), "ValueError: x"),
        (TypeError("x"), "TypeError: x"),
        (RuntimeError("x"), "RuntimeError: x"),
        (NothingToChangeError("nothing to change"), "nothing to change"),
        (ValueError("word " * 80 + "end"), "ValueError: " + "word " * 79 + "[...]"),  # at most 400 characters
    ],
)
def test_reason_why_a_change_was_not_compiled(error, said):
    with_gain = finding("random numbers that are exchanged")
    expected = with_gain.gain.replace(how=f"estimated; could not be verified: {said}")
    assert verified(with_gain, program(), Recompiled(error)) == with_gain.replace(gain=expected)
    without = finding("random numbers that are exchanged", gain=None)
    none = gain("peak bytes", 100, 100, f"could not be verified: {said}", verified=False)
    assert verified(without, program(), Recompiled(error)) == without.replace(gain=none)
    unknown = verified(without, program(peak=None), Recompiled(error))
    assert (unknown.gain.before, unknown.gain.after) == (0, 0)


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("f = jax.jit(f, donate_argnums=0)", 0), ("f = jax.jit(f, donate_argnums=(0, 1))", (0, 1)),
        ('f = eqx.filter_jit(f, donate="all")', "all"),
    ],
)  # fmt: skip
def test_donation(code, asked):
    recompile = Recompiled(program(60))
    result = verified(finding("missing donation", code=code, gain=None), program(), recompile)
    assert recompile.asked == [{"donate": asked}]
    assert result == finding(
        "missing donation", code=code, gain=gain("peak bytes", 100, 60, "compiled with the arguments donated"),
        compared=rows((100, 60)),
    )  # fmt: skip


def test_donation_of_a_program_that_does_other_work_is_not_verified():
    code = "f = jax.jit(f, donate_argnums=0)"
    other = verified(finding("missing donation", code=code), program(), Recompiled(program(60, flops=51.0)))
    how = "could not be verified: the automatically changed program does different work"
    assert other == finding("missing donation", code=code, gain=gain("peak bytes", 100, 100, how, verified=False))
    plain = finding("missing donation", code="")
    assert verified(plain, program(), Recompiled()) == plain


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (100.0, 101.0, True), (100.0, 99.0, True), (100.0, 101.5, False), (0.0, 0.01, True), (0.0, 0.02, False),
        (None, 1.0, False), (1.0, None, False), (0.0, 0.0, True),
    ],
)  # fmt: skip
def test_work_is_the_same_up_to_one_percent(before, after, same):
    assert _same_work(before, after) is same


SPECS = {"w": ((), ("data",))}


def outputs(*specs):
    return [value(f"%{at}", "output", (8, 8), spec, op_name=f"result[{at}]") for at, spec in enumerate(specs)]


def test_specs_are_verified_by_the_peak():
    recompile = Recompiled(program(60, 1500.0))
    plain = finding("large replicated array", specs=SPECS, gain=None)
    assert verified(plain, program(), recompile) == plain.replace(
        gain=gain("peak bytes", 100, 60, "compiled with this spec"), compared=rows((100, 60), (1000, 1500))
    )
    assert recompile.asked == [{"specs": SPECS}]
    part = finding("partly sharded array", specs=SPECS, gain=None)
    for traffic, peak in ((1010.0, 60), (1011.0, 100)):  # it was advised as free, up to one percent
        result = verified(part, program(), Recompiled(program(60, traffic)))
        assert result.gain == gain("peak bytes", 100, peak, "compiled with this spec")


def test_replicated_arguments_with_a_price_are_left_out():
    base = program(inputs=[leaf("up", (256, 512)), leaf("down", (512, 256))])
    [both] = large_replicated(base)
    slow, free = program(60, flops=80.0), program(70)
    recompile = Recompiled(slow, slow, free)
    result = verified(both.replace(change="Shard it. A trade: more bytes"), base, recompile)
    assert [set(change["specs"]) for change in recompile.asked] == [{"up", "down"}, {"up"}, {"down"}]
    assert result.leaves == ("down",)
    assert result.gain == gain("peak bytes", 100, 70, "compiled with this spec")
    assert result.costs == ()
    assert result.evidence[-1] == "with `up` sharded as well: FLOPs +60 %"


def test_replicated_arguments_stay_together_if_each_has_a_price_or_time_ends():
    base = program(inputs=[leaf("up", (256, 512)), leaf("down", (512, 256))])
    [both] = large_replicated(base)
    slow = program(60, flops=80.0)
    for rest in ((slow, slow), (slow, TimeLimitError("late"))):
        result = verified(both.replace(change="Shard. A trade: more bytes"), base, Recompiled(slow, *rest))
        assert result.leaves == ("up", "down")
        assert result.change == "Shard."
        assert [row.quantity for row in result.costs] == ["FLOPs"]


def test_results_with_another_sharding_are_listed():
    old = program(propagation=outputs(*[((), ())] * 5, ((), ())))
    new = program(sent=400.0, propagation=[*outputs(*[(("data",), ())] * 5, ((), ())), value("%9", "add", (8,), ((),))])
    plain = finding("spec on another dimension", specs=SPECS)
    names = ", ".join(f"result[{at}] P() -> P('data')" for at in range(3))
    assert verified(plain, old, Recompiled(new)) == plain.replace(
        evidence=("e", f"results with another sharding: {names}, and 2 more"),
        gain=gain("bytes sent", 1000, 400, "compiled with this spec"), compared=rows(sent=(1000, 400)),
    )  # fmt: skip
    three = program(propagation=outputs(*[(("data",), ())] * 3))
    result = verified(plain, program(propagation=outputs(*[((), ())] * 3)), Recompiled(three))
    assert result.evidence == ("e", f"results with another sharding: {names}")


@pytest.mark.parametrize(
    ("rule", "how"),
    [
        ("argument gathered for one use", "compiled with this spec"),
        ("costly constraint", "compiled without the constraint"),
        ("random numbers that are exchanged", "compiled with this generator"),
        ("shift known only at run time", "compiled with a static shift"),
    ],
)
def test_changes_are_verified_by_the_bytes_sent(rule, how):
    plain = finding(rule, sources=(line(3),))
    recompile = Recompiled(program(120, 250.0))
    assert verified(plain, program(), recompile) == plain.replace(
        gain=gain("bytes sent", 1000, 250, how), compared=rows((100, 120), (1000, 250))
    )
    asked = {
        "argument gathered for one use": {"specs": {}}, "random numbers that are exchanged": {"partitionable": True},
        "shift known only at run time": {"static": True},
    }  # fmt: skip
    assert rule not in asked or recompile.asked == [asked[rule]]


def test_largest_argument_is_sharded_over_an_unused_axis():
    leaves = [leaf("small", (8, 8)), leaf("odd", (255, 999)), leaf("x", (64, 32)), leaf("w", (32, 64))]
    plain, recompile = finding("unused mesh axis", axes=("model",), gain=None), Recompiled(program(90, 600.0))
    result = verified(plain, program(inputs=leaves), recompile)
    assert recompile.asked == [{"specs": {"x": (("model",), ())}}]
    how = "compiled with `x` as P('model')"
    assert result == plain.replace(gain=gain("bytes sent", 1000, 600, how), compared=rows((100, 90), (1000, 600)))
    worse = Recompiled(program(101))
    assert verified(plain, program(inputs=leaves), worse) == plain
    assert len(worse.asked) == 1
    same = Recompiled(program())
    assert verified(plain, program(inputs=leaves), same) == plain
    assert verified(plain, program(), Recompiled()) == plain
    assert verified(plain, program(inputs=leaves, mesh=mesh(data=8)), Recompiled()) == plain


def test_conversion_is_moved_after_the_collective():
    plain, how = finding("float32 collective of 16-bit values"), "compiled with the conversion after the collective"
    result = verified(plain, program(), Recompiled(program(sent=500.0)))
    assert result == plain.replace(gain=gain("bytes sent", 1000, 500, how), compared=rows(sent=(1000, 500)))
    other = verified(plain, program(), Recompiled(program(sent=500.0, flops=99.0)))
    assert other == plain
    nothing = NothingToChangeError("nothing")
    inserted = plain.gain.replace(
        after=1000.0, verified=True, how="the CPU compiler inserted the conversion to float32"
    )
    assert verified(plain, program(platform="cpu"), Recompiled(nothing)) == plain.replace(gain=inserted)
    assert not verified(plain, program(), Recompiled(nothing)).gain.verified
    assert not verified(plain.replace(gain=None), program(platform="cpu"), Recompiled(nothing)).gain.verified


def test_order_of_devices_is_counted_again():
    apart, near = torus(sent("model")), torus(sent("model"), range(8))
    plain = finding("order of devices", "bytes sent x links", 73728.0, 1.0)
    result = verified(plain, apart, Recompiled(near))
    how = "compiled for the devices in JAX's order, with the links counted again"
    assert result.gain == gain("bytes sent x links", 73728, 24576, how)
    assert result.compared == compared(apart, near.record)
    assert crossed_links(near.record.mesh, near.module.collectives) == {("model",): 24576}
    assert verified(plain, apart, Recompiled(sent("model"))) == plain
    assert verified(plain.replace(gain=None), apart, Recompiled(near)) == plain.replace(gain=None)


def policies(dots, everything, base=None, before=None):
    recompile = Recompiled(base or program(), dots, everything)
    return verified(finding("recomputation", "FLOPs", 50.0, 40.0), before or program(), recompile), recompile.asked


def test_policy_that_keeps_products_is_preferred():
    result, asked = policies(program(150, flops=41.0), program(180, flops=40.0))
    saveable = jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.everything_saveable
    assert [change["policy"] for change in asked[1:]] == [*saveable]
    assert result == finding(
        "recomputation",
        change="Keep the matrix products: `jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)`. "
        "The memory peak changes from 100 B to 150 B.",
        code="policy = jax.checkpoint_policies.dots_saveable  # of jax.checkpoint",
        gain=gain("FLOPs", 50, 41, "compiled with the policy dots_saveable"),
        compared=rows((100, 150), flops=(50, 41)),
    )  # fmt: skip


def test_policy_that_keeps_everything_saves_more():
    for dots in (program(flops=42.0), program(150, flops=41.0, fits=False)):
        result, _ = policies(dots, program(180, flops=40.0))
        assert result.change == "Leave `jax.checkpoint` out. The memory peak changes from 100 B to 180 B."
        assert (result.code, result.gain.after) == ("", 40)
    result, _ = policies(program(None, flops=41.0), program(None, flops=40.0))
    assert result.change.endswith("dots_saveable)`.")


def test_policy_without_a_gain_is_no_finding():
    none = gain("FLOPs", 50, 50, "compiled with policies")
    same, fewer = program(), program(fits=False, flops=10.0)
    plain = finding("recomputation", "FLOPs", 50.0, 40.0)
    for first, second in ((same, same), (same, fewer), (fewer, fewer), (fewer, same), (program(flops=None), same)):
        assert policies(first, second)[0] == plain.replace(gain=none)
    assert policies(same, same, base=program(flops=99.0))[0] == plain
    planned = types.SimpleNamespace(record=same.record.replace(module=None))
    assert policies(planned, planned)[0] == plain


CODE = "jax.lax.scan(jax.checkpoint(body, prevent_cse=False), …)"
PRODUCTS = "dots_with_no_batch_dims_saveable"


def recomputed(*results, code=CODE, **before):
    plain = finding(KEPT, "peak bytes", 100.0, 30.0, code=code)
    return verified(plain, program(**before), Recompiled(*results)), plain


def test_layers_are_recomputed_except_for_their_products():
    result, plain = recomputed(program(40, flops=80.0), program(58, flops=60.0))  # 42 of 60 bytes are saved
    assert result == plain.replace(
        change=f"c. Add `policy=jax.checkpoint_policies.{PRODUCTS}` to keep the matrix products.",
        code=f"jax.lax.scan(jax.checkpoint(body, prevent_cse=False, policy=jax.checkpoint_policies.{PRODUCTS}), …)",
        evidence=("e", "without the policy: peak 40 B, 80 FLOP"),
        gain=gain("peak bytes", 100, 58, "compiled with the layers recomputed, except for matrix products"),
        compared=rows((100, 58), flops=(50, 60)),
    )


def test_layers_are_recomputed_with_their_products_if_that_saves_much_more():
    result, plain = recomputed(program(40, flops=80.0), program(59, flops=60.0))
    assert result == plain.replace(
        evidence=("e", f"with `policy=jax.checkpoint_policies.{PRODUCTS}`: peak 59 B, 60 FLOP"),
        gain=gain("peak bytes", 100, 40, "compiled with the layers recomputed"),
        compared=rows((100, 40), flops=(50, 80)),
    )


@pytest.mark.parametrize(
    ("before", "partial", "peak"),
    [
        ({}, {"peak": 90, "fits": True}, 90),  # it fits and saves a tenth
        ({}, {"peak": 91, "fits": True}, 40),
        ({"fits": False}, {"peak": 50, "fits": False}, 40),  # only the smallest peak may fit
        ({"fits": False}, {"peak": 50}, 40),
        ({"fits": False}, {"peak": 90, "fits": True}, 90),
    ],
)
def test_memory_decides_whether_products_are_kept(before, partial, peak):
    result, _ = recomputed(program(40), program(**partial), **before)
    assert result.gain.after == peak


def test_recomputation_that_saves_less_than_a_tenth_is_no_gain():
    result, plain = recomputed(program(91))
    assert result == plain.replace(gain=gain("peak bytes", 100, 100, "compiled with the layers recomputed"))
    result, _ = recomputed(program(120))
    assert result.gain.after == 120
    result, _ = recomputed(program(90), program(95))
    assert result.gain.after == 90
    assert recomputed(program(None))[0] == plain
    python, plain = recomputed(program(91), code="layer = jax.checkpoint(layer)", platform="cpu")
    how = (
        "compiled for CPUs, the peak is 91 B: recomputing the layers of a Python loop saves too little memory there. "
        "To verify the change, compile for an accelerator (`on=`), or write the loop as `jax.lax.scan`"
    )
    assert python == plain.replace(gain=plain.gain.replace(how=how))
    scan, _ = recomputed(program(91), platform="cpu")
    assert scan.is_verified


def test_explicit_gathers_are_compiled_for_accelerators_only(monkeypatch):
    plain = finding("gather before the checkpoint", "peak bytes", sources=(line(3),))
    on_cpu = verified(plain, program(platform="cpu"), Recompiled())
    how = "the CPU compiler merges explicit gathers again: to verify the change, compile for an accelerator (`on=`)"
    assert on_cpu == plain.replace(gain=plain.gain.replace(how=how))
    assert verified(plain.replace(gain=None), program(), Recompiled()) == plain.replace(gain=None)
    values = [
        value("%0", "add", (8, 8), (("data",), ())), value("%2", "add", (4, 4), ((), ())),
        value("%3", "add", (9, 9), (("data",), ())),
        value("%1", "sharding_constraint", (8, 8), ((), ()), ("%0", "%2", "%x"), at=3),
        value("%4", "sharding_constraint", (9, 9), ((), ()), ("%3",), at=4),
        value("%5", "add", (9, 9), ((), ()), ("%3",), at=3),
    ]  # fmt: skip
    seen = []
    monkeypatch.setattr("workbench.advice._verify.with_written_gathers", lambda *given: seen.append(given))
    recompile = Recompiled(program(60))
    result = verified(plain, program(propagation=values), recompile)
    recompile.asked[0]["rewrite"]("jaxpr", "mesh")
    assert seen == [("jaxpr", {("model.py", 3)}, "mesh", {(8, 8): (("data",), ())})]
    assert result.gain == gain("peak bytes", 100, 60, "compiled with explicit gathers")
    assert result.compared == rows((100, 60))


def test_operation_in_a_shard_map_takes_the_shardings_of_its_line(monkeypatch):
    plain = finding("operation that is not split", sources=(line(3),))
    values = [
        value("%0", "input", (8, 8), (("data",), ())),
        value("%1", "top_k", (8, 2), (("model",), ()), ("%0", "%x"), at=3),
        value("%2", "add", (7, 7), ((), ()), at=3), value("%3", "add", (6, 6), (("data",), ()), at=4),
    ]  # fmt: skip
    seen = []
    monkeypatch.setattr("workbench.advice._verify.with_own_shards", lambda *given: seen.append(given))
    recompile = Recompiled(program(sent=0.0))
    result = verified(plain, program(propagation=values), recompile)
    recompile.asked[0]["rewrite"]("jaxpr", "mesh")
    specs = {(8, 8): (("data",), ()), (8, 2): (("model",), ())}
    assert seen == [("jaxpr", {("model.py", 3)}, "mesh", specs)]
    assert result.gain == gain("bytes sent", 1000, 0, "compiled with the operation inside `jax.shard_map`")


def candidate(number, code="with_sharding_constraint(value, P())", function="layer"):
    return CandidateLine(line(number, function), {}, f"Constrain: `{code}`.")


def constrained(monkeypatch, *results, candidates=(3, 4, 5), cause: object = "a cause", **fields):
    listed = tuple(candidate(each) if isinstance(each, int) else each for each in candidates)
    lost = [LostAxis("model", (), 0.0, None), LostAxis("data", listed, 0.5, cause)]
    monkeypatch.setattr("workbench.advice._verify.lost_axes", lambda _: lost)
    plain = finding(LOST, axes=("data",))
    recompile = Recompiled(*results)
    return verified(plain, program(**fields), recompile), plain


def test_lines_are_constrained_one_by_one(monkeypatch):
    results = program(sent=500.0), NothingToChangeError("none"), program(sent=100.0)
    result, plain = constrained(monkeypatch, *results)
    assert result == plain.replace(
        change="Constrain: `with_sharding_constraint(value, P())`.",
        code="with_sharding_constraint(value, P())",
        sources=(line(5),),
        evidence=("e", "2 lines were constrained one by one: line 5 of `layer` saves most"),
        gain=gain("bytes sent", 1000, 100, "compiled with the constraint"),
        compared=rows(sent=(1000, 100)),
    )
    single, _ = constrained(monkeypatch, program(sent=500.0), candidates=(3,))
    assert single.evidence == ("e",)


def test_line_that_assigns_a_name_is_preferred_if_it_saves_as_much(monkeypatch):
    named = candidate(4, "h = with_sharding_constraint(h, P())")
    result, _ = constrained(monkeypatch, program(sent=100.0), program(sent=130.0), candidates=(3, named))
    assert result.sources == (line(4),)
    assert result.evidence[1] == (
        "2 lines were constrained one by one: line 4 of `layer` assigns a name, and saves about as much as the best "
        "line"
    )
    result, _ = constrained(monkeypatch, program(sent=100.0), program(sent=140.0), candidates=(3, named))
    assert result.sources == (line(3),)  # ln(141 / 101) exceeds 0.3


def test_constraint_without_a_gain_is_no_finding(monkeypatch):
    for same in (program(), program(sent=981.0), program(sent=1.0, flops=53.0)):
        result, plain = constrained(monkeypatch, same, candidates=(3,))
        how = "compiled with the constraint"
        assert result == plain.replace(gain=plain.gain.replace(after=1000.0, verified=True, how=how))
    result, _ = constrained(monkeypatch, NothingToChangeError("none"), candidates=(3,))
    assert result.gain.how == (
        "estimated; could not be verified: the traced program has no operation to constrain at these lines"
    )
    repeated, _ = constrained(monkeypatch, NothingToChangeError("none"), candidates=(3,), cause=None)
    assert repeated.is_verified


def test_time_limit_ends_the_constraints(monkeypatch):
    late = TimeLimitError("late")
    result, _ = constrained(monkeypatch, program(sent=500.0), late)
    assert (result.sources, result.evidence) == ((line(3),), ("e",))
    result, _ = constrained(monkeypatch, late)
    assert result.gain.how == "estimated; could not be verified: TimeLimitError: late"


def test_first_clear_saving_is_the_gain_of_a_constraint(monkeypatch):
    result, _ = constrained(monkeypatch, program(sent=950.0, flops=25.0), candidates=(3,))
    assert result.gain.quantity == "FLOPs"
    result, _ = constrained(monkeypatch, program(sent=950.0, flops=49.0, peak=99), candidates=(3,))
    assert result.gain.quantity == "bytes sent"  # no clear saving, so the largest
    result, _ = constrained(monkeypatch, program(sent=500.0, flops=40.0), candidates=(3,), cause=None)
    assert result.gain.quantity == "FLOPs"


def test_traded_figures_are_judged_by_seconds(monkeypatch):
    chip = types.SimpleNamespace(name="v5e")
    plan = types.SimpleNamespace(chip=chip, dtype="float32")
    seconds = iter([2e-3, 1e-3])
    monkeypatch.setattr(
        "workbench.advice._verify.estimate_cost", lambda *_, **__: types.SimpleNamespace(seconds=next(seconds))
    )
    lost = [LostAxis("data", (candidate(3),), 0.5, None)]
    monkeypatch.setattr("workbench.advice._verify.lost_axes", lambda _: lost)
    base = dataclasses.replace(program(), planner=plan)
    result = verified(finding(LOST, axes=("data",)), base, Recompiled(program(sent=100.0, peak=200)))
    assert result.evidence == ("e", "predicted on v5e: 2 ms before, 1 ms with the constraint")


def shares(sent=1.0, flops=1.0, peak=1.0, **more):
    figures = {"bytes sent": sent, "FLOPs": flops, "peak bytes": peak} | more
    return [gain(name, 100, 100 * share) for name, share in figures.items()]


@pytest.mark.parametrize(
    ("figures", "seconds", "is_worth"),
    [
        (shares(sent=0.9), None, True), (shares(flops=0.9), None, True), (shares(peak=0.5), None, False),
        (shares(sent=0.985), None, False), (shares(sent=0.9, peak=1.05), None, True),
        (shares(sent=0.9, peak=1.06), None, False), (shares(sent=0.9, peak=1.06), (100.0, 97.0), True),
        (shares(sent=0.9, peak=1.06), (100.0, 98.0), False), (shares(peak=0.5), (100.0, 1.0), False),
        (shares(sent=0.9, **{"elementwise FLOPs": 9.0}), None, True),
    ],
)  # fmt: skip
def test_change_is_worth_its_price(figures, seconds, is_worth):
    assert _is_worth(figures, seconds) is is_worth


def test_score_multiplies_the_ratios_of_all_figures():
    ratios = [gain("bytes sent", 99, 9), gain("FLOPs", 3, 1), gain("seconds", 1, 9)]
    assert _score(ratios, None) == pytest.approx(-2.995732)  # ln(1 / 10 * 1 / 2)
    assert _score(ratios, (99e-9, 199e-9)) == pytest.approx(-2.302585)
    assert _is_free(ratios)
    assert not _is_free([gain("FLOPs", 100, 106)])


class Calls:
    """Variants whose programs take the given seconds."""

    def __init__(self, record, error=None):
        self.record, self.error, self.asked, self.compiled = record, error, [], []

    def recompile(self, **change):
        self.compiled.append(change)
        return self.record

    def runnable(self, **change):
        self.asked.append(change)
        if self.error:
            raise self.error
        return change


def test_measured_row_has_the_median_and_its_interval(monkeypatch):
    walls = [4.0, 2.0, 4.0], [1.0, 1.0, 3.0]  # saved: 75, 50 and 25 %
    monkeypatch.setattr("workbench.advice._verify.run_interleaved", lambda *_: walls)
    before, after = program(), program(60)
    calls = Calls(after.record)
    trials = Trials(calls, None)  # pyright: ignore[reportArgumentType]
    trials.recompile(donate=1)
    trials.recompile(donate=2)
    plain = finding("r", gain=gain("peak bytes", 100, 60), compared=compared(before, after.record))
    result = trials.measured(plain, before)
    how = "3 calls each, interleaved: 50.0 % saved, 95 % interval 25.0 % to 75.0 %"
    row = GainRecord(
        quantity="measured seconds", before=4.0, after=1.0, verified=True, how=how, saved_interval=(0.25, 0.75)
    )
    assert result == plain.replace(compared=(*plain.compared, row))
    assert calls.asked == [{}, {"donate": 2}]
    assert trials.measured(plain, before) == plain  # nothing was compiled for it
    trials.recompile(donate=1)
    assert trials.measured(finding("r"), before) == finding("r")


@pytest.mark.parametrize(
    ("walls", "said"),
    [
        (([2.0] * 3, [1.0, 2.0, 1.0]), "interval 0.0 % to 50.0 %, so no difference is certain"),
        (([2.0] * 3, [3.0, 2.5, 3.0]), "interval -50.0 % to -25.0 %"),
        (([2.0] * 3, [3.0, 2.0, 3.0]), "interval -50.0 % to 0.0 %, so no difference is certain"),
    ],
)
def test_interval_states_whether_a_difference_is_certain(monkeypatch, walls, said):
    monkeypatch.setattr("workbench.advice._verify.run_interleaved", lambda *_: walls)
    trials = Trials(Calls(program().record), None)  # pyright: ignore[reportArgumentType]
    trials.recompile(policy=1)
    result = trials.measured(finding("r", gain=gain("peak bytes", 100, 60)), program())
    assert result.compared[0].how.endswith(said)


def test_policy_is_measured_against_the_retraced_program(monkeypatch):
    monkeypatch.setattr("workbench.advice._verify.run_interleaved", lambda *_: ([2.0], [1.0]))
    calls = Calls(program().record)
    trials = Trials(calls, None)  # pyright: ignore[reportArgumentType]
    for change in ("first", "last"):
        trials.recompile(policy=change)
    trials.measured(finding("r", gain=gain("peak bytes", 100, 60)), program())
    assert [len(change) for change in calls.asked] == [1, 1]
    assert calls.asked[1] == {"policy": "last"}


def test_reason_why_a_change_was_not_run():
    trials = Trials(Calls(program().record, EngineError("no memory")), None)  # pyright: ignore[reportArgumentType]
    trials.recompile()
    plain = finding("r", gain=gain("peak bytes", 100, 60))
    assert trials.measured(plain, program()) == plain
    assert trials.problem == "r was not measured: no memory"


def test_functions_are_described():
    def step(state, batch, *, key):
        """Updates."""

    assert parameters_of(step) == ("state", "batch", "key")
    assert parameters_of(None) == ()
    assert wrapper_of(step) == wrapper_of(jax.jit(step)) == "jax.jit"
    assert wrapper_of(jax.pmap(step)) == "jax.pmap"
    assert [is_gradient(fn) for fn in (step, jax.grad(step), jax.value_and_grad(step), jax.jit(jax.grad(step)))] == [
        False, True, True, True,
    ]  # fmt: skip
    assert not is_gradient(None)


def test_integers_are_made_static():
    def moved(x, shift, scale, y):
        return x * shift, y * scale

    traced = types.SimpleNamespace(fn=jax.jit(moved), args=(jnp.ones(2), jnp.int32(3), 2.0, jnp.arange(2) / 1))
    fixed, rest = _with_static_numbers(traced)  # pyright: ignore[reportArgumentType]
    assert [each is given for each, given in zip(rest, (traced.args[0], 2.0, traced.args[3]), strict=True)] == [
        True
    ] * 3
    first, second = fixed(*rest)
    assert (first.tolist(), second.tolist()) == ([3.0, 3.0], [0.0, 2.0])
    shapes = types.SimpleNamespace(fn=moved, args=(1.0, jax.ShapeDtypeStruct((), "int32"), 2.0, jnp.float32(1)))
    fixed, rest = _with_static_numbers(shapes)  # pyright: ignore[reportArgumentType]
    assert fixed(*rest)[0] == 1.0  # a shape has no value, so the shift is 1
    with pytest.raises(ValueError, match="the distance is not an argument"):
        _with_static_numbers(types.SimpleNamespace(fn=moved, args=(1.0,)))  # pyright: ignore[reportArgumentType]
