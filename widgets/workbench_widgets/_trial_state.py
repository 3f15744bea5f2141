"""State of a trial of other PartitionSpecs in the sharding view."""

from workbench import render
from workbench.records.compiled import TrafficRecord, WhatIfRecord
from workbench.render import change_sign, what_if_amounts
from workbench.render.units import bytes_text, count_text, sources_text
from workbench_widgets._propagation import propagation_state
from workbench_widgets.states import PropagationState, TrialResult, TrialRow


def tried_propagation(tried: WhatIfRecord | None) -> PropagationState | None:
    """Reasons for the shardings in the tried program; None if no value is sharded."""
    record = None if tried is None else tried.after.propagation
    if record is None or not any(any(value.spec) for value in record.values):
        return None
    state = propagation_state(record)
    return {**state, "sentence": f"With the specs tried: {state['sentence']}"}


def trial_state(tried: WhatIfRecord) -> TrialResult:
    return {
        "sentence": render.describe(tried),
        "how": "planned" if tried.compiled is None else "compiled",
        "amounts": what_if_amounts(tried),
        "rows": [_row(row) for row in tried.traffic],
        "notes": list(tried.notes),
    }


def _row(row: TrafficRecord) -> TrialRow:
    return {
        "change": row.change,
        "sign": change_sign(row),
        "kind": row.kind,
        "axes": list(row.axes),
        "stage": row.stage,
        "stage_name": row.stage_name,
        "runs": (_count(row.runs_before), _count(row.runs_after)),
        "bytes": (bytes_text(row.before_bytes), bytes_text(row.after_bytes)),
        "line": f"{row.sources[0].file}:{row.sources[0].line}" if row.sources else None,
        "source": sources_text(row.sources),
    }


def _count(runs: float | None) -> str:
    return "unknown" if runs is None else count_text(runs)
