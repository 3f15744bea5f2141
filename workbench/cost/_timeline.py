"""Predicts the time of every instruction in a module in schedule order, with waiting and overlap.

The compiler lists instructions in schedule order. A device runs its operations one after another. An asynchronous
collective runs between its `start` and its `done` instruction; collectives over the same mesh axes run one at a time.
The `done` instruction waits for the remaining time. An asynchronous copy uses the main memory bandwidth that the
operations in between leave unused.
"""

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from workbench.cost._collectives import seconds_of_collective, why_unpriced
from workbench.cost._operations import FREE, TRANSCENDENTAL, OperationTime, predict_instruction
from workbench.cost._rates import family_of
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord
from workbench.records.hardware import ChipRecord

_COPY_STARTS = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")


class InstructionTime(NamedTuple):
    """Time of one execution of an instruction in seconds."""

    seconds: float | None  # time that the instruction adds to the step; None: unknown
    alone: float | None  # the instruction's own time, even if overlapped
    compute: float | None = 0.0
    memory: float = 0.0
    is_collective: bool = False
    unknown: str = ""


@dataclass(slots=True)
class _Clock:
    """State of one computation during its schedule; unknown times count as 0 here."""

    now: float = 0.0
    links: dict[tuple[str, ...], list[float]] = field(default_factory=dict)  # mesh axes -> when each direction is free
    ends: dict[str, tuple[str, float]] = field(default_factory=dict)  # start -> (collective, its end time)
    copies: dict[str, float] = field(default_factory=dict)  # start -> remaining seconds of memory traffic

    def run(self, seconds: float, memory: float) -> None:
        """Runs an operation while copies in flight use the remaining bandwidth."""
        self.now += seconds
        spare = max(0.0, seconds - memory)
        for name, amount in self.copies.items():
            used = min(amount, spare)
            self.copies[name], spare = amount - used, spare - used

    def send(self, key: tuple[str, ...], seconds: float, directions: int) -> float:
        """Starts an asynchronous collective; returns its end time."""
        lanes = self.links.setdefault(key, [0.0] * directions)
        lane = lanes.index(min(lanes))
        lanes[lane] = max(lanes[lane], self.now) + seconds
        return lanes[lane]


def time_module(module: ModuleRecord, chip: ChipRecord, dtype: str = "bfloat16") -> dict[str, InstructionTime]:
    """Predicts the time that a module's instructions take on one of a chip's devices.

    Args:
        module: From `inspect_module`; its instructions are in schedule order.
        chip: Chip with its rates.
        dtype: The dtype assumed for kernels that do not state their dtype.

    Returns:
        Time of one execution in seconds, by instruction name. The module's time is the sum of these times, each
        multiplied by the instruction's number of executions.
    """
    return _Schedule(module, chip, dtype).times()


def is_compiled_elsewhere(module: ModuleRecord, chip: ChipRecord) -> bool:
    """Returns whether a module was compiled for CPUs although the chip is not a CPU.

    The CPU compiler fuses less than accelerator compilers and leaves more operations, so such a module is priced
    without the fixed cost of an operation.
    """
    return module.platform == "cpu" and family_of(chip) != "CPU"


def _elements(shape: str) -> float:
    """Number of elements in an array, from its shape in HLO text."""
    return float(math.prod(map(int, re.findall(r"\d+", shape.partition("[")[2].partition("]")[0]))))


