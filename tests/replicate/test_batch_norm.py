"""`sync_batch_norm` against float64 and against the layer of Flax, in every precision and at every mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.replicate import Replicator, batch_moments, sync_batch_norm

REPLICAS, ROWS, FEATURES = 4, 64, 3


def rows_of(dtype, mean, std):
    drawn = np.random.default_rng(0).normal(size=(REPLICAS, ROWS, FEATURES))
    drawn += np.arange(REPLICAS)[:, None, None]  # replicas differ, as when each one sees two classes
    return jnp.asarray(mean + std * drawn, dtype)


def by_numpy(x, epsilon=1e-5):
    x = np.asarray(x.astype(jnp.float32), np.float64).reshape(-1, FEATURES)
    return ((x - x.mean(0)) / np.sqrt(x.var(0) + epsilon)).reshape(REPLICAS, ROWS, FEATURES)


def normalised(x):
    return Replicator(replicas=REPLICAS).step(lambda ctx, batch, state: (state, sync_batch_norm(ctx, batch)))(x, ())[1]


@pytest.mark.parametrize(
    ("dtype", "means", "std", "tolerance"),
    [
        ("float32", (0, 10, 1000, 3000), 1.0, 2e-6),
        ("bfloat16", (0, 3, 10, 100), 1.0, 2e-2),
        ("bfloat16", (10,), 0.3, 2e-2),
        ("float16", (0, 10, 1000), 1.0, 4e-3),
        ("float16", (0,), 300.0, 4e-3),
    ],
)
def test_normalised_rows_are_those_of_float64(dtype, means, std, tolerance):
    for mean in means:
        x = rows_of(dtype, mean, std)
        result = normalised(x)
        assert result.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(result, np.float64), by_numpy(x), atol=tolerance, rtol=tolerance)


def test_low_precision_is_no_further_from_float64_than_the_layer_of_flax():
    nnx = pytest.importorskip("flax.nnx")
    x = rows_of("bfloat16", 3, 1.0)
    layer = nnx.BatchNorm(FEATURES, use_running_average=False, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # Flax relies on both
        theirs = layer(x.reshape(-1, FEATURES)).reshape(x.shape)
    ours, flax = (np.abs(np.asarray(y, np.float64) - by_numpy(x)).max() for y in (normalised(x), theirs))
    assert ours <= 1.5 * flax


def test_derivative_is_that_of_the_whole_batch_on_one_machine():
    x = rows_of("float32", 5, 1.0)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=x.shape), jnp.float32)

    def step(ctx, batch, state):
        rows, factors = batch
        return state, jax.grad(lambda r: ctx.all_reduce(jnp.sum(factors * sync_batch_norm(ctx, r) ** 3)))(rows)

    def whole(x):
        flat = x.reshape(-1, FEATURES)
        normal = (flat - flat.mean(0, keepdims=True)) / jnp.sqrt(flat.var(0, keepdims=True) + 1e-5)
        return jnp.sum(weights.reshape(-1, FEATURES) * normal**3)

    ours = Replicator(replicas=REPLICAS).step(step)((x, weights), ())[1]
    np.testing.assert_allclose(ours / REPLICAS, jax.grad(whole)(x), rtol=2e-3, atol=2e-4)


def test_moments_are_those_of_all_rows_and_normalise_without_communication():
    x = rows_of("float32", 1000, 2.0)
    mesh = wb.make_mesh(replicas=REPLICAS)
    replicator = Replicator(mesh)
    mean, variance = replicator.step(lambda ctx, batch, state: (state, batch_moments(ctx, batch)))(x, ())[1]
    flat = np.asarray(x, np.float64).reshape(-1, FEATURES)
    np.testing.assert_allclose(mean[0], flat.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance[0], flat.var(0), rtol=1e-5)

    running = (jnp.full(FEATURES, 990.0), jnp.full(FEATURES, 4.0))
    evaluate = replicator.step(lambda ctx, batch, state: (state, sync_batch_norm(ctx, batch, moments=running)))
    np.testing.assert_allclose(evaluate(x, ())[1], (np.asarray(x) - 990) / np.sqrt(4 + 1e-5), rtol=1e-5)
    with jax.set_mesh(mesh):
        module = wb.inspect(evaluate)(x, ()).module
    assert module is not None
    assert module.collectives == ()
