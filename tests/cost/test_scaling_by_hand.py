"""Every law of scaled estimates, on a record whose numbers are given: 8 clients on a mesh of 2 × 2 devices."""

import pytest
from records_parts import TOY_CHIP, toy_module

from workbench.cost import estimate_scaled, known_chip, scaled_placement
from workbench.errors import InspectionError, MeshError
from workbench.records.compiled import CollectiveRecord, CostRecord, InstructionRecord, MemoryRecord, ProgramRecord
from workbench.records.hardware import AxisRecord, MeshRecord
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord, ValueRecord
from workbench.records.sharding import LeafShardingRecord, ShardingRecord

# One device has 1 TFLOP/s, 10 GB/s of memory and 1 GB/s of links; a step takes 1 µs.
CHIP = TOY_CHIP.replace(peak_flops_per_second={"bfloat16": 1e12})


def value(name, *shape, size=0):
    return ValueRecord(name=name, shape=shape, dtype="float32", size_bytes=size)


WEIGHTS, DATA, RESULT = value("w", 8, 2, size=64), value("x", 8, 10, size=3200), value("y", 2, size=800)
ROWS, TEXT = value("rows", 8, 5, size=1600), "a note"


def stage(index, kind, *, path=None, placement="clients", **fields):
    return StageRecord(
        index=index, path=path or str(index), kind=kind, name=f"{kind}{index}", placement=placement, clients=8,
        flops_per_client=10.0, bytes_per_client=5, **fields,
    )  # fmt: skip


STAGES = (
    stage(0, "broadcast", inputs=(WEIGHTS,), consumes=(-1,)),
    stage(1, "clients", inputs=(WEIGHTS, DATA), outputs=(ROWS,), consumes=(0, -1),
          body=(stage(0, "loop", path="1.0"),)),
    stage(2, "reduce", inputs=(ROWS,), outputs=(RESULT,), consumes=(1,)),
    stage(3, "server", placement=None, inputs=(RESULT,), consumes=(2, -1)),
)  # fmt: skip


def mesh(**axes):
    return MeshRecord(axes=tuple(AxisRecord(name=name, size=size) for name, size in axes.items()), devices=())


def plan(*, clients=8, axes=("clients",), stages=STAGES, **fields):
    placements = (PlacementRecord(name="clients", size=clients, mesh_axes=axes),)
    values = {"inputs": (WEIGHTS, DATA), "outputs": (RESULT, ROWS)}
    return PlanRecord(name="toy", placements=placements, stages=stages, **{**values, **fields})


def work(name, stage, *, compute=0.0, memory=0.0, **fields):
    """An instruction that uses a device's matrix unit and memory for these seconds."""
    facts = {"opcode": "fusion", "computation": "main", "shape": "f32[]", "size_bytes": 0, "executions": 1.0}
    costs = {"flops": compute * 1e12, "accessed_bytes": int(memory * 1e10), "elementwise_flops": compute * 10}
    return InstructionRecord(name=name, stage=stage, **{**facts, **costs, **fields})


def sent(name, stage, kind, axis, payload, wire, **fields):
    facts = {"axes": (axis,), "group_size": 2, "groups": 2, "executions": 1.0}
    return CollectiveRecord(
        name=name, kind=kind, stages=(stage,), payload_bytes=payload, wire_bytes=wire, **{**facts, **fields}
    )


INSTRUCTIONS = (work("a", "1", compute=4.0, memory=1.0), work("b", "1.0", memory=2.0), work("c", "3", compute=3.0))
COLLECTIVES = (
    sent("gather", "1", "all-gather", "model", 1000, 1000.0),
    sent("reduce", "2", "all-reduce", "clients", 800, 800.0),
    sent("server", "3", "all-gather", "model", 10, 10.0, executions=2.0),
)
MEMORY = MemoryRecord(
    argument_bytes=2000, output_bytes=1000, temporary_bytes=400, peak_bytes=3000, available_bytes=9000
)


