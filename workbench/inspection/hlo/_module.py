"""A compiled module as a record: instructions, collectives, memory, costs with loops, stages and source lines."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from workbench._jax_compat.hlo import hlo_text_of_proto
from workbench._open_types import Foreign
from workbench._types import Device
from workbench.errors import InspectionError
from workbench.inspection.hlo._assignment import HeldAtPeak, divide_peak
from workbench.inspection.hlo._attribution import NamedStage, StageFinder
from workbench.inspection.hlo._call_tree import CallTreeReader
from workbench.inspection.hlo._collectives import CollectiveReader, MeshAxes
from workbench.inspection.hlo._elementwise import ElementwiseCounter
from workbench.inspection.hlo._executions import Runs, count_runs, trip_count
from workbench.inspection.hlo._flops import FlopCounter
from workbench.inspection.hlo._frames import Frames
from workbench.inspection.hlo._fused import FusedStages
from workbench.inspection.hlo._memory import read_memory, with_places
from workbench.inspection.hlo._opcodes import note_on_opcode
from workbench.inspection.hlo._routines import routine_of
from workbench.inspection.hlo._text import Hlo, Instruction, parse_hlo, unreadable
from workbench.inspection.hlo._traffic import Traffic
from workbench.records import without_collections
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord
from workbench.records.hardware import MeshRecord
from workbench.records.program import PlanRecord

# These only name or pass on values and do no work, so they do not need a stage.
_STRUCTURE = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"))
_GPUS = ("cuda", "gpu", "rocm")
_PLATFORMS = (
    ("tpu", re.compile(r'"flag_configs":|:T\(\d|"scoped_memory_configs"')),
    ("gpu", re.compile(r'"operation_queue_id"|__cublas\$|"fusion_backend_config"|__cudnn\$')),
    ("cpu", re.compile(r'outer_dimension_partitions|__ynn_fusion|__onednn\$|"xla_cpu|xla_cpu_')),
)


def inspect_module(
    compiled: object,
    *,
    mesh: MeshRecord | None = None,
    platform: str | None = None,
    available_bytes: int | None = None,
    plan: PlanRecord | None = None,
    peak_bytes: int | None = None,
) -> ModuleRecord:
    """Parses a compiled program without running it.

    Args:
        compiled: A `jax.stages.Compiled`, the text of one optimized HLO module from any backend, or its protobuf as
            bytes (`*.hlo.pb` in a dump).
        mesh: The mesh that the program was compiled for, used to name the axes of collectives. Without a mesh, the axes
            have no names.
        platform: "cpu", "gpu" or "tpu"; None takes the platform from the devices or from the text.
        available_bytes: Memory of one device, used to decide whether the program fits.
        plan: The program's plan. The stages contain the calls that lead to client functions; the compiled module lacks
            these calls.
        peak_bytes: The memory peak that the compiler reported; pass it if `compiled` is text, which does not contain
            the peak.

    Returns:
        The module. The record's `notes` list what is unknown, such as loop lengths, custom calls or the backend.

    Raises:
        InspectionError: if `compiled` is not a compiled program, or if its text is truncated.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((3, 4))
        >>> inspect_module(jax.jit(lambda x: x @ x.T).lower(x).compile()).flops
        72.0
    """
    text, stats, devices = _opened(compiled)
    platform = platform or next((device.platform for device in devices), None)
    try:
        with without_collections():
            inspection = _Inspection(parse_hlo(text), text, mesh, _order(devices, mesh), _only_stage(plan))
            return inspection.record(
                platform or _guess_platform(text), stats, available_bytes, plan, compiled, peak_bytes
            )
    except InspectionError:
        raise
    except RecursionError as error:
        fact = "its computations call each other in a cycle, or computations or name scopes are nested hundreds deep"
        raise InspectionError(unreadable(fact)) from error
    except (LookupError, ValueError, ArithmeticError) as error:
        fact = f"{type(error).__name__}: {error}"
        raise InspectionError(unreadable(fact)) from error


def _opened(compiled: Foreign) -> tuple[str, Any | None, list[Any]]:
    """Text, memory statistics and devices of a compiled program."""
    if isinstance(compiled, str):
        return compiled, None, []
    if isinstance(compiled, bytes):
        text = hlo_text_of_proto(compiled)
        if text is None:
            raise InspectionError(unreadable(f"{len(compiled)} bytes are not an `HloProto` that this jaxlib can print"))
        return text, None, []
    if not callable(getattr(compiled, "as_text", None)) or not hasattr(compiled, "memory_analysis"):
        message = (
            f"`inspect_module` was given an object of type {type(compiled).__name__}, which is not a compiled program. "
            "`inspect_module` reads a `jax.stages.Compiled` or HLO text: pass `jax.jit(fn).lower(*args).compile()`."
        )
        raise InspectionError(message)
    try:
        text, stats = compiled.as_text(), compiled.memory_analysis()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise InspectionError(_no_hlo(str(error))) from error
    if not text:
        raise InspectionError(_no_hlo("it returned no text"))
    return text, stats, _devices_of(compiled)


def _no_hlo(fact: str) -> str:
    return (
        f"`inspect_module` was given a compiled program whose backend does not show its HLO ({fact}). Costs are read "
        "only from HLO: compile for an XLA backend, or pass the text of the optimized module."
    )


def _devices_of(compiled: Foreign) -> list[Device]:
    """The devices in the module's order; empty if the runtime does not report them."""
    try:
        return list(compiled.runtime_executable().local_devices())
    except (AttributeError, RuntimeError, NotImplementedError):
        return []


