"""The search on programs whose best shardings are known, planned and not compiled."""

import re
import threading
import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.advice._search._search import Search
from workbench.errors import InspectionError
from workbench.records.advice import SearchRecord, ShardingChoiceRecord

optax = pytest.importorskip("optax")


def shape(*sizes, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def mlp(width, hidden, layers=1):
    layer = {"up": shape(width, hidden), "down": shape(hidden, width)}
    return {"layers": [layer] * layers}


def forward(params, x):
    for w in params["layers"]:
        x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
    return x


OPTIMIZER = optax.sgd(0.1, momentum=0.9)


def step(params, state, batch):
    gradient = jax.grad(lambda p: jnp.mean(forward(p, batch).astype("float32") ** 2))(params)
    updates, state = OPTIMIZER.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


STEP = jax.jit(step, donate_argnums=(0, 1))
MESH = AbstractMesh((4, 2), ("data", "model"))


def suggest(fn, *args, mesh=MESH, **options):
    return wb.search(fn, on=(mesh, "v5e"), compiled=False, seconds=1e6, **options)(*args)


@pytest.fixture(scope="module")
def train_step():
    params = mlp(256, 1024, layers=2)
    return params, jax.eval_shape(OPTIMIZER.init, params), shape(512, 256)


@pytest.fixture(scope="module")
def searched(train_step):
    return suggest(STEP, *train_step)


def test_layers_and_optimizer_states_share_the_spec_of_their_parameter(searched):
    group = next(each for each in searched.groups if each.pattern == "params['layers'][*]['up']")
    assert len(group.leaves) == 4  # two layers, each with a parameter and its momentum
    assert {leaf.partition("[")[0] for leaf in group.leaves} == {"params", "state"}


def test_found_choice_is_no_slower_than_data_parallel(searched):
    baseline = next(each for each in searched.choices if each.name.startswith("data parallel"))
    assert searched.best.seconds <= baseline.seconds


def test_small_batch_on_large_weights_shards_the_weights():
    found = suggest(forward, mlp(4096, 16384), shape(256, 4096), mesh=AbstractMesh((8,), ("model",)))
    assert found.best.specs["params['layers'][*]['up']"] == ((), ("model",))
    assert found.best.specs["params['layers'][*]['down']"] == (("model",), ())


def test_large_batch_on_small_weights_shards_the_batch():
    found = suggest(forward, mlp(128, 128), shape(65536, 128), mesh=AbstractMesh((8,), ("data",)))
    assert found.best.specs == {"x": (("data",), ())}


def test_memory_is_a_hard_limit(train_step, searched):
    limit = int(min(each.peak_bytes for each in searched.choices)) + 1
    peak = suggest(STEP, *train_step, memory_bytes=limit).best.peak_bytes
    assert peak is not None
    assert peak <= limit


def test_locked_specs_stay(train_step):
    found = suggest(STEP, *train_step, lock={"batch": P("model"), "params['layers'][*]['up']": P()})
    assert all(each.specs["batch"] == (("model",), ()) for each in found.choices)
    assert all("params['layers'][*]['up']" not in each.specs for each in found.choices)


def test_lock_that_names_nothing_and_lock_that_does_not_divide_are_both_reported(train_step):
    with pytest.raises(wb.errors.MeshError, match=r"'bach' matches no argument.*cannot be sharded as"):
        suggest(STEP, *train_step, lock={"bach": P("data"), "params['layers'][*]['up']": P(("data", "model", "x"))})


def test_stop_returns_what_is_known(train_step):
    cancel = threading.Event()
    found = []

    def received(record):
        found.append(record)
        cancel.set()

    record = suggest(STEP, *train_step, cancel=cancel, found=received)
    assert record.ended == "stopped"
    assert record.best.specs == found[0].best.specs


def test_program_without_a_mesh_is_refused():
    with pytest.raises(wb.errors.MeshError, match="without a mesh of several devices"):
        wb.search(forward, compiled=False)(mlp(8, 8), shape(8, 8))


def test_references_are_searched_and_their_code_has_the_price():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    @jax.jit
    def step(state, x):
        weights = {name: ref[...] for name, ref in state["w"].items()}
        loss = lambda w: (jnp.tanh(x @ w["up"]) @ w["down"]).mean()  # noqa: E731
        for name, gradient in jax.grad(loss)(weights).items():
            state["w"][name][...] -= 0.1 * gradient
        state["count"][...] += 1

    def ref(*sizes, dtype="float32"):
        return jax.new_ref(jax.device_put(jnp.ones(sizes, dtype), NamedSharding(mesh, P())))

    state, x = {"w": {"up": ref(512, 2048), "down": ref(2048, 512)}, "count": ref(dtype="int32")}, jnp.ones((64, 512))
    record = wb.search(step, on=(mesh, "v5e"), compiler="cpu", seconds=1e6)(state, x)
    assert {leaf for group in record.groups if group.is_reference for leaf in group.leaves} == {
        "state['w']['up']",
        "state['w']['down']",
        "state['count']",
    }
    at, choice = next((at, each) for at, each in enumerate(record.choices) if each.how == "compiled")
    assert any(map(any, choice.specs.values()))
    names = {"state": state, "x": x}
    exec(record.code(at), names)
    module = wb.inspect(step)(names["state"], names["x"]).module
    assert (module.memory.argument_bytes, module.memory.peak_bytes) == (choice.argument_bytes, choice.peak_bytes)
    assert sum(each.wire_bytes * each.executions for each in module.collectives) == sum(choice.sent_bytes.values())
    step(names["state"], names["x"])
    assert (int(names["state"]["count"][...]), int(state["count"][...])) == (2, 1)  # the code made new references
    with pytest.raises(InspectionError, match="but not references: use style='rules'"):
        record.code(at, style="in_shardings")


def test_programs_without_a_choice_of_shardings_are_refused_in_words():
    mapped = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    with pytest.raises(InspectionError, match=r"which is a `jax\.pmap`\. .* Move the function to `jax\.jit`"):
        wb.search(mapped)(jnp.ones((8, 4)))

    def called_back(x):
        jax.debug.print("{}", x.sum())
        return x @ x

    with pytest.raises(InspectionError, match=r"calls back to the host\. .* remove `jax\.debug\.print`"):
        suggest(called_back, jax.ShapeDtypeStruct((64, 64), "float32"))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("data")))
    with (
        jax.set_mesh(mesh),
        pytest.raises(InspectionError, match="traced on explicit axes and is not valid on Auto axes"),
    ):
        wb.search(lambda x: x @ jax.sharding.reshard(x, P()))(x)


