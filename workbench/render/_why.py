"""Reasons for a program's communication, in words."""

import re
from collections import Counter
from collections.abc import Sequence

from workbench.records.sharding import WhyArrayRecord, WhyCollectiveRecord, WhyOperandRecord, WhyRecord
from workbench.render.units import axes_text, bytes_text, count_text, line_text, spec_text

_INDEX = re.compile(r"(?<=[\[._])\d+(?=[\]._'`])")  # a layer's number: `layers[3].w`, `params['Dense_1']`, not `w1`


_FEW = 8  # maximum number of reasons listed one by one; more are grouped
_MOST_PLACES = 3  # places of a group, largest first
_MOST_CALLERS = 3  # lines of a call path, innermost first


def render_why_text(record: WhyRecord, *, details: bool = False) -> str:
    """Lists causes shared by many collectives first, then collectives by reason, then replicated arrays.

    Example:
        >>> print(render_why_text(WhyRecord(name="f", target="cpu x 1")))
        f on cpu x 1: no collectives, no large replicated arrays.
    """
    if not record.collectives and not record.arrays:
        text = f"{record.name} on {record.target}: no collectives, no large replicated arrays."
        return "\n".join([text, *(f"Note: {note}" for note in record.notes)])
    lines = [f"Why {record.name} communicates on {record.target}"]
    for cause in record.causes:
        lines += [f"Cause: {cause.sentence}", f"   {cause.advice}"]
    groups: dict[tuple[object, ...], list[WhyCollectiveRecord]] = {}
    for collective in record.collectives:  # identical layers share a reason
        groups.setdefault((_headline(collective), _without_indices(collective.sentence)), []).append(collective)
    is_long = len(groups) > _FEW and not details
    if is_long:
        lines += _by_reason(record.collectives)
    else:
        lines += _one_by_one(list(groups.values()), details)
    if not record.collectives:
        lines.append("  no collectives")
    if record.arrays:
        lines.append("Replicated and large")
    arrays: dict[tuple[object, ...], list[WhyArrayRecord]] = {}
    for array in record.arrays:  # identical layers are merged
        key = (_without_indices(array.name), array.size_bytes, array.copies, _without_indices(array.sentence))
        arrays.setdefault(key, []).append(array)
    shown = list(arrays.values())[:_MOST_PLACES] if is_long else list(arrays.values())
    for alike in shown:
        name, sentence = alike[0].name, alike[0].sentence
        if len(alike) > 1:
            name, sentence = _without_indices(name), _without_indices(sentence)
        lines.append(f"  {name}: {_sizes([a.size_bytes for a in alike])}, {count_text(alike[0].copies)} copies.")
        lines.append(f"    {sentence}")
    if count := len(record.arrays) - sum(map(len, shown)):
        lines.append(f"  and {count} smaller ones")
    if is_long:
        lines.append("To see every collective with its operands, call `wb.render.text(record, details=True)`.")
    return "\n".join([*lines, *(f"Note: {note}" for note in record.notes)])


def _one_by_one(groups: list[list[WhyCollectiveRecord]], details: bool) -> list[str]:
    lines, number = [], 1
    for group in sorted(groups, key=_total, reverse=True):
        (title, where), reason = _headline(group[0]), _reason_lines(group[0], details)
        if len({collective.sentence for collective in group}) > 1:
            reason = [_without_indices(line) for line in reason]
        numbers = f"{number}." if len(group) == 1 else f"{number}–{number + len(group) - 1}."
        traffic = "" if group[0].sent_bytes is None else f", {_sent(group)}"
        lines += [f"{numbers} {title}, {_sizes([c.payload_bytes for c in group])} per device{traffic}{where}", *reason]
        number += len(group)
    return lines


