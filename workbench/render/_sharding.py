"""Shardings and their propagation as text."""

from collections.abc import Sequence
from typing import Any

from workbench.records.sharding import (
    LeafShardingRecord,
    PlannedValueRecord,
    PropagationRecord,
    ShardingGroupRecord,
    ShardingRecord,
    pattern_of,
)
from workbench.render._mesh import describe_mesh
from workbench.render.units import bytes_text, count_text, counted_text, line_text, shape_text, spec_text

LARGEST_GRID = 16  # slices along a dimension of the grid of devices
MOST_LISTED = 8  # devices of one slice


def describe_sharding(record: ShardingRecord) -> str:
    """Summarizes shardings in one sentence: number of arrays, bytes in total and on the fullest device.

    Example:
        >>> describe_sharding(ShardingRecord(leaves=(), total_bytes=0))
        '0 arrays, 0 B in all, 0 B on the fullest device'
    """
    return (
        f"{counted_text(len(record.leaves), 'array')}, {bytes_text(record.total_bytes)} in all, "
        f"{bytes_text(record.bytes_per_device)} on the fullest device"
    )


def describe_leaf(leaf: LeafShardingRecord) -> str:
    """Describes a leaf in one line: path, type, spec, shard and bytes per device."""
    name = f"{leaf.path or 'array'} {shape_text(leaf.dtype, leaf.shape)}"
    if leaf.kind in ("host", "unknown"):
        where = "in host memory" if leaf.kind == "host" else "sharding not known"
        return f"{name}: {bytes_text(leaf.size_bytes)}, {where}"
    copies = f", {leaf.replication} copies" if leaf.replication > 1 else ""
    shard = shape_text(leaf.dtype, leaf.shard_shape)
    return f"{name} {spec_text(leaf.spec)}: {shard} per device, {bytes_text(leaf.bytes_per_device)}{copies}"


def render_sharding_text(record: ShardingRecord | LeafShardingRecord, *, leaves_at_most: int = 40) -> str:
    """One line per array; arrays with the same type and spec share a line.

    Example:
        >>> print(render_sharding_text(wb.inspect({"w": jnp.ones((4, 2))})))
        1 array, 32 B in all, 32 B on the fullest device.
          ['w'] f32[4,2] P(): f32[4,2] per device, 32 B
    """
    sharding = _as_record(record)
    lines = [describe_sharding(sharding) + "."]
    if sharding.mesh is not None:
        lines.append(describe_mesh(sharding.mesh) + ".")
    lines += sharding_tree_lines(sharding)
    alike: dict[tuple[Any, ...], list[LeafShardingRecord]] = {}
    for leaf in sharding.leaves:
        alike.setdefault((leaf.shape, leaf.dtype, leaf.spec, leaf.kind, leaf.notes), []).append(leaf)
    for leaves in list(alike.values())[:leaves_at_most]:
        first = leaves[0]
        others = len(leaves) - 1
        more = f" (and {counted_text(others, 'more array')} of this kind, up to {leaves[-1].path})" if others else ""
        lines.append(f"  {describe_leaf(first)}{more}")
        if first.padding_bytes:
            lines.append(f"    padding: {bytes_text(first.padding_bytes)} of the whole array")
        lines += [f"    note: {note}" for note in first.notes]
    if len(alike) > leaves_at_most:
        lines.append(f"  … and {counted_text(len(alike) - leaves_at_most, 'more kind')} of arrays")
    if len(sharding.leaves) == 1:
        lines += _grid_lines(sharding.leaves[0])
    lines += [f"Note: {note}" for note in sharding.notes]
    return "\n".join(lines)


