"""FedNova, FedDyn and FedLin: local steps that keep the global optimum as a fixed point."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._local import Trained, has_examples, mean_gradient, split_weight, train_locally
from workbench.federated.algorithms._types import Batch, Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_mean, reduce_weighted_mean


def fednova(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """FedAvg with updates normalised by the number of local steps (FedNova).

    Each update is divided by its number of local steps, and the mean is multiplied by the mean number of steps. Clients
    with more batches no longer bias the solution. Sends as many bytes as `fedavg`, plus one number per client.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        client_optimizer: The clients' optimizer. The normalisation assumes plain SGD, for which the paper's ‖aᵢ‖₁
            is the number of steps.
        server_optimizer: As in `fedavg`.
        aggregator: Combines the normalised updates, as in `fedavg`.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`. Padding steps (see `mask`) are not counted.

    Example:
        >>> algorithm = fednova(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(0.5))
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> float(state.params)
        2.0

    References:
        Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", NeurIPS
        2020 (arXiv 2007.07481), equation 12.
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator

    def train(params: Params, batches: Batches) -> tuple[Trained, Any]:
        trained = train_locally(loss, client_optimizer, params, batches)
        steps = jnp.maximum(trained.steps, jnp.ones_like(trained.steps))
        return trained, jax.tree.map(lambda x: x / steps.astype(x.dtype), trained.update)

    @program(clients=clients)
    def fednova_round(state: ServerState, client_batches: ClientBatches) -> tuple[ServerState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state=combiner.per_client and "fednova")
        trained, per_step = map_fn(train, (broadcast(state.params), batches))
        squared_drift = map_fn(lambda client: client.squared_drift, (trained,))
        update, aggregation = combiner.combine(per_step, weight, state.aggregation)
        value, drift, steps = reduce_weighted_mean((trained.loss, squared_drift, trained.steps), weight)
        update = jax.tree.map(lambda x: x * steps.astype(x.dtype), update)
        return server_step(server, state, update, aggregation), {"loss": value, "squared_drift": drift}

    return Algorithm(name="FedNova", init=with_server_optimizer(server, combiner, clients), round=fednova_round)


class FedDynState(NamedTuple):
    """State of the server (`params`, `correction`) and of each client (`duals`, `[clients, ...]`)."""

    params: Params
    correction: PyTree[Array]
    duals: PyTree[Array]


def feddyn(loss: Loss, *, clients: int, learning_rate: float, alpha: float) -> Algorithm:
    """Adds linear and quadratic terms that align local minima with the global one (FedDyn).

    A client minimises `loss − ⟨λᵢ, w⟩ + α/2 ‖w − w_server‖²` and keeps λᵢ. Sends as many bytes as `fedavg`.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients. Clients with weight 0 are absent from a round and keep their duals; all other
            clients have the same weight, as in the paper. If each round samples a cohort, build the algorithm with
            `in_cohorts`.
        learning_rate: The clients' learning rate.
        alpha: α, the strength of the quadratic term, above 0.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`.

    Example:
        >>> algorithm = feddyn(lambda w, x: (w - x) ** 2, clients=2, learning_rate=0.25, alpha=1.0)
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> state.duals.tolist(), float(state.params)  # λᵢ = −α (wᵢ − w); the mean of wᵢ, less h / α
        ([-0.5, -1.5], 2.0)

    References:
        Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021 (arXiv 2111.04263), Algorithm 1.
    """
    return _feddyn(loss, clients, clients, learning_rate, alpha)


def _feddyn(loss: Loss, clients: int, population: int, learning_rate: float, alpha: float) -> Algorithm:
    optimizer = optax.sgd(learning_rate)

    def train(params: Params, dual: object, present: jax.Array, batches: Batches) -> PyTree[Array]:
        def corrected(local: Params, gradient: Params) -> PyTree[Array]:
            return jax.tree.map(lambda g, d, w, start: g - d + alpha * (w - start), gradient, dual, local, params)

        trained = train_locally(loss, optimizer, params, batches, corrected)
        took_part = present & (trained.steps > 0)
        update = jax.tree.map(lambda x: jnp.where(took_part, x, jnp.zeros_like(x)), trained.update)
        new_dual = jax.tree.map(lambda d, x: d - alpha * x, dual, update)
        return (update, trained.loss, trained.squared_drift), update, new_dual, took_part

    @program(clients=clients)
    def feddyn_round(state: FedDynState, client_batches: ClientBatches) -> tuple[FedDynState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="feddyn")
        present = map_fn(lambda w: w > 0, (weight,))
        results, update, duals, took_part = map_fn(train, (broadcast(state.params), state.duals, present, batches))
        mean, value, drift = reduce_mean(results, where=took_part)
        # Over the whole population, present or not: α / m times the sum over the participating clients.
        scale = alpha * clients / population
        correction = jax.tree.map(lambda h, x: h - scale * x, state.correction, reduce_mean(update))
        params = jax.tree.map(lambda w, x, h: w + x - h / alpha, state.params, mean, correction)
        return FedDynState(params, correction, duals), {"loss": value, "squared_drift": drift}

    @program(clients=clients)
    def init(params: Params) -> FedDynState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return FedDynState(params, zeros, broadcast(zeros))

    def part_of(population: int) -> Algorithm:
        return _feddyn(loss, clients, population, learning_rate, alpha)

    return Algorithm(name="FedDyn", init=init, round=feddyn_round, part_of=part_of)


def fedlin(
    loss: Loss,
    *,
    clients: int,
    learning_rate: float,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Corrects local steps by the difference between mean and client gradients (FedLin).

    The only fixed point is the point where the mean gradient is 0, for any number of local steps and any heterogeneity.
    For strongly convex losses, convergence is linear with a constant learning rate. Sends twice as many bytes as
    `fedavg` each way, in two exchanges.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        learning_rate: η; a client with τ real batches uses step size η / τ, so that clients with more batches do not
            have more influence.
        server_optimizer: As in `fedavg`.
        aggregator: As in `fedavg`; gradients are averaged by weight.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`.

    Example:
        >>> algorithm = fedlin(lambda w, x: (w - x) ** 2, clients=2, learning_rate=0.25)
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> float(state.params)
        1.0

    References:
        Mitra et al., "Linear Convergence in Federated Learning: Tackling Client Heterogeneity and Sparse Gradients",
        NeurIPS 2021 (arXiv 2102.07053), Algorithm 1 without compression.
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    unit = optax.sgd(1.0)

    def train(shared: Params, batches: Batches) -> Trained:
        params, common = shared
        count = jnp.maximum(jax.vmap(has_examples)(batches).sum(), 1)
        gradient_of = jax.grad(loss)

        def corrected_loss(local: Params, batch: Batch) -> jax.Array:
            # The gradient of this is ∇fᵢ(w) − ∇fᵢ(w̄) + ∇f(w̄), for the same batch.
            fixed = jax.tree.map(lambda g, c: jax.lax.stop_gradient(c - g), gradient_of(params, batch), common)
            linear = [jnp.vdot(f, w) for f, w in zip(jax.tree.leaves(fixed), jax.tree.leaves(local), strict=True)]
            shift = sum(linear[1:], linear[0])
            return loss(local, batch) + shift - jax.lax.stop_gradient(shift)

        def scaled(_: object, gradient: Params) -> PyTree[Array]:
            return jax.tree.map(lambda g: g * learning_rate / count.astype(g.dtype), gradient)

        return train_locally(corrected_loss, unit, params, batches, scaled)

    @program(clients=clients)
    def fedlin_round(state: ServerState, client_batches: ClientBatches) -> tuple[ServerState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state=combiner.per_client and "fedlin")
        shared = broadcast(state.params)
        gradients = map_fn(lambda params, b: mean_gradient(loss, params, b), (shared, batches))
        common = broadcast(reduce_weighted_mean(gradients, weight))
        trained = map_fn(train, ((shared, common), batches))
        squared_drift = map_fn(lambda client: client.squared_drift, (trained,))
        update, aggregation = combiner.combine(trained.update, weight, state.aggregation)
        value, drift = reduce_weighted_mean((trained.loss, squared_drift), weight)
        return server_step(server, state, update, aggregation), {"loss": value, "squared_drift": drift}

    return Algorithm(name="FedLin", init=with_server_optimizer(server, combiner, clients), round=fedlin_round)
