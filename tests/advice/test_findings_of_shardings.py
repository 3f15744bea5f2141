"""Complete findings about placement, links, clients and shards, with figures derived by hand."""

import pytest

from tests.advice.hand_written import GATHER, changed, compiled, leaf, line, mesh, sent, torus, value, with_module
from workbench.advice._chunks import chunk_size, small_chunks
from workbench.advice._evidence import with_evidence
from workbench.advice._links import crossed_links, device_order, slow_axis
from workbench.advice._partitioning import gather_outside_checkpoint
from workbench.advice._sharding import (
    alike,
    all_of,
    best_spec,
    empty_slots,
    large_replicated,
    named,
    unbalanced_clients,
    uneven_shards,
    unused_axis,
)
from workbench.cost import known_chip, seconds_of_collective
from workbench.errors import InspectionError
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.compiled import ClientCostRecord, CostRecord, InstructionRecord
from workbench.records.hardware import ClientRange
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord
from workbench.records.sharding import PlannedCollectiveRecord, PropagationRecord

W = leaf("w", (256, 512))  # 512 KiB on each of 8 devices
X = leaf("x", (256, 512), (("data",),), copies=2, parts=4)  # 128 KiB


def replicated(*leaves, memory=None, **fields):
    return compiled(inputs=leaves or (W, X), memory=memory, **fields)


def argument_gain(saved):
    """The estimated gain, with the 640 KiB of both arguments before the change."""
    how = "counted from the shapes and specs"
    return GainRecord(quantity="argument bytes", before=655360.0, after=655360.0 - saved, verified=False, how=how)


LARGE = FindingRecord(
    rule="large replicated array",
    what="`w` (512 KiB) is stored in full on 8 devices.",
    why="No spec shards the array, and nothing in the program requests a shard of the array.",
    change="Shard `w` as `P(None, 'data')`, over `data`.",
    evidence=("80 % of one device's argument bytes", "sharded over data, one device would store 128 KiB"),
    weight=0.8,
    specs={"w": ((), ("data",))},
    leaves=("w",),
    axes=("data",),
    size_bytes=524288.0,
    gain=argument_gain(3 * 131072.0),
)
PART = FindingRecord(
    rule="large replicated array",
    what="`x` (512 KiB) is stored in parts of 128 KiB, each on 2 devices.",
    why="The spec omits `model`, and the program needs more than half of the memory.",
    change="Shard `x` as `P('data', 'model')`, over `model`.",
    evidence=("20 % of one device's argument bytes", "sharded over model, one device would store 64 KiB"),
    weight=0.2,
    specs={"x": (("data",), ("model",))},
    leaves=("x",),
    axes=("model",),
    size_bytes=131072.0,
    gain=argument_gain(65536.0),
)


def test_large_replicated_array():
    assert list(large_replicated(replicated())) == [LARGE]
    assert list(large_replicated(replicated(memory={"available_bytes": 100, "peak_bytes": 51}))) == [LARGE, PART]
    assert list(large_replicated(replicated(memory={"available_bytes": 100, "peak_bytes": 50}))) == [LARGE]
    assert list(large_replicated(replicated(memory={"available_bytes": 0, "peak_bytes": 51}))) == [LARGE]
    assert list(large_replicated(replicated(memory={"available_bytes": 100}))) == [LARGE]


def test_parts_of_a_group_are_those_of_its_parameter():
    moment = X.replace(path="state['mu']['w']", dtype="bfloat16", size_bytes=262144, bytes_per_device=65536)
    given = replicated(X.replace(path="params['w']"), moment, memory={"available_bytes": 100, "peak_bytes": 51})
    [finding] = large_replicated(given)
    assert finding.what == (
        "`params['w']` and 1 similar arguments (768 KiB together) are stored in parts of 128 KiB, each on 2 devices."
    )
    assert (finding.size_bytes, finding.weight) == (196608.0, 1.0)
    assert finding.evidence[1] == "sharded over model, one device would store 96 KiB"


ODD = leaf("w", (257, 129))
NOT_LARGE = {
    "unknown inputs": compiled(),
    "no mesh": replicated(mesh=None),
    "on one device": replicated(W.replace(replication=1)),
    "no dimension divides": replicated(ODD),
    "an axis of one device": replicated(ODD, mesh=mesh(data=1, model=8)),
    "below 64 KiB": replicated(leaf("w", (128, 127))),
    "below a tenth": replicated(leaf("w", (128, 128)), X, X.replace(path="y", bytes_per_device=458753)),
}


@pytest.mark.parametrize("program", NOT_LARGE.values(), ids=NOT_LARGE)
def test_other_arrays_are_no_finding(program):
    assert list(large_replicated(program)) == []