def _grid_lines(leaf: LeafShardingRecord) -> list[str]:
    """The devices that store each slice, as a grid over the last two sharded dimensions; empty for larger grids."""
    devices: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for shard in leaf.shards:
        devices.setdefault(tuple(zip(shard.start, shard.stop, strict=True)), []).append(shard.device_id)
    ranges = [sorted(set(column)) for column in zip(*devices, strict=True)]
    sharded = [dimension for dimension, slices in enumerate(ranges) if len(slices) > 1]
    if len(devices) < 2 or len(sharded) > 2 or any(len(ranges[dimension]) > LARGEST_GRID for dimension in sharded):
        return []
    *down, across = sharded

    def stored(chosen: dict[int, tuple[int, int]]) -> str:
        slices = tuple(chosen[at] if at in chosen else column[0] for at, column in enumerate(ranges))
        return _listed(sorted(devices.get(slices, ())))

    rows = [["", *(f"{start}:{stop}" for start, stop in ranges[across])]]
    if not down:
        rows.append(["devices", *(stored({across: column}) for column in ranges[across])])
    for dimension in down:
        for row in ranges[dimension]:
            cells = [stored({dimension: row, across: column}) for column in ranges[across]]
            rows.append([f"{row[0]}:{row[1]}", *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = f"dimension {down[0]} down and dimension {across} across" if down else f"dimension {across}"
    return [f"  Devices by slice, {over}:"] + [
        "    " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
    ]


def _listed(devices: Sequence[int]) -> str:
    """Sorted device numbers, with consecutive or many numbers shortened.

    Example:
        >>> _listed([4, 5]), _listed([4, 5, 6, 7]), _listed(range(0, 32, 2))
        ('4, 5', '4–7', '0, 2, 4, 6, 8, 10, 12, 14 and 8 more')
    """
    if len(devices) > 2 and devices[-1] - devices[0] == len(devices) - 1:
        return f"{devices[0]}–{devices[-1]}"
    more = f" and {len(devices) - MOST_LISTED} more" if len(devices) > MOST_LISTED else ""
    return ", ".join(map(str, devices[:MOST_LISTED])) + more


def sharding_tree_lines(record: ShardingRecord, *, depth: int | None = None, most: int = 16) -> list[str]:
    """Large unsharded arrays by name, then the arrays summed by module path, replicated and large groups first."""
    giants = record.unsharded(max(1 << 20, record.total_bytes // 50))
    lines = [
        f"  not sharded: {describe_leaf(leaf)}, replicated on {count_text(leaf.replication)} devices"
        for leaf in giants[:5]
    ]
    if (more := len(giants) - 5) > 0:
        lines.append(f"  … and {counted_text(more, 'more such array')}")
    groups = [subtree for subtree in record.groups(depth) if subtree.arrays > 1] if len(record.leaves) > 8 else []
    if len(groups) < 2:
        return lines
    alike: dict[ShardingGroupRecord, int] = {}
    for subtree in groups:  # identical layers share one line
        key = subtree.replace(path=pattern_of(subtree.path), unsharded=())
        alike[key] = alike.get(key, 0) + 1
    for subtree, count in list(alike.items())[:most]:
        shared = f", {bytes_text(subtree.replicated_bytes)} of which is replicated" if subtree.replicated_bytes else ""
        lines.append(
            f"  {'  ' * (subtree.depth - groups[0].depth)}{f'{count} × ' if count > 1 else ''}{subtree.path or 'all'}: "
            f"{count_text(subtree.arrays)} arrays, {bytes_text(subtree.size_bytes)}, "
            f"{bytes_text(subtree.bytes_per_device)} per device{shared}"
        )
    if len(alike) > most:
        lines.append(f"  … and {count_text(len(alike) - most)} more modules")
    return lines


def render_propagation_text(record: PropagationRecord, *, values_at_most: int = 60) -> str:
    """Inputs, outputs and operations with their shardings, followed by the planned collectives."""
    sharded = sum(any(value.spec) for value in record.values)
    lines = [
        f"Shardy ({record.engine}): {counted_text(len(record.values), 'value')}, {count_text(sharded)} of them "
        f"sharded; {counted_text(len(record.collectives), 'planned collective')}."
    ]
    shown = [value for value in record.values if value.operation not in ("constant",)]
    lines += [f"  {_value_line(value)}" for value in shown[:values_at_most]]
    if len(shown) > values_at_most:
        lines.append(f"  … and {count_text(len(shown) - values_at_most)} more")
    for planned in record.collectives:
        axes = " × ".join(planned.axes) or "a group that is not a mesh axis"
        where = f" at {line_text(planned.source)}" if planned.source else ""
        amount = planned.device_bytes if planned.device_bytes is not None else planned.size_bytes
        of_what = "per device" if planned.device_bytes is not None else "in all"
        lines.append(
            f"Planned {planned.kind} over {axes}: {bytes_text(amount)} {of_what}, stage {planned.stage}{where}"
        )
    lines += [f"Note: {note}" for note in record.notes]
    return "\n".join(lines)


def _value_line(value: PlannedValueRecord) -> str:
    label = f" `{value.op_name}`" if value.operation in ("input", "output") and value.op_name else ""
    origins = ", ".join(f"{axis} from {origin}" for axis, origin in value.origins.items())
    why = f"  ({origins})" if origins else ""
    shape = shape_text(value.dtype, value.shape)
    return f"{value.name:>9} {value.operation}{label} {shape} {spec_text(value.spec)}{why}"


def _as_record(record: ShardingRecord | LeafShardingRecord) -> ShardingRecord:
    if isinstance(record, ShardingRecord):
        return record
    return ShardingRecord(leaves=(record,), total_bytes=record.size_bytes, bytes_per_device=record.bytes_per_device)
