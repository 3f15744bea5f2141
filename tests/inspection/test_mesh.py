"""Meshes: devices in order, hops counted by hand on small tori, and clients on devices."""

import dataclasses
import math

import jax
import numpy as np
import pytest
import scipy.sparse.csgraph
from hypothesis import given, strategies as st
from jax.experimental import mesh_utils
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from workbench import errors
from workbench.inspection import inspect_mesh
from workbench.inspection.sharding import link_distances, order_of_jax, place_clients
from workbench.records.program import PlacementRecord


@dataclasses.dataclass(frozen=True)
class TorusDevice:
    """Stands in for a device of an absent chip: the attributes that JAX gives to TPU devices."""

    id: int
    coords: tuple[int, ...]
    device_kind: str
    slice_index: int = 0
    core_on_chip: int = 0
    platform: str = "tpu"
    process_index: int = 0


def torus(kind, extent, mesh_shape, slices=1):
    """Devices in order of their coordinates, the last coordinate fastest."""
    places = [(index, place) for index in range(slices) for place in np.ndindex(*extent)]
    devices = np.empty(len(places), dtype=object)
    for number, (index, place) in enumerate(places):
        devices[number] = TorusDevice(number, tuple(place), kind, slice_index=index)
    names = tuple("abc"[: len(mesh_shape)])
    return Mesh(devices.reshape(mesh_shape), names)


def hops(mesh):
    return [(axis.mean_hops, axis.max_hops) for axis in inspect_mesh(mesh).axes]


def test_devices_follow_the_mesh_in_row_major_order():
    record = inspect_mesh(Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("clients", "model")))
    assert [device.id for device in record.devices] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert [device.position for device in record.devices][:3] == [(0, 0), (0, 1), (1, 0)]
    assert (record.shape, record.abstract, record.devices[0].platform) == ((4, 2), False, "cpu")


@pytest.mark.parametrize("kind", list(AxisType), ids=lambda kind: kind.name)
def test_axis_type_is_the_meshs_own(kind):
    record = inspect_mesh(AbstractMesh((2, 2), ("a", "b"), axis_types=(kind, AxisType.Auto)))
    assert [axis.type for axis in record.axes] == [kind.name.lower(), "auto"]


def test_abstract_mesh_has_numbered_devices_without_hops():
    record = inspect_mesh(AbstractMesh((1024, 8), ("clients", "model")))
    assert (len(record.devices), record.abstract, record.devices[8191].position) == (8192, True, (1023, 7))
    assert [(axis.mean_hops, axis.max_hops) for axis in record.axes] == [(None, None)] * 2


def test_devices_of_an_abstract_mesh_are_of_its_abstract_device():
    device = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    named, nameless = (inspect_mesh(AbstractMesh((2,), ("a",), abstract_device=each)) for each in (device, None))
    assert {(each.platform, each.kind) for each in named.devices} == {("tpu", "TPU v5 lite")}
    assert {(each.platform, each.kind) for each in nameless.devices} == {("", "")}


def test_empty_mesh_has_neither_axes_nor_devices():
    record = inspect_mesh(AbstractMesh((), ()))
    assert (record.axes, record.devices) == ((), ())


def test_mesh_without_coordinates_has_no_hops():
    assert hops(Mesh(np.array(jax.devices()), ("a",))) == [(None, None)]


@pytest.mark.parametrize(
    ("kind", "extent", "mesh_shape", "expected"),
    [
        # v5e wires the ends together at 16 only. Rows of 4: three hops of 1, back 3: 6/4.
        ("TPU v5 lite", (2, 4), (2, 4), [(1.0, 1), (1.5, 3)]),
        ("TPU v5 lite", (16, 16), (16, 16), [(1.0, 1), (1.0, 1)]),
        # The whole 4x4 without wrap as one axis, row by row: 12 hops of 1 inside rows; 3 times from (r, 3) to (r+1, 0)
        # = 4; from (3, 3) back to (0, 0) = 6. (12 + 12 + 6) / 16 = 1.875.
        ("TPU v5 lite", (4, 4), (16,), [(1.875, 6)]),
        # v5p wraps at every multiple of 4: 4x4x4 as 16 x 4. Along the last axis always 1. Along the first: inside the
        # second coordinate 12 hops of 1, then 3 + 1 of (1 wrapped + 1): (12 + 8) / 16 = 1.25.
        ("TPU v5p", (4, 4, 4), (16, 4), [(1.25, 2), (1.0, 1)]),
        # 2x2x2: nothing to wrap; an axis of 2 is one hop there, one back.
        ("TPU v4", (2, 2, 2), (2, 2, 2), [(1.0, 1)] * 3),
        ("TPU v5 lite", (1, 4), (1, 4), [(0.0, 0), (1.5, 3)]),
        ("TPU v5 lite", (1, 1), (1,), [(0.0, 0)]),
    ],
    ids=["v5e-2x4", "v5e-wrapped", "v5e-flattened", "v5p-wrapped", "v4-cube", "axis-of-one", "one-device"],
)
def test_hops_are_torus_distances_of_mesh_neighbours(kind, extent, mesh_shape, expected):
    assert hops(torus(kind, extent, mesh_shape)) == expected


