"""What each collective of a context gives, and what the compiler makes of it."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import workbench as wb
from workbench.replicate import Replicator

X = np.arange(32, dtype=np.float32).reshape(4, 8)  # four replicas, eight numbers each
RING = np.roll(X, 1, axis=0)
CASES = {
    "sum": (lambda ctx, x: ctx.all_reduce(x, "sum"), np.tile(X.sum(0), (4, 1)), "all-reduce"),
    "mean": (lambda ctx, x: ctx.all_reduce(x, "mean"), np.tile(X.mean(0), (4, 1)), "all-reduce"),
    "min": (lambda ctx, x: ctx.all_reduce(x, "min"), np.tile(X[0], (4, 1)), "all-reduce"),
    "max": (lambda ctx, x: ctx.all_reduce(x, "max"), np.tile(X[3], (4, 1)), "all-reduce"),
    "first": (lambda ctx, x: ctx.all_reduce(x, "first"), np.tile(X[0], (4, 1)), "all-reduce"),
    "broadcast": (lambda ctx, x: ctx.broadcast(x, source=2), np.tile(X[2], (4, 1)), "all-reduce"),
    "all_gather": (lambda ctx, x: ctx.all_gather(x), np.tile(X, (4, 1, 1)), "all-gather"),
    "reduce_scatter": (lambda ctx, x: ctx.reduce_scatter(x), X.sum(0).reshape(4, 2), "reduce-scatter"),
    "reduce_scatter mean": (lambda ctx, x: ctx.reduce_scatter(x, "mean"), X.mean(0).reshape(4, 2), "reduce-scatter"),
    "all_to_all": (
        lambda ctx, x: ctx.all_to_all(x),
        X.reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8),
        "all-to-all",
    ),
    "permute ring": (lambda ctx, x: ctx.permute(x, 1), RING, "collective-permute"),
    "permute one": (lambda ctx, x: ctx.permute(x, {0: 3}), np.stack([X[0] * 0] * 3 + [X[0]]), "collective-permute"),
    "merge_call": (
        lambda ctx, x: ctx.merge_call(lambda all_x: jnp.sort(all_x, 0)[2], x),
        np.tile(X[2], (4, 1)),
        "all-gather",
    ),
}
MESHES = ("no mesh", "Auto", "Explicit", "Auto with model", "Explicit with model")


def on(mesh):
    if mesh == "no mesh":
        return contextlib.nullcontext()
    axes = {"replicas": 4, "model": 2} if "model" in mesh else {"replicas": 4}
    return jax.set_mesh(wb.make_mesh(axes, axis_types=getattr(AxisType, mesh.split()[0])))


def skip_what_jax_cannot_lower(name, mesh):
    if jax.__version_info__ >= (0, 11) and name.startswith("reduce_scatter") and mesh == "Explicit with model":
        pytest.xfail("JAX 0.11 cannot lower a psum_scatter inside of a shard_map over one of two explicit axes")


def program_of(fn):
    return Replicator(replicas=4).step(lambda ctx, batch, state: (state, fn(ctx, batch)))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", CASES, ids=str)
def test_collective_gives_every_replica_its_value(name, mesh):
    skip_what_jax_cannot_lower(name, mesh)
    fn, expected, _ = CASES[name]
    with on(mesh):
        result = wb.jit(program_of(fn))(X, ())[1]
    np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("mesh", MESHES[1:])
@pytest.mark.parametrize("name", CASES, ids=str)
def test_compiled_collective_is_the_one_written(name, mesh):
    skip_what_jax_cannot_lower(name, mesh)
    fn, _, kind = CASES[name]
    with on(mesh):
        found = wb.inspect(program_of(fn))(X, ()).module.collectives
    assert [(c.kind, c.axes, c.executions) for c in found] == [(kind, ("replicas",), 1.0)]


@pytest.mark.parametrize("mesh", MESHES[1:3])
def test_compiled_collectives_belong_to_the_stage_of_the_replicas(mesh):
    with on(mesh):
        record = wb.inspect(program_of(lambda ctx, x: ctx.permute(ctx.all_gather(x), 1)))(X, ())
    stages = {stage.path: stage.kind for stage in record.plan.stages}
    assert [c.kind for c in record.module.collectives] == ["all-gather", "collective-permute"]
    assert [stages[path] for c in record.module.collectives for path in c.stages] == ["clients", "clients"]


@pytest.mark.parametrize("mesh", MESHES[:3])
def test_replica_id_counts_the_replicas(mesh):
    with on(mesh):
        ids = wb.jit(program_of(lambda ctx, x: ctx.replica_id))(X, ())[1]
    assert ids.tolist() == [0, 1, 2, 3]
    assert ids.dtype == jnp.int32


def test_broadcast_takes_bools_and_ignores_nans_of_the_others():
    values = (np.array([True, False, True, False]), np.array([np.nan, np.nan, 7, np.nan], np.float32))
    flags, numbers = wb.jit(program_of(lambda ctx, x: ctx.broadcast(x, source=2)))(values, ())[1]
    assert flags.tolist() == [True] * 4
    assert numbers.tolist() == [7.0] * 4


WRONG = {
    "unknown op": (lambda ctx, x: ctx.all_reduce(x, "prod"), "`all_reduce` was given op='prod'.*'first'.*merge_call"),
    "op of reduce_scatter": (
        lambda ctx, x: ctx.reduce_scatter(x, "max"),
        "`reduce_scatter` was given op='max'.*sums.*all_reduce",
    ),
    "parts of reduce_scatter": (
        lambda ctx, x: ctx.reduce_scatter({"g": x[:6]}),
        r"tree\['g'\] of shape \(6,\).*4 equal parts.*multiple of 4.*pad",
    ),
    "parts of all_to_all": (
        lambda ctx, x: ctx.all_to_all(x, split_axis=1),
        r"`all_to_all` was given tree of shape \(8,\).*axis 1.*multiple.*pad",
    ),
    "source": (
        lambda ctx, x: ctx.broadcast(x, source=4),
        r"`broadcast` was given replicas \[4\] in `source`.*4 replicas.*0 to 3.*all_gather",
    ),
    "traced source": (
        lambda ctx, x: ctx.broadcast(x, source=ctx.replica_id),
        "`broadcast` was given replicas.*Python int.*all_gather",
    ),
    "receivers": (
        lambda ctx, x: ctx.permute(x, {0: 1, 2: 1}),
        r"replicas \[1\] receive from more than one.*at most one.*all_reduce",
    ),
    "not an array": (lambda ctx, x: ctx.all_gather({"name": "adam"}), r"tree\['name'\] = 'adam'.*arrays.*close over"),
}


@pytest.mark.parametrize("name", WRONG, ids=str)
def test_wrong_arguments_of_a_collective_say_what_is_right(name):
    fn, message = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=re.compile(message, re.DOTALL)):
        program_of(fn)(X, ())


def test_context_outside_of_a_step_says_where_it_is_good():
    with pytest.raises(
        ValueError, match=r"`all_reduce`.*outside the replicas.*4 replicas.*inside `step_fn`.*Replicator.run"
    ):
        Replicator(replicas=4).context.all_reduce(1.0)
