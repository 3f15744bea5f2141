"""How many clients "auto" computes together."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.plan import choose_chunk_size, evaluate, plan_jaxpr

CLIENTS = 4096


def _chosen(width: int, steps: int, *, trained: bool = False, **choice: Any) -> int:
    """For a client of `steps` products with a matrix of `width` × `width`, 2 × 16 × width² FLOPs each.

    The matrix is the same for all clients, or `trained`, so that each has its own after the first step.
    """

    def train(w: Any, x: Any) -> Any:
        if trained:
            w = w + x.sum()
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=steps)[0]

    shapes = jax.ShapeDtypeStruct((width, width), jnp.float32), jax.ShapeDtypeStruct((CLIENTS, 16, width), jnp.float32)
    return _chosen_for(train, shapes, **choice)


def _chosen_for(train: Any, shapes: Any, **choice: Any) -> int:
    fed = wb.program(clients=CLIENTS)(lambda w, x: wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), x))))
    seen = []

    def choose(phase: Any, share: int) -> int:
        seen.append(choose_chunk_size(phase, share, **choice))
        return seen[-1]

    plan = plan_jaxpr(jax.make_jaxpr(fed)(*shapes), "round")
    jax.eval_shape(lambda *inputs: evaluate(plan, inputs, chunk_size=choose), *shapes)
    return seen[0]


@pytest.mark.parametrize("steps", [1, 10, 1000])
def test_a_cpu_computes_clients_together_by_the_work_of_one_step_however_many_there_are(steps: int) -> None:
    assert _chosen(64, steps, platform="cpu", cores=1) == 30  # 4e6 // (2·16·64² + 16·64) FLOPs


def test_a_cpu_computes_a_client_whose_steps_fill_it_alone() -> None:
    assert _chosen(512, 10, trained=True, platform="cpu", cores=1) == 1
    assert _chosen(4096, 10, trained=True, platform="cpu", cores=2) == 1


def test_a_cpu_with_a_second_core_computes_some_clients_together() -> None:
    assert _chosen(512, 10, trained=True, platform="cpu", cores=2) == 8


def test_a_cpu_computes_some_clients_together_whose_matrices_they_share() -> None:
    assert _chosen(512, 10, platform="cpu", cores=1) == 8
    assert _chosen(512, 10, platform="cpu", cores=2) == 32
    assert _chosen(4096, 10, platform="cpu", cores=1) == 1


@pytest.mark.parametrize(("rows", "cores", "together"), [(500, 2, 16), (500, 1, 1), (100_000, 2, 1)])
def test_a_cpu_with_a_second_core_computes_clients_together_whose_tables_fit_its_caches(
    rows: int, cores: int, together: int
) -> None:
    def train(table: jax.Array, items: jax.Array) -> jax.Array:
        return table - jax.grad(lambda table: (table[items] ** 2).sum())(table)

    shapes = jax.ShapeDtypeStruct((rows, 32), jnp.float32), jax.ShapeDtypeStruct((CLIENTS, 64), jnp.int32)
    assert _chosen_for(train, shapes, platform="cpu", cores=cores) == min(together, CLIENTS)


def test_a_cpu_computes_one_client_at_a_time_that_convolves_with_a_kernel_of_its_own() -> None:
    def train(kernel: jax.Array, image: jax.Array) -> jax.Array:
        own = kernel + image.sum()
        return jax.lax.conv(image[None, None], own[None, None], (1, 1), "SAME")

    shapes = jax.ShapeDtypeStruct((7, 7), jnp.float32), jax.ShapeDtypeStruct((CLIENTS, 256, 256), jnp.float32)
    assert _chosen_for(train, shapes, platform="cpu", cores=2) == 1


def test_an_accelerator_computes_what_fits_in_a_quarter_of_its_memory() -> None:
    row_bytes = 2 * 16 * 64 * 4  # a client's data and its result; the weights are every client's
    assert _chosen(64, 10, platform="gpu", memory_bytes=400 * row_bytes) == 100


def test_an_accelerator_computes_all_clients_together_that_have_no_data() -> None:
    shapes = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((CLIENTS, 0), jnp.float32)
    assert _chosen_for(lambda w, x: x, shapes, platform="gpu", memory_bytes=2**30) == CLIENTS
