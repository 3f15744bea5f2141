"""Robust means, which bound the influence of a few Byzantine clients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, gather_rows
from workbench.federated.algorithms._types import ClientParams, Params, Weights


def median() -> Aggregator:
    """Computes the coordinate-wise median of the clients' updates.

    The result is robust as long as fewer than half of the clients are Byzantine. Every client's update is sent to the
    server, which sorts the updates. All present clients have the same weight.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=3):
        ...     update, _ = median().combine(jnp.array([1.0, 2.0, 1e9]), jnp.ones(3), ())
        >>> float(update)
        2.0

    References:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018
        (arXiv 1803.01498), Algorithm 1, option I.
    """
    return Aggregator("median", lambda params: (), _of_sorted(_median_weights))


def trimmed_mean(share: float = 0.1) -> Aggregator:
    """Computes the coordinate-wise mean without the smallest and largest updates.

    The result is robust as long as at most a fraction `share` of the clients is Byzantine. Every client's update is
    sent to the server, which sorts the updates. All present clients have the same weight.

    Args:
        share: Share of the present clients to leave out at each end (rounded down), at least 0 and below 0.5.

    Raises:
        ProgramError: if `share` leaves no client.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=4):
        ...     update, _ = trimmed_mean(0.25).combine(jnp.array([-1e9, 1.0, 2.0, 1e9]), jnp.ones(4), ())
        >>> float(update)
        1.5

    References:
        Yin et al., ICML 2018 (arXiv 1803.01498), Algorithm 1, option II (β is `share`).
    """
    if not 0 <= share < 0.5:
        message = (
            f"`trimmed_mean` was given share={share}, which is not a fraction or leaves no client in the middle. "
            "`share` is the fraction of the values that the mean discards at each end: pass a number of at least 0 and "
            "below 0.5, such as 0.1, or use `median()`."
        )
        raise ProgramError(message)

    def keep_middle(position: jax.Array, present: jax.Array) -> jax.Array:
        # A float32 product such as 0.1 × 10 may be slightly below the intended integer.
        cut = jnp.floor(share * present + 1e-4)
        return ((position >= cut) & (position < present - cut)).astype(present.dtype)

    return Aggregator("trimmed mean", lambda params: (), _of_sorted(keep_middle))


def _median_weights(position: jax.Array, present: jax.Array) -> jax.Array:
    low, high = jnp.floor((present - 1) / 2), jnp.ceil((present - 1) / 2)
    return ((position >= low) & (position <= high) & (position < present)).astype(present.dtype)


def _of_sorted(weigh: Callable) -> Callable:
    """Creates a `combine` function that averages sorted rows of present clients, weighted by position."""

    def combine(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
        clients = weight.shape[0]
        rows, present = gather_rows((update, weight > 0), clients)
        present = present > 0
        weights = weigh(jnp.arange(clients, dtype=jnp.float32), present.sum().astype(jnp.float32))

        def middle(x: jax.Array) -> jax.Array:
            shape = (clients,) + (1,) * (x.ndim - 1)
            last = jnp.where(present.reshape(shape), x, jnp.full_like(x, jnp.inf))
            chosen = weights.reshape(shape) > 0
            total = jnp.where(chosen, jnp.sort(last, axis=0), jnp.zeros_like(x)).sum(0)
            return total / jnp.maximum(weights.sum(), 1).astype(x.dtype)

        return jax.tree.map(middle, rows), state

    return combine
