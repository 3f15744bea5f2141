"""Schedules of hand-written modules: 1 second per 10 GB of memory, per TFLOP of products and per GB sent."""

import pytest
from records_parts import TOY_CHIP, toy_module

from workbench.cost import InstructionTime, time_module
from workbench.cost._timeline import is_compiled_elsewhere
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.hardware import RateRecord

HOP = 1e-6
# Dimensions that do not wrap around: a permute takes 1 second per GB, a gather of two devices as well.
CHIP = TOY_CHIP.replace(topology="torus3d", peak_flops_per_second={"float32": 1e12, "bfloat16": 2e12})
TPU = CHIP.replace(name="v0")


def at(name, opcode="fusion", *, memory=0.0, compute=0.0, computation="main", executions=1.0, **fields):
    """An instruction that uses main memory and the matrix unit for these seconds."""
    products = {"float32": compute * 1e12} if compute else {}
    return InstructionRecord(
        name=name, opcode=opcode, computation=computation, executions=executions,
        **{"shape": "f32[]", "size_bytes": 0, "flops": compute * 1e12, "products": products,
           "accessed_bytes": int(memory * 1e10), **fields},
    )  # fmt: skip


def sent(name, seconds, axis="x", kind="all-gather", **fields):
    """A collective of two devices that takes these seconds and a step of 1 µs."""
    size = int(seconds * 1e9)
    facts = {"groups": 1, "group_size": 2, "payload_bytes": size, "wire_bytes": float(size), "executions": 1.0}
    return CollectiveRecord(name=name, kind=kind, axes=(axis,), **{**facts, **fields})


def times(*instructions, collectives=(), chip=CHIP, platform="gpu", dtype="bfloat16"):
    module = toy_module(platform=platform, instructions=instructions, collectives=tuple(collectives))
    return time_module(module, chip, dtype)


def rounded(found):
    return {name: None if time.seconds is None else round(time.seconds, 4) for name, time in found.items()}


@pytest.mark.parametrize(
    ("platform", "name", "elsewhere"),
    [("cpu", "toy", True), ("cpu", "cpu", False), ("tpu", "toy", False), ("tpu", "cpu", False)],
)
def test_modules_of_the_cpu_compiler_for_another_chip(platform, name, elsewhere):
    assert is_compiled_elsewhere(toy_module(platform=platform), TOY_CHIP.replace(name=name)) is elsewhere


def test_an_operation_takes_the_longer_of_memory_and_products_and_free_ones_are_left_out():
    found = times(at("p", "parameter", memory=1.0), at("a", memory=3.0, compute=2.0), at("b", compute=2.0))
    assert found == {"a": InstructionTime(3.0, 3.0, 2.0, 3.0), "b": InstructionTime(2.0, 2.0, 2.0, 0.0)}


def test_kernels_without_a_dtype_have_the_given_one():
    kernel = at("k", compute=4.0, products={})
    assert times(kernel, dtype="float32")["k"].seconds == 4.0
    assert times(kernel)["k"].seconds == 2.0


def test_fused_computations_take_no_time_of_their_own():
    inner = at("inner", "add", memory=5.0, computation="inside", fused=True)
    assert rounded(times(inner, at("outer", memory=1.0, calls=("inside",)))) == {"outer": 1.0}


# ---- copies


COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")


@pytest.mark.parametrize("opcode", COPIES)
@pytest.mark.parametrize(("memory", "compute", "left"), [(2.0, 4.0, 1.0), (0.0, 1.0, 2.0), (0.0, 3.0, 0.0),
                                                          (0.0, 5.0, 0.0), (4.0, 2.0, 3.0)])  # fmt: skip
def test_a_copy_uses_the_bandwidth_that_operations_leave(opcode, memory, compute, left):
    """A copy of 3 seconds; an operation leaves its compute time beyond its memory time."""
    done = at("done", opcode.replace("start", "done"), operands=("copy",))
    found = times(at("copy", opcode, memory=3.0), at("work", memory=memory, compute=compute), done)
    assert found["copy"] == InstructionTime(left, left, 0.0, left)
    assert "done" not in found