def test_axis_between_slices_has_no_hops_but_the_others_do():
    # A slice of 2x4 row by row: 3 hops, 4 to the next row, 3 hops, 4 back.
    assert hops(torus("TPU v5 lite", (2, 4), (2, 8), slices=2)) == [(None, None), (14 / 8, 4)]


# Ends are wired together at every multiple of 4 (v4, v5p), or at 16 only (v5e).
WRAPS = {
    ("TPU v5 lite", (2, 4)): (False, False),
    ("TPU v5 lite", (4, 16)): (False, True),
    ("TPU v5 lite", (1, 8)): (False, False),
    ("TPU v5 lite", (1, 1)): (False, False),
    ("TPU v2", (16, 32)): (True, False),
    ("TPU v3", (16, 32)): (False, True),
    ("TPU v6 lite", (15, 16)): (False, True),
    ("TPU7x", (3, 8)): (False, True),
    ("GPU", (4, 16)): (False, False),
    ("TPU v5p", (2, 4, 8)): (False, True, True),
    ("TPU v4", (4, 4, 2)): (True, True, False),
}


@pytest.mark.parametrize(("kind", "extent"), WRAPS)
def test_wraparound_links_are_those_of_the_generation(kind, extent):
    assert inspect_mesh(torus(kind, extent, extent)).wraps == WRAPS[kind, extent]


def links_of_torus(extent, wraps):
    """Adjacency of chips, in order of their coordinates."""
    places = list(np.ndindex(*extent))
    linked = np.zeros((len(places),) * 2)
    for number, place in enumerate(places):
        for axis, size in enumerate(extent):
            if place[axis] + 1 < size or wraps[axis]:
                ahead = (*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])
                linked[number, places.index(ahead)] = linked[places.index(ahead), number] = 1
    return linked


@pytest.mark.parametrize(("kind", "extent"), WRAPS)
def test_link_distances_are_shortest_paths_on_the_torus(kind, extent):
    paths = scipy.sparse.csgraph.shortest_path(links_of_torus(extent, WRAPS[kind, extent]))
    np.testing.assert_array_equal(link_distances(inspect_mesh(torus(kind, extent, (math.prod(extent),)))), paths)


def test_only_one_slice_of_up_to_2048_chips_has_link_distances():
    assert link_distances(inspect_mesh(torus("TPU v5 lite", (2, 4), (2, 8), slices=2))) is None
    assert link_distances(inspect_mesh(Mesh(np.array(jax.devices()), ("a",)))) is None
    assert link_distances(inspect_mesh(torus("TPU v5p", (16, 16, 8), (2048,)))).shape == (2048, 2048)
    assert link_distances(inspect_mesh(torus("TPU v5p", (16, 16, 9), (2304,)))) is None


@pytest.mark.parametrize(
    ("kind", "extent", "shape"),
    [("TPU v5 lite", (2, 4, 1), (4, 2)), ("TPU v5 lite", (2, 4, 1), (8,)), ("TPU v5p", (2, 2, 2), (2, 4))],
)
def test_order_of_jax_is_that_of_its_mesh_utils(kind, extent, shape):
    mesh = torus(kind, extent, shape)
    ordered = order_of_jax(place_clients(inspect_mesh(mesh), PlacementRecord(name="clients", size=8)))
    expected = Mesh(mesh_utils.create_device_mesh(shape, list(mesh.devices.flat)), mesh.axis_names)
    assert ordered == inspect_mesh(expected)
    reverse = Mesh(np.flip(mesh.devices), mesh.axis_names)
    assert order_of_jax(inspect_mesh(reverse)) == ordered


