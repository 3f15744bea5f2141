"""Refs as arguments, as in JAX's training cookbook, and functions that cannot be traced."""

import jax
import jax.numpy as jnp
import pytest

import workbench as wb


@pytest.fixture
def program():
    count = jax.new_ref(jnp.ones(4))

    @jax.jit
    def step(count, x):
        count[...] += x
        return (count[...] * x).sum()

    return step, count


@pytest.mark.parametrize("question", ["inspect", "why", "advise", "explore", "measure", "trace"])
def test_every_call_takes_refs_as_arguments(program, question):
    step, count = program
    assert getattr(wb, question)(step)(count, jnp.ones(4)) is not None


def test_the_work_on_a_ref_is_counted(program):
    step, count = program
    module = wb.inspect(step)(count, jnp.ones(4)).module
    assert module is not None
    assert module.elementwise_flops == 4 + 4 + 4  # the update, the product, the sum
    assert module.memory.argument_bytes == 2 * 4 * 4


def test_generator_functions_are_refused():
    def batches(x):
        yield x

    with pytest.raises(TypeError, match="generator function `batches`"):
        wb.inspect(batches)(jnp.ones(3))
