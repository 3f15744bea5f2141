"""Complete findings about loops, small instructions, the host and memory, with figures derived by hand."""

import dataclasses

import pytest

from tests.advice.hand_written import compiled, leaf, line, with_instruction, with_module
from workbench.advice._host import host_in_loop, retraces
from workbench.advice._loops import many_small_instructions, small_loop_body, unrolled_layers
from workbench.advice._memory import (
    _alive,
    _donating,
    _position,
    _wrapping,
    kept_activations,
    missing_donation,
    recomputation,
)
from workbench.advice._remat import Kept
from workbench.errors import InspectionError
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.compiled import BufferRecord, InstructionRecord


def instruction(name, opcode="add", computation="main", executions=1.0, **fields):
    given = {"shape": "f32[64,64]{1,0}", "size_bytes": 16384} | fields
    return InstructionRecord(name=name, opcode=opcode, computation=computation, executions=executions, **given)


def of(*instructions, text="", **fields):
    program = with_module(compiled(**fields), instructions=instructions)
    return with_module(program, text=text) if text else program


def looped(iterations=64.0, moved=32768, flops=1e6, **fields):
    """A loop whose body moves `moved` bytes in two instructions, called twice, after one other instruction."""
    return of(
        instruction(
            "loop", **({"opcode": "while", "calls": ("body", "cond"), "executions": 2.0, "source": line(3)} | fields)
        ),
        instruction("lt", "compare", "cond", 2 * (iterations + 1)),
        instruction("p", "parameter", "body", 2 * iterations),
        instruction("x", "add", "body", 2 * iterations, accessed_bytes=moved - 1000, flops=flops, source=line(4)),
        instruction("y", "add", "body", 2 * iterations, accessed_bytes=1000),
        instruction("in_fusion", "add", "body", 2 * iterations, accessed_bytes=0, fused=True),
        instruction("other", "add", "main", 510 - 6 * (iterations - 64)),
    )


BODY = FindingRecord(
    rule="small loop body",
    what="Each of the 64 iterations of the loop at model.py:3 moves only 32 KiB.",
    why="The 2 instructions of an iteration start one after the other, and an iteration starts only when the previous "
    "iteration has finished.",
    change="Run several steps per iteration: `jax.lax.scan(..., unroll=8)`. If iterations do not depend on each other, "
    "use `jax.vmap` or `jax.lax.map(..., batch_size=…)` instead of the loop.",
    evidence=(
        "loop: 64 iterations, 2 instructions each",
        "one iteration moves 32 KiB and computes 1 MFLOP of matrix products",
    ),
    weight=0.5 * 256 / (510 + 130 + 256),  # the body's executions among all of them
    instructions=("loop",),
    sources=(line(3),),
)


def test_small_loop_body():
    assert list(small_loop_body(looped())) == [BODY]


def test_loop_without_a_line_is_at_the_line_of_its_body():
    [of_body] = small_loop_body(looped(source=None))
    assert of_body == BODY.replace(what=BODY.what.replace("py:3", "py:4"), sources=(line(4),))
    [unknown] = small_loop_body(with_instruction(looped(source=None), "x", source=None))
    assert unknown == BODY.replace(what=BODY.what.replace(" at model.py:3", ""), sources=())
    [one] = small_loop_body(with_instruction(looped(), "y", fused=True))
    assert one.why.startswith("The 1 instruction of an iteration start")


NOT_SMALL = {
    "fewer iterations": looped(63.0),
    "more bytes": looped(moved=32769),
    "more FLOPs": looped(flops=1e6 + 1),
    "no loop": looped(opcode="call"),
    "never executed": looped(executions=0.0),
    "unknown executions": looped(executions=None),
    "unknown iterations": with_instruction(looped(), "x", executions=None),
    "a loop inside": with_instruction(looped(), "p", opcode="while"),
    "empty body": looped(calls=("nothing",)),
}


@pytest.mark.parametrize("program", NOT_SMALL.values(), ids=NOT_SMALL)
def test_other_loops_are_no_small_bodies(program):
    assert list(small_loop_body(program)) == []


