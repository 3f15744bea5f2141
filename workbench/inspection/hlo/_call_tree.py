"""The call tree of a compiled module, with each instruction's figures divided among its fused parts."""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Set

from workbench.inspection._call_tree._build import build_tree
from workbench.inspection._call_tree._frames import (
    Frame,
    below_outer,
    home_of,
    is_named,
    outer_frames,
    package_of,
    split_stack,
    trim,
)
from workbench.inspection._call_tree._items import Amounts, Item, Scope
from workbench.inspection._call_tree._op_names import called_functions, read_op_name
from workbench.inspection.hlo._assignment import RESERVED, HeldAtPeak
from workbench.inspection.hlo._attribution import stages_of
from workbench.inspection.hlo._elementwise import ElementwiseCounter
from workbench.inspection.hlo._executions import Runs, trip_count
from workbench.inspection.hlo._flops import FlopCounter
from workbench.inspection.hlo._frames import Frames
from workbench.inspection.hlo._fused import inside
from workbench.inspection.hlo._places import Place, Places
from workbench.inspection.hlo._shapes import parse_shape
from workbench.inspection.hlo._text import Hlo, Instruction
from workbench.inspection.hlo._traffic import Traffic
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CollectiveRecord
from workbench.records.program import PlanRecord, StageRecord

UNNAMED = "unnamed"  # the name that `workbench.cost` uses for bytes over a group that is not a product of mesh axes
_NAME = re.compile(r"^p?jit_(.*)$")
_SILENT = frozenset(("parameter", "tuple", "get-tuple-element", "bitcast", "after-all"))


