"""`reduce_sum`, `reduce_mean`, `reduce_max`, `reduce_min`: one row per client becomes a value at the server."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from workbench import _jax_compat
from workbench.mesh import Layout, Placement, find_layout, resolve, spread
from workbench.primitives._broadcast import bind_broadcast, typed
from workbench.primitives._checks import as_arrays, check_clients

sum_p, mean_p, max_p, min_p = (Primitive(name) for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"))

# The map that finds the clients who hold an extreme compares rows exactly: a plan must not compute these rows twice.
HOLDS = "holds"
# Below this many elements a plain sum is as fast as the product with ones that the CPU prefers above it.
_PRODUCT_FROM_ELEMENTS = 1 << 14


def reduce_sum(x: Any, *, over: str | None = None, where: Any = None, accumulator: Any = None) -> Any:
    """Adds up one value per client.

    Costs one all-reduce per leaf (or one combined) where the clients are spread over a mesh.

    Args:
        x: Pytree of arrays `[clients, *shape]`.
        over: Name of the placement; needed only where there are several.
        where: Which clients take part, bool `[clients]`; the others count as absent, whatever they hold. Default: all.
        accumulator: Dtype to add up in. Default: float32 for bfloat16 and float16, else the dtype of the result.

    Returns:
        The sum at the server, `[*shape]`, dtype of `x` (small integers and bools widen as in `jnp.sum`).

    Raises:
        PlacementError: outside of a program, or if `x` or `where` has not one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_sum(jnp.array([1.0, 2.0, 3.0])).tolist()
        6.0

    References:
        DrJAX (2024), section 3; its transpose is `broadcast` (arXiv 2301.07806).
    """
    return _reduce("reduce_sum", x, over, where, accumulator)


def reduce_mean(x: Any, *, over: str | None = None, where: Any = None, accumulator: Any = None) -> Any:
    """Averages one value per client, every client counted alike.

    Costs one all-reduce per leaf (or one combined) where the clients are spread over a mesh.

    Args:
        x: Pytree of arrays `[clients, *shape]`. Integers and bools become floats.
        over: Name of the placement; needed only where there are several.
        where: Which clients take part, bool `[clients]`; absent ones do not count. With none at all the mean is 0.
        accumulator: Dtype to add up in. Default: float32 for bfloat16 and float16, else the dtype of the result.

    Returns:
        The mean at the server, `[*shape]`, dtype of `x` (of integers: the default float dtype).

    Raises:
        PlacementError: outside of a program, or if `x` or `where` has not one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_mean(jnp.array([1, 2, 6])).tolist()
        3.0

    References:
        DrJAX (2024), section 3.
    """
    if where is not None:
        from workbench.primitives._weighted import reduce_weighted_mean  # a mean of some is a weighted mean

        return reduce_weighted_mean(x, where, over=over, accumulator=accumulator)
    return _reduce("reduce_mean", x, over, None, accumulator)


def reduce_max(x: Any, *, over: str | None = None, where: Any = None) -> Any:
    """The largest value over the clients, elementwise.

    Its derivative goes to the clients that hold the maximum, in equal parts where several do (as in `jnp.max`).

    Args:
        x: Pytree of arrays `[clients, *shape]`, real.
        over: Name of the placement; needed only where there are several.
        where: Which clients take part, bool `[clients]`. With none at all: the lowest value of the dtype (-inf).

    Returns:
        The maximum at the server, `[*shape]`, dtype of `x`.

    Raises:
        PlacementError: outside of a program, or if `x` or `where` has not one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_max(jnp.array([1.0, 5.0, 3.0])).tolist()
        5.0

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004 (a commutative, associative reduction).
    """
    return _reduce("reduce_max", x, over, where)


def reduce_min(x: Any, *, over: str | None = None, where: Any = None) -> Any:
    """The smallest value over the clients, elementwise.

    Its derivative goes to the clients that hold the minimum, in equal parts where several do (as in `jnp.min`).

    Args:
        x: Pytree of arrays `[clients, *shape]`, real.
        over: Name of the placement; needed only where there are several.
        where: Which clients take part, bool `[clients]`. With none at all: the highest value of the dtype (inf).

    Returns:
        The minimum at the server, `[*shape]`, dtype of `x`.

    Raises:
        PlacementError: outside of a program, or if `x` or `where` has not one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_min(jnp.array([1.0, 5.0, 3.0])).tolist()
        1.0

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004 (a commutative, associative reduction).
    """
    return _reduce("reduce_min", x, over, where)


def _reduce(operation: str, x: Any, over: str | None, where: Any, accumulator: Any = None) -> Any:
    from workbench.primitives._map import map_fn

    placement, outer = resolve(operation, over)
    if outer:
        operands = (x,) if where is None else (x, where)
        return map_fn(
            lambda row, mask=None: _reduce(operation, row, placement.name, mask, accumulator),
            operands,
            over=outer[0].name,
        )
    leaves, structure = as_arrays(operation, "x", x)
    check_clients(operation, "x", structure.hidden(leaves), placement)
    layout = find_layout(placement)
    if where is None:
        results = [_bind_leaf(operation, leaf, placement, layout, accumulator) for leaf in leaves]
    else:
        mask = jnp.asarray(where, dtype=bool)
        check_clients(operation, "where", mask, placement)
        # Eagerly, each of the small steps would be dispatched alone.
        alone = layout is None and _jax_compat.at_top_level()
        results = (_compiled_present if alone else _reduce_present)(leaves, mask, operation, placement, accumulator)
    return structure.unflatten(results)


def _bind_leaf(operation: str, x: Any, placement: Placement, layout: Layout | None, accumulator: Any) -> Any:
    if operation == "reduce_sum":
        return bind_sum(x, placement, layout, accumulator=accumulator)
    if operation == "reduce_mean":
        return bind_mean(x, placement, layout, accumulator=accumulator)
    return _bind(max_p if operation == "reduce_max" else min_p, x, placement, layout)


def _reduce_present(leaves: list[Any], mask: Any, operation: str, placement: Placement, accumulator: Any) -> list[Any]:
    """Reduces the clients that the mask holds: the others get a value that does not count."""
    from workbench.primitives._map import map_fn

    absent = {"reduce_max": lowest, "reduce_min": highest}.get(operation, lambda _: 0)

    def fill(row: Any, takes_part: Any) -> Any:
        return jnp.where(takes_part, row, jnp.full_like(row, absent(row.dtype)))

    filled = [map_fn(fill, (leaf, mask), over=placement.name) for leaf in leaves]
    layout = find_layout(placement)
    return [_bind_leaf(operation, leaf, placement, layout, accumulator) for leaf in filled]


_compiled_present = jax.jit(_reduce_present, static_argnums=(2, 3, 4))


def bind_sum(x: Any, placement: Placement, layout: Layout | None, *, accumulator: Any = None) -> Any:
    """Binds the sum of one array."""
    dtype = sum_dtype(x.dtype)
    x = x if x.dtype == dtype else jnp.asarray(x).astype(dtype)
    return _bind(sum_p, x, placement, layout, accumulator=accumulator_of(dtype, accumulator))


def bind_mean(x: Any, placement: Placement, layout: Layout | None, *, accumulator: Any = None) -> Any:
    """Binds the mean of one array."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = jnp.asarray(x).astype(jnp.result_type(float))
    return _bind(mean_p, x, placement, layout, accumulator=accumulator_of(x.dtype, accumulator))


