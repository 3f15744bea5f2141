"""Sharding propagation as a picture: values in rows, and axes that arrive step by step."""

import bisect
import dataclasses
import math
import re
from collections.abc import Sequence

from workbench.records.sharding import AxisArrivalRecord, PlannedValueRecord, PropagationRecord
from workbench.render._svg import Markup, group, path, rect, text, text_width
from workbench.render._theme import picture
from workbench.render.units import count_text, counted_text, source_text

VALUES_AT_MOST = 4000
_ROW, _HEAD, _GUTTER, _MARGIN = 26.0, 40.0, 118.0, 12.0
_NAME = 230.0
_ENTRY = re.compile(r"\['(\w+)'\]")  # of a dictionary, in the name of an argument
_CHIP, _TAG = 18.0, 11.0


@dataclasses.dataclass(frozen=True)
class Playback:
    """The sharded values, and the frame in which each axis reaches each value.

    Frame 0 shows the shardings given in the program; frame `k` is step `steps[k - 1]` of the propagation.
    """

    values: tuple[PlannedValueRecord, ...]
    arrivals: tuple[AxisArrivalRecord, ...]
    axes: tuple[str, ...]
    steps: tuple[int, ...]

    def frame_of(self, arrival: AxisArrivalRecord) -> int:
        """The frame in which an axis arrives."""
        return 0 if arrival.step is None else bisect.bisect_left(self.steps, arrival.step) + 1


def play_back(
    record: PropagationRecord, arrivals: Sequence[AxisArrivalRecord], *, values_at_most: int = VALUES_AT_MOST
) -> Playback:
    """A propagation as a sequence of frames.

    Args:
        record: The `propagation` attribute of a program's record.
        arrivals: The result of `trace_axes` for the propagation.
        values_at_most: Maximum number of values; values are in program order, with inputs first.

    Example:
        >>> play_back(PropagationRecord(), ()).steps
        ()
    """
    reached = {arrival.value for arrival in arrivals}
    values = tuple(value for value in record.values if value.name in reached)[:values_at_most]
    names = {value.name for value in values}
    arrivals = tuple(arrival for arrival in arrivals if arrival.value in names)
    return Playback(
        values=values,
        arrivals=arrivals,
        axes=tuple(dict.fromkeys(arrival.axis for arrival in arrivals)),
        steps=tuple(sorted({arrival.step for arrival in arrivals if arrival.step is not None})),
    )


def describe_propagation(playback: Playback) -> str:
    """Summarizes a propagation in one sentence: the numbers of values and steps, and the axes.

    Example:
        >>> describe_propagation(Playback(values=(), arrivals=(), axes=(), steps=()))
        'Propagation: no value of this program is sharded'
    """
    if not playback.values:
        return "Propagation: no value of this program is sharded"
    began = len({arrival.value for arrival in playback.arrivals if arrival.step is None})
    return (
        f"Propagation: from {counted_text(began, 'value')} to {count_text(len(playback.values))} in "
        f"{counted_text(len(playback.steps), 'step')}, along {' and '.join(playback.axes)}"
    )


def render_propagation_svg(
    playback: Playback,
    *,
    first: int = 0,
    rows_at_most: int = 120,
    width: float = 660.0,
    dark: bool | None = None,
    live: bool = False,
) -> Markup:
    """Sharded values as rows with a box per dimension, and an arc for every propagated axis.

    Boxes, tags and arcs carry `data-frame`, the frame in which they appear; every row is a group with `data-value`.
    """
    shown = playback.values[first : first + rows_at_most]
    places = {value.name: _HEAD + (index + 0.5) * _ROW for index, value in enumerate(shown)}
    height = _HEAD + len(shown) * _ROW + _MARGIN
    label = describe_propagation(playback)
    of_value: dict[str, list[AxisArrivalRecord]] = {}
    for arrival in playback.arrivals:
        of_value.setdefault(arrival.value, []).append(arrival)
    arcs = [_arc(playback, arrival, places) for value in shown for arrival in of_value[value.name]]
    rows = [_row(playback, value, of_value[value.name], places[value.name], width) for value in shown]
    return picture(
        width,
        height,
        text(_MARGIN, 17, label, size=12.5, fit=width - 2 * _MARGIN, class_="wb-fill-fg wb-strong"),
        text(_GUTTER + 8, 33, "value", size=10, class_="wb-fill-muted"),
        text(_GUTTER + _NAME, 33, "dimensions and their mesh axes", size=10, class_="wb-fill-muted"),
        text(width - _MARGIN, 33, "line · stage", size=10, class_="wb-fill-muted wb-end"),
        *arcs,
        *rows,
        label=label,
        dark=dark,
        live=live,
    )


def render_propagation_steps(playback: Playback, *, arrivals_at_most: int = 40) -> str:
    """The steps in words: axis, dimension and value, in the order in which they were decided."""
    lines = [describe_propagation(playback) + "."]
    ordered = sorted(playback.arrivals, key=lambda arrival: -1 if arrival.step is None else arrival.step)
    for arrival in ordered[:arrivals_at_most]:
        where = f"{arrival.axis} on dimension {', '.join(map(str, arrival.dimensions))} of {arrival.value}"
        lines.append(f"  {where}: {arrival.sentence}")
    if len(ordered) > arrivals_at_most:
        lines.append(f"  … and {count_text(len(ordered) - arrivals_at_most)} more")
    return "\n".join(lines)


