"""Costs of stages, their reasons and their assumptions, derived by hand."""

import pytest
from records_parts import TOY_CHIP, toy_module

from workbench.cost import InstructionTime, accuracy_text, error_bar, estimate_cost, largest_dtype
from workbench.cost._accuracy import ACCURACY, Accuracy, error_bar_of_module
from workbench.cost._estimate import peak_of
from workbench.errors import InspectionError
from workbench.records.compiled import CollectiveRecord, InstructionRecord, RoutineRecord, StagePartRecord
from workbench.records.hardware import AxisRecord, MeshRecord, RateRecord
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord, ValueRecord

# One device has 1 TFLOP/s in bfloat16, 10 GB/s of memory and 1 GB/s of links; a step takes 1 µs.
CHIP = TOY_CHIP.replace(peak_flops_per_second={"bfloat16": 1e12}, source="made up", as_of="2026-01-01")
LOOP = "the number of iterations of a loop is known only while it runs (the call tree counts one)"


def instruction(name, stage="1", *, compute=0.0, memory=0.0, **fields):
    """An instruction that uses the matrix unit and the memory of `CHIP` for these seconds."""
    facts = {"opcode": "fusion", "computation": "main", "shape": "f32[]", "size_bytes": 0, "executions": 1.0}
    return InstructionRecord(
        name=name, stage=stage, **{**facts, "flops": compute * 1e12, "accessed_bytes": int(memory * 1e10), **fields}
    )


def gather(name="gather", seconds=2.0, stages=("1",), **fields):
    size = int(seconds * 1e9)
    facts = {"kind": "all-gather", "axes": ("x",), "group_size": 2, "groups": 1, "executions": 1.0}
    return CollectiveRecord(
        name=name, stages=stages, **{**facts, "payload_bytes": size, "wire_bytes": float(size), **fields}
    )


def costs(instructions=(), collectives=(), chip=CHIP, **options):
    module = toy_module(platform="gpu", instructions=tuple(instructions), collectives=tuple(collectives))
    return {stage.stage: stage for stage in estimate_cost(module, chip=chip, **options).stages}


def seconds(stage):
    return stage.compute_seconds, stage.memory_seconds, stage.operation_seconds


# ---- stages of a module


def test_every_kind_of_work_is_multiplied_by_its_executions_and_added_by_stage():
    found = costs([
        instruction("a", compute=2.0, memory=1.0, elementwise_flops=7.0, executions=3.0, kind="clients"),
        instruction("b", compute=1.0, memory=4.0, elementwise_flops=5.0, kind="server"),
        instruction("c", None, memory=1.0), instruction("d", "0", memory=1.0, executions=0.0),
    ])  # fmt: skip
    assert list(found) == ["0", "1", "outside"]
    one = found["1"]
    assert (one.kind, one.name, one.flops, one.accessed_bytes, one.elementwise_flops) == (
        "clients",
        "1",
        7e12,
        7e10,
        26,
    )
    assert seconds(one) == (7.0, 7.0, 3 * 2.0 + 4.0)
    assert seconds(found["outside"]) == (0.0, 1.0, 1.0)
    assert seconds(found["0"]) == (0.0, 0.0, 0.0)


def test_a_fusion_of_two_stages_divides_its_time_by_products_or_else_by_bytes():
    parts = (
        StagePartRecord(stage="1", flops=3e12, accessed_bytes=10**10),
        StagePartRecord(stage=None, flops=1e12, accessed_bytes=3 * 10**10),
    )
    found = costs([instruction("a", compute=4.0, memory=4.0, stage_parts=parts, executions=2.0)])
    assert (seconds(found["1"]), seconds(found["outside"])) == ((6.0, 6.0, 6.0), (2.0, 2.0, 2.0))
    parts = tuple(part.replace(flops=0.0) for part in parts)
    found = costs([instruction("a", memory=4.0, stage_parts=parts)])
    assert (seconds(found["1"]), seconds(found["outside"])) == ((0.0, 1.0, 1.0), (0.0, 3.0, 3.0))


def test_elementwise_work_alone_makes_no_stage():
    assert costs([instruction("a", elementwise_flops=5.0)], chip=None) == {}