def test_a_loop_of_unknown_length_counts_once_and_is_noted():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    def halved(x):
        return jax.lax.while_loop(lambda x: x.max() > 1, lambda x: x / (1 + x.mean()), x)

    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("data")))
    record = wb.search(halved, on=(mesh, "v5e"), compiler="cpu", seconds=1e6)(x)
    given = next(each for each in record.choices if each.name == "as given")
    assert given.how == "compiled"
    assert given.seconds is not None
    assert given.sent_bytes["data"] > 0
    assert "loops of unknown length count once, so seconds and bytes sent are lower bounds" in record.notes


def test_rules_do_not_match_arrays_of_another_argument():
    def loss(tables, indices):
        return sum((table[i] ** 2).sum() for table, i in zip(tables, indices, strict=True))

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    tables, indices = [jnp.ones((512, 16))] * 2, [jnp.zeros(64, "int32")] * 2
    lock = {"tables[*]": P("data"), "indices[*]": P()}
    record = wb.search(jax.grad(loss), on=(mesh, "v5e"), compiler="cpu", seconds=1e6, lock=lock)(tables, indices)
    at, choice = next((at, each) for at, each in enumerate(record.choices) if each.how == "compiled")
    assert choice.results == {"0": (("data",), ()), "1": (("data",), ())}  # gradients, whole without a request
    names = {"tables": tables, "indices": indices, record.name: jax.grad(loss)}
    exec(record.code(at), names)
    assert [each.sharding.spec for each in (*names["tables"], *names["indices"])] == [P("data")] * 2 + [P()] * 2
    module = wb.inspect(names[record.name])(names["tables"], names["indices"]).module
    assert (module.memory.argument_bytes, module.memory.peak_bytes) == (choice.argument_bytes, choice.peak_bytes)


def test_present_specs_are_among_the_choices():
    x = jax.ShapeDtypeStruct((64, 256), "bfloat16", sharding=NamedSharding(MESH, P("data")))
    found = suggest(forward, mlp(256, 256), x)
    assert next(each for each in found.choices if each.name == "as given").specs == {"x": (("data",), ())}


def test_planned_memory_without_a_compiled_choice_has_an_unknown_error(searched):
    assert (
        "no planned peak was compared with a compiled peak, so the error of planned peaks is unknown" in searched.notes
    )


def test_record_survives_json(searched):
    assert SearchRecord.from_json(searched.to_json()) == searched


def test_table_has_a_column_for_each_mesh_axis(searched):
    table = searched.to_pandas()
    assert len(table) == len(searched.choices)
    assert {"seconds", "peak_bytes", "pareto"} <= set(table.columns)


def test_code_places_arguments_as_the_choice_says():
    found = suggest(forward, mlp(4096, 16384), shape(256, 4096), mesh=AbstractMesh((8,), ("model",)))
    params, x = mlp(4096, 16384), shape(256, 4096)
    names = {"forward": forward, "params": params, "x": x}
    exec(found.code(style="in_shardings"), names)
    specs = jax.tree.map(lambda each: each.spec, names["shardings"]("params", params))
    assert specs["layers"][0] == {"up": P(None, "model"), "down": P("model")}


def test_best_choices_are_compiled_for_devices():
    record = wb.search(forward, on=(AbstractMesh((2,), ("data",)), "v5e"), compiler="cpu", seconds=1)(
        mlp(64, 64), shape(256, 64)
    )
    assert record.best.how == "compiled"
    assert record.compiled_count >= 1
    assert any(re.match(r"planned peaks: \d\.\d\d .*× the compiled peaks?", note) for note in record.notes)