def test_smallest_array_that_is_reported_has_64_kib_and_a_tenth_of_the_bytes():
    least = leaf("w", (128, 128))
    assert len(list(large_replicated(replicated(least)))) == 1
    rest = X.replace(path="y", bytes_per_device=458752)  # with x, nine times the bytes of w
    assert [f.weight for f in large_replicated(replicated(least, X, rest))] == [0.1]
    many = [leaf(name, (256, 256 + 64 * at)) for at, name in enumerate("abcd")]
    assert [f.leaves for f in large_replicated(replicated(*many))] == [("d",), ("c",), ("b",)]


def test_groups_with_the_same_sizes_are_one_finding():
    shapes = {"query": (128, 4, 32), "out": (4, 32, 128), "key": (128, 4, 32), "bias": (256, 128)}
    leaves = [leaf(f"p['block_{at}']['{name}']", shapes[name]) for name in shapes for at in range(2)]
    other, merged = large_replicated(replicated(*leaves))
    assert merged.change == (
        "Shard `p['block_*']['query']` and 1 similar, `p['block_*']['key']` and 1 similar as `P('data')`; "
        "`p['block_*']['out']` and 1 similar as `P(None, None, 'data')`, over `data`."
    )
    assert len(merged.leaves) == 6
    assert merged.specs["p['block_1']['out']"] == ((), (), ("data",))
    assert merged.size_bytes == 6 * 128 * 128 * 4
    assert merged.gain.before - merged.gain.after == 6 * 128 * 128 * 4 * 3 / 4
    assert other.leaves == ("p['block_0']['bias']", "p['block_1']['bias']")


def in_shard_map(part=(1, 64, 64), operation="manual_computation", operands=("%arg1", "%arg0"), **axes):
    values = [
        value("%arg0", "input", (4, 64, 64), ((),) * 3, op_name="w"),
        value("%3#0", operation, (8,), ((),), operands),
        value("%3.0#1", "manual_computation input", part, ((),) * len(part)),
    ]
    return replicated(leaf("w", (4, 64, 64)), propagation=values, mesh=mesh(**axes))


def test_array_that_a_shard_map_splits_is_sharded_as_there():
    [finding] = large_replicated(in_shard_map())
    assert finding.specs == {"w": (("data",), (), ())}
    assert finding.why == "The array is passed unsharded, but a `jax.shard_map` of the program splits it."
    others = [
        in_shard_map((4, 64, 64)), in_shard_map((1, 64)), in_shard_map((1, 16, 64)), in_shard_map(operation="add"),
        in_shard_map(operands=("%arg1", "%arg2")), in_shard_map(operands=("%arg0", "%arg1")),
    ]  # fmt: skip
    assert [f.specs["w"] for program in others for f in large_replicated(program)] == [((), ("data",), ())] * 6
    [equal] = large_replicated(in_shard_map(data=4, model=4))  # both axes could split the dimension
    assert equal.why.startswith("No spec shards the array")


def test_arguments_with_one_spec_are_one_group():
    names = ("state['params']['w']", "state['trace']['w']", "x")
    leaves = [leaf(name, (64, 64)) for name in names]
    assert [[one.path for one in group] for group in alike(replicated(*leaves).record)] == [[*names[:2]], ["x"]]
    leaves[1] = leaves[1].replace(spec=(("data",),))
    assert [len(group) for group in alike(replicated(*leaves).record)] == [1, 1, 1]
    assert alike(compiled().record) == []


def test_groups_of_arguments_in_words():
    group = [W.replace(path=name) for name in "abcde"]
    assert named(group[:1]) == "`a` (512 KiB) is"
    assert named(group[:2]) == "`a` and 1 similar arguments (1 MiB together) are"
    assert [all_of(group[:count]) for count in range(1, 6)] == [
        "`a`", "`a` and `b`", "`a`, `b` and `c`", "`a`, `b`, `c` and 1 more", "`a`, `b`, `c` and 2 more",
    ]  # fmt: skip


def test_spec_for_a_free_axis_keeps_the_other_dimensions():
    assert best_spec(leaf("w", (3, 8, 16), ((), (), ("data",))), {"data": 4, "model": 2}) == (
        "model", ((), ("model",), ("data",)),
    )  # fmt: skip
    assert best_spec(leaf("w", (16, 8, 16)), {"data": 4}) == ("data", (("data",), (), ()))  # the first of equal ones


