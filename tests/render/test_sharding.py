"""Pictures of shardings: every slice once, with the devices that hold it, whatever the rank."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from workbench import render
from workbench.records.sharding import (
    LeafShardingRecord,
    PlannedCollectiveRecord,
    PlannedValueRecord,
    PropagationRecord,
    ShardingRecord,
    ShardRecord,
)

NS = {"svg": "http://www.w3.org/2000/svg"}


def leaf(shape, counts, *, replicas=1, path="['w']", **fields):
    """Cut evenly into `counts` parts; copies of a slice on neighbouring devices."""
    part = tuple(-(-size // count) for size, count in zip(shape, counts, strict=True))
    shards = tuple(
        ShardRecord(
            device_id=number * replicas + replica,
            start=tuple(at * p for at, p in zip(place, part, strict=True)),
            stop=tuple(min((at + 1) * p, size) for at, p, size in zip(place, part, shape, strict=True)),
            replica=replica,
        )
        for number, place in enumerate(itertools.product(*map(range, counts)))
        for replica in range(replicas)
    )
    size_bytes = 4 * _product(shape)
    spec = tuple((f"axis{dim}",) if count > 1 else () for dim, count in enumerate(counts))
    given = dict(kind="auto", shards=shards, replication=replicas, spec=spec) | fields
    return LeafShardingRecord(
        path=path,
        shape=shape,
        dtype="float32",
        shard_shape=part,
        size_bytes=size_bytes,
        bytes_per_device=4 * _product(part),
        **given,
    )


def _product(sizes):
    total = 1
    for size in sizes:
        total *= size
    return total


def pieces(markup):
    """Devices and bounds of every drawn slice."""
    root = ET.fromstring(markup)
    return [
        (r.attrib["data-devices"], r.find("svg:title", NS).text)
        for r in root.iterfind(".//svg:rect[@data-devices]", NS)
    ]


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ((), ()),
        ((8,), (4,)),
        ((8, 6), (4, 2)),
        ((8, 6, 4), (2, 2, 2)),
        ((8, 1, 6, 4, 2), (2, 1, 3, 2, 2)),
        ((7,), (4,)),
    ],
    ids=["scalar", "1d", "2d", "3d", "5d", "uneven"],
)
def test_every_slice_is_drawn_once(shape, counts):
    drawn = pieces(render.svg(leaf(shape, counts)))
    assert [devices for devices, _ in drawn] == [str(number) for number in range(_product(counts))]


def test_a_slice_names_its_bounds_and_all_its_devices():
    drawn = pieces(render.svg(leaf((8, 6), (2, 1), replicas=4)))
    assert drawn == [("0–3", "[0:4, 0:6] on devices 0–3"), ("4–7", "[4:8, 0:6] on devices 4–7")]


def test_third_dimension_makes_small_multiples():
    root = ET.fromstring(render.svg(leaf((8, 6, 4), (2, 2, 2))))
    words = [entry.text for entry in root.iterfind(".//svg:text", NS)]
    assert {"dim 0 by axis0=0", "dim 0 by axis0=1"} <= set(words)


def test_summarised_leaf_is_drawn_from_its_shard_shape():
    drawn = pieces(render.svg(leaf((8, 6), (4, 2), shards=())))
    assert [bounds for _, bounds in drawn][:2] == ["[0:2, 0:3]", "[0:2, 3:6]"]
    assert len(drawn) == 8


def test_slices_that_are_no_product_of_cuts_are_listed():
    odd = (ShardRecord(device_id=0, start=(0, 0), stop=(4, 6)), ShardRecord(device_id=1, start=(4, 0), stop=(8, 3)),
           ShardRecord(device_id=2, start=(4, 3), stop=(8, 6)))  # fmt: skip
    assert len(pieces(render.svg(leaf((8, 6), (2, 2), shards=odd, kind="positional")))) == 3


def test_only_the_largest_arrays_are_drawn_and_the_rest_is_counted():
    leaves = tuple(leaf((size,), (2,), path=f"p{size}") for size in (2, 8, 4, 6))
    markup = render.svg(ShardingRecord(leaves=leaves), leaves_at_most=2)
    root = ET.fromstring(markup)
    assert [group.attrib["data-path"] for group in root.iterfind(".//svg:g[@data-path]", NS)] == ["p8", "p6"]
    assert "and 2 smaller arrays" in markup


def test_paths_are_escaped():
    root = ET.fromstring(render.svg(leaf((2,), (2,), path="['<script>&\"']")))
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))


def test_line_says_type_spec_shard_bytes_and_copies():
    said = render.describe(leaf((8, 6), (4, 1), replicas=2))
    assert said == "['w'] f32[8,6] P(axis0, -): f32[2,6] per device, 48 B, 2 copies"
    assert (
        render.describe(leaf((3,), (1,), kind="host", shards=(), replication=0)) == "['w'] f32[3]: 12 B, in host memory"
    )


def test_text_counts_arrays_that_are_alike():
    leaves = tuple(leaf((8,), (2,), path=f"p{number}") for number in range(2000))
    text = render.text(ShardingRecord(leaves=leaves, total_bytes=64_000, bytes_per_device=32_000))
    assert text.splitlines() == [
        "2,000 arrays, 62.5 KiB in all, 31.2 KiB on the fullest device.",
        "  p0 f32[8] P(axis0): f32[4] per device, 16 B (and 1,999 more arrays of this kind, up to p1999)",
    ]


def test_propagation_text_has_values_origins_and_collectives():
    value = PlannedValueRecord(
        name="%0",
        operation="dot_general",
        shape=(8, 4),
        dtype="f32",
        spec=(("clients",), ()),
        origins={"clients": "input: 0"},
    )
    planned = PlannedCollectiveRecord(
        kind="all-reduce", axes=("model",), shape=(8, 4), dtype="f32", size_bytes=128, device_bytes=32, stage="1"
    )
    text = render.text(PropagationRecord(values=(value,), collectives=(planned,), notes=("odd",)))
    assert text.splitlines() == [
        "Shardy (in-process): 1 value, 1 of them sharded; 1 planned collective.",
        "         %0 dot_general f32[8,4] P(clients, -)  (clients from input: 0)",
        "Planned all-reduce over model: 32 B per device, stage 1",
        "Note: odd",
    ]
