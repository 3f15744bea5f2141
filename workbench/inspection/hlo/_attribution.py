"""Assigns a stage of the user's program to each HLO instruction.

Stages write their scope to `op_name` (`jit(f)/wb:2.0:clients/…`). Compilers drop the scope from some instructions.
These instructions take their stage from the instructions fused into them or, if there are none, from the loop or call
around them. If the loop or call has no stage, the nearest instructions that use the value decide. If none of these has
a stage, the nearest instructions that compute the operands decide.

All planned code belongs to some stage. An `op_name` without a stage therefore comes from the loop over chunks of
clients, and its instruction also takes a stage from its neighbours. Unplanned code carries the scopes of the primitives
(`wb.map_fn[clients]`), which then serve as its stages; operations outside these scopes belong to the server.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from workbench.inspection.hlo._executions import Runs
from workbench.inspection.hlo._text import Computation, Hlo, Instruction
from workbench.records.program import StageKind

_PATH = r"\d+(?:\[\d+\])?(?:\.\d+(?:\[\d+\])?)*"  # "2.0", and "2[1].0" in the second branch of a conditional
_STAGE = re.compile(rf"\bwb:({_PATH}):([a-z]+)")
_MASKED = re.compile(rf"\bwb=({_PATH})=([a-z]+)")
_COMBINED = re.compile(r"(?:^|/)\((.*)\)$")
_PRIMITIVE = re.compile(r"\bwb\.(\w+)\[([^\]]*)\]")
_WHOLE = re.compile(r"^p?jit\(")
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="[^"]+"')
_HOPS = 6
_COMMUNICATING = ("reduce", "broadcast")
_COLLECTIVE = re.compile(r"^(all-|reduce-scatter|collective-|ragged-all|send|recv)")


class NamedStage(NamedTuple):
    """A stage, as named in an `op_name`."""

    path: str
    kind: StageKind


SERVER = NamedStage("server", "server")


def stages_of(op_name: str) -> tuple[NamedStage, ...]:
    """The stages named in an `op_name`; several if the compiler combined operations.

    Returns:
        The innermost stages, in order. In unplanned code, the scope of a primitive serves as its stage.

    Example:
        >>> stages_of("jit(f)/wb:2:loop/while/body/transpose(jvp(wb:2.0:clients))/mul")
        (NamedStage(path='2.0', kind='clients'),)
    """
    return tuple(dict.fromkeys(stage for stage in combined_stages(op_name) if stage is not None))


def combined_stages(op_name: str) -> list[NamedStage | None]:
    """The stage of every name combined in an `op_name`, in order, repeated; None for names outside all stages."""
    return [_innermost(path) for path in _paths(op_name)] if "wb" in op_name else []


def combined_names(op_name: str) -> list[str]:
    """The names that the compiler combined in an `op_name`, in the order of the operands.

    Example:
        >>> combined_names("jit(f)/(dot_general:wb:0:reduce/add)")
        ['jit(f)/dot_general', 'jit(f)/wb:0:reduce/add']
    """
    return [_MASKED.sub(r"wb:\1:\2", path) for path in _paths(op_name)]


def _paths(op_name: str) -> list[str]:
    """The paths of a combined name: `a;b` on TPU, `prefix/(a:b)` on CPU. Colons inside stage names are kept."""
    paths = []
    for part in _STAGE.sub(r"wb=\1=\2", op_name).split(";"):
        group = _COMBINED.search(part)
        if group is not None and ":" in group[1]:
            paths += [part[: group.start(1) - 1] + piece for piece in group[1].split(":")]
        else:
            paths.append(part)
    return paths


def _innermost(path: str) -> NamedStage | None:
    planned = _MASKED.findall(path)
    if planned:
        return NamedStage(*planned[-1])
    primitives = _PRIMITIVE.findall(path)
    return NamedStage("{}[{}]".format(*primitives[-1]), _kind(primitives[-1][0])) if primitives else None


def _kind(primitive: str) -> StageKind:
    if primitive.startswith("broadcast"):
        return "broadcast"
    return "reduce" if primitive.startswith("reduce") else "clients"


class StageFinder:
    """The stages of all instructions in one module."""

    def __init__(self, hlo: Hlo, runs: Runs, only: NamedStage | None = None) -> None:
        self._hlo, self._runs, self._only = hlo, runs, None
        self._own: dict[Instruction, tuple[NamedStage, ...]] = {}
        self._inferred: dict[Instruction, NamedStage] = {}
        self._combined: dict[Instruction, tuple[NamedStage, ...]] = {}
        self._witnesses: dict[Instruction, list[Instruction]] = {}
        for instruction in hlo.instructions():
            stages = stages_of(instruction.op_name)
            if stages:
                self._own[instruction] = stages
        if self._own:
            if not any(_STAGE.search(instruction.op_name) for instruction in self._own):
                self._give_to_server()
            self._infer()
        self._only = only  # in a program with one stage: the stage of all instructions that name no other stage

    def stage(self, instruction: Instruction) -> NamedStage | None:
        """The stage of an instruction; None outside all stages."""
        stages = self._own.get(instruction)
        return stages[0] if stages else self._inferred.get(instruction, self._only)

    def stages(self, instruction: Instruction) -> tuple[NamedStage, ...]:
        """All stages of an instruction that the compiler combined from several instructions."""
        stage = self.stage(instruction)
        several = self._own.get(instruction) or self._combined.get(instruction)
        return several or (() if stage is None else (stage,))

    def witnesses(self, collective: Instruction) -> list[Instruction]:
        """The instructions from which the stages of an unnamed collective were inferred."""
        return self._witnesses.get(collective, [])

    def is_inferred(self, instruction: Instruction) -> bool:
        """Returns whether the stage was inferred rather than read from the instruction's own `op_name`."""
        return instruction in self._inferred

    def _infer(self) -> None:
        for computation in self._hlo.computations.values():  # callees first: nested fusions vote first
            for instruction in computation.instructions:
                if instruction.opcode in ("fusion", "async-start", "call-start", "call") and self._open(instruction):
                    self._vote(instruction)
        for computation in reversed(self._hlo.computations.values()):
            self._inherit(computation)
        self._spread()
        for computation in reversed(self._hlo.computations.values()):
            self._fall_back(computation)

    def _open(self, instruction: Instruction) -> bool:
        return instruction not in self._own and instruction not in self._inferred

    def _give_to_server(self) -> None:
        for instruction in self._hlo.instructions():
            if instruction not in self._own and _WHOLE.match(instruction.op_name):
                self._own[instruction] = (SERVER,)

    def _vote(self, instruction: Instruction) -> None:
        votes: Counter[NamedStage] = Counter()
        for name in instruction.calls():
            for inner in self._hlo.computations[name].instructions:
                stage = self.stage(inner)
                if stage is not None:
                    heavy = inner.opcode in ("dot", "convolution", "custom-call") or _COLLECTIVE.match(inner.opcode)
                    votes[stage] += 1000 if heavy else 1
        if votes:
            self._inferred[instruction] = votes.most_common(1)[0][0]

    def _inherit(self, computation: Computation) -> None:
        """Assigns the stage of a loop, call or fusion to all its instructions that do not name another stage."""
        caller = self._runs.callers.get(computation.name)
        stage = self.stage(caller) if caller is not None else None
        if stage is None or any(self._is_other(i, stage) for i in computation.instructions):
            return
        for instruction in computation.instructions:
            if self._open(instruction):
                self._inferred[instruction] = stage

    def _is_other(self, instruction: Instruction, stage: NamedStage) -> bool:
        stages = self._own.get(instruction)
        return stages is not None and stages[0] != stage

    def _spread(self) -> None:
        neighbours = Neighbours(self._hlo, self._runs)
        for instruction in reversed(list(self._hlo.instructions())):  # users decide the stage of their operands
            if _COLLECTIVE.match(instruction.opcode) and self._open(instruction):
                self._look_ahead(instruction, neighbours)
        pending = [i for i in self._hlo.instructions() if self._open(i) and i.computation not in self._runs.regions]
        for _ in range(_HOPS):
            assignments: dict[Instruction, NamedStage] = {}
            for instruction in pending:
                stage = self._nearest(instruction, neighbours)
                if stage is not None:
                    assignments[instruction] = stage
            if not assignments:
                break
            self._inferred.update(assignments)
            pending = [i for i in pending if i not in assignments]

    def _look_ahead(self, collective: Instruction, neighbours: "Neighbours") -> None:
        """Assigns a collective to the communicating stages whose work is the first to use its result."""
        targets: list[NamedStage] = []
        witnesses: list[Instruction] = []
        reached, seen = [collective], {collective}
        for _ in range(_HOPS):
            reached = [user for node in reached for user in neighbours.users(node) if user not in seen]
            seen.update(reached)
            for node in reached:
                candidates = self._own.get(node) or self._combined.get(node, ())
                stages = [stage for stage in candidates if stage.kind in _COMMUNICATING]
                targets += stages
                witnesses += self._witnesses.get(node, [node]) if stages else []
            reached = [node for node in dict.fromkeys(reached) if node not in self._own and node not in self._combined]
        if targets:
            self._inferred[collective] = targets[0]
            self._combined[collective] = tuple(dict.fromkeys(targets))
            self._witnesses[collective] = witnesses

    def _nearest(self, instruction: Instruction, neighbours: "Neighbours") -> NamedStage | None:
        after = self._labels(neighbours.users(instruction))
        before = self._labels(neighbours.operands(instruction))
        for stages in (after, before):
            if stages:
                return Counter(stages).most_common(1)[0][0]
        return None

    def _labels(self, instructions: Iterable[Instruction]) -> list[NamedStage]:
        return [stage for i in instructions if (stage := self.stage(i)) is not None]

    def _fall_back(self, computation: Computation) -> None:
        caller = self._runs.callers.get(computation.name)
        stage = self.stage(caller) if caller is not None else None
        if stage is not None:
            for instruction in computation.instructions:
                if self._open(instruction):
                    self._inferred[instruction] = stage