@pytest.mark.parametrize(
    ("fields", "flops", "accessed", "elementwise", "times", "reasons"),
    [
        ({"compute": 1.0, "memory": 2.0, "executions": None}, None, None, 0.0, (None, None, None), (LOOP,)),
        ({"memory": 2.0, "executions": None}, 0.0, None, 0.0, (0.0, None, None), (LOOP,)),
        ({"compute": 2.0, "elementwise_flops": 1.0, "executions": None}, None, 0.0, None, (None, 0.0, None), (LOOP,)),
        ({"compute": 1.0, "memory": 2.0, "products": {"float64": 1.0}}, 1e12, 2e10, 0.0, (None, 2.0, None),
         ("no peak rate of float64 products is known for toy",)),
    ],
)  # fmt: skip
def test_unknown_work_leaves_only_its_own_sums_unknown(fields, flops, accessed, elementwise, times, reasons):
    stage = costs([instruction("known", memory=0.0), instruction("a", **fields)])["1"]
    assert (stage.flops, stage.accessed_bytes, stage.elementwise_flops) == (flops, accessed, elementwise)
    assert (seconds(stage), stage.unknown_because, stage.bound) == (times, reasons, "unknown")


def test_stages_of_the_plan_come_first_then_those_of_the_module_by_path():
    stages = [StageRecord(index=i, path=str(i), kind="server", name=f"s{i}") for i in (3, 1)]
    module = toy_module(
        instructions=(instruction("a", "1", memory=1.0, kind="clients"), instruction("b", "2", memory=1.0)),
        collectives=(gather(stages=("0",)), gather("c", stages=())),
    )
    found = estimate_cost(module, PlanRecord(name="toy", placements=(), stages=tuple(stages))).stages
    assert [(s.stage, s.kind, s.name) for s in found] == [
        ("3", "server", "s3"), ("1", "server", "s1"), ("0", "", "0"), ("2", "", "2"), ("outside", "", "outside"),
    ]  # fmt: skip
    empty = found[0]  # without work, nothing is spent
    assert (empty.flops, empty.accessed_bytes, empty.elementwise_flops, empty.collective_bytes) == (0.0, 0.0, 0.0, {})
    assert (*seconds(empty), empty.hidden_seconds) == (None, None, None, 0.0)


def test_bytes_and_seconds_of_collectives_by_axis():
    found = costs(
        collectives=[
            gather("a", 1.0), gather("b", 2.0, axes=("x", "y"), executions=3.0), gather("c", 4.0, axes=()),
            gather("d", 0.5, executions=2.0), gather("e", 1.0, wire_bytes=0.0),
        ],
    )["1"]  # fmt: skip
    assert found.collective_bytes == {"x": 2e9, "x+y": 6e9, "unnamed": 4e9}
    assert found.collective_seconds_by_axis == pytest.approx({"x": 2.0, "x+y": 6.0, "unnamed": 4.0}, rel=1e-4)
    assert found.collective_seconds == pytest.approx(12.0, rel=1e-4)


@pytest.mark.parametrize(("work", "hidden"), [(0.5, 0.5), (3.0, 2.0)])
def test_hidden_time_is_per_share_and_execution(work, hidden):
    """A gather of 2 s hides behind an operation; 3 executions, 3/4 of it for stage 1."""
    instructions = (
        instruction("gather", opcode="all-gather-start"), instruction("work", "2", compute=work),
        instruction("done", opcode="all-gather-done", operands=("gather",)),
    )  # fmt: skip
    shares = {"1": 0.75, "2": 0.25}
    collective = gather(stages=("1", "2"), stage_shares=shares, executions=3.0, asynchronous=True)
    found = costs(instructions, [collective])
    for path, share in shares.items():
        assert found[path].hidden_seconds == pytest.approx(hidden * share * 3, abs=1e-5)
        assert found[path].collective_seconds == pytest.approx(2.0 * share * 3, abs=1e-5)


@pytest.mark.parametrize(
    ("compute", "memory", "sent", "bound"),
    [(3.0, 2.0, 1.0, "compute"), (2.0, 3.0, 1.0, "memory"), (1.0, 2.0, 3.0, "collective"), (0.0, 0.0, 0.0, "unknown"),
     (0.0, 0.0, 1.0, "collective")],
)  # fmt: skip
def test_a_stage_is_bound_by_the_largest_of_its_times(compute, memory, sent, bound):
    stage = costs([instruction("a", compute=compute, memory=memory)], [gather(seconds=sent)])["1"]
    assert stage.bound == bound
    assert stage.seconds == pytest.approx(max(compute, memory) + sent, abs=1e-5)


