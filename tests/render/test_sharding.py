"""Shardings and their propagation as text."""

import itertools
import re

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from workbench import render
from workbench.inspection import inspect_sharding
from workbench.records.sharding import (
    LeafShardingRecord,
    PlannedCollectiveRecord,
    PlannedValueRecord,
    PropagationRecord,
    ShardingRecord,
    ShardRecord,
)


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


def test_line_says_type_spec_shard_bytes_and_copies():
    said = render.describe(leaf((8, 6), (4, 1), replicas=2))
    assert said == "['w'] f32[8,6] P('axis0'): f32[2,6] per device, 48 B, 2 copies"
    assert (
        render.describe(leaf((3,), (1,), kind="host", shards=(), replication=0)) == "['w'] f32[3]: 12 B, in host memory"
    )


def test_text_counts_arrays_that_are_alike():
    leaves = tuple(leaf((8,), (2,), path=f"p{number}") for number in range(2000))
    text = render.text(ShardingRecord(leaves=leaves, total_bytes=64_000, bytes_per_device=32_000))
    assert text.splitlines() == [
        "2,000 arrays, 62.5 KiB in all, 31.2 KiB on the fullest device.",
        "  p0 f32[8] P('axis0'): f32[4] per device, 16 B (and 1,999 more arrays of this kind, up to p1999)",
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
        "         %0 dot_general f32[8,4] P('clients')  (clients from input: 0)",
        "Planned all-reduce over model: 32 B per device, stage 1",
        "Note: odd",
    ]


@pytest.mark.parametrize(
    ("shape", "spec", "down", "across"),
    [
        ((16, 8), P("data", "model"), 0, 1),
        ((16, 8), P("model"), None, 0),
        ((3, 16, 8), P(None, None, ("data", "model")), None, 2),
        ((4, 2, 4), P("model", None, "data"), 0, 2),
    ],
    ids=str,
)
def test_grid_has_the_devices_where_jax_puts_the_shards(shape, spec, down, across):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    array = jax.device_put(np.zeros(shape), NamedSharding(mesh, spec))
    lines = render.text(inspect_sharding(array)).splitlines()
    at = next(number for number, line in enumerate(lines) if "Devices by slice" in line)
    assert f"dimension {across}" in lines[at]
    columns = re.split(r"\s{2,}", lines[at + 1].strip())
    told = set()
    for line in lines[at + 2 :]:
        row, *cells = re.split(r"\s{2,}", line.strip())
        told |= {(row, column, cell) for column, cell in zip(columns, cells, strict=True)}

    def name(index: slice, size: int) -> str:
        start, stop, _ = index.indices(size)
        return f"{start}:{stop}"

    stored: dict[tuple[str, str], list[int]] = {}
    for shard in array.addressable_shards:
        row = "devices" if down is None else name(shard.index[down], shape[down])
        stored.setdefault((row, name(shard.index[across], shape[across])), []).append(shard.device.id)
    assert told == {(*place, ", ".join(map(str, sorted(devices)))) for place, devices in stored.items()}


def test_grid_of_many_copies_fits_on_a_page():
    lines = render.text(leaf((8, 6), (2, 1), replicas=100)).splitlines()
    assert lines[-1].split() == ["devices", "0–99", "100–199"]


@pytest.mark.parametrize(
    ("shape", "spec"),
    [((16, 8), P()), ((), P()), ((2, 4, 4), P("a", "b", "c")), ((64, 8), P(("a", "b", "c")))],
    ids=str,
)
def test_grid_is_left_out_without_slices_or_where_it_is_not_flat(shape, spec):
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"))
    text = render.text(inspect_sharding(jax.device_put(np.zeros(shape), NamedSharding(mesh, spec))))
    assert ("Devices by slice" in text) == (shape == (64, 8))
