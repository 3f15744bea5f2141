"""Shardings read from arrays agree with JAX's own index maps; odd inputs are noted, not fatal."""

import json
import socket
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

from workbench import errors
from workbench.inspection import inspect_sharding

AXES = ("clients", "model")
TYPES = {
    "auto": (AxisType.Auto, AxisType.Auto),
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "mixed": (AxisType.Auto, AxisType.Explicit),
}


def mesh(kind="auto"):
    return Mesh(np.array(jax.devices()).reshape(4, 2), AXES, axis_types=TYPES[kind])


def only(tree, **options):
    (leaf,) = inspect_sharding(tree, **options).leaves
    return leaf


def slices(leaf):
    return {shard.device_id: (shard.start, shard.stop) for shard in leaf.shards}


def slices_of_jax(sharding, shape):
    """JAX's own answer: the oracle."""
    return {
        device.id: tuple(zip(*(index.indices(size)[:2] for index, size in zip(where, shape, strict=True)), strict=True))
        for device, where in sharding.devices_indices_map(shape).items()
    }


SPECS = [
    P(),
    P("clients"),
    P("model", "clients"),
    P(("clients", "model")),
    P(None, ("model", "clients")),
    P(None, "model"),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("shape", [(8, 8), (16, 8, 3), (8, 8, 1, 2, 5)], ids=lambda shape: f"{len(shape)}d")
def test_slices_of_concrete_arrays_are_those_of_jax(kind, spec, shape):
    sharding = NamedSharding(mesh(kind), spec)
    array = jax.device_put(jnp.zeros(shape, jnp.float32), sharding)
    leaf = only(array)
    assert slices(leaf) == slices_of_jax(sharding, shape)
    assert leaf.shard_shape == sharding.shard_shape(shape)
    assert leaf.bytes_per_device == array.addressable_shards[0].data.nbytes
    assert leaf.size_bytes == array.nbytes
    assert leaf.replication == len(leaf.shards) // len(set(slices(leaf).values()))
    assert (leaf.kind, leaf.padding_bytes) == (kind, 0)


def test_replicas_of_a_slice_are_numbered_in_mesh_order():
    leaf = only(jax.device_put(jnp.zeros((8,)), NamedSharding(mesh(), P("model"))))
    assert [(shard.device_id, shard.start[0], shard.replica) for shard in leaf.shards] == [
        (0, 0, 0), (1, 4, 0), (2, 0, 1), (3, 4, 1), (4, 0, 2), (5, 4, 2), (6, 0, 3), (7, 4, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("made", ["present", "abstract"])
def test_struct_is_read_like_the_array_it_is_for(made):
    owner = mesh() if made == "present" else AbstractMesh((4, 2), AXES)
    leaf = only(jax.ShapeDtypeStruct((8, 6), jnp.bfloat16, sharding=NamedSharding(owner, P("clients", "model"))))
    assert leaf.spec == (("clients",), ("model",))
    assert (leaf.shard_shape, leaf.bytes_per_device, leaf.replication) == ((2, 3), 12, 1)
    assert slices(leaf)[5] == ((4, 3), (6, 6))


def test_uneven_shape_is_padded_at_the_end_and_says_so():
    leaf = only(jax.ShapeDtypeStruct((7, 3), jnp.float32, sharding=NamedSharding(mesh(), P("clients"))))
    # ceil(7 / 4) = 2 rows each: 0-2, 2-4, 4-6, 6-7; one row of three float32 is padding.
    assert (leaf.shard_shape, leaf.padding_bytes, leaf.bytes_per_device) == ((2, 3), 12, 24)
    assert [slices(leaf)[number] for number in (0, 6)] == [((0, 0), (2, 3)), ((6, 0), (7, 3))]
    assert "dimension 0 is not evenly divisible" in leaf.notes[0]


@given(size=st.integers(0, 40), spec=st.sampled_from([P(), P("clients"), P(("model", "clients"))]))
@settings(deadline=None)
def test_slices_cover_every_element_equally_often(size, spec):
    leaf = only(jax.ShapeDtypeStruct((size,), jnp.float32, sharding=NamedSharding(mesh(), spec)))
    held = [element for shard in leaf.shards for element in range(shard.start[0], shard.stop[0])]
    assert [held.count(element) for element in range(size)] == [leaf.replication] * size


def test_tree_keeps_its_paths_and_adds_up_the_fullest_device():
    shards = {
        "layers": [jax.device_put(jnp.zeros((8, 4)), NamedSharding(mesh(), P("clients")))],  # 128 / 4 = 32 bytes
        "bias": jax.device_put(jnp.zeros((4,)), SingleDeviceSharding(jax.devices()[3])),  # 16 bytes on device 3
    }
    record = inspect_sharding(shards)
    assert [leaf.path for leaf in record.leaves] == ["['bias']", "['layers'][0]"]
    assert (record.total_bytes, record.bytes_per_device) == (144, 48)
    assert record.mesh is not None
    assert record.mesh.shape == (4, 2)
    assert (record.leaves[0].kind, record.leaves[0].shards[0].device_id) == ("single", 3)


def test_keys_count_the_bytes_of_their_data():
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), NamedSharding(mesh(), P("clients")))
    leaf = only(keys)
    assert (leaf.dtype, leaf.size_bytes, leaf.bytes_per_device) == ("key<fry>", 8 * 2 * 4, 16)


def test_donated_array_is_noted_and_holds_nothing():
    array = jax.device_put(jnp.zeros((8,)), NamedSharding(mesh(), P("clients")))
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    record = inspect_sharding({"params": array})
    assert record.bytes_per_device == 0
    assert record.leaves[0].shard_shape == (2,)
    assert "deleted" in record.leaves[0].notes[0]


@pytest.mark.parametrize(
    "value", [np.zeros((3, 2)), np.float32(1), 2, 1.5, True], ids=lambda value: type(value).__name__
)
def test_host_values_lie_on_no_device(value):
    leaf = only([value])
    assert (leaf.kind, leaf.bytes_per_device, leaf.replication, leaf.path) == ("host", 0, 0, "[0]")
    assert leaf.size_bytes > 0


def test_struct_without_sharding_counts_whole_as_an_upper_bound():
    record = inspect_sharding(jax.ShapeDtypeStruct((4, 2), jnp.float32))
    assert (record.leaves[0].kind, record.bytes_per_device) == ("unknown", 32)
    assert "upper bound" in record.notes[0]


def traced(kind):
    seen = []

    @jax.jit
    def look(x):
        seen.append(only(x))
        return x

    look(jax.device_put(jnp.zeros((8, 2)), NamedSharding(mesh(kind), P("clients"))))
    return seen[0]


def test_explicit_tracer_is_read_from_its_type():
    leaf = traced("explicit")
    assert (leaf.spec, leaf.kind, leaf.bytes_per_device) == ((("clients",), ()), "explicit", 16)


def test_auto_tracer_says_that_the_compiler_decides():
    leaf = traced("auto")
    assert (leaf.kind, leaf.shards) == ("unknown", ())
    assert "decided when the program is compiled" in leaf.notes[0]


def test_value_inside_shard_map_is_one_devices_part():
    seen = []

    def look(x):
        seen.append(only(x))
        return x

    owner = mesh()
    jax.shard_map(look, mesh=owner, in_specs=P("clients"), out_specs=P("clients"))(jnp.zeros((8, 2)))
    assert (seen[0].shape, seen[0].kind, seen[0].shards) == ((2, 2), "manual", ())
    assert "one device's part" in seen[0].notes[0]


def test_unreduced_value_says_that_it_holds_partial_sums():
    spec = NamedSharding(mesh("explicit"), P("clients", unreduced={"model"}))
    assert "unreduced over model" in only(jax.ShapeDtypeStruct((8,), jnp.float32, sharding=spec)).notes[0]


class NamelessSharding:
    """What is left of a sharding where axis names are lost: an index map and nothing else."""

    def __init__(self, named):
        self.named = named

    def devices_indices_map(self, global_shape):
        return self.named.devices_indices_map(global_shape)

    def shard_shape(self, global_shape):
        return self.named.shard_shape(global_shape)


def nameless(shape, *spec):
    sharding = NamelessSharding(NamedSharding(mesh(), P(*spec)))
    return only(types.SimpleNamespace(shape=shape, dtype=jnp.dtype("float32"), sharding=sharding))


def test_sharding_without_axis_names_is_read_from_its_index_map():
    leaf = nameless((8, 2), "clients")
    assert slices(leaf) == slices_of_jax(NamedSharding(mesh(), P("clients")), (8, 2))
    assert (leaf.kind, leaf.replication, leaf.shard_shape) == ("positional", 2, (2, 2))
    whole = nameless((8, 2))
    assert (whole.replication, whole.shard_shape, whole.spec) == (8, (8, 2), ((), ()))


def test_sharding_that_does_not_know_is_noted():
    leaf = nameless((7, 2), "clients")  # its index map refuses 7 rows over 4 devices
    assert (leaf.kind, leaf.shards) == ("unknown", ())
    assert "`NamelessSharding` has no device slices" in leaf.notes[0]


def test_two_meshes_are_noted_and_the_commoner_one_is_shown():
    other = Mesh(np.array(jax.devices()), ("data",))
    structs = [
        jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(owner, P())) for owner in (mesh(), other, other)
    ]
    record = inspect_sharding(structs)
    assert record.mesh is not None
    assert [axis.name for axis in record.mesh.axes] == ["data"]
    assert "2 different meshes" in record.notes[0]


