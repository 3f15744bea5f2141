"""Turns emitted values into program outputs, so that listening needs no device callbacks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun

from workbench import _jax_compat
from workbench._types import Aval
from workbench.plan._interpreter import Cond, Interpreter, Scan
from workbench.primitives import emit_p, map_p


@dataclasses.dataclass(frozen=True)
class Emission:
    """One `emit` in a program: its name and its leading axes (placements, "step", "round")."""

    name: str
    axes: tuple[str, ...]


Found = list[tuple[Emission, Any]]


def with_emissions(closed: ClosedJaxpr, name: str) -> tuple[ClosedJaxpr, tuple[Emission, ...]]:
    """The same program with all emitted values as additional outputs."""
    if not _jax_compat.emits(closed.jaxpr):
        return closed, ()
    collected, emissions, closed_over = _traced(closed, name, {})
    if closed_over:
        collected = _jax_compat.close_over(collected, closed_over)
    return collected, tuple(emissions)


def _traced(
    closed: ClosedJaxpr, name: str, axis_sizes: dict[str, int]
) -> tuple[ClosedJaxpr, list[Emission], list[Any]]:
    emissions: list[Emission] = []

    def flat(*inputs: object) -> list[Any]:
        outputs, pairs = _collect(closed, inputs)
        emissions.extend(emission for emission, _ in pairs)
        return [*outputs, *(value for _, value in pairs)]

    jaxpr, closed_over = _jax_compat.trace_to_jaxpr(
        flat, closed.in_avals, name=name, axis_sizes=axis_sizes, arguments=_jax_compat.argument_names(closed)
    )
    return jaxpr, emissions, closed_over


def _collect(closed: ClosedJaxpr, inputs: Sequence[Any]) -> tuple[list[Any], Found]:
    collector = _Collector()
    return collector.run(closed, inputs), collector.found


class _Collector(Interpreter[Any]):
    """Evaluates a program and collects emitted values with their axes."""

    def __init__(self) -> None:
        self.found: Found = []

    def enters(self, equation: JaxprEqn) -> bool:
        return _jax_compat.EMIT_EFFECT in equation.effects and equation.primitive.name != "while"

    def bind(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        if equation.primitive is emit_p:
            self.found.append((Emission(equation.params["name"], ()), operands[0]))
            return []
        if equation.primitive is map_p and self.enters(equation):
            with _jax_compat.source_of(equation):
                return self._map(equation, operands)
        return super().bind(equation, operands)

    def _map(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        params = equation.params
        placement = params["placement"]
        jaxpr, emissions, _ = _traced(params["jaxpr"], params["name"], {placement.name: placement.size})
        results = map_p.bind(*operands, **{**params, "jaxpr": jaxpr})
        count = len(equation.outvars)
        outer = [Emission(e.name, (placement.name, *e.axes)) for e in emissions]
        self.found += zip(outer, results[count:], strict=True)
        return results[:count]

    def scan(self, flow: Scan, operands: Sequence[Any]) -> list[Any]:
        consts, start, xs = flow.split(operands)
        emissions: list[Emission] = []
        carries = len(start)

        def iteration(
            carry: Sequence[jax.Array], x: Sequence[jax.Array]
        ) -> tuple[tuple[jax.Array, ...], tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]]:
            outputs, pairs = _collect(flow.body, [*consts, *carry, *x])
            emissions[:] = [emission for emission, _ in pairs]
            return tuple(outputs[:carries]), (tuple(outputs[carries:]), tuple(value for _, value in pairs))

        unroll = flow.equation.params["unroll"]
        with _jax_compat.source_of(flow.equation):
            last, (stacked, emitted) = jax.lax.scan(
                iteration, tuple(start), tuple(xs), flow.length, reverse=flow.reverse, unroll=unroll
            )
        outer = [Emission(e.name, _below_loop(e.axes)) for e in emissions]
        self.found += zip(outer, emitted, strict=True)
        return [*last, *stacked]

    def cond(self, flow: Cond, operands: Sequence[Any]) -> list[Any]:
        """Every branch returns the emissions of all branches, with NaN (or 0) for branches that are not executed."""
        branches = [_traced(branch, "branch", {})[:2] for branch in flow.bodies]
        plain = len(flow.equation.outvars)
        slots = [
            (number, emission, jaxpr.out_avals[plain + i])
            for number, (jaxpr, emissions) in enumerate(branches)
            for i, emission in enumerate(emissions)
        ]

        def branch_of(number: int, jaxpr: ClosedJaxpr) -> Callable:
            def call(*values: object) -> tuple:
                outputs = jaxpr_as_fun(jaxpr)(*values)
                stream = iter(outputs[plain:])
                filled = [next(stream) if owner == number else _absent(aval) for owner, _, aval in slots]
                return (*outputs[:plain], *filled)

            return call

        calls = [branch_of(number, jaxpr) for number, (jaxpr, _) in enumerate(branches)]
        index, inputs = flow.split(operands)
        with _jax_compat.source_of(flow.equation):
            results = list(jax.lax.switch(index, calls, *inputs))
        self.found += ((emission, value) for (_, emission, _), value in zip(slots, results[plain:], strict=True))
        return results[:plain]


def _below_loop(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of a value after adding an enclosing loop; loops are numbered starting with the outermost.

    A loop around clients counts rounds; a loop inside a client counts steps.
    """
    base = "step" if all(axis.startswith("step") for axis in axes) else "round"
    deeper = (f"{base} {int(axis[len(base) :] or 1) + 1}" if axis.startswith(base) else axis for axis in axes)
    return (base, *deeper)


def _absent(aval: Aval) -> jax.Array:
    fill = jnp.nan if jnp.issubdtype(aval.dtype, jnp.inexact) else 0
    return jnp.full(aval.shape, fill, aval.dtype)
