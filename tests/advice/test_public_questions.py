"""The public questions of notebook 19: each program gets the right finding first, and its fix none of that rule."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.advice._rewrite import with_written_gathers


def auto(shape, names):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


@pytest.fixture(scope="module")
def line():
    return auto((8,), ("data",))


@pytest.fixture(scope="module")
def grid():
    return auto((2, 4), ("x", "y"))


def given(mesh, spec, *dims):
    return jax.ShapeDtypeStruct(dims, "float32", sharding=NamedSharding(mesh, P(*spec)))


def findings(fn, *args, verify=False):
    return wb.advise(fn, verify=verify)(*args).findings


def shuffle(key, batch):
    return jax.vmap(jax.random.permutation)(jax.random.split(key, batch.shape[0]), batch)


def shuffled(mesh, **options):
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    fn = jax.jit(shuffle, in_shardings=(whole, rows), out_shardings=rows)
    key, batch = jax.ShapeDtypeStruct((2,), "uint32"), jax.ShapeDtypeStruct((24, 512, 16), "float32")
    return findings(fn, key, batch, **options)


def test_shuffle_with_the_generator_of_2024_is_advised_to_take_the_new_one_which_is_compiled(line):
    with jax.threefry_partitionable(False):
        found = shuffled(line, verify=True)[0]
    assert found.rule == "random numbers that are exchanged"
    assert "jax_threefry_partitionable" in found.code
    assert found.gain is not None
    assert found.gain.verified
    assert found.gain.after == 0


def test_shuffle_with_the_generator_of_today_is_no_finding(line):
    assert [found.rule for found in shuffled(line)] == ["missing donation"]  # of a batch that is replaced


def test_normal_numbers_of_the_generator_of_2024_are_found(line):
    def draw(key):
        return jax.lax.with_sharding_constraint(jax.random.normal(key, (64,)), NamedSharding(line, P("data")))

    with jax.threefry_partitionable(False):
        found = findings(draw, jax.ShapeDtypeStruct((2,), "uint32"))
    assert found[0].rule == "random numbers that are exchanged"


def test_roll_by_an_array_is_advised_to_make_the_shift_static(line):
    arguments = given(line, ["data"], 4096), jax.ShapeDtypeStruct((), "int32")
    found = findings(lambda x, s: jnp.roll(x, s), *arguments, verify=True)
    assert [each.rule for each in found] == ["shift known only at run time"]
    assert "static" in found[0].change
    assert found[0].is_verified
    assert found[0].gain.after == 4  # bytes: one number to the neighbour


def test_roll_by_a_number_is_no_finding(line):
    assert findings(lambda x: jnp.roll(x, 1), given(line, ["data"], 4096), verify=True) == ()


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="the partitioner of this JAX splits it")
def test_vmapped_fft_is_advised_to_use_shard_map(line):
    found = findings(jax.vmap(jnp.fft.fft), given(line, ["data"], 16, 1024), verify=True)
    assert [each.rule for each in found] == ["operation that is not split"]
    assert "shard_map" in found[0].change
    assert found[0].is_verified
    assert found[0].gain.after == 0


def test_fft_inside_of_shard_map_is_no_finding(line):
    own = jax.shard_map(jax.vmap(jnp.fft.fft), mesh=line, in_specs=P("data"), out_specs=P("data"))
    assert findings(own, given(line, ["data"], 16, 1024)) == ()


def four_layers(mesh, block):
    """The gradient of four layers, whose activations are sharded by columns, and its arguments."""

    def loss(weights, x):
        for up, down in weights:
            x = x + block(x, up, down)
        return (x**2).sum()

    weights = [(given(mesh, [None, "data"], 256, 1024), given(mesh, ["data"], 1024, 256))] * 4
    return jax.grad(loss), weights, given(mesh, [None, "data"], 512, 256)


def layers(mesh, block):
    return findings(*four_layers(mesh, block))


def kept_nothing(block):
    return jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable)


def inserted(mesh):
    """A layer whose gather the compiler inserts."""

    def products(x, up, down):
        whole = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))
        return jax.lax.with_sharding_constraint(jnp.tanh(whole @ up) @ down, NamedSharding(mesh, P(None, "data")))

    return kept_nothing(products)


def test_inserted_gathers_are_written_into_the_recomputation_alone(line):
    closed = jax.make_jaxpr(four_layers(line, inserted(line))[0])(*four_layers(line, inserted(line))[1:])
    source = inspect.getsourcelines(inserted)[1] + 4
    changed, count = with_written_gathers(closed, [(__file__, source)], line, {(512, 256): ((), ("data",))})
    assert count == 4  # one for each layer: those of the forward pass stay
    assert str(closed).count("all_gather") == 0
    assert str(changed).count("all_gather[") == 4


def test_inserted_gathers_that_a_checkpoint_keeps_are_advised_to_be_written(line):
    found = layers(line, inserted(line))[0]
    assert found.rule == "gather before the checkpoint"
    assert found.what.startswith("3 gathered copies")  # of four layers, one is gathered again
    assert found.sources[0].function.endswith("products")


def test_written_gathers_in_a_checkpoint_are_no_finding(line):
    def products(x, up, down):
        whole = jax.lax.all_gather(x, "data", axis=1, tiled=True)
        return jax.lax.psum_scatter(jnp.tanh(whole @ up) @ down, "data", scatter_dimension=1, tiled=True)

    columns, rows = P(None, "data"), P("data")
    written = jax.shard_map(products, mesh=line, in_specs=(columns, columns, rows), out_specs=columns)
    assert layers(line, kept_nothing(written)) == ()


def test_fused_product_is_no_finding():
    shapes = [jax.ShapeDtypeStruct(dims, "float32") for dims in ((128, 256), (256, 512), ())]
    assert findings(lambda x, w, scale: jax.nn.relu((x @ w) * scale), *shapes) == ()


def test_captured_value_under_vmap_and_shard_map_is_advised_to_name_the_mapped_axis(grid):
    def captured(a, b):
        return jax.shard_map(lambda part: a + part, mesh=grid, in_specs=P("y"), out_specs=P("y"))(b)

    found = findings(jax.vmap(captured), given(grid, ["x"], 2), given(grid, ["x", "y"], 2, 8))
    assert [each.rule for each in found] == ["mapped axis that is not named"]
    assert 'spmd_axis_name="x"' in found[0].code
    assert found[0].axes == ("x",)


def test_value_that_is_given_with_a_named_mapped_axis_is_no_finding(grid):
    def added(a, b):
        return jax.shard_map(lambda a, part: a + part, mesh=grid, in_specs=(P(), P("y")), out_specs=P("y"))(a, b)

    named = jax.vmap(added, spmd_axis_name="x")
    assert findings(named, given(grid, ["x"], 2), given(grid, ["x", "y"], 2, 8)) == ()
