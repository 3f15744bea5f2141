import numpy as np
from workbench_widgets import TimelineView
from workbench_widgets._timeline import NOTHING, awaited, round_starts, timeline_state

from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.compiled import ProgramRecord
from workbench.records.program import PlanRecord, SourceLine
from workbench.records.run import EventRecord, RunRecord


def span(where: str, name: str, start: float, seconds: float, kind: str = "compute", **more) -> EventRecord:
    return EventRecord(where=where, name=name, start_seconds=start, seconds=seconds, kind=kind, **more)  # type: ignore[arg-type]


def run(*events: EventRecord, rounds: int = 1) -> RunRecord:
    return RunRecord(name="round", engine="cpu x 2", seconds=1.0, rounds=rounds, events=events, notes=("a note",))


def column(arrays: dict[str, bytes], name: str, dtype: str) -> list[float]:
    return np.frombuffer(arrays[name], dtype).tolist()


def test_every_span_is_sent_in_order_of_time() -> None:
    data, arrays = timeline_state(run(span("cpu:10", "b", 3.0, 1.0), span("cpu:2", "a", 1.0, 2.0, "wait")))
    assert data["devices"] == ["cpu:2", "cpu:10"]
    assert column(arrays, "start", "f8") == [0.0, 2.0]
    assert column(arrays, "seconds", "f4") == [2.0, 1.0]
    assert [(place >> 3, place & 7) for place in np.frombuffer(arrays["place"], "u4").tolist()] == [(0, 2), (1, 0)]
    assert [data["names"][int(i)] for i in column(arrays, "name", "u4")] == ["a", "b"]
    assert data["notes"] == ["a note"]


def test_a_span_lies_in_its_stage_and_its_line() -> None:
    source = SourceLine(file="cell", line=3, function="loss")
    data, arrays = timeline_state(run(span("cpu:0", "dot", 0.0, 1.0, stage="1", source=source)))
    assert data["paths"][int(column(arrays, "path", "u4")[0])] == {
        "frames": ["stage 1", "loss"],
        "stage": "1",
        "line": "cell:3",
    }


def test_functions_around_an_operation_come_from_the_call_tree() -> None:
    nodes = (
        CallNodeRecord(id=0, parent=None, kind="root", name="step"),
        CallNodeRecord(id=1, parent=0, kind="function", name="train"),
        CallNodeRecord(id=2, parent=1, kind="function", name="library", hidden=True),
        CallNodeRecord(id=3, parent=2, kind="operation", name="dot", instructions=("dot.1",)),
    )
    tree = CallTreeRecord(made_from="jaxpr", nodes=nodes)
    plan = PlanRecord(name="step", placements=(), stages=())
    program = ProgramRecord(name="step", target="here", plan=plan, traced_call_tree=tree)
    data, arrays = timeline_state(run(span("cpu:0", "dot.1", 0.0, 1.0)), program)
    assert data["paths"][int(column(arrays, "path", "u4")[0])]["frames"] == ["train"]


def test_calls_begin_where_what_runs_once_per_call_begins() -> None:
    events = [span("cpu:0", name, start, 0.1) for start, name in enumerate(["dot", "loop", "loop", "dot", "loop"])]
    assert round_starts(events, 2) == [0.0, 3.0]
    assert round_starts(events, 1) == []
    assert round_starts(events, 7) == []


def test_who_waits_points_at_the_device_that_came_last() -> None:
    events = [
        span("cpu:0", "all-reduce", 0.0, 2.0, "wait"),
        span("cpu:0", "all-reduce", 2.0, 1.0, "collective"),
        span("cpu:1", "all-reduce", 2.0, 1.0, "collective"),
        span("cpu:1", "all-reduce", 5.0, 1.0, "wait"),
        span("cpu:0", "all-reduce", 6.0, 1.0, "collective"),
        span("cpu:1", "all-reduce", 6.0, 1.0, "collective"),
    ]
    found = awaited(sorted(events, key=lambda event: event.start_seconds))
    assert found.tolist() == [2, NOTHING, NOTHING, 4, NOTHING, NOTHING]


def test_a_run_without_spans_is_reported_in_words() -> None:
    view = TimelineView(run())
    assert "Run of round" in view.text()
    view.close()