def _bind(primitive: Primitive, x: Any, placement: Placement, layout: Layout | None, **params: Any) -> Any:
    with jax.named_scope(f"wb.{primitive.name}[{placement.name}]"):
        return primitive.bind(typed(x, layout), placement=placement, layout=layout, **params)


def sum_dtype(dtype: Any) -> Any:
    return (
        jax.eval_shape(lambda x: jnp.sum(x, axis=0), jax.ShapeDtypeStruct((1,), dtype)).dtype
        if _is_small(dtype)
        else dtype
    )


def _is_small(dtype: Any) -> bool:
    return jnp.dtype(dtype) == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32)


def accumulator_of(dtype: Any, wanted: Any) -> Any:
    if wanted is not None:
        return jnp.dtype(wanted)
    return jnp.dtype(jnp.float32) if dtype in (jnp.bfloat16, jnp.float16) else jnp.dtype(dtype)


def lowest(dtype: Any) -> Any:
    """What an absent client holds for a maximum."""
    return (
        -jnp.inf
        if jnp.issubdtype(dtype, jnp.floating)
        else False
        if jnp.dtype(dtype) == jnp.bool_
        else jnp.iinfo(dtype).min
    )


def highest(dtype: Any) -> Any:
    """What an absent client holds for a minimum."""
    return (
        jnp.inf
        if jnp.issubdtype(dtype, jnp.floating)
        else True
        if jnp.dtype(dtype) == jnp.bool_
        else jnp.iinfo(dtype).max
    )


