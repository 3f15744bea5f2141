"""Identical layers of a model, shown as one row of the operations view: `12 × blocks_0…11`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.records.call_tree import CallNodeRecord

FEWEST = 3  # minimum number of folded siblings
_NUMBER = re.compile(r"\d+(?!.*\d)")  # the last number in a name


@dataclass(frozen=True, slots=True)
class Layers:
    """Siblings whose names differ only in a number; positions are row numbers in the view."""

    parent: int
    members: tuple[int, ...]
    name: str


def fold_layers(nodes: Sequence[CallNodeRecord], parents: Sequence[int]) -> list[Layers]:
    """Finds modules that contain the same functions and modules and whose names differ only in a number.

    Args:
        nodes: The rows of the view.
        parents: The position of each row's parent; -1 for the root.

    Returns:
        The layers in the order of their first members; groups with fewer than three members are omitted.
    """
    inside: list[set[tuple[str, str]]] = [set() for _ in nodes]
    for node, parent in zip(nodes, parents, strict=True):
        if parent >= 0 and node.kind in ("scope", "function"):
            inside[parent].add((node.kind, _stem(node.name)))
    groups: dict[tuple[object, ...], list[int]] = {}
    for at, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
        if parent >= 0 and node.kind == "scope" and _NUMBER.search(node.name):
            key = (parent, node.pass_name, _stem(node.name), frozenset(inside[at]))
            groups.setdefault(key, []).append(at)
    found = []
    for key, members in groups.items():
        members.sort(key=lambda at: _number(nodes[at].name))
        if len({nodes[at].name for at in members}) == len(members) >= FEWEST:
            found.append(Layers(int(str(key[0])), tuple(members), _name([nodes[at].name for at in members])))
    return found


def _stem(name: str) -> str:
    return _NUMBER.sub("#", name)


def _number(name: str) -> int:
    match = _NUMBER.search(name)
    return int(match[0]) if match else 0


def _name(names: Sequence[str]) -> str:
    """`6 × blocks_0…5`, or `5 × blocks_0, 2…5` if a layer in between is of another kind."""
    numbers = [_number(name) for name in names]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs]
    return f"{len(names)} × {_NUMBER.sub(lambda _: ', '.join(ranges), names[0])}"
