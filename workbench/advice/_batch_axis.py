"""Finds computations that lost, or never had, the mesh axis of the batch, and the lines where a constraint may help."""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.advice._collectives import evidence_of, share
from workbench.advice._module import Compiled, estimated, explained
from workbench.inspection import constraint_advice
from workbench.records.advice import FindingRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import PlannedValueRecord, WhyCauseRecord
from workbench.render.units import share_text

RULE = "activations without the batch axis"
Spec = tuple[tuple[str, ...], ...]
_CODE = re.compile(r"`([^`]*)`")
_NO_WORK = {"input", "output", "constant", "while", "while carry", "iota", "broadcast_in_dim"}
_NOT_COMPUTED = {"input", "output", "constant", "manual_computation"}
_LEAST_WORK = 0.1  # minimum share of a device's planned work that is repeated
_MOST_LINES = 4  # maximum number of lines at which a constraint is compiled


@dataclass(frozen=True)
class CandidateLine:
    """A line at which the batch axis may be restored, with the sharding for each shape of its values."""

    source: SourceLine
    specs: dict[tuple[int, ...], Spec]
    change: str


@dataclass(frozen=True)
class LostAxis:
    """A batch axis that part of the program does not use."""

    axis: str
    candidates: tuple[CandidateLine, ...]  # most promising first
    repeated: float  # share of one device's planned work that all devices along the axis repeat
    cause: WhyCauseRecord | None  # the first value that shards the axis over another dimension


def code_in(change: str) -> str:
    return "\n".join(code for code in _CODE.findall(change) if "(" in code)


def lost_batch(program: Compiled) -> Iterator[FindingRecord]:
    """Computations without the mesh axis of the batch: one constraint restores the axis."""
    pairs = list(explained(program))
    for lost in lost_axes(program):
        axis, cause, first = lost.axis, lost.cause, lost.candidates[0]
        collectives = [] if cause is None else [collective for why, collective in pairs if axis in why.axes]
        largest = sorted(collectives, key=lambda collective: collective.sent_bytes, reverse=True)
        size = _sizes(program)[axis]
        source = first.source if cause is None or cause.source is None else cause.source
        place = f"line {source.line} of `{source.function}`"
        if cause is not None:
            title = (
                f"The batch dimension is no longer sharded over `{axis}` after {place}, which leads to "
                f"{cause.collectives} collectives over that axis."
            )
            reason = cause.sentence
        else:
            title = f"From {place} on, {size} devices along `{axis}` compute the same values."
            reason = (
                f"The batch is sharded over `{axis}`, but these values are not. About "
                f"{share_text(lost.repeated, 0)} of a device's planned work is repeated on the other devices."
            )
        traffic = sum(collective.sent_bytes for collective in collectives)
        yield FindingRecord(
            rule=RULE,
            what=title,
            why=reason,
            change=first.change,
            code=code_in(first.change),
            evidence=tuple(evidence_of(collective)[0] for collective in largest[:4]),
            weight=max(share(program, traffic) if collectives else 0.0, min(1.0, lost.repeated)),
            instructions=tuple(collective.name for collective in collectives),
            axes=(axis,),
            sources=(first.source,),
            gain=estimated("bytes sent", program.sent_bytes, program.sent_bytes, "not compiled with the constraint")
            if cause is not None
            else estimated(
                "FLOPs",
                program.module.flops or 0.0,
                (program.module.flops or 0.0) * (1 - lost.repeated * (1 - 1 / size)),
                "planned work, not compiled with the constraint",
            ),
        )


def lost_axes(program: Compiled) -> tuple[LostAxis, ...]:
    """The batch axes that part of the program does not use, with the lines to constrain."""
    propagation = program.record.propagation
    if propagation is None:
        return ()
    graph = _Graph(propagation.values, _sizes(program))
    causes = {cause.axis: cause for cause in program.why.causes if cause.source is not None}
    lost = []
    # The program states every sharding over explicit axes, and JAX accepts no constraints over them.
    explicit = (
        {axis.name for axis in program.record.mesh.axes if axis.type == "explicit"} if program.record.mesh else ()
    )
    for axis, size in graph.sizes.items():
        batches = graph.batches(axis)
        if size < 2 or axis in explicit or not (batches or axis in causes):
            continue
        cause = causes.get(axis)
        candidates, repeated = graph.candidates(axis, batches, cause)
        if candidates and (cause is not None or repeated >= _LEAST_WORK):
            lost.append(LostAxis(axis, candidates, repeated, cause))
    return tuple(sorted(lost, key=lambda one: (one.cause is None, -one.repeated)))


