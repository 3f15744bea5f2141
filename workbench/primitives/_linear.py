"""Broadcast, sum and mean over clients as primitives: linear maps that are each other's transposes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike, DTypeLike

from workbench import _jax_compat
from workbench._types import Aval, Param
from workbench.primitives._layout import Layout, spread
from workbench.primitives._placement import Placement

T = TypeVar("T")

broadcast_p: Primitive = Primitive("broadcast")
sum_p: Primitive = Primitive("reduce_sum")
mean_p: Primitive = Primitive("reduce_mean")

# Below this size, a plain sum is as fast as the product with ones; for larger arrays on CPUs, the product is faster.
_PRODUCT_FROM_ELEMENTS = 1 << 14


def bind_broadcast(x: ArrayLike, placement: Placement, layout: Layout | None) -> jax.Array:
    with jax.named_scope(f"wb.broadcast[{placement.name}]"):
        return broadcast_p.bind(x, placement=placement, layout=layout)


def rows_of(aval: Aval, placement: Placement, layout: Layout | None) -> Aval:
    """The type of an array with one row per client, for values of type `aval`."""
    if layout is None:
        return _jax_compat.add_leading_axis(aval, placement.size, None)
    return _jax_compat.add_leading_axis(aval, placement.size, layout.explicit_axes, layout.mesh)


def typed(x: jax.Array, layout: Layout | None) -> jax.Array:
    """`x` with the explicit type of its layout; unchanged with Auto axes or without a mesh."""
    if layout is None or not layout.explicit:
        return x
    spec = jax.typeof(x).sharding.spec
    return x if len(spec) and spec[0] == layout.entry else spread(x, layout)


def _broadcast(x: ArrayLike, *, placement: Placement, layout: Layout | None) -> jax.Array:
    x = x if isinstance(x, jax.Array) else jax.numpy.asarray(x)
    return spread(jax.numpy.broadcast_to(x[None], (placement.size, *x.shape)), layout)


@broadcast_p.def_impl
def _now(x: ArrayLike, *, placement: Placement, layout: Layout | None) -> jax.Array:
    if layout is not None:
        return _broadcast(x, placement=placement, layout=layout)
    return _compiled(x, placement)


@functools.partial(jax.jit, static_argnums=1)
def _compiled(x: ArrayLike, placement: Placement) -> jax.Array:
    return _broadcast(x, placement=placement, layout=None)


@broadcast_p.def_abstract_eval
def _broadcast_type(x: Aval, *, placement: Placement, layout: Layout | None) -> Aval:
    return rows_of(x, placement, layout)


mlir.register_lowering(broadcast_p, mlir.lower_fun(_broadcast, multiple_results=False))


# The transpose of sending a value to all clients is summing over all clients.
def _broadcast_transpose(
    cotangent: jax.Array | ad.Zero, x: ad.UndefinedPrimal, *, placement: Placement, layout: Layout | None
) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(x.aval)]
    return [bind_sum(cotangent, placement, layout)]


ad.deflinear2(broadcast_p, _broadcast_transpose)


def _batch_broadcast(
    operands: Sequence[jax.Array], axes: Sequence[int], *, placement: Placement, layout: Layout | None
) -> tuple[jax.Array, int]:
    (x,), (axis,) = operands, axes
    return bind_broadcast(x, placement, layout), axis + 1


batching.primitive_batchers[broadcast_p] = _batch_broadcast


def bind_sum(
    x: jax.Array, placement: Placement, layout: Layout | None, *, accumulator: DTypeLike | None = None
) -> jax.Array:
    dtype = sum_dtype(x.dtype)
    x = x if x.dtype == dtype else jnp.asarray(x).astype(dtype)
    return bind_reduction(sum_p, x, placement, layout, accumulator=accumulator_of(dtype, accumulator))


def bind_mean(
    x: jax.Array, placement: Placement, layout: Layout | None, *, accumulator: DTypeLike | None = None
) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = jnp.asarray(x).astype(jnp.result_type(float))
    return bind_reduction(mean_p, x, placement, layout, accumulator=accumulator_of(x.dtype, accumulator))


def bind_reduction(
    primitive: Primitive, x: jax.Array, placement: Placement, layout: Layout | None, **params: object
) -> jax.Array:
    with jax.named_scope(f"wb.{primitive.name}[{placement.name}]"):
        return primitive.bind(typed(x, layout), placement=placement, layout=layout, **params)


def sum_dtype(dtype: DTypeLike) -> DTypeLike:
    return (
        jax.eval_shape(lambda x: jnp.sum(x, axis=0), jax.ShapeDtypeStruct((1,), dtype)).dtype
        if _is_small(dtype)
        else dtype
    )


def _is_small(dtype: DTypeLike) -> bool:
    return jnp.dtype(dtype) == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32)


def accumulator_of(dtype: DTypeLike, accumulator: DTypeLike | None) -> np.dtype:
    if accumulator is not None:
        return jnp.dtype(accumulator)
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if is_narrow else jnp.dtype(dtype)


def sum_rows(x: jax.Array, accumulator: DTypeLike, *, by_product: bool = False) -> jax.Array:
    """Sums over the leading axis in the dtype `accumulator`; the result has the dtype of `x`."""
    as_product = by_product and not jax.export.is_symbolic_dim(x.size)
    if as_product and x.size >= _PRODUCT_FROM_ELEMENTS and jnp.issubdtype(x.dtype, jnp.floating):
        # XLA's CPU sum over the leading axis of a large array is 30 to 60 times slower than this product (JAX 0.10).
        ones = jnp.ones(x.shape[:1], x.dtype)
        total = jax.lax.dot_general(
            ones, x, (((0,), (0,)), ((), ())), precision="highest", preferred_element_type=accumulator
        )
    else:
        total = jnp.sum(x, axis=0, dtype=accumulator)
    return total.astype(x.dtype)


def _sum(
    x: jax.Array, *, placement: Placement, layout: Layout | None, accumulator: DTypeLike, by_product: bool = False
) -> jax.Array:
    return sum_rows(spread(x, layout), accumulator, by_product=by_product)


def _mean(
    x: jax.Array, *, placement: Placement, layout: Layout | None, accumulator: DTypeLike, by_product: bool = False
) -> jax.Array:
    total = sum_rows(spread(x, layout).astype(accumulator), accumulator, by_product=by_product)
    return (total / placement.size).astype(x.dtype)


def _compiled_once(rule: Callable) -> Callable:
    """Evaluates eagerly in one compiled call instead of one call per operation; not used with a mesh."""

    @functools.lru_cache(maxsize=256)
    def compiled(**params: object) -> Callable:
        return jax.jit(functools.partial(rule, **params))

    def run(x: jax.Array, **params: object) -> jax.Array:
        return rule(x, **params) if params["layout"] is not None else compiled(**params)(x)

    return run


def _type(x: Aval, **_: object) -> Aval:
    return _jax_compat.drop_leading_axis(x).update(weak_type=False)


def _batch(
    primitive: Primitive, operands: Sequence[jax.Array], axes: Sequence[int], **params: Param
) -> tuple[jax.Array, int]:
    (x,), (axis,) = operands, axes
    x, axis = (jnp.moveaxis(x, 0, 1), 1) if axis == 0 else (x, axis)
    return bind_reduction(primitive, x, params.pop("placement"), params.pop("layout"), **params), axis - 1


def register_reduction(primitive: Primitive, rule: Callable) -> None:
    """Registers the rules of a reduction over clients: evaluate, type, lower, batch."""
    primitive.def_impl(_compiled_once(rule))
    primitive.def_abstract_eval(_type)
    mlir.register_lowering(primitive, mlir.lower_fun(rule, multiple_results=False))
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)


for _primitive, _rule in ((sum_p, _sum), (mean_p, _mean)):
    register_reduction(_primitive, _rule)
    mlir.register_lowering(
        _primitive, mlir.lower_fun(functools.partial(_rule, by_product=True), multiple_results=False), platform="cpu"
    )


def _sum_transpose(
    cotangent: jax.Array | ad.Zero,
    x: ad.UndefinedPrimal,
    *,
    placement: Placement,
    layout: Layout | None,
    accumulator: DTypeLike,
) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(x.aval)]
    return [bind_broadcast(cotangent, placement, layout)]


def _mean_transpose(cotangent: jax.Array | ad.Zero, x: ad.UndefinedPrimal, **params: Param) -> list[Any]:
    if not isinstance(cotangent, ad.Zero):
        cotangent = cotangent / params["placement"].size
    return _sum_transpose(cotangent, x, **params)


ad.deflinear2(sum_p, _sum_transpose)
ad.deflinear2(mean_p, _mean_transpose)
