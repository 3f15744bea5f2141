"""Maximum and minimum over clients as primitives; clients with the extreme value receive the derivative."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.typing import DTypeLike

from workbench import _jax_compat
from workbench._types import PyTree
from workbench.primitives._layout import Layout, spread
from workbench.primitives._linear import bind_broadcast, bind_reduction, bind_sum, register_reduction
from workbench.primitives._map import bind_map
from workbench.primitives._placement import Placement

max_p: Primitive = Primitive("reduce_max")
min_p: Primitive = Primitive("reduce_min")

# The map that finds the clients with the extreme value compares rows exactly, so a plan must not recompute these rows.
HOLDS = "holds"


def absent_value(primitive: Primitive, dtype: DTypeLike) -> float | int | bool:
    """Value of an absent client when computing a maximum or a minimum.

    Example:
        >>> absent_value(max_p, jnp.float32), absent_value(max_p, jnp.int8), absent_value(min_p, jnp.int8)
        (-inf, -128, 127)
    """
    is_max = primitive is max_p
    if jnp.issubdtype(dtype, jnp.floating):
        limits = jnp.finfo(dtype)
        if not np.isinf(np.asarray(np.inf, jnp.dtype(dtype))):  # some 8-bit floats have no infinity
            return float(limits.min if is_max else limits.max)
        return -jnp.inf if is_max else jnp.inf
    if jnp.dtype(dtype) == jnp.bool_:
        return not is_max
    return jnp.iinfo(dtype).min if is_max else jnp.iinfo(dtype).max


def across_devices(primitive: Primitive, reduction: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Applies a maximum or a minimum over devices, whose result is NaN if any value is NaN.

    XLA's all-reduce drops NaNs, and other values with them (jaxlib 0.10 on CPUs). Integers in the order of the floats
    have no NaN; the largest (for a minimum, the smallest) stands for NaN.
    """
    dtype = x.dtype
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize == 1:
        return reduction(x)
    bits = jnp.iinfo(f"int{8 * dtype.itemsize}")
    nan = bits.max if primitive is max_p else bits.min
    ordered = jnp.where(jnp.isnan(x), nan, _reordered(jax.lax.bitcast_convert_type(x, bits.dtype)))
    return jax.lax.bitcast_convert_type(_reordered(reduction(ordered)), dtype)


def _reordered(bits: jax.Array) -> jax.Array:
    """Converts a float's bits to an integer of the same order, or back: negative floats count in reverse."""
    limits = jnp.iinfo(bits.dtype)
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)


def _extreme(
    x: jax.Array, *, placement: Placement, layout: Layout | None, primitive: Primitive, reduction: Callable
) -> jax.Array:
    if layout is None or layout.size == 1:
        return reduction(spread(x, layout), axis=0)
    return across_devices(primitive, functools.partial(reduction, axis=0), spread(x, layout))


for _primitive, _reduction in ((max_p, jnp.max), (min_p, jnp.min)):
    register_reduction(_primitive, functools.partial(_extreme, primitive=_primitive, reduction=_reduction))


# The tangent of an extreme value is the mean tangent of the clients that have this value: two sums and a broadcast.
def _extreme_jvp(
    primitive: Primitive,
    primals: PyTree[Array],
    tangents: PyTree[Array],
    *,
    placement: Placement,
    layout: Layout | None,
) -> tuple[jax.Array, jax.Array | ad.Zero]:
    (x,), (tangent,) = primals, tangents
    if isinstance(tangent, ad.Zero):
        extreme = bind_reduction(primitive, x, placement, layout)
        return extreme, _jax_compat.zero_tangent(extreme)
    extreme, mean = mean_over_holders(primitive, x, placement, layout)
    return extreme, mean(tangent)


def mean_over_holders(
    primitive: Primitive, x: jax.Array, placement: Placement, layout: Layout | None
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns the extreme, and a function that averages rows over the clients that have it."""
    extreme = bind_reduction(primitive, x, placement, layout)
    at_clients = bind_broadcast(extreme, placement, layout)
    (holds,) = bind_map(
        lambda row, top: [(row == top).astype(row.dtype)], [x, at_clients], placement, layout, name=HOLDS
    )
    holders = bind_sum(holds, placement, layout)

    def mean(rows: jax.Array) -> jax.Array:
        (shares,) = bind_map(lambda hold, slope: [hold * slope], [holds, rows], placement, layout, name="share")
        return bind_sum(shares, placement, layout) / holders

    return extreme, mean


for _primitive in (max_p, min_p):
    ad.primitive_jvps[_primitive] = functools.partial(_extreme_jvp, _primitive)
