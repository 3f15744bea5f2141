"""The timeline: measured spans of a run as columns of numbers, with their places in the program."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from workbench import render
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import ProgramRecord
from workbench.records.program import PlanRecord, StageRecord
from workbench.records.run import EventRecord, RunRecord
from workbench.render import GLOSSARY
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets.states import TimelinePath, TimelineState

KINDS = ("compute", "collective", "wait", "other", "copy")
NOTHING = 0xFFFF_FFFF  # marks a missing index in a column
_KIND_BITS = 3

Arrays = dict[str, bytes]


class TimelineView(WorkbenchWidget):
    """Time spent in a run: every span on every device, grouped by stage and by caller.

    Args:
        run: A measured run with events.
        program: Record of the program that ran; it supplies the functions around each operation.
    """

    view_name = "timeline"

    def __init__(self, run: RunRecord, program: ProgramRecord | None = None, **values: object) -> None:
        self.run = self._subject = run
        data, arrays = timeline_state(run, program)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=render.describe(run), **values)


def timeline_state(
    run: RunRecord, program: ProgramRecord | None = None, tree: CallTreeRecord | None = None
) -> tuple[TimelineState, Arrays]:
    """The names used in the columns, and the columns themselves: one number per span, in time order."""
    events = sorted(run.events, key=lambda event: event.start_seconds)
    devices = {where: place for place, where in enumerate(_devices(events, program))}
    names, name = _interned([event.name for event in events])
    paths, path = _paths(events, program, tree)
    kinds = {kind: place for place, kind in enumerate(KINDS)}
    place = [devices[event.where] << _KIND_BITS | kinds[event.kind] for event in events]
    begins = min((event.start_seconds for event in events), default=0.0)
    start = np.array([event.start_seconds for event in events], dtype=np.float64) - begins
    data: TimelineState = {
        "title": run.name,
        "devices": list(devices),
        "device_ids": [_device_id(where) for where in devices],
        "names": names,
        "paths": paths,
        "rounds": [moment - begins for moment in round_starts(events, run.rounds)],
        "calls": run.rounds,
        "sentence": render.describe(run),
        "notes": list(run.notes),
    }
    columns = {
        "start": start,
        "seconds": np.array([event.seconds for event in events], dtype=np.float32),
        "place": np.array(place, dtype=np.uint32),
        "name": np.array(name, dtype=np.uint32),
        "path": np.array(path, dtype=np.uint32),
        "awaited": awaited(events),
    }
    return data, {key: column.tobytes() for key, column in columns.items()}


def round_starts(events: Sequence[EventRecord], rounds: int) -> list[float]:
    """Start of each call of the program, located by an operation that runs once per call."""
    if rounds < 2:
        return []
    spans = [event for event in events if event.kind != "wait"]
    executions = Counter((event.where, event.name) for event in spans)
    counts: Counter[tuple[str, str]] = Counter()
    starts: list[float | None] = [None] * rounds
    for event in spans:
        key = event.where, event.name
        if executions[key] == rounds:
            call = counts[key]
            counts[key] += 1
            if starts[call] is None:
                starts[call] = event.start_seconds
    moments = [moment for moment in starts if moment is not None]
    return moments if len(moments) == rounds and moments == sorted(moments) else []


def awaited(events: Sequence[EventRecord]) -> np.ndarray:
    """For every waiting span, the span of the last device to arrive; `NOTHING` for all other spans.

    Args:
        events: Events in time order. A device that waits for others in a collective has a waiting span, directly
            followed by the span of the collective. The last device to arrive has no waiting span.
    """
    arrivals = np.full(len(events), NOTHING, dtype=np.uint32)
    execution_of: Counter[tuple[str, str]] = Counter()
    latest: defaultdict[tuple[str, int], list[int]] = defaultdict(list)  # collectives without waiting
    waiting: list[tuple[int, tuple[str, int]]] = []
    holds: set[str] = set()  # devices whose current collective began with waiting
    for index, event in enumerate(events):
        key = event.where, event.name
        execution = event.name, execution_of[key]
        if event.kind == "wait":
            waiting.append((index, execution))
            holds.add(event.where)
        elif event.kind == "collective":
            if event.where not in holds:
                latest[execution].append(index)
            holds.discard(event.where)
            execution_of[key] += 1
    for index, execution in waiting:
        over = events[index].start_seconds + events[index].seconds
        if candidates := latest.get(execution):
            arrivals[index] = min(candidates, key=lambda candidate: abs(events[candidate].start_seconds - over))
    return arrivals


def _devices(events: Sequence[EventRecord], program: ProgramRecord | None) -> list[str]:
    """All devices, in mesh order if known."""
    devices = list(dict.fromkeys(event.where for event in events))
    mesh = program.mesh if program is not None else None
    order = {} if mesh is None else {device.id: place for place, device in enumerate(mesh.devices)}
    return sorted(devices, key=lambda where: (order.get(_device_id(where) or 0, len(order)), _natural(where)))


def _device_id(where: str) -> int | None:
    tail = where.rpartition(":")[2]
    return int(tail) if tail.isdigit() else None


def _natural(where: str) -> tuple[str, int]:
    head, _, tail = where.rpartition(":")
    return (head, int(tail)) if tail.isdigit() else (where, -1)


def _interned(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    places: dict[str, int] = {}
    column = [places.setdefault(text, len(places)) for text in texts]
    return list(places), column


def _paths(
    events: Sequence[EventRecord], program: ProgramRecord | None, tree: CallTreeRecord | None = None
) -> tuple[list[TimelinePath], list[int]]:
    """Paths of spans (the stage, then functions from the outermost inwards), and the path of every span."""
    stages = {} if program is None else _stage_names(program.plan)
    tree = tree or (None if program is None else program.call_tree)
    calls = {} if tree is None else _calls(tree)
    index_of: dict[tuple[str, str | None, str], int] = {}
    listed: list[TimelinePath] = []
    column = []
    for event in events:
        source = event.source
        key = event.name if event.name in calls else "", event.stage, str(source or "")
        if key not in index_of:
            index_of[key] = len(listed)
            frames = calls.get(event.name) or ([] if source is None else [source.function or f"line {source.line}"])
            stage = [] if event.stage is None else [stages.get(event.stage, f"stage {event.stage}")]
            listed.append({"frames": [*stage, *frames], "stage": event.stage, "line": str(source) if source else None})
        column.append(index_of[key])
    return listed, column


def _stage_names(plan: PlanRecord) -> dict[str, str]:
    names: dict[str, str] = {}

    def read(stages: Sequence[StageRecord]) -> None:
        for stage in stages:
            names[stage.path] = stage.name
            read(stage.body)

    read(plan.stages)
    return names


def _calls(tree: CallTreeRecord) -> Mapping[str, list[str]]:
    """Maps each instruction to the names of its enclosing functions and lines, outermost first."""
    around: dict[int, list[str]] = {}
    calls: dict[str, list[str]] = {}
    for node in tree.nodes:
        above = [] if node.parent is None else around[node.parent]
        shown = node.parent is not None and not node.hidden and node.kind != "operation"
        around[node.id] = [*above, node.name] if shown else above
        for instruction in node.instructions:
            calls.setdefault(instruction, above)
    return calls
