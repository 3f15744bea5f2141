"""What a client does is read from the plan of the program."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms
from workbench.federated.population import Population, work_of
from workbench.federated.population._selection import load_of, seconds_of
from workbench.records.run import WorkRecord

PRODUCTS = WorkRecord(flops=3e11, download_bytes=1.0, upload_bytes=1.0)


def loss(params, batch):
    return jnp.mean((batch @ params) ** 2)


def traced(clients, steps=3):
    algorithm = algorithms.fedavg(loss, clients=clients, client_optimizer=optax.sgd(0.1))
    state = algorithm.init(jnp.zeros((16, 4)))
    return wb.trace(algorithm.round)(state, jnp.ones((clients, steps, 8, 16)))


def test_work_of_fedavg_by_hand():
    work = work_of(traced(4))
    assert work.download_bytes == 16 * 4 * 4
    # The update, and the sums of two metrics and of the weights.
    assert work.upload_bytes == pytest.approx(16 * 4 * 4, abs=32)
    # Three steps, each with 2·8·16·4 FLOPs forwards and as many for the gradient by the parameters; some elementwise.
    assert 3 * 2 * 1024 <= work.flops <= 1.3 * 3 * 2 * 1024
    assert work.memory_bytes >= 3 * 8 * 16 * 4 + 2 * 256


def test_work_of_one_client_does_not_depend_on_the_number_of_clients():
    few, many = work_of(traced(4)), work_of(traced(64))
    assert (few.flops, few.download_bytes, few.upload_bytes) == (many.flops, many.download_bytes, many.upload_bytes)


def test_elementwise_work_counts_apart():
    @wb.program(clients=2)
    def one(w, x):
        return wb.reduce_sum(wb.map_fn(lambda w, x: jnp.tanh(w * x) + x, (wb.broadcast(w), x)))

    work = work_of(wb.trace(one)(jnp.ones(1000), jnp.ones((2, 1000))))
    assert (work.flops, work.elementwise_flops, work.total_flops) == (0, 3000, 3000)


def test_elementwise_work_takes_as_long_as_that_of_products():
    population, ids = Population(100), np.arange(100)
    devices = population.devices_of(ids)
    products, elements = (
        seconds_of(population, devices, ids, load_of(work, None, 0.0))[1]
        for work in (PRODUCTS, PRODUCTS.replace(flops=1e11, elementwise_flops=2e11))
    )
    np.testing.assert_allclose(products, elements)


def test_loops_of_rounds_count_every_iteration():
    @wb.program(clients=2)
    def rounds(w, x):
        return jax.lax.scan(
            lambda w, _: (wb.reduce_mean(wb.map_fn(lambda w, x: w * (w @ x), (wb.broadcast(w), x))), None), w, length=5
        )[0]

    work = work_of(wb.trace(rounds)(jnp.ones(10), jnp.ones((2, 10))).plan)
    assert (work.flops, work.download_bytes, work.upload_bytes) == (5 * 20, 200, 200)


def test_loops_of_unknown_length_are_refused():
    @wb.program(clients=2)
    def rounds(w, x):
        return jax.lax.while_loop(
            lambda w: w.sum() < 100, lambda w: wb.reduce_sum(wb.map_fn(lambda w, x: w + x, (wb.broadcast(w), x))), w
        )

    with pytest.raises(ProgramError, match="a length that is known only at run time"):
        work_of(wb.trace(rounds)(jnp.ones(10), jnp.ones((2, 10))))


@pytest.mark.parametrize("program", [wb.trace(lambda x: x + 1)(jnp.ones(2)), None], ids=["plain", "nothing"])
def test_programs_without_clients_are_refused(program):
    with pytest.raises(ProgramError, match="in which clients compute nothing"):
        work_of(program)
