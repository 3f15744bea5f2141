"""`reduce_sum`, `reduce_max`, `reduce_min`: one row per client becomes a value at the server."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Shaped

from workbench import _jax_compat
from workbench._types import PyTree
from workbench.primitives._checks import as_arrays, check_clients
from workbench.primitives._extreme import absent_value, max_p, min_p
from workbench.primitives._layout import Layout, find_layout
from workbench.primitives._linear import bind_mean, bind_reduction, bind_sum
from workbench.primitives._map import map_fn
from workbench.primitives._placement import Placement, resolve
from workbench.primitives._present import also_present, require_all


def reduce_sum(
    x: PyTree[Shaped[ArrayLike, " clients *shape"]],
    *,
    over: str | None = None,
    where: Bool[ArrayLike, " clients"] | None = None,
    accumulator: DTypeLike | None = None,
) -> PyTree[Shaped[Array, " *shape"]]:
    """Sums one value per client.

    Costs one all-reduce per leaf (or one combined all-reduce) if the clients are spread over a mesh.

    Args:
        x: Pytree of arrays `[clients, *shape]`.
        over: Name of the placement; needed only if there are several placements.
        where: Which clients take part, bool `[clients]`; the values of all other clients are ignored. Default: all.
        accumulator: Dtype of the accumulator. Default: float32 for narrower floats, otherwise the dtype of the result.

    Returns:
        The sum at the server, `[*shape]`, with the dtype of `x` (small integers and bools widen as in `jnp.sum`).

    Raises:
        PlacementError: outside a program, or if `x` or `where` does not have one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_sum(jnp.array([1.0, 2.0, 3.0])).tolist()
        6.0

    References:
        DrJAX (2024), section 3; arXiv 2301.07806 (the transpose is `broadcast`).
    """
    return reduce_leaves("reduce_sum", x, over, where, accumulator)


def reduce_max(
    x: PyTree[Shaped[ArrayLike, " clients *shape"]],
    *,
    over: str | None = None,
    where: Bool[ArrayLike, " clients"] | None = None,
) -> PyTree[Shaped[Array, " *shape"]]:
    """The elementwise maximum over the clients.

    The derivative goes to the client that has the maximum, in equal parts if several clients have it (as in `jnp.max`).

    Args:
        x: Pytree of real-valued arrays `[clients, *shape]`.
        over: Name of the placement; needed only if there are several placements.
        where: Which clients take part, bool `[clients]`. If no client takes part, the result is the lowest value of the
            dtype (-inf for floats).

    Returns:
        The maximum at the server, `[*shape]`, with the dtype of `x`.

    Raises:
        PlacementError: outside a program, or if `x` or `where` does not have one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_max(jnp.array([1.0, 5.0, 3.0])).tolist()
        5.0

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004 (a commutative, associative reduction).
    """
    return reduce_leaves("reduce_max", x, over, where)


def reduce_min(
    x: PyTree[Shaped[ArrayLike, " clients *shape"]],
    *,
    over: str | None = None,
    where: Bool[ArrayLike, " clients"] | None = None,
) -> PyTree[Shaped[Array, " *shape"]]:
    """The elementwise minimum over the clients.

    The derivative goes to the client that has the minimum, in equal parts if several clients have it (as in `jnp.min`).

    Args:
        x: Pytree of real-valued arrays `[clients, *shape]`.
        over: Name of the placement; needed only if there are several placements.
        where: Which clients take part, bool `[clients]`. If no client takes part, the result is the highest value of
            the dtype (inf for floats).

    Returns:
        The minimum at the server, `[*shape]`, with the dtype of `x`.

    Raises:
        PlacementError: outside a program, or if `x` or `where` does not have one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_min(jnp.array([1.0, 5.0, 3.0])).tolist()
        1.0

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004 (a commutative, associative reduction).
    """
    return reduce_leaves("reduce_min", x, over, where)


def reduce_leaves(
    operation: str, x: object, over: str | None, where: object, accumulator: DTypeLike | None = None
) -> PyTree[Array]:
    placement, outer = resolve(operation, over)
    if outer:
        operands = (x,) if where is None else (x, where)
        return map_fn(
            lambda row, mask=None: reduce_leaves(operation, row, placement.name, mask, accumulator),
            operands,
            over=outer[0].name,
        )
    if where is None and _is_eager(x, placement):
        return _compiled(operation, over, placement, accumulator)(x)
    leaves, structure = as_arrays(operation, "x", x)
    check_clients(operation, "x", structure.hidden(leaves), placement)
    where = also_present(where, placement, leaves)
    if operation == "reduce_sum" and any(jnp.issubdtype(leaf.dtype, jnp.unsignedinteger) for leaf in leaves):
        require_all(
            operation,
            "Unsigned integers may be masked values of a secure sum, whose masks cancel only over all clients.",
        )
    layout = find_layout(placement)
    if where is None:
        results = [_bind_leaf(operation, leaf, placement, layout, accumulator) for leaf in leaves]
    else:
        mask = jnp.asarray(where, dtype=bool)
        check_clients(operation, "where", mask, placement)
        # Without this, each small step would be dispatched separately in eager mode.
        alone = layout is None and _jax_compat.at_top_level()
        results = (_compiled_present if alone else _reduce_present)(leaves, mask, operation, placement, accumulator)
    return structure.unflatten(results)


def _is_eager(x: object, placement: Placement) -> bool:
    """Returns whether a reduction runs eagerly, without checks, on unsharded arrays of the right length."""
    if jax.config.jax_disable_jit or not _jax_compat.at_top_level() or find_layout(placement) is not None:  # pyright: ignore
        return False
    leaves = _jax_compat.live_arrays(x)
    return bool(leaves) and all(leaf.shape[:1] == (placement.size,) for leaf in leaves)


@functools.lru_cache(maxsize=256)
def _compiled(operation: str, over: str | None, placement: Placement, accumulator: DTypeLike | None) -> Callable:
    """Runs an entire reduction in one compiled call, because eager steps would be dispatched separately."""

    def reduce(x: jax.Array) -> PyTree[Array]:
        return reduce_leaves(operation, x, over, None, accumulator)

    reduce.__name__ = operation
    return jax.jit(reduce)


def _bind_leaf(
    operation: str, x: jax.Array, placement: Placement, layout: Layout | None, accumulator: DTypeLike | None
) -> jax.Array:
    if operation == "reduce_sum":
        return bind_sum(x, placement, layout, accumulator=accumulator)
    if operation == "reduce_mean":
        return bind_mean(x, placement, layout, accumulator=accumulator)
    return bind_reduction(max_p if operation == "reduce_max" else min_p, x, placement, layout)


def _reduce_present(
    leaves: list[jax.Array], mask: object, operation: str, placement: Placement, accumulator: DTypeLike | None
) -> list[jax.Array]:
    """Reduces over the clients in the mask; all other clients contribute the identity element."""
    extreme = {"reduce_max": max_p, "reduce_min": min_p}.get(operation)

    def fill(row: jax.Array, takes_part: jax.Array) -> jax.Array:
        absent = 0 if extreme is None else absent_value(extreme, row.dtype)
        return jnp.where(takes_part, row, jnp.full_like(row, absent))

    filled = [map_fn(fill, (leaf, mask), over=placement.name) for leaf in leaves]
    layout = find_layout(placement)
    return [_bind_leaf(operation, leaf, placement, layout, accumulator) for leaf in filled]


_compiled_present = jax.jit(_reduce_present, static_argnums=(2, 3, 4))
