"""Evaluates a plan: stages run under their names, and clients run in chunks."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun

from workbench import _jax_compat
from workbench._types import Atom, PyTreeDef, type_of
from workbench.plan._alike import AlikeRow
from workbench.plan._choices import load_choice
from workbench.plan._chunk_size import ChunkSize
from workbench.plan._client_loop import ClientLoop
from workbench.plan._emissions import Emission
from workbench.plan._interpreter import ControlFlow, Interpreter, control_flow
from workbench.plan._loop_form import LoopForm
from workbench.plan._phases import find_phases
from workbench.plan._plan import Plan, Step, plan_jaxpr
from workbench.primitives import bind_here, rebase
from workbench.records.program import PlanChoiceRecord


def evaluate(
    plan: Plan, inputs: Sequence[Any], *, chunk_size: ChunkSize = None, path: str = "", form: LoopForm | None = None
) -> list[Any]:
    """Runs a plan on flat inputs.

    Args:
        plan: The plan to run.
        inputs: One value per input of the plan's jaxpr.
        chunk_size: Number of clients that each device processes together. "auto" uses the measured choice for this plan
            if there is one, and otherwise chooses by size and platform; None computes all clients of a device at once.
        path: Path of the stage that has this plan as its body.
        form: Additional parameters of the client loop.

    Returns:
        One value per output of the plan's jaxpr.
    """
    chunk_size, form = resolve_choice(plan, chunk_size, form or LoopForm())
    return _Evaluation(plan, chunk_size, path, form).run_plan(inputs)


def resolve_choice(plan: Plan, chunk_size: ChunkSize, form: LoopForm) -> tuple[ChunkSize, LoopForm]:
    """Resolves "auto" to the measured choice for this plan on these devices, if there is one."""
    if chunk_size != "auto" or (choice := load_choice(plan, form)) is None:
        return chunk_size, form
    return choice.chunk_size, form_of(choice)


def form_of(choice: PlanChoiceRecord) -> LoopForm:
    """The loop form stored in a recorded choice."""
    kept_bytes = math.inf if choice.kept_bytes is None else choice.kept_bytes
    return LoopForm(choice.spread, kept_bytes, choice.unroll)


def kept_bytes_of(chunk_size: ChunkSize, form: LoopForm) -> float:
    """Memory budget for kept rows; if clients are not chunked, all rows are kept."""
    return math.inf if chunk_size is None else form.kept_bytes


class _Evaluation(ClientLoop, Interpreter[Any]):
    def __init__(self, plan: Plan, chunk_size: ChunkSize, path: str, form: LoopForm) -> None:
        self.plan, self.path, self.form = plan, path, form
        self.chunk_size = chunk_size
        self.phases = find_phases(plan, kept_bytes=kept_bytes_of(chunk_size, form))
        self.broadcasts = {step.outputs[0]: step for step in plan.steps if step.kind == "broadcast"}
        self.stage_of = {id(step.equation): step.stage for step in plan.steps}
        self.values: dict[Var, Any] = {}
        self.alike: dict[int, jax.Array] = {}  # keyed by the identity of the `AlikeRow`

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
        if atom not in self.values:  # broadcast rows that are read outside clients
            self._run_step(self.broadcasts[atom])
        return self.values[atom]

    def _shared(self, atom: Atom | AlikeRow, rows: Var) -> jax.Array:
        if isinstance(atom, AlikeRow):
            return self._alike(atom)
        value = self._read(atom)
        with jax.named_scope(self.scope_of(self.broadcasts[rows])):
            if not isinstance(atom, Literal):
                return value
            return jax.numpy.asarray(value, dtype=type_of(atom).dtype)

    def _alike(self, row: AlikeRow) -> jax.Array:
        """A client-invariant row, which is computed only once."""
        if id(row) not in self.alike:
            inputs = [self._alike(x) if isinstance(x, AlikeRow) else self._read(x) for x in row.inputs]
            jaxpr = rebase(row.jaxpr) if _jax_compat.has_manual_axes() else row.jaxpr
            with jax.named_scope(self.scope_of(row.step)):
                (self.alike[id(row)],) = jaxpr_as_fun(jaxpr)(*inputs)
        return self.alike[id(row)]

    def scope_of(self, step: Step) -> str:
        return self.plan.scope_of(step, self.path)

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
        return _Evaluation(inner, self.chunk_size, path, self.form).run_plan(operands)


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """A traced call: its plan, and the tree structures of its inputs and results."""

    plan: Plan
    in_tree: PyTreeDef
    out_tree: PyTreeDef
    in_names: tuple[str, ...]
    emissions: tuple[Emission, ...] = ()  # emissions stored in the last outputs of the plan