def layers(count=8, frame="", **fields):
    dots = [instruction(f"dot.{at}", "dot", source=line(5), **fields) for at in range(count)]
    others = [instruction("conv", "convolution", source=line(6)), instruction("y")]
    text = "\n".join(f"  %dot.{at} = f32[64,64] dot(){frame.format(at // 4)}" for at in range(count))
    return of(*dots, *others, text="ENTRY %main {\n" + text + "\n}")


UNROLLED = FindingRecord(
    rule="layers written out",
    what="The dot at model.py:5 is compiled 8 times, with the same shapes.",
    why="A Python loop over layers is unrolled by tracing, so every layer is compiled separately.",
    change="Stack the layers' parameters and scan over them (`jax.lax.scan`, `nnx.scan`, linen's `nn.scan`): one layer "
    "is compiled. A scan reduces the compile time, not the work of a step.",
    evidence=("8 dot instructions of shape f32[64,64]", "10 instructions in the module"),
    weight=0.1 * 8 / 9,  # of all products
    instructions=tuple(f"dot.{at}" for at in range(8)),
    sources=(line(5),),
)


def test_layers_written_out():
    assert list(unrolled_layers(layers())) == [UNROLLED]
    [nine] = unrolled_layers(layers(9, ", metadata={{stack_frame_id=1}}"))
    assert nine.instructions == UNROLLED.instructions  # eight are named
    assert nine.weight == 0.1 * 9 / 10


@pytest.mark.parametrize(
    "program",
    [
        layers(7), layers(executions=2.0), layers(op_name="transpose(jvp(dot))"), of(instruction("y")),
        layers(8, ", metadata={{stack_frame_id={}}}"),  # two calls of four layers each
        with_instruction(layers(), "dot.3", source=None), with_instruction(layers(), "dot.3", shape="f32[1]"),
        with_instruction(layers(), "dot.3", opcode="convolution"),
    ],
    ids=["seven", "in a loop", "backward", "no product", "other frames", "unknown line", "other shape", "other kind"],
)  # fmt: skip
def test_fewer_or_different_products_are_no_layers(program):
    assert list(unrolled_layers(program)) == []


def small(count=500, large=125, moved=32768, flops=1e6, **fields):
    own = [instruction(f"s{at}", accessed_bytes=moved, flops=flops, source=line(at % 4 or 9)) for at in range(count)]
    own[3], own[6] = own[3].replace(source=line(2)), own[6].replace(source=None)
    rest = [instruction(f"l{at}", accessed_bytes=1 << 20, **fields) for at in range(large)]
    inside = [instruction("f", fused=True), instruction("p", "parameter"), instruction("i", executions=2.0)]
    return with_module(of(*own, *rest, *inside), accessed_bytes=2.0**30)


def test_many_small_instructions():
    [finding] = many_small_instructions(small())
    assert finding == FindingRecord(
        rule="many small instructions",
        what="500 of 625 instructions move at most 32 KiB each.",
        why="Each instruction is started separately (on a GPU, as a kernel), and such small instructions do not keep a "
        "device busy.",
        change="Stack arrays of the same shape and process them together (`jax.vmap` over a stacked tree; "
        "`optax.flatten` around an optimizer), or make the batch larger.",
        evidence=(
            "together they move 15.6 MiB of 1 GiB",
            "125 at model.py:9",
            "125 at model.py:1",
            "125 at model.py:2",
        ),
        weight=0.4 * 500 / 625,
        instructions=tuple(f"s{at}" for at in range(8)),
        sources=(line(9), line(1), line(2)),
    )
    [unknown] = many_small_instructions(with_module(small(), accessed_bytes=None))
    assert unknown.evidence[0] == "together they move 15.6 MiB of 0 B"


@pytest.mark.parametrize(
    "program", [small(499), small(large=126), small(moved=32769), small(flops=1e6 + 1)],
    ids=["fewer", "too many others", "more bytes", "more FLOPs"],
)  # fmt: skip
def test_fewer_or_larger_instructions_are_no_finding(program):
    assert list(many_small_instructions(program)) == []


