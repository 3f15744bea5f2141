"""APFL: each client mixes the shared model with a personal one."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, at_every_client, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._local import has_examples, split_weight
from workbench.federated.algorithms._types import Batch, Batches, ClientBatches, ClientParams, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


class ApflState(NamedTuple):
    """Server state, with each client's parameters and mixing weight (`[clients, ...]`)."""

    server: ServerState
    own: Params
    mixing: jax.Array

    @property
    def params(self) -> Params:
        """The parameters at the server."""
        return self.server.params


def apfl(
    loss: Loss,
    *,
    clients: int,
    learning_rate: float,
    mixing: float = 0.5,
    adaptive: bool = False,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Mixes each client's own parameters (weight α) with the shared ones (weight 1 − α), as in APFL.

    Sends as many bytes as `fedavg`; a client's personal parameters are never sent.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients. Clients with weight 0 are absent from a round and keep their state.
        learning_rate: Learning rate for all local steps.
        mixing: Initial α, from 0 (federated averaging) to 1 (each client trains alone).
        adaptive: Whether each client also takes one gradient step on its α per round.
        aggregator: As in `fedavg`.

    Returns: The algorithm, with batches as in `fedavg`, and the metrics `loss` (of the shared model while it trains),
        `personal_loss` (of the mixtures) and `mixing`. `personalize(state, client_batches)` returns the mixtures.

    Example:
        >>> algorithm = apfl(lambda w, x: (w - x) ** 2, clients=2, learning_rate=0.25, mixing=1.0)
        >>> batches = jnp.array([[1.0], [3.0]])
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), batches)
        >>> float(state.params), algorithm.personalize(state, batches).tolist()
        (1.0, [0.5, 1.5])

    References:
        Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461), Algorithm 1 and
        equation 10 (α).
    """
    combiner = weighted_mean() if aggregator is None else aggregator
    server_optimizer = optax.sgd(1.0)
    init_server = with_server_optimizer(server_optimizer, combiner, clients)

    def train(params: Params, personal: Params, share: jax.Array, weight: jax.Array, batches: Batches) -> PyTree[Array]:
        def step(carry: PyTree[Array], batch: Batch) -> tuple[Any, Any]:
            shared, private = carry
            value, gradient = jax.value_and_grad(loss)(shared, batch)
            mixed_loss, push = jax.value_and_grad(lambda v: loss(_mix(share, v, shared), batch))(private)
            real = has_examples(batch)
            update = jax.tree.map(
                lambda x, g: x - jnp.where(real, learning_rate * g, jnp.zeros_like(g)), carry, (gradient, push)
            )
            return update, (jnp.where(real, value, 0.0), jnp.where(real, mixed_loss, 0.0), real.astype(value.dtype))

        (shared, private), (values, mixed, real) = jax.lax.scan(step, (params, personal), batches)
        steps = jnp.maximum(real.sum(), 1)
        learned = _descend_share(loss, share, (personal, params), batches, learning_rate) if adaptive else share
        client_state = jax.tree.map(
            lambda new, old: jnp.where(weight > 0, new, old), (private, learned), (personal, share)
        )
        return (
            jax.tree.map(jnp.subtract, shared, params),
            client_state,
            (values.sum() / steps, mixed.sum() / steps, client_state[1]),
        )

    @program(clients=clients)
    def apfl_round(state: ApflState, client_batches: ClientBatches) -> tuple[ApflState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="apfl")
        shared = broadcast(state.server.params)
        update, (models, mixing), results = map_fn(train, (shared, state.own, state.mixing, weight, batches))
        update, aggregation = combiner.combine(update, weight, state.server.aggregation)
        value, personal, share = reduce_weighted_mean(results, weight)
        server = server_step(server_optimizer, state.server, update, aggregation)
        return ApflState(server, models, mixing), {"loss": value, "personal_loss": personal, "mixing": share}

    def init(params: Params) -> ApflState:
        return ApflState(init_server(params), *at_every_client((params, jnp.float32(mixing)), clients))

    @program(clients=clients)
    def personalize(state: ApflState, client_batches: ClientBatches) -> ClientParams:
        return map_fn(_mix, (state.mixing, state.own, broadcast(state.server.params)))

    return Algorithm(name="APFL", init=init, round=apfl_round, personalize=personalize)


def _mix(share: jax.Array, personal: Params, shared: Params) -> PyTree[Array]:
    return jax.tree.map(lambda v, w: share.astype(v.dtype) * v + (1 - share).astype(v.dtype) * w, personal, shared)


def _descend_share(
    loss: Loss, share: jax.Array, models: PyTree[Array], batches: Batches, learning_rate: float
) -> jax.Array:
    first = jax.tree.map(lambda x: x[0], batches)
    slope = jax.grad(lambda a: loss(_mix(a, *models), first))(share)
    return jnp.clip(share - learning_rate * slope, 0, 1)
