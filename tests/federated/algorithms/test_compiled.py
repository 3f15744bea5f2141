"""Compiled programs of aggregators: this file compiles as users do, unlike those of their numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms
from workbench.federated.algorithms import SecureSession
from workbench.federated.algorithms._discrete_gaussian import discrete_gaussian
from workbench.primitives import program

CLIENTS = 5


def test_noise_runs_without_agreement_of_devices_on_each_draw() -> None:
    pytest.importorskip("cryptography", reason="needs the extra `secure-aggregation`")
    mesh = jax.make_mesh((CLIENTS,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    masks = SecureSession(CLIENTS, 3).masks(np.ones(CLIENTS, bool))
    with jax.set_mesh(mesh):
        text = jax.jit(program(clients=CLIENTS)(lambda s: wb.map_fn(lambda k: discrete_gaussian(k, 9, 4), (s,)))).lower(
            jnp.asarray(masks.noise)
        ).compile().as_text()  # fmt: skip
    # The loop of the steps has a fixed length; the one for what is left asks once more per step, almost never.
    assert text.count('known_trip_count":{"n":"544"}') >= 1


def test_the_compiled_all_reduce_carries_the_packed_words() -> None:
    def payload(aggregator: algorithms.Aggregator) -> int:
        algorithm = algorithms.fedavg(
            lambda w, x: jnp.mean((w - x) ** 2), clients=8, client_optimizer=optax.sgd(0.1), aggregator=aggregator
        )
        with jax.set_mesh(wb.make_mesh(clients=8)):
            args = (algorithm.init(jnp.zeros(3000)), jnp.ones((8, 2, 3000)))
            module = wb.inspect(algorithm.round)(*args).module
        assert module is not None
        return sum(each.payload_bytes for each in module.collectives)

    # 8 clients of 4 bits: log2(8 × 14 + 1) → 7 bits, four to a word.
    plain, packed = payload(algorithms.weighted_mean()), payload(algorithms.quantized_mean(4))
    assert packed == pytest.approx(plain / 4, abs=100)
