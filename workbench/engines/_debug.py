"""Runs a client's function operation by operation, so that values can be looked at and failures have a line."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from workbench import _jax_compat
from workbench.engines._client_loop import Pass
from workbench.engines._clients import Batch
from workbench.engines._run_recorder import find_nan, tell
from workbench.engines._stage import dtype_of, from_edge, to_edge
from workbench.errors import EngineError
from workbench.plan import REDUCTION_OF, bind_here, source_line
from workbench.records import SourceLine


@dataclasses.dataclass(frozen=True)
class Observed:
    """One operation of one client with its values; an inner client's name follows that of its outer client: `2/0`.

    `steps` are the turns of the client's own loops that it is in, the outermost first.
    """

    stage: str
    client: Any
    operation: str
    line: SourceLine | None
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    steps: tuple[int, ...] = ()


def trace_client(work: Pass, batch: Batch, *, watch: Callable[[Observed], None] | None, check_nan: bool) -> list[Any]:
    """The outputs of the pass's function for the single client of `batch`, computed operation by operation."""
    return walk_client(work, batch, TracedClient(work.stage, work.name, batch.clients[0], watch, check_nan))


def walk_client(work: Pass, batch: Batch, client: "TracedClient") -> list[Any]:
    """As `trace_client`, by a `client` of one's own."""
    phase, path = work.phase, work.function(1).path
    values: dict[Any, Any] = {}
    for v, rows in zip(phase.rows, batch.rows, strict=True):
        values[v] = from_edge(jnp.asarray(rows[0]), dtype_of(v))
    for (v, atom), x in zip(phase.shared.items(), work.shared, strict=True):
        values[v] = from_edge(jnp.asarray(x), dtype_of(atom))
    totals = []
    for step in phase.steps:
        atoms = [a for a in step.equation.invars if not (step.glue and isinstance(a, Literal))]
        operands = [jnp.asarray(a.val) if isinstance(a, Literal) else values[a] for a in atoms]
        if step.kind == "clients":
            assert step.jaxpr is not None
            client.enter(f"{path}{step.stage}", work.function(1).plan.stages[step.stage].name)
            values.update(zip(step.outputs, client.evaluate(step.jaxpr, operands), strict=True))
        else:
            reduction = REDUCTION_OF[step.equation.primitive]
            rows = [x[None] for x in operands]
            totals.append(reduction.add(step.equation, reduction.start(step.equation), rows, None))
    return [*(to_edge(values[v])[None] for v in phase.kept), *totals]


class TracedClient:
    """Evaluates the jaxprs of one client, an operation at a time."""

    def __init__(
        self, stage: str, name: str, client: Any, watch: Callable[[Observed], None] | None, check_nan: bool
    ) -> None:
        self.stage, self.name, self.client, self.watch, self.check_nan = stage, name, client, watch, check_nan
        self.steps: tuple[int, ...] = ()

    def enter(self, stage: str, name: str) -> None:
        """The stage whose function comes next."""
        self.stage, self.name = stage, name

    def turn(self, number: int, closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
        """One turn of a loop of the client's own."""
        self.steps = (*self.steps, number)
        try:
            return self.evaluate(closed, operands)
        finally:
            self.steps = self.steps[:-1]

    def evaluate(self, closed: ClosedJaxpr | Jaxpr, operands: Sequence[Any]) -> list[Any]:
        consts = closed.consts if isinstance(closed, ClosedJaxpr) else ()
        jaxpr = closed.jaxpr if isinstance(closed, ClosedJaxpr) else closed
        values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        rule = _INSIDE.get(equation.primitive.name)
        if rule is not None:
            return rule(self, equation.params, operands)
        try:
            results = list(jax.block_until_ready(bind_here(equation, operands)))
        except Exception as error:
            raise self._error(equation, operands, f"raised {tell(error)}") from error
        if self.watch is not None:
            line = source_line(equation)
            name = equation.primitive.name
            self.watch(Observed(self.stage, self.client, name, line, tuple(operands), tuple(results), self.steps))
        if self.check_nan and find_nan([to_edge(x) for x in results], [""] * len(results)) is not None:
            raise self._error(equation, operands, "made a NaN")
        return results

    def _error(self, equation: Any, operands: Sequence[Any], what: str) -> EngineError:
        line = source_line(equation)
        shown = ", ".join(" ".join(str(x).split())[:80] for x in operands[:4])
        message = (
            f"client {self.client!r} in stage {self.stage} (`{self.name}`), at {line}: the operation "
            f"`{equation.primitive.name}` {what}. Its inputs were {shown}. The line is that of your code which made "
            "the operation: correct it, or the data of this client; a `watch` function sees every value before it."
        )
        return EngineError(message, stage=self.stage, client=self.client)

    def map_clients(self, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
        """An inner placement: its clients one after the other as well."""
        outputs = []
        for index in range(params["placement"].size):
            inner = self.inner(f"{self.name}.{params['name']}", f"{self.client}/{index}")
            outputs.append(inner.evaluate(params["jaxpr"], [x[index] for x in operands]))
        return [jnp.stack(column) for column in zip(*outputs, strict=True)]

    def inner(self, name: str, client: str) -> "TracedClient":
        """A client inside this one."""
        made = TracedClient(self.stage, name, client, self.watch, self.check_nan)
        made.steps = self.steps
        return made


def _call(key: str) -> Callable:
    return lambda client, params, operands: client.evaluate(params[key], operands)


def _scan(client: TracedClient, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    (consts, carries), length = _jax_compat.scan_counts(params), params["length"]
    fixed, carry, xs = operands[:consts], list(operands[consts : consts + carries]), operands[consts + carries :]
    turns = []
    for turn in reversed(range(length)) if params["reverse"] else range(length):
        results = client.turn(turn, params["jaxpr"], [*fixed, *carry, *(x[turn] for x in xs)])
        carry = results[:carries]
        turns.append(results[carries:])
    turns = turns[::-1] if params["reverse"] else turns
    if not turns:
        return [*carry, *(jnp.zeros((0, *a.shape), a.dtype) for a in params["jaxpr"].out_avals[carries:])]
    return [*carry, *(jnp.stack(column) for column in zip(*turns, strict=True))]


def _while(client: TracedClient, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    conditions, bodies = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = operands[:conditions], operands[conditions : conditions + bodies]
    carry = list(operands[conditions + bodies :])
    turns = 0
    while bool(client.evaluate(params["cond_jaxpr"], [*for_condition, *carry])[0]):
        carry = client.turn(turns, params["body_jaxpr"], [*for_body, *carry])
        turns += 1
    return carry


def _cond(client: TracedClient, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    branches = params["branches"]
    return client.evaluate(branches[min(max(int(operands[0]), 0), len(branches) - 1)], operands[1:])


def _map(client: TracedClient, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    return client.map_clients(params, operands)


_INSIDE: dict[str, Callable] = {
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "checkpoint": _call("jaxpr"),
    "remat2": _call("jaxpr"),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "map_fn": _map,
}