def test_copies_share_the_bandwidth_in_the_order_of_their_starts():
    starts = at("a", "copy-start", memory=1.0), at("b", "copy-start", memory=3.0)
    dones = at("a.done", "copy-done", operands=("a",)), at("b.done", "copy-done", operands=("b",))
    assert rounded(times(*starts, at("work", compute=2.0), *dones)) == {"a": 0.0, "b": 2.0, "work": 2.0}


def test_a_copy_that_nothing_waits_for_adds_no_time():
    assert times(at("copy", "copy-start", memory=3.0))["copy"] == InstructionTime(0.0, 3.0, 0.0, 3.0)


def test_on_cpus_a_copy_is_an_operation():
    found = times(at("copy", "copy-start", memory=3.0), at("work", compute=5.0), platform="cpu")
    assert rounded(found) == {"copy": 3.0, "work": 5.0}


def test_waiting_for_a_copy_delays_what_follows():
    """The gather of 6 s runs beside a product of 1 s and the rest of the copy, 2 s."""
    found = times(
        at("gather", "all-gather-start"), at("copy", "copy-start", memory=3.0), at("work", compute=1.0),
        at("copied", "copy-done", operands=("copy",)), at("gathered", "all-gather-done", operands=("gather",)),
        collectives=[sent("gather", 6.0, asynchronous=True)],
    )  # fmt: skip
    assert rounded(found) == {"work": 1.0, "copy": 2.0, "gather": 3.0}


def test_an_update_passes_a_copy_on():
    found = times(
        at("copy", "copy-start", memory=3.0), at("step", "async-update", operands=("copy",)), at("work", compute=1.0),
        at("done", "copy-done", operands=("step",)),
    )  # fmt: skip
    assert rounded(found) == {"copy": 0.0, "work": 1.0, "done": 2.0}


# ---- collectives


@pytest.mark.parametrize(("work", "waited"), [(0.0, 2.0), (1.5, 0.5), (2.5, 0.0)])
@pytest.mark.parametrize("update", [False, True])
def test_a_collective_waits_for_what_is_left_at_its_done(work, waited, update):
    updates = [at("step", "async-update", operands=("gather",))] if update else []
    done = at("done", "all-gather-done", operands=("step" if update else "gather",))
    gather = sent("gather", 2.0, asynchronous=True)
    found = times(at("gather", "all-gather-start"), *updates, at("work", compute=work), done, collectives=[gather])
    assert found["gather"].seconds == pytest.approx(waited, abs=2 * HOP)
    assert found["gather"].alone == pytest.approx(2.0 + HOP)
    assert found["gather"].is_collective


@pytest.mark.parametrize(
    ("opcode", "asynchronous", "platform"),
    [("all-gather", True, "gpu"), ("all-gather-start", False, "gpu"), ("all-gather-start", True, "cpu")],
)
def test_a_collective_that_does_not_overlap_takes_its_time_at_once(opcode, asynchronous, platform):
    done = at("done", "all-gather-done", operands=("gather",))
    gather = sent("gather", 2.0, asynchronous=asynchronous)
    found = times(at("gather", opcode), at("work", compute=5.0), done, collectives=[gather], platform=platform)
    assert rounded(found) == {"gather": 2.0, "work": 5.0}


@pytest.mark.parametrize("opcode", ["async-start", "call-start"])
def test_a_collective_in_an_asynchronous_computation_starts_with_its_caller(opcode):
    found = times(
        at("p", "parameter", computation="beside"), at("inner", "all-gather", computation="beside"),
        at("start", opcode, calls=("beside",)), at("work", compute=0.5),
        at("done", opcode.replace("start", "done"), operands=("start",)),
        collectives=[sent("inner", 2.0, asynchronous=True)],
    )  # fmt: skip
    assert rounded(found) == {"inner": 1.5, "work": 0.5}