def test_unused_mesh_axis():
    expected = FindingRecord(
        rule="unused mesh axis",
        what="Nothing uses the mesh axis `data`: groups of 4 devices do the same work.",
        why="No argument is sharded over this axis, and no operation of the program uses the axis.",
        change='Shard the batch or the parameters over `data`, as `P("data")`, or remove the axis from the mesh.',
        evidence=("mesh: data=4, model=2, one=1",),
        weight=0.75,
        axes=("data",),
    )
    axes = mesh(data=4, model=2, one=1)
    by_argument = compiled(inputs=[leaf("w", (8,), (("model",),))], mesh=axes)
    by_value = compiled(propagation=[value("%0", "add", (8,), (("model",),))], mesh=axes)
    plan = PlanRecord(name="step", placements=(PlacementRecord(name="model", size=2),), stages=())
    by_clients = compiled(plan=plan, mesh=axes)
    by_collective = changed(compiled(GATHER, mesh=axes), axes=("model[2 of 4]",))
    for program in (by_argument, by_value, by_clients, by_collective):
        assert list(unused_axis(program)) == [expected]
    assert [f.axes for f in unused_axis(compiled(mesh=axes))] == [("data",), ("model",)]
    assert list(unused_axis(compiled(mesh=None))) == []


CLIENTS = StageRecord(index=0, path="0", kind="clients", name="train", clients=4)
PLACED = PlanRecord(
    name="step",
    placements=(PlacementRecord(name="clients", size=4, mesh_axes=("data",)),),
    stages=(CLIENTS.replace(kind="reduce", clients=9), CLIENTS),
)


def clients(padding, waiting, apart, sizes=(1, 16, 2, 1)):
    costs = [
        ClientCostRecord(client=at, device_id=0, flops=0.0, accessed_bytes=0.0, examples=size)
        for at, size in enumerate(sizes)
    ]
    cost = CostRecord(
        stages=(), clients=tuple(costs), padding_waste=padding, lockstep_waste=waiting, imbalance_waste=apart
    )
    return compiled(cost=cost, plan=PLACED)


UNBALANCED = FindingRecord(
    rule="unbalanced clients",
    what="25 % of the clients' work is padding, since clients differ in size: from 1 to 16 examples, median 2.",
    why="Every client is padded to the size of the largest client. Clients in the same chunk of a device run in "
    "lockstep, and all devices wait for the slowest device before they reduce.",
    change="Cap a round's examples (`wb.data.pad_clients(..., examples=…)`), or group clients by size, so that few "
    "clients are padded to the size of the largest client.",
    evidence=(
        "4 clients",
        "25 % of the clients' work is padding",
        "Clients that run together wait for the slowest client, which takes 10 % longer than their mean",
        "The slowest device takes 5 % longer than the mean of all devices",
    ),
    weight=0.25,
    axes=("data",),
)


def test_unbalanced_clients():
    assert list(unbalanced_clients(clients(0.25, 0.1, 0.05))) == [UNBALANCED]
    [waiting] = unbalanced_clients(clients(0.1, 1.0, None, ()))
    assert waiting.what == (
        "Clients that run together wait for the slowest client, which takes 100 % longer than their mean, since "
        "clients differ in size."
    )
    assert waiting.change.startswith("Order clients by size")
    assert waiting.weight == 0.5  # of the time, 1 / (1 + 1) is waiting
    [apart] = unbalanced_clients(clients(None, 0.0, 3.0))
    assert apart.change.startswith("Assign clients by size")
    assert apart.what.startswith("The slowest device takes 300 % longer")
    assert apart.weight == 0.75
    [padded] = unbalanced_clients(clients(0.495, 1.0, 0.0))  # nearly equal shares: padding is the cause
    assert padded.what.startswith("50 % of the clients' work is padding")
    [not_padded] = unbalanced_clients(clients(0.48, 1.0, 0.0))
    assert not_padded.change.startswith("Order clients by size")


@pytest.mark.parametrize(
    ("shares", "count"),
    [
        ((0.2, 0.3, 0.3), 0), ((0.21, 0.0, 0.0), 1), ((0.0, 0.31, 0.0), 1), ((0.0, 0.0, 0.31), 1),
        ((0.9, None, 0.9), 0),
    ],
)  # fmt: skip
def test_least_waste_of_clients(shares, count):
    assert len(list(unbalanced_clients(clients(*shares)))) == count
    assert list(unbalanced_clients(compiled())) == []


def slots(*stops, slots_per_device, copies=1):
    ranges, start = [], 0
    for device, stop in enumerate(stops):
        stop = max(start, stop)
        padding = slots_per_device - (stop - start)
        ranges += [ClientRange(placement="clients", device_id=device, start=start, stop=stop, padding=padding)] * copies
        start = stop
    return compiled(mesh=mesh().replace(clients=tuple(ranges)))


