"""Why a program communicates, in words."""

import re
from collections import Counter
from collections.abc import Sequence

from workbench.records import WhyCollectiveRecord, WhyOperandRecord, WhyRecord
from workbench.render._program import axes_text
from workbench.render._sharding import spec_text
from workbench.render._svg import bytes_text, count_text, line_text

_INDEX = re.compile(r"(?<=[\[._])\d+(?=[\]._'`])")  # of a layer: `layers[3].w`, `params['Dense_1']`, and not `w1`


def render_why_text(record: WhyRecord, *, details: bool = False) -> str:
    """Every collective with its reason, then the replicated arrays; with `details` the steps of every axis.

    Example:
        >>> print(render_why_text(WhyRecord(name="f", target="cpu x 1")))
        f on cpu x 1: no collectives, no large replicated arrays.
    """
    if not record.collectives and not record.arrays:
        text = f"{record.name} on {record.target}: no collectives, no large replicated arrays."
        return "\n".join([text, *(f"Note: {note}" for note in record.notes)])
    lines = [f"Why {record.name} communicates on {record.target}"]
    number = 1
    groups: dict[tuple[object, ...], list[WhyCollectiveRecord]] = {}
    for found in record.collectives:  # those of equal layers have one reason
        groups.setdefault((_headline(found), _without_indices(found.sentence)), []).append(found)
    ordered = sorted(
        groups.values(), key=lambda group: -sum(each.payload_bytes * (each.executions or 1) for each in group)
    )
    for group in ordered:
        (what, where), reason = _headline(group[0]), _reason_lines(group[0], details)
        if len({found.sentence for found in group}) > 1:
            reason = [_without_indices(line) for line in reason]
        numbers = f"{number}." if len(group) == 1 else f"{number}–{number + len(group) - 1}."
        lines += [f"{numbers} {what}, {_payloads(group)} per device{where}", *reason]
        number += len(group)
    if not record.collectives:
        lines.append("  no collectives")
    if record.arrays:
        lines.append("Replicated and large")
    for array in record.arrays:
        lines.append(f"  {array.name}: {bytes_text(array.size_bytes)}, {count_text(array.copies)} copies.")
        lines.append(f"    {array.sentence}")
    return "\n".join([*lines, *(f"Note: {note}" for note in record.notes)])


def _payloads(group: Sequence[WhyCollectiveRecord]) -> str:
    sizes = Counter(bytes_text(found.payload_bytes) for found in group)
    if len(group) <= 3:
        return ", ".join(bytes_text(found.payload_bytes) for found in group)
    total = sum(found.payload_bytes for found in group)
    return f"{', '.join(f'{count} of {size}' for size, count in sizes.items())} (together {bytes_text(total)})"


def _without_indices(text: str) -> str:
    """The text with `*` for the numbers in names: `layers[3].w` and `layers[4].w` are alike."""
    return re.sub(r"`[^`]*`", lambda name: _INDEX.sub("*", name[0]), text)


def _headline(found: WhyCollectiveRecord) -> tuple[str, str]:
    times = "" if found.executions is None else f"{count_text(found.executions)} × "
    where = f" at {line_text(found.source)}" if found.source else ""
    return f"{times}{found.kind} over {axes_text(found.axes)}", where


def _reason_lines(found: WhyCollectiveRecord, details: bool) -> list[str]:
    lines = [f"   {found.sentence}"]
    for operand in found.operands:
        if details or operand.origins or len(found.operands) <= 3:
            lines += _operand_lines(operand, details)
    return [*lines, f"   {found.advice}"] if found.advice else lines


def _operand_lines(operand: WhyOperandRecord, details: bool) -> list[str]:
    origins = [f"{axis} from {origin}" for axis, origin in operand.origins.items()]
    said = f": {', '.join(origins)}" if origins else ": no axis reaches it"
    lines = [f"   · {operand.name} is {spec_text(operand.spec)}{said}"]
    if details:
        lines += [f"       {step}" for chain in operand.chains.values() for step in chain]
    return lines
