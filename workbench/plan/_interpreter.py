"""The interpreter for jaxprs: only this module decomposes `scan`, `while`, `cond` and calls.

Code that reads or runs a program equation by equation subclasses `Interpreter` and overrides how it handles an
equation, a loop iteration, or a loop. Code that visits equations in a different order (a plan's stages, backward
analyses) uses only `control_flow`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from workbench import _jax_compat
from workbench._types import Argument, Aval

Value = TypeVar("Value")

# Primitives that only call one jaxpr, each with the name of the parameter that contains it.
CALLS = {
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


@dataclasses.dataclass(frozen=True)
class Scan(Generic[Value]):
    """A `scan`: its operands are constants, carried values, and arrays that are sliced for each iteration."""

    equation: JaxprEqn

    @property
    def body(self) -> ClosedJaxpr:
        """(constants, carry, slices) -> (carry, slices of the results)."""
        return self.equation.params["jaxpr"]

    @property
    def bodies(self) -> tuple[ClosedJaxpr, ...]:
        """The jaxprs of the equation."""
        return (self.body,)

    @property
    def consts(self) -> int:
        """Number of constants."""
        return _jax_compat.scan_counts(self.equation.params)[0]

    @property
    def carries(self) -> int:
        """Number of carried values."""
        return _jax_compat.scan_counts(self.equation.params)[1]

    @property
    def length(self) -> int:
        """Number of iterations."""
        return self.equation.params["length"]

    @property
    def reverse(self) -> bool:
        """True if the last slice is processed first."""
        return self.equation.params["reverse"]

    @property
    def iterations(self) -> range:
        """The indices of the slices in iteration order."""
        return range(self.length)[::-1] if self.reverse else range(self.length)

    @property
    def offset(self) -> int:
        """Number of leading operands that the bodies do not read."""
        return 0

    def split(self, operands: Sequence[Value]) -> tuple[list[Value], list[Value], list[Value]]:
        """The constants, the initial carry, and the arrays to slice."""
        consts, carries = _jax_compat.scan_counts(self.equation.params)
        parts = list(operands)
        return parts[:consts], parts[consts : consts + carries], parts[consts + carries :]


@dataclasses.dataclass(frozen=True)
class While(Generic[Value]):
    """A `while`: its operands are constants of the condition, constants of the body, and carried values."""

    equation: JaxprEqn

    @property
    def condition(self) -> ClosedJaxpr:
        """(constants, carry) -> whether there is another iteration."""
        return self.equation.params["cond_jaxpr"]

    @property
    def body(self) -> ClosedJaxpr:
        """(constants, carry) -> carry."""
        return self.equation.params["body_jaxpr"]

    @property
    def bodies(self) -> tuple[ClosedJaxpr, ...]:
        """The jaxprs that do the work."""
        return (self.body,)

    @property
    def consts(self) -> int:
        """Number of the body's constants."""
        return self.equation.params["body_nconsts"]

    @property
    def carries(self) -> int:
        """Number of carried values."""
        return len(self.equation.outvars)

    @property
    def offset(self) -> int:
        """Number of leading operands that the body does not read: the condition's constants."""
        return self.equation.params["cond_nconsts"]

    def split(self, operands: Sequence[Value]) -> tuple[list[Value], list[Value], list[Value]]:
        """The condition's constants, the body's constants, and the initial carry."""
        first, parts = self.offset, list(operands)
        return parts[:first], parts[first : first + self.consts], parts[first + self.consts :]


@dataclasses.dataclass(frozen=True)
class Cond(Generic[Value]):
    """A `cond` or `switch`: the first operand is the index of the branch; the others are the inputs of the branch."""

    equation: JaxprEqn

    @property
    def bodies(self) -> tuple[ClosedJaxpr, ...]:
        """The branches."""
        return tuple(self.equation.params["branches"])

    @property
    def offset(self) -> int:
        """Number of leading operands that no branch reads: one, the index."""
        return 1

    def split(self, operands: Sequence[Value]) -> tuple[Value, list[Value]]:
        """The index and the branch's inputs."""
        return operands[0], list(operands[1:])

    def taken(self, index: int) -> int:
        """The branch selected by a concrete index; `lax.switch` clamps the index."""
        return min(max(int(index), 0), len(self.bodies) - 1)


@dataclasses.dataclass(frozen=True)
class InnerCall(Generic[Value]):
    """A `jit`, `checkpoint`, `custom_jvp`, …: one jaxpr applied to the operands."""

    equation: JaxprEqn

    @property
    def body(self) -> ClosedJaxpr:
        """The jaxpr that is called."""
        jaxpr = self.equation.params[CALLS[self.equation.primitive.name]]
        return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())

    @property
    def bodies(self) -> tuple[ClosedJaxpr, ...]:
        """The jaxprs that do the work."""
        return (self.body,)

    @property
    def offset(self) -> int:
        """Number of leading operands that the bodies do not read."""
        return 0


ControlFlow = Scan[Any] | While[Any] | Cond[Any] | InnerCall[Any]


def control_flow(equation: JaxprEqn) -> ControlFlow | None:
    """An equation as a loop, branch or call; None for any other primitive."""
    name = equation.primitive.name
    if name == "scan":
        return Scan(equation)
    if name == "while":
        return While(equation)
    if name == "cond":
        return Cond(equation)
    body = equation.params.get(CALLS.get(name, ""))
    is_call = isinstance(body, ClosedJaxpr) or (isinstance(body, Jaxpr) and not body.constvars)
    return InnerCall(equation) if is_call else None


