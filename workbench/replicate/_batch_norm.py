"""Batch normalisation over the batches of all replicas."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from workbench.replicate._context import ReplicaContext


def sync_batch_norm(
    ctx: ReplicaContext, x: Array, scale: ArrayLike = 1.0, offset: ArrayLike = 0.0, *, epsilon: float = 1e-5
) -> jax.Array:
    """Normalises `x` with the mean and variance over the examples of all replicas, not only those of this one.

    Costs one all-reduce of `2 * features` numbers. Small batches per replica are what makes the difference.

    Args:
        ctx: The context of the replica.
        x: Examples of this replica `[batch, ..., features]`.
        scale: What normalised features are multiplied with, scalar or `[features]`.
        offset: What is added to them, scalar or `[features]`.
        epsilon: Added to the variance.

    Returns:
        As `x`, normalised per feature.

    Raises:
        PlacementError: outside of `step_fn`.

    Example:
        >>> from workbench.replicate import Replicator
        >>> def step(ctx, batch, state):
        ...     return state, sync_batch_norm(ctx, batch, epsilon=0.0)
        >>> batches = jnp.array([[[1.0]], [[3.0]]])  # two replicas, one example each
        >>> Replicator(replicas=2).step(step)(batches, ())[1].ravel().tolist()
        [-1.0, 1.0]

    References:
        Ioffe & Szegedy, 2015; across replicas in Brock, Donahue & Simonyan (BigGAN), 2018.
    """
    axes = tuple(range(x.ndim - 1))
    moments = ctx.all_reduce(jnp.stack([jnp.mean(x, axes), jnp.mean(x * x, axes)]), "mean")
    mean, variance = moments[0], moments[1] - moments[0] ** 2
    shape = (1,) * (x.ndim - 1) + (-1,)
    normal = (x - mean.reshape(shape)) * jax.lax.rsqrt(jnp.maximum(variance, 0) + epsilon).reshape(shape)
    scale, offset = (jnp.asarray(v, x.dtype) for v in (scale, offset))
    return normal * scale.reshape(shape) + offset.reshape(shape)
