"""Aggregators: functions that combine the updates of all clients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from workbench._types import PyTree
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, map_fn, program, reduce_by_key, reduce_weighted_mean


class Aggregator(NamedTuple):
    """A stateful reduction, analogous to `optax.GradientTransformation`.

    Both functions run inside a program. Clients with weight 0 are absent from the round.

    Attributes:
        name: Name of the aggregator.
        init: `init(params)` returns the state before the first round.
        combine: `combine(update, weight, state)` takes one update per client (leaves `[clients, ...]`) and one weight
            per client, and returns one update at the server and the next state.
        bounded: Whether the norm of a client's contribution to the sum is at most the norm of that client's update,
            regardless of the other clients. The inner aggregator of `gaussian_mean` must be bounded.
        per_client: Whether the state has a row for each client, such as the unsent part of that client's update.
    """

    name: str
    init: Callable[[Params], Any]
    combine: Callable[[ClientParams, Weights, Any], tuple[Params, Any]]
    bounded: bool = False
    per_client: bool = False


def weighted_mean() -> Aggregator:
    """Averages updates by client weight (plain federated averaging).

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
    """Gathers every client's value at the server, `[clients, ...]`.

    Use it for reductions that are not sums, such as a median. The gather is a sum by key with one key per client. Each
    client sends as many bytes as for a mean. The server stores all values, and devices exchange `clients` times as many
    bytes as for a mean.
    """
    return reduce_by_key(rows, jnp.arange(clients, dtype=jnp.int32), clients)


def of_present(update: ClientParams, weight: Weights) -> tuple[PyTree[Array], Weights]:
    """Replaces the updates of absent clients, which may be NaN, by zeros; also returns the weights as floats."""
    weight = weight if jnp.issubdtype(weight.dtype, jnp.floating) else weight.astype(jnp.result_type(float))

    def replace(row: PyTree[Array], weight: Array) -> PyTree[Array]:
        return jax.tree.map(lambda x: jnp.where(weight > 0, x, jnp.zeros_like(x)), row)

    return map_fn(replace, (update, weight)), weight


def wide(x: Array) -> Array:
    """Converts narrow floats to float32: the square of a small float16 is 0, and sums in 16 bits omit small terms."""
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def squared_norm(tree: PyTree[Array]) -> Float[Array, ""]:
    """Computes the squared norm of a pytree, in at least float32."""
    leaves = [wide(leaf) for leaf in jax.tree.leaves(tree)]
    squares = [jnp.vdot(leaf, leaf).real for leaf in leaves]
    return sum(squares[1:], squares[0])


def at_every_client(value: object, clients: int) -> PyTree[Array]:
    """Repeats a value for every client, inside or outside a program."""
    with program(clients=clients):
        return broadcast(value)
