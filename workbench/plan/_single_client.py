"""Masked sums of a single client's value: `reduce_sum(where(arange(clients) == i, x, 0))`."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from workbench._jax_compat import bind_equation
from workbench._types import Atom, Aval, type_of
from workbench.plan._plan import Plan, Step
from workbench.primitives import broadcast_p, map_p, mean_p, sum_p

_ONE_CLIENT = "one client"
_MOST_CLIENTS = 1_000_000  # maximum number of clients whose numbers are compared
_MOST_COMPUTED, _MOST_EQUATIONS = 64, 200  # maximum number of clients, and of operations, for masks that are computed
# Elementwise operations that preserve masks and masked values.
_KEEPING = frozenset("convert_element_type stop_gradient copy copy_p optimization_barrier reshard".split())
# Operations on constants, such as `arange(clients) >= clients - 1`, are evaluated.
_COMPUTED: dict[str, Callable[..., Any]] = {
    "iota": np.arange,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
}
_ZERO_FAILS = {"eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "ge": operator.ge}
_LINEAR = _KEEPING | frozenset("neg reduce_precision".split())


@dataclasses.dataclass(frozen=True)
class _Values:
    """A jaxpr's variables with the equations that define them; `outer` maps inputs to the passed values."""

    made: dict[Any, Any]
    constants: dict[Any, Any]
    outer: Callable[[Var], "tuple[Atom, _Values] | None"]
    per_client: bool  # values of one client, whose arrays lack the client axis


def single_client(plan: Plan, step: Step) -> str:
    """The only client whose value a reduction returns: "client 3", "one client" if its number is unknown, else "".

    A mask is recognized if it compares client numbers, or if a small set of operations computes it from constants and
    one integer on the server. Masks must multiply or select a value before `reduce_sum` or `reduce_mean`, inside
    or outside client functions.
    """
    if step.equation.primitive not in (sum_p, mean_p) or step.placement is None:
        return ""
    if step.placement.size > _MOST_CLIENTS or step.placement.size < 2:
        return ""
    jaxpr = plan.closed.jaxpr
    values = _of(jaxpr, dict(zip(jaxpr.constvars, plan.closed.consts, strict=True)), lambda _: None, per_client=False)
    return _Search(step.placement.size).masked(step.equation.invars[0], values) or ""


def _of(
    jaxpr: Jaxpr, constants: dict[Any, Any], outer: Callable[[Var], tuple[Atom, _Values] | None], *, per_client: bool
) -> _Values:
    equations = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
    return _Values(equations, constants, outer, per_client)


