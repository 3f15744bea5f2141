"""SCAFFOLD: stateful clients whose control variates correct their drift."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._algorithm import Algorithm, Loss
from workbench.federated.algorithms._local import split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_mean


class ScaffoldState(NamedTuple):
    """State of the server (`params`, `control`) and of each client (`client_controls`, `[clients, ...]`)."""

    params: Params
    control: PyTree[Array]
    client_controls: PyTree[Array]


def scaffold(loss: Loss, *, clients: int, learning_rate: float, server_learning_rate: float = 1.0) -> Algorithm:
    """Corrects local SGD by the difference between global and local mean gradients (SCAFFOLD).

    Sends twice as many bytes as `fedavg` each way, because a control variate is sent with the parameters. The clients'
    control variates stay on the clients.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients. Clients with weight 0 are absent from a round: they change neither the server nor
            their own control variate. All other clients have the same weight, as in the paper. If each round samples a
            cohort, build the algorithm with `in_cohorts`.
        learning_rate: η_l, the clients' learning rate.
        server_learning_rate: η_g.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`.

    Example:
        >>> algorithm = scaffold(lambda w, x: (w - x) ** 2, clients=2, learning_rate=0.25)
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> state.client_controls.tolist(), float(state.control)  # the gradients at 0, and their mean
        ([-2.0, -6.0], -4.0)

    References:
        Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020
        (arXiv 1910.06378), Algorithm 1 with option II.
    """
    return _scaffold(loss, clients, clients, learning_rate, server_learning_rate)


def _scaffold(
    loss: Loss, clients: int, population: int, learning_rate: float, server_learning_rate: float
) -> Algorithm:
    optimizer = optax.sgd(learning_rate)

    def train(shared: Params, client_control: Params, present: jax.Array, batches: Batches) -> PyTree[Array]:
        params, control = shared

        def corrected(local: Params, gradient: Params) -> PyTree[Array]:
            return jax.tree.map(lambda g, c, c_client: g - c_client + c, gradient, control, client_control)

        trained = train_locally(loss, optimizer, params, batches, corrected)
        took_part = present & (trained.steps > 0)
        scale = 1 / (jnp.maximum(trained.steps, jnp.ones_like(trained.steps)) * learning_rate)
        # Option II: c_i⁺ = c_i − c + (x − y_i) / (K η_l), so the change is the client's movement minus c.
        change = jax.tree.map(lambda c, update: jnp.where(took_part, -c - update * scale, 0), control, trained.update)
        return (trained.update, trained.loss, trained.squared_drift), change, took_part

    @program(clients=clients)
    def scaffold_round(state: ScaffoldState, client_batches: ClientBatches) -> tuple[ScaffoldState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="scaffold")
        present = map_fn(_is_present, (weight,))
        shared = broadcast((state.params, state.control))
        results, change, took_part = map_fn(train, (shared, state.client_controls, present, batches))
        update, value, drift = reduce_mean(results, where=took_part)
        # The mean is over the whole population, present or not: the factor |S| / N of the paper.
        control = jax.tree.map(lambda c, by: c + clients / population * by, state.control, reduce_mean(change))
        client_controls = map_fn(lambda c, by: jax.tree.map(jnp.add, c, by), (state.client_controls, change))
        params = jax.tree.map(lambda x, by: x + server_learning_rate * by, state.params, update)
        return ScaffoldState(params, control, client_controls), {"loss": value, "squared_drift": drift}

    @program(clients=clients)
    def init(params: Params) -> ScaffoldState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return ScaffoldState(params, zeros, broadcast(zeros))

    def part_of(population: int) -> Algorithm:
        return _scaffold(loss, clients, population, learning_rate, server_learning_rate)

    return Algorithm(name="SCAFFOLD", init=init, round=scaffold_round, part_of=part_of)


def _is_present(weight: jax.Array) -> jax.Array:
    return weight > 0
