"""`why` against programs whose collectives have one reason each by construction, and against `inspect`."""

import importlib
import inspect
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import workbench as wb
from tests.oracles.reasons import (
    MAPPED,
    MESHES,
    PARTS,
    assemble,
    assemble_mapped,
    draw,
    draw_mapped,
    faults,
    mesh_of,
)
from workbench import render


@pytest.mark.parametrize("number", range(len(MESHES)))
def test_every_collective_has_the_reason_it_was_made_for(number: int) -> None:
    random, mesh = np.random.default_rng(20 + number), mesh_of(number)
    for _ in range(2):
        program = draw(random, mesh)
        assert [(kind, each.sentence) for kind, each in faults(program, mesh)] == [], program.name


@pytest.mark.parametrize("name", MAPPED)
def test_every_collective_of_a_pmap_is_one_that_the_program_requests(name: str) -> None:
    wrapper = "under grad" if MAPPED[name].backward else "in a scan"
    for program in assemble_mapped([name], [""]), assemble_mapped([name], [wrapper], whole=True):
        assert [(kind, each and each.sentence) for kind, each in faults(program, None)] == [], program.name


@pytest.mark.parametrize("seed", range(3))
def test_combined_collectives_of_a_pmap_have_their_reasons(seed: int) -> None:
    program = draw_mapped(np.random.default_rng(seed))
    assert [(kind, each and each.sentence) for kind, each in faults(program, None)] == [], program.name


@pytest.mark.parametrize("name", PARTS)
def test_lines_of_reasons_are_those_of_inspect(name: str) -> None:
    mesh = mesh_of(1)
    program = assemble([name], [""], mesh)
    assert [(kind, each.sentence) for kind, each in faults(program, mesh)] == []
    with jax.set_mesh(mesh):
        record = wb.inspect(program.fn)(*program.args)
    assert record.module is not None
    compiled = {(each.kind, each.payload_bytes, each.sources) for each in record.module.collectives}
    for each in wb.why(record).collectives:
        assert any(
            each.source in sources and (each.kind, each.payload_bytes) == (kind, payload)
            for kind, payload, sources in compiled
        )


def fsdp(x, w1, w2):
    hidden = jax.nn.relu(x @ w1)
    return hidden @ w2


def test_weights_and_batch_over_one_axis_gather_each_weight_at_its_own_line() -> None:
    mesh = mesh_of(0)
    shape = lambda dims, spec: jax.ShapeDtypeStruct(  # noqa: E731
        dims, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )
    found = wb.why(fsdp)(shape((64, 256), ("a",)), shape((256, 512), ("a",)), shape((512, 256), ("a",)))
    first = fsdp.__code__.co_firstlineno + 1
    assert [(each.kind, each.source.line, each.reason) for each in found.collectives] == [
        ("all-gather", first, "disagreement"),
        ("all-gather", first + 1, "disagreement"),
    ]
    for number, each in enumerate(found.collectives, 1):
        assert each.sentence.endswith(
            f"so the compiler gathers argument `w{number}` (f32[{(256, 512)[number - 1]},{(512, 256)[number - 1]}])."
        )
        assert "adds" not in each.sentence


def test_tensor_parallel_layers_sum_in_the_second_layer_alone() -> None:
    mesh = mesh_of(1)
    shape = lambda dims, *spec: jax.ShapeDtypeStruct(  # noqa: E731
        dims, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )
    found = wb.why(fsdp)(shape((64, 256), "b"), shape((256, 512), None, "a"), shape((512, 256), "a"))
    (each,) = found.collectives
    assert (each.kind, each.axes, each.reason) == ("all-reduce", ("a",), "sum")
    assert each.source.line == fsdp.__code__.co_firstlineno + 2
    assert "dimension 0 of argument `w2`" in each.sentence


def test_names_with_digits_are_not_equal_layers() -> None:
    def two(x, w1, w2):
        return x @ w1, x @ w2

    mesh = mesh_of(0)
    shape = lambda dims: jax.ShapeDtypeStruct(  # noqa: E731
        dims, "float32", sharding=jax.NamedSharding(mesh, jax.P("a"))
    )
    text = str(wb.why(two)(shape((64, 256)), shape((256, 512)), shape((256, 512))))
    assert "`w1`" in text
    assert "`w2`" in text
    assert "`w*`" not in text


def sharded(mesh):
    return lambda dims, *spec, dtype="float32": jax.ShapeDtypeStruct(
        dims, dtype, sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )


def mesh_with(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def reasons_of(fn, *args, mesh):
    """Kind, axes and sentence of every collective, with the lines counted from the function's first."""
    with jax.set_mesh(mesh):
        found = wb.why(fn)(*args)
    assert {each.reason for each in found.collectives}.isdisjoint({"unknown", "compiler"})
    return {(each.kind, each.axes): each.sentence for each in found.collectives}


def test_fully_sharded_layers_gather_weights_and_add_gradients_over_both_axes_of_the_batch() -> None:
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w["up"]) @ w["down"]
        return (x**2).mean()

    mesh = mesh_with(replica=2, fsdp=4)
    shape = sharded(mesh)
    weights = [{"up": shape((128, 512), "fsdp"), "down": shape((512, 128), "fsdp")} for _ in range(2)]
    with jax.set_mesh(mesh):
        found = wb.why(jax.grad(loss))(weights, shape((64, 128), ("replica", "fsdp")))
    gathered = [
        each.sentence.split("so the compiler gathers ")[-1] for each in found.collectives if "weights" in each.sentence
    ]
    for number in range(2):  # each weight by its own name, once or more: forwards and backwards
        for name in ("up", "down"):
            assert any(f"argument `weights[{number}]['{name}']`" in sentence for sentence in gathered)
    largest = found.collectives[0]
    assert (largest.kind, largest.axes, largest.reason) == ("all-reduce", ("replica", "fsdp"), "sum")
    assert not any("adds" in each.sentence for each in found.collectives if each.kind == "all-gather")
    assert all("gathers" not in each.sentence for each in found.collectives if each.kind == "all-reduce")


def test_sequence_parallel_attention_gathers_keys_and_values() -> None:
    def attention(q, k, v):
        scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k))
        return jax.lax.with_sharding_constraint(jnp.einsum("bts,bsd->btd", scores, v), jax.P("data", "seq"))

    mesh = mesh_with(data=2, seq=4)
    x = sharded(mesh)((8, 64, 32), "data", "seq")
    with jax.set_mesh(mesh):
        found = wb.why(attention)(x, x, x)
    assert [(each.kind, each.axes) for each in found.collectives] == [("all-gather", ("seq",))] * 2
    names = {name for each in found.collectives for name in "kv" if f"gathers argument `{name}`" in each.sentence}
    assert names == {"k", "v"}


def test_sequence_parallel_layers_of_megatron_gather_before_and_add_after() -> None:
    def layer(x, up, down):
        x = jax.lax.with_sharding_constraint(x, jax.P("data", "model"))
        hidden = jax.lax.with_sharding_constraint(jax.nn.gelu(x @ up), jax.P("data", None, "model"))
        return jax.lax.with_sharding_constraint(hidden @ down, jax.P("data", "model"))

    mesh = mesh_with(data=2, model=4)
    shape = sharded(mesh)
    args = shape((8, 64, 32), "data", "model"), shape((32, 128), None, "model"), shape((128, 32), "model")
    sentences = reasons_of(layer, *args, mesh=mesh)
    assert "sums over dimension 2 of" in sentences[("all-reduce", ("model",))]
    assert "adds the parts" in sentences[("all-reduce", ("model",))]
    assert "A mesh axis can shard only one dimension of the result" in sentences[("all-gather", ("model",))]


def test_expert_and_pipeline_parallelism_name_the_collectives_that_are_written() -> None:
    def experts(x, w):
        def local(x, w):
            x = jax.lax.all_to_all(x, "expert", 1, 0, tiled=True)
            return jax.lax.all_to_all(jnp.tanh(x @ w[0]), "expert", 0, 1, tiled=True)

        return jax.shard_map(local, in_specs=jax.P("expert"), out_specs=jax.P("expert"))(x, w)

    def stages(w, x):
        def local(w, x):
            def tick(state, _):
                size = jax.lax.axis_size("expert")
                return jax.lax.ppermute(
                    jnp.tanh(state @ w[0]), "expert", [(i, (i + 1) % size) for i in range(size)]
                ), None

            return jax.lax.psum(jax.lax.scan(tick, x, length=8)[0], "expert")

        return jax.shard_map(local, in_specs=(jax.P("expert"), jax.P()), out_specs=jax.P(), check_vma=False)(w, x)

    mesh = mesh_with(expert=8)
    shape = sharded(mesh)
    for fn, args, kinds in (
        (experts, (shape((64, 16, 32), "expert"), shape((8, 32, 32), "expert")), ["all-to-all", "all-to-all"]),
        (stages, (shape((8, 32, 32), "expert"), shape((16, 32))), ["collective-permute", "all-reduce"]),
    ):
        with jax.set_mesh(mesh):
            found = wb.why(fn)(*args)
        assert [each.kind for each in found.collectives] == kinds
        assert {each.reason for each in found.collectives} == {"program"}