def host(opcode="custom-call", executions=5.0, line_of='custom_call_target="xla_python_cpu_callback"', **fields):
    return of(
        instruction("talk", opcode, executions=executions, **({"source": line(3)} | fields)),
        text=f"ENTRY %main {{\n  %talk = () {opcode}(), {line_of}\n}}",
    )


HOST = FindingRecord(
    rule="host inside a loop",
    what="A loop calls the host 5 times in one call of the program.",
    why="A callback (`jax.debug.print`, `pure_callback`, `io_callback`) makes the devices wait for Python.",
    change="Return the values from the loop (the `ys` of a scan) and inspect them after the loop.",
    evidence=("talk: custom-call",),
    weight=0.6,
    instructions=("talk",),
    sources=(line(3),),
)


def test_host_inside_a_loop():
    assert list(host_in_loop(host())) == [HOST]
    [outfeed] = host_in_loop(host("outfeed", 2.0, "", source=None))
    assert outfeed.replace(evidence=HOST.evidence, sources=HOST.sources) == HOST.replace(
        what="A loop calls the host 2 times in one call of the program."
    )
    assert (outfeed.evidence, outfeed.sources) == (("talk: outfeed",), ())
    [unknown] = host_in_loop(host(executions=None))
    assert unknown.what == "A loop calls the host an unknown number of times in one call of the program."


@pytest.mark.parametrize("program", [host(executions=1.0), host("add"), host(line_of='custom_call_target="TopK"')])
def test_other_instructions_do_not_call_the_host_in_a_loop(program):
    assert list(host_in_loop(program)) == []


def test_retraces_are_reported_from_the_fourth_on():
    expected = FindingRecord(
        rule="retraces",
        what="`step` was compiled 4 times in this process.",
        why="Every new shape, dtype, weak type or static argument compiles the function again.",
        change="Pad arrays to a few fixed shapes, and pass numbers as arrays of one dtype. "
        "`with wb.watch_compilations():` around a few calls reports which argument changed.",
        evidence=("the cache of the compiled function has 4 entries",),
        weight=0.2,
    )
    assert list(retraces(compiled(options={"traces": 4}))) == [expected]
    assert [next(retraces(compiled(options={"traces": count}))).weight for count in (10, 20)] == [0.5, 0.5]
    assert [list(retraces(compiled(options={"traces": count}))) for count in (None, 3)] == [[], []]


# Donation: f32[64,64] is 16 KiB.
UPDATE = """
%add_one (q: f32[64,64]) -> f32[64,64] {
  %q = f32[64,64] parameter(0)
  ROOT %s = f32[64,64] add(%q, %q)
}

ENTRY %main (a: f32[64,64], b: f32[64,64], x: f32[8,64]) -> (f32[64,64], f32[64,64]) {
  %a = f32[64,64] parameter(0)
  %b = f32[64,64] parameter(1)
  %x = f32[8,64] parameter(2)
  %flat = f32[4096] reshape(%a)
  %scaled = f32[4096] multiply(%flat, %flat)
  %new = f32[64,64] reshape(%scaled)
  %sum = f32[64,64] fusion(%b), kind=kLoop, calls=%add_one
  ROOT %out = (f32[64,64], f32[64,64]) tuple(%new, %sum)
}
"""
A, B, BATCH = leaf("state['a']", (64, 64)), leaf("state['b']", (64, 64)), leaf("x", (8, 64))
DONATION = FindingRecord(
    rule="missing donation",
    what="The results could reuse 32 KiB of argument memory, but both are kept.",
    why="Some results have the same shapes and shardings as arguments (usually a training state). These arguments are "
    "not donated, so old and new values are in memory at the same time.",
    change="Donate these arguments: `jax.jit(step, donate_argnums=0)`. The caller must not read the old values "
    "afterwards.",
    evidence=("2 arguments match results: state['a'], state['b']", "aliased now: 0 B; peak: 64 KiB"),
    weight=0.5,
    code="step = jax.jit(step, donate_argnums=0)",
    leaves=("state['a']", "state['b']"),
    size_bytes=32768.0,
)


