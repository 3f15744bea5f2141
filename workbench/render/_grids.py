"""Positions for an n-dimensional grid's cells on a flat page: rows and columns, then small multiples."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

_SMALLEST = 3.0
_SHRINK = 0.9
_PANEL_GAP = 14.0
_TITLE = 16.0


@dataclasses.dataclass(frozen=True)
class Panel:
    """One small multiple; `title` gives its position along the axes that are neither rows nor columns."""

    title: str
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class CellGrid:
    """Top left corners of the cells in row-major axis order; every cell is a square of side `cell`."""

    corners: tuple[tuple[float, float], ...]
    cell: float
    panels: tuple[Panel, ...]
    width: float
    height: float
    reading: str  # axes of rows, columns and panels, in words


def lay_out_grid(
    axes: Sequence[tuple[str, int]], *, width: float, height: float = 900.0, cell: float = 44.0
) -> CellGrid:
    """Lays out one cell per position on the axes; the last two long axes span a panel, and other axes form panels.

    Long rows are wrapped into bands, and cells shrink (down to 3 pixels) until the page is at most `width` wide and, if
    possible, at most `height` high.

    Example:
        >>> grid = lay_out_grid((("clients", 4), ("model", 2)), width=200, cell=10)
        >>> grid.corners[:3], grid.reading
        (((0.0, 0.0), (10.0, 0.0), (0.0, 10.0)), 'rows ↓ clients (4), columns → model (2)')
    """
    sizes = [size for _, size in axes]
    long = [index for index, size in enumerate(sizes) if size != 1]
    column = long[-1] if long else None
    row = long[-2] if len(long) > 1 else None
    if row is not None and column is not None and sizes[row] > 24 and sizes[row] > 2 * sizes[column]:
        row, column = column, row
    outer = [index for index in long if index not in (row, column)]
    rows = sizes[row] if row is not None else 1
    columns = sizes[column] if column is not None else 1
    panels = math.prod(sizes[index] for index in outer)
    while cell > _SMALLEST and _height(rows, columns, panels, cell, width) > height:
        cell = max(cell * _SHRINK, _SMALLEST)
    if columns * cell > width:  # prefer unwrapped rows while cells stay legible
        cell = max(min(cell, width / columns), min(cell, 12.0), _SMALLEST)
    per_band, bands, across, panel_width, panel_height = _fit(rows, columns, panels, cell, width)
    title = _TITLE if outer else 0.0

    def place(number: int, row_at: int, column_at: int) -> tuple[float, float]:
        band, in_band = divmod(column_at, per_band)
        x = (number % across) * (panel_width + _PANEL_GAP) + in_band * cell
        y = (number // across) * (panel_height + title + _PANEL_GAP) + title + (band * (rows + 1) + row_at) * cell
        return round(x, 2), round(y, 2)

    corners = []
    for position in itertools.product(*map(range, sizes)):
        number = 0
        for index in outer:
            number = number * sizes[index] + position[index]
        corners.append(
            place(number, position[row] if row is not None else 0, position[column] if column is not None else 0)
        )
    titles = itertools.product(*(range(sizes[index]) for index in outer))
    boxes = []
    for number, where in enumerate(titles):
        x, y = place(number, 0, 0)
        words = ", ".join(f"{axes[index][0]}={at}" for index, at in zip(outer, where, strict=True))
        boxes.append(Panel(words, x, y, panel_width, panel_height))
    down = math.ceil(panels / across)
    return CellGrid(
        corners=tuple(corners),
        cell=round(cell, 2),
        panels=tuple(boxes),
        width=min(across, panels) * (panel_width + _PANEL_GAP) - _PANEL_GAP,
        height=down * (panel_height + title + _PANEL_GAP) - _PANEL_GAP,
        reading=_reading(axes, row, column, outer, bands),
    )


def _fit(rows: int, columns: int, panels: int, cell: float, width: float) -> tuple[int, int, int, float, float]:
    per_band = max(min(columns, int(width // cell)), 1)
    bands = math.ceil(columns / per_band)
    panel_width, panel_height = per_band * cell, (bands * (rows + 1) - 1) * cell
    across = max(int((width + _PANEL_GAP) // (panel_width + _PANEL_GAP)), 1)
    return per_band, bands, min(across, max(panels, 1)), panel_width, panel_height


def _height(rows: int, columns: int, panels: int, cell: float, width: float) -> float:
    _, _, across, _, panel_height = _fit(rows, columns, panels, cell, width)
    return math.ceil(panels / across) * (panel_height + _TITLE + _PANEL_GAP)


def _reading(
    axes: Sequence[tuple[str, int]], row: int | None, column: int | None, outer: Sequence[int], bands: int
) -> str:
    words = []
    if row is not None:
        words.append(f"rows ↓ {axes[row][0]} ({axes[row][1]})")
    if column is not None:
        wrapped = f", in {bands} bands" if bands > 1 else ""
        words.append(f"columns → {axes[column][0]} ({axes[column][1]}{wrapped})")
    if outer:
        words.append("panels " + " × ".join(f"{axes[index][0]} ({axes[index][1]})" for index in outer))
    return ", ".join(words) or "one piece"