SQUARE = mesh(clients=2, model=2)


def record(*, on=SQUARE, memory=MEMORY, chip=CHIP, collectives=COLLECTIVES, outputs=(), program=None,
           instructions=INSTRUCTIONS, compiled=True):  # fmt: skip
    module = toy_module(platform="gpu", instructions=instructions, collectives=collectives, memory=memory)
    leaves = ShardingRecord(leaves=tuple(outputs), mesh=on, total_bytes=0, bytes_per_device=0) if outputs else None
    return ProgramRecord(
        name="toy", target="toy", plan=program or plan(), mesh=on, module=module if compiled else None, outputs=leaves,
        cost=CostRecord(stages=(), chip=chip, assumptions=("predicted, not measured", TEXT)),
    )  # fmt: skip


def stages(found):
    return {stage.stage: stage for stage in found.cost.stages}


# ---- sizes


@pytest.mark.parametrize(
    ("changes", "clients", "per_device", "chunk", "devices", "idle"),
    [
        ({}, 8, 4, 4, 4, 0),
        ({"clients": 9}, 9, 5, 5, 4, 0),
        ({"clients": 1}, 1, 1, 1, 4, 2),
        ({"devices": 2}, 8, 8, 8, 2, 0),
        ({"devices": 10}, 8, 2, 2, 10, 2),
        ({"devices": 32}, 8, 1, 1, 32, 16),
        ({"chunk_size": 2}, 8, 4, 2, 4, 0),
        ({"chunk_size": 3}, 8, 4, 2, 4, 0),
        ({"clients": 10, "chunk_size": 4}, 10, 8, 4, 4, 0),  # five clients in two chunks of four
        ({"chunk_size": 1}, 8, 4, 1, 4, 0),
        ({"chunk_size": 100}, 8, 4, 4, 4, 0),
    ],
)
def test_sizes(changes, clients, per_device, chunk, devices, idle):
    found = estimate_scaled(record(), **changes)
    size = (found.clients, found.clients_per_device, found.chunk_size, found.devices, found.idle_devices)
    assert size == (clients, per_device, chunk, devices, idle)
    assert found.model == 1.0


@pytest.mark.parametrize(("limit", "size", "chunk"), [(None, None, 16), (None, 2, 2), (3, 2, 3), (8, 4, 8)])
def test_an_estimate_keeps_the_requested_chunk_size(limit, size, chunk):
    program = plan(chunk_limit=limit, chunk_size=size)
    clients = 12 if chunk == 3 else 32
    assert estimate_scaled(record(program=program), clients=clients).chunk_size == chunk


@pytest.mark.parametrize(
    ("changes", "chunk", "words"),
    [
        ({}, 1, 'the choice of "auto", as in the compiled program'),
        ({"clients": 80}, 1, 'the choice of "auto", as in the compiled program'),
        ({"devices": 2}, 8, 'the choice of "auto" for 2 devices.'),
        ({"devices": 2, "chunk_size": 2}, 2, "as requested; the compiled program has 1"),
        ({"model": 2.0}, 1, 'For another model, "auto" may choose another'),
    ],
)
def test_an_automatic_chunk_size_follows_the_devices(changes, chunk, words):
    program = plan(chunk_limit=1, chunk_size=1, auto_limits=((1, 8), (3, 1)))
    found = estimate_scaled(record(program=program), **changes)
    assert found.chunk_size == chunk
    assert words in found.chunks
    assert found.chunks in str(found)


def test_one_device_is_named_in_the_singular():
    program = plan(chunk_limit=1, chunk_size=1, auto_limits=((1, 8), (3, 1)))
    found = estimate_scaled(record(program=program, on=mesh(clients=2)), devices=1)
    assert 'the choice of "auto" for 1 device.' in found.chunks


