"""`jax.pmap` functions: their stages, collectives, sharding and memory, as of any other program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.records.program import SourceLine

DEVICES = 4


@pytest.fixture(autouse=True, scope="module")
def enough_devices():
    if jax.device_count() < DEVICES:
        pytest.skip(f"needs {DEVICES} devices")


def step(w, x):
    y = jnp.tanh(x @ w)
    return jax.lax.pmean(y.sum(), "batch")


@pytest.fixture(scope="module")
def traced():
    return wb.trace(jax.pmap(step, axis_name="batch", in_axes=(None, 0)))(jnp.ones((8, 8)), jnp.ones((DEVICES, 3, 8)))


@pytest.fixture(scope="module")
def program(traced):
    return traced.inspect()


def test_stages_of_a_pmap_function_are_those_of_its_body(traced):
    assert traced.plan.name == "step"
    assert sum(stage.flops for stage in traced.plan.walk()) == 2 * DEVICES * 3 * 8 * 8
    assert not traced.plan.notes


def test_collective_has_the_axis_and_line_of_the_user(program):
    (collective,) = program.module.collectives
    assert (collective.kind, collective.axes, collective.group_size) == ("all-reduce", ("batch",), DEVICES)
    line = step.__code__.co_firstlineno + 2
    assert [source.line for source in collective.sources] == [line]
    assert isinstance(collective.sources[0], SourceLine)


def test_mapped_argument_lies_on_the_axis_and_the_other_on_every_device(program):
    weights, batch = program.inputs.leaves
    assert (weights.path, batch.path) == ("w", "x")
    assert weights.spec == ((), ())
    assert batch.spec == (("batch",), (), ())
    assert program.mesh.shape == (DEVICES,)
    assert program.module.flops == 2 * 3 * 8 * 8


def test_function_is_lowered_as_pmap_lowers_it():
    mapped = jax.pmap(lambda w, x: x + w.sum(), in_axes=(None, 0), donate_argnums=1)
    w, x = jnp.ones((8, 8)), jnp.ones((DEVICES, 3, 8))
    theirs = mapped.lower(w, x).compile()
    ours = wb.trace(mapped)(w, x).inspect().module
    assert ours.memory.alias_bytes == theirs.memory_analysis().alias_size_in_bytes == 4 * 3 * 8
    assert len(ours.instructions) == len(wb.inspect(theirs).module.instructions)


def test_static_and_keyword_arguments_and_shapes_are_accepted():
    mapped = jax.pmap(lambda n, x, *, y: x * n + y, static_broadcasted_argnums=0)
    shape = jax.ShapeDtypeStruct((DEVICES, 5), np.float32)
    given = wb.trace(mapped)(3, jnp.ones((DEVICES, 5)), y=jnp.ones((DEVICES, 5)))
    assert given.inspect().module.devices == DEVICES
    assert wb.inspect(jax.pmap(lambda x: x * 2))(shape).module.devices == DEVICES


def test_measured_results_are_those_of_pmap(traced):
    run = traced.measure(rounds=1)
    assert {stage.where for stage in run.stages} >= {f"cpu:{device}" for device in range(DEVICES)}
