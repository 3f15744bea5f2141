"""Reptile and MAML: initial parameters that each client can fine-tune in a few steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
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
from workbench.federated.algorithms._fedavg import fedavg
from workbench.federated.algorithms._local import has_examples, split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, ClientParams, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


def reptile(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    server_learning_rate: float = 0.5,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Federated averaging with a server learning rate, used for meta-learning (Reptile).

    Sends as many bytes as `fedavg`. The mean update after several local steps contains a term that aligns the gradients
    of a client's batches (equation 27 of the paper).

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        client_optimizer: The clients' optimizer in training and fine-tuning.
        server_learning_rate: ε, the factor by which the server multiplies the mean update.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, with the round and metrics of `fedavg`; `personalize(state, client_batches)` trains each client
        from the server's parameters on its own batches.

    Example:
        >>> algorithm = reptile(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(0.25))
        >>> batches = jnp.array([[1.0], [3.0]])
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), batches)
        >>> float(state.params), algorithm.personalize(state, batches).tolist()
        (0.5, [0.75, 1.75])

    References:
        Nichol, Achiam and Schulman, "On First-Order Meta-Learning Algorithms", 2018 (arXiv 1803.02999), Algorithm 2.
    """
    averaging = fedavg(
        loss,
        clients=clients,
        client_optimizer=client_optimizer,
        server_optimizer=optax.sgd(server_learning_rate),
        aggregator=aggregator,
    )
    tuned = fine_tuning(loss, clients=clients, optimizer=client_optimizer)
    return Algorithm(name="Reptile", init=averaging.init, round=averaging.round, personalize=tuned)


def maml(
    loss: Loss,
    *,
    clients: int,
    inner_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation,
    first_order: bool = False,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Minimizes the loss *after* each client's local steps (MAML).

    A client trains on its even batches. The client's loss on the odd batches is differentiated through the training on
    the even batches, with respect to the initial parameters. Sends as many bytes as `fedavg`.

    Args:
        loss: `loss(params, batch)`, a scalar; must be twice differentiable unless `first_order` is True.
        clients: Number of clients in a round.
        inner_optimizer: Optimizer for the clients' local steps.
        server_optimizer: The server's optimizer, which receives the mean meta-gradient.
        first_order: Whether to ignore the derivative of the inner steps and take the gradient after them (FO-MAML).
        aggregator: Combines the negative meta-gradients, as in `fedavg`.

    Returns:
        The algorithm, with batches as in `fedavg` (two steps or more). The metric `loss` is the loss after the inner
        steps, on the odd batches; `personalize(state, client_batches)` takes inner steps on all batches.

    Example:
        >>> algorithm = maml(lambda w, x: (w - x) ** 2, clients=1, inner_optimizer=optax.sgd(0.25),
        ...                  server_optimizer=optax.sgd(1.0))
        >>> state, metrics = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[2.0, 2.0]]))
        >>> float(metrics["loss"]), float(state.params)  # half-way at 1, and d(w/2 + 1 − 2)²/dw = −1
        (1.0, 1.0)

    References:
        Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning", ICML 2017 (arXiv 1703.03400), Algorithm 1; Fallah,
        Mokhtari and Ozdaglar, "Personalized Federated Learning", NeurIPS 2020 (arXiv 2002.07948), Algorithm 1.
    """
    combiner = weighted_mean() if aggregator is None else aggregator

    def loss_after_steps(params: Params, batches: Batches) -> jax.Array:
        support, query = (jax.tree.map(lambda x, first=first: x[first::2], batches) for first in (0, 1))
        update = train_locally(loss, inner_optimizer, params, support).update
        adapted = jax.tree.map(jnp.add, params, jax.lax.stop_gradient(update) if first_order else update)
        values, real = jax.vmap(lambda batch: (loss(adapted, batch), has_examples(batch)))(query)
        return jnp.where(real, values, jnp.zeros_like(values)).sum() / jnp.maximum(real.sum(), 1).astype(values.dtype)

    @program(clients=clients)
    def maml_round(state: ServerState, client_batches: ClientBatches) -> tuple[ServerState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state=combiner.per_client and "maml")
        values, gradients = map_fn(jax.value_and_grad(loss_after_steps), (broadcast(state.params), batches))
        downhill = map_fn(lambda row: jax.tree.map(jnp.negative, row), (gradients,))
        update, aggregation = combiner.combine(downhill, weight, state.aggregation)
        uphill = jax.tree.map(jnp.negative, update)
        params, optimizer = optimizer_step(server_optimizer, uphill, state.optimizer, state.params)
        return ServerState(params, optimizer, aggregation), {"loss": reduce_weighted_mean(values, weight)}

    return Algorithm(
        name="FO-MAML" if first_order else "MAML",
        init=with_server_optimizer(server_optimizer, combiner, clients),
        round=maml_round,
        personalize=fine_tuning(loss, clients=clients, optimizer=inner_optimizer),
    )


def fine_tuning(loss: Loss, *, clients: int, optimizer: optax.GradientTransformation) -> Callable[..., ClientParams]:
    """Creates a `personalize` function that trains every client from the server's parameters.

    Example:
        >>> tune = fine_tuning(lambda w, x: (w - x) ** 2, clients=2, optimizer=optax.sgd(0.5))
        >>> tune(ServerState(jnp.float32(0), ()), jnp.array([[1.0], [3.0]])).tolist()
        [1.0, 3.0]
    """

    @program(clients=clients)
    def personalize(state: PyTree[Array], client_batches: ClientBatches) -> ClientParams:
        batches, _ = split_weight(client_batches, clients)

        def tuned(params: Params, batches: Batches) -> PyTree[Array]:
            return jax.tree.map(jnp.add, params, train_locally(loss, optimizer, params, batches).update)

        return map_fn(tuned, (broadcast(state.params), batches))

    return personalize
