import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from workbench.aot import fit_axes, lower_for_target, target_mesh
from workbench.errors import MeshError, ProgramError


def scaled_mean(w, x):
    with jax.named_scope("wb:1:reduce"):
        return (x * w).mean(0)


@pytest.fixture
def mesh():
    return target_mesh("v5e:4x4", (8, 2), ("clients", "model"))


def test_target_mesh_has_auto_axes_over_every_device(mesh):
    assert mesh.axes == {"clients": 8, "model": 2}
    assert mesh.abstract.axis_types == (AxisType.Auto, AxisType.Auto)
    assert (mesh.target.devices, mesh.order) == (16, "topology")


@pytest.mark.parametrize(
    ("shapes", "names", "words"),
    [((4, 2), ("a", "b"), "8 places for 16 devices"), ((16,), ("a", "b"), "sizes (16,) and names ('a', 'b')")],
    ids=["product", "names"],
)
def test_target_mesh_of_another_size_is_refused(shapes, names, words):
    with pytest.raises(MeshError) as caught:
        target_mesh("v5e:4x4", shapes, names)
    assert words in str(caught.value)
    assert "for example (8, 2)" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "axes", "fitted"),
    [
        ("v5e:16x16", {"clients": 4, "model": 2}, {"clients": 128, "model": 2}),
        ("v5e:2x2", {"clients": 64}, {"clients": 4}),
        ("tpu7x:4x4x4", {"pods": 1, "clients": 4, "model": 8}, {"pods": 4, "clients": 4, "model": 8}),
    ],
    ids=["grown", "shrunk", "three"],
)
def test_first_axis_takes_what_the_others_leave(target, axes, fitted):
    assert fit_axes(target, axes) == fitted


@pytest.mark.parametrize(
    ("clients", "fitted"),
    [
        # 256 devices: 128 places for clients beside 2 for the model
        (16, {"clients": 16, "model": 16}),
        (256, {"clients": 128, "model": 2}),
        (96, {"clients": 32, "model": 8}),  # 32 is what 128 and 96 share
    ],
    ids=["fewer-than-places", "more", "shared-factor"],
)
def test_clients_axis_is_not_grown_beyond_what_divides_its_clients(clients, fitted):
    assert fit_axes("v5e:16x16", {"clients": 4, "model": 2}, {"clients": clients}) == fitted


def test_last_of_three_axes_takes_the_factor_that_clients_leave():
    # 256 devices are 64 × 2 × 2; 16 clients leave a factor of 4
    axes, clients = {"clients": 4, "data": 2, "model": 2}, {"clients": 16}
    assert fit_axes("v5e:16x16", axes, clients) == {"clients": 16, "data": 2, "model": 8}


def test_clients_axis_that_is_alone_takes_all_devices():
    assert fit_axes("v5e:4x4", {"clients": 4}, {"clients": 6}) == {"clients": 16}


def test_axes_that_do_not_divide_the_target_are_refused():
    with pytest.raises(MeshError) as caught:
        fit_axes("v5e:4x4", {"clients": 4, "model": 3})
    assert "take 3 devices, but 3 does not divide the target's 16" in str(caught.value)
    assert "use sizes for ['model'] whose product divides 16" in str(caught.value)


@pytest.mark.parametrize("jitted", [False, True], ids=["function", "jitted"])
def test_lowered_text_holds_mesh_shardings_scopes_and_source_lines(mesh, jitted):
    x = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=NamedSharding(mesh.abstract, P("clients")))
    text = lower_for_target(jax.jit(scaled_mean) if jitted else scaled_mean, (jnp.float32(2.0), x), mesh)
    assert "mhlo.num_partitions = 16" in text
    assert 'sdy.mesh @mesh = <["clients"=8, "model"=2]>' in text
    assert '[{"clients"}, {}]' in text
    assert "wb:1:reduce" in text
    assert "test_lower.py" in text


def test_program_sees_the_target_as_the_current_mesh(mesh):
    seen = []

    def program(x):
        seen.append(jax.sharding.get_abstract_mesh())
        return x

    lower_for_target(program, (jnp.zeros(4),), mesh)
    assert seen == [mesh.abstract]


def test_mesh_of_here_does_not_prevent_the_targets(mesh):
    alone = lower_for_target(lambda x: x.sum(), (jnp.zeros((16, 4)),), mesh)
    with jax.set_mesh(jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)):
        beside = lower_for_target(lambda x: x.sum(), (jnp.zeros((16, 4)),), mesh)
        assert jax.sharding.get_abstract_mesh().size == 8  # and is there again afterwards
    assert beside.count("stablehlo.reduce") == alone.count("stablehlo.reduce") == 1


def test_arrays_sharded_over_a_mesh_of_here_move_to_the_target_by_axis_name(mesh):
    here = jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(jnp.zeros((16, 4)), NamedSharding(here, P("clients", "model")))
    text = lower_for_target(scaled_mean, (jnp.float32(1.0), x), mesh)
    assert '[{"clients"}, {"model"}]' in text
    assert '"clients"=8' in text


def test_every_sharding_over_an_axis_that_the_target_lacks_is_reported(mesh):
    here = AbstractMesh((2, 2), ("pods", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=NamedSharding(here, P(("pods", "model"))))
    with pytest.raises(MeshError) as caught:
        lower_for_target(lambda d: d["a"], ({"a": x, "b": x, "c": jnp.zeros(3)},), mesh)
    message = str(caught.value)
    assert "args[0]['a']: " in message
    assert "args[0]['b']: " in message
    assert "'pods'" in message
    assert "by axis names" in message


def test_every_argument_that_cannot_be_cut_evenly_is_reported(mesh):
    here = AbstractMesh((2, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    uneven = jax.ShapeDtypeStruct((6, 4), jnp.float32, sharding=NamedSharding(here, P("clients")))
    even = jax.ShapeDtypeStruct((16, 4), jnp.float32, sharding=NamedSharding(here, P("clients")))
    with pytest.raises(MeshError) as caught:
        lower_for_target(lambda d: d["a"], ({"a": uneven, "b": even, "c": uneven},), mesh)
    message = str(caught.value)
    assert f"{mesh.axes['clients']} parts of a dimension of 6" in message
    assert ("args[0]['a']" in message, "args[0]['b']" in message, "args[0]['c']" in message) == (True, False, True)
    assert "on=(jax.sharding.AbstractMesh(sizes, names), target)" in message


def test_abstract_mesh_needs_a_platform(mesh):
    with pytest.raises(ProgramError, match=r"no `platform`.*`platform='tpu'` or 'cuda'"):
        lower_for_target(lambda x: x, (jnp.zeros(4),), mesh.abstract)
    assert "module @jit" in lower_for_target(lambda x: x, (jnp.zeros(4),), mesh.abstract, platform="cuda")


def test_platform_chooses_the_lowering(mesh):
    def which(x):
        return jax.lax.platform_dependent(x, tpu=lambda x: x + 41.0, cuda=lambda x: x + 42.0)

    tpu, cuda = (lower_for_target(which, (jnp.zeros(()),), mesh.abstract, platform=p) for p in ("tpu", "cuda"))
    assert ("4.100000e+01" in tpu, "4.200000e+01" in tpu) == (True, False)
    assert ("4.100000e+01" in cuda, "4.200000e+01" in cuda) == (False, True)
