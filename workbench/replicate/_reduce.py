"""Collectives that JAX lacks or cannot differentiate, over a named axis."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from workbench._types import PyTree


def take_from(x: jax.Array, source: int, axis: str) -> Array:
    """Broadcasts the value of replica `source` with one all-reduce."""
    dtype = x.dtype
    counted = x.astype(jnp.int8) if dtype == jnp.bool_ else x
    is_source = jax.lax.axis_index(axis) == source
    return jax.lax.psum(jnp.where(is_source, counted, jnp.zeros_like(counted)), axis).astype(dtype)


def permute(x: object, pairs: Sequence[tuple[int, int]], count: int, axis: str) -> PyTree[Array]:
    """`jax.lax.ppermute` for partial permutations, which JAX 0.10 does not support under `vmap`."""
    target_of = dict(pairs)
    silent = [i for i in range(count) if i not in target_of]
    deaf = [i for i in range(count) if i not in target_of.values()]
    target_of |= {i: i for i in silent if i in deaf}  # sending to itself costs nothing
    rest = zip([i for i in silent if i not in deaf], [i for i in deaf if i not in silent], strict=True)
    moved = jax.lax.ppermute(x, axis, sorted((target_of | dict(rest)).items()))
    if not deaf:
        return moved
    receives = jnp.asarray([i not in deaf for i in range(count)])[jax.lax.axis_index(axis)]
    return jnp.where(receives, moved, jnp.zeros_like(moved))


def extreme(x: object, axis: str, reduce: Callable) -> Array:
    """`jax.lax.pmin` or `pmax` with the derivative of the extreme value, shared among ties."""

    @jax.custom_jvp
    def call(value: object) -> PyTree[Array]:
        return reduce(value, axis)

    @call.defjvp
    def _jvp(primals: PyTree[Array], tangents: PyTree[Array]) -> tuple[Array, Array]:
        (value,), (tangent,) = primals, tangents
        result = call(value)
        holds = (value == result).astype(tangent.dtype)
        return result, jax.lax.psum(tangent * holds, axis) / jax.lax.psum(holds, axis)

    return call(x)


REDUCE: dict[str, Callable[[Any, str], Any]] = {
    "sum": jax.lax.psum,
    "mean": jax.lax.pmean,
    "min": lambda x, axis: extreme(x, axis, jax.lax.pmin),
    "max": lambda x, axis: extreme(x, axis, jax.lax.pmax),
    "first": lambda x, axis: take_from(x, 0, axis),
}