def _by_reason(collectives: Sequence[WhyCollectiveRecord]) -> list[str]:
    """One paragraph per reason and set of axes: number of collectives, bytes, and the places with the most bytes."""
    groups: dict[tuple[str, ...], list[WhyCollectiveRecord]] = {}
    for collective in collectives:
        groups.setdefault((collective.reason, *collective.axes), []).append(collective)
    lines = []
    for number, group in enumerate(sorted(groups.values(), key=_total, reverse=True), 1):
        kinds = Counter(collective.kind for collective in group)
        counted = ", ".join(f"{count} × {kind}" for kind, count in kinds.items())
        over = axes_text(group[0].axes)
        title = _TITLES[group[0].reason].format(over=over)
        lines.append(f"{number}. {title}: {counted}, {_sent(group)} in a call")
        places: dict[tuple[str, str], list[WhyCollectiveRecord]] = {}
        for collective in group:
            place = _without_indices(collective.sentence), _callers(collective)
            places.setdefault(place, []).append(collective)
        ordered = sorted(places.items(), key=lambda place: -_total(place[1]))
        for (sentence, callers), alike in ordered[:_MOST_PLACES]:
            times = f" in {len(alike)} collectives" if len(alike) > 1 else ""
            text = sentence if len({collective.sentence for collective in alike}) > 1 else alike[0].sentence
            lines.append(f"   · {bytes_text(_total(alike))}{times}{callers}: {text}")
        rest = ordered[_MOST_PLACES:]
        if rest:
            where = dict.fromkeys(line_text(c.source) for _, alike in rest for c in alike if c.source)
            count = sum(len(alike) for _, alike in rest)
            names = [place.rpartition("/")[2] for place in list(where)[:6]]
            lines.append(f"   · {count} more at {', '.join(names)}" if names else f"   · {count} more")
        advice = dict.fromkeys(collective.advice for collective in group if collective.advice)
        if len(advice) > 1 and group[0].reason == "whole dimension":
            lines.append("   Shard other dimensions of these values.")
        elif advice:
            lines.append(f"   {next(iter(advice))}")
    return lines


_TITLES = {
    "sum": "Partial sums over {over} are added",
    "disagreement": "Operands are sharded differently over {over}",
    "constraint": "A constraint changes the sharding over {over}",
    "whole dimension": "An operation needs a dimension that {over} shards",
    "unsplit operation": "An operation is not split over {over}",
    "output": "Results are requested in a different sharding over {over}",
    "program": "The program itself requests exchanges over {over}",
    "compiler": "The compiler chose different shardings over {over}",
    "unknown": "No reason was found for exchanges over {over}",
}


def _total(group: Sequence[WhyCollectiveRecord]) -> float:
    """Bytes that one device sends for these collectives, or their payload if nothing was compiled."""
    return sum(c.payload_bytes * (c.executions or 1) if c.sent_bytes is None else c.sent_bytes for c in group)


def _sent(group: Sequence[WhyCollectiveRecord]) -> str:
    least = "at least " if any(collective.executions is None for collective in group) else ""
    return f"{least}{bytes_text(_total(group))} {'of payload' if group[0].sent_bytes is None else 'sent by one device'}"


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes as text: `512 KiB`, `2 MiB, 12 B`, or `1 × 2 MiB, 4 × 512 KiB (4 MiB together)`."""
    counts = Counter(map(bytes_text, sizes))
    if len(sizes) == len(counts) <= 3:
        return ", ".join(counts)
    text = ", ".join(f"{count} × {size}" for size, count in counts.items())
    return f"{text} ({bytes_text(sum(sizes))} together)"


def _without_indices(text: str) -> str:
    """The text with `*` for the numbers in names, so that `layers[3].w` and `layers[4].w` become identical."""
    return re.sub(r"`[^`]*`", lambda name: _INDEX.sub("*", name[0]), text)


def _headline(collective: WhyCollectiveRecord) -> tuple[str, str]:
    executions = collective.executions
    times = "" if executions in (None, 1) else f"{count_text(executions)} × "
    unknown = ", once per iteration of a loop of unknown length" if executions is None else ""
    where = f" at {line_text(collective.source)}{_callers(collective)}" if collective.source else ""
    return f"{times}{collective.kind} over {axes_text(collective.axes)}{unknown}", where


def _callers(collective: WhyCollectiveRecord) -> str:
    """The innermost calls that lead to the collective's function, as text."""
    names = [line_text(caller).rpartition("/")[2] for caller in collective.callers[:_MOST_CALLERS]]
    return f", called at {', '.join(names)}" if names else ""


def _reason_lines(collective: WhyCollectiveRecord, details: bool) -> list[str]:
    lines = [f"   {collective.sentence}"]
    for operand in collective.operands:
        if details or operand.origins or len(collective.operands) <= 3:
            lines += _operand_lines(operand, details)
    return [*lines, f"   {collective.advice}"] if collective.advice else lines


def _operand_lines(operand: WhyOperandRecord, details: bool) -> list[str]:
    axes: dict[str, list[str]] = {}
    for axis, origin in operand.origins.items():
        axes.setdefault(origin, []).append(axis)
    origins = [f"{' and '.join(names)} from {origin}" for origin, names in axes.items()]
    origins_text = f": {', '.join(origins)}" if origins else ": no axis reaches it"
    lines = [f"   · {operand.name} is {spec_text(operand.spec)}{origins_text}"]
    if details:
        lines += [f"       {step}" for chain in operand.chains.values() for step in chain]
    return lines