class CallTreeReader:
    """Builds the call tree of one module."""

    def __init__(
        self,
        hlo: Hlo,
        runs: Runs,
        frames: Frames,
        flops: FlopCounter,
        traffic: Traffic,
        collectives: Iterable[CollectiveRecord],
        values: tuple[HeldAtPeak, ...],
        note: str,
        plan: PlanRecord | None = None,
    ) -> None:
        self._hlo, self._runs = hlo, runs
        self._flops, self._traffic, self._elementwise = flops, traffic, ElementwiseCounter(hlo)
        self._collectives = {record.name: record for record in collectives}
        self._held, self._peak_note = values, note
        self._loops_around: dict[str, tuple[tuple[Scope, ...], bool]] = {hlo.entry.name: ((), False)}
        self._stacks: dict[tuple, tuple[tuple[Frame, ...], tuple[Frame, ...]]] = {}
        self._split_places: dict[int, tuple[Place, tuple[tuple[Frame, ...], tuple[Frame, ...]]]] = {}  # by identity
        match = _NAME.match(hlo.name)
        self._name = re.sub(r"^_(lambda|unnamed_wrapped_function|unknown)_$", r"<\1>", match[1] if match else hlo.name)
        framed = {instruction.frame: instruction for instruction in hlo.instructions() if instruction.frame}
        stacks = {frames.stack(instruction) for instruction in framed.values()}
        if plan is not None and not _names(stacks, self._name) and _names(stacks, plan.name):
            self._name = plan.name  # `jax.pmap` compiles its own function around the user's function
        self._arguments = [] if plan is None else [value.name for value in plan.inputs]
        if len(self._arguments) != len(hlo.entry.parameters):  # arguments that are not read are not parameters
            self._arguments = []
        self._home = home_of(stacks, self._name)
        self._stage_calls = {} if plan is None else self._calls_of(plan)
        self._stage_of: dict[str, str | None] = {}
        self._outer = outer_frames(stacks, self._name) if stacks else frozenset()
        if stacks and not _names(stacks, self._name):
            self._outer = self._common_start(stacks)
        self._places = Places(hlo, runs, frames, lambda place: not place.stack or bool(self._split(place)[0]))

    def record(self) -> CallTreeRecord:
        notes = [f"{self._peak_note}; an argument of the program is counted at the first line that reads it"]
        items = list(self._items())
        if any(item.at_least for item in items):
            notes.append("a loop of unknown length is counted as one iteration")
        if any(0 < item.share < 1 for item in items):
            notes.append("fused instructions and combined collectives are divided among the lines of their parts")
        return build_tree(items, name=self._name, made_from="compiled", notes=tuple(notes))

    def op_name(self, instruction: Instruction) -> str:
        """JAX's name of an instruction; for an instruction without metadata, the name of its nearest neighbour."""
        place = self._places.place(instruction)
        return instruction.op_name or ("" if place is None else place.op_name)

    def _items(self) -> Iterator[Item]:
        working: set[str] = set()
        for computation in self._hlo.computations.values():
            inner = computation.name in self._runs.fused or computation.name in self._runs.regions
            times = self._times(computation.name)
            for instruction in computation.instructions:
                if instruction.opcode == "constant":
                    if size := instruction.shape.size_bytes:
                        yield self._item(instruction, Amounts(constant_bytes=size), operation="constant")
                elif (
                    not inner and instruction.opcode not in _SILENT and (times or instruction.name in self._collectives)
                ):
                    for item in self._work(instruction, times):
                        working.add(item.instruction)
                        yield item
        for value in self._held:
            yield self._alive(value, working)

    def _work(self, instruction: Instruction, times: float) -> Iterator[Item]:
        if instruction.name in self._collectives:
            yield from self._communication(instruction, times)
        elif instruction.opcode == "fusion":
            yield from self._fusion(instruction, times)
        else:
            amounts = Amounts(
                self._flops.instruction(instruction) * times,
                self._elementwise.instruction(instruction) * times,
                self._traffic.instruction(instruction) * times,
            )
            if amounts.any:
                yield self._item(instruction, amounts)

    def _fusion(self, fusion: Instruction, times: float) -> Iterator[Item]:
        parts: dict[tuple[int, str], tuple[Instruction, Amounts]] = {}  # by identity: places are slow to compare

        def part(inner: Instruction) -> Amounts:
            place = self._places.place(inner)
            key = (id(place), inner.opcode if place is None else "")
            if key not in parts:
                parts[key] = (inner, Amounts())
            return parts[key][1]

        for inner in inside(self._hlo, fusion):
            matmul, elementwise = self._flops.instruction(inner), self._elementwise.instruction(inner)
            if matmul or elementwise:
                amounts = part(inner)
                amounts.flops_matmul += matmul * times
                amounts.flops_elementwise += elementwise * times
        for inner, size in self._traffic.parts(fusion):
            if size:
                part(inner).traffic_bytes += size * times
        # Seconds are divided by matrix products if a fusion contains any, otherwise by traffic.
        figure = "flops_matmul" if any(amounts.flops_matmul for _, amounts in parts.values()) else "traffic_bytes"
        weights = [getattr(amounts, figure) for _, amounts in parts.values()]
        total = sum(weights)
        for (inner, amounts), weight in zip(parts.values(), weights, strict=True):
            yield self._item(inner, amounts, of=fusion.name, share=weight / total if total else 1 / len(parts))

    def _communication(self, instruction: Instruction, times: float) -> Iterator[Item]:
        """Yields a collective; if the compiler combined several, yields every operand at its own place."""
        record = self._collectives[instruction.name]
        by_name = self._hlo.computations[instruction.computation].by_name
        sizes = [parse_shape(by_name[operand].shape_text).size_bytes for operand in instruction.operands]
        sources = self._combined(instruction) if len(sizes) > 1 else [instruction]
        total = sum(sizes)
        traffic = self._traffic.instruction(instruction) * times
        merged: dict[Place | None, tuple[Instruction, float]] = {}
        for source, size in zip(sources, sizes or [0], strict=True):
            place = self._places.place(source)
            first, share = merged.get(place, (source, 0.0))
            merged[place] = (first, share + (size / total if total else 1 / len(sources)))
        for source, share in merged.values():
            sent_bytes = (record.wire_bytes or 0.0) * times * share
            amounts = Amounts(
                flops_elementwise=self._elementwise.instruction(instruction) * times * share,
                traffic_bytes=traffic * share,
                sent_bytes={"+".join(record.axes) or UNNAMED: sent_bytes} if sent_bytes else {},
                collectives={
                    (record.kind, record.axes): [
                        share,
                        times * share,
                        record.payload_bytes * times * share,
                        sent_bytes,
                        record.payload_bytes if share > 0.999 else math.inf,
                    ]
                },
            )
            yield self._item(source, amounts, operation=record.kind, of=instruction.name, share=share)

    def _combined(self, instruction: Instruction) -> list[Instruction]:
        """For each operand of a combined collective, the instruction that determines its place (user or producer)."""
        computation = self._hlo.computations[instruction.computation]
        users = [user for user, _ in computation.users[instruction.name]]
        users += [taker for user in users if user.opcode.endswith("-done") for taker, _ in computation.users[user.name]]
        takers = {int(u.attribute("index") or 0): u for u in users if u.opcode == "get-tuple-element"}
        anchors = []
        for index, operand in enumerate(instruction.operands):
            maker, taker = computation.by_name[operand], takers.get(index)
            anchors.append(taker if taker is not None and (self._places.is_own(taker)) else self._made(maker, taker))
        return anchors

    def _made(self, maker: Instruction, taker: Instruction | None) -> Instruction:
        return maker if taker is None or self._places.is_own(maker) or self._places.place(taker) is None else taker

    def _alive(self, value: HeldAtPeak, working: Set[str]) -> Item:
        instruction = value.instruction
        amounts = Amounts(peak_bytes=value.size_bytes)
        if instruction is None:
            return Item((), (), (), "forward", RESERVED, amounts)
        if instruction.opcode == "parameter" and instruction.computation == self._hlo.entry.name:
            number = int(instruction.arguments)
            source = self._arguments[number] if self._arguments else _plain(instruction.op_name)
            return self._item(instruction, amounts, operation=f"argument {source}".rstrip())
        source = self._collectives.get(instruction.name)
        share = 0.0 if instruction.name in working else 1.0  # seconds are divided only among items with work
        return self._item(instruction, amounts, operation="" if source is None else source.kind, share=share)

    def _item(
        self, instruction: Instruction, amounts: Amounts, *, operation: str = "", of: str = "", share: float = 1.0
    ) -> Item:
        name = of or instruction.name
        place = self._places.place(instruction)
        loops, at_least = self._around(instruction.computation)
        if place is None:
            return Item((), (), loops, "forward", operation or instruction.opcode, amounts, name, share, at_least)
        named = read_op_name(place.op_name)
        frames, inside = self._split(place)
        primitive = read_op_name(instruction.op_name).operation if "/" in instruction.op_name else ""
        return Item(
            frames,
            inside,
            _interleaved(named.scopes, loops),
            named.pass_name,
            operation or primitive or instruction.opcode,
            amounts,
            name,
            share,
            at_least,
            not self._places.is_own(instruction),
        )

    def _around(self, computation: str) -> tuple[tuple[Scope, ...], bool]:
        """The loops and branches around a computation, and whether a loop's length is unknown."""
        if computation not in self._loops_around:
            caller = self._runs.callers.get(computation)
            if caller is None:
                return (), False
            loops, at_least = self._around(caller.computation)
            if caller.opcode in ("while", "conditional"):
                place = self._places.place(caller)
                depth = len(self._split(place)[0]) if place else 0
                trips = trip_count(self._hlo, caller, self._runs.callers) if caller.opcode == "while" else None
                name = "loop" if caller.opcode == "while" else "cond"
                loops = (*loops, Scope(name, "loop", depth, trips))
                at_least = at_least or (trips is None and caller.opcode == "while")
            self._loops_around[computation] = loops, at_least
        return self._loops_around[computation]

    def _split(self, place: Place) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
        split = self._split_places.get(id(place))
        if split is None:
            split = self._split_places[id(place)] = (
                place,
                self._find_split(place),
            )  # kept alive, so that its identity is not reused
        return split[1]

    def _find_split(self, place: Place) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
        called, stage = called_functions(place.op_name), self._stage_named(place.op_name)
        key = (place.stack, called, stage)
        if key not in self._stacks:
            if stage is None or any(is_named(frame, self._name) for frame in place.stack):
                stack = trim(place.stack, self._name, self._outer, called)
            else:
                inner_stack = below_outer(place.stack, self._outer, self._home)
                stack = (*self._stage_calls[stage], *trim(inner_stack, self._name, self._outer, called))
            self._stacks[key] = split_stack(stack, self._home)
        return self._stacks[key]

    def _calls_of(self, plan: PlanRecord) -> dict[str, tuple[Frame, ...]]:
        """The calls that lead to client functions, by stage path; JAX traces client functions separately."""
        calls_by_stage: dict[str, tuple[Frame, ...]] = {}

        def enter(stages: Iterable[StageRecord], around: tuple[Frame, ...]) -> None:
            for stage in stages:
                calls = around
                if stage.kind == "clients":
                    stack = tuple(Frame(line.file, line.function, line.line, line.column) for line in stage.stack)
                    calls = split_stack(trim(stack, self._name), self._home)[0] or around
                if calls:
                    calls_by_stage[stage.path] = calls
                enter(stage.body, calls)

        enter(plan.stages, ())
        return calls_by_stage

    def _stage_named(self, op_name: str) -> str | None:
        """The stage in a name stack, if the plan contains the calls that lead to the stage's clients."""
        if not self._stage_calls:
            return None
        if op_name not in self._stage_of:
            named = (stage.path for stage in stages_of(op_name))
            self._stage_of[op_name] = next((path for path in named if path in self._stage_calls), None)
        return self._stage_of[op_name]

    def _common_start(self, stacks: Iterable[tuple[Frame, ...]]) -> frozenset[tuple[str, str]]:
        """Frames that all stacks share, down to the last library frame; used if no stack names the program."""
        shared = functools.reduce(_common, stacks)
        start = 0
        for index, frame in enumerate(shared):
            if package_of(frame.file) is not None or frame.function == "<module>":
                start = index + 1
        return frozenset(frame[:2] for frame in shared[:start])

    def _times(self, computation: str) -> float:
        times = self._runs.executions[computation]
        return times if not math.isnan(times) else self._iterations(computation)

    def _iterations(self, computation: str) -> float:
        """Executions, counting loops of unknown length as one iteration."""
        caller = self._runs.callers.get(computation)
        if caller is None:
            return 1.0
        outer = self._times(caller.computation)
        trips = trip_count(self._hlo, caller, self._runs.callers) if caller.opcode == "while" else 1.0
        return outer * (1.0 if trips is None else trips)


def _interleaved(names: tuple[str, ...], loops: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """Name scopes of an instruction, without the loops that XLA moved the instruction out of."""
    if not loops:
        return tuple(Scope(name, "scope") for name in names if name not in ("while", "cond"))
    waiting, scopes = list(loops), []
    for name in names:
        if name in ("while", "cond"):
            if waiting and waiting[0].name == ("loop" if name == "while" else "cond"):
                scopes.append(waiting.pop(0))
        else:
            scopes.append(Scope(name, "scope"))
    return (*scopes, *waiting)


def _names(stacks: Iterable[tuple[Frame, ...]], name: str) -> bool:
    return any(is_named(frame, name) for stack in stacks for frame in stack)


def _plain(op_name: str) -> str:
    return op_name.replace("\\'", "'")


def _common(first: tuple[Frame, ...], second: tuple[Frame, ...]) -> tuple[Frame, ...]:
    if first == second[: len(first)]:
        return first
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return tuple(frame for frame, _ in pairs)
