"""Jitted functions with their options, JAX stages, exports, texts, files and modules are all read."""

import functools
import textwrap

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import InspectionError
from workbench.records.compiled import ProgramRecord
from workbench.records.sharding import ShardingRecord

X, W = np.ones((8, 16), np.float32), np.ones((16, 8), np.float32)
FLOPS = 2 * 8 * 16 * 8


def matmul(x, w):
    return (x @ w).sum()


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def sharded(mesh):
    return (
        jax.device_put(X, NamedSharding(mesh, P("data"))),
        jax.device_put(W, NamedSharding(mesh, P(None, "model"))),
    )


def axes(record):
    return sorted(axis for collective in record.module.collectives for axis in collective.axes)


# What is shown is what runs.


def test_mesh_is_that_of_the_arguments(sharded):
    record = wb.inspect(matmul)(*sharded)
    assert record.target == "cpu x 8"
    assert axes(record) == ["data", "model"]
    assert record.module.flops == FLOPS / 8


@pytest.mark.parametrize("jit", [jax.jit, wb.jit], ids=["jax.jit", "wb.jit"])
def test_shardings_of_a_jit_are_kept(jit, mesh):
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    record = wb.inspect(jit(matmul, in_shardings=(rows, whole), out_shardings=whole))(X, W)
    assert axes(record) == ["data"]
    assert record.module.flops == FLOPS / 4


@pytest.mark.parametrize("jit", [jax.jit, wb.jit], ids=["jax.jit", "wb.jit"])
def test_donation_of_a_jit_is_kept(jit):
    kept = wb.inspect(jit(lambda x: x * 2))(jnp.asarray(X)).module.memory.alias_bytes
    given = wb.inspect(jit(lambda x: x * 2, donate_argnums=0))(jnp.asarray(X)).module.memory.alias_bytes
    assert (kept, given) == (0, X.nbytes)


@pytest.mark.parametrize("jit", [jax.jit, wb.jit], ids=["jax.jit", "wb.jit"])
def test_static_arguments_of_a_jit_are_kept(jit):
    fn = jit(lambda x, mode, factor: x * factor if mode == "scale" else x, static_argnames=("mode",))
    record = wb.inspect(fn)(X, "scale", 3.0)
    assert [leaf.path for leaf in record.inputs.leaves] == ["x", "factor"]
    assert float(wb.measure(fn, rounds=1)(X, "scale", 3.0).results[0, 0]) == 3.0
    assert float(wb.measure(fn, rounds=1)(X, mode="scale", factor=3.0).results[0, 0]) == 3.0


def test_leaves_that_are_no_arrays_are_held_fixed():
    record = wb.inspect(lambda settings, x: x * 2 if settings["act"] == "relu" else x)({"act": "relu"}, X)
    assert [leaf.shape for leaf in record.inputs.leaves] == [(8, 16)]


class Model:
    """Callable, with a plain and a jitted method."""

    factor = 2.0

    def __call__(self, x):
        return x * self.factor

    def plain(self, x):
        return x * self.factor

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x):
        return x * self.factor


CALLABLES = {
    "partial": functools.partial(matmul, X),
    "partial of a jit": functools.partial(jax.jit(matmul), X),
    "callable object": lambda w: Model()(w),
    "object": Model(),
    "method": Model().plain,
    "jitted method": Model().jitted,
    "Partial": jax.tree_util.Partial(matmul, X),
    "jit of a jit": jax.jit(jax.jit(lambda w: w * 2)),
    "gradient of a jit": jax.grad(jax.jit(lambda w: (w * w).sum())),
    "vmap": jax.vmap(lambda row: row * 2),
}


@pytest.mark.parametrize("fn", CALLABLES.values(), ids=CALLABLES.keys())
def test_callable_is_inspected_and_measured(fn):
    assert wb.inspect(fn)(W).module.devices == 1
    assert wb.measure(fn, rounds=1)(W).rounds == 1


def test_name_of_a_partial_call_is_that_of_the_function():
    assert wb.inspect(functools.partial(matmul, X))(W).name == "matmul"


# Stages of JAX, exported programs, texts and files.


