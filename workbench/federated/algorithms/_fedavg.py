"""Federated averaging: local SGD at every client, then the mean of all updates at the server."""

import jax
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._local import Trained, split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


def fedavg(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation | None = None,
    proximal: float = 0.0,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Federated averaging (FedAvg); FedSGD if each client takes one step.

    In a round, every client receives the parameters and sends one update of the same size.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        client_optimizer: The clients' optimizer; `optax.sgd` in the paper. The optimizer's state is reset in every
            round. A learning-rate schedule is also reset, with a warning.
        server_optimizer: The server's optimizer, which receives the mean update as a pseudo-gradient. Default:
            `optax.sgd(1.0)`, plain averaging.
        proximal: Strength μ of the pull towards the server's parameters; see `fedprox`.
        aggregator: Function that combines the updates, such as `median()`, `trimmed_mean(...)`, `gaussian_mean(...)`,
            `top_k_mean(...)` or `quantized_mean(...)`. Default: the weighted mean.

    Returns:
        The algorithm. A round takes batches `[clients, steps, ...]`. If the batches are a dictionary, it may include
        `mask` `[clients, steps, batch]` and `weight` `[clients]`, as in `data.pad_clients(...).tree`. The metrics are
        `loss` (the mean over the clients) and `squared_drift` (the mean squared norm of the clients' updates).

    Example:
        >>> algorithm = fedavg(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(0.5))
        >>> state, metrics = algorithm.round(algorithm.init(jax.numpy.float32(0)), jax.numpy.array([[1.0], [3.0]]))
        >>> float(state.params), float(metrics["loss"])
        (2.0, 5.0)

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
        Algorithm 1 (arXiv 1602.05629).
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    is_pulled = isinstance(proximal, jax.Array) or proximal != 0  # a sweep's traced value may be 0 in some trials

    def train(params: Params, batches: Batches) -> Trained:
        def pulled(local: Params, gradient: Params) -> PyTree[Array]:
            return jax.tree.map(lambda g, w, start: g + proximal * (w - start), gradient, local, params)

        return train_locally(loss, client_optimizer, params, batches, pulled if is_pulled else _as_it_is)

    @program(clients=clients)
    def fedavg_round(state: ServerState, client_batches: ClientBatches) -> tuple[ServerState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state=combiner.per_client and "fedavg")
        trained = map_fn(train, (broadcast(state.params), batches))
        squared_drift = map_fn(lambda client: client.squared_drift, (trained,))
        update, aggregation = combiner.combine(trained.update, weight, state.aggregation)
        value, drift = reduce_weighted_mean((trained.loss, squared_drift), weight)
        return server_step(server, state, update, aggregation), {"loss": value, "squared_drift": drift}

    name = "FedProx" if is_pulled else "FedAvg"
    return Algorithm(name=name, init=with_server_optimizer(server, combiner, clients), round=fedavg_round)


def _as_it_is(params: Params, gradient: Params) -> PyTree[Array]:
    return gradient


def fedprox(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    proximal: float,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """FedAvg with a proximal term that pulls clients towards the server's parameters.

    A client minimises `loss + μ/2 ‖w − w_server‖²`. Sends as many bytes as `fedavg`.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        client_optimizer: The clients' optimizer.
        proximal: Strength μ of the pull, at least 0; with 0 this is `fedavg`.
        server_optimizer: As in `fedavg`.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, with the round and metrics of `fedavg`.

    Example:
        >>> squares, sgd = lambda w, x: (w - x) ** 2, optax.sgd(0.25)
        >>> algorithm = fedprox(squares, clients=1, client_optimizer=sgd, proximal=2.0)
        >>> state, _ = algorithm.round(algorithm.init(jax.numpy.float32(0)), jax.numpy.array([[1.0, 1.0]]))
        >>> float(state.params)  # 0.5, then 0.5 − 0.25 (2 (0.5 − 1) + 2 (0.5 − 0))
        0.5

    References:
        Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv 1812.06127), equation 2.
    """
    return fedavg(
        loss,
        clients=clients,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        proximal=proximal,
        aggregator=aggregator,
    )


def fedopt(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """FedAvg with an adaptive optimizer at the server, as in FedAdam, FedYogi and FedAdagrad.

    Sends as many bytes as `fedavg`. Unlike Algorithm 2 of the paper, Optax's Adam and Yogi apply bias correction.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients in a round.
        client_optimizer: The clients' optimizer; `optax.sgd` in the paper.
        server_optimizer: The server's optimizer, such as `optax.adam(lr, eps=1e-3)`, `optax.yogi(lr)` or
            `optax.adagrad(lr)`. The optimizer's `eps` is the paper's degree of adaptivity τ.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, with the round and metrics of `fedavg`.

    Example:
        >>> algorithm = fedopt(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(0.5),
        ...                    server_optimizer=optax.adam(0.25))
        >>> state, _ = algorithm.round(algorithm.init(jax.numpy.float32(0)), jax.numpy.array([[1.0], [3.0]]))
        >>> round(float(state.params), 4)  # Adam's first step has the size of its learning rate
        0.25

    References:
        Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (arXiv 2003.00295), Algorithms 1 and 2.
    """
    return fedavg(
        loss,
        clients=clients,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        aggregator=aggregator,
    )