def _only_stage(plan: PlanRecord | None) -> NamedStage | None:
    """The single stage of a program without clients; it covers the whole module."""
    if plan is None or plan.placements or len(plan.stages) != 1:
        return None
    return NamedStage(plan.stages[0].path, plan.stages[0].kind)


def _order(devices: list[Any], mesh: MeshRecord | None) -> tuple[int, ...] | None:
    """Mesh position of each entry in the module's device list; None if the devices are not those of the mesh."""
    if mesh is None or mesh.abstract:
        return None
    place = {device.id: index for index, device in enumerate(mesh.devices)}
    devices = [device.id for device in devices]
    if len(devices) != len(place) or not set(devices) <= place.keys():
        return None
    return tuple(place[device] for device in devices)


def _slices(mesh: MeshRecord) -> tuple[int, ...] | None:
    """The slice that every device of the mesh belongs to; None if all devices are in one slice."""
    indices = tuple(device.slice_index for device in mesh.devices if device.slice_index is not None)
    return indices if len(indices) == len(mesh.devices) and len(set(indices)) > 1 else None


def _hosts(mesh: MeshRecord) -> tuple[int, ...] | None:
    """The host of every GPU; None for other devices, or if every GPU has its own process."""
    hosts = tuple(device.host for device in mesh.devices)
    several = len(set(hosts)) < len(hosts)
    return hosts if several and all(device.platform in _GPUS for device in mesh.devices) else None


def _coords(mesh: MeshRecord) -> tuple[tuple[int, ...], ...] | None:
    """The position of every device on the torus; None if unknown."""
    coords = tuple(device.coords for device in mesh.devices if device.coords is not None)
    return coords if coords and len(coords) == len(mesh.devices) else None