def test_gradients_of_a_mean_inside_shard_map_are_exchanged_by_the_program() -> None:
    def step(params, x):
        def local(params, x):
            gradient = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)
            return jax.lax.pmean(gradient, "data")

        return jax.shard_map(local, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P(), check_vma=False)(params, x)

    mesh = mesh_with(data=8)
    shape = sharded(mesh)
    with jax.set_mesh(mesh):
        found = wb.why(step)({"a": shape((64, 128)), "b": shape((128, 32))}, shape((64, 64), "data"))
    assert {each.reason for each in found.collectives} == {"program"}


def test_equal_layers_on_one_line_are_told_apart_by_their_weights() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(3):
                x = nn.relu(nn.Dense(64, use_bias=False)(x))
            return x

    mesh, model = mesh_with(data=8), Net()
    shape = sharded(mesh)
    params = jax.tree.map(
        lambda leaf: shape(leaf.shape, "data"), jax.eval_shape(model.init, jax.random.key(0), jnp.ones((8, 64)))
    )
    with jax.set_mesh(mesh):
        found = wb.why(lambda params, x: model.apply(params, x))(params, shape((64, 64), "data"))
    gathers = [each.sentence for each in found.collectives if each.kind == "all-gather"]
    assert len(gathers) == 3
    for number in range(3):
        assert sum(f"gathers argument `params['params']['Dense_{number}']['kernel']`" in text for text in gathers) == 1


def test_exchanges_that_only_the_compiler_asks_for_are_named_so() -> None:
    mesh = mesh_with(a=2, b=4)  # no operand is sharded over `b`: the compiler splits the product's work over it
    shape = sharded(mesh)
    with jax.set_mesh(mesh):
        found = wb.why(lambda x, w: x @ w)(shape((64, 32), "a"), shape((32, 32), "a"))
    for each in found.collectives:
        if "a" not in each.axes:
            assert each.reason == "compiler"
            assert "splits the work of `dot_general`" in each.sentence


def test_reductions_that_are_no_sums_add_nothing() -> None:
    mesh = mesh_with(a=8)
    with jax.set_mesh(mesh):
        (found,) = wb.why(lambda x: x.max(0))(sharded(mesh)((64, 16), "a")).collectives
    assert "takes the maximum over dimension 0 of argument `x`" in found.sentence
    assert "add" not in found.sentence


def test_a_result_of_uneven_rows_is_gathered_for_the_result_alone() -> None:
    mesh = mesh_with(a=4, b=2)
    with jax.set_mesh(mesh):
        found = wb.why(lambda x: x[1:] - x[:-1])(sharded(mesh)((64, 16), "a", "b"))
    (gather,) = [each for each in found.collectives if each.kind == "all-gather"]
    assert gather.reason == "output"
    assert "returns the result of `subtract`" in gather.sentence
    assert "without sharding it over `a`" in gather.sentence  # the result is still sharded over `b`


def embedded(embedding, up, down, tokens):
    x = embedding[tokens]  # the batch is lost here
    for _ in range(2):
        x = x + jnp.tanh(x @ up) @ down
    return (x**2).mean()


def lost_batch(mesh):
    shape = sharded(mesh)
    return (
        shape((512, 128), None, "data"),
        shape((128, 256), "data"),
        shape((256, 128), None, "data"),
        shape((32, 16), "data", dtype="int32"),
    )


def test_a_lost_batch_axis_is_one_cause_with_its_line_and_the_collectives_that_follow() -> None:
    mesh = mesh_with(data=8)
    with jax.set_mesh(mesh):
        found = wb.why(embedded)(*lost_batch(mesh))
    (cause,) = found.causes
    assert (cause.axis, cause.source.line) == ("data", embedded.__code__.co_firstlineno + 1)
    assert "argument `embedding`" in cause.sentence
    assert "argument `tokens`" in cause.sentence
    assert "with_sharding_constraint(x, P('data'))" in cause.advice
    assert 2 < cause.collectives <= sum("data" in each.axes for each in found.collectives)
    assert f"Cause: {cause.sentence}" in str(found)


@pytest.mark.parametrize(
    ("means", "advice"),
    [
        ("out_sharding", "Request `P('data')` as the sharding of the result of `dot_general`"),
        ("reshard", "Request `P('data')` in this `reshard`"),
    ],
)
def test_a_batch_axis_lost_to_an_explicit_sharding_is_not_called_a_constraint(means: str, advice: str) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    columns = jax.sharding.PartitionSpec(None, "data")

    def layers(x, w):
        if means == "reshard":
            x = jax.sharding.reshard(x * 2, columns)
        for _ in range(3):
            x = jnp.einsum("bi,ij->bj", jnp.tanh(x), w, out_sharding=columns)
        return x

    shape = sharded(mesh)
    with jax.set_mesh(mesh):
        (cause,) = wb.why(layers)(shape((64, 128), "data"), shape((128, 128))).causes
    assert cause.advice.startswith(advice)
    assert "constraint there" not in cause.sentence