def test_order_of_jax_needs_coordinates_of_one_slice():
    assert order_of_jax(inspect_mesh(Mesh(np.array(jax.devices()), ("a",)))) is None
    assert order_of_jax(inspect_mesh(torus("TPU v5 lite", (2, 4), (2, 8), slices=2))) is None


@pytest.mark.parametrize(
    "wrong", [np.zeros(3), "clients", None, {"clients": 4}], ids=["array", "text", "none", "dictionary"]
)
def test_what_is_not_a_mesh_is_named_with_the_way_out(wrong):
    with pytest.raises(
        errors.InspectionError, match=rf"of type {type(wrong).__name__}:.*Only a mesh.*pass a.*AbstractMesh"
    ):
        inspect_mesh(wrong)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("c" * 78, f"'{'c' * 78}'."), ("c" * 79, f": '{'c' * 76}...."), ("c" * 99, f": '{'c' * 76}....")],
)
def test_long_values_are_quoted_up_to_80_characters(text, shown):
    with pytest.raises(errors.InspectionError) as error:
        inspect_mesh(text)
    assert shown in str(error.value)


MESH = inspect_mesh(AbstractMesh((2, 4, 2), ("pods", "clients", "model")))


def ranges(placement):
    return {held.device_id: (held.start, held.stop, held.padding) for held in place_clients(MESH, placement).clients}


def test_clients_go_in_order_along_their_axis_and_repeat_along_the_others():
    held = ranges(PlacementRecord(name="clients", size=8, mesh_axes=("clients",)))
    # device = pod * 8 + clients * 2 + model
    assert [held[number] for number in (0, 1, 2, 6, 8)] == [(0, 2, 0), (0, 2, 0), (2, 4, 0), (6, 8, 0), (0, 2, 0)]


def test_clients_over_two_axes_count_the_first_axis_outermost():
    held = ranges(PlacementRecord(name="clients", size=8, mesh_axes=("clients", "pods")))
    assert [held[number] for number in (0, 8, 2, 10)] == [(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 0)]


def test_clients_that_do_not_divide_leave_empty_slots_at_the_end():
    # ceil(5 / 4) = 2 slots each: 2, 2, 1 and none.
    held = ranges(PlacementRecord(name="clients", size=5, mesh_axes=("clients",)))
    assert [held[number] for number in (0, 2, 4, 6)] == [(0, 2, 0), (2, 4, 0), (4, 5, 1), (5, 5, 2)]


def test_placement_without_axes_is_replicated():
    assert set(ranges(PlacementRecord(name="clients", size=3)).values()) == {(0, 3, 0)}


@given(size=st.integers(1, 60), axes=st.permutations(["pods", "clients", "model"]), used=st.integers(0, 3))
def test_every_client_has_equally_many_slots_on_the_mesh(size, axes, used):
    axes = tuple(axes[:used])
    held = place_clients(MESH, PlacementRecord(name="c", size=size, mesh_axes=axes)).clients
    parts = math.prod({"pods": 2, "clients": 4, "model": 2}[axis] for axis in axes)
    homes = [client for range_ in held for client in range(range_.start, range_.stop)]
    assert [homes.count(client) for client in range(size)] == [16 // parts] * size
    assert {range_.stop - range_.start + range_.padding for range_ in held} == {-(-size // parts)}


def test_second_placement_joins_the_first_and_the_same_one_replaces_itself():
    first = place_clients(MESH, PlacementRecord(name="pods", size=2, mesh_axes=("pods",)))
    both = place_clients(first, PlacementRecord(name="clients", size=8, mesh_axes=("clients",)))
    again = place_clients(both, PlacementRecord(name="clients", size=4, mesh_axes=("clients",)))
    assert [len(record.clients) for record in (first, both, again)] == [16, 32, 32]


def test_unknown_mesh_axis_names_the_axes_there_are():
    with pytest.raises(errors.MeshError, match=r"lacks 'data', 'rows'.*\('pods', 'clients', 'model'\).*replicate"):
        place_clients(MESH, PlacementRecord(name="clients", size=3, mesh_axes=("data", "clients", "rows")))
