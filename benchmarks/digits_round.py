"""The round of federated averaging on real digits in the documentation's pictures."""

import jax
import jax.numpy as jnp
import optax

import workbench as wb
from workbench.federated import data


def predict(params, x):
    hidden = jax.nn.relu(x @ params["in"] + params["in_bias"])
    return hidden @ params["out"] + params["out_bias"]


def loss_of(params, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(params, batch["x"]), batch["y"])
    return jnp.where(batch["mask"], losses, 0.0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(jnp.float32)


def train_locally(params, client):
    def step(local, batch):
        loss, gradient = jax.value_and_grad(loss_of)(local, batch)
        return jax.tree.map(lambda p, g: p - 0.2 * g, local, gradient), loss

    batches = {name: client[name] for name in ("x", "y", "mask")}
    local, losses = jax.lax.scan(step, params, batches)
    return jax.tree.map(jnp.subtract, local, params), losses.mean()


@wb.program(clients=64)
def fedavg(params, clients):
    local = wb.broadcast(params)
    change, loss = wb.map_fn(train_locally, (local, clients))
    change, loss = wb.reduce_weighted_mean((change, loss), clients["weight"])
    return jax.tree.map(jnp.add, params, change), loss


def call() -> tuple[tuple[dict, dict], list[int]]:
    """The arguments of one round of 64 clients, and each client's number of examples."""
    held, _ = data.digits(clients=64, alpha=0.3, seed=0)
    padded = data.pad_clients(held, batch_size=16, epochs=4, key=0)
    params = {
        "in": jnp.zeros((64, 32)), "in_bias": jnp.zeros(32), "out": jnp.zeros((32, 10)), "out_bias": jnp.zeros(10),
    }  # fmt: skip
    return (params, jax.tree.map(jnp.asarray, padded.tree)), padded.counts.tolist()
