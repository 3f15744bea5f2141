"""Krum, Bulyan and the geometric median: robust means of whole update vectors."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, gather_rows, of_present, wide
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, map_fn, reduce_weighted_mean


def krum(byzantine: int, *, chosen: int = 1) -> Aggregator:
    """Selects the update closest to its neighbours, or averages several (Multi-Krum).

    The score of a client is the sum of the squared distances to its `present − byzantine − 2` nearest neighbours. Every
    client's update is sent to the server, which compares all pairs. All present clients have the same weight.

    Args:
        byzantine: f, the maximum number of Byzantine clients. The guarantee requires 2 f + 2 < present clients.
        chosen: m, the number of lowest-score updates to average (Multi-Krum).

    Raises:
        ProgramError: if there are fewer clients than the guarantee requires.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=5):
        ...     update, _ = krum(1).combine(jnp.array([1.0, 1.1, 0.9, 1.0, 1e6]), jnp.ones(5), ())
        >>> round(float(update), 1)
        1.0

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017
        (arXiv 1703.02757), section 4.
    """

    def combine(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
        clients = weight.shape[0]
        _check("krum", clients, byzantine, 2 * byzantine + 3, "2 f + 3")
        rows, present, unravel = _flat_rows(update, weight)
        order = jnp.argsort(_scores(_squared_distances(rows), present, byzantine))
        count = jnp.minimum(chosen, present.sum())
        mask = (jnp.arange(clients) < count)[:, None]
        mean = jnp.where(mask, rows[order], jnp.zeros_like(rows)).sum(0) / jnp.maximum(count, 1).astype(rows.dtype)
        return unravel(mean), state

    return Aggregator("Krum" if chosen == 1 else f"Multi-Krum {chosen}", lambda params: (), combine)


def bulyan(byzantine: int) -> Aggregator:
    """Selects `present − 2 f` updates with Krum, then averages coordinates near their median.

    For each coordinate, the mean is over the `present − 4 f` selected values closest to their median. Every client's
    update is sent to the server. All present clients have the same weight.

    Args:
        byzantine: f, the maximum number of Byzantine clients. The guarantee requires at least 4 f + 3 present clients.

    Raises:
        ProgramError: if there are fewer clients than the guarantee requires.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=7):
        ...     update, _ = bulyan(1).combine(jnp.array([1.0, 2.0, 3.0, 2.0, 2.0, 2.0, 1e6]), jnp.ones(7), ())
        >>> float(update)
        2.0

    References:
        El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018
        (arXiv 1802.07927), section 4.
    """

    def combine(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
        clients = weight.shape[0]
        _check("bulyan", clients, byzantine, 4 * byzantine + 3, "4 f + 3")
        rows, present, unravel = _flat_rows(update, weight)
        distances = _squared_distances(rows)
        theta = jnp.maximum(present.sum() - 2 * byzantine, 1)

        def choose(candidates: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            best = jnp.argmin(_scores(distances, candidates, byzantine))
            selection = candidates & (jnp.arange(clients) == best) & (number < theta)
            return candidates & ~selection, selection

        _, chosen = jax.lax.scan(choose, present, jnp.arange(clients))
        chosen = chosen.any(0)[:, None]
        last = jnp.sort(jnp.where(chosen, rows, jnp.full_like(rows, jnp.inf)), axis=0)
        low, high = (theta - 1) // 2, theta // 2
        median = (last[low] + last[high]) / 2
        nearness = jnp.where(chosen, jnp.abs(rows - median[None, :]), jnp.full_like(rows, jnp.inf))
        rank = jnp.argsort(jnp.argsort(nearness, axis=0), axis=0)
        beta = jnp.maximum(theta - 2 * byzantine, 1)
        total = jnp.where(rank < beta, jnp.where(chosen, rows, jnp.zeros_like(rows)), jnp.zeros_like(rows)).sum(0)
        return unravel(total / beta.astype(rows.dtype)), state

    return Aggregator("Bulyan", lambda params: (), combine)


def geometric_median(*, iterations: int = 8, smoothing: float = 1e-6) -> Aggregator:
    """Computes the weighted geometric median of the updates without gathering them.

    Each iteration broadcasts the current point and computes one weighted mean. The algorithm needs only sums, which
    secure aggregation can provide, and sends as many bytes as `iterations + 1` means. The result is robust as long as
    Byzantine clients have less than half of the total weight.

    Args:
        iterations: Number of iterations of the smoothed Weiszfeld algorithm, starting from the mean.
        smoothing: ν, the smallest distance used as a divisor.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=3):
        ...     update, _ = geometric_median(iterations=50).combine(jnp.array([1.0, 2.0, 1e3]), jnp.ones(3), ())
        >>> round(float(update), 2)
        2.0

    References:
        Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE TSP 2022 (arXiv 1912.13445),
        Algorithm 2.
    """

    def nearness(row: object, point: object, weight: jax.Array) -> jax.Array:
        pairs = zip(jax.tree.leaves(row), jax.tree.leaves(point), strict=True)
        squares = [(wide(a - b) ** 2).sum() for a, b in pairs]
        total = sum(squares[1:], squares[0])
        distance = jnp.sqrt(jnp.maximum(total, jnp.full_like(total, smoothing**2)))  # sqrt has no derivative at 0
        return weight.astype(distance.dtype) / distance

    def combine(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
        update, weight = of_present(update, map_fn(_finite_weight, (update, weight)))
        point = reduce_weighted_mean(update, weight)
        for _ in range(iterations):
            closer = map_fn(nearness, (update, broadcast(point), weight))
            point = reduce_weighted_mean(update, closer)
        return point, state

    return Aggregator("geometric median", lambda params: (), combine)


def _finite_weight(row: PyTree[Array], weight: jax.Array) -> jax.Array:
    """Returns a client's weight, or 0 if its update is not finite."""
    finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(row)]
    return jnp.where(jnp.stack(finite).all(), weight, jnp.zeros_like(weight))


