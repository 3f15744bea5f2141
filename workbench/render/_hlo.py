"""A compiled module as one picture: its collectives, its stages' work, and memory over its schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord
from workbench.render._charts import render_schedule_memory_svg
from workbench.render._svg import Markup, element, group, join, text
from workbench.render._theme import picture
from workbench.render.units import axes_text, bytes_text, count_text, counted_text, source_text, work_text

MOST_COLLECTIVES, MOST_STAGES = 8, 12
_MARGIN, _ROW, _HEAD = 18.0, 22.0, 34.0
_NAMES, _WORDS = 190.0, 330.0  # pixels for the text left and right of a bar


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    value: float
    words: str
    hue: str


def render_hlo_svg(module: ModuleRecord, *, width: float = 880.0, dark: bool | None = None) -> Markup:
    """Draws the largest collectives with their source lines, the largest stages, and memory over the schedule."""
    parts: list[Markup] = []
    y = _MARGIN
    sections = (
        ("Collectives, by the bytes that one device sends in one call", _collectives(module.collectives)),
        ("Stages, by the matrix FLOPs of one device in one call", _stages(module.instructions)),
    )
    for title, rows in sections:
        if rows:
            parts.append(_bars(title, rows, y, width))
            y += _HEAD + _ROW * len(rows) + 10
    memory = render_schedule_memory_svg(module.memory, width=width - 2 * _MARGIN, live=True)
    if memory:
        parts.append(text(_MARGIN, y + 14, "Memory of one device over the schedule", size=12, class_=_TITLE))
        parts.append(group(memory, transform=f"translate({_MARGIN} {y + 22})"))
        y += 22 + 190
    return picture(width, y + _MARGIN, *parts, label=describe_hlo(module), dark=dark)


_TITLE = "wb-fill-fg wb-strong"


def describe_hlo(module: ModuleRecord) -> str:
    """Summarizes a module in one sentence: its size, and the largest collective with its source line.

    Example:
        >>> from workbench.records.compiled import MemoryRecord
        >>> empty = ModuleRecord(
        ...     name="jit_f", platform="cpu", devices=1, instructions=(), collectives=(), flops=0.0,
        ...     accessed_bytes=0.0, memory=MemoryRecord(), attributed_instructions=1.0, attributed_flops=1.0,
        ...     attributed_bytes=1.0)
        >>> describe_hlo(empty)
        'jit_f on 1 cpu device: 0 instructions, no collectives'
    """
    devices = counted_text(module.devices, f"{module.platform} device")
    summary = f"{module.name} on {devices}: {count_text(len(module.instructions))} instructions, "
    if not module.collectives:
        return summary + "no collectives"
    first = max(module.collectives, key=lambda collective: collective.sent_bytes)
    where = f", from {source_text(first.sources[0].file, first.sources[0].line)}" if first.sources else ""
    return (
        f"{summary}{counted_text(len(module.collectives), 'collective')}; the largest, {first.name}, is "
        f"{first.kind} over {axes_text(first.axes)} of {bytes_text(first.payload_bytes)} per device{where}"
    )


def _collectives(collectives: Sequence[CollectiveRecord]) -> list[_Row]:
    ranked = sorted(collectives, key=lambda collective: collective.sent_bytes, reverse=True)
    rows = []
    for collective in ranked[:MOST_COLLECTIVES]:
        where = (
            source_text(collective.sources[0].file, collective.sources[0].line)
            if collective.sources
            else "line not known"
        )
        times = "" if collective.executions in (None, 1.0) else f" × {count_text(collective.executions)}"
        words = f"{bytes_text(collective.payload_bytes)}{times} over {axes_text(collective.axes)} · {where}"
        rows.append(_Row(collective.name, collective.sent_bytes, words, "collective"))
    return rows


def _stages(instructions: Sequence[InstructionRecord]) -> list[_Row]:
    flops: dict[str, float] = {}
    elementwise: dict[str, float] = {}
    counts: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for instruction in instructions:
        for part in instruction.by_stage():
            stage = part.stage or ""
            flops[stage] = flops.get(stage, 0.0) + part.flops * (instruction.executions or 1.0)
            more = part.elementwise_flops * (instruction.executions or 1.0)
            elementwise[stage] = elementwise.get(stage, 0.0) + more
            kinds.setdefault(stage, part.kind or "server")
        counts[instruction.stage or ""] = counts.get(instruction.stage or "", 0) + 1
    ranked = sorted(flops, key=lambda stage: -flops[stage])[:MOST_STAGES]
    return [
        _Row(
            f"stage {stage} {kinds[stage]}" if stage else "no stage",
            flops[stage],
            f"{work_text(flops[stage], elementwise[stage])}, {count_text(counts.get(stage, 0))} instructions",
            kinds[stage] if stage else "server",
        )
        for stage in sorted(ranked, key=lambda path: [int(part) for part in path.split(".") if part.isdigit()])
    ]


def _bars(title: str, rows: Sequence[_Row], top: float, width: float) -> Markup:
    longest = max((row.value for row in rows), default=0.0) or 1.0
    room = width - 2 * _MARGIN - _NAMES - _WORDS
    drawn = [text(_MARGIN, top + 14, title, size=12, class_=_TITLE)]
    for index, row in enumerate(rows):
        y = top + _HEAD + index * _ROW
        long = max(2.0, room * row.value / longest)
        drawn += [
            text(_MARGIN, y + 4, row.name, fit=_NAMES - 12, size=11.5, class_="wb-fill-fg"),
            element("rect", x=_MARGIN + _NAMES, y=y - 7, width=long, height=14, rx=3, class_=f"wb-fill-{row.hue}"),
            text(_MARGIN + _NAMES + long + 10, y + 4, row.words, fit=_WORDS + room - long - 10, size=11.5,
                 class_="wb-fill-muted"),
        ]  # fmt: skip
    return join(drawn)