def test_empty_slots_of_clients():
    assert list(empty_slots(slots(2, 4, 6, 8, 9, 9, 9, 9, slots_per_device=2))) == [
        FindingRecord(
            rule="uneven clients",
            what="9 `clients` on 8 devices leave 7 of 16 slots empty.",
            why="Every device processes all of its 2 slots, including the empty slots.",
            change="Use a multiple of 8 `clients`, such as 8 or 16.",
            evidence=("2 slots on each of 8 devices, 7 empty",),
            weight=7 / 16,
            axes=("clients",),
        )
    ]
    [groups] = empty_slots(slots(3, 6, 9, 9, slots_per_device=3, copies=2))
    assert groups.what == "9 `clients` on 4 groups of devices leave 3 of 12 slots empty."
    assert groups.change == "Use a multiple of 4 `clients`, such as 8 or 12."
    [few] = empty_slots(slots(1, 2, 3, 3, slots_per_device=1))
    assert few.change == "Use a multiple of 4 `clients`, such as 4."


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (slots(5, 9, slots_per_device=5), 1), (slots(10, 19, slots_per_device=10), 0),
        (slots(2, 4, slots_per_device=2), 0), (compiled(mesh=None), 0), (compiled(), 0),
    ],
)  # fmt: skip
def test_least_share_of_empty_slots_is_a_tenth(program, count):
    assert len(list(empty_slots(program))) == count


def uneven(*values, **fields):
    return compiled(propagation=values, **fields)


ROWS = value("%5", "add", (5, 1024), (("data",), ()), at=3)


def test_uneven_shards():
    expected = FindingRecord(
        rule="uneven shards",
        what="Dimension 0 of a value with shape [5, 1024] has 5 entries, which cannot be divided evenly among 4 "
        "devices: 38 % of the stored entries are padding.",
        why="Every device holds 2 entries, including padding.",
        change="Make the dimension 8 or 4, a multiple of 4, or shard another dimension.",
        evidence=("%5: P('data') on data=4",),
        weight=0.375,
        sources=(line(3),),
        axes=("data",),
    )
    assert list(uneven_shards(uneven(ROWS, ROWS.replace(name="%6")))) == [expected]
    wide = ROWS.replace(name="%7", shape=(2048, 3), spec=((), ("data", "model")), source=None)
    other = ROWS.replace(name="%8", shape=(6, 1024), spec=(("data",),))
    first, second = uneven_shards(uneven(ROWS, wide, other))  # the two worst
    assert first.what.startswith("Dimension 1 of a value with shape [2048, 3] has 3 entries")
    assert first.change == "Make the dimension 8, a multiple of 8, or shard another dimension."
    assert (first.weight, first.sources, first.axes) == (0.625, (), ("data", "model"))
    assert first.evidence == ("%7: P(None, ('data', 'model')) on data=4, model=2",)
    assert second == expected


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (uneven(ROWS.replace(shape=(4095, 1))), 0),  # 4,095 entries
        (uneven(ROWS.replace(shape=(9, 512))), 1),  # a quarter of 12 slots is padding
        (uneven(ROWS.replace(shape=(35, 1024))), 0),  # 1 of 36
        (uneven(ROWS.replace(shape=(37, 1024))), 0),  # 3 of 40
        (uneven(ROWS.replace(shape=(17, 1024))), 1),  # 3 of 20
        (uneven(ROWS.replace(shape=(8, 1024))), 0),
        (uneven(ROWS.replace(shape=(1365, 3), spec=((), ("model",)))), 0),
        (uneven(ROWS.replace(shape=(1366, 3), spec=((), ("model",)))), 1),
        (uneven(ROWS, value("%9", "add", (20, 1024), ((), ()))), 1),
        (uneven(ROWS, value("%9", "add", (20, 1025), ((), ()))), 0),  # four times as large
        (uneven(ROWS.replace(spec=(("unknown",), ()))), 0),
        (uneven(ROWS.replace(shape=(8192,), spec=((), ("data",)))), 0),
        (uneven(ROWS, mesh=None), 0),
        (compiled(), 0),
    ],
)
def test_least_padding_of_shards(program, count):
    assert len(list(uneven_shards(program))) == count


def checkpointed(*gathers, constraints=2, peak=1 << 20, **fields):
    """Constraints of a recomputation on values f32[64, 64], of which propagation plans some gathers."""
    values = [value("%0", "optimization_barrier", (64, 64), (("data",), ()))]
    for at in range(constraints):
        given = {"op_name": "remat/rematted_computation/keep"} | fields
        values.append(
            value(f"%{at + 1}", "sharding_constraint", (64, 64), ((), ("model",)), ("%0",), at=at + 5, **given)
        )
    collectives = [
        PlannedCollectiveRecord(kind=kind, axes=("data",), shape=(64, 64), dtype="f32", size_bytes=16384, op_name=name)
        for kind, name in gathers
    ]
    record = PropagationRecord(values=tuple(values), collectives=tuple(collectives))
    return compiled(propagation=record, memory={"peak_bytes": peak})