def _row(
    playback: Playback, value: PlannedValueRecord, arrivals: Sequence[AxisArrivalRecord], y: float, width: float
) -> Markup:
    frames = {arrival.axis: playback.frame_of(arrival) for arrival in arrivals}
    ends = value.operation in ("input", "output")
    name = value.op_name if ends and value.op_name else f"{_operation(value)} {value.name}"
    spoken = f"{value.operation} {name}: " + ", ".join(f"{axis} from frame {at}" for axis, at in frames.items())
    x, boxes = _GUTTER + _NAME, []
    for dim, size in enumerate(value.shape):
        axes = value.spec[dim]
        drawn, wide = _dimension(playback, size, [(axis, frames[axis]) for axis in axes], x, y)
        boxes.append(drawn)
        x += wide + 4
    shown, look = (_end_of(name), "wb-fill-fg wb-strong") if ends else (name, "wb-fill-fg")
    return group(
        rect(_GUTTER, y - _ROW / 2 + 1, width - _GUTTER - 2, _ROW - 2, rx=4, class_="wb-fill-panel wb-card"),
        text(_GUTTER + 8, y + 4, shown, size=11.5, fit=_NAME - 16, class_=look),
        *boxes,
        text(width - _MARGIN, y + 4, _where(value), size=10.5, fit=width - x - _MARGIN, class_="wb-fill-muted wb-end"),
        data_value=value.name,
        data_label=spoken,
        class_="wb-score",
    )


def _end_of(name: str) -> str:
    """The end of the name of an argument: names of one tree differ there."""
    short = _ENTRY.sub(r".\1", name)
    room = int((_NAME - 16) / text_width("m", 11.5))
    return short if len(short) <= room else "…" + short[1 - room :]


def _operation(value: PlannedValueRecord) -> str:
    return value.operation.replace("manual_computation", "shard_map")  # the name in JAX


def _where(value: PlannedValueRecord) -> str:
    line = "" if value.source is None else source_text(value.source.file, value.source.line)
    return " · ".join(part for part in (line, value.stage or "") if part)


def _dimension(
    playback: Playback, size: int, axes: Sequence[tuple[str, int]], x: float, y: float
) -> tuple[Markup, float]:
    """A box showing the size of a dimension, and a coloured tag per axis that shards the dimension."""
    number_width = max(_CHIP, text_width(str(size), 11) + 8)
    wide, tags = number_width, []
    for axis, frame in axes:
        tag = text_width(axis, 10) + _TAG
        hue = f"series-{playback.axes.index(axis) % 7}"
        tags.append(
            group(
                rect(x + wide, y - 8.5, tag, 17, rx=3, class_=f"wb-fill-{hue}", fill_opacity=0.28),
                rect(x + wide, y - 8.5, 3.5, 17, rx=1.5, class_=f"wb-fill-{hue}"),
                text(x + wide + 7, y + 3.5, axis, size=10, class_="wb-fill-fg"),
                data_frame=frame,
                data_axis=axis,
                class_="wb-tag-axis",
            )
        )
        wide += tag
    box = rect(x, y - 8.5, wide, 17, rx=3, fill="none", class_="wb-stroke-line", stroke_width=1)
    return group(box, text(x + 4, y + 4, str(size), size=11, class_="wb-fill-fg"), *tags), wide


def _arc(playback: Playback, arrival: AxisArrivalRecord, places: dict[str, float]) -> Markup | None:
    """An arc from an axis's source to the value that the axis reached; None for axes given in the program."""
    if arrival.from_value is None:
        return None
    index = playback.axes.index(arrival.axis)
    to = places[arrival.value]
    start = places.get(arrival.from_value)
    edge = _GUTTER - 1
    if start is None:  # its source is on another page
        commands = f"M{edge - 26:g} {to:g}L{edge - 6:g} {to:g}"
    else:
        reach = min(12 + 9 * math.sqrt(abs(to - start) / _ROW), _GUTTER - 16)
        commands = (
            f"M{edge:g} {start:g}C{edge - reach * 1.33:g} {start:g} {edge - reach * 1.33:g} {to:g} {edge - 6:g} {to:g}"
        )
    head = f"M{edge:g} {to:g}L{edge - 7:g} {to - 4:g}L{edge - 7:g} {to + 4:g}Z"
    hue = f"series-{index % 7}"
    dashes = None if index == 0 else f"{2 + 2 * index} 3"  # axes can also be distinguished without colour
    return group(
        path(commands, fill="none", class_=f"wb-stroke-{hue}", stroke_width=1.5, stroke_dasharray=dashes),
        path(head, class_=f"wb-fill-{hue}"),
        data_frame=playback.frame_of(arrival),
        data_axis=arrival.axis,
        data_to=arrival.value,
        data_from=arrival.from_value,
        class_="wb-arc",
    )