def test_a_cause_in_a_notebook_names_the_cell_not_its_temporary_file() -> None:
    code, cell = inspect.getsource(embedded), {"jnp": jnp}
    exec(compile(code, "/tmp/ipykernel_1/3864789227.py", "exec"), cell)
    mesh = mesh_with(data=8)
    with jax.set_mesh(mesh):
        found = wb.why(cell["embedded"])(*lost_batch(mesh))
    assert found.causes
    assert "3864789227" not in str(found)


@pytest.mark.parametrize("spec", [(), ("data",)])
def test_layers_that_keep_the_batch_have_no_cause(spec: tuple[str, ...]) -> None:
    mesh = mesh_with(data=8)
    shape = sharded(mesh)
    with jax.set_mesh(mesh):
        found = wb.why(fsdp)(shape((64, 256), "data"), shape((256, 512), *spec), shape((512, 256), *spec))
    assert found.causes == ()


def test_the_end_of_a_loop_body_in_another_sharding_is_no_constraint_of_the_same_sharding() -> None:
    def turned(x):
        return jax.lax.fori_loop(0, 3, lambda i, c: jax.lax.with_sharding_constraint(c.T, jax.P("a")), x)

    mesh = mesh_with(a=4, b=2)
    with jax.set_mesh(mesh):
        found = wb.why(turned)(sharded(mesh)((64, 64), "a"))
    by_executions = {each.executions: each.sentence for each in found.collectives}
    assert "ends with the result of `sharding_constraint`" in by_executions[3.0]
    assert "as P('a'), but the loop carries the value as P(None, 'a')" in by_executions[3.0]
    assert "carries argument `x` (f32[64,64]) as P(None, 'a') to `transpose`" in by_executions[1.0]


def test_weights_of_scanned_layers_are_named_in_nested_loops_and_with_explicit_axes() -> None:
    for number, wrapper in ((1, "in a loop"), (len(MESHES) - 1, "in a scan"), (len(MESHES) - 1, "in jit")):
        mesh = mesh_of(number)
        program = assemble(["weights of scanned layers"], [wrapper], mesh)
        assert [(kind, each.sentence) for kind, each in faults(program, mesh)] == [], program.name


def test_a_sentence_moves_no_array_whose_parts_are_larger_than_the_exchange() -> None:
    def step(params, tokens):
        def loss(params):
            h = params["embed"][tokens[:, :-1]]
            for layer in params["layers"]:
                scaled = h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6) * layer["norm"][None, None]
                q, k, v = (scaled @ layer[name] for name in "qkv")
                h = h + jax.nn.softmax(q @ k.mT) @ v @ layer["o"]
                h = h + jax.nn.gelu(h @ layer["up"]) @ layer["down"]
            logits = h @ params["head"]
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    mesh = mesh_with(replica=2, fsdp=4)
    weight = sharded(mesh)
    square = {name: weight((64, 64), "fsdp") for name in "qkvo"}
    rest = {"norm": weight((64,), "fsdp"), "up": weight((64, 256), "fsdp"), "down": weight((256, 64), "fsdp")}
    layers = [square | rest] * 2
    params = {"embed": weight((512, 64), "fsdp"), "layers": layers, "head": weight((64, 512), "fsdp")}
    with jax.set_mesh(mesh):
        record = wb.inspect(step)(params, sharded(mesh)((32, 65), ("replica", "fsdp"), dtype="int32"))
    assert record.module is not None
    seen = 0
    for each in wb.why(record).collectives:
        for dims in re.findall(r"the compiler (?:gathers|redistributes) .*? \(f32\[([\d,]+)\]", each.sentence):
            seen += 1
            assert each.payload_bytes >= 4 * np.prod(list(map(int, dims.split(",")))) / 8, each.sentence
    assert seen > 3


def test_many_collectives_are_told_by_reason_and_all_of_them_with_details() -> None:
    def layers(weights, x):
        for w in weights:
            x = x @ w + x.max(0, keepdims=True) + jnp.roll(x, 1, 0) + jnp.sort(x, 0) + jnp.cumsum(x, 0)
        return x

    mesh = mesh_with(data=8)
    shape = sharded(mesh)
    with jax.set_mesh(mesh):
        found = wb.why(layers)([shape((64, 64), "data") for _ in range(3)], shape((64, 64), "data"))
    assert len(found.collectives) > 15
    text, whole = str(found), render.text(found, details=True)
    assert len(text.splitlines()) < 30 < len(whole.splitlines())
    counted = [int(number) for line in text.splitlines() for number in re.findall(r"(\d+) × (?:all-|coll)", line)]
    assert sum(counted) == len(found.collectives)
    assert "argument `weights[*]`" in text
    # "3 × 36 MiB" would be read as a product
    assert re.search(r"· [\d.]+ \S*B in \d+ collectives: ", text)
    assert not re.search(r"\d+ × [\d.]+ [KMG]?i?B", text)


