"""Rows of clients that are all alike: made once, kept once, and with the same results."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.plan import Jitted, LoopForm, find_phases, trace

CLIENTS, WIDTH, STEPS = 16, 24, 3
FROZEN = jax.random.normal(jax.random.key(0), (2, WIDTH, WIDTH)) / WIDTH**0.5


def train(adapter, frozen, rows):
    """A few steps of an adapter beside frozen layers that every client shares."""

    def loss(adapter, x):
        for layer in range(2):
            x = jnp.tanh(x @ frozen[layer] + (x @ adapter["a"]) @ adapter["b"])
        return (x**2).mean()

    def step(adapter, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, adapter, jax.grad(loss)(adapter, x)), None

    return jax.lax.scan(step, adapter, rows)[0]


@wb.program(clients=CLIENTS)
def tuned_adapter(adapter, rows):
    trained = wb.map_fn(train, (wb.broadcast(adapter), wb.broadcast(FROZEN), rows))
    return wb.reduce_mean(trained)


def size_of_change(adapter, rows):
    return sum(jnp.vdot(x, x) for x in jax.tree.leaves(tuned_adapter(adapter, rows)))


@pytest.fixture
def arguments():
    keys = jax.random.split(jax.random.key(1), 3)
    adapter = {"a": jax.random.normal(keys[0], (WIDTH, 2)), "b": jax.random.normal(keys[1], (2, WIDTH))}
    return adapter, jax.random.normal(keys[2], (CLIENTS, STEPS, 4, WIDTH))


def test_frozen_layers_do_not_wait_once_per_client(arguments):
    plan = trace(jax.grad(size_of_change), arguments).plan
    apart = [v for level in find_phases(plan, alike=False).values() for phase in level for v in phase.kept]
    together = [v for level in find_phases(plan).values() for phase in level for v in phase.kept]
    frozen = {v for v in apart if v.aval.shape[-2:] == (WIDTH, WIDTH)}
    assert frozen
    assert set(together) <= set(apart) - frozen  # and one of numbers that are all 1
    assert together  # clients have their own activations


@pytest.mark.parametrize(
    ("devices", "chunk_size", "kept_bytes"), [(1, 4, 0), (1, 4, math.inf), (4, 1, math.inf), (4, None, 0)]
)
def test_gradient_is_that_of_plain_jax(arguments, chunk_size, kept_bytes, devices):
    adapter, rows = arguments

    def plain(adapter, rows):
        trained = jax.vmap(train, in_axes=(None, None, 0))(adapter, FROZEN, rows)
        return sum(jnp.vdot(x, x) for x in jax.tree.leaves(jax.tree.map(lambda x: x.mean(0), trained)))

    wanted = jax.jit(jax.grad(plain))(adapter, rows)
    with jax.set_mesh(wb.make_mesh(clients=devices)):
        got = Jitted(jax.grad(size_of_change), chunk_size, {}, LoopForm(kept_bytes=kept_bytes))(adapter, rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), got, wanted)


def test_product_with_frozen_layers_is_one_for_all_clients_of_a_chunk(arguments):
    text = Jitted(jax.grad(size_of_change), 8, {}, LoopForm(kept_bytes=0)).lower(*arguments).as_text()
    assert f"tensor<8x{WIDTH}x{WIDTH}xf32>" not in text
