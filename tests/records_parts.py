"""Meshes, shardings, modules and costs written by hand: parts of the programs in `records_examples`.

The numbers follow from a linear classifier of digits, `w f32[64,10]`, `b f32[10]`: 650 parameters, 2,600 bytes, and 128
examples per client, so one client's products cost 2 · 3 · 128 · 64 · 10 = 491,520 FLOPs.
"""

import inspect
import math
from typing import Any

from workbench import records
from workbench.records import Record
from workbench.records.compiled import (
    BufferRecord,
    ClientCostRecord,
    CollectiveRecord,
    CostRecord,
    InstructionRecord,
    MemoryRecord,
    ModuleRecord,
    StageCostRecord,
)
from workbench.records.hardware import AxisRecord, ChipRecord, ClientRange, DeviceRecord, MeshRecord
from workbench.records.program import SourceLine, ValueRecord
from workbench.records.sharding import LeafShardingRecord, ShardingRecord, ShardRecord

RECORD_CLASSES: list[type[Record]] = [
    thing
    for subject in vars(records).values()
    if inspect.ismodule(subject)
    for name, thing in sorted(vars(subject).items())
    if isinstance(thing, type) and issubclass(thing, Record) and thing.__module__ == subject.__name__
    if thing is not Record and not name.startswith("_")
]
PARAMETER_BYTES = 650 * 4
EXAMPLES = 128
CLIENT_FLOPS = 2.0 * 3 * EXAMPLES * 64 * 10


TOY_CHIP = ChipRecord(
    name="toy",
    peak_flops_per_second={"float32": 1e12},
    hbm_bytes=10**9,
    hbm_bytes_per_second=1e10,
    link_bytes_per_second=1e9,
    links=1,
    topology="switch",
)  # of round numbers; a test replaces what it is about


def toy_module(**fields: Any) -> ModuleRecord:
    """A module of which a test gives only what it is about."""
    attributed = dict.fromkeys(("attributed_instructions", "attributed_flops", "attributed_bytes"), 1.0)
    least = {"name": "toy", "platform": "cpu", "devices": 1, "instructions": (), "flops": 0.0, "accessed_bytes": 0.0}
    return ModuleRecord(**{**least, **attributed, "collectives": (), "memory": MemoryRecord(), **fields})


def source(line: int, function: str = "fedavg", file: str = "fedavg.py") -> SourceLine:
    return SourceLine(file=file, line=line, function=function)


def value(name: str, *shape: int, dtype: str = "float32", sharding: str | None = None) -> ValueRecord:
    return ValueRecord(name=name, shape=shape, dtype=dtype, size_bytes=4 * math.prod(shape), sharding=sharding)


