"""Shuffling one client's padded examples on the device, inside a program."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def reshuffle(key: jax.Array, arrays: object, mask: Bool[Array, " examples"]) -> tuple[Any, Bool[Array, " examples"]]:
    """Shuffles one client's examples; padding stays at the end.

    Call it once per local epoch, inside the function that runs for each client.

    Args:
        key: A PRNG key.
        arrays: A pytree of arrays `[examples, *shape]`.
        mask: True where there is an example, `[examples]`.

    Returns:
        The arrays and the mask in the new order.

    Example:
        >>> x, mask = reshuffle(jax.random.key(0), jnp.array([1, 2, 0, 0]), jnp.array([True, True, False, False]))
        >>> sorted(x[:2].tolist()), mask.tolist()
        ([1, 2], [True, True, False, False])
    """
    # Uniform draws are below 1, so padding always sorts after the examples.
    order = jnp.argsort(jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0))
    return jax.tree.map(lambda value: jnp.asarray(value)[order], arrays), jnp.asarray(mask)[order]