def test_only_the_visible_part_of_a_collective_bounds_its_stage():
    instructions = (
        instruction("gather", opcode="all-gather-start"), instruction("work", compute=1.5),
        instruction("done", opcode="all-gather-done", operands=("gather",)),
    )  # fmt: skip
    stage = costs(instructions, [gather(asynchronous=True)])["1"]
    assert (stage.bound, stage.seconds) == ("compute", pytest.approx(2.0, abs=1e-5))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"wire_bytes": None}, "all-gather over x: the participants are written in an unknown syntax"),
        ({"executions": None}, "all-gather over x: it is in a loop with an unknown number of iterations"),
        ({"group_size": 3, "axes": ("x", "y")}, "all-gather over x × y: its groups of 3 devices exceed the 2"),
        ({"across_slices": True, "axes": ()}, "all-gather over a group that is not a mesh axis: it crosses slices"),
        ({"hosts": 2}, "all-gather over x: its groups of 2 devices span 2 hosts"),
    ],
)
def test_reasons_of_unknown_collectives(fields, why):
    stage = costs(collectives=[gather("known"), gather(**fields)], chip=CHIP.replace(domain=2))["1"]
    (reason,) = stage.unknown_because
    assert reason.startswith(why)
    assert (stage.collective_seconds, stage.seconds) == (None, None)
    assert stage.collective_seconds_by_axis == pytest.approx({"x": 2.0}, rel=1e-4)
    assert costs(collectives=[gather(**fields)], chip=None)["1"].unknown_because == ()


def test_without_a_chip_a_loop_is_still_a_reason():
    stage = costs([instruction("a", memory=1.0, executions=None)], chip=None)["1"]
    assert (stage.unknown_because, seconds(stage)) == ((LOOP,), (None, None, None))


def test_seconds_of_a_call_are_those_of_its_stages():
    module = toy_module(platform="gpu", instructions=(instruction("a", memory=1.0), instruction("b", "2", compute=2.0)))
    assert estimate_cost(module, chip=CHIP).seconds == 3.0
    unknown = module.replace(collectives=(gather(wire_bytes=None),))
    assert estimate_cost(unknown, chip=CHIP).seconds is None


# ---- peaks


def value(dtype, size):
    return ValueRecord(name="x", shape=(), dtype=dtype, size_bytes=size)


@pytest.mark.parametrize(
    ("inputs", "dtype", "on_chip"),
    [
        ((), "bfloat16", "bfloat16"), ((value("int32", 9),), "bfloat16", "bfloat16"),
        ((value("float16", 2), value("float32", 3), value("int8", 9)), "float32", "bfloat16"),
        ((value("float8_e5m2", 2),), "float8_e5m2", "bfloat16"),
    ],
)  # fmt: skip
def test_dtype_of_the_largest_float_input(inputs, dtype, on_chip):
    plan = PlanRecord(name="toy", placements=(), stages=(), inputs=inputs)
    assert (largest_dtype(plan), largest_dtype(plan, CHIP)) == (dtype, on_chip)
    assert largest_dtype(None) == "bfloat16"


def test_peak_of_a_dtype():
    assert (peak_of(None, "int4"), peak_of(CHIP, "bfloat16")) == (None, 1e12)
    with pytest.raises(InspectionError) as caught:
        peak_of(CHIP.replace(peak_flops_per_second={"bfloat16": 1.0, "int8": 2.0}), "float64")
    assert str(caught.value) == (
        "`estimate_cost` was given dtype='float64' for chip toy, which has no published peak for this dtype. Predicted "
        'seconds need this peak: use one of "bfloat16", "int8", or pass a `ChipRecord` that has this peak.'
    )


# ---- plans


def stage(index, kind="clients", path=None, **fields):
    work = {"flops_per_client": 6e12, "bytes_per_client": 6 * 10**10, "elementwise_flops_per_client": 60.0}
    return StageRecord(
        index=index, path=path or str(index), kind=kind, name=f"{kind}{index}", **{**work, "placement": "x", **fields}
    )


def mesh(**axes):
    return MeshRecord(axes=tuple(AxisRecord(name=name, size=size) for name, size in axes.items()), devices=())


