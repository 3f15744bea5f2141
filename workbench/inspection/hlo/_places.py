"""Source place of every instruction: from its own metadata, or from an instruction that uses its value."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from workbench.inspection._call_tree._frames import Frame
from workbench.inspection.hlo._attribution import Neighbours
from workbench.inspection.hlo._executions import Runs
from workbench.inspection.hlo._frames import Frames
from workbench.inspection.hlo._text import Computation, Hlo, Instruction

_HOPS = 8
_HEAVY = frozenset(("dot", "convolution", "custom-call", "ragged-dot"))


class Place(NamedTuple):
    """A call path together with a name stack."""

    stack: tuple[Frame, ...]  # outermost first; empty if the module has no frames
    op_name: str


class Places:
    """The places of a module's instructions.

    Compilers drop metadata from some instructions. Such an instruction is assigned the place of a reader of its value,
    otherwise the place of an operand, otherwise the place of the surrounding call. A fusion is assigned the place of
    its heaviest part.
    """

    def __init__(
        self, hlo: Hlo, runs: Runs, frames: Frames, names_a_line: Callable[["Place"], bool] = lambda place: True
    ) -> None:
        self._hlo, self._runs = hlo, runs
        vague: dict[Instruction, Place] = {}  # places of the whole program, so a neighbour's place is more precise
        self._places: dict[Instruction, Place] = {}
        self._own: set[Instruction] = set()
        self._frame_places: dict[tuple[int, str], Place] = {}
        for instruction in hlo.instructions():
            place = self._written(instruction, frames)
            if place is not None:
                (self._places if names_a_line(place) else vague)[instruction] = place
        self._own.update(self._places)
        self._infer()
        for instruction, place in vague.items():
            self._places.setdefault(instruction, place)

    def place(self, instruction: Instruction) -> Place | None:
        """The place of an instruction; None if no neighbour has a place."""
        return self._places.get(instruction)

    def is_own(self, instruction: Instruction) -> bool:
        """Returns whether an instruction itself records its place."""
        return instruction in self._own

    def _written(self, instruction: Instruction, frames: Frames) -> Place | None:
        key = (instruction.frame, instruction.op_name)
        if instruction.frame and key in self._frame_places:
            return self._frame_places[key]
        stack = frames.stack(instruction)
        if stack:
            place = Place(stack, instruction.op_name)
            return self._frame_places.setdefault(key, place) if instruction.frame else place
        if not frames.known and "/" in instruction.op_name:  # such a module has only scopes
            return Place((), instruction.op_name)
        return None

    def _infer(self) -> None:
        for computation in self._hlo.computations.values():  # callees first
            for instruction in computation.instructions:
                if instruction.opcode == "fusion" and instruction not in self._places:
                    self._vote(instruction)
        neighbours = Neighbours(self._hlo, self._runs)
        pending = [
            i for i in self._hlo.instructions() if i not in self._places and i.computation not in self._runs.regions
        ]
        for _ in range(_HOPS):
            assignments: dict[Instruction, Place] = {}
            for instruction in pending:
                place = self._first(neighbours.users(instruction)) or self._first(neighbours.operands(instruction))
                if place is not None:
                    assignments[instruction] = place
            if not assignments:
                break
            self._places.update(assignments)
            pending = [i for i in pending if i not in assignments]
        for computation in reversed(self._hlo.computations.values()):
            self._fall_back(computation)

    def _vote(self, fusion: Instruction) -> None:
        parts = [inner for name in fusion.calls() for inner in self._hlo.computations[name].instructions]
        members = [inner for inner in reversed(parts) if inner in self._places]
        heavy = [inner for inner in members if inner.opcode in _HEAVY]
        if members:
            self._places[fusion] = self._places[(heavy or members)[0]]

    def _first(self, instructions: Iterable[Instruction]) -> Place | None:
        """The first known place; an instruction inside a fusion is preferred to the fusion."""
        candidates = [i for i in instructions if i in self._places]
        chosen = next((i for i in candidates if i.opcode != "fusion"), candidates[0] if candidates else None)
        return None if chosen is None else self._places[chosen]

    def _fall_back(self, computation: Computation) -> None:
        caller = self._runs.callers.get(computation.name)
        place = None if caller is None else self._places.get(caller)
        if place is not None:
            for instruction in computation.instructions:
                self._places.setdefault(instruction, place)