OUTSIDE = ("all-gather", "jit(f)/keep")
INSIDE = ("all-gather", "remat/rematted_computation/keep")


def test_gather_before_the_checkpoint():
    [finding] = gather_outside_checkpoint(checkpointed(OUTSIDE, peak=32768))
    assert finding == FindingRecord(
        rule="gather before the checkpoint",
        what="2 gathered copies of shape [64, 64] (16 KiB together) are kept for the backward pass, although "
        "`jax.checkpoint` should repeat the gather.",  # each in two shards of 8 KiB
        why="The constraint requests the gather, but only the compiler inserts it. `jax.checkpoint` sees the traced "
        "program, which has no gather, so the gathered copies are kept.",
        change="Write the gather into the program: `jax.lax.all_gather` inside `jax.shard_map`, called in the "
        "checkpointed function. The checkpoint's policy then covers the gather.",
        code="jax.shard_map(lambda part: jax.lax.all_gather(part, axis, axis=dim, tiled=True), …)",
        evidence=(
            "peak: 32 KiB",
            "2 constraints of the recomputation request a gather, but only 0 of these gathers are planned in the "
            "recomputation",
        ),
        weight=0.75,
        size_bytes=16384.0,
        sources=(line(5), line(6)),
        gain=GainRecord(
            quantity="peak bytes", before=32768.0, after=16384.0, verified=False,
            how="without these copies; the gathers are repeated in the backward pass",
        ),
    )  # fmt: skip
    [one] = gather_outside_checkpoint(checkpointed(OUTSIDE, INSIDE, peak=4096))
    assert one.what.startswith("1 gathered copy of shape [64, 64] (8 KiB together) is kept")
    assert one.evidence[1].startswith("2 constraints of the recomputation request a gather, but only 1 of")
    assert (one.weight, one.gain.after, one.sources) == (1.0, 0, (line(6),))


@pytest.mark.parametrize(
    "program",
    [
        compiled(), checkpointed(OUTSIDE, peak=None), checkpointed(), checkpointed(OUTSIDE, INSIDE, INSIDE),
        checkpointed(("all-reduce", "jit(f)/keep")), checkpointed(OUTSIDE, op_name="jit(f)/keep"),
        checkpointed(OUTSIDE, constraints=0),
    ],
)  # fmt: skip
def test_other_gathers_are_repeated(program):
    assert list(gather_outside_checkpoint(program)) == []


def test_axis_on_the_slow_network():
    [finding] = slow_axis(sent("model", "data", "model", "model", across=("model",)))
    assert finding == FindingRecord(
        rule="mesh axis on the slow network",
        what="`model` sends 72 KiB per device between slices; `data` sends 24 KiB within slices.",
        why="The mesh places `model` across slices, which only the data-centre network connects.",
        change="Place `data` across slices and `model` inside slices: build the mesh with "
        "`jax.experimental.mesh_utils.create_hybrid_device_mesh`.",
        evidence=("mesh: data=4, model=2", "one device sends 72 KiB between slices per call"),
        weight=0.75,
        instructions=("g0", "g2", "g3"),
        axes=("model", "data"),
    )
    [known] = slow_axis(sent("model", "data", "model", "model", across=("model",), chip="v5e"))
    chip = known_chip("v5e")
    assert known.evidence[2:] == (
        f"between slices {chip.dcn_bytes_per_second / 1e9:,.4g} GB/s per chip, within slices "
        f"{chip.link_bytes_per_second * chip.links / 1e9:,.4g} GB/s",
    )
    [many] = slow_axis(sent(*["model"] * 9, "data", across=("model",)))
    assert many.instructions == tuple(f"g{at}" for at in range(8))
    [several] = slow_axis(sent("a", "a", "a", "b", "d", "c", "d", across=("a", "b")))
    assert several.axes == ("a", "c")  # the busiest and the quietest
    assert several.evidence[1] == "one device sends 96 KiB between slices per call"


@pytest.mark.parametrize(
    "program",
    [
        sent("model", "model", "data", across=("model",)), sent("model", "data"), compiled(mesh=None),
        sent("model", "model", "model", across=("model",)),
    ],
    ids=["twice as busy", "one slice", "no mesh", "no other axis"],
)  # fmt: skip
def test_other_axes_are_not_on_the_slow_network(program):
    assert list(slow_axis(program)) == []