def test_a_chunk_size_that_was_given_is_kept_and_no_chunks_are_not_mentioned():
    given = estimate_scaled(record(program=plan(chunk_limit=2, chunk_size=2)), devices=2)
    assert (given.chunk_size, "keeps the chunk size" in given.chunks) == (2, True)
    assert estimate_scaled(record(), devices=2).chunks == ""


@pytest.mark.parametrize(
    ("on", "axes", "changes", "message"),
    [
        (mesh(clients=2), ("clients",), {"clients": 0}, "clients=0 is not above 0"),
        (mesh(clients=2), ("clients",), {"model": 0.0}, "model=0.0 is not above 0"),
        (mesh(clients=2), ("clients",), {"model": float("nan")}, "model=nan is not above 0"),
        (mesh(clients=2), ("clients",), {"chunk_size": 0}, "chunk_size=0 is not above 0"),
        (mesh(clients=2), ("clients",), {"devices": 0},
         "devices=0 is not a multiple of 1, the devices of the other mesh axes"),
        (mesh(clients=2, model=2), ("clients",), {"devices": 5, "clients": -1},
         "clients=-1 is not above 0; devices=5 is not a multiple of 2, the devices of the other mesh axes"),
        (mesh(model=2), (), {"devices": 4},
         "devices=4, but the clients are not sharded over a mesh axis, so more devices change nothing"),
    ],
)  # fmt: skip
def test_impossible_sizes(on, axes, changes, message):
    with pytest.raises(InspectionError) as caught:
        estimate_scaled(record(on=on, program=plan(axes=axes)), **changes)
    assert str(caught.value) == (
        f"`estimate_scaled` was given impossible sizes for 'toy': {message}. Use positive numbers of clients, "
        "parameters and devices, and a number of devices that fills the mesh."
    )


def test_smallest_sizes_are_possible():
    found = estimate_scaled(record(), clients=1, model=1e-6, chunk_size=1, devices=2)
    assert (found.clients, found.model, found.devices) == (1, 1e-6, 2)
    alone = estimate_scaled(record(on=mesh(model=2), program=plan(axes=())), devices=2)
    assert (alone.devices, alone.clients_per_device) == (2, 8)


def test_placement_of_an_estimate():
    pods = PlacementRecord(name="pods", size=4)
    inner = stage(0, "clients", path="1.0", placement="clients")
    nested = plan(stages=(stage(0, "reduce"), stage(1, "clients", placement="pods", body=(inner,)))).replace(
        placements=(pods,)
    )
    expected = PlacementRecord(name="clients", size=8, mesh_axes=("clients",))
    assert scaled_placement(record(program=nested)) == expected
    assert scaled_placement(record(program=nested, on=None)) == pods
    assert scaled_placement(record(program=nested, on=mesh(model=2))) == pods
    outer = nested.replace(placements=(pods.replace(mesh_axes=("model",)),))
    assert scaled_placement(record(program=outer)).name == "pods"


def test_a_program_without_clients_is_refused():
    with pytest.raises(InspectionError) as caught:
        estimate_scaled(record(program=plan().replace(placements=())))
    assert str(caught.value) == (
        "`estimate_scaled` was given 'toy', which has no clients. `estimate_scaled` changes the number of clients and "
        "their devices: pass the record of a program with a placement."
    )


# ---- work


@pytest.mark.parametrize(
    ("changes", "clients", "server"),
    [
        ({}, 1.0, 1.0), ({"clients": 16}, 2.0, 1.0), ({"clients": 9}, 5 / 4, 1.0), ({"devices": 8}, 0.5, 1.0),
        ({"model": 3.0}, 3.0, 3.0), ({"clients": 32, "model": 0.5}, 2.0, 0.5), ({"chunk_size": 1}, 1.0, 1.0),
    ],
)  # fmt: skip
def test_work_of_clients_scales_with_those_of_a_device_and_all_work_with_the_model(changes, clients, server):
    found = stages(estimate_scaled(record(collectives=()), **changes))
    for path, compute, memory, factor in (
        ("1", 4.0, 1.0, clients),
        ("1.0", 0.0, 2.0, clients),
        ("3", 3.0, 0.0, server),
    ):
        one, together = found[path], max(compute, memory)
        counts = one.flops, one.accessed_bytes, one.elementwise_flops
        assert counts == pytest.approx((compute * 1e12 * factor, memory * 1e10 * factor, compute * 10 * factor))
        times = one.compute_seconds, one.memory_seconds, one.operation_seconds
        assert times == pytest.approx((compute * factor, memory * factor, together * factor))
    total = estimate_scaled(record(collectives=()), **changes).cost.seconds
    assert total == pytest.approx((4.0 + 2.0) * clients + 3.0 * server)