@pytest.mark.parametrize(
    ("chip", "kinds", "axes", "waited"),
    [
        # Four starts of 1 s each, and four dones: what each done waits for.
        pytest.param(CHIP, ["all-gather"] * 4, "xxxx", (1, 1, 1, 1), id="one at a time over an axis"),
        pytest.param(CHIP, ["all-gather"] * 4, "xyxy", (1, 0, 1, 0), id="two axes at once"),
        pytest.param(CHIP, ["collective-permute"] * 4, "xxxx", (1, 1, 1, 1), id="permutes one at a time"),
        pytest.param(TPU, ["collective-permute"] * 4, "xxxx", (1, 0, 1, 0), id="permutes of TPUs in two directions"),
        pytest.param(TPU, ["send"] * 4, "xxxx", (1, 0, 1, 0), id="sends of TPUs in two directions"),
        pytest.param(TPU, ["all-gather"] * 4, "xxxx", (1, 1, 1, 1), id="gathers of TPUs one at a time"),
        pytest.param(
            TPU, ["all-gather", "send", "all-gather", "send"], "xxxx", (1, 0, 1, 0), id="permutes beside gathers"
        ),
    ],
)
def test_collectives_over_the_same_links_run_one_at_a_time(chip, kinds, axes, waited):
    names = [f"c{i}" for i in range(4)]
    collectives = [
        sent(name, 1.0 * (0.88 if chip is TPU else 1.0), axis, kind, asynchronous=True)
        for name, axis, kind in zip(names, axes, kinds, strict=True)
    ]
    starts = [at(name, f"{kind}-start") for name, kind in zip(names, kinds, strict=True)]
    dones = [at(f"{name}.done", "async-done", operands=(name,)) for name in names]
    found = times(*starts, *dones, collectives=collectives, chip=chip)
    assert [found[name].seconds for name in names] == pytest.approx(waited, abs=1e-4)


def test_a_collective_waits_for_an_earlier_one_over_its_axis():
    found = times(
        at("a", "all-gather-start"), at("work", compute=0.5), at("b", "all-gather"),
        at("done", "all-gather-done", operands=("a",)), at("late", "all-gather"),
        collectives=[sent("a", 2.0, asynchronous=True), sent("b", 1.0), sent("late", 1.0)],
    )  # fmt: skip
    assert rounded(found) == {"a": 0.0, "work": 0.5, "b": 2.5, "late": 1.0}


def test_a_collective_without_an_instruction_takes_its_time():
    found = times(collectives=[sent("only", 2.0, executions=3.0)])
    assert found == {"only": InstructionTime(pytest.approx(2.0 + HOP), pytest.approx(2.0 + HOP), is_collective=True)}


def test_a_done_of_nothing_adds_no_time():
    assert times(at("done", "all-gather-done"), at("other", "copy-done", operands=("elsewhere",))) == {}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"wire_bytes": None}, "the participants are written in an unknown syntax"),
        ({}, "its groups of 2 devices exceed the 1 that toy's links join"),
        ({"across_slices": True}, "it crosses slices"),
        ({"hosts": 2}, "its groups of 2 devices span 2 hosts"),
    ],
)
@pytest.mark.parametrize("opcode", ["all-gather", "all-gather-start", None])
def test_a_collective_of_unknown_time_says_why(opcode, fields, why):
    instructions = [at("x", opcode)] if opcode else []
    collective = sent("x", 2.0, asynchronous=True, **fields)
    time = times(*instructions, collectives=[collective], chip=CHIP.replace(domain=1))["x"]
    assert (time.seconds, time.alone, time.is_collective) == (None, None, True)
    assert time.unknown.startswith(why)


@pytest.mark.parametrize(("work", "visible"), [(1.0, 1.0), (2.5, 0.0)])
def test_a_collective_inside_a_fusion_runs_beside_it_and_its_rest_follows(work, visible):
    """Both gathers inside take 2 s; the gather that was started before waits for both rests."""
    inner = [at(name, "all-gather", computation="inside", fused=True) for name in "ab"]
    found = times(
        *inner, at("early", "all-gather-start"), at("fusion", compute=work, calls=("inside",)),
        at("done", "all-gather-done", operands=("early",)),
        collectives=[sent("a", 2.0), sent("b", 2.0), sent("early", 5.0, "y", asynchronous=True)],
    )  # fmt: skip
    assert rounded(found) == {"a": visible, "b": visible, "fusion": work, "early": 5 - work - 2 * visible}


# ---- calls


