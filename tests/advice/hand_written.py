"""Programs written by hand, so that every figure of a finding can be derived from the text of a test."""

import dataclasses
from typing import Any

from workbench.advice._module import Compiled
from workbench.cost import known_chip
from workbench.inspection import inspect_module
from workbench.records.compiled import CostRecord, MemoryRecord, ProgramRecord
from workbench.records.hardware import AxisRecord, DeviceRecord, MeshRecord
from workbench.records.program import PlanRecord, SourceLine
from workbench.records.sharding import (
    LeafShardingRecord,
    PlannedValueRecord,
    PropagationRecord,
    ShardingRecord,
    WhyRecord,
)

DATA = "channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true"  # along one axis of the mesh
ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""

GATHER = f"""
ENTRY %main (w: f32[16,128]) -> f32[64,128] {{
  %w = f32[16,128] parameter(0)
  ROOT %gather = f32[64,128] all-gather(%w), {DATA}, dimensions={{0}}
}}
"""


def mesh(**sizes: int) -> MeshRecord:
    """A mesh record with numbered devices, data=4 and model=2 by default."""
    axes = tuple(AxisRecord(name=name, size=size) for name, size in (sizes or {"data": 4, "model": 2}).items())
    positions = [()]
    for axis in axes:
        positions = [(*position, at) for position in positions for at in range(axis.size)]
    return MeshRecord(axes=axes, devices=tuple(DeviceRecord(id=i, position=at) for i, at in enumerate(positions)))


def line(number: int, function: str = "layer") -> SourceLine:
    return SourceLine(file="model.py", line=number, function=function)


def leaf(path: str, shape: tuple[int, ...], spec: Any = (), copies: int = 8, parts: int = 1, **fields) -> Any:
    """One float32 array in a number of parts, each on a number of devices."""
    size = 4
    for n in shape:
        size *= n
    given = {
        "dtype": "float32", "shard_shape": shape, "size_bytes": size, "bytes_per_device": size // parts,
        "replication": copies,
    }  # fmt: skip
    return LeafShardingRecord(path=path, shape=shape, spec=spec, **(given | fields))


def value(name: str, operation: str, shape: tuple[int, ...], spec: Any, operands=(), at=None, **fields) -> Any:
    """One value of a propagated program, which comes from line `at` of `layer` in `model.py`."""
    given = {"dtype": "f32", "origins": {}, "source": None if at is None else line(at)}
    return PlannedValueRecord(
        name=name, operation=operation, shape=shape, spec=spec, operands=tuple(operands), **(given | fields)
    )


def compiled(text: str = "", *, platform: str = "tpu", memory=None, why=None, options=None, **fields) -> Compiled:
    """The program of an HLO text, whose `ENTRY` computation is required only if a rule reads instructions."""
    text = text or "ENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n"
    head = "HloModule step, num_partitions=8\n"
    if isinstance(fields.get("inputs"), list | tuple):
        fields["inputs"] = ShardingRecord(leaves=tuple(fields["inputs"]))
    if isinstance(fields.get("outputs"), list | tuple):
        fields["outputs"] = ShardingRecord(leaves=tuple(fields["outputs"]))
    if isinstance(fields.get("propagation"), list | tuple):
        fields["propagation"] = PropagationRecord(values=tuple(fields["propagation"]))
    given = {"name": "step", "target": "here", "plan": PlanRecord(name="step", placements=(), stages=())}
    given |= {"mesh": mesh()} | fields
    module = inspect_module(head + text, mesh=given["mesh"], platform=platform)
    module = module.replace(memory=MemoryRecord(**(memory or {})), devices=8)
    record = ProgramRecord(**given, module=module)
    program = Compiled(record, module, **(options or {}))
    program.__dict__["why"] = why or WhyRecord(name="step", target="here")  # not explained again
    return program


def changed(program: Compiled, **collective) -> Compiled:
    """The program with other figures of its only collective."""
    [only] = program.module.collectives
    return with_module(program, collectives=(only.replace(**collective),))


def with_module(program: Compiled, **fields) -> Compiled:
    module = program.module.replace(**fields)
    copy = dataclasses.replace(program, module=module, record=program.record.replace(module=module))
    copy.__dict__["why"] = program.why
    return copy


def with_instruction(program: Compiled, instruction: str, **fields) -> Compiled:
    """The program with other figures of one instruction."""
    instructions = tuple(i.replace(**fields) if i.name == instruction else i for i in program.module.instructions)
    return with_module(program, instructions=instructions)


def sent(*axes, across=(), chip=None):
    """All-gathers of 8 KiB (24 KiB sent) per axis; a number of them per axis."""
    [only] = compiled(GATHER).module.collectives
    collectives = [
        only.replace(name=f"g{at}", axes=(axis,), across_slices=axis in across) for at, axis in enumerate(axes)
    ]
    cost = None if chip is None else CostRecord(stages=(), chip=known_chip(chip))
    return with_module(compiled(cost=cost), collectives=tuple(collectives))


# The chips of a v5e:2x4, four in a row. Along `model` the pairs below are 4, 2, 2 and 4 links apart, and 1 in JAX's
# order; the distances along `data`, in a row of four, are 1, 1, 1, 2, 2 and 3.
APART = (0, 7, 1, 6, 2, 5, 3, 4)


def torus(program, numbers=APART, **sizes):
    axes = mesh(**sizes)
    devices = tuple(
        DeviceRecord(id=i, position=device.position, platform="tpu", kind="TPU v5 lite", coords=(i % 4, i // 4, 0),
                     core_on_chip=0)
        for i, device in zip(numbers, axes.devices, strict=True)
    )  # fmt: skip
    placed = program.record.replace(mesh=axes.replace(devices=devices))
    return type(program)(placed, program.module)