def planned(*stages, on=None, axes=("x",), slots=None, chip=CHIP):
    placements = (
        PlacementRecord(name="other", size=1, mesh_axes=("y",), slots_per_device=9),
        PlacementRecord(name="x", size=6, mesh_axes=axes, slots_per_device=slots),
    )
    plan = PlanRecord(name="toy", placements=placements, stages=stages)
    return {stage.stage: stage for stage in estimate_cost(None, plan, mesh=on, chip=chip).stages}


@pytest.mark.parametrize(
    ("on", "fields", "slots", "calls"),
    [
        # 6 or 7 clients; the fullest of 2 devices has 3 or 4, and other axes divide each call
        (None, {"clients": 6}, None, 6.0), (mesh(x=2), {"clients": 6}, None, 3.0),
        (mesh(x=2), {"clients": 7}, None, 4.0),
        (mesh(x=2, y=4), {"clients": 7}, None, 1.0), (mesh(x=2, y=4), {"clients": 7}, 6, 1.5),
        (mesh(x=2), {"clients": 6, "computations": 3}, None, 9.0),
        (mesh(y=2), {"clients": 6}, None, 3.0),
        # without a placement, a mesh divides all calls, or each call if there are fewer calls than devices
        (mesh(x=2), {"clients": 6, "placement": None}, None, 3.0),
        (mesh(x=6), {"clients": 6, "placement": None}, None, 1.0),
        (mesh(x=7), {"clients": 6, "placement": None}, None, 1.0),
        (mesh(x=4), {"clients": 0, "placement": None}, None, 0.0),
    ],
)  # fmt: skip
def test_work_of_the_fullest_device(on, fields, slots, calls):
    found = planned(stage(0, **fields), on=on, slots=slots)["0"]
    assert (found.flops, found.accessed_bytes, found.elementwise_flops) == (6e12 * calls, 6e10 * calls, 60 * calls)
    # 1 TFLOP/s and 10 GB/s, both fully attained by the family "other"
    assert (found.compute_seconds, found.memory_seconds) == (6.0 * calls, 6.0 * calls)


def test_plans_are_priced_at_the_shares_of_products_and_other_operations():
    # AMD reaches 30 % of the matrix units' peak in products, and 60 % of the bandwidth; two devices share the chip
    chip = CHIP.replace(name="MI1", devices_per_chip=2)
    found = planned(stage(0), chip=chip)["0"]
    assert (found.compute_seconds, found.memory_seconds) == pytest.approx((6 / 0.5 / 0.3, 6 / 0.5 / 0.6))
    assert (found.seconds, found.bound) == (pytest.approx(40.0), "compute")


@pytest.mark.parametrize(("trips", "inner", "flops"), [(3, 2, 36e12), (None, 2, None), (3, None, None), (1, 1, 6e12)])
def test_inner_loops_multiply(trips, inner, flops):
    body = stage(0, "loop", "0.0", trip_count=inner, body=(stage(0, path="0.0.0"),))
    found = planned(stage(0, "loop", trip_count=trips, body=(body, stage(1, path="0.1", flops_per_client=0.0))))
    assert list(found) == ["0", "0.0", "0.0.0", "0.1"]
    assert found["0.0.0"].flops == flops
    assert (found["0"].flops, found["0"].accessed_bytes, found["0"].elementwise_flops) == (0.0, 0.0, 0.0)
    assert found["0.1"].flops == 0.0
    assert found["0.0.0"].unknown_because == ((LOOP,) if flops is None else ())
    assert found["0.0.0"].compute_seconds == (None if flops is None else flops / 1e12)


def test_unknown_work_of_a_plan_stays_unknown():
    found = planned(stage(0, flops_per_client=None, bytes_per_client=None))["0"]
    assert (found.flops, found.accessed_bytes, found.compute_seconds, found.memory_seconds) == (None,) * 4


def reduction(**fields):
    outputs = (value("float32", 10**9), value("float32", 10**9))
    work = {"flops_per_client": 0.0, "bytes_per_client": 0, "elementwise_flops_per_client": 0.0}
    return stage(0, "reduce", **{"outputs": outputs, **work, **fields})