@pytest.mark.parametrize("folder", ["dist-packages", "libraries"])
def test_lines_of_a_library_elsewhere_are_not_the_users(tmp_path, monkeypatch, folder) -> None:
    """As on systems whose `dist-packages` are no part of Python's own folders, and after `pip install --target`."""
    module = f"other_layers_{folder[:4]}"
    library = tmp_path / folder / f"{module}.py"
    library.parent.mkdir()
    library.write_text("def dense(x, w):\n    return x @ w\n")
    if folder == "libraries":
        (library.parent / "other-1.0.dist-info").mkdir()
        (library.parent / "other-1.0.dist-info" / "RECORD").write_text(f"{module}.py,sha256=abc,40\n")
    monkeypatch.syspath_prepend(library.parent)
    dense = importlib.import_module(module).dense
    mesh = mesh_with(data=4, model=2)
    shape = sharded(mesh)

    def layers(x, up, down):
        x = dense(x, up)
        return dense(x, down)

    first = layers.__code__.co_firstlineno
    args = (shape((512, 256), "data"), shape((256, 1024), "model"), shape((1024, 256), "model"))
    with jax.set_mesh(mesh):
        found = wb.why(layers)(*args).collectives
    told = {each.source.line - first: each.sentence for each in found if each.source is not None}
    assert sorted(told) == [1, 2]
    for line, name in ((1, "up"), (2, "down")):
        assert f"`dot_general` at test_reasons.py:{first + line} sums" in told[line]
        assert f"argument `{name}`" in told[line]


def test_a_sum_after_a_mapped_function_is_told_in_words_of_jax() -> None:
    mapped = jax.pmap(lambda w, x: x @ w, axis_name="d", in_axes=(None, 0))
    found = wb.why(jax.jit(lambda w, x: mapped(w, x).sum()))(jnp.ones((64, 32)), jnp.ones((8, 16, 64)))
    (reason,) = found.collectives
    assert "sums over dimension 0 of the result of `shard_map` (f32[8," in reason.sentence
    assert [each.name.partition(" (")[0] for each in reason.operands] == ["the result of `shard_map`"]  # and no 0


def test_equal_arrays_of_layers_are_told_once() -> None:
    mesh = mesh_with(data=4, model=2)
    shape = sharded(mesh)

    def layers(params, x):
        for w in params["layers"]:
            x = jnp.tanh(x @ w)
        return x

    with jax.set_mesh(mesh):
        found = wb.why(layers)({"layers": [shape((1024, 1024), None, "model")] * 6}, shape((64, 1024), "data"))
    text = render.text(found)
    assert len([each for each in found.arrays if "argument" in each.name]) == 6
    assert "  argument `params['layers'][*]` (f32[1024,1024]): 6 × 4 MiB (24 MiB together), 4 copies." in text
    assert text.count("no operation propagated `data` to it") == 1


def test_borders_of_convolutions_name_the_image_whose_rows_are_sent() -> None:
    mesh = wb.make_mesh(data=2, space=4)

    def convolve(x, w, stride=1):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=layout)

    def loss(w, x):
        first = jax.nn.silu(convolve(x, w[0]))
        down = jax.nn.silu(convolve(first, w[1], 2))
        return jnp.mean(convolve(down, w[2]) ** 2)

    rows = jax.NamedSharding(mesh, jax.P("data", "space"))
    x = jax.ShapeDtypeStruct((16, 32, 32, 4), "float32", sharding=rows)
    w = [jax.ShapeDtypeStruct((3, 3, *sizes), "float32") for sizes in ((4, 32), (32, 32), (32, 8))]
    sent = [each for each in wb.why(jax.grad(loss))(w, x).collectives if each.kind == "collective-permute"]
    assert len(sent) >= 6
    for each in sent:
        match = re.search(r"moves elements along dimension 1 of .*?f32\[(\d+),\d+,(\d+),(\d+)\]", each.sentence)
        assert match is not None, each.sentence
        batch, width, channels = map(int, match.groups())
        assert each.payload_bytes == batch // 2 * width * channels * 4, each.sentence
        assert each.reason == "whole dimension"


def test_an_array_that_is_looked_up_is_indexed_not_summed() -> None:
    mesh = wb.make_mesh(nodes=8)
    rows = jax.NamedSharding(mesh, jax.P("nodes"))
    x = jax.ShapeDtypeStruct((1024, 64), "float32", sharding=rows)
    index = jax.ShapeDtypeStruct((8192,), "int32", sharding=rows)
    (gather,) = wb.why(lambda x, index: jnp.tanh(x[index]))(x, index).collectives
    assert gather.operation == "gather"
    assert "summed" not in gather.sentence
    assert "indexed" in gather.sentence


