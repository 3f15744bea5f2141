"""The collectives of a module: bytes, device groups, executions, stages and source lines."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from workbench.inspection.hlo._attribution import StageFinder, combined_stages
from workbench.inspection.hlo._executions import Runs
from workbench.inspection.hlo._frames import Frames
from workbench.inspection.hlo._groups import Axes, Groups, group_axes, pair_axes, parse_groups
from workbench.inspection.hlo._shapes import Shape
from workbench.inspection.hlo._text import Computation, Hlo, Instruction
from workbench.records.compiled import CollectiveRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import CollectiveKind

_KINDS: tuple[CollectiveKind, ...] = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast", "send", "recv",
)  # fmt: skip
_OPCODES: Mapping[str, CollectiveKind] = {opcode: kind for kind in _KINDS for opcode in (str(kind), f"{kind}-start")}
# Patterns that match whole values, because groups in mesh syntax contain braces, spaces and commas.
_REPLICA_GROUPS = re.compile(
    r"replica_groups=(mesh\[[^\]]*\](?:, device_ids=\([^)]*(?:\([^)]*\))?\))? \{[^}]*\}"
    r"|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|\{\}|\{\{.*?\}\})"
)
_PAIRS = re.compile(r'source_target_pairs="?\{(\{.*?\})?\}')
_STRATEGY = re.compile(r'"strategy":"([^"]+)"')
_EMITTER = re.compile(r'"emitter":"([^"]+)"')
_MOST_PAIRS = 256  # maximum number of messages in the record of a permute
_COLORS = re.compile(r"colors:(\d+) phases:(\d+)")
_KERNEL = re.compile(r'"kernel_strategy":"([^"]+)"')
_SYNCHRONOUS = re.compile(r'"is_sync":\s*true')  # GPU: start and done with no other work in between
_MEGASCALE = "_xla_megascale_transfer_type"  # TPU: an exchange with the corresponding devices in the other slices
_OFFLOAD = re.compile(r'"phase_rings":\[')


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxes:
    """Facts about a mesh that are needed to name groups; `order` maps an HLO position to a mesh position."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...] | None = None
    slices: tuple[int, ...] | None = None  # slice of every position, if there are several slices
    hosts: tuple[int, ...] | None = None  # GPU host of every position, if known
    coords: tuple[tuple[int, ...], ...] | None = None  # coordinates of every position on the torus
    wraps: tuple[bool, ...] = ()  # dimensions of the torus that wrap around

    @property
    def devices(self) -> int:
        return math.prod(self.sizes)

    def members(self, devices: int) -> list[tuple[int, ...]]:
        """The positions in each slice; empty unless there are several slices with `devices` positions each."""
        slices: dict[int, list[int]] = {}
        for position, index in enumerate(self.slices or ()):
            slices.setdefault(index, []).append(position)
        alike = len(slices) > 1 and all(len(positions) == devices for positions in slices.values())
        return [tuple(positions) for positions in slices.values()] if alike else []

    def crosses(self, groups: Groups) -> bool:
        """Returns whether one group has members in different slices."""
        slices = self.slices
        return slices is not None and any(len({slices[position] for position in group}) > 1 for group in groups)

    def hosts_of(self, groups: Groups) -> int | None:
        """Returns the largest number of GPU hosts that one group spans; None if unknown."""
        hosts = self.hosts
        return None if hosts is None or not groups else max(len({hosts[d] for d in group}) for group in groups)

    def torus(self, groups: Groups) -> tuple[tuple[int, bool], ...]:
        """Length and wraparound of the box that the first group fills, along each torus dimension.

        Empty if a group spans several slices, has no coordinates, or does not fill a box.
        """
        if self.coords is None or not groups or self.crosses(groups) or not self.wraps:
            return ()
        places = {self.coords[position] for position in groups[0]}
        ranges = [{place[axis] for place in places} for axis in range(len(self.coords[0]))]
        extents = [max(values) - min(values) + 1 for values in ranges]
        if any(len(values) != extent for values, extent in zip(ranges, extents, strict=True)):
            return ()  # with gaps between the chips of the group
        spans = [
            max(c[axis] for c in self.coords) - min(c[axis] for c in self.coords) + 1 for axis in range(len(extents))
        ]
        if math.prod(extents) != len(places) or len(self.wraps) < sum(extent > 1 for extent in spans):
            return ()
        wraps = [*self.wraps, *(False,) * len(extents)]
        return tuple(
            (extent, wraps[axis] and extent == spans[axis]) for axis, extent in enumerate(extents) if extent > 1
        )


