"""The propagation view: why each value is sharded, step by step, according to Shardy's decisions."""

from typing import ClassVar

from workbench import render
from workbench.records.sharding import PlannedValueRecord, PropagationRecord
from workbench.render import GLOSSARY, Markup, Playback, play_back, trace_axes
from workbench.render.units import shape_text, source_text, spec_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets.states import PlannedValue, PropagationState

PAGE = 120  # values in one picture


class PropagationView(WorkbenchWidget):
    """Live view of how shardings propagate from inputs to all values, step by step and with causes.

    Args:
        record: The `propagation` attribute of a program's record.
    """

    view_name = "propagation"
    requests: ClassVar[dict[str, str]] = {"propagation_page": "page"}

    def __init__(self, record: PropagationRecord, **values: object) -> None:
        self.record = record
        self._playback = self._subject = play_back(record, trace_axes(record))
        data = {**propagation_state(record, self._playback), "glossary": GLOSSARY}
        super().__init__(data=data, label=render.describe(self._playback), **values)

    def page(self, first: int) -> str:
        """The picture of one page of values; the page starts with value number `first`."""
        return propagation_page(self._playback, first)

    def static_picture(self) -> Markup:
        """The first values, with all their arrows and tags."""
        return render.svg(self._playback, rows_at_most=40)


def propagation_state(record: PropagationRecord, playback: Playback | None = None) -> PropagationState:
    """State of the propagation view: the first page, facts about every sharded value, and the origin of each axis."""
    playback = playback or play_back(record, trace_axes(record))
    place = {value.name: index for index, value in enumerate(playback.values)}
    why: dict[str, list[tuple[str, list[int], int, str | None, str]]] = {}
    for arrival in playback.arrivals:
        frame = playback.frame_of(arrival)
        why.setdefault(arrival.value, []).append(
            (arrival.axis, list(arrival.dimensions), frame, arrival.from_value, arrival.sentence)
        )
    return {
        "svg": propagation_page(playback, 0),
        "page": PAGE,
        "values": [_value(value) for value in playback.values],
        "place": place,
        "why": why,
        "axes": list(playback.axes),
        "steps": list(playback.steps),
        "sentence": render.describe(playback),
        "engine": record.engine,
        "notes": [*record.notes, *_left_out(record, playback)],
    }


def _left_out(record: PropagationRecord, playback: Playback) -> list[str]:
    sharded = sum(any(value.spec) for value in record.values)
    shown = len(playback.values)
    return [f"The first {shown:,} of {sharded:,} sharded values are shown."] if shown < sharded else []


def propagation_page(playback: Playback, first: int) -> str:
    """One page of values as a picture in the host page's colours."""
    return str(render.svg(playback, first=first, rows_at_most=PAGE, live=True))


def _value(value: PlannedValueRecord) -> PlannedValue:
    ends = value.operation in ("input", "output")
    operation = value.operation.replace("manual_computation", "shard_map")
    rows = [
        ("operation", operation),
        ("type", shape_text(value.dtype, value.shape)),
        ("sharding", spec_text(value.spec)),
    ]
    if value.rule:
        rows.append(("sharding rule", value.rule))
    if value.stage:
        rows.append(("stage", value.stage))
    if value.source:
        rows.append(("source", source_text(value.source.file, value.source.line)))
    if value.op_name and not ends:
        rows.append(("scope", value.op_name))
    return {
        "name": value.name,
        "title": value.op_name if ends and value.op_name else f"{operation} {value.name}",
        "leaf": value.op_name if value.operation == "input" else "",
        "stage": value.stage,
        "line": None if value.source is None else f"{value.source.file}:{value.source.line}",
        "rows": rows,
    }
