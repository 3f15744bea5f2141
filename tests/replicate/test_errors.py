"""Steps, inputs and meshes that cannot be: found when traced, before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import DataError, MeshError, PlacementError, ProgramError
from workbench.replicate import Replicator, wrap_optimizer

X = np.arange(8, dtype=np.float32).reshape(4, 2)


def trace(step, state=(), **options):
    return jax.eval_shape(Replicator(replicas=4).step(step, **options), X, state)


def python_branch(ctx, batch, state):
    if ctx.replica_id == 0:
        batch = ctx.all_reduce(batch)
    return state, ctx.all_reduce(batch, "max")


def different_branches(ctx, batch, state):
    return state, jax.lax.cond(
        ctx.replica_id == 0,
        lambda x: ctx.all_reduce(ctx.all_reduce(x, "max"), "sum"),
        lambda x: ctx.all_reduce(ctx.all_reduce(x, "sum"), "max"),
        batch,
    )


def branch_by_data(ctx, batch, state):
    return state, jax.lax.cond(batch[0] > 0, lambda x: ctx.all_gather(x)[0], lambda x: x, batch)


def loop_by_data(ctx, batch, state):
    return state, jax.lax.while_loop(lambda x: x[0] < 9, lambda x: x + ctx.all_reduce(x, "mean"), batch)


def nested(ctx, batch, state):
    def turn(carry, _):
        return jax.jit(lambda x: branch_by_data(ctx, x, ())[1])(carry), ()

    return state, jax.lax.scan(turn, batch, length=2)[0]


UNEVEN = {
    "branches in another order": (
        different_branches,
        r"`cond` at test_errors.py:\d+, whose branches call: psum → pmax \| pmax → psum",
    ),
    "a branch without": (branch_by_data, r"`cond` at test_errors.py:\d+, whose branches call: none \| all_gather"),
    "a loop": (loop_by_data, r"`while_loop` at test_errors.py:\d+, whose iterations call: none \| psum"),
    "a branch in a scan and a jit": (nested, r"`cond` at test_errors.py:\d+, whose branches call: none \| all_gather"),
}


@pytest.mark.parametrize("name", UNEVEN, ids=str)
def test_collectives_that_only_some_replicas_call_are_an_error_when_traced(name):
    step, found = UNEVEN[name]
    with pytest.raises(ProgramError, match=found) as raised:
        trace(step)
    for part in ("its 4 replicas", "The condition depends on", "All replicas must call the same", "`jnp.where`"):
        assert part in str(raised.value)


def test_python_branch_on_the_replica_is_an_error_when_traced():
    with pytest.raises(ProgramError, match=r"`python_branch` was traced once for all 4 replicas.*bool.*`jnp.where`"):
        trace(python_branch)


def test_condition_that_is_equal_on_all_replicas_may_hold_collectives():
    def step(ctx, batch, count):
        summed = jax.lax.cond(count > 0, lambda x: ctx.all_reduce(x), lambda x: x, batch)
        agreed = ctx.all_reduce(batch[0], "max") > 2
        return count + 1, jax.lax.cond(agreed, lambda x: ctx.all_reduce(x), lambda x: x, summed)

    with jax.set_mesh(wb.make_mesh(replicas=4)):
        _, result = wb.jit(Replicator(replicas=4).step(step))(X, jnp.zeros(4, jnp.int32))
    # The count is 0, so the first branch is not taken; the greatest first number is 6 > 2, so the second sums up.
    np.testing.assert_allclose(result, np.tile(X.sum(0), (4, 1)))


def test_branch_on_data_without_collectives_is_fine():
    def step(ctx, batch, state):
        return state, jax.lax.cond(batch[0] > 2, lambda x: -x, lambda x: x, batch)

    result = Replicator(replicas=4).step(step)(X, ())[1]
    np.testing.assert_allclose(result, np.where(X[:, :1] > 2, -X, X))


STATES = {
    "batch": lambda ctx, batch, state: ({**state, "w": state["w"] + batch}, ()),
    "replica": lambda ctx, batch, state: ({**state, "w": state["w"] * ctx.replica_id.astype(jnp.float32)}, ()),
    "permuted": lambda ctx, batch, state: ({**state, "w": ctx.permute(batch, 1)}, ()),
    "grown in a scan": lambda ctx, batch, state: (
        {**state, "w": jax.lax.scan(lambda c, _: (c + batch, ()), state["w"], length=2)[0]},
        (),
    ),
}


@pytest.mark.parametrize("name", STATES, ids=str)
def test_state_that_differs_between_replicas_is_an_error_when_traced(name):
    state = {"b": jnp.zeros((4, 2)), "w": jnp.zeros((4, 2))}
    with pytest.raises(
        ProgramError, match=r"differ between the 4 replicas: state\['w'\] depend.*`ctx.all_reduce`.*check_state"
    ):
        trace(STATES[name], state)


def test_state_may_be_declared_equal():
    state = {"b": jnp.zeros((4, 2)), "w": jnp.zeros((4, 2))}
    assert trace(STATES["batch"], state, check_state=False)[0]["w"].shape == (4, 2)


RESULTS = {
    "no tuple": (lambda ctx, batch, state: state, (), r"returned a tuple of 0.*\(state, metrics\)"),
    "another dtype": (
        lambda ctx, batch, state: ({"w": state["w"].astype(jnp.int32)}, ()),
        {"w": jnp.zeros(4)},
        r"state\['w'\]: float32\[\] before, int32\[\] after.*metrics",
    ),
    "another leaf": (
        lambda ctx, batch, state: ({**state, "n": 1}, ()),
        {"w": jnp.zeros(4)},
        r"state\['n'\]: absent before, int32\[\] after.*metrics",
    ),
}


@pytest.mark.parametrize("name", RESULTS, ids=str)
def test_wrong_results_of_a_step_say_what_it_returns(name):
    step, state, message = RESULTS[name]
    with pytest.raises(ProgramError, match=message):
        trace(step, state)


INPUTS = {
    "not an iterator": (lambda ctx: 7, r"returned an object of type int for replicas \[0, 1\].*iterator.*generator"),
    "ends early": (
        lambda ctx: iter([1.0] * (2 if ctx.replica_id else 3)),
        r"no batch for step 2 of 3 on replicas \[1\] of 2.*every step.*repeat",
    ),
    "unlike": (
        lambda ctx: iter([np.zeros(2 + ctx.replica_id)] * 3),
        r"differ in form at step 0: replica 0 has float\d\d\[2\], but replicas \[1\] have float\d\d\[3\].*pad",
    ),
}


@pytest.mark.parametrize("name", INPUTS, ids=str)
def test_inputs_that_some_replicas_lack_name_these_replicas(name):
    input_fn, message = INPUTS[name]
    with pytest.raises(DataError, match="(?i)" + message):
        Replicator(replicas=2).run(lambda ctx, batch, state: (state, ()), input_fn, 0.0, 3)


def test_number_of_steps_is_checked():
    with pytest.raises(PlacementError, match=r"`run` was given steps=-1.*at least 0.*steps=100"):
        Replicator(replicas=2).run(lambda ctx, batch, state: (state, ()), lambda ctx: iter([]), 0.0, -1)


@pytest.mark.parametrize("replicas", [None, 0, 2.5, True], ids=str)
def test_number_of_replicas_is_a_positive_int(replicas):
    with pytest.raises(
        PlacementError, match=r"`Replicator` was given replicas=.*positive int.*make_mesh\(replicas=8\)"
    ):
        Replicator(replicas=replicas)


def test_mesh_without_the_axis_of_the_replicas_names_its_axes():
    with pytest.raises(MeshError, match=r"axes {'clients': 2}, but the axis of the replicas is 'replicas'.*`axis=`"):
        Replicator(wb.make_mesh(clients=2))


def test_replicas_that_positions_cannot_share_equally_are_an_error():
    with pytest.raises(MeshError, match=r"given 3 replicas for the mesh axis 'replicas' of size 2.*multiple of 2"):
        Replicator(wb.make_mesh(replicas=2), replicas=3)


@pytest.mark.parametrize("accumulate", [0, 1.5, True], ids=str)
def test_steps_of_one_update_are_a_positive_int(accumulate):
    import optax

    with pytest.raises(ProgramError, match=r"`wrap_optimizer` was given accumulate=.*positive int.*fourth"):
        wrap_optimizer(Replicator(replicas=2).context, optax.sgd(0.1), accumulate=accumulate)