@pytest.mark.parametrize(
    ("on", "axes", "sent"),
    [
        (None, ("x",), {}), (mesh(x=1, y=4), ("x",), {}), (mesh(x=2), ("x",), {"x": 2e9}),
        (mesh(x=4), ("x",), {"x": 3e9}),
        (mesh(x=2, y=2, z=3), ("x", "y"), {"x+y": 3e9}), (mesh(x=2), (), {}),
    ],
)  # fmt: skip
def test_a_planned_reduction_is_an_all_reduce_of_its_outputs(on, axes, sent):
    found = planned(reduction(), on=on, axes=axes)["0"]
    assert found.collective_bytes == sent
    # through the switch: the bytes at 1 GB/s, and 2 (n - 1) steps of 1 µs
    size = {2e9: 2, 3e9: 4}.get(sum(sent.values()), 1)
    assert found.collective_seconds == pytest.approx(sum(sent.values()) / 1e9 + 2 * (size - 1) * 1e-6)


def test_a_reduction_without_outputs_or_of_another_kind_sends_nothing():
    assert planned(reduction(outputs=()), on=mesh(x=2))["0"].collective_bytes == {}
    assert planned(stage(0, outputs=(value("float32", 8),)), on=mesh(x=2))["0"].collective_bytes == {}


@pytest.mark.parametrize(("trips", "sent"), [(5, {"x": 1e10}), (None, {"x": 0.0})])
def test_a_reduction_in_a_loop_is_sent_in_each_iteration(trips, sent):
    found = planned(stage(0, "loop", trip_count=trips, body=(reduction(path="0.0"),)), on=mesh(x=2))["0.0"]
    assert found.collective_bytes == sent
    assert (found.collective_seconds is None) == (trips is None)
    reason = "all-reduce over x: it is in a loop with an unknown number of iterations"
    assert found.unknown_because == ((reason,) if trips is None else ())


# ---- errors of predicted times


@pytest.fixture
def accuracy(monkeypatch):
    """Points of TPUs only: 12.4 % and at most 45.6 % in training steps, and so on by class."""
    monkeypatch.setattr("workbench.cost._accuracy.ACCURACY", {
        ("TPU", "training step"): Accuracy(2, 0.124, 0.456, ""), ("TPU", "memory"): Accuracy(1, 0.01, 0.02, ""),
        ("TPU", "layout"): Accuracy(1, 0.03, 0.04, ""), ("TPU", "matrix product"): Accuracy(1, 0.05, 0.06, ""),
        ("TPU", "collective"): Accuracy(1, 0.07, 0.08, ""),
    })  # fmt: skip
    assert ACCURACY  # of the published points


TPU = CHIP.replace(name="v0")
STEP = "median error ±12 % over 2 training step points of TPU chips, at most 46 %"
MEMORY = "median error ±1 % over 1 memory point of TPU chips, at most 2 %"
RATE = RateRecord(kind="call", amount=1.0, seconds=1.0, low_seconds=1.0, high_seconds=1.0, runs=1)


@pytest.mark.usefixtures("accuracy")
def test_error_bars_name_median_points_and_largest_error():
    assert (error_bar(TPU, "training step"), error_bar(TPU, "memory")) == (STEP, MEMORY)
    unknown = [error_bar(None, "memory"), error_bar(CHIP, "memory"), error_bar(TPU.replace(rates=(RATE,)), "memory"),
               error_bar(TPU, "loop")]  # fmt: skip
    assert unknown == ["error unknown"] * 4


@pytest.mark.usefixtures("accuracy")
def test_errors_of_a_family_in_a_sentence():
    assert accuracy_text(TPU) == (
        "Errors of predicted seconds on TPU chips, median of measured points: training step ±12 % (at most 46 %, 2 "
        "points); memory ±1 % (at most 2 %, 1 point); layout ±3 % (at most 4 %, 1 point); matrix product ±5 % (at most "
        "6 %, 1 point); collective ±7 % (at most 8 %, 1 point)."
    )
    assert accuracy_text(CHIP) == "The error in predicted seconds on toy is unknown."
    assert accuracy_text(TPU.replace(rates=(RATE,))) == (
        "The error in predicted seconds on v0 is unknown: its rates were measured, but not the error."
    )


def bar(times, *instructions, collectives=(), chip=TPU, platform="tpu", **fields):
    module = toy_module(platform=platform, instructions=instructions, collectives=tuple(collectives), **fields)
    found = {name: InstructionTime(s, s, is_collective=name == "gather") for name, s in times.items()}
    return error_bar_of_module(module, chip, found)