def test_order_of_devices():
    [finding] = device_order(torus(sent("model")))
    assert finding == FindingRecord(
        rule="order of devices",
        what="Devices that communicate over `model` are 3 links apart on average; in the order of `jax.make_mesh`, "
        "they would be 1 links apart.",
        why="The mesh was built from devices in an order that does not follow the torus. A message between devices of "
        "one group crosses links that other groups also use.",
        change="Let JAX order the devices: `jax.make_mesh(shape, names)` instead of "
        "`Mesh(devices.reshape(shape), names)`.",
        code='mesh = jax.make_mesh((4, 2), ("data", "model"))',
        evidence=(
            "bytes sent x links between the devices of a group: 72 KiB in this order, 24 KiB in JAX's order",
            "counted from the devices' positions in the torus; the compiler chooses the route inside a group",
        ),
        weight=1 - 1 / 3,
        instructions=("g0",),
        axes=("model",),
        gain=GainRecord(
            quantity="bytes sent x links", before=73728.0, after=24576.0, verified=False,
            how="estimated from the current collectives; the program was not recompiled for JAX's order",
        ),
    )  # fmt: skip
    [both] = device_order(torus(sent("data", "model", "data")))
    assert both.axes == ("model",)  # the axis with the most to save
    assert both.instructions == ("g1",)
    ring = changed(torus(sent("data"), data=8), kind="collective-permute")
    assert [f.code for f in device_order(ring)] == ['mesh = jax.make_mesh((8,), ("data",))']


def test_links_between_the_devices_of_a_group():
    program = torus(sent("model", "data"))
    assert crossed_links(program.record.mesh, program.module.collectives) == {
        ("model",): 24576.0 * 3, ("data",): pytest.approx(24576.0 * 10 / 6),
    }  # fmt: skip
    permute = changed(compiled(GATHER), kind="collective-permute").module.collectives
    assert crossed_links(program.record.mesh, permute) == {("data",): 24576.0 * 6 / 4}  # 1 + 1 + 1 + 3 links
    odd = [permute[0].replace(axes=axes) for axes in ((), ("unknown",))]
    assert crossed_links(program.record.mesh, odd) == {}
    assert crossed_links(mesh(), permute) is None
    alone = torus(sent("one"), data=8, one=1)
    assert crossed_links(alone.record.mesh, alone.module.collectives) == {("one",): 0.0}
    twice = torus(sent("model", "model"))
    assert crossed_links(twice.record.mesh, twice.module.collectives) == {("model",): 2 * 24576.0 * 3}


def test_order_that_is_hardly_worse_is_no_finding():
    assert list(device_order(torus(sent("data")))) == []  # rows of four, as in JAX's order
    assert list(device_order(torus(sent("data", "model"), range(8)))) == []
    assert list(device_order(sent("model"))) == list(device_order(compiled(mesh=None))) == []


def client_program(size=8, peak=100, recompile=None, chosen=8, fits=None, chunk="auto", stages=(CLIENTS,)):
    plan = PlanRecord(name="step", placements=(), stages=stages, chunk_size=size)
    options = {"recompile": recompile, "chunk_size": chosen}
    return compiled(CALLS[chunk], memory={"peak_bytes": peak, "fits": fits}, plan=plan, options=options)


ONE_CALL = "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8] parameter(0)\n"
CALLS = {"auto": ONE_CALL + "  ROOT %y = f32[8] negate(%x)\n}\n"}
CALLS["many"] = (
    ONE_CALL + "".join(f"  %y{i} = f32[8] negate(%x)\n" for i in range(3)) + "  ROOT %z = f32[8] negate(%x)\n}"
)


def other(asked, **programs):
    """Compiles the program that is listed for a chunk size, and notes the size."""

    def recompile(*, chunk_size):
        asked.append(chunk_size)
        program = programs.get(f"of_{chunk_size}")
        if program is None:
            raise InspectionError("no such program")
        return program.record

    return recompile


def rows(*pairs, verified=True):
    return tuple(
        GainRecord(quantity=name, before=float(a), after=float(b), verified=verified, how="compiled")
        for name, a, b in pairs
    )


