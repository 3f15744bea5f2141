"""Batch normalisation over all replicas' batches."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from workbench.replicate._context import ReplicaContext


def batch_moments(ctx: ReplicaContext, x: Array) -> tuple[Array, Array]:
    """Computes the mean and variance of each feature over all replicas' examples.

    For evaluation, store running averages of the mean and variance in the state, and pass them to `sync_batch_norm` as
    `moments`. Costs one all-gather of `3 * features` numbers per replica.

    Args:
        ctx: The replica's context.
        x: This replica's examples `[batch, ..., features]`.

    Returns:
        Mean and variance `[features]`, at least float32, identical on all replicas. The variance is the mean of the
        squared deviations, without Bessel's correction.

    Raises:
        PlacementError: outside `step_fn`.

    Example:
        >>> from workbench.replicate import Replicator
        >>> def step(ctx, batch, state):
        ...     return state, batch_moments(ctx, batch)
        >>> batches = jnp.array([[[1.0]], [[3.0]]])  # two replicas, one example each
        >>> mean, variance = Replicator(replicas=2).step(step)(batches, ())[1]
        >>> mean.ravel().tolist(), variance.ravel().tolist()
        ([2.0, 2.0], [1.0, 1.0])

    References:
        Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    reference, shift, variance = _moments(ctx, x)
    return reference + shift, variance


def sync_batch_norm(
    ctx: ReplicaContext,
    x: Array,
    scale: ArrayLike = 1.0,
    offset: ArrayLike = 0.0,
    *,
    epsilon: float = 1e-5,
    moments: tuple[Array, Array] | None = None,
) -> jax.Array:
    """Normalises `x` with the mean and variance over all replicas' examples.

    Costs one all-gather of `3 * features` numbers per replica. The moments are computed in float32 (float64 for float64
    input), and the mean is subtracted before squaring, so low precision and large means are safe.

    Args:
        ctx: The replica's context.
        x: This replica's examples `[batch, ..., features]`.
        scale: Factor for the normalised features, scalar or `[features]`.
        offset: Offset added to the normalised features, scalar or `[features]`.
        epsilon: Number added to the variance.
        moments: Mean and variance `[features]` to use instead of the batch statistics, such as running averages in
            evaluation. Nothing is communicated in this case.

    Returns:
        Normalised examples, with the shape and dtype of `x`.

    Raises:
        PlacementError: outside `step_fn`.

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
    dtype = _wide(x)
    if moments is None:
        reference, shift, variance = _moments(ctx, x)
    else:
        reference, variance = moments
        shift = jnp.zeros((), dtype)
    row = (1,) * (x.ndim - 1) + (-1,)
    reference, shift, variance, scale, offset = (
        jnp.asarray(value, dtype).reshape(row) for value in (reference, shift, variance, scale, offset)
    )
    normal = (x.astype(dtype) - reference - shift) * jax.lax.rsqrt(variance + epsilon)
    return (normal * scale + offset).astype(x.dtype)


def _moments(ctx: ReplicaContext, x: Array) -> tuple[Array, Array, Array]:
    """Computes the reference, shift and variance over all replicas; mean = reference + shift."""
    axes, x = tuple(range(x.ndim - 1)), x.astype(_wide(x))
    # Distances to a rounded mean are small and exact, so their sums keep precision for large means.
    reference = jax.lax.stop_gradient(jnp.mean(x, axes, keepdims=True))
    distance = x - reference
    shift = jnp.mean(distance, axes, keepdims=True)
    variance = jnp.mean((distance - shift) ** 2, axes)
    local = jnp.stack([reference.reshape(variance.shape), shift.reshape(variance.shape), variance])
    references, shifts, variances = jnp.moveaxis(ctx.all_gather(local), 1, 0)  # one message for all three values
    reference = jax.lax.stop_gradient(references[:1])
    shifts = jax.lax.stop_gradient(references - reference) + shifts
    shift = jnp.mean(shifts, 0, keepdims=True)
    return reference[0], shift[0], jnp.mean(variances, 0) + jnp.mean((shifts - shift) ** 2, 0)


def _wide(x: Array) -> jnp.dtype:
    return x.dtype if x.dtype.itemsize >= 4 else jnp.dtype(jnp.float32)
