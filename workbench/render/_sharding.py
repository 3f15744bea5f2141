"""Shardings as pictures and text: the slice that every device holds, for arrays of any rank."""

import dataclasses
import math
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
from workbench.render._grids import CellGrid, lay_out_grid
from workbench.render._mesh import cell_svg, describe_mesh
from workbench.render._svg import Markup, group, join, text, text_width
from workbench.render._theme import OKABE_ITO, picture, sequential
from workbench.render.units import bytes_text, count_text, counted_text, line_text, shape_text, spec_text

_MARGIN = 12.0
_HEAD = 38.0
_CELLS_AT_MOST = 12_000


@dataclasses.dataclass(frozen=True)
class _Slice:
    """A piece of an array: where it starts and stops, and which devices hold a copy."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    devices: tuple[int, ...]


def render_sharding_svg(
    record: ShardingRecord | LeafShardingRecord,
    *,
    leaves_at_most: int = 8,
    width: float = 760.0,
    dark: bool | None = None,
    live: bool = False,
) -> Markup:
    """Every slice of every array as a box with the numbers of its devices.

    The last two sharded dimensions span a panel; other sharded dimensions become small multiples; an unsharded
    dimension is drawn as one cell.

    Example:
        >>> halves = jax.NamedSharding(wb.make_mesh(model=2), jax.P("model"))
        >>> picture = render_sharding_svg(wb.inspect({"w": jax.device_put(jnp.ones((4, 2)), halves)}))
        >>> str(picture).count("data-devices=")
        2
    """
    sharding = _as_record(record)
    shown = _largest(sharding, leaves_at_most)
    y, parts = 30.0, []
    for leaf in shown:
        drawn, height = _leaf_svg(leaf, width - 2 * _MARGIN)
        parts.append(group(drawn, transform=f"translate({_MARGIN} {y:g})", data_path=leaf.path))
        y += height + 16
    hidden = len(sharding.leaves) - len(shown)
    if hidden:
        note = f"and {count_text(hidden)} smaller arrays"
        parts.append(text(_MARGIN, y + 4, note, size=11, class_="wb-fill-muted"))
        y += 20
    label = describe_sharding(sharding)
    return picture(
        width,
        y,
        text(_MARGIN, 18, label, fit=width - 2 * _MARGIN, size=13, class_="wb-fill-fg wb-strong"),
        *parts,
        label=label,
        dark=dark,
        live=live,
    )


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
          ['w'] f32[4,2] P(-, -): f32[4,2] per device, 32 B
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
    lines += [f"Note: {note}" for note in sharding.notes]
    return "\n".join(lines)


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


def _largest(record: ShardingRecord, count: int) -> list[LeafShardingRecord]:
    """The largest arrays, in tree order."""
    ranked = sorted(range(len(record.leaves)), key=lambda index: -record.leaves[index].size_bytes)[:count]
    return [record.leaves[index] for index in sorted(ranked)]


def _arranged(leaf: LeafShardingRecord, width: float) -> tuple[CellGrid, list[_Slice]]:
    """One cell per slice, in row-major order."""
    pieces = _slices(leaf)
    starts = [sorted({piece.start[dim] for piece in pieces}) for dim in range(len(leaf.shape))]
    if math.prod(len(positions) for positions in starts) != len(pieces):
        axes = [("slices", len(pieces))]  # not a product of splits, so listed one after another
    else:
        axes = [(_dimension(leaf, dim), len(positions)) for dim, positions in enumerate(starts)]
    return lay_out_grid(axes, width=width, height=480.0), pieces


def _dimension(leaf: LeafShardingRecord, dim: int) -> str:
    axes = "+".join(leaf.spec[dim]) if dim < len(leaf.spec) else ""
    return f"dim {dim} by {axes}" if axes else f"dim {dim}"


def _slices(leaf: LeafShardingRecord) -> list[_Slice]:
    """The distinct slices; for a summarised leaf, they are derived from the shape of a shard."""
    if leaf.shards:
        owners: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for shard in leaf.shards:
            owners.setdefault((shard.start, shard.stop), []).append(shard.device_id)
        return [_Slice(start, stop, tuple(devices)) for (start, stop), devices in sorted(owners.items())]
    counts = [-(-size // part) if part else 1 for size, part in zip(leaf.shape, leaf.shard_shape, strict=True)]
    if math.prod(counts) > _CELLS_AT_MOST or leaf.kind in ("host", "unknown", "manual", "positional"):
        return [_Slice((0,) * len(leaf.shape), leaf.shape, ())]
    pieces = [()]
    for count in counts:
        pieces = [(*piece, at) for piece in pieces for at in range(count)]
    return [
        _Slice(
            tuple(at * part for at, part in zip(piece, leaf.shard_shape, strict=True)),
            tuple(min((at + 1) * p, size) for at, p, size in zip(piece, leaf.shard_shape, leaf.shape, strict=True)),
            (),
        )
        for piece in pieces
    ]


def _leaf_svg(leaf: LeafShardingRecord, width: float) -> tuple[Markup, float]:
    grid, pieces = _arranged(leaf, width)
    cells = [
        _cell_svg(piece, corner, grid.cell, _shade(number, len(pieces), piece.devices))
        for number, (corner, piece) in enumerate(zip(grid.corners, pieces, strict=True))
    ]
    titles = [text(box.x, box.y - 5, box.title, size=11, class_="wb-fill-muted") for box in grid.panels if box.title]
    notes = "; ".join((f"{grid.reading}; numbers: devices" if leaf.shards else grid.reading, *leaf.notes))
    return join(
        [
            text(0, 12, describe_leaf(leaf), fit=width, size=12, class_="wb-fill-fg"),
            text(0, 27, notes, fit=width, size=11.5, class_="wb-fill-muted"),
            group(*titles, join(cells), transform=f"translate(0 {_HEAD:g})"),
        ]
    ), grid.height + _HEAD


def _cell_svg(piece: _Slice, corner: tuple[float, float], cell: float, fill: str) -> Markup:
    bounds = ", ".join(f"{start}:{stop}" for start, stop in zip(piece.start, piece.stop, strict=True))
    suffix = f" on device{'s' if len(piece.devices) != 1 else ''} {_ranges(piece.devices)}" if piece.devices else ""

    def lines(size: float, font: int) -> list[str]:
        return _holders(piece.devices, size / text_width("0", font), 3 if size >= 38 else 1) if piece.devices else []

    return cell_svg(corner, cell, fill, f'data-devices="{_ranges(piece.devices)}"', f"[{bounds}]{suffix}", lines)


def _shade(number: int, count: int, devices: Sequence[int]) -> str:
    if count == 1 and not devices:
        return "#9AA0A6"
    if count <= 7:
        return OKABE_ITO[number]
    return sequential(0.1 + 0.85 * number / (count - 1))


def _holders(devices: Sequence[int], characters: float, lines: int) -> list[str]:
    """Device numbers in a few short lines, with a count of omitted devices.

    Example:
        >>> _holders((0, 1, 2, 3, 4, 5), 4, 2)
        ['0 1', '+4']
        >>> _holders((10,), 4, 2)
        ['10']
    """
    rows: list[str] = []
    for at, device in enumerate(devices):
        if rows and len(rows[-1]) + 1 + len(str(device)) <= characters:
            rows[-1] += f" {device}"
        elif len(rows) < lines:
            rows.append(str(device))
        else:
            hidden = len(devices) - at + len(rows[-1].split())
            return [*rows[:-1], f"+{hidden}"] if lines > 1 else [f"{len(devices)}×"]
    return rows


def _ranges(devices: Sequence[int]) -> str:
    """Device numbers, with consecutive numbers written as ranges.

    Example:
        >>> _ranges((0, 1, 2, 5))
        '0–2, 5'
    """
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
