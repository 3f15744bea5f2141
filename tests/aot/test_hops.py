import pytest

from workbench.aot import parse_target
from workbench.aot._hops import mesh_axes, torus_wraps
from workbench.records.hardware import DeviceRecord


def devices(coords, slices=None):
    return [
        DeviceRecord(id=i, position=(), coords=place, slice_index=slices[i] if slices else None)
        for i, place in enumerate(coords)
    ]


@pytest.mark.parametrize(
    ("target", "wraps"),
    [
        ("v5e:16x16", (True, True)),
        ("v6e:8x16", (False, True)),
        ("v5e:4x4", (False, False)),
        ("v4:4x4x8", (True, True, True)),
        ("tpu7x:2x4x4", (False, False, False)),
        ("h100:8", (False, False)),
    ],
    ids=lambda value: str(value),
)
def test_torus_closes_where_the_hardware_has_the_links(target, wraps):
    assert torus_wraps(parse_target(target)) == wraps


def test_hops_count_the_way_home_of_a_line_without_wraparound():
    # v5e:1x1's neighbours in a row of 4: 1, 1, 1 and 3 home = 6 / 4
    (axis,) = mesh_axes(parse_target("v5e:2x2"), {"clients": 4}, devices([(0, 0), (1, 0), (2, 0), (3, 0)]))
    assert (axis.mean_hops, axis.max_hops) == (1.5, 3)


def test_hops_use_the_wraparound_link():
    places = [(i, 0, 0) for i in range(4)]
    (axis,) = mesh_axes(parse_target("v5p:4x4x4"), {"clients": 4}, devices(places))
    assert (axis.mean_hops, axis.max_hops) == (1.0, 1)


def test_hops_of_two_axes_are_counted_apart():
    places = [(0, 0), (1, 1), (1, 0), (0, 1)]  # position (0,0), (0,1), (1,0), (1,1)
    outer, inner = mesh_axes(parse_target("v5e:2x2"), {"clients": 2, "model": 2}, devices(places))
    assert (outer.mean_hops, inner.mean_hops) == (1.0, 2.0)


def test_hops_are_unknown_between_slices_and_without_coordinates():
    two = devices([(0, 0), (0, 0)], slices=[0, 1])
    (across,) = mesh_axes(parse_target("v5e:1x1*2"), {"clients": 2}, two)
    (gpus,) = mesh_axes(parse_target("h100:2"), {"clients": 2}, devices([None, None]))
    (mixed,) = mesh_axes(parse_target("v5e:2x2"), {"clients": 2}, devices([(0, 0), None]))
    assert (across.mean_hops, gpus.mean_hops, mixed.mean_hops) == (None, None, None)


def test_axis_of_one_device_has_no_hops():
    one, two = mesh_axes(parse_target("v5e:1x1"), {"clients": 1, "model": 2}, devices([(0, 0), (1, 0)]))
    assert [(axis.name, axis.size, axis.mean_hops, axis.max_hops) for axis in (one, two)] == [
        ("clients", 1, 0.0, 0), ("model", 2, 1.0, 1),
    ]  # fmt: skip


def test_coordinates_may_have_a_third_dimension_on_a_plane():
    (axis,) = mesh_axes(parse_target("v5e:2x2"), {"clients": 2}, devices([(0, 0, 0), (1, 1, 0)]))
    assert (axis.mean_hops, axis.max_hops) == (2.0, 2)
