"""The cell of every device: by its place in the mesh, on the torus, or by host."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workbench.records.hardware import DeviceRecord, MeshRecord

Layout = Literal["mesh", "torus", "hosts"]
Axes = list[tuple[str, int]]
FEW = 128  # maximum number of devices drawn as cards with text
WIDEST = 160  # maximum number of cells in one row
CARDS = 12  # maximum number of cards in one row, including panels and gaps
TITLE_ROWS, MOST_TITLES = 4, 40
LONG = 24  # maximum number of rows; more rows are folded into bands side by side


@dataclass(frozen=True)
class Arrangement:
    """A cell (column, row) for every device, in mesh order; panels are titled groups of cells."""

    places: np.ndarray  # [devices, 2]
    columns: int
    rows: int
    panels: tuple[tuple[str, int, int, int, int], ...]  # title, column, row, columns, rows
    reading: str


def arrange_mesh(mesh: MeshRecord) -> dict[Layout, Arrangement]:
    """All layouts of the mesh's devices; there is none for a mesh without devices."""
    devices = mesh.devices
    if not devices:
        return {}
    axes = [(axis.name, axis.size) for axis in mesh.axes]
    if math.prod(size for _, size in axes) != len(devices):
        axes = [("device", len(devices))]
    layouts: dict[Layout, tuple[Axes, list[int]] | None] = {
        "mesh": (axes, list(range(len(devices)))),
        "torus": _torus(devices),
        "hosts": _hosts(devices),
    }
    return {key: _arrange(*layout) for key, layout in layouts.items() if layout is not None}


def _torus(devices: Sequence[DeviceRecord]) -> tuple[Axes, list[int]] | None:
    """Devices by coordinates, if the coordinates are a complete block."""
    if any(device.coords is None for device in devices):
        return None
    places = [(d.slice_index or 0, *reversed(d.coords or ()), d.core_on_chip or 0) for d in devices]
    sizes = [max(axis) - min(axis) + 1 for axis in zip(*places, strict=True)]
    if not len(set(places)) == len(places) == math.prod(sizes):
        return None
    names = ["slice", *"zyx"[3 - (len(sizes) - 2) :], "core"]
    return list(zip(names, sizes, strict=True)), sorted(range(len(places)), key=places.__getitem__)


def _hosts(devices: Sequence[DeviceRecord]) -> tuple[Axes, list[int]] | None:
    hosts: dict[int, list[int]] = {}
    for number, device in enumerate(devices):
        hosts.setdefault(device.host, []).append(number)
    sizes = {len(members) for members in hosts.values()}
    if len(hosts) < 2 or len(sizes) != 1:
        return None
    return [("host", len(hosts)), ("its device", sizes.pop())], [n for host in sorted(hosts) for n in hosts[host]]


def _arrange(axes: Axes, order: Sequence[int]) -> Arrangement:
    """The last two axes longer than 1 span a panel, and other axes become panels; long panels are folded into bands."""
    sizes = [size for _, size in axes] or [1]
    names = [name for name, _ in axes] or [""]
    long = [axis for axis, size in enumerate(sizes) if size > 1]
    column = long[-1] if long else None
    row = long[-2] if len(long) > 1 else None
    outer = [axis for axis in long if axis not in (row, column)]
    wide, tall = (1 if axis is None else sizes[axis] for axis in (column, row))
    position = np.indices(sizes).reshape(len(sizes), -1)
    across = position[column] if column is not None else np.zeros(len(order), dtype=int)
    down = position[row] if row is not None else np.zeros(len(order), dtype=int)
    if wide > WIDEST or (row is None and wide > 16):  # long rows wrap like text, with blank lines in between
        line = 16 if wide <= FEW else min(128, 2 ** math.ceil(math.log2(math.sqrt(wide)) + 0.5))
        lines = -(-wide // line)
        across, down, wide, tall = across % line, down * (lines + 1) + across // line, line, tall * (lines + 1) - 1
    panel = np.zeros(len(order), dtype=int)
    for axis in outer:
        panel = panel * sizes[axis] + position[axis]
    bands = _bands(wide, tall)
    height = -(-tall // bands)
    across, down = across + down // height * (wide + 1), down % height
    block = (bands * (wide + 1) - 1, height)
    count = math.prod(sizes[axis] for axis in outer)
    gap = TITLE_ROWS if len(order) > FEW and 1 < count <= MOST_TITLES else 1  # room for panel titles, in pixels
    room = (CARDS if len(order) <= FEW else WIDEST) // (block[0] + 1)
    side = max(1, min(count, round(math.sqrt(count * 1.8 * (block[1] + 1) / (block[0] + 1))), room))
    x = panel % side * (block[0] + 1) + across
    y = panel // side * (block[1] + gap) + down
    places = np.zeros((len(order), 2), dtype=int)
    places[list(order)] = np.column_stack([x, y])
    panels = tuple(
        (
            ", ".join(f"{names[axis]} {at}" for axis, at in zip(outer, where, strict=True)),
            number % side * (block[0] + 1),
            number // side * (block[1] + gap),
            *block,
        )
        for number, where in enumerate(np.ndindex(*[sizes[axis] for axis in outer]))
    )
    reading = _reading(axes, row, column, outer)
    if bands > 1:
        reading = f"{reading} · {bands} blocks side by side, {height:,} rows each"
    return Arrangement(places, int(x.max()) + 1, int(y.max()) + 1, panels, reading)


def _bands(wide: int, tall: int) -> int:
    if tall <= LONG or tall <= 2 * wide:
        return 1
    return max(1, min(round(math.sqrt(1.6 * tall / (wide + 1))), WIDEST // (wide + 1)))


def _reading(axes: Sequence[tuple[str, int]], row: int | None, column: int | None, outer: Sequence[int]) -> str:
    words = []
    if row is not None:
        words.append(f"rows: {axes[row][0]} ({axes[row][1]:,})")
    if column is not None:
        words.append(f"columns: {axes[column][0]} ({axes[column][1]:,})")
    if outer:
        words.append("panels: " + " × ".join(f"{axes[axis][0]} ({axes[axis][1]:,})" for axis in outer))
    return " · ".join(words) or "one device"