def test_the_largest_combined_sum_is_named_though_its_result_is_sharded() -> None:
    mesh = wb.make_mesh(data=8)
    x, w = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))

    def loss(w, images, texts):
        first = images @ w
        logits = jax.lax.with_sharding_constraint(
            first @ jnp.tanh(texts).T,
            x,
        )
        return jax.nn.logsumexp(logits, axis=1).mean()

    images = jax.ShapeDtypeStruct((512, 64), "float32", sharding=x)
    weight = jax.ShapeDtypeStruct((64, 32), "float32", sharding=w)
    texts = jax.ShapeDtypeStruct((512, 32), "float32", sharding=x)
    found = wb.why(jax.grad(loss, argnums=(0, 2)))(weight, images, texts)
    (combined,) = [each for each in found.collectives if "combined 2 exchanges" in each.sentence]
    assert combined.payload_bytes == (64 * 32 + 512 * 32) * 4
    assert "(f32[512,512]" in combined.sentence  # the gradient of `texts`, 64 KiB


def test_a_requested_gather_explains_no_sum() -> None:
    mesh = mesh_with(seq=8)

    def attend(q, k):
        return jax.nn.softmax(q @ jax.lax.all_gather(k, "seq", tiled=True).T) @ q.sum(0, keepdims=True).repeat(128, 0)

    mapped = jax.shard_map(attend, mesh=mesh, in_specs=jax.P("seq"), out_specs=jax.P("seq"))
    q = sharded(mesh)((128, 16), "seq")
    with jax.set_mesh(mesh):
        found = wb.why(jax.grad(lambda k, q: (mapped(q, k) ** 2).mean()))(q, q)
    (scatter,) = [each for each in found.collectives if each.kind == "reduce-scatter"]
    assert scatter.sentence.startswith("The program's gradient requests this exchange: `reduce_scatter`")
    assert "Both explanations" not in scatter.sentence


def test_an_array_of_one_dimension_has_no_other_to_shard() -> None:
    rows = jax.NamedSharding(wb.make_mesh(data=8), jax.P("data"))
    x = jax.ShapeDtypeStruct((4096,), "float32", sharding=rows)
    reasons = wb.why(lambda x: jnp.argsort(jnp.tanh(x)))(x).collectives
    assert reasons
    assert not any("dimension other than" in each.advice for each in reasons)


def test_a_combined_sum_is_of_the_layer_whose_operands_are_both_sharded() -> None:
    mesh = wb.make_mesh(data=2, model=4)

    def shape(sizes, *axes):
        return jax.ShapeDtypeStruct(sizes, "float32", sharding=jax.NamedSharding(mesh, jax.P(*axes)))

    def layer(w, a, b, x):
        return x @ w + (x @ a) @ b

    def loss(adapters, frozen, x):
        (a0, b0), (a1, b1) = adapters
        return (layer(frozen[1], a1, b1, jax.nn.gelu(layer(frozen[0], a0, b0, x))) ** 2).mean()

    adapter, weight = (shape((256, 8)), shape((8, 256))), shape((256, 256), "model")
    found = wb.why(jax.grad(loss))([adapter, adapter], [weight, weight], shape((512, 256), "data"))
    largest = found.collectives[0]
    assert largest.kind == "all-reduce"
    assert "argument `frozen[1]`" in largest.sentence  # the first is redistributed instead


def test_an_exchange_of_another_kind_at_a_written_one_is_the_partitioner_s() -> None:
    mesh = mesh_with(data=2, ep=4)

    def exchanged(x):
        def body(x):
            return jax.lax.all_to_all(x.reshape(4, -1, x.shape[-1]), "ep", 0, 0)

        return jax.shard_map(body, axis_names={"ep"}, in_specs=jax.P("ep"), out_specs=jax.P("ep"))(x)

    with jax.set_mesh(mesh):
        found = wb.why(exchanged)(sharded(mesh)((128, 32), ("ep", "data")))
    assert {(each.kind, each.axes, each.reason) for each in found.collectives} >= {("all-to-all", ("ep",), "program")}
    others = [each for each in found.collectives if each.axes == ("data",)]
    assert others
    assert all(each.kind == "all-gather" and "reads the value as P('ep')" in each.sentence for each in others)