@pytest.fixture(scope="module")
def compiled(sharded):
    return jax.jit(matmul).lower(*sharded).compile()


@pytest.fixture(scope="module")
def hlo(compiled):
    return compiled.as_text()


def test_traced_of_jax_is_read(sharded):
    record = wb.inspect(jax.jit(matmul).trace(*sharded))
    assert axes(record) == ["data", "model"]
    assert len(record.plan.stages) == 1


def test_lowered_and_compiled_are_read_and_say_what_is_missing(sharded, compiled):
    for stage in (jax.jit(matmul).lower(*sharded), compiled):
        record = wb.inspect(stage)
        assert record.name == "matmul"
        assert axes(record) == ["data", "model"]
        assert any("stages are missing" in note for note in record.notes)


def test_deserialised_program_is_read(compiled):
    from jax.experimental import serialize_executable

    loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
    record = wb.inspect(loaded)
    assert record.module.flops == FLOPS / 8
    assert any("stages are missing" in note for note in record.notes)


def test_exported_programs_are_read(sharded):
    assert wb.inspect(jax.export.export(jax.jit(matmul))(X, W)).module.flops == FLOPS
    assert axes(wb.inspect(jax.export.export(jax.jit(matmul))(*sharded))) == ["data", "model"]
    assert wb.inspect(bytes(jax.export.export(jax.jit(matmul))(X, W).serialize())).module.flops == FLOPS
    assert wb.inspect(wb.trace(matmul)(X, W).export()).module.flops == FLOPS


PASTED = {
    "as it is": lambda text: text,
    "indented": lambda text: textwrap.indent(text, "    "),
    "quoted": lambda text: textwrap.indent(text, "> "),
    "fenced": lambda text: f"This is what I see:\n```\n{text}\n```\nWhy?",
    "in bytes": lambda text: text.encode(),
}


@pytest.mark.parametrize("paste", PASTED.values(), ids=PASTED.keys())
def test_hlo_text_is_read(paste, hlo):
    record = wb.inspect(paste(hlo))
    assert isinstance(record, ProgramRecord)
    assert record.module.flops == FLOPS / 8


def test_stablehlo_is_read_with_its_mesh(sharded):
    record = wb.inspect(jax.jit(matmul).lower(*sharded).as_text())
    assert axes(record) == ["data", "model"]


