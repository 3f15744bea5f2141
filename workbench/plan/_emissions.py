"""Turns what a program emits into outputs of it, so that listening needs no callback from the devices."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from workbench import _jax_compat
from workbench.primitives import emit_p, map_p


@dataclasses.dataclass(frozen=True)
class Emission:
    """One `emit` of a program: its name and what its leading axes count (placements, "step", "round")."""

    name: str
    axes: tuple[str, ...]


Found = list[tuple[Emission, Any]]


def with_emissions(closed: ClosedJaxpr, name: str) -> tuple[ClosedJaxpr, tuple[Emission, ...]]:
    """The same program with everything that it emits as further outputs."""
    if not _jax_compat.emits(closed.jaxpr):
        return closed, ()
    emissions: list[Emission] = []

    def flat(*inputs: Any) -> list[Any]:
        outputs, found = _collect(closed.jaxpr, closed.consts, inputs)
        emissions.extend(emission for emission, _ in found)
        return [*outputs, *(value for _, value in found)]

    collected, closed_over = _jax_compat.trace_to_jaxpr(flat, closed.in_avals, name=name)
    if closed_over:
        collected = _jax_compat.close_over(collected, closed_over)
    return collected, tuple(emissions)


def _collect(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], Found]:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
    found: Found = []

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        with _jax_compat.source_of(equation):
            results, more = _equation(equation, operands)
        found += more
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], found


def _equation(equation: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
    if equation.primitive is emit_p:
        return [], [(Emission(equation.params["name"], ()), operands[0])]
    rule = _RULES.get(equation.primitive.name)
    if rule is None or _jax_compat.EMIT_EFFECT not in equation.effects:
        return _jax_compat.bind_equation(equation, operands), []
    return rule(equation, operands)


def _traced(closed: ClosedJaxpr, name: str, axis_sizes: dict[str, int]) -> tuple[ClosedJaxpr, list[Emission]]:
    emissions: list[Emission] = []

    def flat(*inputs: Any) -> list[Any]:
        outputs, found = _collect(closed.jaxpr, closed.consts, inputs)
        emissions.extend(emission for emission, _ in found)
        return [*outputs, *(value for _, value in found)]

    return _jax_compat.trace_to_jaxpr(flat, closed.in_avals, name=name, axis_sizes=axis_sizes)[0], emissions


def _map(equation: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
    params = equation.params
    placement = params["placement"]
    jaxpr, emissions = _traced(params["jaxpr"], params["name"], {placement.name: placement.size})
    results = map_p.bind(*operands, **{**params, "jaxpr": jaxpr})
    count = len(equation.outvars)
    outer = [Emission(e.name, (placement.name, *e.axes)) for e in emissions]
    return results[:count], list(zip(outer, results[count:], strict=True))


def _scan(equation: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
    params = equation.params
    consts, carries = _jax_compat.scan_counts(params)
    fixed, start, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
    emissions: list[Emission] = []

    def turn(carry: Any, x: Any) -> Any:
        outputs, found = _collect(params["jaxpr"].jaxpr, params["jaxpr"].consts, [*fixed, *carry, *x])
        emissions[:] = [emission for emission, _ in found]
        return tuple(outputs[:carries]), (tuple(outputs[carries:]), tuple(value for _, value in found))

    last, (stacked, emitted) = jax.lax.scan(
        turn, tuple(start), tuple(xs), params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    outer = [Emission(e.name, (_turn_name(e), *e.axes)) for e in emissions]
    return [*last, *stacked], list(zip(outer, emitted, strict=True))


def _turn_name(emission: Emission) -> str:
    """A loop around clients counts rounds, a loop inside of one counts its steps."""
    base = "step" if all(axis.startswith("step") for axis in emission.axes) else "round"
    inner = sum(axis.startswith(base) for axis in emission.axes)
    return f"{base} {inner + 1}" if inner else base


def _cond(equation: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
    """Every branch gives what any branch emits; NaN (or 0) where this turn took another one."""
    branches = [_traced(branch, "branch", {}) for branch in equation.params["branches"]]
    plain = len(equation.outvars)
    slots = [
        (number, emission, jaxpr.out_avals[plain + i])
        for number, (jaxpr, emissions) in enumerate(branches)
        for i, emission in enumerate(emissions)
    ]

    def branch_of(number: int, jaxpr: ClosedJaxpr) -> Callable:
        def call(*values: Any) -> tuple:
            outputs = jaxpr_as_fun(jaxpr)(*values)
            own = iter(outputs[plain:])
            filled = [next(own) if owner == number else _absent(aval) for owner, _, aval in slots]
            return (*outputs[:plain], *filled)

        return call

    calls = [branch_of(number, jaxpr) for number, (jaxpr, _) in enumerate(branches)]
    results = list(jax.lax.switch(operands[0], calls, *operands[1:]))
    return results[:plain], [(emission, value) for (_, emission, _), value in zip(slots, results[plain:], strict=True)]


def _absent(aval: Any) -> Any:
    fill = jnp.nan if jnp.issubdtype(aval.dtype, jnp.inexact) else 0
    return jnp.full(aval.shape, fill, aval.dtype)


def _call(key: str) -> Callable[[Any, Sequence[Any]], tuple[list[Any], Found]]:
    def rule(equation: Any, operands: Sequence[Any]) -> tuple[list[Any], Found]:
        body = equation.params[key]
        consts = body.consts if isinstance(body, ClosedJaxpr) else ()
        return _collect(body.jaxpr if isinstance(body, ClosedJaxpr) else body, consts, operands)

    return rule


_RULES: dict[str, Callable[[Any, Sequence[Any]], tuple[list[Any], Found]]] = {
    "map_fn": _map,
    "scan": _scan,
    "cond": _cond,
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "checkpoint": _call("jaxpr"),
    "remat2": _call("jaxpr"),
}
