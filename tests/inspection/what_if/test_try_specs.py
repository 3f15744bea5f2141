"""Other shardings of a program's arguments: what the compiler makes of them is what is reported."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.aot import stop_workers
from workbench.errors import EngineError, InspectionError, MeshError
from workbench.inspection import trace_call
from workbench.inspection.what_if import WhatIf

AXES = ("clients", "model")
AUTO = (AxisType.Auto, AxisType.Auto)  # JAX 0.10 would take it for granted, 0.11 takes Explicit


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left():
    yield
    stop_workers()


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), AXES)


def layer(w, x):
    return jnp.tanh(x @ w["up"]) @ w["down"]


@wb.program(clients=8)
def mean_output(w, data):
    return wb.reduce_mean(wb.map_fn(layer, (wb.broadcast(w), data)))


W = {"down": jax.ShapeDtypeStruct((64, 32), jnp.float32), "up": jax.ShapeDtypeStruct((32, 64), jnp.float32)}
DATA = jax.ShapeDtypeStruct((8, 16, 32), jnp.float32)
TENSOR_PARALLEL = {"w['up']": P(None, "model"), "w['down']": P("model")}


@pytest.fixture(scope="module")
def tried(mesh):
    return wb.trace(mean_output)(W, DATA).what_if(specs=TENSOR_PARALLEL, on=mesh)


def rows(traffic):
    return {(row.change, row.kind, row.axes, row.stage_name) for row in traffic if row.change != "same"}


def test_tensor_parallel_layer_costs_one_all_reduce_over_the_model_axis(tried):
    # [16, 64] @ [64, 32] contracts the dimension that model cuts: partial sums of [16, 32] for each client.
    assert ("added", "all-reduce", ("model",), "layer") in rows(tried.compiled)
    (added,) = [row for row in tried.compiled if row.change == "added"]
    # Two clients on a device, 16 · 32 numbers of 4 bytes each, whether in one run or one per client.
    assert added.after_bytes == 2 * 16 * 32 * 4
    assert (added.runs_before, added.before_bytes) == (0, 0)


def test_reduction_over_clients_stays_as_it_was(tried):
    (kept,) = [row for row in tried.compiled if row.stage_name == "reduce_mean"]
    assert (kept.kind, kept.axes, kept.change) == ("all-reduce", ("clients",), "same")


def test_shards_and_bytes_of_the_changed_leaves(tried):
    down, up, data = tried.after.inputs.leaves
    assert (up.spec, up.shard_shape, up.bytes_per_device) == (((), ("model",)), (32, 32), 32 * 32 * 4)
    assert (down.spec, down.shard_shape) == ((("model",), ()), (32, 32))
    assert data.spec == (("clients",), (), ())  # untouched: the program puts clients there
    before = {leaf.path: leaf.bytes_per_device for leaf in tried.before.inputs.leaves}
    assert before["w['up']"] == 32 * 64 * 4


def test_compiled_collectives_are_those_that_the_program_really_compiles_to(mesh, tried):
    args = {
        name: jax.ShapeDtypeStruct(W[name].shape, W[name].dtype, sharding=NamedSharding(mesh, spec))
        for name, spec in (("down", P("model")), ("up", P(None, "model")))
    }
    really = wb.inspect(mean_output, on=mesh)(args, DATA).module
    found = tried.after.module
    assert {(c.kind, c.axes, c.payload_bytes, c.executions) for c in found.collectives} == {
        (c.kind, c.axes, c.payload_bytes, c.executions) for c in really.collectives
    }
    assert (found.flops, found.memory.peak_bytes) == (really.flops, really.memory.peak_bytes)


def test_present_specs_change_nothing(mesh):
    tried = wb.trace(mean_output)(W, DATA).what_if(specs={"data": P("clients")}, on=mesh)
    assert rows(tried.compiled) == rows(tried.planned) == set()
    assert tried.before.module.memory.peak_bytes == tried.after.module.memory.peak_bytes


def test_inspected_program_and_its_trial_have_the_same_stages_names_and_chip(mesh):
    present = wb.inspect(layer, on=(mesh, "v5e"))(W, DATA)
    trial = WhatIf(trace_call(layer, (W, DATA), {}), mesh=mesh, present=present)
    tried = trial.compile(trial.plan({"w['up']": P(None, "model"), "w['down']": P("model")}))
    assert rows(tried.compiled) == {("added", "all-reduce", ("model",), "layer")}
    assert tried.after.cost.seconds > tried.before.cost.seconds == present.cost.seconds  # one all-reduce more
    named = {value.op_name for value in tried.after.propagation.values if value.operation == "input"}
    assert named == {leaf.path for leaf in present.inputs.leaves}


def two_products(x, first, second):
    x = jnp.tanh(x @ first)  # small
    return jnp.tanh(x @ second)  # large


def test_row_of_several_collectives_names_all_lines_the_one_with_most_bytes_first(mesh):
    line = two_products.__code__.co_firstlineno
    x = jax.ShapeDtypeStruct((8, 32), jnp.float32)
    first, second = (jax.ShapeDtypeStruct((32, size), jnp.float32) for size in (32, 256))
    shards = {"first": P("model"), "second": P("model")}
    tried = wb.trace(two_products)(x, first, second).what_if(specs=shards, on=mesh)
    (sums,) = [row for row in tried.compiled if row.kind == "all-reduce"]
    assert [source.line for source in sums.sources] == [line + 2, line + 1]


def test_plan_alone_names_axis_stage_and_line(mesh):
    tried = wb.trace(mean_output)(W, DATA).what_if(specs=TENSOR_PARALLEL, on=mesh, compiled=False)
    assert tried.compiled is None
    assert tried.after.module is None
    (added,) = [row for row in tried.traffic if row.change == "added"]
    assert (added.kind, added.axes, added.stage_name) == ("all-reduce", ("model",), "layer")
    assert added.sources[0].file == __file__


def test_abstract_mesh_needs_no_devices_to_be_compiled_for():
    mesh = AbstractMesh((8, 32), AXES, axis_types=AUTO)
    tried = wb.trace(mean_output)(W, DATA).what_if(specs=TENSOR_PARALLEL, on=mesh)
    assert tried.after.module.devices == 256
    assert ("added", "all-reduce", ("model",), "layer") in rows(tried.compiled)


def test_abstract_mesh_of_another_size_than_the_one_that_is_set(mesh):
    far = AbstractMesh((2, 2), AXES, axis_types=AUTO)
    w = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, device=NamedSharding(mesh, P("model"))), W)
    with jax.set_mesh(mesh):
        tried = wb.trace(mean_output)(w, DATA).what_if(specs={"data": P("clients")}, on=far, compiled=False)
    assert [axis.size for axis in tried.after.mesh.axes] == [2, 2]
    # What was sharded over this mesh is sharded over that one, by the names of the axes.
    assert tried.before.inputs.leaves[0].shard_shape == (32, 32)


def test_name_of_a_branch_means_every_leaf_below_it(mesh):
    tried = wb.trace(mean_output)(W, DATA).what_if(specs={"w": (None, "model")}, on=mesh, compiled=False)
    assert tried.specs == {"w['down']": ((), ("model",)), "w['up']": ((), ("model",))}


def test_notes_say_of_which_of_the_two_programs_they_are(mesh):
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    tried = wb.trace(lambda x: x * 2)(x).what_if(specs={"x": P("clients")}, on=mesh, compiled=False)
    said = "unchanged: no value of this program is sharded: its inputs carry no sharding over a mesh"
    assert tried.notes == (said,)


def test_arrays_are_not_kept_alive(mesh):
    import gc
    import weakref

    data = jnp.ones((8, 16, 32))
    seen = weakref.ref(data)
    call = trace_call(mean_output, (W, data), {})
    made = WhatIf(call, mesh=mesh)
    del data, call
    gc.collect()
    assert seen() is None
    assert made.plan({"data": P("clients")}).specs == {"data": (("clients",), (), ())}


def test_cancelled_compilation_ends(mesh):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(EngineError, match=r"Compiling mean_output with .* was stopped"):
        wb.trace(mean_output)(W, DATA).what_if(specs=TENSOR_PARALLEL, on=mesh, cancel=cancel)


BAD = {
    "no such leaf": (
        {"w['upp']": P("model")},
        r"\"w\['upp'\]\" is not a leaf of the program's arguments \(near: w\['up'\]",
    ),
    "no such axis": ({"data": P("x")}, r"data \[8, 16, 32\]: mesh axis 'x' does not exist"),
    "an axis twice": ({"data": P("model", "model")}, "mesh axis 'model' is used twice"),
    "too many entries": ({"w['up']": P(None, None, "model")}, "3 entries for 2 dimensions"),
    "not a spec": ({"data": "model"}, "not 'model'"),
}


@pytest.mark.parametrize(("specs", "words"), BAD.values(), ids=BAD)
def test_spec_that_does_not_fit_is_named(mesh, specs, words):
    with pytest.raises(MeshError, match=words) as caught:
        wb.trace(mean_output)(W, DATA).what_if(specs=specs, on=mesh)
    assert "The mesh is clients=4 × model=2" in str(caught.value)


def test_sizes_that_do_not_divide_are_named_with_every_other_offender(mesh):
    odd = jax.ShapeDtypeStruct((8, 5, 32), jnp.float32)
    with pytest.raises(MeshError, match="2 does not divide dimension 1") as caught:
        wb.trace(mean_output)(W, odd).what_if(specs={"data": P(None, "model"), "w": P("y")}, on=mesh)
    assert "mesh axis 'y' does not exist" in str(caught.value)


def test_program_without_a_mesh_is_refused_with_a_remedy():
    with pytest.raises(MeshError, match=r"was given a program without a mesh.*make_mesh"):
        wb.trace(mean_output)(W, DATA).what_if(specs={"data": P("clients")})


def test_what_explicit_axes_refuse_is_reported_in_the_words_of_jax():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.raises(InspectionError, match=r"was given x: P\(a, None\), y: P\(None, a\).*ShardingTypeError"):
        wb.trace(lambda x, y: x + y)(x, x).what_if(specs={"x": P("a"), "y": P(None, "a")}, on=mesh)


def test_a_program_with_random_keys_can_be_tried(mesh):
    def noisy(w, x, key):
        return x @ w + jax.random.normal(key, (8, 32))

    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("clients")))
    arguments = jnp.ones((16, 32)), x, jax.random.key(0)
    planned = wb.trace(noisy)(*arguments).what_if(specs={"w": P(None, "model")}, on=mesh, compiled=False)
    assert planned.after.inputs.leaves[0].bytes_per_device == 16 * 16 * 4