def test_combined_gradients_of_a_shard_map_have_the_lines_of_their_sums() -> None:
    mesh = mesh_with(dp=2, tp=4)

    def loss(up, x):
        def body(x, up):
            return jax.nn.gelu(x @ up)

        mapped = jax.shard_map(body, mesh=mesh, in_specs=(jax.P("dp"), jax.P(None, "tp")), out_specs=jax.P("dp", "tp"))
        return jnp.sum(mapped(x, up) ** 2)

    shape = sharded(mesh)
    record = wb.inspect(jax.value_and_grad(loss))(shape((64, 256), None, "tp"), shape((32, 64), "dp"))
    assert record.module is not None
    combined = next(each for each in record.module.collectives if each.axes == ("dp",) and each.payload_bytes > 4096)
    line = loss.__code__.co_firstlineno + 2
    assert (combined.payload_bytes, combined.sources[0].line) == (64 * 64 * 4 + 4, line)  # 4: the loss's own sum
    why = next(each for each in wb.why(record).collectives if each.instruction == combined.name)
    assert (why.source and why.source.line, why.reason) == (line, "program")
    assert why.sentence.startswith("Differentiation inside `shard_map` adds this exchange")


def test_moved_rows_of_a_table_are_not_the_table() -> None:
    mesh = mesh_with(fsdp=4, tensor=2)
    shape = sharded(mesh)

    def looked_up(table, rows):
        return jax.lax.with_sharding_constraint(table.astype(jnp.bfloat16)[rows], jax.P("fsdp"))

    with jax.set_mesh(mesh):
        found = wb.why(looked_up)(shape((512, 64), "tensor", "fsdp"), shape((16, 32), "fsdp", dtype="int32"))
    by_kind = {each.kind: each for each in found.collectives}
    # One device's part of the result is 4 of 16 rows; that of the table would be half as large.
    assert by_kind["all-to-all"].payload_bytes == 16 * 32 * 64 * 4 // 4
    assert "the compiler redistributes the elements looked up" in by_kind["all-to-all"].sentence
    assert by_kind["collective-permute"].payload_bytes == 16 * 32 * 4 // 4  # the rows to look up
    assert "(i32[16,32" in by_kind["collective-permute"].sentence
    assert "bf16" not in by_kind["collective-permute"].sentence
    assert "sums over" not in by_kind["all-gather"].sentence


def test_shardings_that_the_compiled_program_does_not_have_explain_nothing() -> None:
    mesh = mesh_with(a=8)
    shape = sharded(mesh)
    record = wb.inspect(fsdp)(shape((64, 256), "a"), shape((256, 512), "a"), shape((512, 256), "a"))
    assert record.propagation is not None
    hidden = [value for value in record.propagation.values if value.source and value.shape == (64, 512)]
    assert {value.spec for value in hidden} == {(("a",), ())}
    other = tuple(value.replace(spec=((), ("a",))) if value in hidden else value for value in record.propagation.values)
    departed = wb.why(record.replace(propagation=record.propagation.replace(values=other)))
    assert departed.causes == ()
    second = next(each for each in departed.collectives if "`w2`" in each.sentence)
    assert (second.kind, second.reason) == ("all-gather", "disagreement")
    assert "dimension 0 of the result of `maximum` (f32[64,512]" in second.sentence  # not dimension 1
    assert "which remains in the result, and dimension 0 of argument `w2` (f32[512,256]), which is summed" in (
        second.sentence
    )
    assert second.sentence.endswith(
        "These shardings are those of the compiled program; the propagated shardings differ."
    )
    assert [operand.spec for operand in second.operands] == [(("a",), ()), (("a",), ())]
    assert second.operands[0].origins == {"a": "the compiler"}


def test_collectives_are_ordered_by_the_bytes_that_one_device_sends() -> None:
    mesh = mesh_with(a=8)
    shape = sharded(mesh)

    def both(w, y):
        return jax.lax.with_sharding_constraint(w, jax.P()), y.sum(0)

    with jax.set_mesh(mesh):
        record = wb.inspect(both)(shape((64, 256), "a"), shape((64, 4096), "a"))
    found = wb.why(record).collectives
    # The payload of the sum is larger, but the gather sends 7 parts of 8 KiB and the sum 2 × 7/8 of 16 KiB.
    assert [(each.kind, each.payload_bytes, each.sent_bytes) for each in found] == [
        ("all-gather", 8192, 7 * 8192),
        ("all-reduce", 16384, 2 * 7 / 8 * 16384),
    ]
    assert record.module is not None
    assert {each.name: each.sent_bytes for each in record.module.collectives} == {
        each.instruction: each.sent_bytes for each in found
    }
    assert "1. all-gather over a, 8 KiB per device, 56 KiB sent by one device" in render.text(wb.why(record))


