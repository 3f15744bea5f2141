"""A mesh as a picture: devices by their place in the mesh, on the torus or by host, with their clients."""

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from workbench.records.hardware import ClientRange, DeviceRecord, MeshRecord
from workbench.render._mesh_layout import FEW, MOST_TITLES, Arrangement, Layout, arrange_mesh
from workbench.render._svg import Markup, element, escape, fit_text, group, join, rect, text, text_width
from workbench.render._theme import OKABE_ITO, ink_on, picture, sequential
from workbench.render.units import count_text, counted_text

_MARGIN = 12.0
_HEAD = 46.0
_TITLE = 18.0
_CELL = 44.0
_CARD = (49.0, 44.0)  # smallest width, and height
_WIDEST = 225.0
_NARROW = 34.0  # width of cards in rows that would otherwise be wider than the room
_ROOM = 760.0  # maximum width of a live picture, which a narrow page scales down
_ROOMY = 5  # maximum number of columns whose cards have room for names of placements
_LINK = 18.0  # room around the devices for links that leave the picture


def render_mesh_svg(
    mesh: MeshRecord,
    *,
    layout: Layout = "mesh",
    width: float = 760.0,
    links: bool = False,
    dark: bool | None = None,
    live: bool = False,
) -> Markup:
    """Draws a mesh with any number of devices as SVG.

    Args:
        mesh: A mesh from `inspect_mesh`, preferably passed through `place_clients`.
        layout: "mesh" arranges devices along the mesh axes, "torus" by their physical coordinates, "hosts" by host. The
            picture uses the mesh axes if coordinates are unknown or hosts have different numbers of devices.
        width: Pixels.
        links: Whether to leave room between devices for links.
        dark: Colours for a dark or a light page; `None` follows the reader's system setting.
        live: Whether to leave the colours to the page that embeds the picture. Only the place of more than 128 devices
            is marked, as `data-cells`; the page paints them.

    Returns:
        One `<svg>`; every device has `data-device`, a tooltip, and a label if there is room.

    Example:
        >>> picture = render_mesh_svg(wb.inspect(wb.make_mesh(clients=4, model=2)))
        >>> str(picture).count("data-device=")
        8
    """
    layouts = arrange_mesh(mesh)
    label, reading, drawn = describe_mesh(mesh), "no devices", Markup("")
    margin = _LINK if links else _MARGIN
    right, bottom = start = (margin, margin if live else _HEAD)
    if layouts:
        arrangement = layouts.get(layout, layouts["mesh"])
        few = len(mesh.devices) <= FEW
        cells, key = _cells(mesh) if few or not live else ([], "")
        reading = "; ".join(filter(None, (arrangement.reading, key)))
        draw = _draw_cards if few else _draw_cells
        drawn, right, bottom = draw(mesh, arrangement, cells, width, start, links=links, live=live)
        if right > (_ROOM if live else width):  # cards are too wide: no picture scrolls sideways
            drawn, right, bottom = _draw_cells(mesh, arrangement, cells, width, start, links=links, live=live)
    if live:
        return picture(right + start[0], bottom + start[1], drawn, label=label, live=True)
    return picture(
        min(width, max(right, text_width(label, 13.5) + margin, text_width(reading, 11) + margin) + margin),
        bottom + margin + 4,
        text(margin, 18, label, fit=width - 2 * margin, size=13, class_="wb-fill-fg wb-strong"),
        text(margin, 34, reading, fit=width - 2 * margin, size=11, class_="wb-fill-muted"),
        drawn,
        label=label,
        dark=dark,
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


class _Cell(NamedTuple):
    """The appearance of a device: colour, contents with and without names, and tooltip."""

    fill: str
    contents: str
    short: tuple[str, ...]
    tooltip: str


_Point = tuple[float, float]
_Drawn = tuple[Markup, float, float]  # the picture, its right and lower end


def _draw_cards(
    mesh: MeshRecord,
    layout: Arrangement,
    cells: Sequence[_Cell],
    width: float,
    start: _Point,
    *,
    links: bool,
    live: bool,
) -> _Drawn:
    """Devices as cards with their name and contents; titles above panels."""
    roomy = layout.columns <= _ROOMY
    across, down = ((26 if roomy else 10), 28) if links else (6, 6)
    columns = len(set(layout.places[:, 0].tolist()))
    room = width - 2 * start[0] - 10 * (layout.columns - columns) + across
    least, high = _CARD
    narrow = columns * (least + across) > _ROOM - 2 * start[0]
    least = _NARROW if narrow else least
    wide = min(max(room / columns - across, least), _WIDEST)
    titled = len(layout.panels) > 1
    xs, right = _lines(start[0], layout.places[:, 0], layout.columns, wide, across)
    heads = {y for _, _, y, *_ in layout.panels if titled}
    ys, bottom = _lines(start[1], layout.places[:, 1], layout.rows, high, down, heads)
    titles = [
        text(xs[x], ys[y] - 6, _fitting((title, re.sub(r"[^,]+ (?=\d+(,|$))", " ", title).strip()),
                                        xs[x + count - 1] + wide - xs[x], 11), size=11, class_="wb-fill-muted")
        for title, x, y, count, _ in layout.panels
    ]  # fmt: skip
    names = [f"{device.platform or 'device'}:{device.id}" for device in mesh.devices]
    if any(text_width(name, 12) > wide - 12 for name in names):
        names = [str(device.id) for device in mesh.devices]
    cards = []
    for device, name, (x, y), cell in zip(mesh.devices, names, layout.places.tolist(), cells, strict=True):
        texts = [cell.contents, ", ".join(cell.short), *([""] if narrow else [])]  # no room for parts of a text
        contents = _fitting(texts, wide - 14, 11)
        left, top = xs[x], ys[y]
        number = text(left + wide - 8, top + 18, "", size=11, class_="wb-fill-muted wb-end wb-cardnumber")
        cards.append(
            group(
                None if live else element("title", cell.tooltip),
                rect(left, top, wide, high, rx=5, class_="wb-fill-panel wb-stroke-line wb-card"),
                rect(left, top, 5, high, rx=2.5, fill=cell.fill, class_="wb-cardhue"),
                text(left + 10, top + 18, name, fit=wide - 12, size=12, class_="wb-fill-fg wb-strong"),
                number if live and roomy else None,
                text(left + 10, top + 34, contents, size=11, class_="wb-fill-muted wb-cardcontents"),
                data_device=device.id,
                class_="wb-stage wb-devicecard",
            )
        )
    return join([*titles, *cards] if titled else cards), right, bottom


def _draw_cells(
    mesh: MeshRecord,
    layout: Arrangement,
    cells: Sequence[_Cell],
    width: float,
    start: _Point,
    *,
    links: bool,
    live: bool,
) -> _Drawn:
    """Devices as squares; titles of panels if there is room."""
    side = min(_CELL, (width - 2 * start[0]) / layout.columns)
    titled = 1 < len(layout.panels) <= MOST_TITLES
    left, top = start[0], start[1] + (_TITLE if titled else 0.0)
    titles = [
        text(left + x * side, top + y * side - 3, title, fit=columns * side, size=11, class_="wb-fill-muted")
        for title, x, y, columns, _ in layout.panels
        if titled
    ]
    wide, high = layout.columns * side, layout.rows * side
    if live:
        squares = [rect(left, top, wide, high, fill="none", data_cells=True)]
    else:
        squares = [
            _square_svg(device, (left + x * side, top + y * side), side, cell)
            for device, (x, y), cell in zip(mesh.devices, layout.places.tolist(), cells, strict=True)
        ]
    return join([*titles, *squares]), left + wide, top + high


def _lines(
    start: float, at: np.ndarray, count: int, size: float, gap: float, titled: Collection[int] = ()
) -> tuple[list[float], float]:
    """The start of every column or row, and the end of the last; those without devices are narrow."""
    used, starts, end = set(at.tolist()), [], start
    for line in range(count):
        end += _TITLE * (line in titled)
        starts.append(end)
        end += size + gap if line in used else 10.0
    return starts, end - gap


def _fitting(texts: Sequence[str], width: float, size: float) -> str:
    """The first text that fits, or a part of the last."""
    return next((words for words in texts if text_width(words, size) <= width), fit_text(texts[-1], width, size))


def _cells(mesh: MeshRecord) -> tuple[list[_Cell], str]:
    """The appearance of every device, and the meaning of the colour."""
    clients: dict[int, list[ClientRange]] = {}
    for range_ in mesh.clients:
        clients.setdefault(range_.device_id, []).append(range_)
    if mesh.clients:
        first = mesh.clients[0].placement
        total = max((range_.stop for range_ in mesh.clients if range_.placement == first), default=1)
        meaning = f"colour: lowest number of its {first}, 0 (dark) to {total - 1} (light)"
        first_ranges = {range_.device_id: range_ for range_ in mesh.clients if range_.placement == first}
        shade = functools.partial(_shade_by_client, first_ranges, total)
    else:
        shade, meaning = _shade_by_host(mesh.devices)
    cells = []
    for device in mesh.devices:
        ranges = clients.get(device.id, ())
        place = zip(mesh.axes, device.position, strict=True)
        if ranges:
            contents = ", ".join(f"{range_.placement} {_short_range(range_)}" for range_ in ranges)
        else:
            contents = "no clients" if mesh.clients else ", ".join(f"{axis.name} {at}" for axis, at in place)
        short = tuple(map(_short_range, ranges)) or (() if mesh.clients else (", ".join(map(str, device.position)),))
        cells.append(_Cell(shade(device), contents, short, _tooltip(mesh, device, ranges)))
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
    return lambda device: OKABE_ITO[4], ""


def _range_text(start: int, stop: int) -> str:
    if start == stop:
        return "none"
    return f"client {start}" if stop == start + 1 else f"clients {start}–{stop - 1}"


def _short_range(range_: ClientRange) -> str:
    if range_.start == range_.stop:
        return "–"
    clients = str(range_.start) if range_.stop == range_.start + 1 else f"{range_.start}–{range_.stop - 1}"
    return f"{clients} +{range_.padding}∅" if range_.padding else clients


def _tooltip(mesh: MeshRecord, device: DeviceRecord, ranges: Sequence[ClientRange]) -> str:
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


def _square_svg(device: DeviceRecord, corner: _Point, side: float, cell: _Cell) -> Markup:
    """A square with a tooltip and, if it is large enough, the device's number and contents."""
    x, y = corner
    size = side - (2 if side > 12 else 0.5)
    # Formatted directly, because `element` would take most of a second for thousands of devices.
    rounding = ' rx="3"' if size > 12 else ""
    box = Markup(
        f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="{size:g}"{rounding} fill="{cell.fill}" '
        f'data-device="{device.id}"><title>{escape(cell.tooltip)}</title></rect>'
    )
    if size < 16:
        return box
    font = 10 if size >= 28 else 8
    words = (str(device.id), *cell.short)
    fitting = [word for word in words if text_width(word, font) <= size + 4] or [fit_text(words[0], size, font)]
    shown = fitting[: 2 if size >= 28 else 1]
    middle = y + size / 2 + font * 0.36 - (len(shown) - 1) * font * 0.6
    return group(
        box,
        *(
            text(x + size / 2, middle + index * font * 1.2, word, size=font, fill=ink_on(cell.fill),
                 class_="wb-middle", pointer_events="none")
            for index, word in enumerate(shown)
        ),
    )  # fmt: skip
