"""DiLoCo: many local AdamW steps, then one Nesterov step on the mean update."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, at_every_client, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._local import split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


class DilocoState(NamedTuple):
    """Server state, with every replica's inner optimizer state, which is kept between rounds."""

    server: ServerState
    inner: PyTree[Array]

    @property
    def params(self) -> Params:
        """The parameters at the server."""
        return self.server.params


def outer_nesterov() -> optax.GradientTransformation:
    """The outer optimizer from the DiLoCo papers, with Nesterov momentum 0.9 and learning rate 0.7.

    Returns:
        The optimizer; its first update is -0.7 * (1 + 0.9) times the gradient.

    Example:
        >>> optimizer = outer_nesterov()
        >>> update, _ = optimizer.update(jnp.float32(1), optimizer.init(jnp.float32(0)))
        >>> round(float(update), 2)
        -1.33
    """
    return optax.sgd(0.7, momentum=0.9, nesterov=True)


def diloco(
    loss: Loss,
    *,
    clients: int,
    inner_optimizer: optax.GradientTransformation,
    outer_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Trains replicas that keep their optimizer state, with Nesterov momentum on the mean update.

    A round of H steps sends the parameters once each way. Data-parallel training sends a gradient in every step and
    therefore H times as many bytes.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of replicas. Replicas with weight 0 are absent from a round and keep their optimizer state.
        inner_optimizer: The replicas' optimizer; `optax.adamw` in the paper.
        outer_optimizer: The server's optimizer. Default: `outer_nesterov()`.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`; the number of steps per round is the paper's H.

    Example:
        >>> algorithm = diloco(lambda w, x: (w - x) ** 2, clients=2, inner_optimizer=optax.sgd(0.5),
        ...                    outer_optimizer=optax.sgd(1.0))
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> float(state.params)  # with these optimizers, federated averaging
        2.0

    References:
        Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
        (arXiv 2311.08105), Algorithm 1.
    """
    outer = outer_nesterov() if outer_optimizer is None else outer_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    init_server = with_server_optimizer(outer, combiner, clients)

    @program(clients=clients)
    def diloco_round(state: DilocoState, client_batches: ClientBatches) -> tuple[DilocoState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="diloco")

        def train(params: Params, optimizer_state: Params, weight: jax.Array, batches: Batches) -> PyTree[Array]:
            trained = train_locally(loss, inner_optimizer, params, batches, optimizer_state=optimizer_state)
            next_state = jax.tree.map(
                lambda new, old: jnp.where(weight > 0, new, old), trained.optimizer, optimizer_state
            )
            return trained.update, next_state, trained.loss, trained.squared_drift

        replicas = (broadcast(state.server.params), state.inner, weight, batches)
        update, inner, losses, squared_drift = map_fn(train, replicas)
        update, aggregation = combiner.combine(update, weight, state.server.aggregation)
        value, drift = reduce_weighted_mean((losses, squared_drift), weight)
        server = server_step(outer, state.server, update, aggregation)
        return DilocoState(server, inner), {"loss": value, "squared_drift": drift}

    def init(params: Params) -> DilocoState:
        return DilocoState(init_server(params), at_every_client(inner_optimizer.init(params), clients))

    return Algorithm(name="DiLoCo", init=init, round=diloco_round)
