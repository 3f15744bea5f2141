"""Aggregators: functions that combine the updates of many clients, and replace the last step of an algorithm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, program, reduce_by_key, reduce_weighted_mean


class Aggregator(NamedTuple):
    """A reduction with a memory: what `optax.GradientTransformation` is to gradients.

    Both functions run inside a program. Clients of weight 0 are absent from the round.

    Attributes:
        name: What it is called.
        init: `init(params)` makes the state before the first round.
        combine: `combine(update, weight, state)` takes one update per client (leaves `[clients, ...]`) and one weight
            per client, and returns one update at the server and the next state.
        bounded: Whether no client adds a larger norm than that of its own update, whatever the others hold; what
            `gaussian_mean` asks of what it is put around.
        per_client: Whether the state has a row for each client, such as a memory of what was not sent.
    """

    name: str
    init: Callable[[Params], Any]
    combine: Callable[[ClientParams, Weights, Any], tuple[Params, Any]]
    bounded: bool = False
    per_client: bool = False


def weighted_mean() -> Aggregator:
    """Every client counts by its weight: plain federated averaging.

    Example:
        >>> with program(clients=2):
        ...     update, _ = weighted_mean().combine(jnp.array([1.0, 4.0]), jnp.array([3.0, 1.0]), ())
        >>> float(update)
        1.75

    References:
        McMahan et al., AISTATS 2017, Algorithm 1.
    """
    return Aggregator("mean", lambda params: (), _weighted, bounded=True)


def _weighted(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
    return reduce_weighted_mean(update, weight), state


def gather_rows(rows: PyTree[Array], clients: int) -> PyTree[Array]:
    """Every client's own value at the server, `[clients, ...]`: for what is not a sum, such as a median.

    As a reduction it is a sum by key, in which each client is a key of its own. It moves the same bytes from each
    client as a mean does, but the server holds them all, and between devices it costs `clients` times as much.
    """
    return reduce_by_key(rows, jnp.arange(clients, dtype=jnp.int32), clients)


def at_every_client(value: object, clients: int) -> PyTree[Array]:
    """The same value at every client, also outside of a program."""
    with program(clients=clients):
        return broadcast(value)