@pytest.mark.usefixtures("accuracy")
@pytest.mark.parametrize(
    ("times", "executions", "expected"),
    [
        ({"a": 8.0, "b": 2.0}, 1.0, MEMORY),  # exactly 4/5
        ({"a": 7.9, "b": 2.1}, 1.0, STEP),
        ({"a": 2.0, "b": 2.0}, 4.0, MEMORY),
        ({"a": 8.0, "b": 2.0}, None, MEMORY.replace("1 %", "3 %").replace("memory", "layout").replace("2 %", "4 %")),
        ({"a": None}, 1.0, MEMORY), ({}, 1.0, STEP), ({"a": 1.0, "b": None}, 1.0, MEMORY),
    ],
)  # fmt: skip
def test_one_instruction_of_four_fifths_of_the_time_decides_the_error(times, executions, expected):
    module = instruction("a", executions=executions), instruction("b", opcode="transpose")
    assert bar(times, *module) == expected


@pytest.mark.usefixtures("accuracy")
@pytest.mark.parametrize(
    ("fields", "kind", "median"),
    [({"compute": 1.0}, "matrix product", 5), ({"opcode": "reverse"}, "layout", 3),
     ({"opcode": "transpose"}, "layout", 3),
     ({"opcode": "copy"}, "memory", 1), ({"opcode": "transpose", "compute": 1.0}, "matrix product", 5)],
)  # fmt: skip
def test_class_of_the_instruction_that_decides_the_error(fields, kind, median):
    text = bar({"a": 1.0}, instruction("b", compute=1.0), instruction("a", **fields))
    assert text.startswith(f"median error ±{median} % over 1 {kind} point of")


@pytest.mark.usefixtures("accuracy")
def test_a_collective_may_decide_the_error():
    text = bar({"a": 1.0, "gather": 2.0}, instruction("a"), collectives=[gather(executions=2.0)])
    assert text.startswith("median error ±7 % over 1 collective point")
    assert bar({"a": 1.0, "gather": 2.0}, instruction("a"), collectives=[gather()]) == STEP


FACTORS = RoutineRecord(kind="factorisation", work=1.0, calls=1.0)
NOTE = "the time of callbacks is not counted"


@pytest.mark.parametrize(
    ("routine", "notes", "platform", "why"),
    [
        (None, ("a note", NOTE), "tpu", NOTE), (None, (NOTE,), "cpu", NOTE),
        (None, (), "cpu", "compiled for CPU devices, priced as v0"),
        (FACTORS, (NOTE,), "tpu", "the time of factorisations was not compared with measurements on v0"),
        (FACTORS, (), "cpu", "compiled for CPU devices, priced as v0"),
        (FACTORS.replace(length=8), (NOTE,), "tpu", NOTE),
    ],
)  # fmt: skip
def test_uncounted_work_makes_the_error_unknown(routine, notes, platform, why):
    text = bar({"a": 1.0}, instruction("a", routine=routine), platform=platform, notes=notes)
    assert text == f"error unknown: {why}"


def test_the_error_is_unknown_without_a_module_or_a_chip():
    plan = PlanRecord(name="toy", placements=(), stages=())
    assert estimate_cost(None, plan, chip=CHIP).error_bar == "error unknown: not compiled"
    assert estimate_cost(toy_module()).error_bar == "error unknown"


# ---- assumptions, in full

ALWAYS = (
    "predicted, not measured",
    "FLOPs are counted for dot products and convolutions, where a multiply and an add are two FLOPs; elementwise FLOPs "
    "are counted separately, one per element, and add no seconds",
)
MODULE = (*ALWAYS, "bytes are main-memory traffic at the boundaries of fusions; caches are not modelled")
SCHEDULE = (
    "operations run one after another, each for max(compute, memory); an asynchronous collective overlaps with the "
    "operations scheduled between its start and its done"
)
UNKNOWN = "The error in predicted seconds on toy is unknown"


def links(share, start, step, of="their port"):
    return (
        f"collectives use {of}, at {share} of the bandwidth, with {start} µs to start and {step} µs per step; "
        "contention is not modelled"
    )


