"""FedBuff: asynchronous clients; the server takes a step when its buffer is full."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._local import split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_mean, reduce_weighted_mean


class FedBuffState(NamedTuple):
    """Server state and step count, with each client's model and age (`[clients, ...]`)."""

    server: ServerState
    step: jax.Array
    fetched: PyTree[Array]
    fetched_at: jax.Array

    @property
    def params(self) -> Params:
        """The parameters at the server."""
        return self.server.params


def fedbuff(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Asynchronous federated averaging with a buffer, one server step per round.

    In each round, the clients whose weight in the batches is above 0 fill the buffer. Each of these clients has trained
    from the parameters that it fetched at its last delivery; it then fetches the new parameters. An update that is `s`
    server steps old is scaled by 1 / √(1 + s). If all clients deliver in every round, this is `fedavg`. Sends as many
    bytes as `fedavg`.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients.
        client_optimizer: The clients' optimizer.
        server_optimizer: The server's optimizer, which receives the mean of the scaled updates as a pseudo-gradient.
            Default: `optax.sgd(1.0)`.
        aggregator: Combines the scaled updates, as in `fedavg`.

    Returns:
        The algorithm, with batches as in `fedavg`, and the metrics `loss`, `squared_drift` and `staleness`. The
        staleness is the mean age of the delivered updates in server steps.

    Example:
        >>> def loss(w, batch):
        ...     return ((w - batch["x"]) ** 2).mean()
        >>> algorithm = fedbuff(loss, clients=2, client_optimizer=optax.sgd(0.5))
        >>> batches, state = {"x": jnp.array([[[1.0]], [[3.0]]])}, algorithm.init(jnp.float32(0))
        >>> state, _ = algorithm.round(state, {**batches, "weight": jnp.array([1.0, 0.0])})
        >>> state, metrics = algorithm.round(state, {**batches, "weight": jnp.array([0.0, 1.0])})
        >>> float(metrics["staleness"]), round(float(state.params), 3)  # 1, and 3 / √2 on top
        (1.0, 3.121)

    References:
        Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (arXiv 2106.06639),
        Algorithm 1, and section 5 for the scaling by staleness.
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    init_server = with_server_optimizer(server, combiner, clients)

    def train(params: Params, age: jax.Array, batches: Batches) -> PyTree[Array]:
        trained = train_locally(loss, client_optimizer, params, batches)
        scale = 1 / jnp.sqrt(1 + age)
        update = jax.tree.map(lambda x: x * scale.astype(x.dtype), trained.update)
        return update, (trained.loss, trained.squared_drift, age)

    @program(clients=clients)
    def fedbuff_round(state: FedBuffState, client_batches: ClientBatches) -> tuple[FedBuffState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="fedbuff")
        step = broadcast(state.step)
        age = map_fn(lambda now, at: (now - at).astype(jnp.result_type(float)), (step, state.fetched_at))
        update, results = map_fn(train, (state.fetched, age, batches))
        delivers = map_fn(lambda w: w > 0, (weight,))
        update, aggregation = combiner.combine(update, weight, state.server.aggregation)
        value, drift = reduce_weighted_mean(results[:2], weight)
        staleness = reduce_mean(results[2], where=delivers)
        after = server_step(server, state.server, update, aggregation)

        def fetch(delivers: jax.Array, new: object, old: object) -> PyTree[Array]:
            return jax.tree.map(lambda n, o: jnp.where(delivers, n, o), new, old)

        new = (broadcast(after.params), broadcast(state.step + 1))
        fetched, fetched_at = map_fn(fetch, (delivers, new, (state.fetched, state.fetched_at)))
        metrics = {"loss": value, "squared_drift": drift, "staleness": staleness}
        return FedBuffState(after, state.step + 1, fetched, fetched_at), metrics

    @program(clients=clients)
    def init(params: Params) -> FedBuffState:
        return FedBuffState(init_server(params), jnp.int32(0), broadcast(params), broadcast(jnp.int32(0)))

    return Algorithm(name="FedBuff", init=init, round=fedbuff_round)