def update(text=UPDATE, memory=None, inputs=(A, B, BATCH), outputs=(A, B), options=None, **fields):
    memory = {"peak_bytes": 65536, "alias_bytes": None} | (memory or {})
    options = {"parameters": ("state", "x")} | (options or {})
    return compiled(text, memory=memory, inputs=inputs, outputs=outputs, options=options, **fields)


def test_missing_donation():
    assert list(missing_donation(update())) == [DONATION]


def test_donation_of_one_of_two_arrays():
    [one] = missing_donation(update(outputs=[A]))
    assert one.what == "The results could reuse 16 KiB of argument memory, but both are kept."
    assert one.evidence[0] == "1 argument matches a result: state['a']"
    assert (one.weight, one.code) == (0.25, DONATION.code)  # half of the argument's arrays are enough to donate it
    [aliased] = missing_donation(update(memory={"alias_bytes": 16384}))
    assert (aliased.size_bytes, aliased.weight) == (16384, 0.25)
    assert aliased.evidence[1] == "aliased now: 16 KiB; peak: 64 KiB"


def test_only_arguments_that_an_elementwise_operation_updates_are_donated():
    dot = UPDATE.replace(
        "multiply(%flat, %flat)", "dot(%flat, %flat), lhs_contracting_dims={}, rhs_contracting_dims={}"
    )
    for text in (dot, UPDATE.replace("reshape(%a)", "reshape(%x)"), UPDATE.replace("reshape(%a)", "sort(%a)")):
        [finding] = missing_donation(update(text))
        assert finding.size_bytes == 16384
    carried = UPDATE.replace(
        "%new = f32[64,64] reshape(%scaled)",
        "%both = (f32[64,64], f32[64,64]) tuple(%a, %a)\n  %new = f32[64,64] get-tuple-element(%both), index=0",
    )
    assert list(missing_donation(update(carried))) == [DONATION]
    single = UPDATE[: UPDATE.index("  %sum")].replace("%new = f32", "ROOT %new = f32") + "}\n"
    [finding] = missing_donation(update(single))
    assert finding.leaves == ("state['a']",)


NOT_DONATED = {
    "unknown inputs": update(inputs=None),
    "unknown outputs": update(outputs=None),
    "unknown peak": update(memory={"peak_bytes": None}),
    "gradient": update(options={"is_gradient": True}),
    "other shape": update(outputs=[A.replace(shape=(64, 32))]),
    "other dtype": update(outputs=[A.replace(dtype="bfloat16")]),
    "other shards": update(outputs=[A.replace(shard_shape=(16, 64))]),
    "aliased": update(memory={"alias_bytes": 32768}),
    "small share": update(memory={"peak_bytes": 20 * 32768 + 20}),
    "no text": with_module(update(), text=""),
}


@pytest.mark.parametrize("program", NOT_DONATED.values(), ids=NOT_DONATED)
def test_other_arguments_are_no_missing_donation(program):
    assert list(missing_donation(program)) == []


def test_smallest_donation_is_a_twentieth_of_the_peak_and_1_kib():
    assert len(list(missing_donation(update(memory={"peak_bytes": 20 * 32768})))) == 1
    tiny = {"peak_bytes": 2048, "alias_bytes": 32768 - 1024}
    assert [f.size_bytes for f in missing_donation(update(memory=tiny))] == [1024]
    assert list(missing_donation(update(memory=tiny | {"alias_bytes": 32768 - 1023}))) == []


def test_donation_of_unknown_arguments_has_no_code():
    [finding] = missing_donation(update(options={"parameters": ()}, name="<lambda>"))
    assert finding.change == "Donate the arguments that the results replace: `jax.jit(fn, donate_argnums=…)`."
    assert finding.code == ""
    [finding] = missing_donation(update(name="<lambda>"))
    assert finding.code == "fn = jax.jit(fn, donate_argnums=0)"