def test_assumptions_of_a_plan():
    plan = PlanRecord(name="toy", placements=(), stages=())
    assert estimate_cost(None, plan, mesh=mesh(x=40, y=50), chip=CHIP).assumptions == (
        *ALWAYS,
        "from the plan, before compilation: nothing is fused between stages",
        "figures are for the fullest of the 2,000 devices; a reduction is one all-reduce of values that are replicated "
        "over the other mesh axes",
        "toy: 1 TFLOP/s in bfloat16, 10 GB/s of main memory per device",
        "toy, data sheet: made up (as of 2026-01-01)",
        "operations reach 100 % of the matrix unit's peak and 100 % of the bandwidth (other chips), and each operation "
        "adds 0 µs",
        "a stage takes max(compute, memory) + collectives; nothing overlaps",
        links("100 %", 0, 1),
        UNKNOWN,
    )


def test_assumptions_of_a_module():
    products = instruction("a", compute=1.0, products={"float32:highest": 1.0, "": 1.0, "float64": 1.0, "int8": 1.0})
    module = toy_module(
        platform="gpu", instructions=(products,), notes=("a note",),
        collectives=(gather(stages=("1", "2")), gather("unread", wire_bytes=None), gather("too", wire_bytes=None)),
    )  # fmt: skip
    chip = CHIP.replace(
        name="H1", devices_per_chip=2, domain=1000, vector_flops_per_second=1e12, dcn_bytes_per_second=5e10,
        peak_flops_per_second={"bfloat16": 2.5e15, "int8": 4e12},
    )  # fmt: skip
    found = estimate_cost(module, chip=chip).assumptions
    assert found[-2].startswith("Errors of predicted seconds on NVIDIA chips")
    assert (*found[:-2], found[-1]) == (
        *MODULE,
        "the cost of a collective that combines several stages is divided evenly among them",
        "not counted, because their groups have an unknown syntax: unread, too",
        "a note",
        "H1: 1,250 TFLOP/s in bfloat16, 0.5 TFLOP/s in float32 at precision highest, 2 TFLOP/s in int8, 5 GB/s of main "
        "memory per device",
        "H1, data sheet: made up (as of 2026-01-01)",
        "operations reach 80 % of the matrix unit's peak and 82 % of the bandwidth (NVIDIA chips), and each operation "
        "adds 4 µs",
        SCHEDULE,
        links("80 %", 5, 2.8),
        "groups of more than 1,000 chips, and groups on several GPU hosts, use the data-centre network, at 50 GB/s per "
        "chip; sums and gathers first combine data over the links, so each chip sends only its own part over the "
        "network",
    )


def test_assumptions_of_a_module_of_the_cpu_compiler():
    chip = CHIP.replace(topology="torus2d", domain=2)
    assert estimate_cost(toy_module(), chip=chip).assumptions == (
        *MODULE,
        "toy: 1 TFLOP/s in bfloat16, 10 GB/s of main memory per device",
        "toy, data sheet: made up (as of 2026-01-01)",
        "operations reach 100 % of the matrix unit's peak and 100 % of the bandwidth (other chips)",
        "compiled for CPU devices: the CPU compiler emits more operations than the compiler for toy, so the fixed cost "
        "of an operation is not counted",
        SCHEDULE,
        links("100 %", 0, 1, "all links of the sub-torus that their group fills"),
        UNKNOWN,
        "groups of more than 2 chips, and groups on several GPU hosts, use the data-centre network, whose bandwidth is "
        "not published; sums and gathers first combine data over the links, so each chip sends only its own part over "
        "the network",
    )


def test_assumptions_at_measured_rates():
    chip = CHIP.replace(rates=(RATE,), source="measured here", domain=1)
    assert estimate_cost(toy_module(platform="gpu"), chip=chip).assumptions == (
        *MODULE,
        "toy: 1 TFLOP/s in bfloat16, 10 GB/s of main memory per device",
        "toy, measured rates: measured here (as of 2026-01-01)",
        SCHEDULE,
        UNKNOWN + ": its rates were measured, but not the error",
    )


def test_without_a_chip_only_the_counts_have_assumptions():
    assert estimate_cost(toy_module()).assumptions == MODULE
    combined = gather(stages=("1", "2"), stage_shares={"1": 0.5, "2": 0.5})
    assert estimate_cost(toy_module(collectives=(combined,))).assumptions == MODULE
