"""Complete findings about collectives, with figures derived by hand from a text of HLO.

The mesh has 4 x 2 devices. Along `data`, an all-gather of P bytes sends 3 P and an all-reduce sends 2 * 3/4 P.
"""

import re

import pytest

from tests.advice.hand_written import ADD, DATA, changed, compiled, leaf, line, value, with_instruction, with_module
from workbench.advice._collectives import (
    evidence_of,
    gather_and_slice,
    gathered_for_one_use,
    is_runtime_shift,
    loop_invariant_gather,
    reduced_then_sliced,
    share,
    wide_collective,
)
from workbench.advice._module import explained
from workbench.advice._partitioning import axis_without_name, exchanged_counters, runtime_shift, unsplit_operation
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.sharding import WhyCollectiveRecord, WhyRecord


def estimate(before, after, how, quantity="bytes sent"):
    return GainRecord(quantity=quantity, before=before, after=after, verified=False, how=how)


GATHERS = f"""
ENTRY %main (w: f32[16,128], x: f32[8,64]) -> f32[8,128] {{
  %w = f32[16,128] parameter(0)
  %x = f32[8,64] parameter(1)
  %copy = f32[16,128] copy(%w)
  %gather = f32[64,128] all-gather(%copy), {DATA}, dimensions={{0}}
  %view = f32[64,128] bitcast(%gather)
  ROOT %y = f32[8,128] dot(%x, %view), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
W = leaf("params['w']", (64, 128), (("data",), ("model",)), copies=1, parts=8, shard_shape=(16, 64))
X = leaf("x", (8, 64))
WHY = WhyCollectiveRecord(
    kind="all-gather", axes=("data",), executions=1.0, payload_bytes=8192, reason="constraint", sentence="Because.",
    source=line(7), operation="chlo.top_k", advice="Use `shard_map`.",
)  # fmt: skip


def why(**fields):
    return WhyRecord(name="step", target="here", collectives=(WHY.replace(**fields),))


def gathers(text=GATHERS, **fields):
    program = compiled(text, **({"inputs": [W, X], "outputs": [X]} | fields))
    return changed(program, sources=(line(7),)) if len(program.module.collectives) == 1 else program


GATHERED = FindingRecord(
    rule="argument gathered for one use",
    what="`params['w']` is stored in 4 shards, fully gathered in every call (16 KiB), and used once.",
    why="The operation that uses the argument needs all of it on each device; the reason was not found.",
    change="Keep the gathered dimension unsharded, as in `P(None, 'model')`. Then nothing is gathered, but each device "
    "holds 12 KiB more.",
    specs={"params['w']": ((), ("model",))},
    evidence=("gather: all-gather over data, 1 execution, one device sends 24 KiB", "layer line 7"),
    weight=0.5,
    instructions=("gather", "y"),
    leaves=("params['w']",),
    sources=(line(7),),
    gain=estimate(24576.0, 0.0, "without this gather"),
)


def test_argument_gathered_for_one_use():
    assert list(gathered_for_one_use(gathers())) == [GATHERED]


@pytest.mark.parametrize(
    ("reason", "sentence", "more"),
    [
        ("constraint", "Because.", ""),
        (
            "disagreement",
            "The argument and the other operand are sharded over data along different dimensions, so one of the two "
            "must be gathered.",
            " Or shard the dimension over an axis that the other operand does not use.",
        ),
    ],
)
def test_reason_of_a_gather_is_part_of_the_finding(reason, sentence, more):
    [finding] = gathered_for_one_use(gathers(why=why(reason=reason)))
    assert finding == GATHERED.replace(why=sentence, change=GATHERED.change + more)


def test_smallest_gather_that_is_reported_sends_4_kib():
    program = gathers()
    assert [f.gain.before for f in gathered_for_one_use(changed(program, wire_bytes=4096.0))] == [4096]
    assert list(gathered_for_one_use(changed(program, wire_bytes=4095.0))) == []


NOT_GATHERED = {
    "state of a step": lambda: gathers(outputs=[W]),
    "unknown inputs": lambda: gathers(inputs=None),
    "an argument was removed": lambda: gathers(inputs=[W, X, X]),
    "gathered twice": lambda: changed(gathers(), executions=2.0),
    "unknown executions": lambda: changed(gathers(), executions=None),
    "another kind": lambda: changed(gathers(), kind="all-to-all"),
    "unknown instruction": lambda: changed(gathers(), name="other"),
    "another rule's reason": lambda: gathers(why=why(reason="unsplit operation")),
    "two uses": lambda: gathers(GATHERS.replace("ROOT %y", "%z = f32[64,128] add(%view, %view)\n  ROOT %y")),
    "computed operand": lambda: gathers(GATHERS.replace("copy(%w)", "negate(%w)")),
    "two arguments": lambda: gathers(
        GATHERS.replace("%x = f32[8,64] parameter(1)", "%x = f32[16,128] parameter(1)").replace(
            "%copy = f32[16,128] copy(%w)", "%copy = (f32[16,128], f32[16,128]) tuple(%w, %x)"
        )
    ),
}


@pytest.mark.parametrize("make", NOT_GATHERED.values(), ids=NOT_GATHERED)
def test_other_gathers_are_no_finding_of_this_rule(make):
    assert list(gathered_for_one_use(make())) == []


def test_reason_is_that_of_the_same_collective():
    both = WhyRecord(name="", target="", collectives=(WHY.replace(payload_bytes=1), WHY))
    [(reason, collective)] = explained(gathers(why=both))
    assert (reason, collective.name) == (WHY, "gather")


def test_of_equal_collectives_a_reason_belongs_to_that_of_its_line():
    more = f"  %more = f32[64,128] all-gather(%w), {DATA}, dimensions={{0}}\n"
    text = GATHERS.replace("  %view", f"{more}  %view")
    program = compiled(text)
    first, second = program.module.collectives
    program = with_module(program, collectives=(first.replace(sources=(line(1),)), second.replace(sources=(line(7),))))
    reasons = (WHY, WHY.replace(source=line(3)), WHY)
    program.__dict__["why"] = WhyRecord(name="", target="", collectives=reasons)
    assert [(reason, c.name) for reason, c in explained(program)] == [(WHY, "more"), (reasons[1], "gather")]


FOUR_TIMES = 'backend_config={"known_trip_count":{"n":"4"}}'
LOOP = f"""
%cond (c: (s32[], f32[64,128], f32[16,128])) -> pred[] {{
  %c = (s32[], f32[64,128], f32[16,128]) parameter(0)
  %n = s32[] constant(4)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}

%body (p: (s32[], f32[64,128], f32[16,128])) -> (s32[], f32[64,128], f32[16,128]) {{
  %p = (s32[], f32[64,128], f32[16,128]) parameter(0)
  %j = s32[] get-tuple-element(%p), index=0
  %x = f32[64,128] get-tuple-element(%p), index=1
  %w = f32[16,128] get-tuple-element(%p), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %twice = f32[16,128] add(%w, %w)
  %gather = f32[64,128] all-gather(%twice), {DATA}, dimensions={{0}}
  %y = f32[64,128] add(%x, %gather)
  ROOT %t = (s32[], f32[64,128], f32[16,128]) tuple(%next, %y, %w)
}}

ENTRY %main (x0: f32[64,128], w0: f32[16,128]) -> f32[64,128] {{
  %x0 = f32[64,128] parameter(0)
  %w0 = f32[16,128] parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64,128], f32[16,128]) tuple(%zero, %x0, %w0)
  %loop = (s32[], f32[64,128], f32[16,128]) while(%start), condition=%cond, body=%body, {FOUR_TIMES}
  ROOT %out = f32[64,128] get-tuple-element(%loop), index=1
}}
"""


def in_loop(old="", new="", **fields):
    assert old in LOOP
    return changed(compiled(LOOP.replace(old, new, 1)), sources=(line(7),), **fields)


INVARIANT = FindingRecord(
    rule="loop-invariant collective",
    what="The all-gather of 8 KiB over data runs 4 times in a loop, on a value that the loop never changes.",
    why="The value is sharded outside the loop but needed unsharded inside the loop, so the partitioner gathers the "
    "value in every iteration.",
    change="Gather the value once, before the loop: `jax.lax.with_sharding_constraint(value, P())` outside the scan. "
    "The gathered copy then stays in memory while the loop runs.",
    evidence=("gather: all-gather over data, 4 executions, one device sends 96 KiB", "layer line 7"),
    weight=0.875,  # three of four gathers are saved
    instructions=("gather",),
    sources=(line(7),),
    gain=estimate(98304.0, 24576.0, "the loop is inside the program, so the change cannot be applied automatically"),
)


def test_gather_of_the_same_value_in_every_iteration():
    assert list(loop_invariant_gather(in_loop())) == [INVARIANT]


def test_gather_in_a_loop_of_two_iterations_saves_half():
    [finding] = loop_invariant_gather(in_loop(executions=2.0))
    assert (finding.weight, finding.gain.after) == (0.75, 24576)


CARRIED = {
    "the body changes the value": in_loop("tuple(%next, %y, %w)", "tuple(%next, %y, %twice)"),
    "the body swaps two values": in_loop("(%p), index=2", "(%p), index=1"),
    "the operand depends on a carried value": in_loop("add(%w, %w)", "add(%w, %x)"),
    "the operand is random": in_loop("add(%w, %w)", "rng(%w, %w)"),
    "the body returns an element of another tuple": in_loop(
        "ROOT %t = (s32[], f32[64,128], f32[16,128]) tuple(%next, %y, %w)",
        "%pair = (f32[16,128], s32[], f32[16,128]) tuple(%twice, %next, %twice)\n"
        "  %moved = f32[16,128] get-tuple-element(%pair), index=2\n"
        "  ROOT %t = (s32[], f32[64,128], f32[16,128]) tuple(%next, %y, %moved)",
    ),
    "one iteration": in_loop(executions=1.0),
    "unknown iterations": in_loop(executions=None),
    "unknown operand": with_instruction(in_loop(), "gather", operands=("nothing",)),
    "no operand": with_instruction(in_loop(), "gather", operands=()),
    "unknown instruction": in_loop(name="other"),
}


@pytest.mark.parametrize("program", CARRIED.values(), ids=CARRIED)
def test_gather_of_a_value_that_may_differ_is_no_finding(program):
    assert list(loop_invariant_gather(program)) == []


def test_values_outside_loops_are_not_loop_invariant():
    program = in_loop()
    assert [name for name in ("w", "twice", "one", "x", "next", "w0", "lt") if program.is_loop_invariant(name)] == [
        "w", "twice", "one",
    ]  # fmt: skip


SUMS = f"""
%narrowing (q: f32[64,128], r: f32[2]) -> bf16[64,128] {{
  %r = f32[2] parameter(1)
  %q = f32[64,128] parameter(0)
  %flat = f32[8192] reshape(%q)
  ROOT %half = bf16[8192] convert(%flat)
}}

