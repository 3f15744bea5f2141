"""SCAFFOLD against FedAvg on skewed digits, seed by seed: few clients present, many local steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms, data

CLIENTS, PRESENT, ROUNDS = 10, 5, 12


def loss_of(params: Any, batch: Any) -> Any:
    logits = batch["x"] @ params["w"] + params["b"][None, :]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return jnp.where(batch["mask"], losses, 0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(losses.dtype)


def accuracy_over_rounds(algorithm: algorithms.Algorithm, step: Any, seed: int) -> float:
    train, test = data.digits(clients=CLIENTS, alpha=0.1, seed=seed)
    padded = data.pad_clients(train, batch_size=32, epochs=10, key=seed, examples=640)
    batches, random = jax.tree.map(jnp.asarray, padded.tree), np.random.default_rng(seed)
    state, found = algorithm.init({"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}), []
    for _ in range(ROUNDS):
        present = np.isin(np.arange(CLIENTS), random.choice(CLIENTS, PRESENT, replace=False))
        state, _ = step(state, {**batches, "weight": jnp.asarray(present, jnp.float32)})
        guess = (test.x @ np.asarray(state.params["w"]) + np.asarray(state.params["b"])).argmax(-1)
        found.append((guess == test.y).mean())
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.usefixtures("little_optimized")
def test_scaffold_is_ahead_of_fedavg_on_all_of_five_seeds_of_heterogeneityed_digits() -> None:
    made = (
        algorithms.fedavg(loss_of, clients=CLIENTS, client_optimizer=optax.sgd(1.0)),
        algorithms.scaffold(loss_of, clients=CLIENTS, learning_rate=1.0),
    )
    averaged, corrected = (
        np.array([accuracy_over_rounds(algorithm, step, seed) for seed in range(5)])
        for algorithm, step in ((algorithm, wb.jit(algorithm.round)) for algorithm in made)
    )
    ahead = corrected - averaged
    assert (ahead > 0).all(), ahead
    assert ahead.mean() > 2 * ahead.std(), ahead
