"""Inlines nested calls that contain MapReduce primitives, so that stages form one list."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from workbench import _jax_compat
from workbench._types import Aval, type_of
from workbench.plan._interpreter import InnerCall, Interpreter, control_flow
from workbench.primitives import MAPREDUCE_PRIMITIVES

# Elementwise operations on clients' rows are client work, even outside client functions.
ROWWISE = frozenset(
    "add add_any sub mul div neg max min exp log log1p expm1 tanh logistic sin cos sqrt rsqrt square "
    "integer_pow pow abs sign "
    "convert_element_type select_n eq ne lt le gt ge and or not xor is_finite stop_gradient copy copy_p".split()
)


def inline_calls(closed: ClosedJaxpr, name: str) -> ClosedJaxpr:
    """The same program, with all calls that contain MapReduce primitives inlined.

    Also inlines a call that contains only elementwise operations and whose result has one row per client, such as
    `jnp.where`. Like single operations, such a call is work done by the clients.
    """
    inline = _Inline(frozenset(_sizes(closed.jaxpr)))
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
    """Returns whether an equation is or contains a MapReduce primitive."""
    if equation.primitive in MAPREDUCE_PRIMITIVES:
        return True
    return any(map(_holds_primitives, bodies(equation)))


def holds_clients(closed: ClosedJaxpr) -> bool:
    """Returns whether a program contains MapReduce primitives at any depth."""
    return _holds_primitives(closed.jaxpr)


@_jax_compat.once_per_jaxpr
def _holds_primitives(jaxpr: Jaxpr) -> bool:
    return any(map(uses_primitives, jaxpr.eqns))


def bodies(equation: JaxprEqn) -> list[Jaxpr]:
    """The jaxprs among the parameters of an equation."""
    jaxprs = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                jaxprs.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                jaxprs.append(item)
    return jaxprs


def _sizes(jaxpr: Jaxpr) -> Iterator[int]:
    """Yields the numbers of clients of all MapReduce primitives outside loops."""
    for equation in jaxpr.eqns:
        if equation.primitive in MAPREDUCE_PRIMITIVES and "placement" in equation.params:
            yield equation.params["placement"].size
        elif isinstance(control_flow(equation), InnerCall) and uses_primitives(equation):
            for body in bodies(equation):
                yield from _sizes(body)


@_jax_compat.once_per_jaxpr
def _is_elementwise(jaxpr: Jaxpr) -> bool:
    """Returns whether a call contains only elementwise operations and broadcasts of scalars."""

    def elementwise(equation: JaxprEqn) -> bool:
        name = equation.primitive.name
        if (
            name in ROWWISE
            or name in ("iota", "reshard")
            or (name == "broadcast_in_dim" and type_of(equation.invars[0]).ndim == 0)
        ):
            return True
        return isinstance(control_flow(equation), InnerCall) and all(map(_is_elementwise, bodies(equation)))

    return all(map(elementwise, jaxpr.eqns))


class _Inline(Interpreter[Any]):
    """Inlines calls that contain MapReduce primitives or are elementwise; keeps loops and branches."""

    def __init__(self, sizes: frozenset[int]) -> None:
        self._sizes = sizes

    def enters(self, equation: JaxprEqn) -> bool:
        if not isinstance(control_flow(equation), InnerCall):
            return False
        return uses_primitives(equation) or (
            all(self._has_rows(v.aval) for v in equation.outvars) and all(map(_is_elementwise, bodies(equation)))
        )

    def _has_rows(self, aval: Aval) -> bool:
        shape = getattr(aval, "shape", ())  # an effect's token has no shape
        return bool(shape) and shape[0] in self._sizes