def test_first_four_arguments_of_a_donation_are_named():
    names = [f"args[{at}]" for at in range(5)]
    text = "ENTRY %main () -> f32[64,64] {{\n{}\n  ROOT %out = ({}) tuple({})\n}}\n".format(
        "\n".join(f"  %p{at} = f32[64,64] parameter({at})" for at in range(5)),
        ", ".join(["f32[64,64]"] * 5), ", ".join(f"%p{at}" for at in range(5)),
    )  # fmt: skip
    leaves = [leaf(name, (64, 64)) for name in names]
    [finding] = missing_donation(update(text, inputs=leaves, outputs=leaves, options={"parameters": ()}))
    assert finding.evidence[0] == "5 arguments match results: args[0], args[1], args[2], args[3], …"
    assert finding.code == "step = jax.jit(step, donate_argnums=(0, 1, 2, 3, 4))"
    assert finding.weight == 1.0  # 80 KiB of a peak of 64 KiB
    [four] = missing_donation(update(text, inputs=leaves, outputs=leaves[:4], options={"parameters": ()}))
    assert four.evidence[0].endswith("args[2], args[3]")


@pytest.mark.parametrize(
    ("wrapper", "positions", "expected"),
    [
        ("jax.jit", [], ""),
        ("jax.jit", [2], "jax.jit(f, donate_argnums=2)"),
        ("nnx.jit", [0, 1], "nnx.jit(f, donate_argnums=(0, 1))"),
        ("eqx.filter_jit", [], 'eqx.filter_jit(f, donate="all")'),
        ("eqx.filter_jit", [1, 0], 'eqx.filter_jit(f, donate="all")'),
        ("eqx.filter_jit", [1, 2], 'eqx.filter_jit(f, donate="all-except-first")'),
    ],
)
def test_donation_is_written_as_the_library_does_it(wrapper, positions, expected):
    assert _donating(wrapper, "f", positions) == expected


def test_positions_of_arguments():
    paths = ("state['w']", "batch", "args[3]['w']", "args[12]", "other[1]")
    assert [_position(path, ["batch", "state"]) for path in paths] == [1, 0, 3, 12, None]


def buffers(*sizes, opcode="add", peak=2 << 20, devices=8, shape="f32[4,8]", **fields):
    names = [f"b{at}" for at in range(len(sizes))]
    largest = [
        BufferRecord(name=name, size_bytes=size, shape=shape, source=line(2))
        for name, size in zip(names, sizes, strict=True)
    ]
    memory = {"peak_bytes": peak, "largest": (*largest, BufferRecord(name="unknown", size_bytes=1 << 40))}
    program = of(*(instruction(name, opcode, **fields) for name in names), memory=memory)
    return with_module(program, devices=devices)


def kept(**fields):
    given = {
        "source": line(4), "function": "", "library": "jax", "copies": 4, "is_scan": False, "size_bytes": 100,
        "values": (),
    }  # fmt: skip
    return Kept(**(given | fields))


def test_kept_values_occupy_at_most_the_buffers_that_are_alive():
    assert _alive(buffers(devices=1), kept()) == float("inf")
    assert _alive(buffers(devices=8), kept()) == 0
    assert _alive(buffers(5, 7), kept(is_scan=True)) == 12
    assert _alive(buffers(5, 7), kept(is_scan=True, copies=3)) == 0
    assert _alive(buffers(5, 7, op_name="jvp(f)"), kept()) == 12
    assert _alive(buffers(5, 7, op_name="transpose(jvp(f))"), kept()) == 0


