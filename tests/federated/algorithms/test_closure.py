"""The derivative of every algorithm that learns in rounds is made of the same primitives as the algorithm."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from algorithm_registry import regression

from workbench.federated import algorithms

pytestmark = pytest.mark.usefixtures("little_optimized")
SGD, ADAM = optax.sgd(0.1), optax.adam(0.1)


def squared(params: Any, batch: Any) -> Any:
    residual = jnp.where(batch["mask"], batch["x"] @ params["w"] + params["b"] - batch["y"], 0)
    return 0.5 * (residual**2).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(residual.dtype)


def _fedavg(aggregator: algorithms.Aggregator | None = None) -> Callable[[int], algorithms.Algorithm]:
    return lambda n: algorithms.fedavg(squared, clients=n, client_optimizer=SGD, aggregator=aggregator)


ALGORITHMS: dict[str, Callable[[int], algorithms.Algorithm]] = {
    "FedAvg": _fedavg(),
    "FedAvg, median": _fedavg(algorithms.median()),
    "FedAvg, trimmed mean": _fedavg(algorithms.trimmed_mean(0.2)),
    "FedAvg, private": _fedavg(algorithms.gaussian_mean(1.0, 1.0)),
    "FedAvg, top k": _fedavg(algorithms.top_k_mean(0.5)),
    "FedAvg, private top k": _fedavg(algorithms.gaussian_mean(1.0, 1.0, of=algorithms.top_k_mean(0.5, memory=False))),
    "FedAvg, few bits": _fedavg(algorithms.quantized_mean(4)),
    "FedProx": lambda n: algorithms.fedprox(squared, clients=n, client_optimizer=SGD, proximal=0.5),
    "FedAdam": lambda n: algorithms.fedopt(squared, clients=n, client_optimizer=SGD, server_optimizer=ADAM),
    "SCAFFOLD": lambda n: algorithms.scaffold(squared, clients=n, learning_rate=0.1),
    "Mime-lite": lambda n: algorithms.mime_lite(squared, clients=n, optimizer=optax.sgd(0.05, momentum=0.9)),
    "Reptile": lambda n: algorithms.reptile(squared, clients=n, client_optimizer=SGD),
    "MAML": lambda n: algorithms.maml(squared, clients=n, inner_optimizer=SGD, server_optimizer=ADAM),
    "FO-MAML": lambda n: algorithms.maml(
        squared, clients=n, inner_optimizer=SGD, server_optimizer=ADAM, first_order=True
    ),
    "APFL": lambda n: algorithms.apfl(squared, clients=n, learning_rate=0.1, adaptive=True),
    "Branch-train-merge": lambda n: algorithms.branch_train_merge(squared, clients=n, optimizer=ADAM),
    "PAPA": lambda n: algorithms.papa(squared, clients=n, optimizer=ADAM, keep=0.9),
    "DiLoCo": lambda n: algorithms.diloco(squared, clients=n, inner_optimizer=optax.adamw(0.1)),
    "Streaming DiLoCo": lambda n: algorithms.streaming_diloco(
        squared, clients=n, inner_optimizer=optax.adamw(0.1), delay=1, keep=0.5, aggregator=algorithms.quantized_mean(4)
    ),
}

# Compared with numpy elsewhere: only their communication is looked at here.
COMPARED: dict[str, Callable[[int], algorithms.Algorithm]] = {
    "FedNova": lambda n: algorithms.fednova(squared, clients=n, client_optimizer=SGD),
    "FedDyn": lambda n: algorithms.feddyn(squared, clients=n, learning_rate=0.1, alpha=1.0),
    "FedLin": lambda n: algorithms.fedlin(squared, clients=n, learning_rate=0.1),
    "FedBuff": lambda n: algorithms.fedbuff(squared, clients=n, client_optimizer=SGD),
    "Ditto": lambda n: algorithms.ditto(squared, clients=n, client_optimizer=SGD, strength=0.5),
    "FedRep": lambda n: algorithms.fedrep(
        squared, clients=n, client_optimizer=SGD, is_personal=lambda path: path == "b"
    ),
    "FedAvg, geometric median": _fedavg(algorithms.geometric_median(iterations=2)),
    "FedAvg, signs with error feedback": _fedavg(algorithms.compressed_mean(algorithms.scaled_sign())),
}


def start() -> dict[str, Any]:
    return {"w": jnp.ones(2), "b": jnp.float32(0)}


@pytest.mark.parametrize("name", sorted(ALGORITHMS | COMPARED))
def test_two_rounds_and_their_derivative_communicate_by_our_primitives_alone(
    name: str, clients: int, hidden_communication: Any
) -> None:
    algorithm, batches = (ALGORITHMS | COMPARED)[name](clients), regression(clients)

    def after_two_rounds(params: Any) -> Any:
        state, _ = algorithm.round(algorithm.init(params), batches)
        state, metrics = algorithm.round(state, batches)
        return metrics["loss"] + sum(x.sum() for x in jax.tree.leaves(algorithm.params_of(state)))

    assert hidden_communication(after_two_rounds, start()) == []
    assert hidden_communication(jax.grad(after_two_rounds), start()) == []


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_learns_and_the_derivative_of_a_round_is_finite(name: str, clients: int) -> None:
    algorithm, batches = ALGORITHMS[name](clients), regression(clients)
    step, state = jax.jit(algorithm.round), algorithm.init(start())
    losses = []
    for _ in range(8):
        state, metrics = step(state, batches)
        losses.append(float(metrics["loss"]))
    assert min(losses[4:]) < losses[0]

    def loss_after_a_round(params: Any) -> Any:
        state, _ = algorithm.round(algorithm.init(params), batches)
        return jax.vmap(squared, (None, 0))(algorithm.params_of(state), batches).sum()

    slopes = jax.jit(jax.grad(loss_after_a_round))(start())
    assert all(bool(jnp.isfinite(x).all()) and bool(jnp.any(x != 0)) for x in jax.tree.leaves(slopes))


def test_a_value_summed_over_clients_without_a_primitive_is_found(clients: int, hidden_communication: Any) -> None:
    algorithm, batches = ALGORITHMS["FedAvg"](clients), regression(clients)

    def with_a_hidden_sum(params: Any) -> Any:
        return algorithm.round(algorithm.init(params), batches)[1]["loss"] + batches["x"].sum(0).mean()

    def with_a_hidden_broadcast(params: Any) -> Any:
        shifted = {**batches, "y": batches["y"] + jnp.broadcast_to(params["w"].sum(), batches["y"].shape)}
        return algorithm.round(algorithm.init(params), shifted)[1]["loss"]

    assert hidden_communication(lambda p, x: with_a_hidden_sum(p) + x.sum(0).mean(), start(), batches["x"])
    assert hidden_communication(with_a_hidden_broadcast, start())
