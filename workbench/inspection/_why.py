"""Explains collectives and replication from Shardy's decisions: operands, shardings and their origins."""

import copy
import dataclasses
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from workbench.inspection._call_tree._frames import shown_file
from workbench.inspection._compiled_shardings import (
    COMPILER,
    EXCHANGES,
    REARRANGING,
    Place,
    axis_size,
    compiled_values,
    is_shard,
    observed_spec,
    parts_of,
    place_of,
    shape_of,
    whole_axis,
    with_spec,
)
from workbench.inspection._flow import CompiledFlow, likeness, planned_origins
from workbench.inspection._why_causes import find_causes, is_constraint, last_name
from workbench.inspection.hlo import combined_names
from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ProgramRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import (
    PlannedCollectiveRecord,
    PlannedValueRecord,
    PropagationRecord,
    Reason,
    WhyArrayRecord,
    WhyCollectiveRecord,
    WhyOperandRecord,
    WhyRecord,
)
from workbench.render import AxisChains
from workbench.render.units import spec_text

Spec = tuple[tuple[str, ...], ...]
_LARGE_BYTES = 1 << 20  # smaller arrays are not explained, unless the program has no larger arrays
_MOST_ARRAYS = 12
_INPUT = re.compile(r"input: (\d+)")
_CARRY = re.compile(r"%(\d+)\.\d+#(\d+)")
_LOOP_VALUE = re.compile(r"%(\d+)(?:\.\d+)?(?:#(\d+))?")  # a carry, or a result of the loop
_INDEX = re.compile(r"(?<=[\[._])\d+(?=[\]._'`])")  # a layer's number: `layers[3].w`, `params['Dense_1']`, not `w1`
_RULE = re.compile(r"\((?P<inputs>.*?)\)->\((?P<outputs>.*?)\)")
_FACTOR = re.compile(r"[a-z](?:_\d+)?")
_DIMENSIONS = re.compile(r"\[([^\]]*)\]")


def explain_program(record: ProgramRecord, *, large_bytes: int | None = None) -> WhyRecord:
    """Explains every collective of a program, and its large replicated arrays.

    Args:
        record: A record from `inspect`, for a program on a mesh.
        large_bytes: Minimum size in bytes of the replicated arrays that are explained. Default: 1 MiB, or a tenth of
            the largest value if all values are smaller than 1 MiB.

    Returns:
        One entry per compiled collective (or per collective that Shardy requests, if nothing was compiled), sorted by
        decreasing bytes sent, followed by the replicated arrays, largest first. The `notes` list unexplained parts.
    """
    notes: list[str] = []
    propagation = record.propagation
    if propagation is None or not propagation.values:
        notes.append(
            "the propagation of shardings is unknown for this program, so its collectives cannot be explained: pass "
            "the function itself, with a mesh or with arguments on a mesh"
        )
        propagation = PropagationRecord()
    sizes = {} if record.mesh is None else {axis.name: axis.size for axis in record.mesh.axes}
    module = record.module
    compiled = () if module is None else module.collectives
    reader = _Reader(propagation, sizes, () if module is None else module.instructions, record.call_tree, compiled)
    if record.module is not None:
        reasons = [reader.compiled(collective).replace(instruction=collective.name) for collective in compiled]
        missing = sum(why.reason == "unknown" for why in reasons)
        if missing and propagation.values:
            notes.append(
                f"{missing} of {len(reasons)} collectives could not be matched to an operation of the program after "
                "sharding propagation"
            )
    else:
        reasons = [reader.planned(collective) for collective in propagation.collectives]
        notes.append("nothing was compiled: these are planned collectives, which the compiler may combine or change")
    reasons.sort(key=lambda why: -(why.payload_bytes if why.sent_bytes is None else why.sent_bytes))
    devices = math.prod(axis.size for axis in record.mesh.axes) if record.mesh is not None else 1
    arrays = reader.replicated(sizes, large_bytes) if devices > 1 else ()
    causes = find_causes(propagation.values, reasons, _factors, reader.named, reader.origin, reader.departs)
    return WhyRecord(
        name=record.name,
        target=record.target,
        causes=causes,
        collectives=tuple(reasons),
        arrays=arrays,
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The factors (`i`, `k`, …) of each dimension of an operation's operands and results."""

    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    summed: frozenset[str]
    whole: frozenset[str]  # factors that the operation is not able to shard


@functools.lru_cache(maxsize=4096)
def _read_rule(text: str) -> _Rule | None:
    match = _RULE.match(text)
    if match is None:
        return None

    def values(part: str) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(d.strip() for d in dims.split(",")) if dims.strip() else () for dims in _DIMENSIONS.findall(part)
        )

    def factors(name: str) -> frozenset[str]:
        listed = re.search(rf"{name}=\{{([^}}]*)\}}", text)
        return frozenset(f.strip() for f in listed[1].split(",")) if listed else frozenset()

    full_factors = factors("need_replication") | factors("permutation")
    rule = _Rule(values(match["inputs"]), values(match["outputs"]), factors("reduction"), full_factors)
    before, after = (
        {f for dims in side for dim in dims for f in _parts_of(dim)} for side in (rule.inputs, rule.outputs)
    )
    return rule if before & (after | rule.summed | full_factors) or not before else None  # unrelated operands


def _parts_of(factor: str) -> set[str]:
    """The factors of one dimension; a reshaped dimension may have several, such as `jk`."""
    return set(_FACTOR.findall(factor))


def _factors(value: PlannedValueRecord) -> tuple[Sequence[Sequence[str]], Sequence[str]] | None:
    """The factors of all dimensions of a value's operands and result."""
    rule = _read_rule(value.rule)
    return None if rule is None or not rule.outputs else (rule.inputs, rule.outputs[0])


@dataclasses.dataclass(frozen=True)
class _Cause:
    """One explanation of a collective."""

    value: PlannedValueRecord | None
    reason: Reason
    sentence: str
    advice: str
    on_result: bool = True  # whether the sentence depends on the sharding of the operation's result
    on_peers: bool = True  # whether it depends on the shardings of all operands
    operands: tuple[WhyOperandRecord, ...] | None = None  # None: the operands as propagated
    summed: frozenset[str] = frozenset()  # the axes over which the sum that the sentence describes is split


def _best(
    fits: list[tuple[float, _Cause]], size: Callable[[_Cause], tuple[int, ...]] = lambda cause: ()
) -> list[_Cause]:
    """The causes that match best, largest first."""
    most = max((score for score, _ in fits), default=0)
    return sorted((cause for score, cause in fits if score == most), key=size, reverse=True)


def _covers(cause: _Cause, axes: Sequence[str]) -> bool:
    """Returns whether a sum is split over all axes of a collective."""
    return not cause.summed or cause.summed >= set(axes)