@pytest.mark.parametrize(
    ("opcode", "inner", "outer", "hidden"),
    [("while", 5.0, 1.0, 5.0), ("while", 6.0, 2.0, 3.0), ("while", None, 1.0, 1.0), ("while", 5.0, None, 1.0),
     ("call", 1.0, 1.0, 1.0), ("conditional", 1.0, 1.0, 1.0)],
)  # fmt: skip
def test_a_collective_hides_behind_all_iterations_of_a_loop(opcode, inner, outer, hidden):
    """The body takes 1 s; its iterations are its executions per execution of the loop."""
    found = times(
        at("step", compute=1.0, computation="body", executions=inner), at("gather", "all-gather-start"),
        at("loop", opcode, calls=("body", "unlisted"), executions=outer),
        at("done", "all-gather-done", operands=("gather",)),
        collectives=[sent("gather", 8.0, asynchronous=True)],
    )  # fmt: skip
    assert rounded(found) == {"step": 1.0, "gather": 8.0 - hidden}


# ---- caches, at measured rates


def rate(kind, amount, seconds):
    return RateRecord(kind=kind, amount=amount, seconds=seconds, low_seconds=seconds, high_seconds=seconds, runs=5)


# The time is the square of the bytes, so an operation on one byte takes as many seconds as bytes were written since.
SQUARES = CHIP.replace(rates=(rate("elementwise", 1.0, 1.0), rate("elementwise", 1e6, 1e12)))


def wrote(name, size, *operands, opcode="negate", **fields):
    return at(name, opcode, size_bytes=size, operands=operands, accessed_bytes=1, **fields)


def reach(*instructions):
    return {name: round(time.seconds) for name, time in times(*instructions, chip=SQUARES).items()}


def test_bytes_written_since_the_oldest_operand_was_written():
    """100 bytes are written in all: an input counts as written 100 bytes before the first instruction."""
    found = reach(
        wrote("p", 7, opcode="parameter"), wrote("a", 10, "p"), wrote("b", 20, "a"), wrote("c", 30, "b", "a"),
        wrote("t", 9, "a", "c", opcode="tuple"), wrote("d", 15, "t"), wrote("e", 20, "p"), wrote("f", 3),
        wrote("g", 2, "elsewhere"),
    )  # fmt: skip
    assert found == {
        "a": 100 + 10,
        "b": 0 + 20,
        "c": 20 + 30,
        "d": 50 + 15,  # since `a`, the oldest of the tuple
        "e": 175 + 20,
        "f": 3,
        "g": 100 + 2,
    }


@pytest.mark.parametrize("opcode", ["while", "call", "conditional"])
def test_results_of_a_call_count_as_written_at_its_end(opcode):
    call = wrote("loop", 50, "a", opcode=opcode)
    assert reach(wrote("a", 10), call, wrote("b", 20), wrote("c", 5, "loop"))["c"] == 20 + 5


def test_each_computation_has_its_own_order():
    found = reach(wrote("a", 10), wrote("b", 20, computation="body"), wrote("c", 5, "a", computation="body"))
    assert found["c"] == 25 + 5


@pytest.mark.parametrize(
    ("opcode", "shape", "inner", "seconds"),
    [
        ("exponential", "f32[2,3]{1,0}", (), 6 * 4.0 + 18.0), ("tanh", "f32[]", (), 4.0 + 23.0),
        ("add", "f32[2,3]", (), 24.0),
        ("fusion", "f32[7]", (), 24.0), ("fusion", "f32[7]", (("tanh", "f32[4]"), ("add", "f32[9]")), 4 * 4.0 + 20.0),
        ("fusion", "f32[7]", (("tanh", "f32[4]"), ("log", "f32[5]")), 9 * 4.0 + 15.0),
    ],
)  # fmt: skip
def test_transcendental_results_and_other_arithmetic_take_their_measured_rates(opcode, shape, inner, seconds):
    """4 s per transcendental result and 1 s per remaining elementwise operation, of 24 in all."""
    rates = rate("elementwise", 1.0, 1e-9), rate("transcendental", 1.0, 4.0), rate("arithmetic", 1.0, 1.0)
    parts = [at(f"i{i}", code, shape=of, computation="inside", fused=True) for i, (code, of) in enumerate(inner)]
    work = at("x", opcode, shape=shape, calls=("inside",) if inner else (), elementwise_flops=24.0, accessed_bytes=1)
    assert times(*parts, work, chip=CHIP.replace(rates=rates))["x"].seconds == pytest.approx(seconds)