def test_slices_beyond_the_budget_are_summarised_largest_arrays_first():
    spec = NamedSharding(mesh(), P("clients"))
    tree = {
        name: jax.ShapeDtypeStruct((size,), jnp.float32, sharding=spec)
        for name, size in zip("abc", (4, 12, 8), strict=True)
    }
    record = inspect_sharding(tree, shards_at_most=17)
    assert {leaf.path: len(leaf.shards) for leaf in record.leaves} == {"['a']": 0, "['b']": 8, "['c']": 8}
    assert "8 slices not listed" in record.leaves[0].notes[0]
    assert record.notes == ("1 of 3 arrays are summarised: raise `shards_at_most` to list their slices",)


def test_empty_tree_is_a_record_that_says_so():
    assert inspect_sharding({}).notes == ("the tree contains no arrays",)


def test_record_is_json():
    array = jax.device_put(jnp.zeros((8,)), NamedSharding(mesh(), P("clients")))
    assert json.loads(inspect_sharding([array]).to_json())["leaves"][0]["spec"] == [["clients"]]


def test_every_leaf_that_is_no_array_is_named_with_the_way_out():
    spec = NamedSharding(mesh(), P("clients"))
    with pytest.raises(
        errors.InspectionError,
        match=r"given 2 leaves.*`\['name'\]`: str 'mlp'.*`\['spec'\]`: NamedSharding.*ShapeDtypeStruct",
    ):
        inspect_sharding({"name": "mlp", "spec": spec, "w": jnp.zeros(3)})