def mesh_record(*, clients: int = 64, axes: tuple[tuple[str, int], ...] = (("clients", 4), ("model", 2))) -> MeshRecord:
    """Clients are spread over the first axis and repeated over the others."""
    sizes = [size for _, size in axes]
    count = math.prod(sizes)
    inner = count // sizes[0]
    share = clients // sizes[0]
    devices = []
    for index in range(count):
        position, rest = [], index
        for size in reversed(sizes):
            position.append(rest % size)
            rest //= size
        devices.append(
            DeviceRecord(
                id=index, position=tuple(reversed(position)), platform="cpu", kind="cpu", host=index * 2 // count
            )
        )
    ranges = [
        ClientRange(placement="clients", device_id=d.id, start=d.id // inner * share, stop=(d.id // inner + 1) * share)
        for d in devices
    ]
    records = tuple(AxisRecord(name=name, size=size) for name, size in axes)
    return MeshRecord(axes=records, devices=tuple(devices), clients=tuple(ranges) if share else ())


def round_collectives(prefix: str = "") -> tuple[CollectiveRecord, ...]:
    return (
        CollectiveRecord(
            name="all-reduce.1",
            kind="all-reduce",
            axes=("clients",),
            group_size=4,
            groups=2,
            payload_bytes=2604,
            wire_bytes=3906.0,
            executions=1.0,
            stages=(f"{prefix}2", f"{prefix}3"),
            reduction="add",
            sources=(source(12), source(13)),
            op_names=(f"jit(fedavg)/wb:{prefix}2:reduce/reduce_sum",),
        ),
        CollectiveRecord(
            name="all-gather.7",
            kind="all-gather",
            axes=("model",),
            group_size=2,
            groups=4,
            payload_bytes=1280,
            wire_bytes=1280.0,
            executions=2.0,
            stages=(f"{prefix}1",),
            sources=(source(5, "train_locally"),),
            op_names=(f"jit(fedavg)/wb:{prefix}1:clients/dot_general",),
        ),
    )


def instructions(count: int = 24, prefix: str = "") -> tuple[InstructionRecord, ...]:
    """A chain through the five stages; every seventh is a product, every eleventh a fusion, and two are collectives."""
    made = []
    kinds = ("broadcast", "clients", "reduce", "reduce", "server")
    for index in range(count):
        number = index * 5 // count
        opcode = "dot" if index % 7 == 3 else "fusion" if index % 11 == 5 else "add"
        made.append(
            InstructionRecord(
                name=f"{opcode}.{index}",
                opcode=opcode,
                computation="main" if index % 3 else f"body.{number}",
                shape="f32[16,64,10]{2,1,0}",
                size_bytes=40_960,
                executions=1.0,
                flops=163_840.0 if opcode == "dot" else 10_240.0,
                accessed_bytes=81_920,
                op_name=f"jit(fedavg)/wb:{prefix}{number}:{kinds[number]}/{opcode}",
                stage=f"{prefix}{number}",
                source=source(10 + number),
                operands=(made[-1].name,) if made else (),
            )
        )
    for number, collective in ((2, "all-reduce.1"), (1, "all-gather.7")):
        made.append(
            InstructionRecord(
                name=collective,
                opcode=collective.split(".")[0],
                computation="main",
                shape="f32[651]{0}",
                size_bytes=2604,
                executions=1.0,
                op_name=f"jit(fedavg)/wb:{prefix}{number}:{kinds[number]}/psum",
                stage=f"{prefix}{number}",
                source=source(10 + number),
                operands=(made[count // 2].name,),
            )
        )
    return tuple(made)


def module_text(found: tuple[InstructionRecord, ...]) -> str:
    lines = [
        f"  %{i.name} = {i.shape} {i.opcode}({', '.join('%' + o for o in i.operands)}), "
        f'metadata={{op_name="{i.op_name}" '
        f'source_file="{i.source.file if i.source else ""}" source_line={i.source.line if i.source else 0}}}'
        for i in found
    ]
    return "\n".join(["HloModule jit_fedavg, num_partitions=8", "", "ENTRY %main {", *lines, "}"])


def module_record(count: int = 24, prefix: str = "") -> ModuleRecord:
    found = instructions(count, prefix)
    memory = MemoryRecord(
        argument_bytes=4_200_000,
        output_bytes=2604,
        temporary_bytes=900_000,
        peak_bytes=5_100_000,
        available_bytes=16 * 2**30,
        fits=True,
        largest=(BufferRecord(name="param.data.x", size_bytes=2_097_152, shape="f32[64,128,64]"),),
        timeline=tuple((i.name, 4_200_000 + (k % 6) * 150_000) for k, i in enumerate(found)),
    )
    return ModuleRecord(
        name="jit_fedavg",
        platform="cpu",
        devices=8,
        instructions=found,
        collectives=round_collectives(prefix),
        flops=8e6,
        accessed_bytes=4e6,
        memory=memory,
        attributed_instructions=0.97,
        attributed_flops=0.99,
        attributed_bytes=0.98,
        text=module_text(found),
    )


def cost_record(clients: int = 64, prefix: str = "") -> CostRecord:
    chip = ChipRecord(
        name="TPU v5e",
        peak_flops_per_second={"bfloat16": 197e12, "float32": 49e12},
        hbm_bytes=16 * 2**30,
        hbm_bytes_per_second=819e9,
        link_bytes_per_second=45e9,
        links=4,
        topology="torus2d",
    )
    kinds = (
        ("broadcast", "broadcast"),
        ("clients", "train_locally"),
        ("reduce", "reduce_mean"),
        ("reduce", "reduce_mean"),
    )
    flops = (0.0, 16 * CLIENT_FLOPS, 10_400.0, 16.0, 1300.0)
    moved = (41_600.0, 624_000.0, 41_600.0, 64.0, 7800.0)
    wire = ({}, {"model": 2560.0}, {"clients": 3900.0}, {"clients": 6.0}, {})
    stages = tuple(
        StageCostRecord(
            stage=f"{prefix}{i}",
            kind=kind,
            name=name,
            flops=flops[i],
            accessed_bytes=moved[i],
            collective_bytes=wire[i],
            compute_seconds=flops[i] / 49e12,
            memory_seconds=moved[i] / 819e9,
            collective_seconds=sum(wire[i].values()) / 45e9,
            bound="collective" if i == 2 else "memory",
        )
        for i, (kind, name) in enumerate((*kinds, ("server", "apply_update")))
    )
    per_client = tuple(
        ClientCostRecord(
            client=c,
            device_id=c * 4 // clients * 2,
            flops=CLIENT_FLOPS,
            accessed_bytes=39_000.0,
            examples=40 + (c * 37) % 89,
            padded_examples=EXAMPLES,
        )
        for c in range(clients)
    )
    return CostRecord(
        stages=stages,
        clients=per_client,
        chip=chip,
        seconds=sum(s.seconds or 0.0 for s in stages),
        padding_waste=0.34,
        lockstep_waste=0.5,
        assumptions=("no overlap of compute and collectives", "ring algorithms on ICI"),
    )


def leaf(path: str, shape: tuple[int, ...], spec: tuple[tuple[str, ...], ...], mesh: MeshRecord) -> LeafShardingRecord:
    sizes = {axis.name: axis.size for axis in mesh.axes}
    names = [axis.name for axis in mesh.axes]
    parts = [math.prod(sizes[a] for a in axes) for axes in spec]
    shard = tuple(n // p for n, p in zip(shape, parts, strict=True))
    shards = []
    for device in mesh.devices:
        where = dict(zip(names, device.position, strict=True))
        start = []
        for axes, size in zip(spec, shard, strict=True):
            block = 0
            for axis in axes:
                block = block * sizes[axis] + where[axis]
            start.append(block * size)
        stop = tuple(a + s for a, s in zip(start, shard, strict=True))
        shards.append(ShardRecord(device_id=device.id, start=tuple(start), stop=stop))
    size = 4 * math.prod(shape)
    return LeafShardingRecord(
        path=path,
        shape=shape,
        dtype="float32",
        spec=spec,
        shard_shape=shard,
        size_bytes=size,
        bytes_per_device=4 * math.prod(shard),
        replication=len(mesh.devices) // math.prod(parts),
        shards=tuple(shards),
    )


def sharding_record(clients: int = 64) -> ShardingRecord:
    mesh = mesh_record(clients=clients)
    leaves = (
        leaf("['params']['w']", (64, 10), ((), ("model",)), mesh),
        leaf("['params']['b']", (10,), ((),), mesh),
        leaf("['data']['x']", (clients, EXAMPLES, 64), (("clients",), (), ()), mesh),
    )
    return ShardingRecord(
        leaves=leaves,
        mesh=mesh,
        total_bytes=sum(each.size_bytes for each in leaves),
        bytes_per_device=sum(each.bytes_per_device for each in leaves),
    )