def test_chunk_size_that_needs_less_memory():
    asked = []
    after = client_program(size=2, peak=80)
    program = client_program(recompile=other(asked, of_auto=after))
    [finding] = chunk_size(program)
    assert finding == FindingRecord(
        rule="chunk size",
        what="With chunks of 8 clients, the program needs 100 B; with chunks of 2, 80 B.",
        why="Values that are kept for the gradient are stored once for each client in the chunk.",
        change='Compile with `wb.jit(step, chunk_size=2)`, or keep `chunk_size="auto"`, which selects the same size.',
        code="step = wb.jit(step, chunk_size=2)",
        evidence=("4 clients in 1 stages", "peak memory 100 B before, 80 B after"),
        weight=1 - 80 / 100,
        gain=GainRecord(quantity="peak bytes", before=100.0, after=80.0, verified=True, how="compiled with 2"),
        compared=rows(("peak bytes", 100, 80), ("bytes sent", 0, 0), ("FLOPs", 0, 0), ("elementwise FLOPs", 8, 8)),
    )
    assert asked == ["auto"]
    together = client_program(recompile=other([], of_auto=after), chosen=None)
    [finding] = chunk_size(together)
    assert finding.what.startswith("With all clients of a device processed together, the program needs 100 B")


def test_chunk_size_of_one_is_tried_if_the_program_does_not_fit():
    asked = []
    large, small_one = client_program(size=4, peak=70, fits=False), client_program(size=1, peak=10)
    program = client_program(recompile=other(asked, of_auto=large, of_1=small_one), fits=False)
    [finding] = chunk_size(program)
    assert asked == ["auto", 1]
    assert finding.code == "step = wb.jit(step, chunk_size=1)"
    asked.clear()
    left = client_program(recompile=other(asked, of_1=small_one), fits=False, chosen="auto")
    [finding] = chunk_size(left)
    assert asked == [1]
    assert finding.change == "Compile with `wb.jit(step, chunk_size=1)`."
    asked.clear()
    fitting = client_program(
        recompile=other(asked, of_auto=client_program(size=4, peak=70), of_1=small_one), fits=False
    )
    [finding] = chunk_size(fitting)
    assert (asked, finding.code) == (["auto"], "step = wb.jit(step, chunk_size=4)")
    failed = client_program(recompile=other(asked, of_1=small_one), fits=False)
    assert [f.code for f in chunk_size(failed)] == ["step = wb.jit(step, chunk_size=1)"]


LESS = client_program(size=2, peak=80)
CHUNKS = {
    "not compiled again": client_program(),
    "no clients": client_program(recompile=other([], of_auto=LESS), stages=()),
    "unknown peak": client_program(recompile=other([], of_auto=LESS), peak=None),
    "too little saved": client_program(recompile=other([], of_auto=client_program(size=2, peak=81))),
    "unknown size": client_program(recompile=other([], of_auto=client_program(size=None, peak=10))),
    "unknown new peak": client_program(recompile=other([], of_auto=client_program(size=2, peak=None))),
    "automatic": client_program(recompile=other([], of_auto=LESS), chosen="auto"),
    "a rule of the user": client_program(recompile=other([], of_auto=LESS), chosen=lambda *_: 8),
    "failing": client_program(recompile=other([])),
}


@pytest.mark.parametrize("program", CHUNKS.values(), ids=CHUNKS)
def test_other_chunk_sizes_are_no_finding(program):
    assert list(chunk_size(program)) == []


def test_small_chunks():
    after = client_program(size=4, peak=None)
    program = client_program(size=2, chosen=2, chunk="many", recompile=other([], of_auto=after), peak=None)
    assert list(small_chunks(program)) == [
        FindingRecord(
            rule="small chunks",
            what="With chunks of 2 clients, a device starts 4 instructions per call; with chunks of 4, it starts 1.",
            why="Every chunk starts the client's instructions again, and a client this small does not keep a device "
            "busy.",
            change='Compile with `wb.jit(step, chunk_size=4)`, or keep `chunk_size="auto"`, which selects the same '
            "size.",
            code="step = wb.jit(step, chunk_size=4)",
            evidence=("4 clients in 1 stages", "peak memory 0 B before, 0 B after"),
            weight=0.375,
            gain=GainRecord(
                quantity="instructions started", before=4.0, after=1.0, verified=True, how="compiled with 4"
            ),
            compared=rows(("bytes sent", 0, 0), ("FLOPs", 0, 0), ("elementwise FLOPs", 32, 8)),
        )
    ]


def larger(size=4, fits=None, **fields):
    after = client_program(size=size, peak=50, fits=fits)
    given = {"size": 2, "chosen": 2, "chunk": "many"} | fields
    return client_program(**({"recompile": other([], of_auto=after)} | given))


LARGER = {
    "not compiled again": larger(recompile=None),
    "no clients": larger(stages=()),
    "automatic": larger(chosen="auto"),
    "unknown size": larger(size=None),
    "unknown own size": client_program(size=None, chosen=2, recompile=other([], of_auto=LESS)),
    "smaller": larger(size=2),
    "does not fit": larger(fits=False),
    "as many instructions": larger(chunk="auto"),
    "failing": larger(recompile=other([])),
}