def _sizes(program: Compiled) -> dict[str, int]:
    return {axis.name: axis.size for axis in program.record.mesh.axes} if program.record.mesh else {}


def _is_cotangent(value: PlannedValueRecord) -> bool:
    return "transpose(" in value.op_name


class _Graph:
    """The planned values, with the work of each value and the values computed from it."""

    def __init__(self, values: Sequence[PlannedValueRecord], sizes: dict[str, int]) -> None:
        self.values, self.sizes = values, sizes
        self.by_name = {value.name: value for value in values}
        self.users: dict[str, list[PlannedValueRecord]] = defaultdict(list)
        for value in values:
            for operand in value.operands:
                self.users[operand].append(value)
        results = {(value.shape, value.dtype) for value in values if value.operation == "output" and value.shape}
        inputs = [value for value in values if value.operation == "input"]
        self.state = [v for v in inputs if (v.shape, v.dtype) in results and v.dtype.startswith(("f", "bf"))]
        self._state_shapes = {value.shape for value in self.state}
        names = {value.name for value in self.state}
        self._data = [value for value in inputs if value.name not in names]
        # Values that depend on data or keys; the others are weights and their copies.
        self._dependent = {value.name for value in self._data}
        for value in values:
            if self._dependent.intersection(value.operands) or value.operation == "while carry":
                self._dependent.add(value.name)
        self._manual: set[str] = set()  # inside a `shard_map`, whose code chooses the axes itself
        for value in values:
            if value.operation == "manual_computation input" or self._manual.intersection(value.operands):
                self._manual.add(value.name)
        self._after_backward: set[str] = set()  # computed from cotangents, such as new parameters
        for value in values:
            if _is_cotangent(value) or self._after_backward.intersection(value.operands):
                self._after_backward.add(value.name)

    def batches(self, axis: str) -> set[int]:
        """The sizes of all data dimensions that are sharded over an axis, and of the micro-batches made of them."""
        sizes = {
            size for value in self._data for size, axes in zip(value.shape, value.spec, strict=False) if axis in axes
        }
        for value in self.values:  # the axis shards the number of micro-batches instead of their examples
            if value.operation == "reshape" and value.name in self._dependent:
                pairs = zip(value.shape, value.shape[1:], value.spec, strict=False)
                sizes |= {
                    inner for count, inner, axes in pairs if axis in axes and inner > 1 and count * inner in sizes
                }
        return sizes

    @functools.cached_property
    def work(self) -> dict[str, float]:
        """The planned work of each value on one device: FLOPs of products, or elements."""
        return {value.name: self._work(value) for value in self.values}

    def _work(self, value: PlannedValueRecord) -> float:
        if value.operation in _NO_WORK:
            return 0.0
        sizes = [math.prod(value.shape)]
        specs = [value.spec]
        if value.operation == "dot_general":
            operands = [self.by_name[name] for name in value.operands if name in self.by_name]
            sizes += [math.prod(operand.shape) for operand in operands]
            specs += [operand.spec for operand in operands]
        shards = math.prod(self.sizes.get(axis, 1) for axis in {a for spec in specs for axes in spec for a in axes})
        return (2 * math.sqrt(math.prod(sizes)) if len(sizes) > 1 else sizes[0]) / shards

    def _lost_dimension(self, value: PlannedValueRecord, axis: str, batches: set[int]) -> int | None:
        """The dimension that the axis should shard; None if the value has the axis, or no batch dimension."""
        is_update = value.name in self._after_backward and value.shape in self._state_shapes
        is_activation = value.name in self._dependent and not is_update
        if not is_activation or value.operation in _NOT_COMPUTED or not value.shape or value.name in self._manual:
            return None
        if any(axis in axes for axes in value.spec):
            return None
        for at, (size, axes) in enumerate(zip(value.shape, value.spec, strict=False)):
            shards = math.prod(self.sizes.get(a, 1) for a in axes)
            is_merged = any(size % batch == 0 and size > batch for batch in batches)  # of several dimensions
            if (is_merged or (size in batches and not axes)) and size % (shards * self.sizes[axis]) == 0:
                return at
        return None

    def candidates(
        self, axis: str, batches: set[int], cause: WhyCauseRecord | None
    ) -> tuple[tuple[CandidateLine, ...], float]:
        """The lines to constrain, most promising first, and the share of one device's work that is repeated."""
        lost = {
            value.name: at for value in self.values if (at := self._lost_dimension(value, axis, batches)) is not None
        }
        total = sum(self.work.values()) or 1.0
        repeated = sum(self.work[name] for name in lost) / total
        lines: dict[tuple[str, int], list[PlannedValueRecord]] = defaultdict(list)
        for name in lost:
            value = self.by_name[name]
            if value.source is not None and not _is_cotangent(value) and value.dtype.startswith(("f", "bf")):
                lines[value.source.file, value.source.line].append(value)
        # Code that also computes values with the axis, such as a layer applied twice, cannot have one constraint.
        sources = {v.source for v in self.values if any(axis in axes for axes in v.spec) and not _is_cotangent(v)}
        lines = {at: values for at, values in lines.items() if not any(v.source in sources for v in values)}
        work_here = {line: sum(self.work[value.name] for value in values) for line, values in lines.items()}
        work_after = {line: self._work_after(values, lost) for line, values in lines.items()}
        by_after = sorted(lines, key=lambda line: -work_after[line])
        by_own = sorted(lines, key=lambda line: -work_here[line])
        order = list(dict.fromkeys(line for pair in zip(by_after, by_own, strict=True) for line in pair))
        candidates = [self._candidate(lines[line], axis, lost) for line in order]
        if cause is not None and cause.source is not None:
            value = self.by_name[cause.value]
            read = (self._read_by(value) if _is_cotangent(value) else None) or value
            change = constraint_advice(read, cause.spec)
            candidates.insert(0, CandidateLine(read.source or cause.source, {value.shape: cause.spec}, change))
        return tuple(candidates[:_MOST_LINES]), repeated

    def _read_by(self, cotangent: PlannedValueRecord) -> PlannedValueRecord | None:
        """The value whose cotangent this is: in the forward pass, the cotangent's line reads the value."""
        for user in self.values:
            if user.source == cotangent.source and not _is_cotangent(user):
                for value in (self.by_name.get(name) for name in user.operands):
                    if value is not None and value.shape == cotangent.shape and value.name in self._dependent:
                        return value
        return None

    def _work_after(self, values: Sequence[PlannedValueRecord], lost: dict[str, int]) -> float:
        """The repeated work of some values, and of those values computed from them that lack the axis."""
        seen, waiting, work = set(), [value.name for value in values], 0.0
        while waiting:
            name = waiting.pop()
            if name in seen or name not in lost:
                continue
            seen.add(name)
            work += self.work[name]
            waiting += [user.name for user in self.users[name]]
        return work

    def _candidate(self, values: Sequence[PlannedValueRecord], axis: str, lost: dict[str, int]) -> CandidateLine:
        # Inner steps of a line cannot be constrained by hand: take the results that other lines read.
        here = {value.name for value in values}
        results = [v for v in values if any(user.name not in here for user in self.users[v.name])] or [values[-1]]
        specs = {}
        for value in results:
            entries = [*value.spec, *[()] * (len(value.shape) - len(value.spec))]
            entries[lost[value.name]] += (axis,)
            specs[value.shape] = tuple(entries)
        largest = max(results, key=lambda value: math.prod(value.shape))
        assert largest.source is not None
        return CandidateLine(largest.source, specs, constraint_advice(largest, specs[largest.shape]))