def sum_rows(x: Any, accumulator: Any, *, by_product: bool = False) -> Any:
    """Sum over the leading axis in the dtype `accumulator`; the result has the dtype of `x`."""
    if by_product and x.size >= _PRODUCT_FROM_ELEMENTS and jnp.issubdtype(x.dtype, jnp.floating):
        # XLA's CPU sum over the leading axis of a large array is 30-60 × slower than this product (JAX 0.10).
        ones = jnp.ones(x.shape[:1], x.dtype)
        total = jax.lax.dot_general(
            ones, x, (((0,), (0,)), ((), ())), precision="highest", preferred_element_type=accumulator
        )
    else:
        total = jnp.sum(x, axis=0, dtype=accumulator)
    return total.astype(x.dtype)


def _sum(x: Any, *, placement: Placement, layout: Layout | None, accumulator: Any, by_product: bool = False) -> Any:
    return sum_rows(spread(x, layout), accumulator, by_product=by_product)


def _mean(x: Any, *, placement: Placement, layout: Layout | None, accumulator: Any, by_product: bool = False) -> Any:
    total = sum_rows(spread(x, layout).astype(accumulator), accumulator, by_product=by_product)
    return (total / placement.size).astype(x.dtype)


def _extreme(x: Any, *, placement: Placement, layout: Layout | None, reduction: Callable) -> Any:
    return reduction(spread(x, layout), axis=0)


def _compiled_once(rule: Callable) -> Callable:
    """Eager evaluation in one call of a compiled function instead of one per operation; not under a mesh."""

    @functools.lru_cache(maxsize=256)
    def compiled(**params: Any) -> Callable:
        return jax.jit(functools.partial(rule, **params))

    def run(x: Any, **params: Any) -> Any:
        return rule(x, **params) if params["layout"] is not None else compiled(**params)(x)

    return run


def _type(x: Any, **_: Any) -> Any:
    return _jax_compat.drop_leading_axis(x).update(weak_type=False)


def _batch(primitive: Primitive, operands: Any, axes: Any, **params: Any) -> tuple[Any, int]:
    (x,), (axis,) = operands, axes
    x, axis = (jnp.moveaxis(x, 0, 1), 1) if axis == 0 else (x, axis)
    return _bind(primitive, x, params.pop("placement"), params.pop("layout"), **params), axis - 1


for _primitive, _rule in (
    (sum_p, _sum),
    (mean_p, _mean),
    (max_p, functools.partial(_extreme, reduction=jnp.max)),
    (min_p, functools.partial(_extreme, reduction=jnp.min)),
):
    _primitive.def_impl(_compiled_once(_rule))
    _primitive.def_abstract_eval(_type)
    mlir.register_lowering(_primitive, mlir.lower_fun(_rule, multiple_results=False))
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
for _primitive, _rule in ((sum_p, _sum), (mean_p, _mean)):
    mlir.register_lowering(
        _primitive, mlir.lower_fun(functools.partial(_rule, by_product=True), multiple_results=False), platform="cpu"
    )


def _sum_transpose(
    cotangent: Any, x: Any, *, placement: Placement, layout: Layout | None, accumulator: Any
) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(x.aval)]
    return [bind_broadcast(cotangent, placement, layout)]


def _mean_transpose(
    cotangent: Any, x: Any, *, placement: Placement, layout: Layout | None, accumulator: Any
) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(x.aval)]
    return [bind_broadcast(cotangent / placement.size, placement, layout)]


ad.deflinear2(sum_p, _sum_transpose)
ad.deflinear2(mean_p, _mean_transpose)


# A tangent of the extreme is the mean of the tangents of the clients that hold it: two sums and a broadcast.
def _extreme_jvp(
    primitive: Primitive, primals: Any, tangents: Any, *, placement: Placement, layout: Layout | None
) -> Any:
    from workbench.primitives._map import bind_map

    (x,), (tangent,) = primals, tangents
    extreme = _bind(primitive, x, placement, layout)
    if isinstance(tangent, ad.Zero):
        return extreme, _jax_compat.zero_tangent(extreme)
    at_clients = bind_broadcast(extreme, placement, layout)
    (holds,) = bind_map(
        lambda row, top: [(row == top).astype(row.dtype)], [x, at_clients], placement, layout, name=HOLDS
    )
    holders = bind_sum(holds, placement, layout)
    (shares,) = bind_map(lambda hold, slope: [hold * slope], [holds, tangent], placement, layout, name="share")
    return extreme, bind_sum(shares, placement, layout) / holders


for _primitive in (max_p, min_p):
    ad.primitive_jvps[_primitive] = functools.partial(_extreme_jvp, _primitive)
