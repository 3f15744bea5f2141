"""Evaluates a plan: the program itself, each stage under its name, its clients in chunks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal as OneOf, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, Literal, Var

from workbench._types import Atom, PyTreeDef, type_of
from workbench.mesh import bind_here
from workbench.plan._chunk_size import choose_chunk_size
from workbench.plan._client_loop import ClientLoop
from workbench.plan._emissions import Emission
from workbench.plan._interpreter import ControlFlow, Interpreter, control_flow
from workbench.plan._phases import Phase, find_phases
from workbench.plan._plan import Plan, Step, plan_jaxpr
from workbench.plan._spread import Spread

ChunkSize: TypeAlias = int | OneOf["auto"] | Callable[[Phase, int], int] | None


def evaluate(
    plan: Plan, inputs: Sequence[Any], *, chunk_size: ChunkSize = None, path: str = "", spread: Spread = "auto"
) -> list[Any]:
    """Runs a plan on flat inputs.

    Args:
        plan: What to run.
        inputs: One value per input of the plan's jaxpr.
        chunk_size: How many clients each device computes together; "auto" chooses from size and platform;
            None computes all of a device's clients at once.
        path: Path of the stage that this plan is the body of.
        spread: How clients are spread over a mesh; see `jit`.

    Returns:
        One value per output of the plan's jaxpr.
    """
    return _Evaluation(plan, chunk_size, path, spread).run_plan(inputs)


def resolve_chunk_size(chunk_size: ChunkSize, phase: Phase, per_shard: int) -> int:
    """The number of clients that a device with `per_shard` of them computes together."""
    if chunk_size is None:
        return per_shard
    if isinstance(chunk_size, int):
        return min(chunk_size, per_shard)
    choose = choose_chunk_size if chunk_size == "auto" else chunk_size
    assert callable(choose)
    return choose(phase, per_shard)


class _Evaluation(ClientLoop, Interpreter[Any]):
    def __init__(self, plan: Plan, chunk_size: ChunkSize, path: str, spread: Spread) -> None:
        self.plan, self.path, self.spread = plan, path, spread
        self.chunk_size: ChunkSize = chunk_size
        self.phases = find_phases(plan, recompute=chunk_size is not None)
        self.broadcasts = {step.outputs[0]: step for step in plan.steps if step.kind == "broadcast"}
        self.stage_of = {id(step.equation): step.stage for step in plan.steps}
        self.values: dict[Var, Any] = {}

    def run_plan(self, inputs: Sequence[Any]) -> list[Any]:
        closed = self.plan.closed
        variables = [*closed.jaxpr.constvars, *closed.jaxpr.invars]
        self.values.update(zip(variables, [*closed.consts, *inputs], strict=True))
        for level in range(self.plan.levels):
            for step in self.plan.steps:
                if step.level == level and step.kind in ("server", "loop", "branch"):
                    self._run_step(step)
            for phase in self.phases.get(level, ()):
                rows = [self._read(v) for v in phase.rows]
                shared = [self._shared(atom, v) for v, atom in phase.shared.items()]
                self.values.update(self.run_phase(phase, rows, shared))
        return [self._read(atom) for atom in closed.jaxpr.outvars]

    def _read(self, atom: Atom) -> jax.Array:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in self.values:  # rows of a broadcast that somebody other than the clients reads
            self._run_step(self.broadcasts[atom])
        return self.values[atom]

    def _shared(self, atom: Atom, rows: Var) -> jax.Array:
        value = self._read(atom)
        with jax.named_scope(self.scope_of(self.broadcasts[rows])):
            if not isinstance(atom, Literal):
                return value
            return jax.numpy.asarray(value, dtype=type_of(atom).dtype)

    def scope_of(self, step: Step) -> str:
        return f"wb:{self.path}{self.plan.stages[step.stage].label}"

    def chunk_size_of(self, phase: Phase, per_shard: int) -> int:
        return resolve_chunk_size(self.chunk_size, phase, per_shard)

    def run_client_program(self, step: Step, operands: Sequence[Any]) -> list[Any]:
        assert step.jaxpr is not None
        return self._run_inner(step.stage, step.jaxpr, operands, "")

    def _run_step(self, step: Step) -> None:
        operands = [self._read(atom) for atom in step.equation.invars]
        with jax.named_scope(self.scope_of(step)):
            if step.kind in ("loop", "branch"):
                flow = control_flow(step.equation)
                assert flow is not None
                results = self.follow(flow, operands)
            else:
                results = bind_here(step.equation, operands)
        self.values.update(zip(step.outputs, results, strict=True))

    def body(self, flow: ControlFlow, closed: ClosedJaxpr, operands: Sequence[Any], part: str = "") -> list[Any]:
        if part == "?":
            return evaluate(plan_jaxpr(closed, "condition"), operands)
        return self._run_inner(self.stage_of[id(flow.equation)], closed, operands, part)

    def _run_inner(self, stage: int, closed: ClosedJaxpr, operands: Sequence[Any], part: str) -> list[Any]:
        inner = plan_jaxpr(closed, self.plan.stages[stage].name)
        path = f"{self.path}{stage}{part}."
        return evaluate(inner, operands, chunk_size=self.chunk_size, path=path, spread=self.spread)


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """A traced call: its plan, the flat inputs' tree and the tree of the results."""

    plan: Plan
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    in_names: tuple[str, ...]
    emissions: tuple[Emission, ...] = ()  # what the last outputs of the plan are
