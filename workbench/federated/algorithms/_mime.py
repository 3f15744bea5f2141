"""MimeLite: clients use the server's optimizer state without changing it."""

import jax
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, weighted_mean
from workbench.federated.algorithms._algorithm import (
    Algorithm,
    Loss,
    ServerState,
    optimizer_step,
    with_server_optimizer,
)
from workbench.federated.algorithms._local import mean_gradient, split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


def mime_lite(
    loss: Loss,
    *,
    clients: int,
    optimizer: optax.GradientTransformation,
    server_learning_rate: float = 1.0,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Trains clients with the server's momentum (or Adam moments), fixed during a round.

    Every client applies the server's optimizer statistics unchanged in each local step. The server updates the
    statistics with the clients' mean gradient at the server's parameters. In a round, every client receives parameters
    and statistics and sends an update and a gradient. Clients compute every gradient twice.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        optimizer: The base optimizer with its learning rate, such as `optax.sgd(lr, momentum=0.9)` or `optax.adam(lr)`.
        server_learning_rate: Factor for the mean update; 1 in the paper.
        aggregator: Combines the updates, as in `fedavg`; gradients are averaged by weight.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`.

    Example:
        >>> algorithm = mime_lite(lambda w, x: (w - x) ** 2, clients=2, optimizer=optax.sgd(0.25, momentum=0.5))
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> float(state.params), float(jax.tree.leaves(state.optimizer)[0])  # the momentum is the mean gradient at 0
        (1.0, -4.0)

    References:
        Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", 2020
        (arXiv 2008.03606), Algorithm 1, MimeLite.
    """
    combiner = weighted_mean() if aggregator is None else aggregator

    def train(shared: Params, batches: Batches) -> PyTree[Array]:
        params, statistics = shared

        def step_of(
            updates: PyTree[Array], state: PyTree[Array], params: Params = None
        ) -> tuple[PyTree[Array], PyTree[Array]]:
            return optimizer.update(updates, statistics, params)[0], state  # the statistics are not updated here

        fixed = optax.GradientTransformation(lambda params: (), step_of)
        trained = train_locally(loss, fixed, params, batches)
        return trained.update, (mean_gradient(loss, params, batches), trained.loss, trained.squared_drift)

    @program(clients=clients)
    def mime_round(state: ServerState, client_batches: ClientBatches) -> tuple[ServerState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state=combiner.per_client and "mime_lite")
        update, results = map_fn(train, (broadcast((state.params, state.optimizer)), batches))
        update, aggregation = combiner.combine(update, weight, state.aggregation)
        gradient, value, drift = reduce_weighted_mean(results, weight)
        _, statistics = optimizer_step(optimizer, gradient, state.optimizer, state.params)
        params = jax.tree.map(lambda x, by: x + server_learning_rate * by, state.params, update)
        return ServerState(params, statistics, aggregation), {"loss": value, "squared_drift": drift}

    return Algorithm(name="Mime-lite", init=with_server_optimizer(optimizer, combiner, clients), round=mime_round)