class Interpreter(Generic[Value]):
    """Evaluates a jaxpr equation by equation, using JAX's own loops; meant for subclassing.

    `Value` is the type of a value: a tracer, a numpy array, or a flag in an analysis.
    """

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a jaxpr, given one value per input."""
        jaxpr = closed.jaxpr
        values: dict[Any, Value] = dict(zip(jaxpr.constvars, map(self.constant, closed.consts), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: object) -> Value:
            return self.constant(atom.val) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Argument) -> Value:
        """Value for a literal or a constant of the jaxpr."""
        return value

    def equation(self, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """The results of one equation."""
        flow = control_flow(equation) if self.enters(equation) else None
        if flow is None:
            return self.bind(equation, operands)
        return self.follow(flow, operands)

    def enters(self, equation: JaxprEqn) -> bool:
        """Returns whether to decompose a loop, branch or call rather than treat it as one operation."""
        return True

    def follow(self, flow: ControlFlow, operands: Sequence[Value]) -> list[Value]:
        """The results of a loop, branch or call."""
        if isinstance(flow, Scan):
            return self.scan(flow, operands)
        if isinstance(flow, While):
            return self.while_loop(flow, operands)
        return self.cond(flow, operands) if isinstance(flow, Cond) else self.call(flow, operands)

    def bind(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """The results of an equation that is not decomposed."""
        with _jax_compat.source_of(equation):
            return _jax_compat.bind_equation(equation, operands)

    def body(self, flow: ControlFlow, closed: ClosedJaxpr, operands: Sequence[Any], part: str = "") -> list[Any]:
        """Evaluates an iteration, a branch (`part` is "[2]"), or a loop's condition (`part` is "?")."""
        return self.run(closed, operands)

    def scan(self, flow: Scan[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a scan."""
        consts, start, xs = flow.split(operands)
        carries = len(start)

        def iteration(
            carry: Sequence[jax.Array], x: Sequence[jax.Array]
        ) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
            results = self.body(flow, flow.body, [*consts, *carry, *x])
            return tuple(results[:carries]), tuple(results[carries:])

        params = flow.equation.params
        with _jax_compat.source_of(flow.equation, mesh=False):
            last, stacked = jax.lax.scan(
                iteration, tuple(start), tuple(xs), flow.length, reverse=flow.reverse, unroll=params["unroll"]
            )
        return [*last, *stacked]

    def while_loop(self, flow: While[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a while loop."""
        for_condition, for_body, start = flow.split(operands)
        with _jax_compat.source_of(flow.equation, mesh=False):
            return list(
                jax.lax.while_loop(
                    lambda carry: self.body(flow, flow.condition, [*for_condition, *carry], "?")[0],
                    lambda carry: tuple(self.body(flow, flow.body, [*for_body, *carry])),
                    tuple(start),
                )
            )

    def cond(self, flow: Cond[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a branch."""
        index, inputs = flow.split(operands)
        branches = [
            lambda *values, number=number, branch=branch: tuple(self.body(flow, branch, values, f"[{number}]"))
            for number, branch in enumerate(flow.bodies)
        ]
        with _jax_compat.source_of(flow.equation, mesh=False):
            return list(jax.lax.switch(index, branches, *inputs))

    def call(self, flow: InnerCall[Any], operands: Sequence[Any]) -> list[Any]:
        """The results of a call, inlined."""
        with _jax_compat.source_of(flow.equation):
            return self.body(flow, flow.body, operands)


class PythonInterpreter(Interpreter[Any]):
    """An interpreter for concrete values: loops are Python loops, and only the selected branch is evaluated."""

    def scan(self, flow: Scan[Any], operands: Sequence[Any]) -> list[Any]:
        consts, carry, xs = flow.split(operands)
        carries, stacked = len(carry), []
        for number in flow.iterations:
            results = self.iteration(flow, number, [*consts, *carry, *(x[number] for x in xs)])
            carry = results[:carries]
            stacked.append(results[carries:])
        stacked = stacked[::-1] if flow.reverse else stacked
        avals = flow.body.out_avals[carries:]
        return [*carry, *(self.stack([row[i] for row in stacked], aval) for i, aval in enumerate(avals))]

    def while_loop(self, flow: While[Any], operands: Sequence[Any]) -> list[Any]:
        """Evaluates the iterations one after another."""
        for_condition, for_body, carry = flow.split(operands)
        number = 0
        while bool(self.body(flow, flow.condition, [*for_condition, *carry], "?")[0]):
            carry = self.iteration(flow, number, [*for_body, *carry])
            number += 1
        return list(carry)

    def cond(self, flow: Cond[Any], operands: Sequence[Any]) -> list[Any]:
        """Evaluates only the selected branch."""
        index, inputs = flow.split(operands)
        number = flow.taken(index)
        return self.body(flow, flow.bodies[number], inputs, f"[{number}]")

    def iteration(self, flow: Scan[Any] | While[Any], number: int, operands: Sequence[Any]) -> list[Any]:
        """Evaluates iteration `number` of a loop; for a scan, `number` is the index of its slice."""
        return self.body(flow, flow.body, operands)

    def stack(self, values: list[Any], aval: Aval) -> jax.Array | np.ndarray:
        """The results of all iterations as one array; `aval` is the type of one result."""
        if not values:
            return jax.numpy.zeros((0, *aval.shape), aval.dtype)
        return jax.numpy.stack(values)
