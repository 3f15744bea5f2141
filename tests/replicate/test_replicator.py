"""The same single-replica code on any number of replicas, under any mesh."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.replicate import Replicator, sync_batch_norm

pytestmark = pytest.mark.usefixtures("little_optimized")

STEPS, GLOBAL_BATCH, FEATURES = 4, 16, 3
RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(STEPS, GLOBAL_BATCH, FEATURES)).astype(np.float32)
WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)
SETTINGS = [
    pytest.param(replicas, mesh, id=f"{replicas} replicas, {mesh}")
    for replicas in (1, 2, 8)
    for mesh in ("no mesh", "Auto", "Explicit")
]


def replicator_on(replicas, mesh, **axes):
    if mesh == "no mesh":
        return Replicator(replicas=replicas)
    return Replicator(wb.make_mesh(replicas=replicas, **axes, axis_types=getattr(AxisType, mesh)))


def under(replicator):
    return contextlib.nullcontext() if replicator.mesh is None else jax.set_mesh(replicator.mesh)


def batches(ctx):
    share = GLOBAL_BATCH // ctx.num_replicas
    for step in DATA:
        mine = step[ctx.replica_id * share : (ctx.replica_id + 1) * share]
        yield mine, mine @ WEIGHTS + 1


def start():
    return {"w": jnp.ones(FEATURES), "b": jnp.zeros(())}


def loss_of(params: Any, batch: Any, norm: Any) -> Any:
    x, y = batch
    return jnp.mean((norm(x) @ params["w"] + params["b"] - y) ** 2)


def training_step(optimizer):
    def step(ctx, batch, state):
        params, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(params, batch, lambda x: sync_batch_norm(ctx, x))
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), {"loss": ctx.all_reduce(loss, "mean")}

    return step


def by_one_machine(every=1) -> Any:
    """The oracle: plain optax on the global batch; with `every`, on the mean gradient of so many steps."""
    optimizer = optax.sgd(0.05, momentum=0.9)
    params: Any = start()
    moments = optimizer.init(params)

    def norm(x):
        return (x - x.mean(0, keepdims=True)) * jax.lax.rsqrt(x.var(0, keepdims=True) + 1e-5)

    held = []
    for step in DATA:
        held.append(jax.grad(loss_of)(params, (step, step @ WEIGHTS + 1), norm))
        if len(held) == every:
            mean = jax.tree.map(lambda *g: sum(g) / every, *held)
            updates, moments = optimizer.update(mean, moments, params)
            params, held = optax.apply_updates(params, updates), []
    return params


@pytest.mark.parametrize(("replicas", "mesh"), SETTINGS)
def test_training_gives_the_parameters_of_one_machine(replicas, mesh):
    replicator = replicator_on(replicas, mesh)
    optimizer = replicator.wrap_optimizer(optax.sgd(0.05, momentum=0.9))
    (params, _), metrics = replicator.run(training_step(optimizer), batches, (start(), optimizer.init(start())), STEPS)
    for name, value in by_one_machine().items():
        np.testing.assert_allclose(params[name], value, atol=1e-5)
    assert metrics["loss"].shape == (STEPS, replicas)


@pytest.mark.parametrize("mesh", ["no mesh", "Auto", "Explicit"])
def test_accumulated_gradients_make_one_update_of_their_mean(mesh):
    replicator = replicator_on(2, mesh)
    optimizer = replicator.wrap_optimizer(optax.sgd(0.05, momentum=0.9), accumulate=2)
    with jax.numpy_dtype_promotion("standard"):  # optax.MultiSteps divides float32 by int32
        (params, _), _ = replicator.run(training_step(optimizer), batches, (start(), optimizer.init(start())), STEPS)
    for name, value in by_one_machine(every=2).items():
        np.testing.assert_allclose(params[name], value, atol=1e-5)


def test_more_replicas_than_mesh_positions_give_the_same():
    replicator = Replicator(wb.make_mesh(replicas=2), replicas=4)
    optimizer = replicator.wrap_optimizer(optax.sgd(0.05, momentum=0.9))
    (params, _), _ = replicator.run(training_step(optimizer), batches, (start(), optimizer.init(start())), STEPS)
    for name, value in by_one_machine().items():
        np.testing.assert_allclose(params[name], value, atol=1e-5)


@pytest.mark.parametrize("mesh", ["no mesh", "Auto", "Explicit"])
def test_gradient_of_the_program_goes_through_its_collectives(mesh):
    # Each replica's loss is (sum over replicas of w*x)^2 = S^2; with 4 replicas the sum of losses is 4 S^2 and its
    # derivative by one replica's own w is 8 S x. With w = 1 and x = 0, 1, 2, 3: S = 6, so 48 x.
    replicator = replicator_on(4, mesh)
    x = jnp.arange(4.0)

    def step(ctx, batch, state):
        return state, ctx.all_reduce(state["w"] * batch, "sum") ** 2

    program = replicator.step(step)
    with under(replicator):
        states = replicator.replicate({"w": jnp.float32(1)})
        gradient = wb.jit(jax.grad(lambda s: jnp.sum(program(x, s)[1])))(states)["w"]
    assert gradient.tolist() == [0.0, 48.0, 96.0, 144.0]


@pytest.mark.parametrize("op", ["min", "max"])
def test_gradient_of_an_extreme_goes_to_the_replica_that_holds_it(op):
    replicator = Replicator(replicas=3)
    program = replicator.step(lambda ctx, batch, state: (state, ctx.all_reduce(batch, op)))
    gradient = jax.grad(lambda x: program(x, ())[1][0])(jnp.array([2.0, 5.0, -1.0]))
    assert gradient.tolist() == ([0.0, 0.0, 1.0] if op == "min" else [0.0, 1.0, 0.0])


def test_state_stays_sharded_over_the_devices_of_a_replica():
    mesh = wb.make_mesh(replicas=4, model=2)
    replicator = Replicator(mesh)
    weights = jax.device_put(jnp.ones((FEATURES, 4)), NamedSharding(mesh, P(None, "model")))

    def step(ctx, batch, w):
        hidden = jax.lax.with_sharding_constraint(batch[0] @ w, P(None, "model"))
        return w - 0.1 * ctx.all_reduce(jnp.mean(hidden, 0)[None] * jnp.ones_like(w), "mean"), ()

    after, _ = replicator.run(step, batches, weights, 2)
    assert after.sharding.spec == P(None, "model")
    # By hand: every row of w loses 0.1 * mean(x) @ w, twice.
    w = np.ones((FEATURES, 4), np.float32)
    for x in DATA[:2]:
        w = w - 0.1 * (x.mean(0) @ w)[None]
    np.testing.assert_allclose(after, w, atol=1e-5)


def test_state_of_every_kind_of_array_survives_a_round_trip():
    replicator = Replicator(wb.make_mesh(replicas=2))
    state = {"key": jax.random.key(3), "count": jnp.int32(4), "flag": jnp.array([True, False])}

    def step(ctx, batch, state):
        return {**state, "count": state["count"] + 1}, jax.random.fold_in(state["key"], ctx.replica_id) == state["key"]

    after, _ = replicator.run(step, lambda ctx: iter([0.0]), state, 1)
    assert int(after["count"]) == 5
    assert after["flag"].tolist() == [True, False]
    assert bool(jnp.all(jax.random.key_data(after["key"]) == jax.random.key_data(state["key"])))


def test_step_is_traced_once_for_many_steps():
    traces = []

    def step(ctx, batch, state):
        traces.append(1)
        return state + ctx.all_reduce(batch, "sum"), ()

    Replicator(wb.make_mesh(replicas=2)).run(step, lambda ctx: iter([1.0] * 2), 0.0, 2)
    after_two = len(traces)
    Replicator(wb.make_mesh(replicas=2)).run(step, lambda ctx: iter([1.0] * 5), 0.0, 5)
    assert len(traces) == 2 * after_two


def test_no_steps_return_the_state_as_it_was():
    state, metrics = Replicator(replicas=2).run(lambda ctx, b, s: (s, ()), lambda ctx: iter([]), jnp.arange(2), 0)
    assert state.tolist() == [0, 1]
    assert metrics is None
