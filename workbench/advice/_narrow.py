"""Rewrites a traced program so that it exchanges 16-bit values and converts them to float32 afterwards."""

from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from workbench import _jax_compat
from workbench._types import Atom, Aval
from workbench.advice._rewrite import AtLines, Line, converted

_EXCHANGES = {
    "psum", "psum2", "psum_invariant", "pmax", "pmin", "ppermute", "all_to_all", "all_gather", "all_gather_invariant",
    "all_gather_reduced", "reduce_scatter", "unreduced_psum", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min",
    "sharding_constraint", "reshard",
}  # fmt: skip
_REARRANGED = {
    "reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "slice", "rev", "copy", "copy_p", "pvary",
    "pcast", "pbroadcast",
}  # fmt: skip
_HALVED = (jnp.bfloat16.dtype, jnp.float16.dtype)


def narrowed(closed: ClosedJaxpr, lines: Collection[Line] = ()) -> tuple[ClosedJaxpr, int]:
    """The program with casts to float32 moved after the collectives, and casts from float32 moved before them.

    Returns:
        The program, which now rounds its sums to 16 bits, and the number of rewritten operations.

    Example:
        >>> total = jax.make_jaxpr(lambda x: x.astype("float32").sum(0))(jnp.ones((4, 8), "bfloat16"))
        >>> narrowed(total)[1]
        1
    """
    return _Narrowing(lines).program(closed)


class _Narrowing(AtLines):
    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        users: dict[Var, list[JaxprEqn]] = {}
        for equation in jaxpr.eqns:
            for v in equation.invars:
                if not isinstance(v, Literal):
                    users.setdefault(v, []).append(equation)
        returned = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
        narrow: dict[Atom, Var] = {}  # float32 variable -> 16-bit variable with the same values
        equations: list[JaxprEqn] = []
        for old in jaxpr.eqns:
            equation = self.inside(old)
            name = equation.primitive.name
            if name == "convert_element_type":
                equations.append(_converted(equation, narrow))
            elif name in _REARRANGED and len(equation.invars) == 1 and _is_known(equation.invars[0], narrow):
                changed, variables = _with_dtype(equation, [narrow[equation.invars[0]]])
                narrow.update(variables)
                equations += [equation, changed]
            elif (name in _EXCHANGES or name == "dot_general") and self._is_meant(equation):
                after = [] if returned & set(equation.outvars) else [users.get(v, []) for v in equation.outvars]
                replacement = self._narrowed(equation, narrow, after)
                self.count += replacement is not None
                equations += [equation] if replacement is None else replacement
            else:
                equations.append(equation)
        return jaxpr.replace(eqns=equations)

    def _is_meant(self, equation: JaxprEqn) -> bool:
        return all(_dtype(v) == jnp.float32 for v in equation.outvars) and self.is_at_lines(equation)

    def _narrowed(
        self, equation: JaxprEqn, narrow: dict[Atom, Var], users: Sequence[Sequence[JaxprEqn]]
    ) -> list[JaxprEqn] | None:
        """The equation in 16 bits, with its results converted; None if neither operands nor users are 16-bit."""
        dtype = _narrowed_after(users)
        product = equation.primitive.name == "dot_general"
        flags = [_is_known(v, narrow) for v in equation.invars]
        if product and not (
            dtype and all(g or _dtype(v) in _HALVED for g, v in zip(flags, equation.invars, strict=True))
        ):
            return None
        if not (all(flags) or dtype):
            return None
        before, operands = [], []
        for v, is_narrow in zip(equation.invars, flags, strict=True):
            if is_narrow or _dtype(v) in _HALVED:
                operands.append(narrow.get(v, v) if is_narrow else v)
            elif isinstance(v, Literal):
                return None
            else:
                variable = _jax_compat.new_variable(v, _retyped(v.aval, dtype))
                before.append(converted(equation, v, variable))
                operands.append(variable)
        changed, variables = _with_dtype(equation, operands, dtype if product or not all(flags) else None)
        if product:
            params = {**changed.params, "preferred_element_type": _dtype(changed.outvars[0])}
            changed = _jax_compat.new_equation(changed, params=params)
        narrow.update(variables)
        after = [converted(equation, variables[v], v) for v in equation.outvars]
        return [*before, changed, *after]


def _converted(equation: JaxprEqn, narrow: dict[Atom, Var]) -> JaxprEqn:
    """Records a conversion to float32, and lets a conversion from float32 read the known 16-bit value."""
    [before], [after] = equation.invars, equation.outvars
    if _dtype(before) in _HALVED and _dtype(after) == jnp.float32 and not isinstance(before, Literal):
        narrow[after] = before
    elif _is_known(before, narrow) and _dtype(narrow[before]) == _dtype(after):
        return _jax_compat.new_equation(equation, invars=[narrow[before]])
    return equation


def _narrowed_after(users: Sequence[Sequence[JaxprEqn]]) -> np.dtype | None:
    """The 16-bit dtype that all users of all results convert to; None if there is none."""
    every = [user for group in users for user in group]
    if not users or not all(users) or any(user.primitive.name != "convert_element_type" for user in every):
        return None
    dtypes = {_dtype(user.outvars[0]) for user in every}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= set(_HALVED) else None


def _with_dtype(
    equation: JaxprEqn, operands: Sequence[Atom], dtype: np.dtype | None = None
) -> tuple[JaxprEqn, dict[Atom, Var]]:
    """The equation with different operands, and a mapping from old to new results."""
    dtype = dtype or _dtype(operands[0])
    variables: dict[Atom, Var] = {v: _jax_compat.new_variable(v, _retyped(v.aval, dtype)) for v in equation.outvars}
    return _jax_compat.new_equation(equation, invars=list(operands), outvars=list(variables.values())), variables


def _is_known(v: Atom, narrow: dict[Atom, Var]) -> bool:
    return not isinstance(v, Literal) and v in narrow


def _dtype(v: Atom) -> np.dtype | None:
    return getattr(v.aval, "dtype", None)


def _retyped(aval: Aval, dtype: np.dtype | None) -> Aval:
    return aval.update(dtype=jnp.dtype(dtype), weak_type=False)