def test_files_and_dump_directories_are_read(tmp_path, hlo):
    (tmp_path / "one.hlo").write_text(hlo)
    assert wb.inspect(tmp_path / "one.hlo").module.flops == FLOPS / 8
    assert wb.inspect(str(tmp_path / "one.hlo")).module.flops == FLOPS / 8
    dump = tmp_path / "dump"
    lowered = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(X, W)
    lowered.compile(compiler_options={"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True})
    assert wb.inspect(dump).module.flops == FLOPS


def test_protos_are_read(compiled, tmp_path):
    module = compiled.runtime_executable().hlo_modules()[0]
    assert wb.inspect(module.as_serialized_hlo_module_proto()).module.flops == FLOPS / 8
    lowered = jax.jit(lambda x, w: jnp.cos(x @ w)).lower(X, W)
    lowered.compile(compiler_options={"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True})
    (proto,) = tmp_path.rglob("*after_optimizations.hlo.pb")
    assert wb.inspect(proto).module.flops == FLOPS


def test_record_is_read_from_its_json(tmp_path):
    record = wb.inspect(matmul)(X, W)
    (tmp_path / "record.json").write_text(record.to_json())
    assert wb.inspect(tmp_path / "record.json") == record


# Modules.


class Net(nnx.Module):
    """Two dense layers."""

    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.relu(self.up(x)))


def step(net, optimizer, x, y):
    """One update of the module, in place."""
    loss, gradient = nnx.value_and_grad(lambda net: ((net(x) - y) ** 2).mean())(net)
    optimizer.update(net, gradient)
    return loss


@pytest.fixture
def training():
    with jax.numpy_dtype_promotion("standard"):  # as flax and optax are written
        yield _training()


def _training():
    net = Net(nnx.Rngs(0))
    return net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param), jnp.ones((32, 8)), jnp.zeros((32, 4))


@pytest.mark.parametrize("jit", [nnx.jit, lambda fn: fn], ids=["nnx.jit", "plain"])
def test_nnx_function_keeps_its_update(jit, training):
    record = wb.inspect(jit(step))(*training)
    assert record.module.flops == 2 * 32 * (2 * 8 * 16 + 3 * 16 * 4)  # forward and backward, no gradient of the data
    assert {"net.up.bias", "net.up.kernel"} <= {v.name for v in record.plan.inputs}


def test_nnx_modules_are_left_as_they_are(training):
    net = training[0]
    before = np.asarray(net.up.kernel[...])
    loss = wb.measure(nnx.jit(step), rounds=1)(*training).results
    np.testing.assert_array_equal(before, net.up.kernel[...])
    np.testing.assert_allclose(loss, ((net(training[2]) - training[3]) ** 2).mean(), rtol=1e-5)


def test_modules_are_shown_as_their_arrays(training):
    net, optimizer, x, _ = training
    assert isinstance(wb.inspect(net), ShardingRecord)
    assert wb.inspect(net).total_bytes == 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert len(wb.inspect(optimizer).leaves) == 10
    assert wb.inspect(net.__call__)(x).module.flops == 2 * 32 * (8 * 16 + 16 * 4)


def test_linen_module_says_where_its_arrays_are():
    model = linen.Dense(4)
    with pytest.raises(InspectionError, match=r"linen module, which contains no arrays itself .*model\.init"):
        wb.inspect(model)
    assert wb.inspect(model.init(jax.random.key(0), X)).total_bytes == 4 * (16 * 4 + 4)
    assert wb.inspect(model.apply)(model.init(jax.random.key(0), X), X).module.flops == 2 * 8 * 16 * 4


def test_pytree_with_arrays_between_other_leaves_is_shown():
    record = wb.inspect({"w": W, "name": "dense", "act": jax.nn.relu})
    assert [leaf.path for leaf in record.leaves] == ["['w']"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_equinox_filter_jit_keeps_its_donation():
    equinox = pytest.importorskip("equinox")
    model = equinox.nn.MLP(8, 4, 16, 2, key=jax.random.key(0))

    @equinox.filter_jit(donate="all")
    def scaled(model):
        return jax.tree.map(lambda leaf: leaf * 2 if equinox.is_array(leaf) else leaf, model)

    record = wb.inspect(scaled)(model)
    assert record.module.memory.alias_bytes == wb.inspect(model).total_bytes
    assert record.inputs.leaves[0].path == "model.layers[0].weight"
    assert isinstance(wb.measure(scaled.__wrapped__, rounds=1)(model).results, equinox.nn.MLP)


# What cannot be read says what it is.


BAD = {
    "a number": (3, r"an object of type int, which contains no arrays \(1 leaves of the types int\)"),
    "prose": ("hello\nworld", r"text of 11 characters, starting with 'hello world', which is neither HLO"),
    "no such file": ("nothing.hlo", r"'nothing\.hlo', and no file or directory of this name exists"),
    "bytes": (b"\x00\xff\x81abc", r"bytes of 6 bytes, starting with .* can read"),
    "other JSON": ('{"a": 1}', r"starts like JSON but is not a record"),
}


@pytest.mark.parametrize(("thing", "said"), BAD.values(), ids=BAD.keys())
def test_other_things_are_refused_with_what_they_are(thing, said):
    with pytest.raises(InspectionError, match=said):
        wb.inspect(thing)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_cut_text_is_refused_with_the_place(share, hlo, sharded):
    for text in (hlo, jax.jit(matmul).lower(*sharded).as_text()):
        with pytest.raises(InspectionError, match="HLO"):
            wb.inspect(text[: int(len(text) * share)])


def test_shapes_cannot_be_measured():
    with pytest.raises(InspectionError, match=r"1 of 1 leaves as `jax\.ShapeDtypeStruct`"):
        wb.measure(lambda x: x * 2)(jax.ShapeDtypeStruct((3,), "float32"))


def test_compiled_program_cannot_be_inspected_for_a_target(compiled):
    with pytest.raises(InspectionError, match="lowered or compiled for the devices of this process"):
        wb.inspect(compiled, on="v5e:2x4")
