"""Why a program communicates, in words."""

import itertools

from workbench.records import WhyCollectiveRecord, WhyOperandRecord, WhyRecord
from workbench.render._program import axes_text
from workbench.render._sharding import spec_text
from workbench.render._svg import bytes_text, count_text, line_text


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
    reasons = itertools.groupby(record.collectives, key=lambda found: (_headline(found), _reason_lines(found, details)))
    for ((what, where), reason), alike in reasons:  # neighbours with the same reason: it is said once
        payloads = [bytes_text(found.payload_bytes) for found in alike]
        numbers = f"{number}." if len(payloads) == 1 else f"{number}–{number + len(payloads) - 1}."
        lines += [f"{numbers} {what}, {', '.join(payloads)} per device{where}", *reason]
        number += len(payloads)
    if not record.collectives:
        lines.append("  no collectives")
    if record.arrays:
        lines.append("Replicated and large")
    for array in record.arrays:
        lines.append(f"  {array.name}: {bytes_text(array.size_bytes)}, {count_text(array.copies)} copies.")
        lines.append(f"    {array.sentence}")
    return "\n".join([*lines, *(f"Note: {note}" for note in record.notes)])


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