@dataclasses.dataclass(frozen=True)
class _Search:
    clients: int

    def masked(self, v: Atom, values: _Values) -> str | None:
        """Returns the only client whose value is nonzero, or None if unknown."""
        name, equation, v, values = self._maker(v, values)
        if equation is None:
            return None
        operands = equation.invars
        if name == "mul":
            clients = [find(operand, values) for operand in operands for find in (self.mask, self.masked)]
            return next((client for client in clients if client is not None), None)
        if name == "select_n" and len(operands) == 3:
            predicate, otherwise, chosen = operands
            if self._is_zero(otherwise, values):
                return self.mask(predicate, values)
            if self._is_zero(chosen, values):
                return self.mask(predicate, values, false=True)
            return None
        if name == "div" or name in _LINEAR or self._keeps_clients(equation, values):
            return self.masked(operands[0], values)
        return None

    def mask(self, v: Atom, values: _Values, *, false: bool = False) -> str | None:
        """Returns the one client whose mask entry is nonzero (or zero, if `false` is True); None if unknown."""
        client = self._written_mask(v, values, false=false)
        return self._computed_mask(v, values, false=false) if client is None else client

    def _computed_mask(self, v: Atom, values: _Values, *, false: bool) -> str | None:
        """Like `mask`, for masks computed from constants and at most one integer on the server.

        The mask is computed for each value of that integer, up to the number of clients: `eye(clients)[i]`,
        `zeros(clients).at[i].set(1)`.
        """
        leaves: dict[int, tuple[Var, _Values]] = {}
        if self.clients > _MOST_COMPUTED or not self._find_leaves(v, values, leaves, [_MOST_EQUATIONS]):
            return None
        if len(leaves) > 1 or any(not self._is_number(leaf, at) for leaf, at in leaves.values()):
            return None
        alone: set[int] = set()
        for number in range(self.clients if leaves else 1):
            try:
                with jax.ensure_compile_time_eval():
                    clients = self._given(v, values, {leaf: number for leaf in leaves}, false=false)
            except Exception:  # an operation may need state that does not exist during planning
                return None
            if len(clients) != 1:
                return None
            alone |= clients
        return _ONE_CLIENT if leaves else f"client {alone.pop()}"

    def _given(self, v: Atom, values: _Values, numbers: dict[int, int], *, false: bool) -> set[int]:
        """The clients whose mask entry is nonzero (or zero, if `false` is True)."""

        def holds(mask: Any) -> bool:
            return bool(np.any(np.asarray(mask) == 0 if false else np.asarray(mask) != 0))

        if values.per_client:
            return {c for c in range(self.clients) if holds(self._value(v, values, numbers, c))}
        mask = np.asarray(self._value(v, values, numbers, None))
        if mask.shape[:1] != (self.clients,):
            return set()
        return {c for c in range(self.clients) if holds(mask[c])}

    def _find_leaves(self, v: Atom, values: _Values, leaves: dict[int, tuple[Var, _Values]], budget: list[int]) -> bool:
        """Returns whether a value is computed by only a few equations, and collects its unknown variables."""
        _, equation, v, values = self._maker(v, values)
        budget[0] -= 1
        if budget[0] < 0:
            return False
        if equation is None:
            if not isinstance(v, Literal) and v not in values.constants:
                leaves[id(v)] = v, values
            return len(leaves) <= 1
        if equation.effects or type_of(equation.outvars[0]).size > _MOST_CLIENTS:
            return False
        return all(self._find_leaves(invar, values, leaves, budget) for invar in equation.invars)

    @staticmethod
    def _is_number(v: Var, values: _Values) -> bool:
        aval: Aval = v.aval
        return not aval.shape and not values.per_client and jnp.issubdtype(aval.dtype, jnp.integer)

    def _value(self, v: Atom, values: _Values, numbers: dict[int, int], client: int | None) -> Any:
        """The computed value, or one client's part of it if `values` belong to one client."""
        if isinstance(v, Literal):
            return v.val
        within = values.per_client
        _, equation, v, values = self._maker(v, values)
        if equation is None:
            constant = v.val if isinstance(v, Literal) else values.constants.get(v)
            result = np.asarray(numbers[id(v)], type_of(v).dtype) if constant is None else constant
        elif equation.primitive is broadcast_p:
            of_all = np.asarray(self._value(equation.invars[0], values, numbers, client))
            result = np.broadcast_to(of_all, (self.clients, *of_all.shape))
        else:
            operands = [self._value(invar, values, numbers, client) for invar in equation.invars]
            outputs = bind_equation(equation, [jnp.asarray(operand) for operand in operands])
            result = next(output for variable, output in zip(equation.outvars, outputs, strict=True) if variable is v)
        return result[client] if within and not values.per_client and client is not None else result

    def _written_mask(self, v: Atom, values: _Values, *, false: bool = False) -> str | None:
        constant = self._rows(v, values)
        if constant is not None:
            mask = constant == 0 if false else constant != 0
            present = np.flatnonzero(mask.reshape(self.clients, -1).any(1))
            return f"client {present[0]}" if len(present) == 1 else None
        name, equation, v, values = self._maker(v, values)
        if equation is None:
            return None
        operands = equation.invars
        if name == ("ne" if false else "eq") and (client := self._equal(operands, values)) is not None:
            return client
        if name == "not":
            return self.mask(operands[0], values, false=not false)
        if name in ("or" if false else "and", *(() if false else ("mul",))):
            masks = [self.mask(operand, values, false=false) for operand in operands]
            return next((entry for entry in masks if entry is not None), None)
        if name in _ZERO_FAILS and not false and self._fails_at_zero(name, operands[1], values):
            return self.mask(operands[0], values)
        if name in _KEEPING or self._keeps_clients(equation, values):
            return self.mask(operands[0], values, false=false)
        return None

    def _fails_at_zero(self, name: str, v: Atom, values: _Values) -> bool:
        """Returns whether a comparison with a constant is false for zero, as in `one_hot(i, n) > 0`."""
        constant = self._constant(v, values)[0]
        return constant is not None and not np.any(_ZERO_FAILS[name](0, constant))

    def _equal(self, operands: Sequence[Atom], values: _Values) -> str | None:
        for operand, reference in (operands, operands[::-1]):
            numbers = self._numbers(operand, values)
            if numbers is None or not self._shared(reference, values):
                continue
            value = self._constant(reference, values)[0]
            if value is None:
                return _ONE_CLIENT
            matches = np.flatnonzero(numbers == np.asarray(value).reshape(-1)[0])
            return f"client {matches[0]}" if len(matches) else None
        return None

    def _numbers(self, v: Atom, values: _Values) -> np.ndarray | None:
        """Distinct client numbers; None if they are not known to be distinct."""
        constant = self._rows(v, values)
        if constant is not None:
            flat = constant.reshape(-1)
            return flat if np.unique(flat).shape == flat.shape == (self.clients,) else None
        name, equation, v, values = self._maker(v, values)
        if equation is None or values.per_client:
            return None
        if name == "iota" and equation.params["dimension"] == 0 and equation.params["shape"][0] == self.clients:
            return np.arange(self.clients)
        if name in _KEEPING or self._keeps_clients(equation, values):
            return self._numbers(equation.invars[0], values)
        return None

    def _shared(self, v: Atom, values: _Values) -> bool:
        """Returns whether all clients have the same value."""
        constant, of_one = self._constant(v, values)
        if constant is not None:
            return of_one or np.unique(constant).size == 1
        if not _shape(v) and not values.per_client:
            return True
        name, equation, v, values = self._maker(v, values)
        if equation is not None and (
            name in _KEEPING or name == "broadcast_in_dim" or equation.primitive is broadcast_p
        ):
            return not _shape(equation.invars[0]) and self._shared(equation.invars[0], values)
        return not isinstance(v, Literal) and not _shape(v) and not values.per_client

    def _keeps_clients(self, equation: JaxprEqn, values: _Values) -> bool:
        """Returns whether an equation only adds or removes axes of size 1 after the client axis."""
        name, shape = equation.primitive.name, _shape(equation.invars[0]) if equation.invars else ()
        if name == "broadcast_in_dim":
            keeps_axis = equation.params["broadcast_dimensions"][:1] == (0,)
            return values.per_client or (keeps_axis and shape[:1] == (self.clients,))
        if name in ("reshape", "squeeze", "expand_dims"):
            return values.per_client or shape[:1] == _shape(equation.outvars[0])[:1] == (self.clients,)
        return False

    def _rows(self, v: Atom, values: _Values) -> np.ndarray | None:
        """A constant with one row for each client; None for other values."""
        constant, of_one = self._constant(v, values)
        return None if constant is None or of_one or constant.shape[:1] != (self.clients,) else constant

    def _is_zero(self, v: Atom, values: _Values) -> bool:
        constant = self._constant(v, values)[0]
        return constant is not None and not np.any(constant)

    def _constant(self, v: Atom, values: _Values) -> tuple[np.ndarray | None, bool]:
        """A literal or constant, possibly converted or repeated, and whether it belongs to one client.

        A constant inside one client's function lacks the client axis, and is the same for all clients.
        """
        name, equation, v, values = self._maker(v, values)
        if equation is None:
            constant = v.val if isinstance(v, Literal) else values.constants.get(v)
            return (
                (None, False)
                if constant is None
                else (np.asarray(constant), values.per_client or np.ndim(constant) == 0)
            )
        if name in _COMPUTED and not values.per_client:
            parts = [self._constant(invar, values)[0] for invar in equation.invars]
            aval: Aval = equation.outvars[0].aval
            if all(part is not None for part in parts) and aval.size <= _MOST_CLIENTS:
                return self._computed(name, equation, parts), aval.ndim == 0
        if name in _KEEPING or name == "broadcast_in_dim":
            constant, of_one = self._constant(equation.invars[0], values)
            if constant is None or (name not in _KEEPING and constant.ndim):
                return None, False
            return constant.astype(type_of(equation.outvars[0]).dtype), of_one
        return None, False

    def _computed(self, name: str, equation: JaxprEqn, parts: list[Any]) -> np.ndarray:
        """The result of an operation on constants; scalars and literals broadcast as in NumPy."""
        if name == "iota":
            shape, dimension = equation.params["shape"], equation.params["dimension"]
            return np.broadcast_to(
                np.expand_dims(np.arange(shape[dimension]), [i for i in range(len(shape)) if i != dimension]), shape
            )
        return np.broadcast_to(_COMPUTED[name](*parts), type_of(equation.outvars[0]).shape)

    def _maker(self, v: Atom, values: _Values) -> tuple[str, JaxprEqn | None, Atom, _Values]:
        """The equation that defines a value, traced through calls and client functions; None for inputs."""
        while not isinstance(v, Literal):
            equation = values.made.get(v)
            if equation is None:
                passed = values.outer(v)
                if passed is None:
                    return "", None, v, values
                v, values = passed
                continue
            inner = equation.params.get("jaxpr")
            if equation.primitive is not map_p and equation.primitive.name not in ("jit", "pjit", "closed_call"):
                return equation.primitive.name, equation, v, values
            if inner is None:
                return "", None, v, values
            v, values = self._enter(equation, inner, v, values)
        return "", None, v, values

    @staticmethod
    def _enter(equation: JaxprEqn, closed: ClosedJaxpr, v: Var, values: _Values) -> tuple[Atom, _Values]:
        jaxpr = closed.jaxpr
        passed = dict(zip(jaxpr.invars, equation.invars, strict=False))

        def outer(inner: Var) -> tuple[Atom, _Values] | None:
            return (passed[inner], values) if inner in passed else None

        constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        is_map = equation.primitive is map_p
        return jaxpr.outvars[equation.outvars.index(v)], _of(
            jaxpr, constants, outer, per_client=values.per_client or is_map
        )


def _shape(v: Atom) -> tuple[int, ...]:
    aval: Aval = v.aval
    return aval.shape
