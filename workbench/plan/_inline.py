"""Lays a program's nested calls flat, as far as primitives are inside of them, so that stages stand in one list."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from workbench import _jax_compat
from workbench.primitives import MAPREDUCE_PRIMITIVES

# Calls that only group equations once a program is differentiated; loops and branches keep their structure.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}


def inline_calls(closed: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """The same program, with every call that holds MapReduce primitives replaced by its equations."""
    if not any(_call_body(equation) is not None and uses_primitives(equation) for equation in closed.eqns):
        return closed
    flat, closed_over = _jax_compat.trace_to_jaxpr(
        lambda *inputs: _evaluate(closed.jaxpr, closed.consts, inputs), closed.in_avals, name=name
    )
    if closed_over:
        return _jax_compat.close_over(flat, closed_over)
    return flat


def uses_primitives(equation: Any) -> bool:
    """Whether an equation is a MapReduce primitive or holds one anywhere inside."""
    if equation.primitive in MAPREDUCE_PRIMITIVES:
        return True
    return any(map(_holds_primitives, bodies(equation)))


def holds_clients(closed: ClosedJaxpr) -> bool:
    """Whether a program has MapReduce primitives, at any depth."""
    return _holds_primitives(closed.jaxpr)


@_jax_compat.once_per_jaxpr
def _holds_primitives(jaxpr: Jaxpr) -> bool:
    return any(map(uses_primitives, jaxpr.eqns))


def bodies(equation: Any) -> list[Jaxpr]:
    """The jaxprs in the parameters of an equation."""
    found = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


def _call_body(equation: Any) -> ClosedJaxpr | None:
    key = _CALLS.get(equation.primitive.name)
    body = equation.params.get(key) if key else None
    if isinstance(body, Jaxpr):
        return ClosedJaxpr(body, ()) if not body.constvars else None
    return body if isinstance(body, ClosedJaxpr) else None


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        body = _call_body(equation)
        with _jax_compat.source_of(equation):
            if body is not None and uses_primitives(equation):
                results = _evaluate(body.jaxpr, body.consts, operands)
            else:
                results = _jax_compat.bind_equation(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
