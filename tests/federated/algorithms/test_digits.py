"""FedAvg on real digits: 64 clients whose labels are skewed."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms, data
from workbench.measurement import run_rounds


def predict(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["in"] + params["in_bias"][None, :])
    return hidden @ params["out"] + params["out_bias"][None, :]


def loss_of(params: Any, batch: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(params, batch["x"]), batch["y"])
    return jnp.where(batch["mask"], losses, 0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(losses.dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("little_optimized")
def test_fedavg_reads_93_percent_of_unseen_digits_within_40_rounds() -> None:
    train, test = data.digits(clients=64, alpha=0.3, seed=0)
    batches = jax.tree.map(jnp.asarray, data.pad_clients(train, batch_size=16, epochs=4, key=0).tree)
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "in": 0.1 * jax.random.normal(keys[0], (64, 32)),
        "in_bias": jnp.zeros(32),
        "out": 0.1 * jax.random.normal(keys[1], (32, 10)),
        "out_bias": jnp.zeros(10),
    }
    algorithm = algorithms.fedavg(
        loss_of, clients=64, client_optimizer=optax.sgd(0.2), server_optimizer=optax.sgd(0.7, momentum=0.7)
    )
    run = run_rounds(wb.jit(algorithm.round), algorithm.init(params), 40, data=batches, progress=False)
    guess = predict(algorithm.params_of(run.state), jnp.asarray(test.x)).argmax(-1)
    accuracy = float((guess == test.y).mean())
    assert accuracy >= 0.93
