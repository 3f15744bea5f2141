"""Evaluates a plan: the program itself, each stage under its name, its clients in chunks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal as OneOf

import jax
from jax.extend.core import Literal, Var

from workbench import _jax_compat
from workbench.plan._chunk_size import choose_chunk_size
from workbench.plan._client_loop import PassOptions, run_pass
from workbench.plan._emissions import Emission
from workbench.plan._phases import Phase, find_phases
from workbench.plan._plan import Plan, Step, plan_jaxpr
from workbench.plan._rebase import bind_rebased

ChunkSize = int | OneOf["auto"] | Callable[[Phase, int], int] | None


def evaluate(plan: Plan, inputs: Sequence[Any], *, chunk_size: ChunkSize = None, path: str = "") -> list[Any]:
    """Runs a plan on flat inputs.

    Args:
        plan: What to run.
        inputs: One value per input of the plan's jaxpr.
        chunk_size: How many clients each device computes together; "auto" chooses from size and platform;
            None computes all of a device's clients at once.
        path: Path of the stage that this plan is the body of.

    Returns:
        One value per output of the plan's jaxpr.
    """
    return _Evaluation(plan, chunk_size, path).run(inputs)


def resolve_chunk_size(chunk_size: ChunkSize, phase: Phase, per_share: int) -> int:
    """The number of clients that a device with `per_share` of them computes together."""
    if chunk_size is None:
        return per_share
    if isinstance(chunk_size, int):
        return min(chunk_size, per_share)
    choose = choose_chunk_size if chunk_size == "auto" else chunk_size
    assert callable(choose)
    return choose(phase, per_share)


def bind_here(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Runs one equation, under the mesh that it was traced with or, inside a `shard_map`, under that of the place."""
    if _jax_compat.has_manual_axes():
        return bind_rebased(equation, operands)
    with _jax_compat.source_of(equation):
        return _jax_compat.bind_equation(equation, operands)


class _Evaluation:
    def __init__(self, plan: Plan, chunk_size: ChunkSize, path: str) -> None:
        self.plan, self.path = plan, path
        self.chunk_size: ChunkSize = chunk_size
        self.phases = find_phases(plan, recompute=chunk_size is not None)
        self.broadcasts = {step.outputs[0]: step for step in plan.steps if step.kind == "broadcast"}
        self.values: dict[Var, Any] = {}
        self.options = PassOptions(self._chunk_size, self._scope, self._client_program, bind_here)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
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
                self.values.update(run_pass(phase, rows, shared, self.options))
        return [self._read(atom) for atom in closed.jaxpr.outvars]

    def _read(self, atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in self.values:  # rows of a broadcast that somebody other than the clients reads
            self._run_step(self.broadcasts[atom])
        return self.values[atom]

    def _shared(self, atom: Any, rows: Var) -> Any:
        value = self._read(atom)
        with jax.named_scope(self._scope(self.broadcasts[rows])):
            if not isinstance(atom, Literal):
                return value
            literal: Any = atom
            return jax.numpy.asarray(value, dtype=literal.aval.dtype)

    def _scope(self, step: Step) -> str:
        return f"wb:{self.path}{self.plan.stages[step.stage].label}"

    def _chunk_size(self, phase: Phase, per_share: int) -> int:
        return resolve_chunk_size(self.chunk_size, phase, per_share)

    def _run_step(self, step: Step) -> None:
        operands = [self._read(atom) for atom in step.equation.invars]
        with jax.named_scope(self._scope(step)):
            if step.kind in ("loop", "branch"):
                results = _LOOPS[step.equation.primitive.name](self, step, operands)
            else:
                results = bind_here(step.equation, operands)
        self.values.update(zip(step.outputs, results, strict=True))

    def _client_program(self, step: Step, operands: Sequence[Any]) -> list[Any]:
        assert step.jaxpr is not None
        return self._body(step, step.jaxpr, operands)

    def _body(self, step: Step, closed: Any, operands: Sequence[Any], suffix: str = "") -> list[Any]:
        inner = plan_jaxpr(closed, self.plan.stages[step.stage].name)
        path = f"{self.path}{step.stage}{suffix}."
        return evaluate(inner, operands, chunk_size=self.chunk_size, path=path)


def _scan(run: _Evaluation, step: Step, operands: Sequence[Any]) -> list[Any]:
    params = step.equation.params
    consts, carries = _jax_compat.scan_counts(params)
    fixed, start, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]

    def turn(carry: Any, x: Any) -> Any:
        results = run._body(step, params["jaxpr"], [*fixed, *carry, *x])
        return tuple(results[:carries]), tuple(results[carries:])

    last, stacked = jax.lax.scan(
        turn, tuple(start), tuple(xs), params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *stacked]


def _while(run: _Evaluation, step: Step, operands: Sequence[Any]) -> list[Any]:
    params = step.equation.params
    conditions, bodies = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = operands[:conditions], operands[conditions : conditions + bodies]
    condition = plan_jaxpr(params["cond_jaxpr"], "condition")
    return list(
        jax.lax.while_loop(
            lambda carry: evaluate(condition, [*for_condition, *carry])[0],
            lambda carry: tuple(run._body(step, params["body_jaxpr"], [*for_body, *carry])),
            tuple(operands[conditions + bodies :]),
        )
    )


def _cond(run: _Evaluation, step: Step, operands: Sequence[Any]) -> list[Any]:
    branches = [
        lambda *values, index=index, branch=branch: tuple(run._body(step, branch, values, f"[{index}]"))
        for index, branch in enumerate(step.equation.params["branches"])
    ]
    return list(jax.lax.switch(operands[0], branches, *operands[1:]))


_LOOPS = {"scan": _scan, "while": _while, "cond": _cond}


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced call: its plan, the flat inputs' tree and the tree of the results."""

    plan: Plan
    in_tree: Any
    out_tree: Any
    in_names: tuple[str, ...]
    emissions: tuple[Emission, ...] = ()  # what the last outputs of the plan are
