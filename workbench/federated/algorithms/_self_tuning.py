"""Hypergradients: derivatives of the result of several rounds with respect to settings."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from workbench._types import PyTree
from workbench.federated.algorithms._algorithm import Algorithm
from workbench.federated.algorithms._types import ClientBatches, Metrics, Params


def hypergradient(
    make: Callable[[Any], Algorithm], objective: Callable[[Any], jax.Array], *, rounds: int
) -> Callable[[Any, Any, Any], tuple[jax.Array, Any]]:
    """Differentiates the result of several rounds with respect to settings, such as learning rates.

    The rounds are a scan whose body is recomputed in the backward pass (`jax.checkpoint`), so only one state per round
    is stored.

    Args:
        make: Function that builds the algorithm from the settings (tracers), such as
            `lambda lr: fedavg(..., optax.sgd(lr))`.
        objective: `objective(params)`, a scalar such as the mean loss on held-out examples. The objective may be a
            program.
        rounds: Number of rounds to differentiate through.

    Returns:
        A function `(settings, params, client_batches)` that returns the objective after the rounds and its derivative,
        with the structure of `settings`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from workbench.federated.algorithms import fedavg
        >>> def make(lr):
        ...     return fedavg(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(lr))
        >>> tune = hypergradient(make, lambda w: w**2, rounds=1)
        >>> _, slope = tune(jnp.float32(0.25), jnp.float32(0), jnp.array([[1.0], [3.0]]))
        >>> float(slope)  # w = 4 lr, so d(w²)/d(lr) = 32 lr
        8.0

    References:
        Rush et al., "Federated Automatic Differentiation", arXiv 2301.07806, section 5 (self-tuning algorithms).
    """

    def outcome(settings: object, params: Params, client_batches: ClientBatches) -> jax.Array:
        algorithm = make(settings)

        @jax.checkpoint
        def one_round(state: PyTree[Array], _: None) -> tuple[Any, None]:
            return algorithm.round(state, client_batches)[0], None

        state, _ = jax.lax.scan(one_round, algorithm.init(params), None, length=rounds)
        return objective(algorithm.params_of(state))

    return jax.value_and_grad(outcome)


def reweighted(algorithm: Algorithm, weight: Float[Array, " clients"]) -> Algorithm:
    """Replaces the client weights of an algorithm's batches by `weight`.

    With `hypergradient`, the weights can be settings, as in `lambda s: reweighted(fedavg(...), jax.nn.softmax(s))`.

    Args:
        algorithm: An algorithm whose round takes a dictionary of batches.
        weight: Weight of each client, `[clients]`, non-negative.

    Returns:
        The algorithm, with a new `round`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from workbench.federated.algorithms import fedavg
        >>> algorithm = fedavg(lambda w, b: (w - b["x"]) ** 2, clients=2, client_optimizer=optax.sgd(0.5))
        >>> only_second = reweighted(algorithm, jnp.array([0.0, 1.0]))
        >>> state, _ = only_second.round(algorithm.init(jnp.float32(0)), {"x": jnp.array([[1.0], [3.0]])})
        >>> float(state.params)
        3.0

    References:
        Rush et al., "Federated Automatic Differentiation", arXiv 2301.07806, section 5.
    """

    def round(state: PyTree[Array], client_batches: ClientBatches) -> tuple[Any, Metrics]:
        return algorithm.round(state, {**client_batches, "weight": weight})

    return dataclasses.replace(algorithm, round=round)
