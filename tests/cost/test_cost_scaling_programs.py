"""Estimates for another size are within the error that docs/absent-hardware.md states: several programs, compiled."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.cost import estimate_scaled
from workbench.records.compiled import ProgramRecord

FEW, ROWS, WIDTH = 16, 8, 64
Built = tuple[Callable, tuple[Any, ...], tuple[tuple[int, ...], ...]]  # the program, shapes of weights, and of rows
PEAK_ERROR = 1 / 3  # of the compiler's: at another size it may fuse, copy or lay out otherwise
PEAK_ERROR_OF_OTHER_CHUNKS = 0.55  # temporaries do not grow as fast as the chunk size


def local_sgd(clients: int) -> Built:
    def train(w: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w[0]) @ w[1]) ** 2)
        return jax.lax.scan(lambda w, _: (jax.tree.map(lambda a, g: a - 0.1 * g, w, gradient(w)), None), w, length=3)[0]

    program = wb.program(clients=clients)(lambda w, x: wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), x))))
    return program, ((WIDTH, WIDTH), (WIDTH, 4)), ((ROWS, WIDTH),)


def gradients_and_metrics(clients: int) -> Built:
    def client(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w[0]) ** 2))(w)
        return gradient, loss, (x > 0).sum()

    def program(w: Any, x: Any) -> Any:
        gradient, loss, count = wb.map_fn(client, (wb.broadcast(w), x))
        weight = count.astype(jnp.float32)
        return wb.reduce_weighted_mean(gradient, weight), wb.reduce_max(loss), wb.reduce_sum(count)

    return wb.program(clients=clients)(program), ((WIDTH, WIDTH),), ((ROWS, WIDTH),)


def evaluation_of_every_client(clients: int) -> Built:
    def program(w: Any, x: Any) -> Any:
        return wb.map_fn(lambda w, x: jnp.tanh(x @ w[0]) @ w[1], (wb.broadcast(w), x))

    return wb.program(clients=clients)(program), ((WIDTH, WIDTH), (WIDTH, WIDTH)), ((ROWS, WIDTH),)


def attention(clients: int) -> Built:
    def loss(w: Any, x: Any) -> Any:
        q, k, v = (x @ each for each in w)
        return jnp.mean((jax.nn.softmax(q @ k.T / 8) @ v) ** 2)

    def program(w: Any, x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(jax.grad(loss), (wb.broadcast(w), x)))

    return wb.program(clients=clients)(program), ((WIDTH, WIDTH),) * 3, ((32, WIDTH),)


def convolution(clients: int) -> Built:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(
            jax.lax.conv_general_dilated(x, w[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )

    def program(w: Any, x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(jax.grad(loss), (wb.broadcast(w), x)))

    return wb.program(clients=clients)(program), ((3, 3, 8, 16),), ((4, 16, 16, 8),)


def two_levels(clients: int) -> Built:
    def program(w: Any, x: Any) -> Any:
        mean = wb.reduce_mean(wb.map_fn(lambda w, x: x @ w[0], (wb.broadcast(w), x)))
        return wb.reduce_mean(wb.map_fn(lambda w, m, x: (x @ w[0] - m) ** 2, (wb.broadcast(w), wb.broadcast(mean), x)))

    return wb.program(clients=clients)(program), ((WIDTH, WIDTH),), ((ROWS, WIDTH),)


def rounds_in_a_loop(clients: int) -> Built:
    once, weights, rows = local_sgd(clients)

    def program(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda w, _: (once(w, x), None), w, length=4)[0]

    return program, weights, rows


PROGRAMS = (
    local_sgd,
    gradients_and_metrics,
    evaluation_of_every_client,
    attention,
    convolution,
    two_levels,
    rounds_in_a_loop,
)
CHANGES = {
    "four times the clients": {"clients": 4 * FEW},
    "four times the devices": {"devices": 8},
    "more of both": {"clients": 2 * FEW, "devices": 4},
    "one device": {"devices": 1},
}


@functools.cache
def inspected(build: Callable[[int], Built], clients: int, devices: int) -> ProgramRecord:
    """What the compiler makes of a program on a number of CPU devices."""
    program, weights, rows = build(clients)
    mesh = wb.make_mesh(clients=devices, devices=jax.devices()[:devices])
    w = tuple(jax.ShapeDtypeStruct(each, jnp.float32, sharding=NamedSharding(mesh, P())) for each in weights)
    x = [
        jax.ShapeDtypeStruct((clients, *each), jnp.float32, sharding=NamedSharding(mesh, P("clients"))) for each in rows
    ]
    return wb.inspect(program, on=mesh)(w, *x)


@pytest.fixture(scope="module", autouse=True)
def forget_records():
    yield
    inspected.cache_clear()


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_estimate_is_within_its_stated_error_of_the_program_compiled_at_that_size(
    build: Callable[[int], Built], changes: dict[str, int]
) -> None:
    before = inspected(build, FEW, 2)
    estimated = estimate_scaled(before, **changes)
    compiled = inspected(build, changes.get("clients", FEW), changes.get("devices", 2))
    assert estimated.chunk_size == compiled.plan.chunk_size  # both are the choice of "auto"
    assert compiled.cost is not None
    assert compiled.module is not None
    assert estimated.memory is not None
    of_clients = [[s.flops for s in record.stages if s.kind == "clients"] for record in (estimated.cost, compiled.cost)]
    assert of_clients[0] == of_clients[1]
    sent = [
        sum(amount for stage in record.stages for amount in stage.collective_bytes.values())
        for record in (estimated.cost, compiled.cost)
    ]
    assert sent[0] == pytest.approx(sent[1])
    memory = compiled.module.memory
    assert estimated.memory.argument_bytes == memory.argument_bytes
    assert estimated.memory.output_bytes == memory.output_bytes
    same_chunks = estimated.chunk_size == before.plan.chunk_size
    error = PEAK_ERROR if same_chunks else PEAK_ERROR_OF_OTHER_CHUNKS
    assert estimated.memory.peak_bytes == pytest.approx(memory.peak_bytes, rel=error)
