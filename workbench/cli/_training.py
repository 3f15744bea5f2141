"""The demo training: federated averaging of a small network on the digits of 64 clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.data import ClientData, digits, pad_clients
from workbench.measurement import History, run_rounds
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean
from workbench.records.live import RoundRecord

CLIENTS = 64
BATCH_SIZE, EPOCHS, HIDDEN = 16, 4, 32
LOSS, ACCURACY = "loss of the clients", "test accuracy"
CLIENT_OPTIMIZER = optax.sgd(0.2)
SERVER_OPTIMIZER = optax.sgd(0.7, momentum=0.7)

Parameters = dict[str, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Result of the training: the data, the first parameters, and the finished rounds."""

    train: ClientData
    data: dict[str, jax.Array]
    start: Parameters
    history: History


def accuracies_of(history: Sequence[RoundRecord]) -> list[float]:
    """Test accuracy after every round."""
    return [float(np.mean(record.metrics[ACCURACY])) for record in history]


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

    Returns the client's update of the parameters, and its mean loss during training.
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


def first_parameters() -> Parameters:
    """Random weights, zero biases."""
    first, second = jax.random.split(jax.random.key(0))
    initialize = jax.nn.initializers.he_normal()
    return {
        "in": initialize(first, (64, HIDDEN)),
        "in_bias": jnp.zeros(HIDDEN),
        "out": initialize(second, (HIDDEN, 10)),
        "out_bias": jnp.zeros(10),
    }


def train(mesh: jax.sharding.Mesh, rounds: int, *, progress: bool = True) -> TrainedModel:
    """Trains for a number of rounds on the mesh, with clients sharded over its axis `clients`."""
    train_data, test = digits(CLIENTS)
    padded = pad_clients(train_data, batch_size=BATCH_SIZE, epochs=EPOCHS, key=0)
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
    data = jax.device_put({name: np.asarray(value) for name, value in padded.tree.items()}, spread)
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    start = jax.device_put(first_parameters(), everywhere)

    @partial(jax.jit, out_shardings=everywhere)
    def one_round(state: PyTree[Array], data: PyTree[Array]) -> tuple[PyTree[Array], dict[str, jax.Array]]:
        parameters, optimizer = state
        change, loss = fedavg(parameters, data)
        updates, optimizer = SERVER_OPTIMIZER.update(jax.tree.map(jnp.negative, change), optimizer)
        return (optax.apply_updates(parameters, updates), optimizer), {LOSS: loss}

    def evaluate(state: PyTree[Array]) -> dict[str, float]:
        guesses = np.asarray(predict(jax.device_get(state[0]), jnp.asarray(test.x))).argmax(axis=1)
        return {ACCURACY: float((guesses == test.y).mean())}

    state = start, jax.device_put(SERVER_OPTIMIZER.init(start), everywhere)
    with jax.set_mesh(mesh):
        run = run_rounds(one_round, state, rounds, data=data, evaluate=evaluate, progress=progress)
    return TrainedModel(train=train_data, data=data, start=start, history=run.history)
