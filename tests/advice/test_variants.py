"""Variants of a program: the mesh on which they are compiled, and constraints whose removal makes them slower."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench._open_types import AS_GIVEN
from workbench.advice import Variants
from workbench.advice._rewrite import with_constraints
from workbench.advice._verify import NothingToChangeError
from workbench.errors import EngineError


def test_variants_have_the_given_mesh_before_all_others():
    given, current, of_arrays = (jax.make_mesh((8,), (name,), axis_types=(AxisType.Auto,)) for name in "abc")
    x = jax.device_put(jnp.ones(8), NamedSharding(of_arrays, P("c")))
    call: Any = wb.trace(jnp.sin)(x)._call

    def axes(**options):
        mesh: Any = Variants(call=call, fn=jnp.sin, args=(x,), kwargs={}, options=options).mesh
        return mesh.axis_names

    assert axes() == ("c",)
    with jax.set_mesh(current):
        assert axes() == ("b",)
        assert axes(mesh=given) == ("a",)


def test_a_constraint_without_which_devices_repeat_work_is_no_finding():
    """Without the constraint nothing is sent, but all devices compute the whole product."""
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    columns = NamedSharding(mesh, P(None, "model"))

    def predict(x, w, v):
        return jax.lax.with_sharding_constraint(x @ w, columns) @ v

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, "bfloat16", sharding=NamedSharding(mesh, P()))

    sizes = shape(1024, 16384), shape(16384, 16384), shape(16384, 1024)
    module: Any = wb.inspect(predict, on="v5e")(*sizes).module
    assert sum(each.wire_bytes or 0.0 for each in module.collectives) > 0
    advice = wb.advise(predict, on="v5e", verify=False)(*sizes)
    assert "costly constraint" not in [finding.rule for finding in advice.findings]


def test_constrained_values_are_counted():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    closed = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.cos(x), x.sum()))(jnp.ones((8, 8)))
    changed, count = with_constraints(closed, (), mesh, {(8, 8): (("data",), ())})
    constraints = [each for each in changed.jaxpr.eqns if "sharding_constraint" in str(each)]
    assert count == len(constraints) == 2


AUTO = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def update(state, batch, scale=2):
    return {"w": state["w"] * scale + batch.sum(0)}


STATE, BATCH = {"w": jnp.ones((8, 4))}, jnp.ones((2, 8, 4))


def variants(fn=update, *, call: Any = None, kwargs=None, **options) -> Any:
    traced: Any = wb.trace(fn)(STATE, BATCH, **(kwargs or {}))._call if call is None else call
    return Variants(call=traced, fn=fn, args=(STATE, BATCH), kwargs=kwargs or {}, options=options)


def changed(given, **change):
    """The call that a change makes, and the options with which it is inspected."""
    return given._changed(lambda call, **options: (call, options), **change)


def test_calls_are_changed_one_way_at_a_time():
    given = variants()
    assert changed(given) == (given.call, {})
    assert changed(given, chunk_size=4) == (given.call, {"chunk_size": (4,)})
    assert changed(given, chunk_size=None) == (given.call, {"chunk_size": (None,)})
    donated, _ = changed(given, donate=0)
    assert donated.donations == {"donate_argnums": (0,), "donate_argnames": ()}
    both, _ = changed(given, donate=(0, 1))
    assert both.donations["donate_argnums"] == (0, 1)


def test_shapes_of_uncommitted_arrays_can_be_donated_with_sharded_arrays():
    """The explorer stores the shapes of its arguments. A metric that is no part of the mesh has no device there."""
    state = {"w": jax.device_put(STATE["w"], NamedSharding(AUTO, P("data"))), "count": jnp.int32(0)}

    def step(state, batch):
        return {"w": state["w"] + batch.sum(0), "count": state["count"] + 1}

    shapes = wb.trace(step)(state, BATCH).with_shapes()
    advised: Any = Variants(call=shapes._call, fn=step, args=shapes.args, kwargs={}, options={"mesh": AUTO})
    assert shapes.args[0]["w"].sharding == state["w"].sharding
    assert advised.recompile(donate=0).module.memory.alias_bytes == 16 + 4  # one row of `w`, and the counter


@pytest.mark.parametrize(("donate", "positions"), [("all", (0, 1)), ("all-except-first", (1,))])
def test_arrays_of_equinox_are_donated(donate, positions):
    call, _ = changed(variants(), donate=donate)
    assert call.donations["donate_argnums"] == positions
    assert [leaf.shape for leaf in call.leaves] == [(8, 4), (2, 8, 4)]


def test_traces_are_made_again_for_policies_generators_and_static_numbers():
    seen = []

    def step(state, batch):
        seen.append(jax.config.jax_threefry_partitionable)
        return update(state, batch)

    with jax.threefry_partitionable(False):
        given = variants(jax.jit(step))
        seen.clear()
        for change in ({"partitionable": True}, {"policy": AS_GIVEN}):
            call, options = changed(given, **change)
            assert (call is not given.call, options) == (True, {})
    assert seen == [True, False]
    numbered = Variants(call=given.call, fn=jax.jit(update), args=(STATE, BATCH, jnp.int32(3)), kwargs={}, options={})
    fixed, _ = changed(numbered, static=True)
    assert len(fixed.leaves) == 2


def test_program_is_rewritten_on_its_mesh():
    asked = []

    def rewrite(closed, mesh):
        asked.append(mesh)
        return closed, len(asked) - 1

    given = variants(mesh=AUTO)
    with pytest.raises(NothingToChangeError, match="no operation to change at this place"):
        changed(given, rewrite=rewrite)
    call, _ = changed(given, rewrite=rewrite)
    assert call.closed is given.call.closed
    assert asked == [AUTO, AUTO]
    with jax.set_mesh(AUTO):
        changed(variants(), rewrite=rewrite)
    assert changed(variants(), rewrite=rewrite)
    assert [getattr(mesh, "axis_names", None) for mesh in asked[2:]] == [("data",), None]


def test_call_is_inspected_in_the_order_of_jax():
    given = variants(target="v5e:2x4")
    assert changed(given, ordered=True) == (given.call, {"order": "topology"})
    backwards = jax.sharding.Mesh(jax.devices()[::-1], ("data",), axis_types=(AxisType.Auto,))
    _, options = changed(variants(mesh=backwards), ordered=True)
    assert options["mesh"].axis_names == ("data",)
    assert {*options["mesh"].devices.flat} == {*jax.devices()}
    with pytest.raises(TypeError, match="the mesh has no devices to order"):
        changed(variants(mesh=jax.sharding.AbstractMesh((8,), ("data",))), ordered=True)


def test_text_alone_is_neither_rewritten_nor_run():
    given = variants(call="lowered text")
    with pytest.raises(ValueError, match="it cannot be rewritten"):
        _ = given.traced
    with pytest.raises(TypeError, match="without arguments to run"):
        given.runnable()
    assert given.planner() is None
    assert (given.chunk_size, variants(call="text", chunk_size=(4,)).chunk_size) == ("auto", 4)
    assert variants(chunk_size=(None,)).chunk_size is None


def test_planner_needs_a_mesh_of_several_devices():
    assert variants().planner() is None
    one = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    assert variants(mesh=one).planner() is None
    names = [
        variants(mesh=AUTO, **given).planner().chip.name for given in ({}, {"target": "v5p:2x2x1"}, {"chip": "v6e"})
    ]
    assert names == ["v5e", "v5p", "v6e"]
    assert variants(mesh=AUTO, chip="cpu").planner() is None


def test_runnable_programs_are_compiled_with_their_change():
    plain, donated = variants().runnable(), variants().runnable(donate=0)
    assert [info.donated for program in (plain, donated) for info in jax.tree.leaves(program.compiled.args_info)] == [
        False, False, True, False,
    ]  # fmt: skip
    sharded = variants(mesh=AUTO).runnable(specs={"state['w']": (("data",), ())})
    [(state, batch)] = [sharded.compiled.input_shardings[0]]
    assert (state["w"].spec, batch.spec) == (P("data", None), P())
    with pytest.raises(EngineError, match="Specs need a mesh of attached devices"):
        variants().runnable(specs={"state['w']": (("data",), ())})
    with pytest.raises(EngineError, match="has keyword arguments"):
        variants(mesh=AUTO, kwargs={"scale": 3.0}).runnable(specs={})
    abstract = variants(mesh=jax.sharding.AbstractMesh((8,), ("data",)))
    with pytest.raises(EngineError, match="planned on an abstract mesh"):
        abstract.runnable()
