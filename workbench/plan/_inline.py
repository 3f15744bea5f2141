"""Lays a program's nested calls flat, as far as primitives are inside of them, so that stages stand in one list."""

from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from workbench import _jax_compat
from workbench.plan._interpreter import Call, Interpreter, control_flow
from workbench.primitives import MAPREDUCE_PRIMITIVES


def inline_calls(closed: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """The same program, with every call that holds MapReduce primitives replaced by its equations."""
    inline = _Inline()
    if not any(inline.enters(equation) for equation in closed.eqns):
        return closed
    flat, closed_over = _jax_compat.trace_to_jaxpr(
        lambda *inputs: inline.run(closed, inputs),
        closed.in_avals,
        name=name,
        arguments=_jax_compat.argument_names(closed),
    )
    if closed_over:
        return _jax_compat.close_over(flat, closed_over)
    return flat


def uses_primitives(equation: JaxprEqn) -> bool:
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


def bodies(equation: JaxprEqn) -> list[Jaxpr]:
    """The jaxprs in the parameters of an equation."""
    found = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


class _Inline(Interpreter[Any]):
    """Lays calls flat that hold MapReduce primitives; loops and branches keep their structure."""

    def enters(self, equation: JaxprEqn) -> bool:
        return isinstance(control_flow(equation), Call) and uses_primitives(equation)