@pytest.mark.parametrize("program", LARGER.values(), ids=LARGER)
def test_other_chunks_are_not_small(program):
    assert list(small_chunks(program)) == []


def test_half_of_the_instructions_is_enough():
    twice = ONE_CALL + "  %y = f32[8] negate(%x)\n  ROOT %z = f32[8] negate(%x)\n}"
    after = compiled(CALLS["auto"], plan=PlanRecord(name="step", placements=(), stages=(CLIENTS,), chunk_size=4))
    plan = PlanRecord(name="step", placements=(), stages=(CLIENTS,), chunk_size=3)
    given = {"recompile": other([], of_auto=after), "chunk_size": 3}
    assert [f.weight for f in small_chunks(compiled(twice, plan=plan, options=given))] == [0.25]


FINDING = FindingRecord(rule="r", what="w", why="y", change="c", evidence=(), weight=1.0)
NODES = tuple(
    CallNodeRecord(id=at, parent=None, kind=kind, name="f", file="model.py", line=number, instructions=inside)
    for at, kind, number, inside in [
        (0, "line", 7, {}), (1, "operation", 7, {"gather": 1.0}), (2, "call", 7, {}), (3, "function", 7, {}),
        (4, "line", 8, {}),
    ]
)  # fmt: skip


def test_evidence_of_a_finding_about_collectives():
    chip = known_chip("v5e")
    program = compiled(GATHER, cost=CostRecord(stages=(), chip=chip))
    program = with_module(changed(program, executions=3.0), call_tree=CallTreeRecord(made_from="compiled", nodes=NODES))
    found = with_evidence(FINDING.replace(instructions=("gather",)), program)
    once = seconds_of_collective(program.module.collectives[0], chip)
    assert found == FINDING.replace(
        instructions=("gather",), nodes=(1,), size_bytes=3 * 24576.0, axes=("data",), seconds=once * 3
    )
    unknown = with_evidence(FINDING.replace(instructions=("gather",)), changed(program, executions=None))
    assert unknown.seconds is None
    own = FINDING.replace(instructions=("gather",), size_bytes=5.0, axes=("model",), seconds=2.0, nodes=(4,), code="x")
    assert with_evidence(own, program) == own
    other_one = with_evidence(FINDING.replace(instructions=("other",)), program)
    assert (other_one.seconds, other_one.size_bytes) == (None, None)
    chipless = with_evidence(FINDING.replace(instructions=("gather",)), changed(compiled(GATHER)))
    assert chipless.seconds is None


def test_evidence_of_a_finding_with_lines_and_specs():
    program = with_module(compiled(), call_tree=CallTreeRecord(made_from="compiled", nodes=NODES))
    assert with_evidence(FINDING.replace(sources=(line(7),)), program).nodes == (0, 2)
    assert with_evidence(FINDING, with_module(program, call_tree=None)).nodes == ()
    many = tuple(NODES[0].replace(id=at) for at in range(9))
    program = with_module(program, call_tree=CallTreeRecord(made_from="compiled", nodes=many))
    assert with_evidence(FINDING.replace(sources=(line(7),)), program).nodes == tuple(range(8))
    gain = GainRecord(quantity="peak bytes", before=5.0, after=1.0, verified=False)
    assert with_evidence(FINDING.replace(gain=gain), program).size_bytes == 5.0
    assert with_evidence(FINDING.replace(gain=gain.replace(quantity="FLOPs")), program).size_bytes is None
    placed = with_evidence(FINDING.replace(specs={"w[0]": (("data",),), "w[1]": (("data",),)}), program)
    assert 'w = placed("w", w)' in placed.code
    assert "P('data')" in placed.code
    assert with_evidence(FINDING.replace(specs={"w": (("data",),)}), compiled(mesh=None)).code == ""


def test_instructions_that_a_device_starts():
    text = CALLS["many"].replace("ROOT %z = f32[8] negate(%x)", "%c = f32[] constant(1)\n  ROOT %z = f32[8] negate(%x)")
    program = compiled(text)
    assert program.started == 4
    extra = InstructionRecord(name="n", opcode="add", computation="main", shape="f32[8]", size_bytes=32, executions=2.5)
    instructions = program.module.instructions
    assert with_module(program, instructions=(*instructions, extra)).started == 6.5
    assert with_module(program, instructions=(*instructions, extra.replace(fused=True))).started == 4
    assert with_module(program, instructions=(*instructions, extra.replace(executions=None))).started is None
