"""A mesh as a picture: devices by their place in the mesh or on the torus, with their clients."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from workbench.records.hardware import ClientRange, DeviceRecord, MeshRecord
from workbench.render._grids import CellGrid, lay_out_grid
from workbench.render._svg import Markup, escape, fit_text, group, join, text, text_width
from workbench.render._theme import OKABE_ITO, ink_on, picture, sequential
from workbench.render.units import count_text, counted_text

Layout = Literal["mesh", "torus"]
_MARGIN = 12.0
_HEAD = 46.0


def render_mesh_svg(
    mesh: MeshRecord, *, layout: Layout = "mesh", width: float = 760.0, dark: bool | None = None, live: bool = False
) -> Markup:
    """Draws a mesh with any number of devices as SVG.

    Args:
        mesh: A mesh from `inspect_mesh`, preferably passed through `place_clients`.
        layout: "mesh" arranges devices along the mesh axes, "torus" by their physical coordinates.
        width: Pixels.
        dark: Colours for a dark or a light page; `None` follows the reader's system setting.
        live: Whether to leave the colours to the page that embeds the picture.

    Returns:
        One `<svg>`; every device is a rectangle with `data-device`, a tooltip, and a label if there is room.

    Example:
        >>> picture = render_mesh_svg(wb.inspect(wb.make_mesh(clients=4, model=2)))
        >>> str(picture).count("data-device=")
        8
    """
    axes, order, layout = arrange_devices(mesh, layout)
    grid = lay_out_grid(axes, width=width - 2 * _MARGIN)
    cells, key = _cells(mesh, order)
    drawn = [
        _cell_svg(device, grid, corner, cell)
        for (device, corner), cell in zip(_placed(order, grid), cells, strict=True)
    ]
    titles = [
        text(panel.x, panel.y - 5, panel.title, size=11, class_="wb-fill-muted") for panel in grid.panels if panel.title
    ]
    label, reading = describe_mesh(mesh), f"{grid.reading}; {key}"
    width = min(width, max(grid.width, text_width(label, 13.5), text_width(reading, 11)) + 2 * _MARGIN)
    height = grid.height + _HEAD + _MARGIN + 4
    return picture(
        width,
        height,
        text(_MARGIN, 18, label, fit=width - 2 * _MARGIN, size=13, class_="wb-fill-fg wb-strong"),
        text(_MARGIN, 34, reading, fit=width - 2 * _MARGIN, size=11, class_="wb-fill-muted"),
        group(*titles, join(drawn), transform=f"translate({_MARGIN} {_HEAD})"),
        label=label,
        dark=dark,
        live=live,
    )


def describe_mesh(mesh: MeshRecord) -> str:
    """Summarizes a mesh in one sentence: axes and their types, devices, hosts.

    Example:
        >>> from workbench.records.hardware import AxisRecord
        >>> describe_mesh(MeshRecord(axes=(AxisRecord(name="clients", size=1, type="auto"),), devices=()))
        'Mesh clients=1 (auto): 0 devices'
    """
    axes = " × ".join(f"{axis.name}={axis.size:,} ({axis.type})" for axis in mesh.axes) or "without axes"
    kinds = {device.kind for device in mesh.devices if device.kind}
    hosts = {device.host for device in mesh.devices}
    slices = {device.slice_index for device in mesh.devices if device.slice_index is not None}
    parts = [counted_text(len(mesh.devices), "abstract device" if mesh.abstract else "device")]
    if kinds:
        parts[0] += f" ({', '.join(sorted(kinds))})"
    if len(hosts) > 1:
        parts.append(f"{count_text(len(hosts))} hosts")
    if len(slices) > 1:
        parts.append(f"{len(slices)} slices")
    return f"Mesh {axes}: {', '.join(parts)}"


def render_mesh_text(mesh: MeshRecord) -> str:
    """Axes, hops and clients in a few lines, for meshes of any size.

    Example:
        >>> print(render_mesh_text(wb.inspect(wb.make_mesh(clients=4, model=2))))
        Mesh clients=4 (auto) × model=2 (auto): 8 devices (cpu).
    """
    lines = [describe_mesh(mesh) + "."]
    for axis in mesh.axes:
        if axis.mean_hops is not None and axis.size > 1:
            lines.append(
                f"  {axis.name}: {axis.mean_hops:.3g} hops to the next device on average, {axis.max_hops} at most"
            )
    for name in dict.fromkeys(range_.placement for range_ in mesh.clients):
        ranges = [range_ for range_ in mesh.clients if range_.placement == name]
        most = max(range_.stop - range_.start for range_ in ranges)
        empty = sum(range_.padding > 0 for range_ in ranges)
        total = max(range_.stop for range_ in ranges)
        lines.append(
            f"  {count_text(total)} {name}: up to {most} per device"
            + (f"; {empty} of {len(ranges)} devices have empty slots" if empty else "")
        )
        lines += [
            f"    device {range_.device_id}: {_range_text(range_.start, range_.stop)}"
            + (f" and {range_.padding} empty" if range_.padding else "")
            for range_ in ranges[:16]
        ]
        if len(ranges) > 16:
            lines.append(f"    … and {count_text(len(ranges) - 16)} more devices")
    return "\n".join(lines)


def arrange_devices(mesh: MeshRecord, layout: Layout) -> tuple[list[tuple[str, int]], list[DeviceRecord], Layout]:
    """Axes of the layout, devices in their row-major order, and the chosen layout.

    The torus layout needs a complete block of coordinates; otherwise, devices stay in mesh order.
    """
    if layout == "torus" and mesh.devices and all(device.coords is not None for device in mesh.devices):
        places = [_torus_place(device) for device in mesh.devices]
        names = ["slice", *"zyx"[3 - (len(places[0]) - 2) :], "core"]
        low = [min(axis) for axis in zip(*places, strict=True)]
        sizes = [max(axis) - least + 1 for axis, least in zip(zip(*places, strict=True), low, strict=True)]
        full = {place: device for place, device in zip(places, mesh.devices, strict=True)}
        if len(full) == len(places) and math.prod(sizes) == len(places):
            order = [full[place] for place in sorted(full)]
            return list(zip(names, sizes, strict=True)), order, "torus"
    return [(axis.name, axis.size) for axis in mesh.axes], list(mesh.devices), "mesh"


def _torus_place(device: DeviceRecord) -> tuple[int, ...]:
    assert device.coords is not None
    return (device.slice_index or 0, *reversed(device.coords), device.core_on_chip or 0)


def _placed(order: Sequence[DeviceRecord], grid: CellGrid) -> list[tuple[DeviceRecord, tuple[float, float]]]:
    return list(zip(order, grid.corners, strict=False))


def _cells(mesh: MeshRecord, order: Sequence[DeviceRecord]) -> tuple[list[tuple[str, tuple[str, ...], str]], str]:
    """Colour, label lines and tooltip of every device, and the meaning of the colour."""
    clients: dict[int, list[Any]] = {}
    for range_ in mesh.clients:
        clients.setdefault(range_.device_id, []).append(range_)
    if mesh.clients:
        first = mesh.clients[0].placement
        total = max((range_.stop for range_ in mesh.clients if range_.placement == first), default=1)
        meaning = f"colour: the lowest number among the {first} of a device (0 dark, {total - 1} light)"

        held_first = {range_.device_id: range_ for range_ in mesh.clients if range_.placement == first}
        shade = functools.partial(_shade_by_client, held_first, total)
    else:
        shade, meaning = _shade_by_host(order)
    cells = []
    for device in order:
        ranges = [_short_range(range_) for range_ in clients.get(device.id, ())]
        cells.append((shade(device), (str(device.id), *ranges), _tooltip(mesh, device, clients.get(device.id, ()))))
    return cells, meaning


def _shade_by_client(by_device: dict[int, ClientRange], total: int, device: DeviceRecord) -> str:
    range_ = by_device.get(device.id)
    if range_ is None or range_.start == range_.stop:
        return "#9AA0A6"
    return sequential(0.12 + 0.8 * range_.start / max(total - 1, 1))


def _shade_by_host(order: Sequence[DeviceRecord]) -> tuple[Callable[[DeviceRecord], str], str]:
    slices = sorted({device.slice_index or 0 for device in order})
    hosts = sorted({device.host for device in order})
    if len(slices) > 1:
        return lambda device: OKABE_ITO[(device.slice_index or 0) % 7], "colour: slice"
    if 1 < len(hosts) <= 7:
        return lambda device: OKABE_ITO[hosts.index(device.host)], "colour: host"
    if len(hosts) > 7:
        return lambda device: sequential(hosts.index(device.host) / (len(hosts) - 1)), "colour: host"
    return lambda device: OKABE_ITO[4], "number: device id"


def _range_text(start: int, stop: int) -> str:
    if start == stop:
        return "none"
    return f"client {start}" if stop == start + 1 else f"clients {start}–{stop - 1}"


def _short_range(range_: ClientRange) -> str:
    if range_.start == range_.stop:
        return "–"
    clients = str(range_.start) if range_.stop == range_.start + 1 else f"{range_.start}–{range_.stop - 1}"
    return f"{clients} +{range_.padding}∅" if range_.padding else clients


def _tooltip(mesh: MeshRecord, device: DeviceRecord, ranges: Sequence[Any]) -> str:
    place = ", ".join(f"{axis.name}={at}" for axis, at in zip(mesh.axes, device.position, strict=True))
    parts = [f"device {device.id}", place, device.kind]
    if device.coords is not None:
        parts.append(f"at {device.coords}")
    if device.host:
        parts.append(f"host {device.host}")
    parts += [
        f"{r.placement}: {_range_text(r.start, r.stop)}" + (f", {r.padding} empty" if r.padding else "") for r in ranges
    ]
    return ", ".join(part for part in parts if part)


def _cell_svg(
    device: DeviceRecord, grid: CellGrid, corner: tuple[float, float], cell: tuple[str, tuple[str, ...], str]
) -> Markup:
    fill, words, tooltip = cell

    def lines(size: float, font: int) -> list[str]:
        fitting = [word for word in words if text_width(word, font) <= size + 4]
        return (fitting or [fit_text(words[0], size, font)])[: 2 if size >= 28 else 1]

    return cell_svg(corner, grid.cell, fill, f'data-device="{device.id}"', tooltip, lines)


def cell_svg(
    corner: tuple[float, float],
    cell: float,
    fill: str,
    data: str,
    tooltip: str,
    lines: Callable[[float, int], Sequence[str]],
) -> Markup:
    """A grid cell: a square with a data attribute and, if it is large enough, text."""
    x, y = corner
    size = cell - (2 if cell > 12 else 0.5)
    # Formatted directly, because `element` would take most of a second for thousands of devices.
    rounding = ' rx="3"' if size > 12 else ""
    box = Markup(
        f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="{size:g}"{rounding} fill="{fill}" '
        f"{data}><title>{escape(tooltip)}</title></rect>"
    )
    font = 10 if size >= 28 else 8
    if size < 16 or not (shown := lines(size, font)):
        return box
    middle = y + size / 2 + font * 0.36 - (len(shown) - 1) * font * 0.6
    return group(
        box,
        *(
            text(x + size / 2, middle + index * font * 1.2, words, size=font, fill=ink_on(fill), class_="wb-middle",
                 pointer_events="none")
            for index, words in enumerate(shown)
        ),
    )  # fmt: skip
