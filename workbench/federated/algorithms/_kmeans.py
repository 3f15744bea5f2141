"""k-means over clients, a classic example of learning with MapReduce."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from workbench._types import PyTree
from workbench.federated.algorithms._algorithm import Algorithm
from workbench.federated.algorithms._types import Metrics
from workbench.primitives import broadcast, map_fn, program, reduce_sum


def kmeans(*, clients: int) -> Algorithm:
    """Runs Lloyd's algorithm on points that stay with their clients.

    In a round, every client receives the centres and sends one sum and one count per centre. The result equals that of
    Lloyd's algorithm on the pooled points, regardless of how the points are distributed over clients.

    Args:
        clients: Number of clients with points.

    Returns:
        The algorithm. The state is the centres `[k, dims]`. A round takes points `[clients, points, dims]`, or a
        dictionary with the points as `x` and a `mask` `[clients, points]`. The round returns the metric `inertia`, the
        mean squared distance of a point to its centre before the round. A centre without points does not move.

    Example:
        >>> algorithm = kmeans(clients=2)
        >>> points = jnp.array([[[0.0], [1.0]], [[9.0], [11.0]]])
        >>> centres, _ = algorithm.round(algorithm.init(jnp.array([[0.0], [8.0]])), points)
        >>> centres.tolist()
        [[0.5], [10.0]]

    References:
        Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 1982; Chu et al., "Map-Reduce for Machine
        Learning on Multicore", NIPS 2006, section 4.
    """

    @program(clients=clients)
    def kmeans_round(centres: jax.Array, client_points: PyTree[Array]) -> tuple[Any, Metrics]:
        points, mask = _points_and_mask(client_points)
        sums, counts, distance = reduce_sum(map_fn(_assign, (broadcast(centres), points, mask)))
        moved = sums / jnp.maximum(counts, 1)[:, None]
        total = jnp.maximum(counts.sum(), 1)
        return jnp.where(counts[:, None] > 0, moved, centres), {"inertia": distance / total}

    return Algorithm(
        name="k-means", init=lambda centres: centres, round=kmeans_round, params_of=lambda centres: centres
    )


def _points_and_mask(client_points: PyTree[Array]) -> tuple[Any, Any]:
    if isinstance(client_points, dict):
        return client_points["x"], client_points["mask"]
    return client_points, jnp.ones(client_points.shape[:2], bool)


def _assign(
    centres: Float[Array, " k dims"], points: Float[Array, " points dims"], mask: Bool[Array, " points"]
) -> tuple[Float[Array, " k dims"], Float[Array, " k"], Float[Array, ""]]:
    """Computes one client's sums and counts per centre, and its total squared distance."""
    squared = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
    nearest = jax.nn.one_hot(squared.argmin(-1), centres.shape[0], dtype=points.dtype)
    member = nearest * mask[:, None].astype(points.dtype)
    return member.T @ points, member.sum(0), jnp.where(mask, squared.min(-1), jnp.zeros_like(points[:, 0])).sum()