@pytest.mark.parametrize(
    ("leaves", "facts"),
    [("a", "given 1 leaf that is not an array: `[0]`: str 'a'."), ("abcde", ", `[4]`: str 'e'."),
     ("abcdef", ", `[4]`: str 'e' and 1 more."), (["a" * 41], f"str '{'a' * 40}'.")],
)  # fmt: skip
def test_up_to_five_strange_leaves_are_listed_with_their_first_characters(leaves, facts):
    with pytest.raises(errors.InspectionError) as error:
        inspect_sharding(list(leaves))
    assert facts in str(error.value)


def test_strange_tree_is_named():
    with pytest.raises(errors.InspectionError, match="`tree`: str 'a'"):
        inspect_sharding("a")


TWO_PROCESSES = """
import sys
import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
import numpy as np
from workbench.inspection import inspect_mesh, inspect_sharding

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("clients",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
array = jax.make_array_from_callback((8,), sharding, lambda index: np.zeros(8, np.float32)[index])
leaf = inspect_sharding([array]).leaves[0]
print(leaf.bytes_per_device, len(leaf.shards), leaf.notes[0], sorted({d.host for d in inspect_mesh(mesh).devices}))
"""


@pytest.mark.slow
def test_array_of_two_processes_is_read_whole_by_each():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, port, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in started]
    assert said == ["8 4 this process addresses 2 of its 4 devices [0, 1]"] * 2