def test_unknown_work_stays_unknown():
    unknown = work("a", "1", compute=1.0, memory=1.0, executions=None)
    found = estimate_scaled(record(instructions=(unknown,)), clients=16)
    one = stages(found)["1"]
    assert (one.flops, one.accessed_bytes, one.elementwise_flops, found.cost.seconds) == (None,) * 4
    assert (one.compute_seconds, one.memory_seconds, one.operation_seconds) == (None,) * 3


@pytest.mark.parametrize(("changes", "factor"), [({"clients": 16}, 2.0), ({"model": 3.0}, 3.0)])
def test_hidden_time_scales_with_the_work(changes, factor):
    # the gather of 1000 bytes and a step of 1 µs hides completely
    start, done = work("gather", "1", opcode="all-gather-start"), work("d", "1", opcode="all-gather-done")
    hidden = (start, *INSTRUCTIONS, done.replace(operands=("gather",)))
    collectives = (COLLECTIVES[0].replace(asynchronous=True),)
    found = stages(estimate_scaled(record(instructions=hidden, collectives=collectives), **changes))
    assert found["1"].hidden_seconds == pytest.approx(2e-6 * factor)


# ---- collectives


@pytest.mark.parametrize(
    ("changes", "gather", "reduce", "server"),
    [
        ({}, 1000, 800, 20),
        ({"clients": 16}, 2000, 800, 20),  # all clients of a device at once
        ({"clients": 32, "chunk_size": 2}, 8 * 500, 800, 20),
        ({"chunk_size": 2}, 2 * 500, 800, 20),
        ({"devices": 8}, 500, 2 * 800 * 3 / 4, 20),
        ({"devices": 16}, 250, 2 * 800 * 7 / 8, 20),
        ({"devices": 2}, 2000, None, 20),
        ({"model": 3.0}, 3000, 2400, 60),
    ],
)
def test_bytes_sent(changes, gather, reduce, server):
    found = stages(estimate_scaled(record(), **changes))
    assert found["1"].collective_bytes == pytest.approx({"model": gather})
    assert found["2"].collective_bytes == pytest.approx({"clients": reduce} if reduce else {})
    assert found["3"].collective_bytes == pytest.approx({"model": server})


@pytest.mark.parametrize(
    ("changes", "gather", "reduce"),
    [({}, 1 + 1, 0.8 + 2), ({"chunk_size": 2}, 2 * (0.5 + 1), 0.8 + 2), ({"devices": 8}, 0.5 + 1, 1.2 + 6)],
)
def test_seconds_of_scaled_collectives(changes, gather, reduce):
    """In µs: kilobytes at 1 GB/s, and a step per neighbour on the way, twice for a sum."""
    found = stages(estimate_scaled(record(), **changes))
    assert found["1"].collective_seconds == pytest.approx(gather * 1e-6)
    assert found["2"].collective_seconds == pytest.approx(reduce * 1e-6)


def test_groups_that_change_lose_their_coordinates():
    chip = CHIP.replace(topology="torus3d")
    ring = COLLECTIVES[1].replace(group_size=4, torus=((4, True),), wire_bytes=1200.0)
    given = record(collectives=(ring,), chip=chip, on=mesh(clients=4))
    same, more = estimate_scaled(given), estimate_scaled(given, devices=6)
    # a ring of 4 has two lanes and 2 · 2 steps; 6 devices form an open line with 2 · 5 steps
    assert stages(same)["2"].collective_seconds == pytest.approx(1200 / 2 / 1e9 + 4e-6)
    assert stages(more)["2"].collective_seconds == pytest.approx(2 * 800 * 5 / 6 / 1e9 + 10e-6)