def _is_rearranged(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether an array of one shape is, without its dimensions of 1, a transpose or reshape of another.

    A reshape merges or splits dimensions, so that one of the arrays has all borders between dimensions of the other.
    """
    one, two = ([size for size in sizes if size != 1] for sizes in (shape, other))
    if sorted(one) == sorted(two):
        return True
    ends = {len(sizes): set(itertools.accumulate(sizes, operator.mul)) for sizes in (one, two)}
    fewer, more = min(ends), max(ends)
    backwards = set(itertools.accumulate(reversed(min(one, two, key=len)), operator.mul))
    return len(ends) == 2 and (ends[fewer] <= ends[more] or backwards <= ends[more])


def _is_of(value: PlannedValueRecord, op_name: str, line: tuple[str, int] | None) -> bool:
    """Returns whether a compiled instruction belongs to an operation; one of the two may have no line."""
    return value.op_name == op_name and (line is None or _line_of(value) in (None, line))


def _line_of(value: PlannedValueRecord | InstructionRecord | None) -> tuple[str, int] | None:
    return (value.source.file, value.source.line) if value is not None and value.source is not None else None


def _distinct(causes: Sequence[_Cause]) -> list[_Cause]:
    """Removes duplicate explanations, and merges explanations of identical layers, with `*` for the layer's number."""
    groups: dict[str, list[_Cause]] = {}
    for cause in causes:
        groups.setdefault(re.sub(r"`[^`]*`", lambda name: _INDEX.sub("*", name[0]), cause.sentence), []).append(cause)
    return [
        group[0] if len({cause.sentence for cause in group}) == 1 else dataclasses.replace(group[0], sentence=sentence)
        for sentence, group in groups.items()
    ]


def _are_derived(names: Iterable[str]) -> bool:
    """Returns whether all operations of a collective belong to a backward pass.

    Inside `shard_map`, planned names lack this path, and a combined collective has a name such as `step/(psum:psum)`.
    """
    parts = list(names)
    return bool(parts) and all("transpose(" in part for part in parts)


def _result_name(output: PlannedValueRecord) -> str:
    return "its result" if output.op_name in ("", "result") else f"`{output.op_name}`"


def _unexplained(axes: Sequence[str], line: SourceLine | None) -> _Cause:
    over = " and ".join(f"`{axis}`" for axis in axes) or "devices that do not form a mesh axis"
    place = f" at {_place(line)}" if line else ""
    sentence = f"The program or the compiler exchanges values over {over}{place}; no reason was found."
    return _Cause(None, "unknown", sentence, "")


class _Reader:
    def __init__(
        self,
        propagation: PropagationRecord,
        sizes: dict[str, int],
        instructions: Sequence[InstructionRecord] = (),
        call_tree: CallTreeRecord | None = None,
        collectives: Sequence[CollectiveRecord] = (),
    ) -> None:
        self.propagation = propagation
        self._collectives = collectives
        self._by_name = {collective.name: collective for collective in collectives}
        self._call_tree = call_tree
        self._nodes: dict[str, list[CallNodeRecord]] = {}  # nodes of the call tree, by instruction name
        for node in () if call_tree is None else call_tree.nodes:
            for name in node.instructions:
                self._nodes.setdefault(name, []).append(node)
        self._flow = CompiledFlow(instructions)
        self._origins_of = planned_origins(propagation.values)
        self.users: dict[str, list[PlannedValueRecord]] = {}
        for value in propagation.values:
            for operand in value.operands:
                self.users.setdefault(operand, []).append(value)
        self._sizes = sizes  # sizes of the mesh axes
        self._confirmed: frozenset[str] = frozenset()  # values whose shardings are those of the compiled program
        self.values: Mapping[str, PlannedValueRecord] = {value.name: value for value in propagation.values}
        self._chains = AxisChains(propagation)
        self._shapes: dict[str, set[tuple[int, ...]]] = {}  # of compiled instructions, by name
        for instruction in instructions:
            shape = shape_of(instruction)
            if shape is not None and instruction.opcode.removesuffix("-start") not in EXCHANGES:
                self._shapes.setdefault(instruction.op_name, set()).add(shape)
        self.by_op_name: dict[str, list[PlannedValueRecord]] = {}
        self._by_line: dict[tuple[str, int] | None, list[PlannedValueRecord]] = {}
        for value in propagation.values:
            if value.operation not in ("input", "output"):
                self.by_op_name.setdefault(value.op_name, []).append(value)
                self._by_line.setdefault(_line_of(value), []).append(value)
        self._lines: dict[str, set[tuple[str, int] | None]] = {}  # of operations and arguments, by name
        for value in propagation.values:
            if value.op_name and value.operation != "output":
                self._lines.setdefault(value.op_name, set()).add(_line_of(value))
        self._order = {value.name: number for number, value in enumerate(propagation.values)}

    # Collectives.

    def compiled(self, collective: CollectiveRecord) -> WhyCollectiveRecord:
        axes = tuple(dict.fromkeys(whole_axis(axis) for axis in collective.axes))
        line = collective.sources[0] if collective.sources else None
        causes = self._sums(collective, axes) if collective.kind in _SUMS else []
        causes = causes or self._written(collective)
        if collective.kind not in _SUMS:
            causes = (
                causes
                or self._candidates(collective, axes)
                or self._moves(collective, axes)
                or self._other(collective, axes)
            )
        causes = causes or self._returned(collective, axes) or self._elsewhere(collective, axes)
        causes = [checked for cause in causes if (checked := self._checked(cause, collective, axes)) is not None]
        reader = self
        if not all(_covers(cause, axes) for cause in causes[:1]) or not causes:
            observed = self._as_compiled(collective, axes)
            if observed and (not causes or _covers(observed[0], axes)):
                reader, causes = self._of_compiled, observed
        causes = causes or self._instruction(collective, axes)
        causes = causes or [_unexplained(axes or collective.axes, line)]
        # If there are several causes, the cause on the line that `inspect` names comes first.
        lines = [(source.file, source.line) for source in collective.sources]
        places: dict[tuple[str, int] | None, int] = {
            line: n for n, line in reversed([*enumerate(lines)])
        }  # the line with most bytes is first
        cause, *alternatives = sorted(_distinct(causes), key=lambda c: places.get(_line_of(c.value), len(lines)))
        sentence = cause.sentence
        if not _covers(cause, axes):
            rest = _listed(set(axes) - cause.summed)
            sentence += f" The propagated shardings do not explain why the exchange also spans {rest}."
        exchanged = len(self._exchanged(collective))
        count = exchanged if exchanged > 1 else len(alternatives) + 1
        if self._is_combined(collective) and count > 1:
            sentence += f" The compiler combined {count} exchanges into one{_others_at(cause, alternatives, count)}."
        elif alternatives:
            sentence += f" Or: {alternatives[0].sentence} Both explanations fit the compiled instruction."
        if reader is not self:
            sentence += f" {_DIFFERENT}"
        sentence += "".join(f" {_in_part(axis)}" for axis in collective.axes if axis != whole_axis(axis))
        value = cause.value
        source = next((source for source in collective.sources if (source.file, source.line) == _line_of(value)), line)
        source = source or (value.source if value else None)
        return WhyCollectiveRecord(
            kind=collective.kind,
            axes=collective.axes,
            executions=collective.executions,
            payload_bytes=collective.payload_bytes,
            sent_bytes=collective.sent_bytes,
            reason=cause.reason,
            sentence=sentence,
            operation="" if value is None else _called(value) if value.operation == "custom_call" else value.operation,
            source=source,
            callers=self._callers(collective, source),
            operands=cause.operands if cause.operands is not None else reader._told(value) if value else (),
            advice=cause.advice,
        )

    @functools.cached_property
    def _of_compiled(self) -> "_Reader":
        """A reader of the shardings that the compiled program has."""
        instructions = tuple(self._flow.instructions.values())
        values, confirmed = compiled_values(
            self.propagation.values, instructions, self._sizes, self._local, self._divided
        )
        propagation = self.propagation.replace(values=values)
        reader = _Reader(propagation, self._sizes, instructions, self._call_tree, self._collectives)
        reader._divided = self._divided
        reader._confirmed = confirmed
        return reader

    @functools.cached_property
    def _divided(self) -> dict[Place, frozenset[str]]:
        """The axes of which the compiler uses a part, by the name and line of the operations around the exchange.

        The shape of a part does not distinguish these axes from others: a dimension that is halved may be sharded over
        an axis of size 2 or over half of an axis of size 4.
        """
        divided: dict[Place, frozenset[str]] = {}
        for collective in self._collectives:
            if axes := frozenset(map(whole_axis, self._unplanned_parts(collective))):
                for place in self._flow.places_around(collective.name):
                    divided[place] = divided.get(place, frozenset()) | axes
        return divided

    def _unplanned_parts(self, collective: CollectiveRecord) -> list[str]:
        """The parts of axes that a collective uses, but no propagated sharding."""
        return [axis for axis in collective.axes if axis != whole_axis(axis) and axis not in self._planned_parts]

    @functools.cached_property
    def _planned_parts(self) -> dict[str, str]:
        return parts_of(self.propagation.values)

    def _as_compiled(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """The reasons that follow from the shardings of the compiled program, where these differ from Shardy's."""
        if not axes or self._unplanned_parts(collective) or not self._flow.instructions:
            return []
        reader = self._of_compiled
        if collective.kind not in _SUMS:
            return reader._moves(collective, axes)
        sums = [cause for cause in reader._sums(collective, axes) if cause.value and reader._is_confirmed(cause.value)]
        return sums if reader._explain_most(collective, sums, axes) else []

    def _is_confirmed(self, value: PlannedValueRecord) -> bool:
        """Returns whether the shardings of an operation's operands are those of the compiled program."""
        return all(operand.name in self._confirmed for operand in self._operands(value) if operand.shape)

    def _callers(self, collective: CollectiveRecord, source: SourceLine | None) -> tuple[SourceLine, ...]:
        """The calls that lead to a collective's function, innermost first; empty if unknown."""
        if self._call_tree is None or source is None:
            return ()
        here = shown_file(source.file), source.line
        nodes = sorted(self._nodes.get(collective.name, ()), key=lambda node: -node.instructions[collective.name])
        for path in map(self._call_tree.path, nodes):
            places = [(shown_file(node.file or ""), node.line) for node in path]
            if here not in places:
                continue
            calls = [node for node in path[: places.index(here)] if node.kind == "call" and not node.hidden]
            return tuple(
                SourceLine(file=node.file, line=node.line, column=node.column)
                for node in reversed(calls)
                if node.file is not None and node.line is not None
            )
        return ()

    def _named_so(self, collective: CollectiveRecord) -> list[PlannedValueRecord]:
        """The operations that have the collective's name and line."""
        names = {part for name in collective.op_names for part in combined_names(name)}
        lines = {(source.file, source.line) for source in collective.sources}
        if collective.kind in _SUMS and len(parts := self._flow.makers(collective.name)) > 1:
            names |= {part.op_name for part in parts}
            lines |= {(part.source.file, part.source.line) for part in parts if part.source is not None}
        here = {v.name: v for line in lines for v in self._by_line.get(line, ())}
        named = {v.name: v for name in names for v in self.by_op_name.get(name, ())}
        # Operations in the body of a library's loop have names but no lines.
        both = {name: v for name, v in named.items() if not lines or v.source is None or name in here}
        calls = {last_name(name) for name in names}  # planned names lack the path to a `shard_map`
        both |= {name: v for name, v in here.items() if v.operation in _WRITTEN and last_name(v.op_name) in calls}
        return sorted((both or here or named).values(), key=lambda value: self._order[value.name])

    def _sums(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """The sums that the collective completes, matched by size and data flow, largest first."""
        fits: list[tuple[float, _Cause]] = []
        combined, before = self._is_combined(collective), self._flow.origins(self._operand_names(collective))
        parts = self._exchanged(collective)
        shapes = [self._flow.instructions[name].shape for name in self._operand_names(collective)]
        summed = axes if set(axes) == set(collective.axes) else ()  # a part of an axis may still shard the sum
        for value in self._named_so(collective):
            if collective.reduction is not None and _reduction_of(value) not in (None, collective.reduction):
                continue
            if value.operation in _WRITTEN and value.operation.replace("_", "-") not in _SUMS:
                continue
            cause = self._reason(value, axes, collective.op_names)
            if cause.reason not in ("sum", "program"):
                cause = self._sum(value, axes, set())  # the sum is sharded over the same axis: a reduce-scatter
            if cause is None or any(map(self.departs, self._operands(value))):
                continue
            fitting = {
                dtype
                for (dtype, size), shape in zip(parts, shapes, strict=True)
                if self._is_partial_sum(value, summed, dtype, size) and self._has_shape(value, shape, summed)
            }
            is_part = combined and (bool(fitting) if parts else self._device_bytes(value) <= collective.payload_bytes)
            is_typed = any(_is_stored_as(value.dtype, dtype) for dtype in fitting)
            dtype = parts[0][0] if parts else value.dtype
            is_whole = self._is_partial_sum(value, summed, dtype, collective.payload_bytes) and (
                bool(fitting) or not parts
            )
            score = float(is_whole or is_part) + is_typed
            if not combined:
                score += likeness(before, self._origins_of[value.name]) / 2
            fits.append((score, cause))

        def size(cause: _Cause) -> tuple[int, int]:  # of equal sums, the one with more sharded operands comes first
            if cause.value is None:
                return 0, 0
            sharded = sum(bool(set(axes) & set(map(whole_axis, _axis_set(o)))) for o in self._operands(cause.value))
            return self._device_bytes(cause.value, axes), sharded

        fits = [(score, cause) for score, cause in fits if score >= 1 or not (combined and parts)]
        best = _best(fits, size)
        if self._confirmed:
            best = [cause for cause in best if cause.value and self._is_exchanged_sum(collective, cause.value, summed)]
        return best if self._explain_most(collective, best, summed) else []

    def _explain_most(self, collective: CollectiveRecord, causes: Sequence[_Cause], summed: Sequence[str]) -> bool:
        """Returns whether sums are more than a small part of a combined exchange."""
        values = [cause.value for cause in causes if cause.value is not None]
        widened = sum(self._device_bytes(value, summed) * max(1, 32 // _bits(value.dtype)) for value in values)
        return not self._is_combined(collective) or 2 * widened >= collective.payload_bytes

    def _is_exchanged_sum(self, collective: CollectiveRecord, value: PlannedValueRecord, summed: Sequence[str]) -> bool:
        """Returns whether an operation computes an operand of a collective, which is a partial sum over `summed`."""
        names = self._operand_names(collective)
        makers = [self._flow.maker(name) for name in names]
        return any(
            maker is not None
            and (maker.op_name, _line_of(maker)) == (value.op_name, _line_of(value))
            and self._has_shape(value, self._flow.instructions[name].shape, summed)
            for name, maker in zip(names, makers, strict=True)
        )

    def _has_shape(self, value: PlannedValueRecord, shape: str, summed: Sequence[str]) -> bool:
        """Returns whether one device's partial sum of a value, over `summed`, may have a compiled instruction's shape.

        The compiler transposes products and merges their dimensions.
        """
        parts = [
            math.prod(axis_size(axis, self._sizes) for axis in axes if whole_axis(axis) not in summed)
            for axes in value.spec
        ]
        local = [size // part for size, part in zip(value.shape, parts, strict=True)]
        compiled = [int(size) for size in next(iter(_DIMENSIONS.findall(shape)), "").split(",") if size]
        return _is_rearranged(local, compiled)

    def departs(self, value: PlannedValueRecord) -> bool:
        """Returns whether the compiled program shards a value differently from Shardy's plan.

        XLA simplifies a program before it propagates shardings, so that its shardings may differ.
        """
        peers = self.by_op_name.get(value.op_name, ())
        planned, others = self._shard(value), {peer.shape for peer in peers} - {value.shape}
        compiled = self._shapes.get(value.op_name, set())
        return planned not in compiled and any(
            is_shard(shape, value.shape)
            and any(map(operator.lt, shape, planned))  # not only a gathered copy
            and not any(is_shard(shape, other) for other in others)
            for shape in compiled.difference(map(self._shard, peers))
        )

    def _checked(self, cause: _Cause, collective: CollectiveRecord, axes: Sequence[str]) -> _Cause | None:
        """A cause that the compiled program does not contradict; None if it does.

        The compiler may apply a constraint earlier, to the operands of the operation whose result is constrained.
        """
        value, compiled = cause.value, self._of_compiled
        if value is None or not self._is_refuted(cause, collective, axes):
            return cause
        computed = next(iter(self._operands(value)), None)
        if cause.reason != "constraint" or computed is None or computed.name not in compiled._confirmed:
            return None
        is_early = not self._is_elsewhere(value, compiled.values[computed.name].spec, axes)
        if not is_early or not self._is_read_by(collective, computed):
            return None
        sentence = f"{cause.sentence} The compiler applies it before `{_called(computed)}`."
        return dataclasses.replace(cause, sentence=sentence)

    def _is_read_by(self, collective: CollectiveRecord, value: PlannedValueRecord) -> bool:
        """Returns whether an operation reads what a collective exchanges."""
        return any(_is_of(value, c.op_name, _line_of(c)) for c in self._flow.consumers(collective.name))

    def _is_refuted(self, cause: _Cause, collective: CollectiveRecord, axes: Sequence[str]) -> bool:
        """Returns whether the compiled program has other shardings over `axes`, or moves another array, than stated."""
        if cause.value is None or cause.reason == "program" or not self._flow.instructions:
            return False
        named = [o for o in self._operands(cause.value) if self.named(o) in cause.sentence]
        compiled, does = self._of_compiled, _DOES.get(collective.kind)
        for moved in named if collective.kind in ("all-gather", "all-to-all") else ():
            is_named = f"{does} {self.named(moved)}" in cause.sentence
            if is_named and self._has_other_size(moved, collective):
                return True
            is_passed = collective.kind == "all-to-all" and cause.reason == "whole dimension"
            if (is_named or is_passed) and not self._may_exchange(collective, *named, cause.value):
                return True
        return any(
            value.name in compiled._confirmed and self._is_elsewhere(value, compiled.values[value.name].spec, axes)
            for value in (*named, *([cause.value] if cause.on_result else ()))
        )

    def _has_other_size(self, value: PlannedValueRecord, collective: CollectiveRecord) -> bool:
        """Returns whether no exchanged array is one device's part of a value."""
        least = math.prod(value.shape) // math.prod(self._sizes.values())
        sizes = [size * 8 // _bits(dtype) for dtype, size in self._exchanged(collective)]
        return sum(sizes) < least or max(sizes, default=0) > math.prod(value.shape)

    def _is_elsewhere(self, value: PlannedValueRecord, compiled: Spec, axes: Sequence[str]) -> bool:
        """Returns whether the compiled program shards other dimensions over `axes` than the propagation."""
        used = set(axes)
        pairs = [
            (set(_axes_of(value.spec, dim)) & used, set(_axes_of(compiled, dim)) & used)
            for dim in range(len(value.shape))
        ]
        if "reduction={" in value.rule and all(cut <= planned for planned, cut in pairs):
            return False  # the compiled instruction computes partial sums, which are cut when they are added
        return any(planned != cut for planned, cut in pairs)

    def _shard(self, value: PlannedValueRecord) -> tuple[int, ...]:
        """The shape of one device's part of a value."""
        parts = [math.prod(axis_size(axis, self._sizes) for axis in axes) for axes in value.spec]
        return tuple(size // part for size, part in zip(value.shape, parts, strict=True))

    def _is_border(self, collective: CollectiveRecord, value: PlannedValueRecord) -> bool:
        """Returns whether neighbours exchange a border: a part of a value, cut along only one dimension."""
        names = self._operand_names(collective) if collective.kind == "collective-permute" else ()
        local = self._shard(value)
        for name in names:
            sizes = _DIMENSIONS.findall(self._flow.instructions[name].shape)[0].split(",")
            if len(sizes) != len(local) or "" in sizes:
                continue
            border = list(map(int, sizes))
            different = [dim for dim, size in enumerate(border) if size != local[dim]]
            if len(different) == 1 and border[different[0]] < local[different[0]] < value.shape[different[0]]:
                return True
        return False

    def _exchanged(self, collective: CollectiveRecord) -> list[tuple[str, int]]:
        """The dtype and bytes of each operand of a collective."""
        operands = [
            self._flow.instructions[name] for name in self._operand_names(collective) if name in self._flow.instructions
        ]
        return [(_planned_dtype(operand.shape.partition("[")[0]), operand.size_bytes) for operand in operands]

    def _operand_names(self, collective: CollectiveRecord) -> tuple[str, ...]:
        instruction = self._flow.instructions.get(collective.name)
        return instruction.operands if instruction is not None else ()

    def _moves(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """The operands that must be resharded over the collective's axes."""
        # An exchanged value that has no name and is returned serves only the results.
        is_last = not collective.op_names and self._flow.is_result(collective.name)
        makers, at = self._flow.makers(collective.name), [] if is_last else self._named_so(collective)
        # The compiled program has fewer columns than the propagation, so places are compared by line.
        origins = [(maker.op_name, None if maker.opcode == "parameter" else _line_of(maker)) for maker in makers]
        consumers = self._flow.consumers(collective.name)
        before, exchanged = self._flow.origins(self._operand_names(collective)), self._exchanged(collective)
        after = self._flow.origins(consumer.name for consumer in consumers)
        readers = [user for value in at for user in self.users.get(value.name, ())]
        outputs = [value for value in self.propagation.values if value.operation == "output"]
        fits: list[tuple[float, _Cause]] = []
        is_called = self._flow.is_called(collective.name)
        if is_called:
            ends = [(value, self._body_end(value, axes, collective.kind)) for value in at]
            fits += [(2.0 + 4 * self._has_size(collective, value), cause) for value, cause in ends if cause is not None]
        for value in {v.name: v for v in (*at, *readers, *([] if at else outputs))}.values():
            if value.operation == "while" and is_called and value.op_name not in collective.op_names:
                continue  # a loop that starts elsewhere
            if value.operation not in _CONTAINERS and value.name.partition("#")[2] not in ("", "0"):
                continue  # another result of the same operation
            is_consumer = any((c.op_name, _line_of(c)) == (value.op_name, _line_of(value)) for c in consumers)
            for number, operand in enumerate(self._operands(value)):
                is_made = any(_is_of(operand, *origin) for origin in origins)
                if self._confirmed:
                    is_made = is_made or any(_is_of(o, *pair) for o in self._rearranged(operand) for pair in origins)
                    if not (is_made and (is_consumer or value in at)):
                        continue
                    cause = self._observed_move(value, number, collective, consumers)
                else:
                    cause = self._move(value, number, operand, axes, collective.kind) or self._kept(
                        value, number, collective
                    )
                if cause is None:
                    continue
                is_typed = any(_is_stored_as(operand.dtype, dtype) for dtype, _ in exchanged)
                if (exchanged and not is_typed) or (collective.kind == "all-gather" and self.departs(operand)):
                    continue
                if (
                    collective.kind == "all-to-all"
                    and value.operation in _LOOKUPS
                    and self._has_size(collective, value)
                ):
                    does = f"the compiler {_DOES[collective.kind]}"
                    sentence = cause.sentence.replace(f"{does} {self.named(operand)}", f"{does} the elements looked up")
                    cause = dataclasses.replace(cause, sentence=sentence)
                score = (
                    8 * is_made
                    + max(4 * self._has_size(collective, operand), 5 * self._is_border(collective, operand))
                    + 2 * (value in at)
                    + is_consumer
                    + is_typed
                    + self._reads_arguments(value, consumers)
                )
                alike = likeness(before, self._origins_of[operand.name]) + likeness(after, self._origins_of[value.name])
                fits.append((score + alike / 4, cause))
        makers_of = [value for value in at if any(_is_of(value, *origin) for origin in origins)]
        joins = [self._joined(value, axes, collective.kind) for value in makers_of]
        largest = [cause for cause in joins if cause and cause.value and self._has_size(collective, cause.value)]
        return largest[:1] or _best(fits)

    def _origins(self, collective: CollectiveRecord, slicing: frozenset[str] = frozenset()) -> list[Place]:
        """The names and lines of the operations, or arguments, that a collective exchanges.

        The compiled program has fewer columns than the propagation, so places are compared by line.
        """
        makers = self._flow.makers(collective.name, slicing)
        return [(maker.op_name, None if maker.opcode == "parameter" else _line_of(maker)) for maker in makers]

    def _may_exchange(self, collective: CollectiveRecord, *values: PlannedValueRecord) -> bool:
        """Returns whether a collective exchanges one of the values, or comes from an unknown operation."""
        origins = self._origins(collective, _SLICING)
        if not origins or not all(self._is_planned(*origin) for origin in origins):
            return True
        copies = [v for value in values for v in self._same(value)]
        return any(_is_of(v, *origin) for v in copies for origin in origins)

    def _is_planned(self, op_name: str, line: tuple[str, int] | None) -> bool:
        """Returns whether the propagation has an operation or argument of a compiled instruction's name and line."""
        lines = self._lines.get(op_name, ())
        return bool(lines) and (line is None or line in lines or None in lines)

    def _same(self, value: PlannedValueRecord | None) -> Iterable[PlannedValueRecord]:
        """A value, and the values of which it is a part, a copy or a rearrangement."""
        while value is not None:
            yield value
            operands = self._operands(value)
            if value.operation == "while carry":
                value = self._start_of(value)
            elif value.operation == "optimization_barrier":
                value = self._before_barrier(value)
            elif value.operation in _SAME and operands:
                value = operands[0]
            else:
                value = self._stack_of(value)

    def _joined(self, value: PlannedValueRecord, axes: Sequence[str], kind: str) -> _Cause | None:
        """Returns why a concatenation is redistributed: the compiler joins it unsharded along its dimension."""
        rule = self._rule_of(value)
        if value.operation != "concatenate" or kind != "all-to-all" or rule is None:
            return None
        for dim, factor in enumerate(rule.outputs[0]):
            if factor in rule.whole and (here := set(_axes_of(value.spec, dim)) & set(axes)):
                sentence = (
                    f"`concatenate`{_at(value)} joins arrays along dimension {dim}, which is sharded over "
                    f"{_listed(here)} in the result: the compiler joins them with this dimension unsharded, and "
                    f"{_DOES[kind]} {self.named(value)}."
                )
                return _Cause(value, "whole dimension", sentence, _other_dimension(value, dim))
        return None

    def _rearranged(self, value: PlannedValueRecord) -> Iterable[PlannedValueRecord]:
        """The values of which a value is a reshape, a transpose or a cast."""
        while value.operation in REARRANGING and (operands := self._operands(value)):
            value = operands[0]
            yield value

    def _observed_move(
        self,
        value: PlannedValueRecord,
        number: int,
        collective: CollectiveRecord,
        consumers: Sequence[InstructionRecord],
    ) -> _Cause | None:
        """Explains the exchange of an operand from the shapes of the instructions around a collective.

        The exchanged instruction has the shape of the operand's part, and the instructions that read the result have
        the shape of the operation's part. Operands of unknown shardings count as unsharded, and no sentence may depend
        on them.
        """
        operands = self._operands(value)
        operand, shapes = operands[number], [self._flow.instructions[n].shape for n in self._operand_names(collective)]
        names = set(self._confirmed)
        patches = {o.name: o.replace(spec=((),) * len(o.shape)) for o in operands if o.name not in names}
        axes = tuple(dict.fromkeys(map(whole_axis, collective.axes)))
        divided = {axis for place in map(place_of, (operand, value)) for axis in self._divided.get(place, ())}
        gathered = dict.fromkeys(self._gathered_dims(collective), axes)
        observed = functools.partial(observed_spec, sizes=self._sizes, divided=divided)
        spec = observed(operand, shapes, gathered=gathered) if collective.kind != "all-to-all" else None
        if operand.operation == "input":
            if spec is None or not all(set(part) <= set(full) for part, full in zip(spec, operand.spec, strict=True)):
                spec = operand.spec if self._has_size(collective, operand) else None
        elif spec is None and operand.name in names and self._has_size(collective, operand):
            spec = operand.spec
        if spec is None:
            return None
        patches[operand.name] = operand = with_spec(operand, spec)
        readers = [c for c in consumers if (c.op_name, _line_of(c)) == (value.op_name, _line_of(value))]
        results = {observed(value, self._flow.shapes_of(reader)) for reader in readers} - {None}
        if len(results) == 1:
            patches[value.name] = value = with_spec(value, results.pop() or value.spec)
        names |= {operand.name, *patches.keys() & {value.name}}
        view = copy.copy(self)
        view.values = {**self.values, **patches}
        cause = view._move(value, number, operand, axes, collective.kind)
        if cause is None or (cause.on_result and value.name not in names):
            return None
        if cause.on_peers and any(o.name not in names for o in operands if o.shape):
            return None
        confirmed = tuple(operand for operand in view._told(value) if operand.value in names)
        return dataclasses.replace(cause, operands=confirmed)

    def _reads_arguments(self, value: PlannedValueRecord, consumers: Sequence[InstructionRecord]) -> bool:
        """Returns whether the instructions of an operation read the same arguments as the operation itself."""
        names = {operand.op_name for operand in self._operands(value) if operand.operation == "input"}
        readers = [c for c in consumers if (c.op_name, _line_of(c)) == (value.op_name, _line_of(value))]
        makers = {maker.op_name for c in readers for maker in self._flow.makers(c.name) if maker.opcode == "parameter"}
        return bool(names) and names <= makers

    def _move(
        self, value: PlannedValueRecord, number: int, operand: PlannedValueRecord, axes: Sequence[str], kind: str
    ) -> _Cause | None:
        """Returns the reason why an operation needs an operand in a different sharding; None if it does not."""
        axis_set, does = set(axes), _DOES.get(kind, "exchanges parts of")
        if value.operation in ("output", "sharding_constraint", "reshard", "copy"):
            changed = _axis_set(operand) ^ _axis_set(value)
            if operand.spec == value.spec or not (axis_set & changed or kind != "all-gather"):
                return None
            if value.operation != "output":
                return self._reason(value, axes)
            sentence = (
                f"The program must return {_result_name(value)} as {spec_text(value.spec)}, but {self.named(operand)} "
                f"is {spec_text(operand.spec)}: the compiler {does} it at the end."
            )
            return _Cause(operand, "output", sentence, "Request the sharding that the value has, or no sharding.")
        if value.operation == "while" and number == int(value.name.partition("#")[2] or 0):
            return self._loop_start(value, operand, axis_set, does)
        if value.operation in _WRITTEN or value.operation in _CONTAINERS:
            return None
        rule, operands = self._rule_of(value), self._operands(value)
        if rule is None:
            if not axis_set & _axis_set(operand):
                return None
            first = [operand, *(peer for peer in operands if peer is not operand)]
            cause = self._without_rule(value, first, axis_set)
            return None if cause.reason in ("unknown", "output") else cause
        for dim, factor in enumerate(rule.inputs[number]):
            here = set(_axes_of(operand.spec, dim)) & axis_set
            if here and (cause := self._move_of(value, rule, (number, dim, factor), here, does)) is not None:
                return cause
        return None

    def _kept(self, value: PlannedValueRecord, number: int, collective: CollectiveRecord) -> _Cause | None:
        """Returns the reason why an operand is gathered although the result keeps its dimension.

        For example, the compiler gathers the indices of a lookup if the indexed array is sharded over the same axis as
        the indices.
        """
        operands, rule = self._operands(value), self._rule_of(value)
        if rule is None or collective.kind != "all-gather":
            return None
        operand, axes = operands[number], set(map(whole_axis, collective.axes))
        if value.operation not in _LOOKUPS or not self._has_size(collective, operand):
            return None
        dim = next((dim for dim in range(len(operand.spec)) if axes & set(_axes_of(operand.spec, dim))), None)
        if dim is None or rule.inputs[number][dim] in rule.summed:
            return None
        rival = next(
            (
                (peer, there, "looks up along" if f in rule.summed else "keeps")
                for peer, factors in zip(operands, rule.inputs, strict=True)
                for there, f in enumerate(factors)
                if peer is not operand and f != rule.inputs[number][dim] and axes & set(_axes_of(peer.spec, there))
            ),
            None,
        )
        if rival is None or self._has_size(collective, rival[0]):
            return None
        name, over = self.named(operand), _listed(axes)
        sentence = (
            f"`{_called(value)}`{_at(value)} {rival[2]} dimension {rival[1]} of {self.named(rival[0])}, which is "
            f"sharded over {over}, and keeps dimension {dim} of {name}, which is also sharded over {over}. A mesh axis "
            f"can shard only one of them, so the compiler gathers {name}."
        )
        return _Cause(value, "disagreement", sentence, _BOTH_SHARDED)

    def _move_of(
        self, value: PlannedValueRecord, rule: _Rule, place: tuple[int, int, str], here: set[str], does: str
    ) -> _Cause | None:
        """Returns why an operation needs its operand to be sharded differently."""
        number, dim, factor = place
        operands = self._operands(value)
        operand, at, over = operands[number], _at(value), _listed(here)
        name = self.named(operand)
        is_halo = value.operation == "convolution" and does == _DOES["collective-permute"]
        if factor in rule.whole or is_halo:
            need = f"needs the full dimension {dim} of {name}, which is sharded over {over}."
            if does != _DOES["all-gather"]:
                need = (
                    f"moves elements along dimension {dim} of {name}, which is sharded over {over}: some elements are "
                    "on other devices."
                )
            advice = _other_dimension(operand, dim)
            sentence = f"`{_called(value)}`{at} {need}"
            return _Cause(value, "whole dimension", sentence, advice, on_result=False, on_peers=False)
        peers = [
            (peer, there, f)
            for i, (peer, factors) in enumerate(zip(operands, rule.inputs, strict=True))
            for there, f in enumerate(factors)
            if i != number
        ]
        if factor in rule.summed:
            cut = [(peer, there, f) for peer, there, f in peers if here & set(_axes_of(peer.spec, there))]
            keeper = next(((peer, there) for peer, there, f in cut if f not in rule.summed), None)
            if keeper is not None:
                use = "indexed" if value.operation in _LOOKUPS else "summed"
                sentence = (
                    f"At `{_called(value)}`{at}, {_shards(here)} two dimensions: dimension {keeper[1]} of "
                    f"{self.named(keeper[0])}, which remains in the result, and dimension {dim} of {name}, which is "
                    f"{use}. A mesh axis can shard only one of these two, so the compiler {does} {name}."
                )
                return _Cause(value, "disagreement", sentence, _BOTH_SHARDED, on_result=False)
            if any(f == factor for _, _, f in cut):
                return None
            if cut and value.operation not in _LOOKUPS:
                sentence = (
                    f"`{_called(value)}`{at} sums over dimension {dim} of {name} and dimension {cut[0][1]} of "
                    f"{self.named(cut[0][0])}, which are both sharded over {over}. These are "
                    "different dimensions of the sum, and a mesh axis can shard only one of them, so the compiler "
                    f"{does} {name}."
                )
                return _Cause(value, "disagreement", sentence, _BOTH_SHARDED, on_result=False)
            if value.operation in _LOOKUPS:
                sentence = (
                    f"`{_called(value)}`{at} looks up elements along dimension {dim} of {name}, which is sharded over "
                    f"{over}. The compiler {does} {name} instead of adding partial results."
                )
                return _Cause(value, "disagreement", sentence, f"Shard a dimension other than {dim}.", on_result=False)
            remark = "; the dimension of the other operand is not" if any(f == factor for _, _, f in peers) else ""
            sentence = (
                f"`{_called(value)}`{at} sums over dimension {dim} of {name}, which is sharded over {over}{remark}. "
                f"The compiler {does} {name} instead of adding partial sums."
            )
            advice = "Shard both summed dimensions over the same axis, or neither."
            return _Cause(value, "disagreement", sentence, advice, on_result=False)
        keeper = [
            place for factors in rule.outputs[:1] for place, f in enumerate(factors) if _parts_of(f) & _parts_of(factor)
        ]
        if keeper and {a for place in keeper for a in _axes_of(value.spec, place)} == set(_axes_of(operand.spec, dim)):
            return None
        result = [
            (place, f)
            for factors in rule.outputs[:1]
            for place, f in enumerate(factors)
            if f != factor and here & set(_axes_of(value.spec, place))
        ]
        factors_of_result = {f for _, f in result}
        holder = next(
            (
                (peer, there)
                for peer, there, f in peers
                if f in factors_of_result and here & set(_axes_of(peer.spec, there))
            ),
            None,
        )
        if holder is None and result:
            sentence = (
                f"At `{_called(value)}`{at}, {_shards(here)} dimension {dim} of {name}, but dimension {result[0][0]} "
                f"of the result. A mesh axis can shard only one dimension of an array, so the compiler {does} {name}."
            )
            return _Cause(value, "disagreement", sentence, _ONE_FOR_BOTH, on_peers=False)
        if holder is not None:
            sentence = (
                f"At `{_called(value)}`{at}, {_shards(here)} two dimensions: dimension {holder[1]} of "
                f"{self.named(holder[0])} and dimension {dim} of {name}. A mesh axis can shard only one dimension of "
                f"the result, which keeps the first of these two, so the compiler {does} {name}."
            )
            advice = "The exchange remains as long as both are sharded over the same mesh axis."
            return _Cause(value, "disagreement", sentence, advice, on_peers=False)
        alike = [peer for peer in operands if peer is not operand and peer.spec == value.spec]
        like = f", like {self.named(alike[0])}" if alike and operand.spec != value.spec else ""
        if operand.spec == value.spec:  # the dimensions differ, as in a transpose
            like = f", and the operation moves dimension {dim}"
        sentence = (
            f"At `{_called(value)}`{at}, {name} is {spec_text(operand.spec)}, and the result is "
            f"{spec_text(value.spec)}{like}: the compiler {does} {name}."
        )
        advice = _ONE_FOR_BOTH
        if value.operation == "reshape":
            advice = (
                "Keep the sharded dimension first among the dimensions that a reshape merges, or shard another "
                "dimension."
            )
        return _Cause(value, "disagreement", sentence, advice)

    def _candidates(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """Reductions with several results, such as `argmax`, whose parts are gathered and reduced again."""
        for value in self._named_so(collective):
            rule, operands = _read_rule(value.rule), self._operands(value)
            parts = value.operation == "reduce" and collective.payload_bytes == self._device_bytes(value)
            if not parts or rule is None or len(rule.outputs) < 2 or self._sum(value, axes, set()) is None:
                continue
            dim = next(i for i, factor in enumerate(rule.inputs[0]) if factor in rule.summed)
            sentence = (
                f"`reduce`{_at(value)} reduces dimension {dim} of {self.named(operands[0])}, which is sharded over "
                f"{_listed(axes)}: every device holds the result for its part, and the compiler "
                f"{_DOES.get(collective.kind, 'exchanges')} these results to reduce them."
            )
            advice = f"The exchange remains as long as the reduced dimension is sharded over {_listed(axes)}."
            return [_Cause(value, "sum", sentence, advice)]
        return []

    def _loop_start(
        self, value: PlannedValueRecord, operand: PlannedValueRecord, axis_set: set[str], does: str
    ) -> _Cause | None:
        """Returns the reason why a loop's initial value is sharded differently from the loop's carry."""
        if operand.spec == value.spec or not axis_set & _axis_set(operand):
            return None
        reader = self._loop_reader(value.name)
        to = f" to `{_called(reader)}`{_at(reader)}" if reader is not None else ""
        sentence = (
            f"The loop{_at(value)} carries {self.named(operand)} as {spec_text(value.spec)}{to}, but the value arrives "
            f"as {spec_text(operand.spec)}: the compiler {does} the value before the loop."
        )
        return _Cause(value, "disagreement", sentence, _ONE_SHARDING)

    def _loop_reader(self, result: str) -> PlannedValueRecord | None:
        """The first operation in the body of a loop that reads a carry, by the name of the loop's result."""
        return next((user for user in self.users.get(result.replace("#", ".1#"), ()) if user.source is not None), None)

    def _body_end(self, value: PlannedValueRecord, axes: Sequence[str], kind: str) -> _Cause | None:
        """Returns the reason why a value computed in a loop body is resharded to match the loop's carry."""
        loop, inside, _ = value.op_name.rpartition("/while/body/")
        if not inside or self.users.get(value.name):
            return None
        carried = {
            carry.spec
            for carry in self.propagation.values
            if carry.operation == "while" and carry.op_name == f"{loop}/while"
            if (carry.shape, carry.dtype) == (value.shape, value.dtype)
        }
        moved = _axis_set(value) & set(axes)
        if len(carried) != 1 or value.spec in carried or not moved:
            return None
        sentence = (
            f"The body of a loop ends with {self.named(value)} as {spec_text(value.spec)}, but the loop carries the "
            f"value as {spec_text(carried.pop())}: the compiler {_DOES.get(kind, 'exchanges parts of')} the value "
            "in every iteration."
        )
        return _Cause(value, "disagreement", sentence, _ONE_SHARDING)

    def _written(self, collective: CollectiveRecord) -> list[_Cause]:
        """Collectives that the program itself requests."""
        written = (v for v in self._named_so(collective) if collective.kind in _COMPILED.get(v.operation, ()))
        return [self._reason(v, collective.axes, collective.op_names) for v in written][:1]

    def _other(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """Other reasons that match the kind of the collective, from the operations at its line."""
        if not collective.op_names and self._flow.is_result(collective.name):
            return []
        here = [v for v in self._named_so(collective) if v.operation not in _CONTAINERS and v.operation not in _WRITTEN]
        causes = [self._reason(value, axes) for value in here]
        exchanged = self._exchanged(collective)
        causes = [
            cause
            for cause in causes
            if cause.reason not in ("unknown", "sum")
            and (
                cause.reason != "disagreement"
                or cause.value is None
                or self._is_exchanged(cause.value, axes, exchanged)
            )
        ]
        vague = [cause for cause in causes if cause.value is not None and cause.value.operation in _PLAIN]
        return [cause for cause in causes if cause not in vague][:1]

    def _is_exchanged(
        self, value: PlannedValueRecord, axes: Sequence[str], exchanged: Sequence[tuple[str, int]]
    ) -> bool:
        """Returns whether the sharded operands of an operation have the dtypes that a collective exchanges."""
        sharded = [operand for operand in self._operands(value) if set(axes) & _axis_set(operand)]
        return not exchanged or all(_is_stored_as(o.dtype, dtype) for o in sharded for dtype, _ in exchanged)

    def _elsewhere(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """The operation that needs a moved collective, if only one operation fits the collective's kind and size."""
        causes: list[_Cause] = []
        lines = [(source.file, source.line) for source in collective.sources]
        if any(value.op_name in collective.op_names and _line_of(value) in lines for value in self.propagation.values):
            return []  # the planned operation with the collective's name does not need the collective
        for value in self.propagation.values:
            if collective.kind in _SUMS:
                cause = self._reason(value, axes)
                if cause.reason == "sum" and collective.payload_bytes == self._device_bytes(value):
                    causes.append(cause)
                continue
            for number, operand in enumerate(self._operands(value)):
                if self._has_size(collective, operand) and (
                    cause := self._move(value, number, operand, axes, collective.kind)
                ):
                    causes.append(cause)
        causes = _distinct(causes)
        return causes if len(causes) == 1 else []

    def _returned(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """A value that is resharded only because the program returns it, although no sharding was requested."""
        makers = self._flow.makers(collective.name)
        if collective.op_names or not (axes and self.values and makers) or not self._flow.is_result(collective.name):
            return []
        name, over, does = self._made_name(makers[0]), _listed(axes), _DOES.get(collective.kind, "exchanges parts of")
        how = f"without sharding it over {over}" if collective.kind == "all-gather" else "in another sharding"
        sentence = f"The program returns {name} {how}, but computes it in parts over {over}: the compiler {does} it."
        return [_Cause(None, "output", sentence, "Request a sharding of the results (`out_shardings`).")]

    def _instruction(self, collective: CollectiveRecord, axes: Sequence[str]) -> list[_Cause]:
        """The reason found from compiled instructions alone, where the compiler departed from Shardy's shardings."""
        makers, consumers = self._flow.makers(collective.name), self._flow.consumers(collective.name)
        sources = {(source.file, source.line) for source in collective.sources}
        consumers = [consumer for consumer in consumers if consumer.op_name]
        consumers.sort(key=lambda c: c.source is None or (c.source.file, c.source.line) not in sources)
        if not axes or not makers or not self.propagation.values:
            return []
        largest = min(makers, key=lambda maker: (not maker.op_name, -maker.size_bytes))
        name, over = self._made_name(largest), _listed(axes)
        inputs = [m for maker in makers for m in (maker, *self._flow.makers(maker.name))]
        called = next(
            (m for m in inputs if m.opcode in ("conditional", "custom-call") and "callback" in m.op_name), None
        )
        if collective.kind in _SUMS and called is not None:
            where = f" at {_place(called.source)}" if called.source else ""
            sentence = f"`{last_name(called.op_name)}`{where} runs on one device, which sends the result to the others."
            advice = "Inside `jax.shard_map`, every device runs the operation on its own part."
            return [_Cause(None, "unsplit operation", sentence, advice)]
        if collective.kind in _SUMS:
            sentence = f"Each device along {over} holds a part of {name}, and the exchange adds the parts."
            return [_Cause(None, "compiler", f"{sentence} {_DEPARTED}", "")]
        if (change := self._change(collective, makers, consumers)) is not None:
            return [change]
        does = _DOES.get(collective.kind, "exchanges parts of")
        spread = next((m for m in makers if m.op_name in collective.op_names and m.source in collective.sources), None)
        if spread is not None:
            sentence = (
                f"The compiler splits the work of `{last_name(spread.op_name)}` at {_place(collective.sources[0])} "
                f"over {over}, which the propagated shardings do not require, and {does} the result."
            )
            return [_Cause(None, "compiler", sentence, _CONSTRAIN)]
        user = last_name(consumers[0].op_name if consumers else next(iter(collective.op_names), ""))
        source = consumers[0].source if consumers else next(iter(collective.sources), None)
        if not user:
            return []
        where = f" at {_place(source)}" if source else ""
        ranks = {len(shape_of(at) or ()) for at in (largest, self._flow.instructions[collective.name])}
        dims = self._gathered_dims(collective) if len(ranks) == 1 else []  # a reshape changes the numbers of dimensions
        needs = f"the full dimension {dims[0]} of {name}" if len(dims) == 1 else f"{name} in another sharding"
        cut = f"which the compiled program shards over {over}" if len(dims) == 1 else f"over {over}"
        sentence = f"`{user}`{where} needs {needs}, {cut}: the compiler {does} it. {_DEPARTED}"
        return [_Cause(None, "compiler", sentence, _CONSTRAIN)]

    def _change(
        self, collective: CollectiveRecord, makers: Sequence[InstructionRecord], consumers: Sequence[InstructionRecord]
    ) -> _Cause | None:
        """Explains an exchange by the shardings that a value has where it is computed and where it is read."""
        values = {
            v.name: v
            for v in self.propagation.values
            if v.operation != "output"
            for o in self._origins(collective)
            if _is_of(v, *o)
        }
        specs = {
            (v.shape, self._read_as(v, maker.shape, ()))
            for v in values.values()
            for maker in makers
            if len(v.shape) == len(shape_of(maker) or ())
        }
        specs = {(shape, spec) for shape, spec in specs if spec is not None}
        if len(specs) != 1:
            return None
        shape, computed = specs.pop()
        value = next(v for v in values.values() if v.shape == shape)
        spec: Spec | None = computed
        for name in (*self._flow.exchanges_before(collective.name), collective.name):
            spec = None if spec is None else self._exchanged_spec(self._by_name[name], value, spec)
        reader = next((c for c in consumers if (c.op_name, _line_of(c)) != place_of(value)), None)
        if reader is not None and self._flow.is_cut(reader):  # every device keeps a part of the gathered value
            spec = spec and self._read_as(value, reader.shape, ())
        if spec is None or spec == computed:
            return None
        where = f" at {_place(reader.source)}" if reader is not None and reader.source else ""
        reads = "uses the value" if reader is None else f"`{last_name(reader.op_name)}`{where} reads the value"
        loop = next((user for user in self.users.get(value.name, ()) if user.operation == "while"), None)
        if reader is not None and last_name(reader.op_name) == "while" and loop is not None:
            carry = f"{loop.name.partition('#')[0]}#{loop.operands.index(value.name)}"
            if (inner := self._loop_reader(carry)) is not None:
                reads = f"the loop{where} reads the value, at `{_called(inner)}`{_at(inner)},"
        verb = "receives" if value.operation == "input" else "computes"
        sentence = (
            f"The compiled program {verb} {self.named(value)} as {spec_text(computed)}, but {reads} as "
            f"{spec_text(spec)}: the compiler {_DOES[collective.kind]} the value."
        )
        return _Cause(None, "disagreement", sentence, _CONSTRAIN)

    def _read_as(self, value: PlannedValueRecord, shape: str, divided: Collection[str]) -> Spec | None:
        return observed_spec(value, [shape], self._sizes, divided)

    def _exchanged_spec(self, collective: CollectiveRecord, value: PlannedValueRecord, spec: Spec) -> Spec | None:
        """The sharding of a value after an exchange; None if unknown."""
        axes = set(collective.axes)
        dims = [dim for dim, entry in enumerate(spec) if axes & set(entry)]
        rest = tuple(tuple(axis for axis in entry if axis not in axes) for entry in spec)
        if not axes or sum(map(len, spec)) - sum(map(len, rest)) != len(axes):
            return None
        if collective.kind == "all-gather":
            return rest
        others = [dim for dim, size in enumerate(value.shape) if size > 1 and dim not in dims]
        if collective.kind != "all-to-all" or len(dims) != 1 or len(others) != 1:
            return None
        return tuple((*entry, *collective.axes) if dim == others[0] else entry for dim, entry in enumerate(rest))

    def _made_name(self, maker: InstructionRecord) -> str:
        if maker.opcode == "parameter" and not maker.op_name:
            return "a value that the loop carries"
        if maker.opcode == "parameter":
            argument = next((v for v in self.propagation.values if v.op_name == maker.op_name), None)
            return self.named(argument) if argument is not None else f"argument `{maker.op_name}`"
        candidates = self.by_op_name.get(maker.op_name, [])
        planned = [v for v in candidates if v.operands and _line_of(v) == (maker.source and _line(maker.source))]
        typed = [v for v in planned if v.dtype == _planned_dtype(maker.shape.partition("[")[0])] or planned
        alike = [v for v in typed if _called(v) == last_name(maker.op_name)] or typed
        shape = shape_of(maker)
        fitting = [v for v in alike if shape is not None and is_shard(shape, v.shape)] or alike
        if len({(v.operation, v.shape) for v in fitting}) == 1:
            return self.named(fitting[0])
        called = maker.opcode if len(combined_names(maker.op_name)) > 1 else last_name(maker.op_name) or maker.opcode
        return f"the result of `{called}`" + (f" at {_place(maker.source)}" if maker.source else "")

    def _gathered_dims(self, collective: CollectiveRecord) -> list[int]:
        """The dimensions that an all-gather enlarges."""
        instruction = self._flow.instructions.get(collective.name)
        operand = (
            self._flow.instructions.get(instruction.operands[0])
            if instruction is not None and instruction.operands
            else None
        )
        if collective.kind != "all-gather" or instruction is None or operand is None:
            return []
        before, after = _DIMENSIONS.findall(operand.shape)[:1], _DIMENSIONS.findall(instruction.shape)[:1]
        if not before or not after:
            return []
        pairs = list(zip(before[0].split(","), after[0].split(","), strict=False))
        return [dim for dim, (small, large) in enumerate(pairs) if small != large]

    def _is_combined(self, collective: CollectiveRecord) -> bool:
        """Returns whether the compiler combined several collectives into one."""
        names = {part for name in collective.op_names for part in combined_names(name)}
        return (
            len(collective.sources) > 1
            or len(names) > 1
            or (collective.kind in _SUMS and len(self._flow.makers(collective.name)) > 1)
        )

    def planned(self, collective: PlannedCollectiveRecord) -> WhyCollectiveRecord:
        axes, line = collective.axes, collective.source
        named = sorted(self.by_op_name.get(collective.op_name, ()), key=lambda v: v.shape != collective.shape)
        causes = [self._reason(value, axes) for value in sorted(named, key=self._device_bytes, reverse=True)]
        explanations = (cause for cause in causes if cause.reason != "unknown")
        cause = next(explanations, None) or next(iter(causes), None) or _unexplained(axes, line)
        value = cause.value
        return WhyCollectiveRecord(
            kind=collective.kind,
            axes=axes,
            executions=None,
            payload_bytes=collective.device_bytes or collective.size_bytes,
            reason=cause.reason,
            sentence=cause.sentence,
            operation=value.operation if value else "",
            source=value.source or line if value else line,
            operands=self._told(value) if value else (),
            advice=cause.advice,
        )

    def _device_bytes(self, value: PlannedValueRecord, summed: Sequence[str] = ()) -> int:
        """The bytes of one device's part of a value, or of its partial sum over `summed`."""
        named = (axis for axes in value.spec for axis in axes if whole_axis(axis) not in summed)
        shards = math.prod(axis_size(axis, self._sizes) for axis in named)
        return _bytes(value) // max(shards, 1)

    def _has_size(self, collective: CollectiveRecord, value: PlannedValueRecord) -> bool:
        dtype = next((dtype for dtype, _ in self._exchanged(collective)), value.dtype)
        return self._is_part(value, dtype, collective.payload_bytes, collective.group_size)

    def _is_partial_sum(self, value: PlannedValueRecord, axes: Sequence[str], dtype: str, size_bytes: int) -> bool:
        """Returns whether an exchanged operand has the size of one device's partial sum of a value."""
        partial = self._device_bytes(value, axes)
        if _is_stored_as(value.dtype, dtype):
            partial = partial * _bits(dtype) // _bits(value.dtype)
        return size_bytes == partial

    def _is_part(self, value: PlannedValueRecord, dtype: str, size_bytes: int, group_size: int) -> bool:
        """Returns whether an exchanged operand has the size of one device's part of a value, before or after a sum."""
        local = self._device_bytes(value)
        if _is_stored_as(value.dtype, dtype):
            local = local * _bits(dtype) // _bits(value.dtype)
        return size_bytes in (local, local * group_size)

    def _reason(self, value: PlannedValueRecord, axes: Sequence[str], compiled_names: Iterable[str] = ()) -> _Cause:
        operands, rule = self._operands(value), self._rule_of(value)
        is_requested = value.operation in ("sharding_constraint", "reshard", "copy")
        if is_requested and operands and operands[0].spec != value.spec:
            target_spec, source_spec = spec_text(value.spec), spec_text(operands[0].spec)
            name = self.named(operands[0])
            sentence = (
                f"{_constraint_name(value).capitalize()} requests {target_spec}, but {name} arrives as {source_spec}."
            )
            advice = f"Request {source_spec} there, or create the value with this sharding."
            return _Cause(value, "constraint", sentence, advice)
        if value.operation in _WRITTEN:
            name = last_name(value.op_name).removesuffix("_invariant") or value.operation
            call = last_name(value.op_name)
            compiled_names = [n for joined in compiled_names for n in combined_names(joined) if last_name(n) == call]
            is_derived = "transpose(" in value.op_name or _are_derived(compiled_names)
            if name == "psum" and "_invariant" in value.op_name and is_derived:
                sentence = (
                    f"Differentiation inside `shard_map` adds this exchange{_at(value)}, because it sums the gradients "
                    f"of a value that is replicated along {_listed(axes)}."
                )
                return _Cause(value, "program", sentence, "")
            subject = "The program's gradient" if is_derived and name != "psum" else "The program itself"
            sentence = f"{subject} requests this exchange: `{name}`{_at(value)}."
            return _Cause(value, "program", sentence, "")
        if rule is None:
            return self._without_rule(value, operands, set(axes))
        result_axes = set(map(whole_axis, _axis_set(value)))  # cannot also shard the sum
        return self._sum(value, axes, result_axes) or self._disagreement(value, operands, rule, set(axes))

    def _rule_of(self, value: PlannedValueRecord) -> _Rule | None:
        """The sharding rule of an operation, if it describes every operand."""
        rule = _read_rule(value.rule)
        return rule if rule is not None and len(rule.inputs) == len(self._operands(value)) else None

    def _sum(self, value: PlannedValueRecord, axes: Sequence[str], result_axes: set[str]) -> _Cause | None:
        """The sum over a dimension that is sharded over `axes`, excluding the axes that the result keeps."""
        operands, rule = self._operands(value), self._rule_of(value)
        if rule is None:
            return None
        axis_set = set(axes) - result_axes
        factors: dict[str, list[tuple[PlannedValueRecord, int, frozenset[str]]]] = {}
        for operand, dims in zip(operands, rule.inputs, strict=True):
            if value.operation == "scatter" and operand.name == value.operands[1]:
                continue  # its indices are not summed over
            for dim, factor in enumerate(dims):
                if factor in rule.summed and (here := frozenset(axis_set & set(_axes_of(operand.spec, dim)))):
                    factors.setdefault(factor, []).append((operand, dim, here))
        if not factors:
            return None
        ordered = [factors[factor] for factor in sorted(factors)]
        complete = next(
            (places for places in ordered if {axis for place in places for axis in place[2]} == axis_set), None
        )
        sharded: dict[frozenset[str], list[str]] = {}
        for operand, dim, here in complete or itertools.chain(*ordered):
            sharded.setdefault(here, []).append(f"dimension {dim} of {self.named(operand)}")
        split = frozenset(itertools.chain(*sharded))
        parts = ", and ".join(
            f"{' and '.join(places)}, which {_are(len(places))} sharded over {_listed(here)}"
            for here, places in sharded.items()
        )
        does, part, joins = _reduction_words(value)
        if value.operation in _LOOKUPS:
            sentence = (
                f"`{_called(value)}`{_at(value)} looks up elements along {parts}: each device looks up its own "
                "elements, and the exchange adds the partial results."
            )
            advice = f"The exchange remains as long as the indexed dimension is sharded over {_listed(split)}."
            return _Cause(value, "sum", sentence, advice, summed=split)
        sentence = f"`{_called(value)}`{_at(value)} {does} {parts}: every device has {part}, and the exchange {joins}."
        advice = f"The exchange remains as long as the {_REDUCED[does]} dimension is sharded over {_listed(split)}."
        return _Cause(value, "sum", sentence, advice, summed=split)

    def _disagreement(
        self, value: PlannedValueRecord, operands: Sequence[PlannedValueRecord], rule: _Rule, axis_set: set[str]
    ) -> _Cause:
        for operand, dims in zip(operands, rule.inputs, strict=True):
            for dim, factor in enumerate(dims):
                here = set(_axes_of(operand.spec, dim)) & axis_set
                if not here:
                    continue
                if factor in rule.whole:
                    sentence = (
                        f"`{_called(value)}`{_at(value)} needs the full dimension {dim} of {self.named(operand)}, "
                        f"which is sharded over {_listed(here)}."
                    )
                    return _Cause(value, "whole dimension", sentence, _other_dimension(operand, dim), on_result=False)
                clauses = [
                    f"the corresponding dimension of {self.named(peer)} {_by(_axes_of(peer.spec, place))}"
                    for peer, factors in zip(operands, rule.inputs, strict=True)
                    for place, f in enumerate(factors)
                    if peer is not operand and f == factor and set(_axes_of(peer.spec, place)) != here
                ]
                results = [
                    f"the corresponding dimension of the result {_by(_axes_of(value.spec, place))}"
                    for factors in rule.outputs[:1]
                    for place, f in enumerate(factors)
                    if f == factor and set(_axes_of(value.spec, place)) != here
                ]
                if clauses or results:
                    sentence = (
                        f"At `{_called(value)}`{_at(value)}, dimension {dim} of {self.named(operand)} "
                        f"{_by(tuple(sorted(here)))}, and {'; '.join([*clauses, *results])}: one of these arrays must "
                        "be resharded."
                    )
                    return _Cause(value, "disagreement", sentence, _ONE_FOR_BOTH)
        return self._without_rule(value, operands, axis_set)

    def _without_rule(
        self, value: PlannedValueRecord, operands: Sequence[PlannedValueRecord], axis_set: set[str]
    ) -> _Cause:
        sharded = [operand for operand in operands if axis_set & _axis_set(operand)]
        alike = [o for o in sharded if o.spec == value.spec]
        if alike and len(alike) == len(sharded) and (value.rule or value.operation in _CONTAINERS):
            if value.operation not in _UNSPLIT:
                called = f"`{_called(value)}`{_at(value)}"
                place = f"inside {called}" if value.operation in _CONTAINERS else f"at {called}, and moved or merged it"
                sentence = (
                    f"The compiler inserted this exchange {place}. No reason was found: "
                    "the operands and the result have the same sharding."
                )
                return _Cause(value, "unknown", sentence, "")
        needed = _needed_dims(value, sharded[0]) if sharded else ()
        if here := [dim for dim in needed if axis_set & set(_axes_of(sharded[0].spec, dim))]:
            sentence = (
                f"`{_called(value)}`{_at(value)} needs the full dimension {here[0]} of {self.named(sharded[0])}, "
                f"which is sharded over {_listed(axis_set)}."
            )
            if len(needed) == len(sharded[0].shape):
                return _Cause(value, "whole dimension", sentence, _NO_OTHER, on_result=False)
            advice = f"Shard dimensions other than {' and '.join(map(str, needed))}, inside `jax.shard_map`."
            return _Cause(value, "whole dimension", sentence, advice, on_result=False)
        if sharded and (value.operation in _UNSPLIT or len(alike) == len(sharded)):
            sentence = (
                f"`{_called(value)}`{_at(value)} is not split by the compiler's partitioner, so every device computes "
                f"the full operation, although {' and '.join(map(self.named, sharded))} "
                f"{'is' if len(sharded) == 1 else 'are'} sharded over {_listed(axis_set)}."
            )
            advice = "Call the operation inside `jax.shard_map`, where every device computes its own part."
            return _Cause(value, "unsplit operation", sentence, advice, on_result=False)
        if sharded:
            inputs_text = " and ".join(f"{self.named(o)} as {spec_text(o.spec)}" for o in sharded)
            sentence = (
                f"`{_called(value)}`{_at(value)} receives {inputs_text}, and returns a result sharded as "
                f"{spec_text(value.spec)}: it needs elements from other devices."
            )
            advice = "Shard a dimension along which the operation moves no data."
            return _Cause(value, "whole dimension", sentence, advice)
        if axis_set & _axis_set(value) and not value.operation.endswith(("carry", "input")):
            sentence = (
                f"The result of `{_called(value)}`{_at(value)} must have the sharding {spec_text(value.spec)}, but no "
                "operand has it."
            )
            return _Cause(value, "output", sentence, "Shard the operands in the same way.")
        sentence = f"`{_called(value)}`{_at(value)}: no reason was found in the propagated shardings."
        return _Cause(value, "unknown", sentence, "")

    def _operands(self, value: PlannedValueRecord) -> list[PlannedValueRecord]:
        return [self.values[name] for name in value.operands if name in self.values]

    def _told(self, value: PlannedValueRecord) -> tuple[WhyOperandRecord, ...]:
        """The operands except scalar constants, such as the initial 0 of a sum."""
        operands = [operand for operand in self._operands(value) if operand.operation != "constant" or operand.shape]
        # The propagation has no sharding of values inside a `shard_map`: each device has its own part.
        operands = [o for o in operands if o.name not in self._local or any(o.spec)]
        return tuple({operand.name: self._operand(operand) for operand in operands}.values())

    def _operand(self, value: PlannedValueRecord) -> WhyOperandRecord:
        used = dict.fromkeys(axis for axes in value.spec for axis in axes)
        chains = {
            axis: (_NO_CHAIN,) if value.origins.get(axis) == COMPILER else self._chains.of(value.name, axis)
            for axis in used
        }
        return WhyOperandRecord(
            name=self.named(value),
            value=value.name,
            shape=value.shape,
            dtype=value.dtype,
            spec=value.spec,
            source=value.source,
            origins={axis: self.origin(value, axis) for axis in used},
            chains=chains,
        )

    def origin(self, value: PlannedValueRecord, axis: str) -> str:
        """Origin of an axis, in words: a user's argument, a constraint, or the program."""
        origin = value.origins.get(axis, "")
        if value.operation == "input":
            return "the argument itself"
        if match := _INPUT.match(origin):
            number = int(match[1])
            label = next((v.op_name for v in self.propagation.values if v.name == f"%arg{number}"), "")
            return f"argument `{label or number}`"
        if origin.startswith("constraint"):
            return self._constraint(origin, axis)
        if origin.startswith("output"):
            return "the sharding requested for the results"
        if origin.startswith("mc_"):
            return "a `shard_map` of the program"
        if origin == COMPILER:
            return "the compiler"
        return "the program itself"

    def _constraint(self, origin: str, axis: str) -> str:
        """The sharding constraint that introduced an axis; constraints are numbered."""
        named = (v for v in self.propagation.values if v.operation == "sharding_constraint")
        constraint = next((v for v in named if v.origins.get(axis) == origin), None)
        return "a sharding constraint" if constraint is None else _constraint_name(constraint)

    def named(self, value: PlannedValueRecord) -> str:
        """The user's name for a value: the argument, or the operation with its line."""
        kind = f"{_jax_dtype(value.dtype)}[{','.join(map(str, value.shape))}]"
        if value.operation == "input":
            return f"argument `{value.op_name or value.name}` ({kind})"
        if value.operation == "while carry" and (start := self._start_of(value)) is not None:
            name = self.named(start)
            return name if name.endswith(_CARRIED) else f"{name[:-1]}{_CARRIED}"
        if value.operation == "optimization_barrier" and (before := self._before_barrier(value)) is not None:
            return self.named(before)
        if (stack := self._stack_of(value)) is not None:
            return f"a slice ({kind}) of argument `{stack.op_name or stack.name}`"
        if value.operation == "while carry":
            return f"the value ({kind}) that the loop{_at(value)} carries"
        if value.operation == "sharding_constraint" and not is_constraint(value) and (before := self._operands(value)):
            return self.named(before[0])  # explicit axes: JAX states the sharding of every result
        return f"the result of `{_called(value)}` ({kind}{_at(value)})"

    def _before_barrier(self, value: PlannedValueRecord) -> PlannedValueRecord | None:
        """The operand that an `optimization_barrier`, such as that of `jax.checkpoint`, returns as a value."""
        operands, number = self._operands(value), int(value.name.partition("#")[2] or 0)
        before = operands[number] if len(operands) == len(value.operands) > number else None
        return before if before is not None and before.shape == value.shape else None

    def _stack_of(self, value: PlannedValueRecord) -> PlannedValueRecord | None:
        """The argument of which a value is one slice along dimension 0, such as the weights of scanned layers."""
        cut = self._before_requests(next(iter(self._operands(value)), None))
        if value.operation != "reshape" or cut is None or cut.operation != "dynamic_slice":
            return None
        stack = self._before_requests(next(iter(self._operands(cut)), None))
        while stack is not None and stack.operation == "while carry":
            stack = self._before_requests(self._start_of(stack))
        if stack is not None and stack.operation == "input" and (1, *stack.shape[1:]) == cut.shape == (1, *value.shape):
            return stack
        return None

    def _before_requests(self, value: PlannedValueRecord | None) -> PlannedValueRecord | None:
        """A value before the constraints that JAX adds with explicit axes."""
        while value is not None and value.operation == "sharding_constraint" and not is_constraint(value):
            value = next(iter(self._operands(value)), None)
        return value

    def _start_of(self, carry: PlannedValueRecord) -> PlannedValueRecord | None:
        """The initial value of a loop's carry, if this value is an argument."""
        start = self._before_loop(carry)
        return start if start is not None and start.operation in ("input", "while carry") else None

    def _before_loop(self, value: PlannedValueRecord) -> PlannedValueRecord | None:
        """The value from which a loop's carry, or one of its results, starts."""
        match = _LOOP_VALUE.fullmatch(value.name)
        if match is None:
            return None
        loop, position = self.values.get(f"%{match[1]}#0", self.values.get(f"%{match[1]}")), int(match[2] or 0)
        return self.values.get(loop.operands[position]) if loop and position < len(loop.operands) else None

    # Replicated arrays.

    def replicated(self, sizes: dict[str, int], large_bytes: int | None) -> tuple[WhyArrayRecord, ...]:
        """The large values that are stored on more than one device, each with the reason."""
        devices = math.prod(sizes.values())
        exclusions = self._local | self._constants()
        listed = [
            v
            for v in self.propagation.values
            if v.operation != "output" and v.shape and v.name not in exclusions
            # A value that a loop passes on unchanged is the value before the loop, and nothing reads the loop's result.
            if v.operation != "while" or self.users.get(v.name)
            if v.operation != "while carry" or (self.users.get(v.name) and self._start_of(v) is None)
            if v.operation != "sharding_constraint" or is_constraint(v)
        ]
        largest = max((_bytes(v) for v in listed), default=0)
        limit = large_bytes if large_bytes is not None else _LARGE_BYTES if largest >= _LARGE_BYTES else largest / 10
        arrays: dict[tuple[object, ...], WhyArrayRecord] = {}
        names: set[str] = set()
        for value in sorted(listed, key=lambda v: (-_bytes(v), v.operation != "input")):
            shards = math.prod(axis_size(axis, sizes) for axes in value.spec for axis in axes)
            copies = devices // max(shards, 1)
            if copies < 2 or _bytes(value) < limit or value.operation in ("constant", "broadcast_in_dim", "iota"):
                continue
            if value.operation != "input" and not self._flow.has_array(math.prod(value.shape) // max(shards, 1)):
                continue  # the compiler fused the value, or computes it in parts
            is_derived = any(operand in names for operand in value.operands) and value.operation not in _REQUESTS
            names.add(value.name)
            if is_derived and not self._lost(value, set(sizes)):  # whole because a listed array is whole
                continue
            key = (value.source, value.shape, value.op_name if value.operation == "input" else "")
            arrays.setdefault(
                key,
                WhyArrayRecord(
                    name=self.named(value),
                    shape=value.shape,
                    dtype=value.dtype,
                    size_bytes=_bytes(value),
                    copies=copies,
                    sentence=self._why_replicated(value, set(sizes), copies),
                    source=value.source,
                ),
            )
            if len(arrays) == _MOST_ARRAYS:
                break
        return tuple(arrays.values())

    @functools.cached_property
    def _local(self) -> set[str]:
        """Values inside a `shard_map`, which differ from device to device."""
        names: set[str] = set()
        for value in self.propagation.values:
            carried = _CARRY.fullmatch(value.name)
            before = (*value.operands, *((f"%{carried[1]}#0", f"%{carried[1]}") if carried else ()))
            inside = value.operation != "manual_computation" and any(name in names for name in before)
            if inside or value.operation == "manual_computation input":
                names.add(value.name)
        return names

    def _constants(self) -> set[str]:
        """Values that do not depend on any argument, such as masks, and are computed where they are used."""
        names: set[str] = set()
        for value in self.propagation.values:
            is_constant = value.operands and all(name in names for name in value.operands)
            if is_constant or value.operation in ("constant", "iota"):
                names.add(value.name)
        return names

    def _why_replicated(self, value: PlannedValueRecord, axes: set[str], copies: int) -> str:
        used = _axis_set(value)
        free = _listed(axes - used, "or")
        if value.operation == "input":
            phrase = f"has the sharding {spec_text(value.spec)}" if used else "is unsharded"
            return (
                f"The argument {phrase}, and no operation propagated {free} to it, so {copies} devices hold the same "
                f"values. To shard the argument, pass it with a `NamedSharding` that names {free}."
            )
        if value.operation == "sharding_constraint":
            return f"{_constraint_name(value).capitalize()} requests {spec_text(value.spec)}."
        if value.operation == "manual_computation":
            return f"`out_specs` of the `shard_map` request {spec_text(value.spec)}."
        if value.operation in ("while", "while carry"):
            start = self._before_loop(value)
            if start is not None and (lost := set(map(whole_axis, _axis_set(start))) - used):
                return (
                    f"The loop does not keep the sharding of {self.named(start)} over {_listed(lost)}. {_ONE_SHARDING}"
                )
            return f"The loop starts with a value that is not sharded over {free}: constrain the value there."
        if lost := self._lost(value, axes):
            return f"{' '.join(lost)} No operand is sharded over {free} on a dimension that the result keeps."
        sharded = [self.named(o) for o in self._operands(value) if not used.issuperset(itertools.chain(*o.spec))]
        if sharded:
            called = _called(value)
            return (
                f"`{called}` does not keep the sharding of {' and '.join(dict.fromkeys(sharded))}: constrain the "
                f"result of `{called}`."
            )
        return (
            f"No operand is sharded over {free}, so the result is not sharded over {free} either: constrain the "
            "result, or shard an operand."
        )

    def _lost(self, value: PlannedValueRecord, axes: set[str]) -> list[str]:
        """Sentences on the axes that an operation's operands have but its result lacks."""
        operands, rule = self._operands(value), self._rule_of(value)
        if rule is None or value.operation in ("input", "sharding_constraint"):
            return []
        used = _axis_set(value)
        places: dict[tuple[bool, str], list[str]] = {}
        for operand, dims in zip(operands, rule.inputs, strict=True):
            for dim, factor in enumerate(dims):
                if there := set(_axes_of(operand.spec, dim)) - used:
                    place = f"dimension {dim} of {self.named(operand)}"
                    places.setdefault((factor in rule.summed, _listed(there)), []).append(place)
        called = _called(value)
        return [
            f"`{called}` sums over {' and '.join(listed)}, which {_are(len(listed))} sharded over {lost}."
            if is_summed
            else f"`{called}` does not keep the sharding of {' and '.join(listed)} over {lost}."
            for (is_summed, lost), listed in places.items()
        ]


_CARRIED = ", carried by a loop)"
_DEPARTED = "The propagated shardings alone do not require this exchange: the compiler chose different shardings there."
_DIFFERENT = "These shardings are those of the compiled program; the propagated shardings differ."
_NO_CHAIN = "The compiled program shards the value over this axis; the propagated sharding does not use the axis."
_CONSTRAIN = "Constrain the value there to the sharding that you want (`jax.lax.with_sharding_constraint`)."
_BOTH_SHARDED = "The exchange remains as long as both dimensions are sharded over the same mesh axis."
_ONE_FOR_BOTH = "Give both values the same sharding, or constrain the smaller value."
_ONE_SHARDING = "Keep one sharding for the value: constrain it where the loop starts and where its body ends."
_LOOKUPS = ("gather", "dynamic_slice")
_SUM_WORDS = ("sums over", "a part of the sum", "adds the parts")
_REDUCTIONS = {
    "max": ("takes the maximum over", "the maximum of its part", "takes the largest of these"),
    "min": ("takes the minimum over", "the minimum of its part", "takes the smallest of these"),
    "prod": ("multiplies over", "a part of the product", "multiplies the parts"),
    "and": ("takes the conjunction over", "the conjunction of its values", "combines the results"),
    "or": ("takes the disjunction over", "the disjunction of its values", "combines the results"),
}
_REDUCED = {"sums over": "summed", **dict.fromkeys((words[0] for words in _REDUCTIONS.values()), "reduced")}
_REDUCTION = re.compile(r"(?:reduce_|arg|scatter[-_])(max|min|prod|mul|and|or)$")
_SLICING = frozenset(("slice", "dynamic-slice"))
_SAME = REARRANGING | frozenset(("slice", "dynamic_slice", "sharding_constraint", "reshard", "copy"))
_OPCODES = {"max": "maximum", "min": "minimum", "prod": "multiply", "mul": "multiply", "and": "and", "or": "or"}
_PLANNED_DTYPES = {"pred": "i1", "c64": "complex<f32>", "c128": "complex<f64>"}
_FLOATS = ("bf16", "f16", "f32", "f64")
_SUMS = ("all-reduce", "reduce-scatter")
_REDUCING = ("reduce", "scatter")
_DOES = {
    "all-gather": "gathers",
    "all-to-all": "redistributes",
    "collective-permute": "sends parts of",
    "collective-broadcast": "broadcasts",
}
# Sharding rules state what these operations need, so if no rule needs the exchange, another operation does.
_PLAIN = frozenset(("dot_general", "broadcast_in_dim", "reshape", "transpose", "reduce", "add", "multiply"))
_REQUESTS = frozenset(("sharding_constraint", "manual_computation"))  # the program states their shardings
_CONTAINERS = frozenset(("while", "case", "if", "manual_computation", "named_computation", "optimization_barrier"))
# Operations that the partitioner cannot split, regardless of Shardy's plan.
_UNSPLIT = frozenset("fft custom_call cholesky triangular_solve rng_bit_generator chlo.top_k".split())
_MATRIX_OPERATIONS = frozenset("cholesky triangular_solve eigh eig svd lu qr geqrf householder_product schur".split())
# Collectives that a program itself contains, under their StableHLO names.
_WRITTEN = frozenset("all_reduce all_gather reduce_scatter all_to_all collective_permute collective_broadcast".split())
# The kinds to which such a collective compiles; an exchange of another kind at its line is the partitioner's.
_COMPILED = {name: {name.replace("_", "-"), "all-reduce", "ragged-all-to-all"} for name in _WRITTEN}


_NO_OTHER = "The array has no other dimension: leave it unsharded, or shard a batch of such arrays."


def _other_dimension(operand: PlannedValueRecord, dim: int) -> str:
    """The advice to shard another dimension than `dim`, if there is one."""
    is_only = all(size == 1 for place, size in enumerate(operand.shape) if place != dim)
    return _NO_OTHER if is_only else f"Shard a dimension other than {dim}."


def _needed_dims(value: PlannedValueRecord, operand: PlannedValueRecord) -> tuple[int, ...]:
    """The dimensions of an operand that an operation needs unsharded, because the partitioner cannot split it."""
    rank = len(operand.shape)
    if value.operation == "chlo.top_k":
        return (rank - 1,)
    return (rank - 2, rank - 1) if _called(value) in _MATRIX_OPERATIONS and rank >= 2 else ()


def _constraint_name(value: PlannedValueRecord) -> str:
    name = last_name(value.op_name)
    if name == "reshard":
        return f"the `reshard`{_at(value)}"
    return f"the {'constraint' if is_constraint(value) else f'explicit sharding of `{name}`'}{_at(value)}"


def _called(value: PlannedValueRecord) -> str:
    """The JAX name of an operation whose StableHLO name is unfamiliar to users."""
    if value.operation == "custom_call":
        return last_name(value.op_name).partition(":")[0] or value.operation
    if value.operation == "sharding_constraint" and last_name(value.op_name) == "reshard":
        return "reshard"
    return "shard_map" if value.operation == "manual_computation" else value.operation.removeprefix("chlo.")


def _reduction_words(value: PlannedValueRecord) -> tuple[str, str, str]:
    """Describes a reduction along a dimension: the operation, each device's part, and the exchange."""
    match = _REDUCTION.search(value.op_name) if value.operation in _REDUCING else None
    return _REDUCTIONS[match[1].replace("mul", "prod")] if match else _SUM_WORDS


def _reduction_of(value: PlannedValueRecord) -> str | None:
    """HLO's name for the operation that combines the parts of a value; None if unknown."""
    if value.operation in _REDUCING and (match := _REDUCTION.search(value.op_name)):
        return _OPCODES[match[1]]
    if value.operation not in ("dot_general", "convolution", "gather") and "sum" not in value.op_name:
        return None
    return "or" if value.dtype == "i1" else "add"


def _jax_dtype(dtype: str) -> str:
    """JAX's short name for a StableHLO dtype."""
    match = re.match(r"complex<f(\d+)>", dtype)
    return f"c{2 * int(match[1])}" if match else "bool" if dtype == "i1" else dtype.replace("ui", "u")


def _planned_dtype(dtype: str) -> str:
    """StableHLO's name for an HLO dtype."""
    if dtype[:1] in "su" and dtype[1:].isdigit():
        return f"{'i' if dtype[0] == 's' else 'ui'}{dtype[1:]}"
    return _PLANNED_DTYPES.get(dtype, dtype)


def _others_at(cause: _Cause, alternatives: Sequence[_Cause], count: int) -> str:
    """Lines of the other exchanges that the compiler combined with the given exchange."""
    places = dict.fromkeys(_place(a.value.source) for a in alternatives if a.value and a.value.source)
    here = _place(cause.value.source) if cause.value and cause.value.source else ""
    if not places or list(places) == [here]:
        return ""
    if count == 2:
        places.pop(here, None)
    if count == 2:
        return f"; the other is at {', '.join(places)}"
    return f"; {'the ' if len(alternatives) + 1 >= count else ''}others are at {', '.join(places)}"


def _in_part(axis: str) -> str:
    """States how much of a mesh axis an exchange uses, such as `a[2 of 4]`."""
    used, _, size = axis.removeprefix(whole_axis(axis)).strip("[]").partition(" of ")
    return f"Each exchange is among {used} of the {size} devices along `{whole_axis(axis)}`."


def _axes_of(spec: Spec, dim: int) -> tuple[str, ...]:
    return tuple(whole_axis(axis) for axis in spec[dim]) if dim < len(spec) else ()


def _axis_set(value: PlannedValueRecord) -> set[str]:
    return {axis for axes in value.spec for axis in axes}


def _listed(axes: Iterable[str], conjunction: str = "and") -> str:
    return f" {conjunction} ".join(f"`{axis}`" for axis in sorted(axes)) or "any axis"


def _shards(axes: Collection[str]) -> str:
    return f"{_listed(axes)} {'shards' if len(axes) == 1 else 'shard'}"


def _by(axes: Sequence[str]) -> str:
    return f"is sharded over {_listed(axes)}" if axes else "is not sharded"


def _are(count: int) -> str:
    return "is" if count == 1 else "are both" if count == 2 else "are all"


def _line(source: SourceLine) -> tuple[str, int]:
    return source.file, source.line


def _place(line: SourceLine) -> str:
    return f"{Path(shown_file(line.file)).name}:{line.line}"


def _at(value: PlannedValueRecord) -> str:
    return f" at {_place(value.source)}" if value.source else ""


def _bytes(value: PlannedValueRecord) -> int:
    return math.prod(value.shape) * _bits(value.dtype) // 8


def _bits(dtype: str) -> int:
    bits = re.search(r"(\d+)", dtype)
    size = 8 if bits is None or dtype == "i1" else int(bits[1])
    return size * (2 if dtype.startswith("complex") else 1)


def _is_stored_as(planned: str, compiled: str) -> bool:
    """Returns whether a compiled program may store a value of a planned dtype as another: CPUs widen 16-bit floats."""
    return planned == compiled or (planned in _FLOATS and compiled in _FLOATS)