def test_choice_that_only_the_plan_ranks_first_is_not_chosen():
    # a batch that is sharded as the weights are is planned as one reduce-scatter and one gather of a small shard,
    # and compiled as four exchanges of whole activations
    mesh, arguments = AbstractMesh((64,), ("model",)), (mlp(8192, 32768, layers=2), shape(512, 8192))
    compiled = wb.search(forward, on=(mesh, "v5e"), compiler="cpu")(*arguments)
    planned = suggest(forward, *arguments, mesh=mesh)
    up, down = "params['layers'][*]['up']", "params['layers'][*]['down']"
    assert planned.best.specs != compiled.best.specs
    assert compiled.best.specs == {up: ((), ("model",)), down: (("model",), ())}


def test_layers_of_different_widths_have_specs_of_their_own():
    params = {"layers": [shape(512, 4096), shape(4096, 4096), shape(4096, 512)]}

    def predict(params, x):
        for w in params["layers"]:
            x = jnp.tanh(x @ w)
        return x

    found = suggest(predict, params, shape(64, 512), mesh=AbstractMesh((4,), ("model",)))
    patterns = [group.pattern for group in found.groups]
    assert {f"params['layers'][{layer}]" for layer in range(3)} < set(patterns)
    assert len(set(patterns)) == len(patterns)


def test_nnx_training_step_is_searched_by_module_path():
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)

        def __call__(self, x):
            return self.down(nnx.relu(self.up(x)))

    @nnx.jit
    def train(model, optimizer, x):
        gradient = nnx.grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradient)

    model = Block(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    found = suggest(train, model, optimizer, jnp.ones((64, 64)), mesh=AbstractMesh((4,), ("data",)))
    group = next(each for each in found.groups if each.pattern == "model.up.kernel")
    assert len(group.leaves) == 2
    assert found.best.seconds is not None
    choice = found.best.replace(specs={"model.up.kernel": ((), ("data",)), "x": (("data",), ())})
    names = {"model": model, "optimizer": optimizer, "x": jnp.ones((64, 64)), "train": train}
    exec(found.replace(choices=(choice,)).code(), names)
    momentum = names["optimizer"].opt_state[0].trace["up"]["kernel"]
    assert [each[...].sharding.spec for each in (names["model"].up.kernel, momentum)] == [P(None, "data")] * 2
    names["train"](names["model"], names["optimizer"], names["x"])  # its modules are updated as before
    assert names["model"].up.kernel[...].sharding.spec == P(None, "data")
    assert not jnp.array_equal(names["model"].up.kernel[...], model.up.kernel[...])


def test_code_of_equal_layers_with_several_products_shards_every_layer():
    linen = pytest.importorskip("flax.linen")

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            return x + linen.Dense(64)(linen.gelu(linen.Dense(256)(x)))

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            for _ in range(3):
                x = Block()(x)
            return x

    net, x = Net(), jnp.ones((32, 64))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = net.init(jax.random.key(0), x)
        mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
        fn = lambda params, x: net.apply(params, x)  # noqa: E731
        search = wb.search(fn, on=(mesh, "v5e"), compiled=False, seconds=1e6)(params, x)
        names = {"params": params, "x": x}
        exec(search.code(), names)  # as a reader would paste it
        pasted = wb.inspect(fn)(names["params"], names["x"])
    kernels = [leaf.sharding.spec for leaf in jax.tree.leaves(names["params"]) if leaf.ndim == 2]
    assert len(kernels) == 6
    assert len({spec for spec in kernels[::2]}) == len({spec for spec in kernels[1::2]}) == 1
    assert pasted.module.memory.argument_bytes <= 1.05 * search.best.argument_bytes


def test_a_choice_that_was_only_planned_may_still_be_faster_than_replicating():
    """No compiled choice shards anything, because the time ran out, and a planned choice is predicted to be faster."""
    slow = ShardingChoiceRecord(
        name="replicated", mesh={"data": 8}, specs={}, seconds=5e-5, peak_bytes=9, argument_bytes=9, how="compiled"
    )
    quick = slow.replace(name="found 1", specs={"x": (("data",),)}, seconds=2e-5, how="planned")
    search = types.SimpleNamespace(program=types.SimpleNamespace(mesh=types.SimpleNamespace(size=8)))
    assert Search._gain_notes(search, [slow, quick]) == []
    (note,) = Search._gain_notes(search, [slow, quick.replace(seconds=6e-5)])
    assert note.startswith("the mesh brings no gain")
    record = SearchRecord(
        name="f", chip="v5e", target="v5e:2x4", choices=(slow.replace(pareto=True), quick), groups=(), planned_count=1,
        compiled_count=1, seconds_spent=1.0, ended="time",
    )  # fmt: skip
    assert "* no other compiled choice is both faster and smaller" in str(record)
    assert "* no other choice is both faster and smaller" in str(record.replace(choices=(slow,)))
