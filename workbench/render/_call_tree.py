"""A call tree as text: work, memory traffic and peak memory for each place in the code."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from workbench.records.call_tree import CallCollectiveRecord, CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.render.units import (
    bytes_text,
    count_text,
    counted_text,
    flops_text,
    seconds_text,
    share_text,
    source_text,
)

_MEASURES: dict[str, tuple[str, Callable[[CallFiguresRecord], float], Callable[[float | None], str]]] = {
    "flops": ("matrix FLOPs", lambda f: f.flops_matmul, flops_text),
    "elementwise": ("elementwise", lambda f: f.flops_elementwise, flops_text),
    "traffic": ("traffic", lambda f: f.traffic_bytes, bytes_text),
    "sent": ("sent", lambda f: f.sent, bytes_text),
    "peak": ("peak memory", lambda f: f.peak_bytes, bytes_text),
    "seconds": ("predicted", lambda f: f.predicted_seconds or 0.0, seconds_text),
    "measured": ("measured", lambda f: max(f.measured_seconds.values(), default=0.0), seconds_text),
}
_WORTH = 0.005  # share of the root's figures below which a node is omitted from the text


@dataclass(frozen=True, slots=True)
class _Row:
    depth: int
    label: str
    figures: CallFiguresRecord
    weight: float


def describe_call_tree(tree: CallTreeRecord) -> str:
    """Summarizes the whole program's cost in one sentence.

    Example:
        >>> work = CallFiguresRecord(flops_matmul=2e6, traffic_bytes=2048.0)
        >>> root = CallNodeRecord(id=0, parent=None, kind="root", name="step", total=work)
        >>> describe_call_tree(CallTreeRecord(made_from="jaxpr", nodes=(root,)))
        'Call tree of step before compilation, all devices together: matrix FLOPs 2 MFLOP, traffic 2 KiB'
    """
    total = tree.root.total
    parts = [f"{title} {write(read(total))}" for title, read, write in _MEASURES.values() if read(total)]
    where = "one device" if tree.made_from == "compiled" else "before compilation, all devices together"
    return f"Call tree of {tree.root.name}{', ' if tree.made_from == 'compiled' else ' '}{where}: " + (
        ", ".join(parts) or "no counted work"
    )


def render_call_tree_text(tree: CallTreeRecord, *, most: int = 24) -> str:
    """The tree as a table of the heaviest functions, lines and modules, with their share of every figure."""
    return "\n".join([describe_call_tree(tree) + ".", *tree_lines(tree, most=most)])


def tree_lines(tree: CallTreeRecord, *, most: int = 24) -> list[str]:
    """The rows of the table and the notes below it."""
    folded = tree.fold(operations=True, layers=True)
    total = folded.root.total
    shown = [key for key, (_, read, _) in _MEASURES.items() if read(total)]
    rows = list(_rows(folded, shown))
    weights = sorted((row.weight for row in rows), reverse=True)[:most]
    least = max(weights[-1] if weights else 0.0, _WORTH)
    chosen = [row for row in rows if row.weight >= least][:most]
    widths = {key: max(len(_MEASURES[key][0]), len("100.0 %")) + 2 for key in shown}
    lines = ["".join(f"{_MEASURES[key][0]:>{widths[key]}}" for key in shown)] if shown else []
    for row in chosen:
        shares = "".join(
            f"{_share(_MEASURES[key][1](row.figures), _MEASURES[key][1](total)):>{widths[key]}}" for key in shown
        )
        lines.append(f"{shares}  {'  ' * row.depth}{row.label}")
    count = len(rows) - len(chosen)
    lines += [f"  … and {counted_text(count, 'smaller node')}"] if count > 0 else []
    return lines


def collective_lines(tree: CallTreeRecord, *, most: int = 16) -> list[str]:
    """One line for each of the `most` places that send the most bytes; a last line counts the remaining places.

    A line has executions, collective, axes, source line and module. Identical layers count as one place.
    """
    tree = tree.fold(hidden=False, passes=False, layers=True)
    groups: dict[tuple, list[CallCollectiveRecord]] = {}
    for node in tree.nodes:
        if node.own.collectives:
            place = _place(tree, node)
            if any(ancestor.kind == "loop" and ancestor.trip_count is None for ancestor in tree.path(node)):
                place += ", counted once: in a loop of unknown length"
            for collective in node.own.collectives:
                groups.setdefault((collective.kind, collective.axes, place), []).append(collective)
    lines = []
    for (kind, axes, place), together in groups.items():
        count, executions = sum(c.count for c in together), sum(c.executions for c in together)
        payload, sent_bytes = sum(c.payload_bytes for c in together), sum(c.sent_bytes for c in together)
        over = " × ".join(axes) if axes else "a group that is not a mesh axis"
        if round(count) and abs(count - round(count)) < 1e-6:
            size = _size_text(payload, executions, together)
            text = f"{count_text(round(executions))} × {kind} over {over}: {size}, {bytes_text(sent_bytes)} sent"
        else:  # combined with other collectives by the compiler
            part = f"parts of combined {kind}s" if count > 1 else f"{_part(count)} of a combined {kind}"
            text = f"{part} over {over}: {bytes_text(payload)}, {bytes_text(sent_bytes)} sent"
        lines.append((sent_bytes, f"  {text}, {place}"))
    lines.sort(key=lambda item: -item[0])
    rest = lines[most:] if len(lines) > most + 1 else []
    shown = [line for _, line in lines[: len(lines) - len(rest)]]
    if rest:
        shown.append(f"  … and {count_text(len(rest))} more places, {bytes_text(sum(a for a, _ in rest))} sent")
    return shown


def _size_text(payload: float, executions: float, together: Sequence[CallCollectiveRecord]) -> str:
    """The size of each of several collectives or, if their sizes differ, their total size."""
    largest = max((c.largest_bytes if c.largest_bytes is not None else math.inf for c in together), default=math.inf)
    if executions == 1 or (executions and bytes_text(largest) == bytes_text(payload / executions)):
        return f"{bytes_text(payload / executions)} each"
    return f"{bytes_text(payload)} in all" + (f", at most {bytes_text(largest)} each" if math.isfinite(largest) else "")


def _part(share: float) -> str:
    return share_text(share, 0) if share >= 0.01 else "less than 1 %"


def node_label(node: CallNodeRecord) -> str:
    if node.kind == "loop":
        return f"{node.name} × {count_text(node.trip_count)}" if node.trip_count is not None else node.name
    if node.kind in ("line", "call") and node.file and node.line is not None:
        return source_text(node.file, node.line)
    return node.name


def _below(tree: CallTreeRecord) -> dict[int, list[CallNodeRecord]]:
    below: dict[int, list[CallNodeRecord]] = {node.id: [] for node in tree.nodes}
    for node in tree.nodes:
        if node.parent is not None:
            below[node.parent].append(node)
    return below


def _rows(tree: CallTreeRecord, shown: list[str]) -> Iterator[_Row]:
    below, total = _below(tree), tree.root.total
    reads = [_MEASURES[key][1] for key in shown]
    wholes = [read(total) for read in reads]
    pending = [(tree.root, 0)]
    while pending:
        node, depth = pending.pop()
        labels = [node_label(node)]
        while len(inner := [child for child in below[node.id] if _weight(child, reads, wholes) > 0]) == 1:
            if not node.own.is_zero:  # its own work would be hidden in the callee's row
                break
            node = inner[0]
            if not (node.kind == "function" and node.name == labels[-1]):
                labels.append(node_label(node))
        yield _Row(depth, " › ".join(labels), node.total, _weight(node, reads, wholes))
        ordered = sorted(inner, key=functools.partial(_weight, reads=reads, wholes=wholes))
        pending += [(child, depth + 1) for child in ordered]


def _weight(node: CallNodeRecord, reads: list[Callable[[CallFiguresRecord], float]], wholes: list[float]) -> float:
    return max((read(node.total) / total for read, total in zip(reads, wholes, strict=True)), default=0.0)


def _share(part: float, total: float) -> str:
    return "·" if part <= 0 else f"{100 * part / total:.1f} %"


def _place(tree: CallTreeRecord, node: CallNodeRecord) -> str:
    """The innermost user line above a node, with its function, module and calling line."""
    function, calls = "", [("", "")]  # function and line of every call, outermost first
    for ancestor in tree.path(node):
        if ancestor.kind == "function" and not ancestor.hidden:
            function = ancestor.name
        elif ancestor.kind in ("line", "call") and not ancestor.hidden and ancestor.file and ancestor.line is not None:
            calls.append((function, source_text(ancestor.file, ancestor.line)))
    inner, place = calls[-1]
    if not place:
        return "at no known line" + (f", in {node.scope}" if node.scope else "")
    caller = next((line for outer, line in reversed(calls[:-1]) if line not in ("", place) and outer != inner), "")
    inside = [part for part in (inner or function, node.scope) if part]
    return place + (f" in {', '.join(inside)}" if inside else "") + (f", called at {caller}" if caller else "")