def test_unknown_collectives_stay_unknown():
    found = estimate_scaled(record(collectives=(COLLECTIVES[1].replace(wire_bytes=None),)), devices=8)
    assert (stages(found)["2"].collective_seconds, found.cost.seconds) == (None, None)
    looped = estimate_scaled(record(collectives=(COLLECTIVES[0].replace(executions=None),)), chunk_size=2)
    assert (stages(looped)["1"].collective_seconds, stages(looped)["1"].collective_bytes) == (None, {"model": 0.0})


def leaf(size, held):
    return LeafShardingRecord(
        path="y", shape=(2,), dtype="float32", spec=((),), shard_shape=(2,), size_bytes=size, bytes_per_device=held,
        replication=1, shards=(),
    )  # fmt: skip


SUM = {"opcode": "add", "stage": "2"}


@pytest.mark.parametrize(
    ("outputs", "instructions", "payload"),
    [
        ((), (), 800),
        ((leaf(800, 200),), (), 200),  # of four devices of another axis
        ((leaf(800, 300),), (), 800),  # no equal part
        ((leaf(700, 200),), (), 800),
        ((leaf(800, 300),), (work("s", **SUM, size_bytes=400),), 400),
        ((), (work("s", **SUM, size_bytes=400), work("t", **SUM, size_bytes=200)), 400),
        ((), (work("s", "2", opcode="parameter", size_bytes=400),), 800),
        ((), (work("s", "2", opcode="get-tuple-element", size_bytes=400),), 800),
        ((), (work("s", "1", opcode="add", size_bytes=400),), 800),
        ((), (work("s", **SUM, size_bytes=100),), 800),
    ],
)
def test_a_reduction_that_one_share_did_not_send_has_the_bytes_of_a_device(outputs, instructions, payload):
    given = record(on=mesh(clients=1, model=4), collectives=(), outputs=outputs, instructions=instructions)
    found = stages(estimate_scaled(given, devices=16))
    assert found["2"].collective_bytes == {"clients": 2 * payload * 3 / 4}
    assert all(not each.collective_bytes for path, each in found.items() if path != "2")
    assert found["2"].collective_seconds == pytest.approx(1.5 * payload / 1e9 + 6e-6)


def test_reductions_are_added_only_where_one_share_becomes_several():
    alone = mesh(clients=1, model=2)
    assert all(not each.collective_bytes for each in estimate_scaled(record(on=alone, collectives=())).cost.stages)
    twice = estimate_scaled(record(on=mesh(clients=2), collectives=()), devices=4)
    assert all(not each.collective_bytes for each in twice.cost.stages)
    assert stages(estimate_scaled(record(on=None, collectives=()), devices=2))["2"].collective_bytes == {}


def test_a_plan_is_scaled_like_a_module():
    found = stages(estimate_scaled(record(compiled=False, on=mesh(clients=2)), clients=16, devices=4))
    # each client has 10 FLOPs, 4 clients are on a device before and after
    assert (found["1"].flops, found["1"].accessed_bytes) == (40.0, 20.0)
    assert found["2"].collective_bytes == {"clients": 2 * 800 * 3 / 4}


# ---- memory


