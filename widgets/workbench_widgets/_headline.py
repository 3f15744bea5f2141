"""Headline of a program: its largest communication (with source line), its memory, whether it fits, and its time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CollectiveRecord, ProgramRecord
from workbench.records.program import SourceLine
from workbench.records.run import RunRecord
from workbench.render.units import axes_text, bytes_text, count_text, flops_text, seconds_text, source_text, work_text
from workbench_widgets._callers import Call, callers_of
from workbench_widgets.states import FigureSelection, HeadlineFigure, Look


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Collectives of one kind over the same mesh axes, from the same first line and calls, counted together."""

    kind: str
    axes: tuple[str, ...]
    sources: tuple[SourceLine, ...]
    members: tuple[CollectiveRecord, ...]
    calls: tuple[Call, ...] = ()  # calls that lead to the line, if there are several

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        """The line of the outermost call that distinguishes this group, followed by the lines of the collectives."""
        return tuple(dict.fromkeys((*(call.source for call in self.calls[:1]), *self.sources)))

    @property
    def count(self) -> str:
        """Number and size of the collectives, in words: `12 all-reduces of 8 MiB each`."""
        runs = self.executions
        sizes = sorted({member.payload_bytes for member in self.members})
        if runs is None:
            return f"{self.kind} of {bytes_text(sizes[-1])} in a loop of unknown length"
        if runs <= 1:
            return f"1 {self.kind} of {bytes_text(sizes[0])}"
        size = f"{bytes_text(sizes[0])} each" if len(sizes) == 1 else f"≤ {bytes_text(sizes[-1])}"
        return f"{count_text(runs)} {self.kind}s of {size}"

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sends, summed over all executions."""
        return sum(member.sent_bytes for member in self.members)

    @property
    def executions(self) -> float | None:
        """Executions per call; None inside a loop of unknown length."""
        counts = [member.executions for member in self.members]
        return None if None in counts else float(sum(count or 0 for count in counts))

    @property
    def places(self) -> str:
        """The first line (or the call that leads to it, if the line is shared) and the number of additional lines."""
        if not self.sources:
            return "line not known"
        first = source_text(self.sources[0].file, self.sources[0].line)
        if self.calls:
            call = self.calls[0].source
            first = " › ".join([source_text(call.file, call.line), *(inner.function for inner in self.calls[1:])])
        return first if len(self.sources) == 1 else f"{first} +{len(self.sources) - 1}"


def group_collectives(
    collectives: Sequence[CollectiveRecord], tree: CallTreeRecord | None = None
) -> list[CollectiveGroup]:
    """Groups collectives by kind, mesh axes and source line; for shared lines, also by their calls. Largest first."""
    files = {source.file for collective in collectives for source in collective.sources}
    callers = callers_of(tree, (collective.name for collective in collectives), files)
    groups: dict[Any, list[CollectiveRecord]] = {}
    for collective in collectives:
        line = tuple((s.file, s.line) for s in collective.sources[:1])  # a combined collective has several lines
        groups.setdefault((collective.kind, collective.axes, line, callers.get(collective.name, ())), []).append(
            collective
        )
    collective_groups = [
        CollectiveGroup(k[0], k[1], _lines(members), members, k[3])
        for k, unsorted in groups.items()
        for members in [tuple(sorted(unsorted, key=lambda m: -m.sent_bytes))]
    ]
    return sorted(collective_groups, key=lambda group: -group.sent_bytes)


def _lines(members: Sequence[CollectiveRecord]) -> tuple[SourceLine, ...]:
    """One source per line, in the order of the members."""
    lines: dict[tuple[str, int], SourceLine] = {}
    for source in (source for member in members for source in member.sources):
        lines.setdefault((source.file, source.line), source)
    return tuple(lines.values())


def headline(record: ProgramRecord, views: Sequence[str] = (), run: RunRecord | None = None) -> list[HeadlineFigure]:
    """Short figures, each with the view that explains it; the time of a measured run comes first."""
    figures = [*_measured(run), *_communication(record), *_memory(record), *_work(record)]
    for figure in figures:
        figure["view"] = figure["view"] if figure["view"] in views else None
    return figures


def figure(
    text: str, help: str, view: str, look: Look = "plain", select: FigureSelection | None = None
) -> HeadlineFigure:
    return {"text": text, "help": help, "view": view, "look": look, "select": select}


def _measured(run: RunRecord | None) -> list[HeadlineFigure]:
    if run is None or not run.seconds:
        return []
    call_seconds = run.seconds / max(run.rounds, 1)
    tip = f"Mean wall time of {count_text(run.rounds)} measured calls on the engine {run.engine}, excluding warm-up."
    return [figure(f"{seconds_text(call_seconds)} per call, measured", tip, "timeline", "strong")]


def _communication(record: ProgramRecord) -> list[HeadlineFigure]:
    if record.mesh is not None and record.mesh.abstract and record.module is None:
        return [figure("planned, not compiled", "The mesh has no devices, so the figures come from the plan.", "mesh")]
    if record.module is None:
        return []
    groups = group_collectives(record.module.collectives, record.call_tree)
    if not groups:
        return [figure("no collectives", "The devices do not communicate.", "hlo")]
    first, total = groups[0], sum(group.sent_bytes for group in groups)
    least = "at least " if any(group.executions is None for group in groups) else ""
    size, most = bytes_text(first.sent_bytes), bytes_text(total)
    of = f" of {most}" if most != size else ""
    text = f"{first.count} over {axes_text(first.axes)}: {least}{size}{of} sent, {first.places}"
    line = next((f"{source.file}:{source.line}" for source in first.lines), None)
    tip = (
        "The largest collectives, with their bytes and source lines. The total counts the bytes that one device sends "
        f"per call for all {count_text(len(record.module.collectives))} collectives."
    )
    return [figure(text, tip, "hlo", "strong", {"instruction": first.members[0].name, "line": line})]


def _memory(record: ProgramRecord) -> list[HeadlineFigure]:
    memory = record.module.memory if record.module is not None else None
    if memory is None or memory.peak_bytes is None:
        return []
    peak = f"{bytes_text(memory.peak_bytes)} per device"
    chip = record.cost.chip if record.cost is not None else None
    memory = memory.within(chip)
    has = memory.available_bytes
    name = f" {chip.name}" if chip is not None else ""
    if has is None:
        return [figure(f"{peak} at the peak", "Memory of one device, as planned by the compiler.", "memory")]
    fits = memory.peak_bytes is not None and memory.peak_bytes <= has if memory.fits is None else memory.fits
    text = f"{peak} · fits{name}" if fits else f"{peak}: does not fit{name} ({bytes_text(has)})"
    return [figure(text, f"Peak memory, out of {bytes_text(has)} on a device.", "memory", "good" if fits else "bad")]


def _work(record: ProgramRecord) -> list[HeadlineFigure]:
    if record.cost is not None and record.cost.seconds is not None:
        on = f" on {record.cost.chip.name}" if record.cost.chip is not None else ""
        text = f"{seconds_text(record.cost.seconds)} per call{on}"
        return [figure(f"{text}, predicted", f"Predicted for the compiled schedule: {record.cost.error_bar}.", "cost")]
    text = work_per_device(record)
    return (
        [figure(sum_per_device(record), f"Counted in the compiled module, for one call: {text}.", "operations")]
        if text
        else []
    )


def sum_per_device(record: ProgramRecord) -> str:
    """FLOPs of one device in one call: the sum of matrix products and elementwise operations.

    A loop of unknown length makes the sum a lower bound; if one kind of FLOPs is unknown, the kinds are listed
    separately.
    """
    text, module, tree = work_per_device(record), record.module, record.call_tree
    if text.startswith("at least") and tree is not None:
        return f"at least {flops_text(tree.root.total.flops)} per device"
    if module is None or module.flops is None or module.elementwise_flops is None:
        return text
    return f"{flops_text(module.flops + module.elementwise_flops)} per device"


def work_per_device(record: ProgramRecord) -> str:
    """FLOPs of one device in one call; a lower bound if a loop's length is unknown."""
    module, tree = record.module, record.call_tree
    if module is None:
        return ""
    if (module.flops is None or module.elementwise_flops is None) and tree is not None and tree.root.at_least:
        total = tree.root.total
        work = work_text(total.flops_matmul, total.flops_elementwise)
        return f"at least {work} per device, counting a loop of unknown length once"
    return f"{work_text(module.flops, module.elementwise_flops)} per device"