class _Schedule:
    def __init__(self, module: ModuleRecord, chip: ChipRecord, dtype: str) -> None:
        self._chip, self._dtype = chip, dtype
        self._collectives = {collective.name: collective for collective in module.collectives}
        self._computations: dict[str, list[InstructionRecord]] = {}
        for instruction in module.instructions:
            self._computations.setdefault(instruction.computation, []).append(instruction)
        self._runs = {name: body[0].executions for name, body in self._computations.items()}
        # XLA's CPU backend may run operations in any order, and operations that share cores do not overlap.
        self._overlaps = module.platform != "cpu"
        self._fixed = not is_compiled_elsewhere(module, chip)
        self._found: dict[str, InstructionTime] = {}
        self._seconds: dict[str, float] = {}
        asynchronous = {
            callee
            for instruction in module.instructions
            if instruction.opcode in ("async-start", "call-start")
            for callee in instruction.calls
        }
        self._asynchronous: set[str] = asynchronous
        self._reach = self._reaches() if chip.rates else {}

    def times(self) -> dict[str, InstructionTime]:
        for name, body in self._computations.items():  # callees precede their callers
            if not body[0].fused and name not in self._asynchronous:
                self._seconds[name] = self._follow(body)
        for name, collective in self._collectives.items():  # listed without an instruction, as in a handwritten record
            if name not in self._found:
                self._found[name] = self._sent(collective, self._alone(name))
        return self._found

    def _follow(self, body: list[InstructionRecord]) -> float:
        clock = _Clock()
        for instruction in body:
            self._step(instruction, clock)
        return clock.now

    def _step(self, instruction: InstructionRecord, clock: _Clock) -> None:
        collective = self._started(instruction)
        if collective is not None:
            self._communicate(instruction, collective, clock)
        elif instruction.opcode in _COPY_STARTS and self._overlaps:
            time = self._operation(instruction)
            clock.copies[instruction.name] = time.memory
            self._found[instruction.name] = InstructionTime(0.0, time.memory, 0.0, time.memory)
        elif instruction.opcode.endswith(("-done", "-update")):
            self._wait(instruction, clock)
        elif instruction.opcode in ("while", "call", "conditional"):
            clock.now += sum(
                self._seconds.get(callee, 0.0) * self._times(instruction, callee) for callee in instruction.calls
            )
        else:
            time = self._operation(instruction)
            clock.run(time.seconds or 0.0, time.memory)
            self._fused_collectives(instruction, time.seconds or 0.0, clock)
            if time.seconds is None or time.seconds:
                self._found[instruction.name] = InstructionTime(
                    time.seconds, time.seconds, time.compute, time.memory, unknown=time.unknown
                )

    def _operation(self, instruction: InstructionRecord) -> OperationTime:
        if not self._chip.rates:
            return predict_instruction(instruction, self._chip, self._dtype, fixed=self._fixed)
        transcendentals = self._transcendentals(instruction)
        return predict_instruction(
            instruction,
            self._chip,
            self._dtype,
            fixed=self._fixed,
            reach_bytes=self._reach.get(instruction.name, 0.0),
            transcendentals=transcendentals,
            arithmetic=instruction.elementwise_flops - transcendentals,
        )

    def _reaches(self) -> dict[str, float]:
        """Bytes written since each instruction's oldest operand was written, including the instruction's result.

        Inputs of a computation count as written before all its instructions; values of a loop count as written one
        iteration earlier.
        """
        reach: dict[str, float] = {}
        for body in self._computations.values():
            positions: dict[str, float] = {}
            total = sum(instruction.size_bytes for instruction in body if instruction.opcode not in FREE)
            written = 0.0
            for instruction in body:
                since = [written - positions.get(name, written - total) for name in instruction.operands]
                if instruction.opcode in ("while", "call", "conditional"):
                    positions[instruction.name] = written
                elif instruction.opcode in FREE:
                    positions[instruction.name] = min(
                        (positions.get(name, written - total) for name in instruction.operands), default=-total
                    )
                else:
                    reach[instruction.name] = max(since, default=0.0) + instruction.size_bytes
                    written += instruction.size_bytes
                    positions[instruction.name] = written
        return reach

    def _transcendentals(self, instruction: InstructionRecord) -> float:
        inner = (
            self._computations.get(instruction.calls[0], ())
            if instruction.opcode == "fusion" and instruction.calls
            else (instruction,)
        )
        return sum(_elements(part.shape) for part in inner if part.opcode in TRANSCENDENTAL)

    def _times(self, caller: InstructionRecord, callee: str) -> float:
        """Executions of a computation per execution of its caller; one if a loop's length is unknown."""
        inner, outer = self._runs.get(callee), caller.executions
        return 1.0 if inner is None or not outer else inner / outer

    def _started(self, instruction: InstructionRecord) -> CollectiveRecord | None:
        """The collective that an instruction runs or starts."""
        if instruction.name in self._collectives:
            return self._collectives[instruction.name]
        if instruction.opcode in ("async-start", "call-start"):
            inner = (part.name for callee in instruction.calls for part in self._computations.get(callee, ()))
            return next((self._collectives[name] for name in inner if name in self._collectives), None)
        return None

    def _communicate(self, instruction: InstructionRecord, collective: CollectiveRecord, clock: _Clock) -> None:
        seconds = seconds_of_collective(collective, self._chip)
        one_way = collective.kind in ("collective-permute", "send")
        directions = 2 if one_way and family_of(self._chip) == "TPU" else 1
        end = clock.send((*collective.axes, "permute" if directions > 1 else ""), seconds or 0.0, directions)
        self._found[collective.name] = self._sent(collective, seconds)
        if collective.asynchronous and self._overlaps and instruction.opcode.endswith("-start"):
            clock.ends[instruction.name] = collective.name, end
            if seconds is not None:
                self._found[collective.name] = self._found[collective.name]._replace(seconds=0.0)
            return
        if seconds is not None:
            waited = end - clock.now
            self._found[collective.name] = self._found[collective.name]._replace(seconds=waited)
        clock.now = end

    def _fused_collectives(self, instruction: InstructionRecord, seconds: float, clock: _Clock) -> None:
        """Predicts the times of a fusion's collectives, which run while the fusion computes."""
        for callee in instruction.calls if instruction.opcode == "fusion" else ():
            for inner in self._computations.get(callee, ()):
                if inner.name in self._collectives:
                    time = self._sent(self._collectives[inner.name], self._alone(inner.name))
                    if time.seconds is not None:
                        time = time._replace(seconds=max(0.0, time.seconds - seconds))
                        clock.now += time.seconds or 0.0
                    self._found[inner.name] = time

    def _alone(self, name: str) -> float | None:
        return seconds_of_collective(self._collectives[name], self._chip)

    def _sent(self, collective: CollectiveRecord, seconds: float | None) -> InstructionTime:
        why = ""
        if seconds is None:
            why = "the participants are written in an unknown syntax"
            if collective.wire_bytes is not None:
                why = why_unpriced(
                    collective.group_size, self._chip, across_slices=collective.across_slices, hosts=collective.hosts
                )
        return InstructionTime(seconds, seconds, is_collective=True, unknown=why)

    def _wait(self, instruction: InstructionRecord, clock: _Clock) -> None:
        start = instruction.operands[0] if instruction.operands else ""
        if instruction.opcode.endswith("-update"):
            for pending in (clock.ends, clock.copies):
                if start in pending:
                    pending[instruction.name] = pending.pop(start)  # type: ignore[assignment, index]
            return
        if start in clock.ends:
            name, end = clock.ends.pop(start)
            waited = max(0.0, end - clock.now)
            time = self._found[name]
            if time.seconds is not None:
                self._found[name] = time._replace(seconds=time.seconds + waited)
            clock.now += waited
        elif start in clock.copies:
            duration = clock.copies.pop(start)
            clock.now += duration
            self._found[start if start in self._found else instruction.name] = InstructionTime(
                duration, duration, 0.0, duration
            )