@pytest.mark.parametrize(
    ("fields", "sentence", "code"),
    [
        (
            {"library": "linen", "function": "net.<locals>.Block.__call__"},
            "Wrap the module: `nn.remat(Block)`.", "Block = nn.remat(Block)",
        ),
        (
            {"library": "nnx", "function": "Block.__call__"},
            "Decorate `Block.__call__` with `nnx.remat`.", "Block.__call__ = nnx.remat(Block.__call__)",
        ),
        (
            {"library": "equinox", "function": "Block.__call__"},
            "Wrap `Block`, called at line 4, in `eqx.filter_checkpoint`.", "layer = eqx.filter_checkpoint(layer)",
        ),
        ({"function": "f.<locals>.block"}, "Wrap `block`, called at line 4, in `jax.checkpoint`.",
         "block = jax.checkpoint(block)"),
        ({"library": "nnx", "function": "block"}, "Wrap `block`, called at line 4, in `jax.checkpoint`.",
         "block = jax.checkpoint(block)"),
        (
            {"library": "linen"},
            "Move the layers that line 4 repeats into a module, and wrap the module: `nn.remat(Layer)`.",
            "Layer = nn.remat(Layer)",
        ),
        (
            {}, "Move the code that line 4 repeats into a function, and wrap the function in `jax.checkpoint`.",
            "layer = jax.checkpoint(layer)",
        ),
        ({"is_scan": True}, "Wrap the body of the scan at line 4 in `jax.checkpoint`.",
         "jax.lax.scan(jax.checkpoint(body, prevent_cse=False), …)"),
        ({"is_scan": True, "library": "linen", "function": "Block.__call__"},
         "Wrap the body of the scan at line 4 in `nn.remat`.", "nn.scan(nn.remat(body, prevent_cse=False), …)"),
        ({"is_scan": True, "library": "equinox"}, "Wrap the body of the scan at line 4 in `eqx.filter_checkpoint`.",
         "jax.lax.scan(eqx.filter_checkpoint(body), …)"),
    ],
)  # fmt: skip
def test_checkpoint_is_written_as_the_library_does_it(fields, sentence, code):
    assert _wrapping(kept(**fields)) == (sentence, code)


def recomputed(again, total=1000.0, name="remat", **memory):
    nodes = tuple(
        CallNodeRecord(
            id=at, parent=parent, kind="operation", name="f", pass_name=part, own=figures(own), total=figures(total)
        )
        for at, parent, part, own in (
            (0, None, "forward", total - again),
            (1, 0, name, again / 2),
            (2, 0, name, again / 2),
        )
    )
    return with_module(compiled(memory=memory), call_tree=CallTreeRecord(made_from="compiled", nodes=nodes))


def figures(flops):
    return CallFiguresRecord(flops_matmul=flops)


def test_recomputation():
    expected = FindingRecord(
        rule="recomputation",
        what="25 % of all FLOPs recompute values of the forward pass. Half of the memory is free.",
        why="`jax.checkpoint` (remat) discards values and recomputes them for the gradient.",
        change="Keep the expensive values: `jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)`, or "
        "remove the checkpoint if memory allows.",
        evidence=("250 of 1,000 FLOPs recompute values",),
        weight=0.25,
        gain=GainRecord(
            quantity="FLOPs", before=1000.0, after=750.0, verified=False,
            how="not compiled, because the checkpoint is inside the program; memory grows without the checkpoint",
        ),
    )  # fmt: skip
    assert list(recomputation(recomputed(250.0, peak_bytes=49, available_bytes=100))) == [expected]
    full = expected.replace(what="25 % of all FLOPs recompute values of the forward pass.", weight=0.125)
    assert list(recomputation(recomputed(250.0, peak_bytes=50, available_bytes=100))) == [full]
    assert list(recomputation(recomputed(250.0, peak_bytes=50))) == [full]
    assert [f.weight for f in recomputation(recomputed(2000.0, peak_bytes=1, available_bytes=100))] == [1.0]


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (recomputed(150.0), 1), (recomputed(149.0), 0), (recomputed(500.0, name="transpose"), 0),
        (recomputed(0.0, total=0.0), 0), (with_module(compiled(), call_tree=None), 0),
        (with_module(compiled(), call_tree=CallTreeRecord(made_from="compiled", nodes=())), 0),
    ],
)  # fmt: skip
def test_least_recomputation_is_0_15_of_the_flops(program, count):
    assert len(list(recomputation(program))) == count


