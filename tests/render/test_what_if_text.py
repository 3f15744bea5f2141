"""A what-if in words: every kind of change with its sign, amounts only where both are known."""

import json

import records_examples as examples
import records_parts as parts

from workbench import render
from workbench.records.compiled import TrafficRecord, WhatIfRecord
from workbench.render import what_if_amounts


def row(
    runs_before: float | None, runs_after: float | None, before: float | None, after: float | None
) -> TrafficRecord:
    return TrafficRecord(
        kind="all-reduce", axes=("model",), stage="1", stage_name="train", runs_before=runs_before,
        runs_after=runs_after, before_bytes=before, after_bytes=after,
    )  # fmt: skip


ROWS = {
    "added": row(0.0, 2.0, 0.0, 4096.0),
    "removed": row(1.0, 0.0, 512.0, 0.0),
    "more": row(1.0, 1.0, 512.0, 1024.0),
    "less": row(1.0, 1.0, 1024.0, 512.0),
    "same": row(1.0, 1.0, 512.0, 512.0),
}


def what_if(*rows: TrafficRecord, **fields: object) -> WhatIfRecord:
    program = examples.fedavg_record()
    given = {"specs": {"w": ((), ("model",))}, "before": program, "after": program, "planned": rows}
    return WhatIfRecord(**{**given, **fields})  # type: ignore[arg-type]


def test_change_is_read_from_runs_and_bytes():
    assert {name: each.change for name, each in ROWS.items()} == {name: name for name in ROWS}


def test_text_holds_every_collective_with_before_and_after():
    lines = render.text(what_if(*ROWS.values())).splitlines()
    changes = "1 added, 1 removed, 1 with more bytes, 1 with fewer bytes"
    assert lines[0] == f"What if w were P(None, 'model')? Collectives: {changes} (planned)."
    assert "  + added: all-reduce over model, stage 1 train: 0 -> 2 runs, 0 B -> 4 KiB per device per call" in lines
    assert "  − removed: all-reduce over model, stage 1 train: 1 -> 0 runs, 512 B -> 0 B per device per call" in lines


def test_loops_of_unknown_length_are_reported_as_unknown():
    assert "? -> 1 runs, unknown -> 4 KiB" in render.text(what_if(row(None, 1.0, None, 4096.0)))


def test_compiled_amounts_are_shown_only_once_something_is_compiled():
    assert [name for name, _, _ in what_if_amounts(what_if())] == ["arguments per device"]
    compiled = what_if(compiled=(ROWS["same"],))
    assert [name for name, _, _ in what_if_amounts(compiled)] == [
        "arguments per device", "sent per device", "peak memory per device", "matrix FLOPs per device",
        "elementwise FLOPs per device", "predicted per call",
    ]  # fmt: skip
    assert compiled.traffic == (ROWS["same"],)
    assert what_if_amounts(what_if(before=examples.fedavg_record().replace(inputs=None))) == []


def test_record_is_written_as_json():
    record = what_if(*ROWS.values(), after=examples.fedavg_record().replace(module=parts.module_record()))
    read = json.loads(record.to_json())
    assert read["specs"] == {"w": [[], ["model"]]}
    assert [each["after_bytes"] for each in read["planned"]] == [4096, 0, 1024, 512, 512]