class Neighbours:
    """Users and operands of instructions, traced through fusions, tuples and loops."""

    def __init__(self, hlo: Hlo, runs: Runs) -> None:
        self._hlo, self._runs = hlo, runs

    def users(self, instruction: Instruction) -> list[Instruction]:
        """Readers of a value; if the reader is a fusion or loop, the first readers inside it."""
        computation = self._hlo.computations[instruction.computation]
        users = [] if instruction.opcode != "send" else _meeting(computation, instruction, "recv")
        for user, position in computation.users[instruction.name]:
            users += [user, *self._entered(user, position)]
            if user.opcode == "tuple":
                users += self._unpacked(computation, user, position)
        if instruction.root:
            caller = self._runs.callers.get(computation.name)
            if caller is not None and caller.opcode == "fusion":
                users.append(caller)
        return users

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Values that an instruction reads, traced through tuples and parameters."""
        computation = self._hlo.computations[instruction.computation]
        if instruction.opcode == "parameter":
            caller = self._runs.callers.get(computation.name)
            if caller is None or caller.opcode != "fusion":
                return []
            outer = self._hlo.computations[caller.computation]
            return [outer.by_name[caller.operands[int(instruction.arguments)]]]
        operands = [computation.by_name[operand] for operand in instruction.operands]
        if instruction.opcode == "recv":
            operands += _meeting(computation, instruction, "send")
        if instruction.opcode == "get-tuple-element":
            operands += self._packed(computation, operands[0], int(instruction.attribute("index") or 0))
        return operands

    def _entered(self, user: Instruction, position: int) -> list[Instruction]:
        if user.opcode != "fusion":
            return []
        body = self._hlo.computations[user.calls("calls")[0]]
        parameter = body.parameters.get(position)
        return [] if parameter is None else [reader for reader, _ in body.users[parameter.name]]

    def _unpacked(self, computation: Computation, packed: Instruction, position: int) -> list[Instruction]:
        """Readers of one element of a tuple, either directly or through the loop that carries the tuple."""
        readers = []
        for user, _ in computation.users[packed.name]:
            if user.opcode == "while":
                body = self._hlo.computations[user.calls("body")[0]]
                readers += _elements(body, body.parameters[0], position) if 0 in body.parameters else []
        caller = self._runs.callers.get(computation.name)
        if packed.root and caller is not None and caller.opcode == "while":
            readers += _elements(self._hlo.computations[caller.computation], caller, position)
        return readers

    def _packed(self, computation: Computation, source: Instruction, index: int) -> list[Instruction]:
        if source.opcode == "tuple":
            return [computation.by_name[source.operands[index]]]
        if source.opcode in ("while", "fusion"):
            return _result(self._hlo.computations[source.calls("body", "calls")[0]], index)
        caller = self._runs.callers.get(computation.name)
        if source.opcode != "parameter" or caller is None or caller.opcode != "while":
            return []
        outer = self._hlo.computations[caller.computation]
        start = outer.by_name[caller.operands[0]]
        return [outer.by_name[start.operands[index]]] if start.opcode == "tuple" else []


def _meeting(computation: Computation, transfer: Instruction, opcode: str) -> list[Instruction]:
    """The other end of an exchange between slices: the receive that belongs to a send."""
    named = _RENDEZVOUS.search(transfer.attributes)
    return [i for i in computation.instructions if i.opcode == opcode and named and named[0] in i.attributes]


def _elements(computation: Computation, packed: Instruction, index: int) -> list[Instruction]:
    readers = computation.users[packed.name]
    return [u for u, _ in readers if u.opcode == "get-tuple-element" and u.attribute("index") == str(index)]


def _result(body: Computation, index: int) -> list[Instruction]:
    root = body.root
    if root is None:
        return []
    return [body.by_name[root.operands[index]]] if root.opcode == "tuple" else [root]