def keeping(*loops, peak=4 << 20, text="transpose(", recompile=True, fails=False, sizes=(3 << 20,)):
    """A program whose layers keep values, of which a temporary buffer is alive at the peak."""

    def traced(*, rewrite):
        assert rewrite("a jaxpr", None) == ("a jaxpr", 0)
        if fails:
            raise InspectionError("cannot be traced")

    program = buffers(*sizes, peak=peak)
    program = with_module(program, text=f"{text}")
    copy = type(program)(program.record, program.module, recompile=traced if recompile else None)
    return copy, list(loops)


LAYERS = kept(
    source=line(4), function="f.<locals>.block", copies=4, size_bytes=2 << 20, values=("2 of f32[8]", "1 of f32[9]")
)
KEEPING = FindingRecord(
    rule="values kept for the backward pass",
    what="4 calls of `block` keep 2 MiB for the backward pass, 50 % of the peak memory.",
    why="The gradient of a layer needs values of its forward pass. These values stay in memory until the backward pass "
    "reaches the layer.",
    change="Wrap `block`, called at line 4, in `jax.checkpoint`. The backward pass then computes each layer again: "
    "less memory, more FLOPs.",
    evidence=(
        "repeated at model.py:4",
        "each of the 4 repetitions keeps 2 of f32[8]",
        "each of the 4 repetitions keeps 1 of f32[9]",
    ),
    weight=0.5,
    code="block = jax.checkpoint(block)",
    size_bytes=float(2 << 20),
    sources=(line(4),),
    gain=GainRecord(
        quantity="peak bytes", before=float(4 << 20), after=2.5 * (1 << 20), verified=False,
        how="one layer's values in memory at a time; the FLOPs grow",
    ),
)  # fmt: skip


def findings_of(monkeypatch, program, loops):
    monkeypatch.setattr("workbench.advice._memory.kept_for_backward", lambda _: loops)
    return list(kept_activations(program))


def test_values_kept_for_the_backward_pass(monkeypatch):
    assert findings_of(monkeypatch, *keeping(LAYERS)) == [KEEPING]
    [scan] = findings_of(monkeypatch, *keeping(dataclasses.replace(LAYERS, is_scan=True, function="")))
    assert scan.what.startswith("4 iterations keep 2 MiB")
    assert scan.evidence[0] == "loop at model.py:4"
    [unnamed] = findings_of(monkeypatch, *keeping(dataclasses.replace(LAYERS, function="f.<locals>.<lambda>")))
    assert unnamed.what.startswith("4 repetitions keep 2 MiB")
    [alive] = findings_of(monkeypatch, *keeping(LAYERS, sizes=(1 << 20,)))
    assert alive.size_bytes == 1 << 20  # no more than the buffers that are alive
    assert len(findings_of(monkeypatch, *keeping(LAYERS, fails=True))) == 1


def test_two_largest_loops_of_a_tenth_of_the_peak_and_1_mib_are_reported(monkeypatch):
    small = dataclasses.replace(LAYERS, size_bytes=(1 << 20) - 1)
    assert findings_of(monkeypatch, *keeping(small, LAYERS)) == [KEEPING]
    assert findings_of(monkeypatch, *keeping(small, small, LAYERS)) == []
    assert len(findings_of(monkeypatch, *keeping(LAYERS, LAYERS, LAYERS))) == 2
    least = dataclasses.replace(LAYERS, size_bytes=1 << 20)
    assert [f.weight for f in findings_of(monkeypatch, *keeping(least, peak=10 << 20))] == [0.1]
    assert findings_of(monkeypatch, *keeping(least, peak=(10 << 20) + 20)) == []


def test_program_without_a_backward_pass_keeps_nothing(monkeypatch):
    for given in (keeping(LAYERS, text="jvp("), keeping(LAYERS, recompile=False), keeping(LAYERS, peak=None)):
        assert findings_of(monkeypatch, *given) == []