@pytest.mark.parametrize(
    ("changes", "arguments", "outputs", "temporaries", "peak"),
    [
        # Of 2000 bytes of arguments, 3200 / 8 · 4 = 1600 are rows of clients; of 1000 bytes of results, 1600 / 2 = 800.
        ({}, 2000, 1000, 400, 3000),
        ({"clients": 16}, 400 + 3200, 200 + 1600, 800, 3000 + 1600 + 800 + 400),
        ({"devices": 8}, 400 + 800, 200 + 400, 200, 3000 - 800 - 400 - 200),
        ({"model": 3.0}, 1200 + 1600, 3000, 1200, 3000 + 800 + 2000 + 800),
        ({"chunk_size": 1}, 2000, 1000, 100, 2700),
        ({"clients": 16, "chunk_size": 4}, 3600, 1800, 400, 3000 + 1600 + 800),
    ],
)
def test_memory_scales_by_its_parts(changes, arguments, outputs, temporaries, peak):
    memory = estimate_scaled(record(), **changes).memory
    found = (memory.argument_bytes, memory.output_bytes, memory.temporary_bytes, memory.peak_bytes)
    assert found == (arguments, outputs, temporaries, peak)
    assert memory.notes == (
        "estimated from the compiler's values at the original size: the peak may be off by a third",
    )


def test_the_peak_is_never_below_the_arguments():
    small = MEMORY.replace(temporary_bytes=10_000, peak_bytes=2500)
    assert estimate_scaled(record(memory=small), chunk_size=1).memory.peak_bytes == 2000


@pytest.mark.parametrize("part", ["argument_bytes", "output_bytes", "temporary_bytes", "peak_bytes"])
def test_memory_of_an_unknown_part_is_unknown(part):
    assert estimate_scaled(record(memory=MEMORY.replace(**{part: None}))).memory is None
    assert estimate_scaled(record(memory=MEMORY.replace(**{part: 0}))).memory is not None
    assert estimate_scaled(record(compiled=False)).memory is None


LARGE = CHIP.replace(name="large", hbm_bytes=20_001, devices_per_chip=2)


@pytest.mark.parametrize(
    ("available", "chip", "on", "expected", "fits"),
    [
        (9000, CHIP, None, 9000, True), (3000, CHIP, None, 3000, True), (2999, CHIP, None, 2999, False),
        (9000, CHIP, CHIP, 9000, True), (9000, CHIP, LARGE, 10_000, True), (9000, None, LARGE, 10_000, True),
        (None, LARGE, None, 10_000, True), (0, LARGE, None, 10_000, True), (None, None, None, None, None),
        (2000, CHIP, LARGE, 10_000, True), (9000, None, None, 9000, True),
    ],
)  # fmt: skip
def test_available_memory_is_that_of_the_chip(available, chip, on, expected, fits):
    memory = estimate_scaled(record(memory=MEMORY.replace(available_bytes=available), chip=chip), on=on).memory
    assert (memory.available_bytes, memory.fits) == (expected, fits)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        # After twice the clients: rows of clients double, everything else stays.
        (plan(), 400 + 2 * 1600),
        (plan(stages=(STAGES[1],)), 400 - 32 + 2 * 1632),  # without a broadcast, 64 bytes of weights are 8 rows as well
        (plan(stages=STAGES[:1]), 2000),
        (plan(stages=(STAGES[1].replace(consumes=(0,)),)), 2000),
        (plan(stages=(STAGES[1].replace(placement="pods"),)), 2000),
        (plan(stages=(STAGES[1].replace(inputs=(DATA.replace(shape=(9, 10)),)),)), 2000),
        (plan(stages=(), kept_local=(value("x", 10),)), 400 + 2 * 1600),
        (plan(inputs=(DATA.replace(size_bytes=40_000),)), 4000),  # at most all arguments
    ],
)
def test_arguments_with_one_row_per_client_grow(program, arguments):
    assert estimate_scaled(record(program=program), clients=16).memory.argument_bytes == arguments


