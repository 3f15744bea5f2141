"""Casts that are moved behind collectives in a traced program."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from workbench.advice._narrow import narrowed


def dtypes_of(closed, name):
    """The dtypes of the results of all equations with this primitive."""
    inner, found = list(closed.jaxpr.eqns), []
    while inner:
        equation = inner.pop()
        if equation.primitive.name.startswith(name):
            found += [str(v.aval.dtype) for v in equation.outvars]
        for value in equation.params.values():
            jaxpr = getattr(value, "jaxpr", value)
            inner += getattr(jaxpr, "eqns", [])
    return found


def test_sum_of_widened_values_is_made_in_16_bits():
    closed = jax.make_jaxpr(lambda x: x.astype("float32").sum(0) * 2)(jnp.ones((4, 8), "bfloat16"))
    changed, count = narrowed(closed)
    assert count == 1
    assert dtypes_of(changed, "reduce_sum") == ["bfloat16"]


def test_rewritten_program_computes_the_same_up_to_rounding():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)), "bfloat16")
    closed = jax.make_jaxpr(lambda x: jnp.tanh(x.astype("float32").reshape(8, 4).sum(0)))(x)
    [before], [after] = jaxpr_as_fun(closed)(x), jaxpr_as_fun(narrowed(closed)[0])(x)
    assert after.dtype == before.dtype
    np.testing.assert_allclose(after, before, atol=0.05)


def test_collective_inside_of_a_shard_map_and_a_loop_is_rewritten():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))

    def total(x):
        def add(carry, row):
            return carry + jax.lax.psum(row.astype("float32"), "data"), None

        return jax.lax.scan(add, jnp.zeros(3), x)[0]

    mapped = jax.shard_map(total, mesh=mesh, in_specs=P(None, "data"), out_specs=P(), check_vma=False)
    changed, count = narrowed(jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((5, 12), "bfloat16")))
    assert count == 1
    assert dtypes_of(changed, "psum") == ["bfloat16"]


def test_wide_values_stay_wide():
    closed = jax.make_jaxpr(lambda x: (x * 2).sum(0))(jnp.ones((4, 8)))
    assert narrowed(closed)[1] == 0


def test_only_the_lines_that_are_named_are_rewritten():
    def two(x):
        first = x.astype("float32").sum(0)
        return first, x.astype("float32").sum(1)

    line = inspect.getsourcelines(two)[1] + 1
    closed = jax.make_jaxpr(two)(jnp.ones((4, 8), "bfloat16"))
    assert narrowed(closed)[1] == 2
    assert narrowed(closed, [(__file__, line)])[1] == 1