class CollectiveReader:
    """Creates the records of the collectives of one module."""

    def __init__(self, hlo: Hlo, runs: Runs, stages: StageFinder, frames: Frames, mesh: MeshAxes | None) -> None:
        self._hlo, self._runs, self._stages, self._frames, self._mesh = hlo, runs, stages, frames, mesh
        partitions, replicas = (_header_count(hlo, word) for word in ("num_partitions", "replica_count"))
        self._devices = partitions * replicas
        self._both = partitions > 1 and replicas > 1
        self._members = [] if mesh is None or mesh.devices == self._devices else mesh.members(self._devices)
        self._axes: dict[str, tuple[Groups, Axes, Groups]] = {}

    def records(self) -> Iterator[CollectiveRecord]:
        """One record per collective that one call of the module can reach, in the order of the text."""
        for computation in self._hlo.computations.values():
            if computation.name in self._runs.regions:
                continue
            for instruction in computation.instructions:
                kind = _OPCODES.get(instruction.opcode)
                if kind is not None:
                    yield self._record(computation, instruction, kind)

    def _record(self, computation: Computation, instruction: Instruction, kind: CollectiveKind) -> CollectiveRecord:
        operands = [computation.by_name[operand].shape for operand in instruction.operands]
        payload = sum(shape.size_bytes for shape in operands if not shape.is_tuple)
        groups, axes, placed = self._groups(instruction)
        unknown = not groups  # computed before pairs of a device with itself are removed
        size = max((len(group) for group in groups), default=0)
        notes = [axes.note] if axes.note else []
        if kind == "all-reduce" and _is_scattered(computation, instruction, size):
            kind = "reduce-scatter"
            notes.append("an all-reduce fused with a slice, so that every device keeps only its part")
        executions = self._runs.executions[instruction.computation]
        if kind in ("collective-permute", "send", "recv"):
            groups = tuple(pair for pair in groups if len(set(pair)) > 1)
        around = self._around(computation, instruction)
        return CollectiveRecord(
            name=instruction.name,
            kind=kind,
            axes=axes.names,
            group_size=size,
            groups=len(groups),
            payload_bytes=payload,
            wire_bytes=None if unknown else wire_bytes(kind, payload, size) if groups else 0.0,
            executions=None if math.isnan(executions) else executions,
            stages=tuple(dict.fromkeys(stage.path for i in around for stage in self._stages.stages(i))),
            stage_shares=self._shares(around, operands),
            sources=self._sources(computation, instruction, around),
            op_names=tuple(dict.fromkeys(i.op_name for i in around if i.op_name)),
            algorithm=_algorithm(instruction.attributes),
            asynchronous=not _SYNCHRONOUS.search(instruction.attributes)
            and (instruction.opcode.endswith("-start") or self._is_called_asynchronously(computation)),
            reduction=self._reduction(instruction),
            channel=int(instruction.attribute("channel_id") or 0) or None,
            across_slices=not axes.note and self._mesh is not None and self._mesh.crosses(groups),
            hosts=None if self._mesh is None else self._mesh.hosts_of(placed),
            torus=()
            if self._mesh is None or kind in ("collective-permute", "send", "recv")
            else self._mesh.torus(placed),
            pairs=_messages(placed) if kind == "collective-permute" else (),
            notes=tuple(notes),
        )

    def _groups(self, instruction: Instruction) -> tuple[Groups, Axes, Groups]:
        """Groups as positions in the module, their axes, and the same groups as positions in the mesh."""
        pairs = _PAIRS.search(instruction.attributes)
        text = pairs[0] if pairs else ""
        if pairs is None:
            match = _REPLICA_GROUPS.search(instruction.attributes)
            if match is None and _MEGASCALE in instruction.attributes and self._members and self._mesh is not None:
                groups = tuple(zip(*self._members, strict=True))
                return groups, group_axes(groups, self._mesh.names, self._mesh.sizes), ()
            if match is None:
                return (), Axes((), "the participants are written in an unknown syntax"), ()
            text = match[1]
        if text not in self._axes:
            self._axes[text] = self._named(text, is_pairs=pairs is not None)
        return self._axes[text]

    def _named(self, text: str, *, is_pairs: bool) -> tuple[Groups, Axes, Groups]:
        if is_pairs:
            pairs = re.findall(r"\{(\d+),(\d+)\}", text)
            groups: Groups | None = tuple((int(source), int(target)) for source, target in pairs)
        else:
            groups = parse_groups(text, self._devices)
        if groups is None:
            return (), Axes((), f"groups in an unknown syntax: {text[:60]}"), ()
        if self._mesh is None:
            return groups, Axes((), "no mesh was given, so the groups cannot be named by axes"), ()
        if self._both:
            note = "the module has replicas and partitions: its ids do not map to positions of the mesh"
            return groups, Axes((), note), ()
        if self._members:  # one module per slice, each with its own positions
            groups = tuple(tuple(part[i] for i in group) for part in self._members for group in groups)
        elif self._mesh.devices != self._devices:
            note = f"the module was compiled for {self._devices} devices, but the mesh has {self._mesh.devices}"
            return groups, Axes((), note), ()
        order = self._mesh.order
        placed = groups if order is None else tuple(tuple(order[position] for position in group) for group in groups)
        name: Callable[..., Axes] = pair_axes if is_pairs else group_axes
        return groups, name(placed, self._mesh.names, self._mesh.sizes), placed

    def _around(self, computation: Computation, instruction: Instruction) -> list[Instruction]:
        """The instruction and, if it was combined from several, the elements of its result."""
        elements = [u for u, _ in computation.users[instruction.name] if u.opcode.endswith("-done")]
        takers = [
            u
            for node in (instruction, *elements)
            for u, _ in computation.users[node.name]
            if u.opcode == "get-tuple-element" and u.op_name
        ]
        return [instruction, *takers]

    def _shares(self, around: list[Instruction], operands: list[Shape]) -> dict[str, float]:
        """Bytes of a combined payload by stage; each element of the result belongs to a stage."""
        sizes: dict[str, int] = {}
        named = combined_stages(around[0].op_name)
        if len(around) == 1 and len(named) == len(operands):  # the parts are separate results in the module
            for stage, operand in zip(named, operands, strict=True):
                if stage is None:
                    return {}
                sizes[stage.path] = sizes.get(stage.path, 0) + operand.size_bytes
        for taker in around[1:]:
            index = int(taker.attribute("index") or 0)
            for stage in self._stages.stages(taker)[:1]:
                sizes[stage.path] = sizes.get(stage.path, 0) + (operands[index].size_bytes if operands[index:] else 0)
        total = sum(sizes.values())
        return {stage: size / total for stage, size in sizes.items()} if total and len(sizes) > 1 else {}

    def _sources(
        self, computation: Computation, instruction: Instruction, around: list[Instruction]
    ) -> tuple[SourceLine, ...]:
        """The lines that request a collective; for a combined collective, the lines with the most bytes come first."""
        lines = [self._frames.source(i) for i in (*around, *self._stages.witnesses(instruction))]
        if not any(i.op_name for i in around):  # without a name, the line is the line of the whole program
            makers = [computation.by_name[operand] for operand in instruction.operands]
            maker_lines = [
                self._frames.source(maker) for maker in makers if maker.op_name and maker.opcode != "parameter"
            ]
            lines = [line for line in maker_lines if line is not None] or lines
        takers = {int(taker.attribute("index") or 0): taker for taker in around[1:]}
        if len(instruction.operands) > 1:  # the element of a combined result may have neither a name nor a line
            parts = [computation.by_name[o] for i, o in enumerate(instruction.operands) if i not in takers]
            lines += [self._frames.source(part) for part in parts if part.op_name and part.opcode != "parameter"]
        lines_by_text = {str(line): line for line in lines if line is not None}
        weights = dict.fromkeys(lines_by_text, 0)
        for index, operand in enumerate(instruction.operands):
            maker = computation.by_name[operand]
            source = self._frames.source(takers[index]) if index in takers else None
            line = str(source or self._frames.source(maker))
            if line in weights:
                weights[line] += maker.shape.size_bytes
        return tuple(lines_by_text[line] for line in sorted(lines_by_text, key=lambda line: -weights[line]))

    def _is_called_asynchronously(self, computation: Computation) -> bool:
        caller = self._runs.callers.get(computation.name)
        return caller is not None and caller.opcode in ("async-start", "call-start")

    def _reduction(self, instruction: Instruction) -> str | None:
        for name in instruction.calls("to_apply"):
            root = self._hlo.computations[name].root
            return None if root is None else root.opcode
        return None