%widening (h: bf16[64,128]) -> f32[64,128] {{
  %h = bf16[64,128] parameter(0)
  ROOT %wide = f32[64,128] convert(%h)
}}
{ADD}
ENTRY %main (x: bf16[64,128], two: f32[2]) -> bf16[8192] {{
  %x = bf16[64,128] parameter(0)
  %two = f32[2] parameter(1)
  %widened = f32[64,128] fusion(%x), kind=kLoop, calls=%widening
  %total = f32[64,128] all-reduce(%widened), {DATA}, to_apply=%add
  ROOT %result = bf16[8192] fusion(%total, %two), kind=kLoop, calls=%narrowing
}}
"""


def sums(*replacements, platform="tpu", **fields):
    text = SUMS
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return changed(compiled(text, platform=platform), sources=(line(7),), **fields)


WIDE = FindingRecord(
    rule="float32 collective of 16-bit values",
    what="The all-reduce of 32 KiB over data sends float32 although the values are 16-bit before it.",
    why="The conversion to float32 happens before the exchange instead of after it.",
    change="Exchange 16-bit values where 16-bit precision is sufficient: convert with `.astype(jnp.float32)` after the "
    "collective. For products, omit `preferred_element_type=jnp.float32`.",
    evidence=("total: all-reduce over data, 1 execution, one device sends 48 KiB", "layer line 7"),
    weight=0.5,
    instructions=("total", "widened"),
    sources=(line(7),),
    gain=estimate(49152.0, 24576.0, "half the bytes per element"),
)
FLOAT = ("%x = bf16[64,128]", "%x = f32[64,128]"), ("%h = bf16[64,128]", "%h = f32[64,128]")
UNWIDENED = (*FLOAT, ("fusion(%x), kind=kLoop, calls=%widening", "negate(%x)"))
AFTER = WIDE.replace(what=WIDE.what.replace("before it", "right after it"), instructions=("total",))
CONVERTED = ("fusion(%x), kind=kLoop, calls=%widening", "convert(%x)")
NARROWED = {
    "fused": UNWIDENED,
    "plain": (
        *UNWIDENED,
        ("bf16[8192] fusion(%total, %two), kind=kLoop, calls=%narrowing", "bf16[64,128] convert(%total)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (sums(), WIDE),
        (sums(CONVERTED), WIDE),
        (sums(CONVERTED, ("bf16[", "f16[")), WIDE),
        (
            sums(("all-reduce(%widened)", "all-reduce(%x)"), payload_bytes=32768, wire_bytes=49152.0),
            WIDE.replace(instructions=("total", "x")),
        ),
        *((sums(*edits), AFTER) for edits in NARROWED.values()),
    ],
    ids=["fused", "converted", "float16", "inside the collective", "narrowed in a fusion", "narrowed"],
)
def test_float32_sum_of_16_bit_values(program, expected):
    assert list(wide_collective(program)) == [expected]


def test_conversion_that_a_cpu_inserts_into_a_sum_is_no_finding():
    promoted = ("to_apply=%add", "to_apply=%add.1_promoted"), ("%add (", "%add.1_promoted (")
    assert list(wide_collective(sums(*promoted, platform="cpu"))) == []
    assert list(wide_collective(sums(*promoted))) == [WIDE]


NOT_WIDE = {
    "little": sums(wire_bytes=4095.0),
    "never 16-bit": sums(*UNWIDENED, ("bf16[8192] convert", "f32[8192] negate")),
    "also used as float32": sums(
        *UNWIDENED, ("ROOT %result", "%other = f32[64,128] negate(%total)\n  ROOT %result")
    ),
    "unused": with_instruction(sums(*UNWIDENED), "result", operands=("two",)),
    "only the other parameter is narrowed": sums(*UNWIDENED, ("fusion(%total, %two)", "fusion(%two, %total)")),
    "sent in 16 bits": sums(("%total = f32", "%total = bf16")),
    "the fusion widens inside": sums(
        ("ROOT %wide = f32", "%wide = f32"),
        ("convert(%h)", "convert(%h)\n  ROOT %neg = f32[64,128] negate(%wide)"),
        ("ROOT %half = bf16[8192] convert(%flat)", "ROOT %half = f32[8192] negate(%flat)"),
    ),
    "converted from integers": sums(
        CONVERTED, ("%x = bf16", "%x = s32"), ("ROOT %half = bf16[8192] convert", "ROOT %half = f32[8192] negate")
    ),
    "unknown instruction": sums(name="other"),
    "no operand": with_instruction(sums(), "total", operands=()),
}  # fmt: skip


@pytest.mark.parametrize("program", NOT_WIDE.values(), ids=NOT_WIDE)
def test_other_sums_are_not_wide(program):
    assert list(wide_collective(program)) == []


def test_smallest_wide_sum_that_is_reported_sends_4_kib():
    assert [f.gain.before for f in wide_collective(sums(wire_bytes=4096.0))] == [4096]


SLICED = f"""
{ADD}
ENTRY %main (x: f32[64,128], at: s32[]) -> f32[16,128] {{
  %x = f32[64,128] parameter(0)
  %at = s32[] parameter(1)
  %total = f32[64,128] all-reduce(%x), {DATA}, to_apply=%add
  %view = f32[64,128] bitcast(%total)
  ROOT %part = f32[16,128] dynamic-slice(%view, %at, %at), dynamic_slice_sizes={{16,128}}
}}
"""
SLICE = FindingRecord(
    rule="all-reduce and slice",
    what="The all-reduce of 32 KiB over data returns the whole sum to every device, but each device keeps only its "
    "slice.",
    why="The result is sharded, but the sum is first computed fully replicated. A reduce-scatter would send half the "
    "bytes.",
    change="Constrain the result to its final sharding: `jax.lax.with_sharding_constraint(result, spec)`. In "
    "`jax.shard_map`, write `jax.lax.psum_scatter`.",
    evidence=("total: all-reduce over data, 1 execution, one device sends 48 KiB",),
    weight=0.5,
    instructions=("total", "part"),
    gain=estimate(49152.0, 24576.0, "ring formulas for both collectives"),
)
GATHER = SLICED.replace("f32[64,128] all-reduce(%x)", "f32[256,128] all-gather(%x)").replace(
    "to_apply=%add", "dimensions={0}"
)
EXCHANGED = FindingRecord(
    rule="all-gather and slice",
    what="The all-gather of 32 KiB over data gathers a whole array, of which each device keeps one slice.",
    why="The array changes from one sharded dimension to another; an all-to-all sends only the elements that move to "
    "another device.",
    change="Write the exchange yourself: `jax.reshard(x, new_spec)` on Explicit axes, or `jax.lax.all_to_all` inside "
    "`jax.shard_map`.",
    evidence=("total: all-gather over data, 1 execution, one device sends 96 KiB",),
    weight=0.75,  # an all-to-all sends a quarter
    instructions=("total", "part"),
    gain=estimate(98304.0, 24576.0, "ring formulas for both collectives"),
)


def test_sum_and_gather_of_which_devices_keep_a_slice():
    assert list(reduced_then_sliced(compiled(SLICED))) == [SLICE]
    assert list(gather_and_slice(compiled(GATHER))) == [EXCHANGED]
    assert list(gather_and_slice(compiled(SLICED))) == list(reduced_then_sliced(compiled(GATHER))) == []


def test_slice_may_be_the_name_of_a_fusion():
    program = with_instruction(compiled(SLICED), "part", opcode="fusion", name="dynamic-slice_fusion")
    assert [f.instructions for f in reduced_then_sliced(program)] == [("total", "dynamic-slice_fusion")]
    assert list(reduced_then_sliced(with_instruction(compiled(SLICED), "part", opcode="fusion"))) == []


def test_sum_that_is_also_read_whole_is_no_finding():
    text = SLICED.replace("ROOT %part", "%whole = f32[64,128] negate(%total)\n  ROOT %part")
    assert list(reduced_then_sliced(compiled(text))) == []
    assert list(reduced_then_sliced(compiled(SLICED, platform="cpu"))) == []
    assert list(reduced_then_sliced(with_instruction(compiled(SLICED), "part", operands=("x", "at")))) == []


ROLLED = GATHER.replace("slice_sizes={16,128}", 'slice_sizes={16,128}, metadata={op_name="jit(f)/_roll_dynamic/slice"}')
SHIFT = FindingRecord(
    rule="shift known only at run time",
    what="`jnp.roll` moves a sharded dimension by a distance that is an array: the all-gather of 32 KiB sends the "
    "whole dimension to every device.",
    why="The compiled program must handle any distance. With a static distance, each device sends its neighbour only "
    "the rows that cross a shard boundary (a collective-permute).",
    change="Make the shift static: a Python number, or an argument listed in `static_argnums`, which compiles the "
    "program again for every new distance. For distances that change, write `jax.lax.ppermute` inside `jax.shard_map`.",
    code="roll = jax.jit(jnp.roll, static_argnums=1)",
    evidence=("total: all-gather over data, 1 execution, one device sends 96 KiB",),
    weight=1.0,
    instructions=("total",),
)


def test_shift_known_only_at_run_time():
    assert list(runtime_shift(compiled(ROLLED))) == [SHIFT]
    assert list(gather_and_slice(compiled(ROLLED))) == []
    assert list(runtime_shift(changed(compiled(GATHER), op_names=("a", "jit(f)/_roll_dynamic/x")))) == [SHIFT]
    assert list(runtime_shift(compiled(GATHER))) == []
    assert not is_runtime_shift(compiled(GATHER), compiled(GATHER).module.collectives[0])


def test_operation_that_is_not_split():
    expected = FindingRecord(
        rule="operation that is not split",
        what="Every device gathers the operand of `top_k` and computes the full result.",
        why="Because.",
        change="Use `shard_map`.",
        evidence=("gather: all-gather over data, 1 execution, one device sends 24 KiB", "layer line 7"),
        weight=1.0,
        instructions=("gather",),
        sources=(line(7),),
        gain=estimate(24576.0, 0.0, "without this exchange"),
    )
    reason = why(reason="unsplit operation")
    assert list(unsplit_operation(gathers(why=reason))) == [expected]
    unknown = changed(gathers(why=reason), sources=())
    assert list(unsplit_operation(unknown)) == [expected.replace(evidence=expected.evidence[:1])]
    nowhere = changed(gathers(why=why(reason="unsplit operation", source=None)), sources=())
    assert [f.sources for f in unsplit_operation(nowhere)] == [()]
    assert list(unsplit_operation(gathers(why=why()))) == []
    assert list(unsplit_operation(gathers(why=why(reason="unsplit operation", operation="")))) == []


def counters(name="jit(f)/jit(_bits)/slice", *, first="iota", dtypes=("ui32", "ui32"), scope="jit(f)/jit(_bits)/"):
    values = [
        value("%1", first, (8,), ((),), op_name="jit(f)/jit(_bits)/iota", dtype=dtypes[0]),
        value("%2", "while", (8,), ((),), op_name=f"{scope}/while", dtype=dtypes[1]),
    ]
    return changed(compiled(GATHERS, propagation=values), op_names=(name,), sources=(line(7),))


def test_random_numbers_that_are_exchanged():
    expected = FindingRecord(
        rule="random numbers that are exchanged",
        what="Devices exchange 24 KiB to draw random numbers: 1 collectives (all-gather).",
        why="JAX's older generator draws the numbers of all rows as one list: it splits this list into halves and "
        "concatenates the two results, although the rows are on different devices.",
        change="Use the generator whose bits depend only on their position. This generator has been JAX's default "
        "since 0.5. From the same key, the two generators draw different numbers.",
        code='jax.config.update("jax_threefry_partitionable", True)',
        evidence=("gather: all-gather over data, 1 execution, one device sends 24 KiB",),
        weight=1.0,
        instructions=("gather",),
        sources=(line(7),),
        gain=estimate(24576.0, 0.0, "without these exchanges"),
    )
    assert list(exchanged_counters(counters())) == [expected]
    assert list(exchanged_counters(counters(scope="jit(f)/jit(_bits)/caller/"))) == [expected]
    [only] = counters().module.collectives
    five = with_module(counters(), collectives=tuple(only.replace(name=f"g{at}", sources=()) for at in range(5)))
    [finding] = exchanged_counters(five)
    assert [text.partition(":")[0] for text in finding.evidence] == ["g0", "g1", "g2", "g3"]
    assert (finding.instructions, finding.sources) == (("g0", "g1", "g2", "g3", "g4"), ())
    others = [
        counters("jit(f)/jit(_bits)/add"), counters("jit(f)/slice"), counters(first="add"),
        counters(dtypes=("i32", "ui32")), counters(dtypes=("ui32", "i32")), counters(scope="jit(f)/jit(_other)/"),
        compiled(GATHERS),
    ]  # fmt: skip
    assert [list(exchanged_counters(program)) for program in others] == [[]] * len(others)


def mapped(name="jit(f)/vmap(shard_map)", operation="manual_computation", axes=("data",), count=1):
    program = compiled(GATHERS, propagation=[value("%1", operation, (8,), ((),), op_name=name)])
    [only] = program.module.collectives
    copies = [only.replace(name=f"g{at}", op_names=("x", "jit(f)/vmap(shard_map)"), axes=axes) for at in range(count)]
    return with_module(program, collectives=tuple(copies))


def test_mapped_axis_that_is_not_named():
    lines = [f"g{at}: all-gather over data, 1 execution, one device sends 24 KiB" for at in range(5)]
    expected = FindingRecord(
        rule="mapped axis that is not named",
        what="A `shard_map` inside `jax.vmap` does not name `data`: its inputs are gathered along `data`.",
        why="The mapped dimension is sharded over `data`. If the specs of a `shard_map` omit an axis, every device "
        "receives values that are unsharded along that axis.",
        change='Name the axis of the mapped dimension, as in `jax.vmap(fn, spmd_axis_name="data")`. Pass every mapped '
        "value to the `shard_map` as an argument: values that its function captures are not sharded over the named "
        "axis.",
        code='jax.vmap(fn, spmd_axis_name="data")',
        evidence=tuple(lines[:4]),
        weight=1.0,
        instructions=("g0", "g1", "g2", "g3", "g4"),
        axes=("data",),
        gain=estimate(5 * 24576.0, 0.0, "the change is inside the program"),
    )
    assert list(axis_without_name(mapped(count=5))) == [expected]
    [both] = axis_without_name(mapped(axes=("data", "model")))
    assert both.code == 'jax.vmap(fn, spmd_axis_name=("data", "model"))'
    assert "does not name `data` and `model`" in both.what
    assert list(axis_without_name(mapped("jit(f)/shard_map"))) == []
    assert list(axis_without_name(mapped(operation="add"))) == []
    assert list(axis_without_name(compiled(GATHERS))) == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "gather: all-gather over data, 1 execution, one device sends 24 KiB"),
        ({"axes": ()}, "gather: all-gather over unknown axes, 1 execution, one device sends 24 KiB"),
        (
            {"axes": ("data", "model"), "executions": 2000.0},
            "gather: all-gather over data+model, 2,000 executions, one device sends 46.9 MiB",
        ),
        (
            {"executions": None},
            "gather: all-gather over data, an unknown number of executions, one device sends 24 KiB",
        ),
        ({"executions": 0.0}, "gather: all-gather over data, 0 executions, one device sends 0 B"),
    ],
)
def test_evidence_states_the_figures_of_a_collective(fields, expected):
    [collective] = changed(compiled(GATHERS), **fields).module.collectives
    assert evidence_of(collective) == (expected,)


def test_evidence_names_three_lines():
    [collective] = changed(compiled(GATHERS), sources=tuple(map(line, range(1, 5)))).module.collectives
    assert evidence_of(collective)[1:] == ("layer line 1", "layer line 2", "layer line 3")


def test_group_that_is_not_an_axis_is_named_so():
    [finding] = loop_invariant_gather(in_loop(axes=()))
    assert re.match("The all-gather of 8 KiB over a group that is not a mesh axis runs", finding.what)
    [finding] = loop_invariant_gather(in_loop(axes=("data", "model")))
    assert re.match("The all-gather of 8 KiB over data and model runs", finding.what)


def test_share_of_the_bytes_sent():
    program = compiled(GATHERS)
    assert [share(program, saved) for saved in (0.0, 6144.0, 24576.0, 30000.0)] == [0.0, 0.25, 1.0, 1.0]
    assert share(compiled(), 5.0) == 0.0