class _Inspection:
    """The analyses that are computed only once per module."""

    def __init__(
        self,
        hlo: Hlo,
        text: str,
        mesh: MeshRecord | None,
        order: tuple[int, ...] | None,
        only: NamedStage | None = None,
    ) -> None:
        self._hlo, self._text = hlo, text
        self._flops, self._traffic, self._elementwise = FlopCounter(hlo), Traffic(hlo), ElementwiseCounter(hlo)
        self._weights: dict[str, float] = {}
        self._unbounded = [i.name for i in hlo.instructions() if "?" in i.shape_text]
        self._callers = {callee: i for i in hlo.instructions() for callee in i.calls()}
        self._runs: Runs = count_runs(hlo, self._weight)
        self._stages, self._frames = StageFinder(hlo, self._runs, only), Frames(hlo)
        axes = mesh and MeshAxes(
            names=tuple(axis.name for axis in mesh.axes),
            sizes=mesh.shape,
            order=order,
            slices=_slices(mesh),
            hosts=_hosts(mesh),
            coords=_coords(mesh),
            wraps=mesh.wraps or (),
        )
        self._fused = FusedStages(hlo, self._stages, self._flops, self._elementwise, self._traffic)
        self._collectives = CollectiveReader(hlo, self._runs, self._stages, self._frames, axes)

    def record(
        self,
        platform: str,
        stats: object | None,
        available_bytes: int | None,
        plan: PlanRecord | None,
        compiled: object,
        peak_bytes: int | None,
    ) -> ModuleRecord:
        instructions = tuple(self._instructions())
        memory, at_peak = read_memory(self._hlo, stats, self._frames.source, available=available_bytes)
        if peak_bytes is None:
            peak_bytes = memory.peak_bytes
        values, note = divide_peak(self._hlo, compiled, stats, peak_bytes, at_peak)
        collectives = tuple(self._collectives.records())
        is_bounded = not self._unbounded
        flops = _total((i.flops, i.executions) for i in instructions) if is_bounded else None
        accessed = _total((i.accessed_bytes, i.executions) for i in instructions) if is_bounded else None
        working = [i for i in instructions if not i.fused and i.opcode not in _STRUCTURE]
        reader = self._call_tree_reader(collectives, values, note, plan)
        return ModuleRecord(
            name=self._hlo.name,
            platform=platform,
            devices=_devices(self._hlo),
            instructions=instructions,
            collectives=collectives,
            flops=flops,
            accessed_bytes=accessed,
            memory=with_places(memory, at_peak, reader.op_name),
            attributed_instructions=_share([(1.0, i.stage) for i in working]),
            attributed_flops=_share([(i.flops * _once(i.executions), i.stage) for i in working]),
            attributed_bytes=_share([(i.accessed_bytes * _once(i.executions), i.stage) for i in working]),
            call_tree=reader.record(),
            text=self._text,
            notes=tuple(self._notes(platform)),
        )

    def _call_tree_reader(
        self,
        collectives: tuple[CollectiveRecord, ...],
        values: tuple[HeldAtPeak, ...],
        note: str,
        plan: PlanRecord | None,
    ) -> CallTreeReader:
        parts = self._hlo, self._runs, self._frames, self._flops, self._traffic
        return CallTreeReader(*parts, collectives, values, note, plan)

    def _instructions(self) -> Iterator[InstructionRecord]:
        for name, computation in self._hlo.computations.items():
            fused = name in self._runs.fused or name in self._runs.regions
            executions = self._runs.executions[name]
            for instruction in computation.instructions:
                yield self._instruction(instruction, fused, None if math.isnan(executions) else executions)

    def _instruction(self, instruction: Instruction, fused: bool, executions: float | None) -> InstructionRecord:
        stage, shape = self._stages.stage(instruction), instruction.shape
        return InstructionRecord(
            name=instruction.name,
            opcode=instruction.opcode,
            computation=instruction.computation,
            shape=instruction.shape_text,
            size_bytes=shape.size_bytes,
            executions=executions,
            flops=0.0 if fused else self._flops.instruction(instruction),
            products={} if fused else self._flops.products(instruction),
            elementwise_flops=0.0 if fused else self._elementwise.instruction(instruction),
            accessed_bytes=0 if fused else self._traffic.instruction(instruction),
            op_name=instruction.op_name,
            stage=None if stage is None else stage.path,
            kind="" if stage is None else stage.kind,
            source=self._frames.source(instruction),
            operands=instruction.operands,
            calls=instruction.calls(),
            routine=None if fused else routine_of(self._hlo, instruction),
            memory_space=shape.space,
            inferred=self._stages.is_inferred(instruction),
            fused=fused,
            stage_parts=() if fused or instruction.opcode != "fusion" else self._fused.parts(instruction),
        )

    def _weight(self, computation: str) -> float:
        """Weighs a conditional's branch by its FLOPs or, at equal FLOPs, by its bytes."""
        if computation in self._weights:
            return self._weights[computation]
        weight = 0.0
        for instruction in self._hlo.computations[computation].instructions:
            weight += self._flops.instruction(instruction) * 1e6 + self._traffic.instruction(instruction)
            if instruction.opcode == "while":
                # A loop of unknown length is weighted as one iteration; a note states this.
                iterations = trip_count(self._hlo, instruction, self._callers)
                weight += (1.0 if iterations is None else iterations) * sum(map(self._weight, instruction.calls()))
            elif instruction.opcode == "conditional":
                weight += max((self._weight(callee) for callee in instruction.calls()), default=0.0)
            elif instruction.opcode in ("call", "async-start", "call-start"):
                weight += sum(self._weight(callee) for callee in instruction.calls())
        self._weights[computation] = weight
        return weight

    def _notes(self, platform: str) -> list[str]:
        opcodes = {instruction.opcode: None for instruction in self._hlo.instructions()}
        notes = [*self._runs.notes, *self._flops.notes.values(), *filter(None, map(note_on_opcode, opcodes))]
        if self._unbounded:
            shown = ", ".join(f"`{name}`" for name in self._unbounded[:3])
            notes.append(
                f"{len(self._unbounded)} instructions ({shown}{', …' if self._unbounded[3:] else ''}) have a dimension "
                "without a bound: their bytes and FLOPs count as 0, and the bytes and FLOPs of the module are unknown"
            )
        if platform == "unknown":
            notes.append("the backend of this module is unknown, so algorithms and custom calls may not be recognized")
        if not self._frames.known:
            notes.append("the module contains no stack frames, so source lines are missing")
        if not any(i.op_name for i in self._hlo.instructions()):
            notes.append("no instruction has an op_name, so nothing can be attributed to a stage")
        return notes


def _once(executions: float | None) -> float:
    return 1.0 if executions is None else executions


def _total(amounts: Iterable[tuple[Any, float | None]]) -> float | None:
    total = 0.0
    for amount, executions in amounts:
        if amount and executions is None:
            return None
        total += amount * (executions or 0.0)
    return total


def _share(weights: list[tuple[float, str | None]]) -> float:
    total = sum(weight for weight, _ in weights)
    return sum(weight for weight, stage in weights if stage is not None) / total if total else 1.0


def _devices(hlo: Hlo) -> int:
    counts = [re.search(rf"\b{word}=(\d+)", hlo.header) for word in ("num_partitions", "replica_count")]
    return math.prod(int(match[1]) for match in counts if match)


def _guess_platform(text: str) -> str:
    return next((platform for platform, pattern in _PLATFORMS if pattern.search(text)), "unknown")
