"""State of the advice view of the explorer."""

from collections.abc import Mapping

from workbench import render
from workbench.records.advice import AdviceRecord, FindingRecord, GainRecord, SearchRecord
from workbench.records.call_tree import CallTreeRecord
from workbench.render import gain_texts, quantity_text
from workbench.render.units import bytes_text, seconds_text, source_text, spec_text
from workbench_widgets._operations import visible_rows
from workbench_widgets.states import AdviceReport, Finding, Gain, SearchState, ShardingChoice


def advice_state(
    advice: AdviceRecord, tree: CallTreeRecord | None = None, leaves: Mapping[str, str] | None = None
) -> AdviceReport:
    """State of the advice view: one card per finding, most important first, and the checked rules."""
    rows = {} if tree is None else visible_rows(tree)
    return {
        "sentence": render.text(advice).splitlines()[0],
        "findings": [_finding(number, finding, rows, leaves or {}) for number, finding in enumerate(advice.findings)],
        "checked": list(advice.checked),
        "notes": list(advice.notes),
    }


def search_state(search: SearchRecord) -> SearchState:
    """State of a search in the advice view: one row per choice, the chosen row first."""
    return {
        "sentence": render.text(search).splitlines()[0],
        "rows": [_choice(search, number) for number in range(len(search.choices))],
        "groups": [group.pattern for group in search.groups],
        "notes": list(search.notes),
    }


def _choice(search: SearchRecord, number: int) -> ShardingChoice:
    choice = search.choices[number]
    return {
        "name": choice.name,
        "seconds": None if choice.seconds is None else seconds_text(choice.seconds),
        "peak": None if choice.peak_bytes is None else bytes_text(choice.peak_bytes),
        "fits": choice.fits,
        "chunk": choice.chunk_size,
        "sent": {axis: bytes_text(amount) for axis, amount in choice.sent_bytes.items()},
        "how": choice.how,
        "pareto": choice.pareto,
        "specs": {pattern: spec_text(spec) for pattern, spec in choice.specs.items()},
        "axes": {pattern: [list(axes) for axes in spec] for pattern, spec in choice.specs.items()},
        "code": search.code(number),
    }


def _finding(number: int, finding: FindingRecord, rows: dict[int, int], leaves: Mapping[str, str]) -> Finding:
    return {
        "number": number,
        "rule": finding.rule,
        "title": finding.what,
        "why": finding.why,
        "change": finding.change,
        "code": finding.code,
        "evidence": list(finding.evidence),
        "weight": finding.weight,
        "bytes": None if finding.size_bytes is None else bytes_text(finding.size_bytes),
        "seconds": None if finding.seconds is None else seconds_text(finding.seconds),
        "verified": finding.is_verified,
        "gain": None if finding.gain is None else _gain(finding.gain),
        "compared": [_gain(row) for row in finding.compared],
        "nodes": sorted({rows[node] for node in finding.nodes if node in rows}),
        "instructions": list(finding.instructions),
        "leaves": [leaves.get(path, path) for path in finding.leaves],
        "axes": list(finding.axes),
        "lines": [
            {"line": f"{s.file}:{s.line}", "source": source_text(s.file, s.line), "function": s.function}
            for s in finding.sources
        ],
    }


def _gain(gain: GainRecord) -> Gain:
    before, after, text = gain_texts(gain)
    return {
        "quantity": quantity_text(gain.quantity),
        "before": before,
        "after": after,
        "saved_share": gain.saved_share,
        "verified": gain.verified,
        "how": gain.how,
        "text": text,
    }
