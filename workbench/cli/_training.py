"""The demo training: federated averaging of a small network on the digits of 64 clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.data import ClientData, Examples, digits, pad_clients
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean

CLIENTS = 64
BATCH_SIZE, EPOCHS, HIDDEN = 16, 4, 32
CLIENT_OPTIMIZER = optax.sgd(0.2)
SERVER_OPTIMIZER = optax.sgd(0.7, momentum=0.7)

Parameters = dict[str, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Result of the training: the data, the final parameters, and metrics per round."""

    train: ClientData
    test: Examples
    data: dict[str, jax.Array]
    parameters: Parameters
    losses: tuple[float, ...]  # mean over the clients' examples, before their steps in this round
    accuracies: tuple[float, ...]  # on the held-out examples, after this round


def predict(parameters: Parameters, x: jax.Array) -> jax.Array:
    """Logits of a network with one hidden layer, `[*batch, 10]`."""
    hidden = jax.nn.relu(x @ parameters["in"] + parameters["in_bias"].reshape((1,) * (x.ndim - 1) + (-1,)))
    return hidden @ parameters["out"] + parameters["out_bias"].reshape((1,) * (x.ndim - 1) + (-1,))


def masked_loss(parameters: Parameters, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross entropy over a batch's non-padding examples; 0 if all are padding."""
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(parameters, batch["x"]), batch["y"])
    return mean_where(batch["mask"], losses)


def mean_where(mask: jax.Array, values: jax.Array) -> jax.Array:
    """The mean of the values where the mask is true; 0 if it is never true."""
    return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1).astype(values.dtype)


def train_locally(parameters: Parameters, client: dict[str, jax.Array]) -> tuple[Parameters, jax.Array]:
    """One client's part of a round: local SGD over its batches.

    Args:
        parameters: The server's parameters.
        client: `x [steps, batch, 64]`, `y [steps, batch]`, `mask [steps, batch]`.

    Returns:
        The client's update of the parameters, and its mean loss during training.
    """

    def step(carry: PyTree[Array], batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        local, state = carry
        loss, gradient = jax.value_and_grad(masked_loss)(local, batch)
        updates, state = CLIENT_OPTIMIZER.update(gradient, state)
        return (optax.apply_updates(local, updates), state), loss

    batches = {name: client[name] for name in ("x", "y", "mask")}
    (local, _), losses = jax.lax.scan(step, (parameters, CLIENT_OPTIMIZER.init(parameters)), batches)
    return jax.tree.map(jnp.subtract, local, parameters), mean_where(batches["mask"].any(axis=1), losses)


@program(clients=CLIENTS)
def fedavg(parameters: Parameters, data: dict[str, jax.Array]) -> tuple[Parameters, jax.Array]:
    """Runs one round: averages updates and losses, weighted by the number of examples."""
    changes, losses = map_fn(train_locally, (broadcast(parameters), data))
    return reduce_weighted_mean((changes, losses), data["weight"])


def first_parameters(seed: int = 0) -> Parameters:
    """Random weights, zero biases."""
    first, second = jax.random.split(jax.random.key(seed))
    initialize = jax.nn.initializers.he_normal()
    return {
        "in": initialize(first, (64, HIDDEN)),
        "in_bias": jnp.zeros(HIDDEN),
        "out": initialize(second, (HIDDEN, 10)),
        "out_bias": jnp.zeros(10),
    }


def train(mesh: jax.sharding.Mesh, rounds: int, report: Callable[[int, float, float], None]) -> TrainedModel:
    """Trains for a number of rounds on the mesh, with clients sharded over its axis `clients`.

    Args:
        mesh: Mesh to run on.
        rounds: Number of rounds.
        report: Called after every round with its number, the clients' loss and the test accuracy.

    Returns: The data, the final parameters, the losses and the accuracies.
    """
    train_data, test = digits(CLIENTS)
    padded = pad_clients(train_data, batch_size=BATCH_SIZE, epochs=EPOCHS, key=0)
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
    data = jax.device_put({name: np.asarray(value) for name, value in padded.tree.items()}, spread)
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    parameters = first_parameters()
    parameters, state = jax.device_put((parameters, SERVER_OPTIMIZER.init(parameters)), everywhere)

    @partial(jax.jit, out_shardings=everywhere)
    def one_round(
        parameters: Parameters, state: PyTree[Array], data: PyTree[Array]
    ) -> tuple[Parameters, Any, jax.Array]:
        change, loss = fedavg(parameters, data)
        updates, state = SERVER_OPTIMIZER.update(jax.tree.map(jnp.negative, change), state)
        return optax.apply_updates(parameters, updates), state, loss  # type: ignore[return-value]

    losses, accuracies = [], []
    with jax.set_mesh(mesh):
        for number in range(rounds):
            parameters, state, loss = one_round(parameters, state, data)
            guesses = np.asarray(predict(jax.device_get(parameters), jnp.asarray(test.x))).argmax(axis=1)
            losses.append(float(loss))
            accuracies.append(float((guesses == test.y).mean()))
            report(number + 1, losses[-1], accuracies[-1])
    return TrainedModel(
        train=train_data,
        test=test,
        data=data,
        parameters=parameters,
        losses=tuple(losses),
        accuracies=tuple(accuracies),
    )