def wire_bytes(kind: str, payload_bytes: int, group_size: int) -> float:
    """Bytes that one device sends in a ring of `group_size` devices, for an operand of `payload_bytes`.

    An all-reduce is a reduce-scatter followed by an all-gather, with n-1 steps each. The operand of an all-gather is
    one device's part of the array; the operand of a reduce-scatter is the whole array.

    Example:
        >>> wire_bytes("all-reduce", 1000, 4)
        1500.0
    """
    if kind == "recv" or group_size < 2:
        return 0.0
    if kind in ("collective-permute", "collective-broadcast", "send"):
        return float(payload_bytes)
    if kind == "all-gather":
        return float(payload_bytes * (group_size - 1))
    share = payload_bytes * (group_size - 1) / group_size
    return 2 * share if kind == "all-reduce" else share


def _messages(pairs: Groups) -> tuple[tuple[int, int], ...]:
    """Pairs of sender and receiver that are different devices; empty for a permute that is too large to draw."""
    messages = tuple((pair[0], pair[1]) for pair in pairs if pair[0] != pair[1])
    return messages if len(messages) <= _MOST_PAIRS else ()


def _is_scattered(computation: Computation, instruction: Instruction, group_size: int) -> bool:
    """Returns whether every use of an all-reduce slices out one device's part, as in TPU's fused reduce-scatter."""
    users = [user for user, _ in computation.users[instruction.name]]
    sizes = {user.shape.size_bytes * group_size for user in users}
    slices = users and all(user.opcode == "dynamic-slice" for user in users)
    return bool(slices and sizes == {instruction.shape.size_bytes})


def _algorithm(attributes: str) -> str | None:
    if kernel := _KERNEL.search(attributes):
        return kernel[1]
    if '"collective_offload_config"' in attributes:
        return f"SparseCore offload, {len(_OFFLOAD.findall(attributes))} rings"
    if '"collective_algorithm_config"' not in attributes:
        return None
    strategy, emitter, colors = (p.search(attributes) for p in (_STRATEGY, _EMITTER, _COLORS))
    name = strategy[1] if strategy else emitter[1] if emitter else None
    return f"{name} (colors {colors[1]}, phases {colors[2]})" if name and colors else name


def _header_count(hlo: Hlo, word: str) -> int:
    match = re.search(rf"\b{word}=(\d+)", hlo.header)
    return int(match[1]) if match else 1
