"""Merges two call trees: every function, module and line, with its figures in both programs."""

from collections.abc import Sequence

from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.render.units import source_text
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._operations import KINDS, figures_of, shown_nodes
from workbench_widgets._source import read_lines
from workbench_widgets.states import ComparedFigure, ComparedTreeState

Key = tuple[str, str, str]
_PASSES = {"transpose": "backward", "remat": "recomputed"}


def compare_tree_state(trees: Sequence[CallTreeRecord]) -> tuple[ComparedTreeState, Arrays]:
    """Merges the first and the last tree: nodes match if their parents match and their names are identical.

    Lines are matched by their code, since an edit above a line changes the line's number. Nodes with identical names
    are matched in order.

    Returns:
        Names, places and kinds of the merged nodes, and two columns for each figure that is nonzero in some node, with
        NaN where a program lacks the node.
    """
    sides = [shown_nodes(tree) for tree in (*trees[:1], *trees[-1:])]
    parents: list[int] = []
    shown: list[CallNodeRecord] = []
    pairs: list[list[CallFiguresRecord | None]] = []
    below: dict[tuple[int, Key, int], int] = {}
    for side, (nodes, above) in enumerate(sides):
        number: list[int] = []
        counts: dict[tuple[int, Key], int] = {}
        for node, parent in zip(nodes, above, strict=True):
            at = -1 if parent < 0 else number[parent]
            key = _key(node)
            occurrence = counts[at, key] = counts.get((at, key), -1) + 1
            merged = below.get((at, key, occurrence))
            if merged is None and side and node.kind == "function":  # the only function on a level may be renamed
                here = _functions_below(shown, parents, at)
                alone = len(here) == len(_functions_below(nodes, above, parent)) == 1
                merged = here[0] if alone and pairs[here[0]][1] is None else None
            if merged is None:
                merged = below[at, key, occurrence] = len(parents)
                parents.append(at)
                shown.append(node)
                pairs.append([None, None])
            shown[merged] = node  # the name in the last program, if it is there
            pairs[merged][side] = node.total
            number.append(merged)
    columns: list[ComparedFigure] = []
    arrays: Arrays = {"tree.parent": floats(parents), "tree.kind": floats([KINDS.index(node.kind) for node in shown])}
    totals = [figure for pair in pairs for figure in pair if figure is not None]
    for key, title, unit, value in figures_of(totals):
        if not any(value(total) for total in totals):
            continue
        columns.append({"key": key, "title": title, "unit": unit})
        for side, name in enumerate("ab"):
            figures = [None if pair[side] is None else value(pair[side]) for pair in pairs]
            arrays[f"tree.{key}.{name}"] = floats(figures)
    state: ComparedTreeState = {
        "tree_names": [_name(node, parent, shown) for node, parent in zip(shown, parents, strict=True)],
        "tree_places": [source_text(node.file, node.line) if node.file and node.line else "" for node in shown],
        "kinds": list(KINDS),
        "tree_columns": columns,
        "counted": "jaxpr" if trees and trees[0].made_from == "jaxpr" else "compiled",
    }
    return state, arrays


def _functions_below(nodes: Sequence[CallNodeRecord], parents: Sequence[int], at: int) -> list[int]:
    return [i for i, parent in enumerate(parents) if parent == at and nodes[i].kind == "function"]


def _name(node: CallNodeRecord, parent: int, shown: Sequence[CallNodeRecord]) -> str:
    """Name of a node; marks the node where the backward pass starts."""
    begins = node.pass_name in _PASSES and (parent < 0 or shown[parent].pass_name != node.pass_name)
    return f"{node.name} ({_PASSES[node.pass_name]})" if begins else node.name


def _key(node: CallNodeRecord) -> Key:
    """Key that identifies a node among its siblings."""
    name = node.name
    if node.kind in ("root", "function"):
        name = node.kind if node.kind == "root" else node.name.rpartition(".")[2]
    elif node.kind in ("call", "line") and node.file and node.line:
        code = read_lines(node.file, node.line, 0)
        name = code[0][1].strip() if code else node.name
    return (node.kind, name, node.pass_name)
