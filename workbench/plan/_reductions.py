"""Reductions as small functions (start, add, merge, finish), used in loops, on meshes and in pipelines."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Primitive
from jax.typing import ArrayLike, DTypeLike

from workbench._types import AxisNames, type_of
from workbench.primitives import (
    Placement,
    absent_value,
    across_devices,
    by_key_p,
    max_p,
    mean_p,
    min_p,
    sum_by_key,
    sum_p,
)


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A reduction as functions that add rows to an accumulator.

    `start(equation)` → accumulator · `add(equation, accumulator, rows, mask)` ·
    `add_one(equation, accumulator, row, present)` · `merge(a, b)` · `finish(equation, accumulator)` → result.

    `rows` are the equation's operands, with a leading axis over some of the clients; `mask` marks participating clients
    (None: all). `row` contains the operands of a single client, without that axis; `present` is one bool or None.
    `across(accumulator, axes)` merges over mesh axes and is the only function that communicates.
    """

    start: Callable[[JaxprEqn], jax.Array]
    add: Callable[[JaxprEqn, jax.Array, Sequence[jax.Array], jax.Array | None], jax.Array]
    add_one: Callable[[JaxprEqn, jax.Array, Sequence[jax.Array], jax.Array | None], jax.Array]
    merge: Callable[[jax.Array, jax.Array], jax.Array]
    across: Callable[[jax.Array, AxisNames], jax.Array]
    finish: Callable[[JaxprEqn, jax.Array], jax.Array]


def accumulator_of(equation: JaxprEqn) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a reduction's accumulator: the result's shape, and a wide dtype for sums."""
    result = type_of(equation.outvars[0])
    return jax.ShapeDtypeStruct(result.shape, equation.params.get("accumulator", result.dtype))


def _start_sum(equation: JaxprEqn) -> jax.Array:
    accumulator = accumulator_of(equation)
    return jax.lax.full(accumulator.shape, 0, accumulator.dtype)


def _add_sum(equation: JaxprEqn, total: jax.Array, rows: Sequence[jax.Array], mask: jax.Array | None) -> jax.Array:
    return total + _partial_sum(_masked(rows[0], mask, 0), equation.params["accumulator"])


def _add_one_to_sum(
    equation: JaxprEqn, total: jax.Array, row: Sequence[jax.Array], present: jax.Array | None
) -> jax.Array:
    # A loop's body is traced and lowered operation by operation, so `lax` is faster than `jnp`.
    return jax.lax.add(total, jax.lax.convert_element_type(_masked(row[0], present, 0), total.dtype))


def _partial_sum(x: jax.Array, accumulator: DTypeLike) -> jax.Array:
    if x.shape[0] == 1:
        return x[0].astype(accumulator)
    # The primitive lowers to the fastest sum on each platform.
    some = Placement("clients at once", x.shape[0], ())
    return sum_p.bind(x.astype(accumulator), placement=some, layout=None, accumulator=accumulator)


def _masked(x: jax.Array, mask: jax.Array | None, absent: ArrayLike) -> jax.Array:
    if mask is None:
        return x
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, jnp.full_like(x, absent))


def _finish_sum(equation: JaxprEqn, total: jax.Array) -> jax.Array:
    return jax.lax.convert_element_type(total, type_of(equation.outvars[0]).dtype)


def _finish_mean(equation: JaxprEqn, total: jax.Array) -> jax.Array:
    mean = jax.lax.div(total, np.asarray(equation.params["placement"].size, total.dtype))
    return jax.lax.convert_element_type(mean, type_of(equation.outvars[0]).dtype)


def _extreme(primitive: Primitive, merge: Callable, reduce: Callable, collective: Callable) -> Reduction:
    absent = functools.partial(absent_value, primitive)

    def across(extreme: jax.Array, axes: AxisNames) -> jax.Array:
        return across_devices(primitive, lambda x: collective(x, axes), extreme)

    def start(equation: JaxprEqn) -> jax.Array:
        accumulator = accumulator_of(equation)
        return jnp.full(accumulator.shape, absent(accumulator.dtype), accumulator.dtype)

    def add(equation: JaxprEqn, extreme: jax.Array, rows: Sequence[jax.Array], mask: jax.Array | None) -> jax.Array:
        return merge(extreme, reduce(_masked(rows[0], mask, absent(rows[0].dtype)), axis=0))

    def add_one(
        equation: JaxprEqn, extreme: jax.Array, row: Sequence[jax.Array], present: jax.Array | None
    ) -> jax.Array:
        return merge(extreme, _masked(row[0], present, absent(row[0].dtype)))

    return Reduction(start, add, add_one, merge, across, lambda _, extreme: extreme)


def _add_by_key(equation: JaxprEqn, total: jax.Array, rows: Sequence[jax.Array], mask: jax.Array | None) -> jax.Array:
    values, keys = rows
    options = {name: equation.params[name] for name in ("num_keys", "accumulator", "batch_dims")}
    return total + sum_by_key(values, keys, mask, **options)


def _add_one_by_key(
    equation: JaxprEqn, total: jax.Array, row: Sequence[jax.Array], present: jax.Array | None
) -> jax.Array:
    mask = None if present is None else jax.lax.expand_dims(present, (0,))
    return _add_by_key(equation, total, [jax.lax.expand_dims(x, (0,)) for x in row], mask)


REDUCTION_OF: dict[Primitive, Reduction] = {
    sum_p: Reduction(_start_sum, _add_sum, _add_one_to_sum, jnp.add, jax.lax.psum, _finish_sum),
    mean_p: Reduction(_start_sum, _add_sum, _add_one_to_sum, jnp.add, jax.lax.psum, _finish_mean),
    by_key_p: Reduction(_start_sum, _add_by_key, _add_one_by_key, jnp.add, jax.lax.psum, _finish_sum),
    max_p: _extreme(max_p, jnp.maximum, jnp.max, jax.lax.pmax),
    min_p: _extreme(min_p, jnp.minimum, jnp.min, jax.lax.pmin),
}
