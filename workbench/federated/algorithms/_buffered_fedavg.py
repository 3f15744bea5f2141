"""FedBuff steps for a large population of clients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step
from workbench.federated.algorithms._local import split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


class BufferedState(NamedTuple):
    """The server's state and its latest parameters, newest first (`[versions, ...]`)."""

    server: ServerState
    versions: PyTree[Array]


def buffered_fedavg(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation | None = None,
    versions: int = 8,
    exponent: float = 0.5,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Federated averaging whose server takes one step per buffer of results.

    Each buffer may contain different clients; `fedbuff` follows a fixed set of clients. The server keeps the latest
    versions of its parameters.

    The update of a client that started `s` server steps ago is scaled by `(1 + s) ** -exponent`. The program trains the
    clients of a buffer together, each from the version with which it started. In a real system each client receives
    only one version, so use a plan of `fedavg` to find the bytes of one client.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of results in the buffer.
        client_optimizer: The clients' optimizer.
        server_optimizer: The server's optimizer, which receives the mean update as a pseudo-gradient. Default:
            `optax.sgd(1.0)`.
        versions: Number of versions that the server keeps. Clients with an older version are treated as if they had
            started from the oldest version kept.
        exponent: Discount exponent for stale results; 0 gives all results the same weight.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm. A round takes batches `[clients, steps, ...]` in a dictionary, with `staleness` `[clients]`
        (integers, which `population.train` adds) and optionally `weight`. A round returns the metrics `loss` and
        `staleness`, both weighted means.

    Example:
        >>> sgd = optax.sgd(0.5)
        >>> algorithm = buffered_fedavg(lambda w, b: (w - b["x"]) ** 2, clients=2, client_optimizer=sgd, versions=2)
        >>> batches = {"x": jnp.array([[1.0], [3.0]]), "staleness": jnp.array([0, 1])}
        >>> state, metrics = algorithm.round(algorithm.init(jnp.float32(0)), batches)
        >>> round(float(algorithm.params_of(state)), 3)  # (1 + 3 / √2) / 2
        1.561

    References:
        Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (arXiv 2106.06639),
        Algorithm 1; the scale is from its section 5.
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator

    def train(params: Params, staleness: jax.Array, batches: Batches) -> PyTree[Array]:
        start = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, staleness, keepdims=False), params)
        trained = train_locally(loss, client_optimizer, start, batches)
        scale = (1 + staleness.astype(jnp.float32)) ** -exponent
        update = jax.tree.map(lambda x: x * scale.astype(x.dtype), trained.update)
        return update, trained.loss, staleness.astype(jnp.float32)

    @program(clients=clients)
    def buffered_round(state: BufferedState, client_batches: ClientBatches) -> tuple[BufferedState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state=combiner.per_client and "buffered_fedavg")
        staleness = jnp.clip(batches["staleness"], 0, versions - 1)
        batches = {name: batch for name, batch in batches.items() if name != "staleness"}
        update, losses, ages = map_fn(train, (broadcast(state.versions), staleness, batches))
        mean, aggregation = combiner.combine(update, weight, state.server.aggregation)
        value, age = reduce_weighted_mean((losses, ages), weight)
        after = server_step(server, state.server, mean, aggregation)
        history = jax.tree.map(lambda old, new: jnp.concatenate([new[None], old[:-1]]), state.versions, after.params)
        return BufferedState(after, history), {"loss": value, "staleness": age}

    @program(clients=clients)
    def init(params: Params) -> BufferedState:
        state = ServerState(params, server.init(params), combiner.init(params))
        return BufferedState(state, jax.tree.map(lambda x: jnp.stack([x] * versions), params))

    return Algorithm(name="FedBuff", init=init, round=buffered_round, params_of=lambda state: state.server.params)
