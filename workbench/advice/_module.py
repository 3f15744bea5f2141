"""Queries that rules make on a compiled module: users of a value, loop invariance, and origin of an instruction."""

import functools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.inspection import explain_program
from workbench.plan import ChunkSize
from workbench.records.advice import GainRecord, Quantity
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord, ProgramRecord
from workbench.records.sharding import WhyCollectiveRecord, WhyRecord

if TYPE_CHECKING:
    from workbench.advice._search._program import SearchProgram

_VARYING = {"parameter", "rng-bit-generator", "rng", "custom-call", "infeed"}
_TRANSPARENT = {"bitcast", "copy", "reshape", "transpose", "get-tuple-element", "tuple", "copy-start", "copy-done"}
CALLING = {"while", "conditional", "call"}
WORKLESS = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "iota",
    "opt-barrier", *CALLING,
}  # fmt: skip
_INDEX = re.compile(r"\bindex=(\d+)")


@dataclass(frozen=True)
class Compiled:
    """A program and its compiled module, indexed for the rules."""

    record: ProgramRecord
    module: ModuleRecord
    planner: "SearchProgram | None" = None  # predicts the cost of the program with other specs, if possible
    traces: int | None = None  # number of compilations of the function in this process, if counted
    chunk_size: ChunkSize = "auto"  # as given by the user; None computes all clients on a device together
    recompile: Callable[..., ProgramRecord] | None = None  # compiles a variant of the program
    wrapper: str = "jax.jit"  # name of the wrapper that compiles the user's function: "jax.jit", "nnx.jit"
    parameters: tuple[str, ...] = ()  # parameters of the user's function, in order
    references: frozenset[str] = frozenset()  # arguments that are a `jax.Ref`, which is updated in place
    is_gradient: bool = False  # whether the function itself is a derivative from `jax.grad`
    until: float | None = None  # when rules stop to plan other shardings, on the clock of `time.monotonic`

    @property
    def is_late(self) -> bool:
        """Returns whether the time limit has ended."""
        return self.until is not None and time.monotonic() > self.until

    @functools.cached_property
    def by_name(self) -> dict[str, InstructionRecord]:
        return {instruction.name: instruction for instruction in self.module.instructions}

    @functools.cached_property
    def users(self) -> dict[str, list[InstructionRecord]]:
        """The instructions that read each value."""
        users: dict[str, list[InstructionRecord]] = defaultdict(list)
        for instruction in self.module.instructions:
            for operand in instruction.operands:
                users[operand].append(instruction)
        return users

    @functools.cached_property
    def why(self) -> WhyRecord:
        """The reason for each collective."""
        return explain_program(self.record)

    @functools.cached_property
    def lines(self) -> dict[str, str]:
        """The line of HLO text for every instruction."""
        lines = {}
        for line in self.module.text.splitlines():
            name, sign, _ = line.strip().removeprefix("ROOT ").partition(" = ")
            if sign:
                lines[name.lstrip("%")] = line
        return lines

    @functools.cached_property
    def sent_bytes(self) -> float:
        """Bytes that one device sends in one call."""
        return sum(collective.sent_bytes for collective in self.module.collectives)

    @functools.cached_property
    def entry_lines(self) -> list[str]:
        _, _, entry = self.module.text.partition("\nENTRY ")
        return entry.partition("\n}")[0].splitlines()

    @functools.cached_property
    def started(self) -> float | None:
        """Instructions that one device starts per call, including all loop iterations; None if unknown."""
        executions = [i.executions for i in self.module.instructions if not i.fused and i.opcode not in WORKLESS]
        return None if any(count is None for count in executions) else sum(count or 0.0 for count in executions)

    def sources_of(self, value: str) -> Iterator[InstructionRecord]:
        """The value and its sources, traced back through rearrangements to the first computation."""
        seen, waiting = set(), [value]
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.by_name:
                continue
            seen.add(name)
            instruction = self.by_name[name]
            yield instruction
            if instruction.opcode in _TRANSPARENT:
                waiting += instruction.operands

    def real_users(self, value: str) -> list[InstructionRecord]:
        """The instructions that compute with a value, directly or through rearrangements."""
        users, seen, waiting = [], set(), [value]
        while waiting:
            name = waiting.pop()
            for user in self.users.get(name, ()):
                if user.name in seen:
                    continue
                seen.add(user.name)
                (waiting.append(user.name) if user.opcode in _TRANSPARENT else users.append(user))
        return users

    def is_loop_invariant(self, value: str) -> bool:
        """Returns whether a value in a loop's body is the same in every iteration."""
        start = self.by_name.get(value)
        if start is None:
            return False
        positions = self._kept(start.computation)
        if positions is None:
            return False
        seen, waiting = set(), [value]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            instruction = self.by_name.get(name)
            if instruction is None or instruction.opcode in _VARYING:
                return False
            if instruction.opcode == "get-tuple-element" and self._is_parameter(instruction.operands):
                if self._index(instruction.name) not in positions:
                    return False
                continue
            waiting += instruction.operands
        return True

    def _kept(self, computation: str) -> set[int] | None:
        """Loop-invariant positions in the carried tuple of a loop body; None if the computation is not a loop body."""
        inside = [instruction for instruction in self.module.instructions if instruction.computation == computation]
        parameters = [instruction for instruction in inside if instruction.opcode == "parameter"]
        root = next((i for i in inside if "ROOT " in self.lines.get(i.name, "") and i.opcode == "tuple"), None)
        if len(parameters) != 1 or root is None:
            return None
        positions = set()
        for position, operand in enumerate(root.operands):
            instruction = self.by_name.get(operand)
            if (
                instruction is not None
                and instruction.opcode == "get-tuple-element"
                and self._is_parameter(instruction.operands)
            ):
                if self._index(instruction.name) == position:
                    positions.add(position)
        return positions

    def _is_parameter(self, operands: Sequence[str]) -> bool:
        instruction = self.by_name.get(operands[0]) if operands else None
        return instruction is not None and instruction.opcode == "parameter"

    def _index(self, name: str) -> int | None:
        match = _INDEX.search(self.lines.get(name, ""))
        return int(match[1]) if match else None


def estimated(quantity: Quantity, before: float, after: float, how: str) -> GainRecord:
    """An estimated gain that was not verified by compiling."""
    return GainRecord(quantity=quantity, before=before, after=after, verified=False, how=how)


def less_sent(program: Compiled, saved: float, how: str) -> GainRecord:
    """An estimated gain of a change that makes one device send fewer bytes per call."""
    return estimated("bytes sent", program.sent_bytes, max(0.0, program.sent_bytes - saved), how)


def dtype_of(shape: str) -> str:
    """The element type of an HLO shape: "bf16" for "bf16[8,128]{1,0}"."""
    return shape.lstrip("(").partition("[")[0]


def explained(program: Compiled) -> Iterator[tuple[WhyCollectiveRecord, CollectiveRecord]]:
    """The module's collectives, each with the reason for it."""
    waiting = list(program.module.collectives)
    for why in program.why.collectives:
        alike = [c for c in waiting if (c.kind, c.payload_bytes, c.executions) == _figures(why)]
        if alike:
            collective = next((c for c in alike if why.source in c.sources), alike[0])
            waiting.remove(collective)
            yield why, collective


def _figures(why: WhyCollectiveRecord) -> tuple[str, int, float | None]:
    return why.kind, why.payload_bytes, why.executions
