"""Compares runs of `measure` and loops of `watch` per call, stage and line."""

import statistics
from collections.abc import Sequence

from workbench.inspection._compare_lines import Codes, line_rows
from workbench.records.advice import ComparedRecord, ComparisonRecord, Group, Status, Unit
from workbench.records.live import WatchRecord
from workbench.records.run import RunRecord
from workbench.render.units import seconds_text

Measured = RunRecord | WatchRecord

_TIME_TOLERANCE = 0.03  # relative; two runs of one program differ by about as much
_MOST_LINES = 100


def compare_measured(records: Sequence[Measured], codes: Sequence[Codes] | None = None) -> ComparisonRecord:
    """Compares measured runs and watched loops; all figures are per call and device.

    Times are treated as equal if they differ by less than 3 %, or if the ranges of the calls' times overlap.

    Args:
        records: Two or more records, in order.
        codes: The source code of each program, as in `line_rows`.

    Returns:
        One row per quantity, stage and line.

    Example:
        >>> slow, fast = (WatchRecord(name="step", status="finished", steps=9, step_seconds=s) for s in (0.2, 0.1))
        >>> [(row.name, row.values) for row in compare_measured([slow, fast]).differences]
        [('time of a call', (0.2, 0.1))]
    """
    rows = [
        _timed("time of a call", [_call_seconds(record) for record in records], overlap=_overlap(records)),
        _timed("time until the call returns", [_of_watch(record, "dispatch_seconds") for record in records]),
        _timed("time between calls", [_of_watch(record, "between_seconds") for record in records]),
        _row("measured", "compilation", [_compile_seconds(record) for record in records], "seconds", 0.1),
        _row("measured", "work", [_of_watch(record, "flops") for record in records], "flops"),
        _row("measured", "memory traffic", [_of_watch(record, "accessed_bytes") for record in records], "bytes"),
        _row("measured", "planned peak", [_of_watch(record, "planned_peak_bytes") for record in records], "bytes"),
        _row("measured", "measured peak", [_peak(record) for record in records], "bytes", _TIME_TOLERANCE),
        _row("measured", "collectives", [_of_watch(record, "collectives") for record in records], "count"),
        _row("measured", "bytes sent by a device", [_of_watch(record, "sent_bytes") for record in records], "bytes"),
    ]
    rows = [row for row in rows if any(value is not None for value in row.values)]
    rows += _table("seconds per stage", [_stages(record) for record in records])
    trees = tuple(record.call_tree for record in records if record.call_tree is not None)
    if len(trees) == len(records):
        rows += line_rows(trees, codes)
    return ComparisonRecord(
        names=tuple(record.name for record in records),
        targets=tuple(
            record.engine if isinstance(record, RunRecord) else f"{record.steps:,} steps" for record in records
        ),
        rows=tuple(rows),
        notes=(*_uncertain(records), *dict.fromkeys(note for record in records for note in record.notes)),
        trees=trees if len(trees) == len(records) else (),
    )


def _call_seconds(record: Measured) -> float | None:
    if isinstance(record, WatchRecord):
        return record.step_seconds
    return statistics.median(record.round_seconds) if record.round_seconds else record.seconds / max(1, record.rounds)


def _overlap(records: Sequence[Measured]) -> bool:
    """Returns whether the first and the last record have several calls each, with overlapping times."""
    ends = [record.round_seconds for record in (records[0], records[-1]) if isinstance(record, RunRecord)]
    if len(ends) < 2 or min(map(len, ends)) < 2:
        return False
    return min(ends[0]) <= max(ends[1]) and min(ends[1]) <= max(ends[0])


def _uncertain(records: Sequence[Measured]) -> list[str]:
    """A note that calls of both programs took equally long; their profiled seconds may still differ."""
    if not _overlap(records):
        return []
    first, last = (record.round_seconds for record in (records[0], records[-1]) if isinstance(record, RunRecord))
    return [
        f"Calls took {seconds_text(min(first))} to {seconds_text(max(first))} before and {seconds_text(min(last))} to "
        f"{seconds_text(max(last))} after. These ranges overlap, so the seconds of stages and lines may differ by "
        "chance: measure more calls with `rounds=`."
    ]


def _of_watch(record: Measured, name: str) -> float | None:
    return getattr(record, name) if isinstance(record, WatchRecord) else None


def _compile_seconds(record: Measured) -> float | None:
    if isinstance(record, RunRecord):
        return None
    return sum(compilation.seconds for compilation in record.compilations) or None


def _peak(record: Measured) -> float | None:
    return record.peak_bytes if isinstance(record, WatchRecord) else record.memory_peak_bytes


def _stages(record: Measured) -> dict[str, float]:
    """Time per stage in seconds, averaged over the devices, including waiting time."""
    if isinstance(record, WatchRecord):
        return {}
    by_stage: dict[str, list[float]] = {}
    for stage in record.stages:
        seconds = stage.compute_seconds + stage.collective_seconds + stage.wait_seconds
        by_stage.setdefault(stage.stage, []).append(seconds)
    return {f"stage {name}" if name else "no stage": statistics.fmean(seconds) for name, seconds in by_stage.items()}


def _table(group: Group, columns: list[dict[str, float]]) -> list[ComparedRecord]:
    names = list(dict.fromkeys(name for column in columns for name in column))
    names.sort(key=lambda name: -max(column.get(name, 0.0) for column in columns))
    return [
        _row(group, name, [column.get(name) for column in columns], "seconds", _TIME_TOLERANCE)
        for name in names[:_MOST_LINES]
    ]


def _timed(name: str, values: Sequence[float | None], *, overlap: bool = False) -> ComparedRecord:
    row = _row("measured", name, values, "seconds", _TIME_TOLERANCE)
    return row.replace(status="same") if overlap and row.status == "changed" else row


def _row(group: Group, name: str, values: Sequence[float | None], unit: Unit, tolerance: float = 0.0) -> ComparedRecord:
    numbers = [value for value in values if value is not None]
    status: Status = "unknown"
    if len(numbers) == len(values):
        first = numbers[0]
        alike = all(abs(value - first) <= tolerance * abs(first) for value in numbers)
        status = "same" if alike else "changed"
    return ComparedRecord(group=group, name=name, values=tuple(values), unit=unit, status=status)