def test_sums_of_layers_name_arrays_that_have_the_exchanged_part() -> None:
    """Several products of one line have the same name, and some of them the same number of bytes."""
    mesh = mesh_with(replica=2, fsdp=2, tensor=2)
    shape = sharded(mesh)

    def loss(params, tokens):
        x = params["table"][tokens[:, :-1]]
        for layer in params["layers"]:
            x = x + jax.nn.gelu(x @ layer["up"] + layer["bias"][None, None]) @ layer["down"]
        return (x @ params["table"].T).var()

    layer = {
        "up": shape((64, 256), "fsdp", "tensor"),
        "bias": shape((256,), "tensor"),
        "down": shape((256, 64), "tensor", "fsdp"),
    }
    params = {"table": shape((512, 64), "tensor", "fsdp"), "layers": [layer, dict(layer)]}
    with jax.set_mesh(mesh):
        record = wb.inspect(jax.grad(loss))(params, shape((16, 33), ("replica", "fsdp"), dtype="int32"))
    assert record.module is not None
    instructions = {each.name: each for each in record.module.instructions}
    lines = {each.name: each.sources[0].line for each in record.module.collectives}  # that with most bytes
    sums = [each for each in wb.why(record).collectives if each.kind == "all-reduce"]
    assert len(sums) > 4
    assert all(each.source and each.source.line == lines[each.instruction] for each in sums)
    for each in sums:
        elements = [
            np.prod([int(size) for size in re.findall(r"\d+", instructions[name].shape.partition("{")[0])[1:]])
            for name in instructions[each.instruction].operands
        ]
        named = re.search(r"a part of the result of `\w+` \(f32\[([\d,]+)\]", each.sentence)
        if named is not None:
            whole = np.prod([int(size) for size in named[1].split(",")])
            assert any(whole % part == 0 and whole >= part for part in elements), each.sentence
        if each.reason == "sum":
            assert all(f"`{axis}`" in each.sentence for axis in each.axes), each.sentence


def test_a_concatenation_whose_result_is_sharded_along_its_dimension_is_redistributed_itself() -> None:
    mesh = mesh_with(a=8)
    shape = sharded(mesh)

    def joined(x, y, w):
        both = jnp.concatenate([jnp.sin(x), jnp.cos(y)], 1)
        return jax.lax.with_sharding_constraint(both, jax.P(None, "a")) * w

    with jax.set_mesh(mesh):
        record = wb.inspect(joined)(*[shape((64, size), None, "a") for size in (16, 32, 48)])
    assert record.module is not None
    instructions = {each.name: each for each in record.module.instructions}
    for each in wb.why(record).collectives:
        size = instructions[each.instruction].size_bytes  # of one device's part: 64 × 16, 32 or 48 eighths of floats
        whole = {
            64 * 2 * 4: "`sin` (f32[64,16]",
            64 * 4 * 4: "`cos` (f32[64,32]",
            64 * 6 * 4: "`concatenate` (f32[64,48]",
        }
        if each.kind == "all-to-all":
            assert whole[size].replace("sin", "sine").replace("cos", "cosine") in each.sentence, each.sentence


def test_different_summed_dimensions_over_one_axis_are_no_partial_sums() -> None:
    mesh = mesh_with(a=8)
    shape = sharded(mesh)

    def merged(x, w):
        return jnp.einsum("bhk,hkd->bd", jnp.sin(x), w)

    with jax.set_mesh(mesh):
        found = wb.why(merged)(shape((16, 8, 16), None, "a"), shape((8, 16, 32), None, "a"))
    moves = [each for each in found.collectives if each.kind != "all-reduce"]
    assert moves
    assert not any("instead of adding partial sums" in each.sentence for each in moves)
    assert any("different dimensions of the sum" in each.sentence for each in moves)


def test_a_sum_over_two_dimensions_names_the_axes_of_both() -> None:
    mesh = mesh_with(a=4, b=2)
    shape = sharded(mesh)
    with jax.set_mesh(mesh):
        (total,) = wb.why(lambda x: jnp.sin(x).sum((0, 1)))(shape((64, 32, 16), "a", "b")).collectives[:1]
    for axis, dim in (("a", 0), ("b", 1)):
        if axis in total.axes:
            assert f"dimension {dim} of the result of `sine`" in total.sentence
            assert f"sharded over `{axis}`" in total.sentence
    assert "do not explain" not in total.sentence


def test_numbers_of_gathered_dimensions_are_those_of_the_named_array() -> None:
    mesh = mesh_with(a=2, b=4)
    shape = sharded(mesh)

    def scaled(x, scale, w):
        return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True)) * scale[None, None]) @ w

    with jax.set_mesh(mesh):
        found = wb.why(scaled)(shape((8, 16, 64), "a"), shape((64,), "b"), shape((64, 64), "a", "b"))
    for each in found.collectives:
        for dim, sizes in re.findall(
            r"dimension (\d+) of (?:argument|the result of) `[^`]*` \(\w+\[([\d,]*)\]", each.sentence
        ):
            assert int(dim) < len(sizes.split(",")), each.sentence
