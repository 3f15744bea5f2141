"""Finds the callers of helper functions, to name a shared line together with its caller."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workbench.records import cell_name
from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.program import SourceLine
from workbench.render.units import source_text

MOST_LEVELS = 2  # maximum number of named callers


@dataclass(frozen=True, slots=True)
class Call:
    """A line of a function on the call path to an instruction."""

    function: str
    source: SourceLine

    @property
    def text(self) -> str:
        """The function and the line, as in `mlp model.py:16`."""
        return f"{self.function} {source_text(self.source.file, self.source.line)}".strip()


def callers_of(
    tree: CallTreeRecord | None, names: Iterable[str], files: Iterable[str] = ()
) -> dict[str, tuple[Call, ...]]:
    """Returns the calls that lead to each instruction's line, if the line's function has several callers.

    Returns:
        For each instruction, the calls that distinguish its path to the line from other paths, outermost first. The
        line itself comes last. Empty if only one path leads to the line.
    """
    if tree is None:
        return {}
    name_set, raw = set(names), {name: file for file in files if (name := cell_name(file)) is not None}
    paths: dict[str, tuple[float, list[Call]]] = {}
    for node in tree.nodes:
        for name, share in node.instructions.items():
            if name in name_set and share > paths.get(name, (0.0, []))[0]:
                paths[name] = (share, _calls(tree.path(node), raw))
    sites: dict[tuple[str, str], set[Call]] = {}
    for _, calls in paths.values():
        for outer, inner in itertools.pairwise(calls):
            sites.setdefault((inner.source.file, inner.function), set()).add(outer)
    return {name: _distinguishing(calls, sites) for name, (_, calls) in paths.items()}


def _calls(path: Iterable[CallNodeRecord], raw: Mapping[str, str]) -> list[Call]:
    calls: list[Call] = []
    function = ""
    for node in path:
        if node.kind == "function" and not node.hidden:
            function = node.name
        elif node.kind in ("call", "line") and not node.hidden and node.file and node.line:
            call = Call(function, SourceLine(file=raw.get(node.file, node.file), line=node.line))
            calls += [call] * (call not in calls[-1:])  # a line that calls a library occurs twice in the tree
    return calls


def _distinguishing(calls: list[Call], sites: Mapping[tuple[str, str], set[Call]]) -> tuple[Call, ...]:
    first = len(calls) - 1
    while first > 0 and first >= len(calls) - MOST_LEVELS:
        at = calls[first]
        if len(sites.get((at.source.file, at.function), ())) < 2:
            break
        first -= 1
    return tuple(calls[first:]) if first < len(calls) - 1 else ()