@pytest.mark.parametrize(
    ("program", "outputs"),
    [
        (plan(), 200 + 2 * 800), (plan(outputs=(RESULT,)), 1000), (plan(stages=(STAGES[2],)), 1000),
        (plan(stages=(STAGES[1].replace(placement="pods"),)), 1000),
        (plan(stages=(STAGES[1].replace(outputs=(ROWS.replace(shape=(9, 5)),)),)), 1000),
        (plan(outputs=(ROWS.replace(dtype="int32"),)), 1000), (plan(outputs=(ROWS.replace(size_bytes=9999),)), 2000),
    ],
)  # fmt: skip
def test_results_with_one_row_per_client_grow(program, outputs):
    assert estimate_scaled(record(program=program), clients=16).memory.output_bytes == outputs


# ---- the chip


@pytest.mark.parametrize(
    ("on", "chip", "devices"),
    [("v5e", "v5e", 4), ("v5e:4x4", "v5e", 16), ("v5e-16", "v5e", 16), ("h100:2x8@8x400G", "h100@8x400G", 16),
     ("h100@8x400G", "h100@8x400G", 4)],
)  # fmt: skip
def test_a_name_is_a_chip_or_a_target_that_states_its_devices(on, chip, devices):
    found = estimate_scaled(record(), on=on)
    assert (found.cost.chip, found.devices) == (known_chip(chip), devices)
    assert estimate_scaled(record(), on=on, devices=6).devices == 6


def test_a_chip_may_be_given_as_a_record_or_be_that_of_the_program():
    assert estimate_scaled(record(), on=LARGE).cost.chip == LARGE
    assert estimate_scaled(record()).cost.chip == CHIP
    without = estimate_scaled(record(chip=None))
    assert (without.cost.chip, without.cost.seconds) == (None, None)
    assert estimate_scaled(record().replace(cost=None)).cost.chip is None
    assert without.cost.error_bar == "error unknown: estimated for another number of clients or devices"


@pytest.mark.parametrize(("on", "text"), [("cpu", "'cpu'"), (5, "5"), (["x" * 100], "['" + "x" * 78)])
def test_a_machine_without_rates_is_refused(on, text):
    with pytest.raises(MeshError) as caught:
        estimate_scaled(record(), on=on)
    assert str(caught.value) == (
        f"`estimate_scaled` was given on={text}. Times are estimated from the published or calibrated rates of a chip: "
        'pass a chip such as "v5p", a target such as "v5p:4x4x4", "here", or a `ChipRecord`.'
    )


# ---- assumptions


def before(number=8, came="the compiled module of"):
    return f"estimated, not compiled: scaled from {came} toy with {number} clients"


def fullest(after, number=4):
    return (
        f"the fullest device has {after} clients instead of {number}, and work on the clients scales with this number; "
        "work on the server is unchanged"
    )


def uneven(clients, devices):
    return (
        f"{clients} clients do not divide evenly among {devices} devices, so the program also sends rows to the "
        "devices that compute them; these bytes and their copies in the peak are not counted"
    )


def chunks(after, number=4):
    return (
        f"{after} clients at once instead of {number}: temporaries scale with this number, FLOPs and memory traffic "
        "do not"
    )


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, ()),
        ({"clients": 10}, (fullest(5), chunks(5))),
        ({"clients": 9}, (fullest(5), uneven(9, 2), chunks(5))),
        ({"devices": 8}, (fullest(2), "collectives over clients use rings of 4 instead of 2", chunks(2))),
        ({"model": 2.5}, ("2.5 times the parameters with the same examples: FLOPs, memory traffic and sent bytes grow "
                          "2.5 times (as with more layers; wider layers need fewer activations)",)),
        ({"chunk_size": 2}, (chunks(2),)),
        ({"clients": 16, "devices": 8, "chunk_size": 2},
         (fullest(4), "collectives over clients use rings of 4 instead of 2", chunks(2))),
    ],
)  # fmt: skip
def test_assumptions_of_an_estimate(changes, texts):
    assert estimate_scaled(record(), **changes).cost.assumptions == (before(), *texts, TEXT)


def test_assumptions_of_a_plan_and_of_a_record_without_costs():
    found = estimate_scaled(record(compiled=False).replace(cost=None))
    assert found.cost.assumptions == (before(came="the plan of"),)