def _check(name: str, clients: int, byzantine: int, needed: int, rule: str) -> None:
    if byzantine < 0 or clients < needed:
        message = (
            f"`{name}` received byzantine={byzantine} for {clients} clients. `{name}` tolerates f Byzantine clients "
            f"only if there are at least {rule} clients: pass a smaller `byzantine`, or use `median()` or "
            "`geometric_median()`."
        )
        raise ProgramError(message)


def _flat_rows(update: PyTree[Array], weight: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    """Gathers updates as `[clients, size]`; also returns whether each client is present, and `unravel`."""
    clients = weight.shape[0]
    rows, present = gather_rows((update, weight > 0), clients)
    _, unravel = ravel_pytree(jax.tree.map(lambda x: x[0], rows))
    flat = jax.vmap(lambda row: ravel_pytree(row)[0])(rows)
    return flat, present > 0, unravel


def _squared_distances(rows: jax.Array) -> jax.Array:
    # Use differences, not a Gram matrix: for long vectors that are close together, the Gram matrix loses precision by
    # cancellation.
    rows = wide(rows)
    return jax.lax.map(lambda row: ((rows - row[None, :]) ** 2).sum(-1), rows)


def _scores(distances: jax.Array, present: jax.Array, byzantine: int) -> jax.Array:
    """Computes the Krum scores of present clients; absent clients have score infinity."""
    clients = len(present)
    pair_mask = present[None, :] & present[:, None] & ~jnp.eye(clients, dtype=bool)
    # Distances that overflow or are NaN count as large: such an update must not appear close to its neighbours.
    largest = float(jnp.finfo(distances.dtype).max) / clients
    bounded = jnp.where(distances <= largest, distances, jnp.full_like(distances, largest))
    near = jnp.sort(jnp.where(pair_mask, bounded, jnp.full_like(distances, jnp.inf)), axis=1)
    count = jnp.clip(present.sum() - byzantine - 2, 1, jnp.maximum(present.sum() - 1, 0))
    counted = (jnp.arange(clients) < count)[None, :]
    score = jnp.where(counted & jnp.isfinite(near), near, jnp.zeros_like(near)).sum(1)
    return jnp.where(present, score, jnp.full_like(score, jnp.inf))
