"""Means over clients, which are composed of other reductions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Shaped

from workbench import _jax_compat
from workbench._types import PyTree
from workbench.errors import PlacementError
from workbench.primitives._checks import as_arrays, check_clients
from workbench.primitives._layout import find_layout
from workbench.primitives._linear import accumulator_of
from workbench.primitives._map import map_fn
from workbench.primitives._placement import Placement, resolve
from workbench.primitives._present import is_partial, present_of
from workbench.primitives._reduce import reduce_leaves, reduce_sum
from workbench.primitives._static import hide_static


def reduce_mean(
    x: PyTree[Shaped[ArrayLike, " clients *shape"]],
    *,
    over: str | None = None,
    where: Bool[ArrayLike, " clients"] | None = None,
    accumulator: DTypeLike | None = None,
) -> PyTree[Shaped[Array, " *shape"]]:
    """Averages one value per client, with equal weights.

    Costs one all-reduce per leaf (or one combined all-reduce) if the clients are spread over a mesh.

    Args:
        x: Pytree of arrays `[clients, *shape]`. Integers and bools become floats.
        over: Name of the placement; needed only if there are several placements.
        where: Which clients take part, bool `[clients]`; all other clients are ignored. If no client takes part, the
            mean is 0.
        accumulator: Dtype of the accumulator. Default: float32 for narrower floats, otherwise the dtype of the result.

    Returns:
        The mean at the server, `[*shape]`, with the dtype of `x` (for integers, the default float dtype).

    Raises:
        PlacementError: outside a program, or if `x` or `where` does not have one row per client.

    Example:
        >>> with program(clients=3):
        ...     reduce_mean(jnp.array([1, 2, 6])).tolist()
        3.0

    References:
        DrJAX (2024), section 3.
    """
    if where is None and is_partial():
        placement, outer = resolve("reduce_mean", over)
        where = None if outer else present_of(placement, as_arrays("reduce_mean", "x", x)[0])
    if where is not None:
        return reduce_weighted_mean(x, where, over=over, accumulator=accumulator)
    return reduce_leaves("reduce_mean", x, over, None, accumulator)


def reduce_weighted_mean(
    x: PyTree[Shaped[ArrayLike, " clients *shape"]],
    weight: PyTree[Shaped[ArrayLike, " clients"]],
    *,
    over: str | None = None,
    accumulator: DTypeLike | None = None,
) -> PyTree[Shaped[Array, " *shape"]]:
    """Averages one value per client, weighted by `weight`.

    Costs two calls of `reduce_sum`: one for `weight * x` and one for `weight`.

    Args:
        x: Pytree of arrays `[clients, *shape]`. Integers become floats.
        weight: Non-negative weight of each client, `[clients]`, numbers or bools; or a pytree of such vectors that is a
            prefix of `x`. In federated averaging, this is the number of examples.
        over: Name of the placement; needed only if there are several placements.
        accumulator: Dtype of the accumulator. Default: float32 for narrower floats, otherwise the dtype of the result.

    Returns:
        The mean at the server, `[*shape]`, with the dtype of `x`. If all weights are zero, the mean and its gradient
        are 0. A client with weight zero counts as absent: its values, even NaN, are ignored.

    Raises:
        PlacementError: if `x` and `weight` have different numbers of clients.

    Example:
        >>> with program(clients=2):
        ...     reduce_weighted_mean(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0])).tolist()
        1.75

    References:
        McMahan et al., AISTATS 2017, Algorithm 1.
    """
    placement, outer = resolve("reduce_weighted_mean", over)
    if outer:
        return map_fn(
            lambda rows, weights: reduce_weighted_mean(rows, weights, over=placement.name, accumulator=accumulator),
            (x, weight),
            over=outer[0].name,
        )
    leaves, structure = as_arrays("reduce_weighted_mean", "x", x)
    check_clients("reduce_weighted_mean", "x", structure.hidden(leaves), placement)
    if (present := present_of(placement, leaves)) is not None:
        weight = jax.tree.map(
            lambda w: map_fn(lambda w, p: jnp.where(p, w, jnp.zeros_like(w)), (w, present), over=placement.name), weight
        )
    weights = _weights_of_leaves(x, weight, placement)
    unique = list({id(w): w for w in weights}.values())
    index = tuple(next(i for i, w in enumerate(unique) if w is vector) for vector in weights)
    # Without this, each small step would be dispatched separately in eager mode.
    alone = _jax_compat.at_top_level() and find_layout(placement) is None
    means = (_compiled_means if alone else _means)(leaves, unique, index, placement, accumulator)
    return structure.unflatten(means)


def _weights_of_leaves(x: object, weight: object, placement: Placement) -> list[Any]:
    vectors, _ = as_arrays("reduce_weighted_mean", "weight", weight)
    wrong = [tuple(w.shape) for w in vectors if tuple(w.shape) != (placement.size,)]
    if wrong:
        message = (
            f'`reduce_weighted_mean` was given `x` from {placement.size} clients of "{placement.name}" but `weight` of '
            f"shape {', '.join(map(str, wrong))}. Each client needs exactly one weight: pass a `weight` of shape "
            f"({placement.size},), or use `reduce_mean(x)` to weight all clients equally."
        )
        raise PlacementError(message)
    try:
        weights = jax.tree.map(jnp.asarray, weight)
        return jax.tree.leaves(jax.tree.map(lambda w, part: jax.tree.map(lambda _: w, part), weights, hide_static(x)))
    except ValueError as error:
        message = (
            f"`reduce_weighted_mean` was given a `weight` with the structure {jax.tree.structure(weight)}, but `x` has "
            f"the structure {jax.tree.structure(x)}. `weight` is one vector for all of `x`, or a pytree that is a "
            f"prefix of `x`: pass one vector of shape ({placement.size},), or one per branch of `x`."
        )
        raise PlacementError(message) from error


def _means(
    leaves: list[Any], vectors: list[Any], index: tuple[int, ...], placement: Placement, accumulator: DTypeLike | None
) -> list[jax.Array]:
    results = [x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.result_type(float) for x in leaves]
    # A 16-bit product of a value and a number of examples would be inexact, or infinite.
    dtypes = [max(dtype, accumulator_of(dtype, accumulator), key=lambda d: d.itemsize) for dtype in results]
    kinds = {(i, dtype): vectors[i].astype(dtype) for i, dtype in zip(index, dtypes, strict=True)}
    keys = list(kinds)

    def weigh(rows: list[Any], *counts: jax.Array) -> list[Any]:
        count_of = dict(zip(keys, counts, strict=True))
        weighed = []
        for row, i, dtype in zip(rows, index, dtypes, strict=True):
            count = count_of[i, dtype]
            weighed.append(jnp.where(count == 0, jnp.zeros_like(row, dtype), row.astype(dtype) * count))
        return weighed

    with jax.named_scope("reduce_weighted_mean"):
        weighed = map_fn(weigh, (leaves, *kinds.values()), over=placement.name)
        totals = reduce_sum(weighed, over=placement.name, accumulator=accumulator)
        sums = reduce_sum([*kinds.values()], over=placement.name, accumulator=accumulator)
        divisors = dict(zip(keys, sums, strict=True))
        means = [_divide(total, divisors[i, dtype]) for total, i, dtype in zip(totals, index, dtypes, strict=True)]
        return [mean.astype(dtype) for mean, dtype in zip(means, results, strict=True)]


_compiled_means = jax.jit(_means, static_argnums=(2, 3, 4))


def _divide(total: jax.Array, weights: jax.Array) -> jax.Array:
    is_zero = weights == 0
    return jnp.where(is_zero, jnp.zeros_like(total), total / jnp.where(is_zero, jnp.ones_like(weights), weights))
