"""What matters first of a program: its largest communication and the line it is from, memory, fit, time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.records import CollectiveRecord, ProgramRecord, SourceLine
from workbench.render import (
    axes_text,
    bytes_text,
    count_text,
    seconds_text,
    source_text,
    work_text,
)


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Collectives of one kind, over the same mesh axes, from the same lines: what a reader counts as one."""

    kind: str
    axes: tuple[str, ...]
    sources: tuple[SourceLine, ...]
    members: tuple[CollectiveRecord, ...]

    @property
    def payload_bytes(self) -> float:
        """What one device puts in, all executions together."""
        return sum(each.payload_bytes * (each.executions or 1) for each in self.members)

    @property
    def sent_bytes(self) -> float:
        """What one device sends, all executions together."""
        return sum(sent_by(each) for each in self.members)

    @property
    def executions(self) -> float | None:
        """In one call; None where a loop of unknown length holds one."""
        known = [each.executions for each in self.members]
        return None if None in known else float(sum(each or 0 for each in known))

    @property
    def places(self) -> str:
        """The first line, and how many others there are."""
        if not self.sources:
            return "line not known"
        first = source_text(self.sources[0].file, self.sources[0].line)
        return first if len(self.sources) == 1 else f"{first} +{len(self.sources) - 1}"


def sent_by(each: CollectiveRecord) -> float:
    """Bytes that one device sends for a collective in one call."""
    return (each.payload_bytes if each.wire_bytes is None else each.wire_bytes) * (each.executions or 1)


def group_collectives(collectives: Sequence[CollectiveRecord]) -> list[CollectiveGroup]:
    """By kind, mesh axes and lines; those that send most first."""
    groups: dict[Any, list[CollectiveRecord]] = {}
    for each in collectives:
        groups.setdefault((each.kind, each.axes, tuple((s.file, s.line) for s in each.sources)), []).append(each)
    made = [CollectiveGroup(k[0], k[1], members[0].sources, tuple(members)) for k, members in groups.items()]
    return sorted(made, key=lambda group: -group.sent_bytes)


def headline(record: ProgramRecord, views: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Short figures, each with the view that explains it."""
    found = [*_communication(record), *_memory(record), *_work(record)]
    return [{**each, "view": each["view"] if each["view"] in views else None} for each in found]


def _figure(text: str, help: str, view: str, look: str = "plain", **select: object) -> dict[str, Any]:
    return {"text": text, "help": help, "view": view, "look": look, "select": select or None}


def _communication(record: ProgramRecord) -> list[dict[str, Any]]:
    if record.mesh is not None and record.mesh.abstract and record.module is None:
        return [_figure("planned, not compiled", "The mesh has no devices behind it: figures are the plan's.", "mesh")]
    if record.module is None:
        return []
    groups = group_collectives(record.module.collectives)
    if not groups:
        return [_figure("no collectives", "The devices do not communicate.", "hlo")]
    first, total = groups[0], sum(group.sent_bytes for group in groups)
    count = f"{len(first.members)} {first.kind}s" if len(first.members) > 1 else f"1 {first.kind}"
    runs = first.executions
    often = f" in {count_text(runs)} executions" if runs and runs > len(first.members) else ""
    text = f"{count} of {bytes_text(first.payload_bytes)}{often} over {axes_text(first.axes)}, {first.places}"
    line = next((f"{source.file}:{source.line}" for source in first.sources), None)
    tip = "The communication that sends most: payload of one device in one call, and the line that asks for it."
    made = [_figure(text, tip, "hlo", "strong", instruction=next(each.name for each in first.members), line=line)]
    if len(groups) > 1:
        count = count_text(len(record.module.collectives))
        text = f"{bytes_text(total)} sent per device, {count} collectives"
        made.append(_figure(text, "All collectives of one call together.", "hlo"))
    return made


def _memory(record: ProgramRecord) -> list[dict[str, Any]]:
    memory = record.module.memory if record.module is not None else None
    if memory is None or memory.peak_bytes is None:
        return []
    peak = f"{bytes_text(memory.peak_bytes)} per device"
    has = memory.available_bytes
    chip = record.cost.chip if record.cost is not None else None
    if has is None and chip is not None:
        has = chip.hbm_bytes
    name = f" {chip.name}" if chip is not None else ""
    if has is None:
        return [_figure(f"{peak} at the peak", "Memory of one device, as the compiler planned it.", "memory")]
    fits = memory.peak_bytes <= has if memory.fits is None else memory.fits
    text = f"{peak} · fits{name}" if fits else f"{peak}: does not fit{name} ({bytes_text(has)})"
    return [
        _figure(text, f"Peak of memory, of {bytes_text(has)} that a device has.", "memory", "good" if fits else "bad")
    ]


def _work(record: ProgramRecord) -> list[dict[str, Any]]:
    if record.cost is not None and record.cost.seconds is not None:
        on = f" on {record.cost.chip.name}" if record.cost.chip is not None else ""
        text = f"{seconds_text(record.cost.seconds)} per call{on}"
        return [
            _figure(
                f"{text}, predicted",
                "Roofline estimate of stages, no overlap of communication; operations added up take at least as long.",
                "cost",
            )
        ]
    if record.module is not None and record.module.flops is not None:
        text = f"{work_text(record.module.flops, record.module.elementwise_flops)} per device"
        return [_figure(text, "One call, counted in the module.", "cost")]
    return []
