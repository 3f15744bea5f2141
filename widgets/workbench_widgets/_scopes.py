"""Instructions as a tree of groups: the stage, the named scopes inside it, the insides of a fusion."""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.records import InstructionRecord, PlanRecord
from workbench_widgets._graph_layout import lay_out_graph

ROOT, LEFT_OUT = -1, -2
OUTSIDE = "outside of every stage"
Scope = tuple[str, ...]  # titles from the outside in

_STAGE = re.compile(r"wb:([\d.]+):(\w+)$")
_STAGE_KIND = re.compile(r"wb:[\d.]+:(\w+)")
_SILENT = frozenset({"closed_call", "body", "shard_map", "jvp()", ""})  # parts of a scope that tell a reader nothing


@dataclass(frozen=True, slots=True)
class Group:
    """A box of the graph; `instruction` is the fusion whose inside it is, or -1."""

    title: str
    kind: str
    parent: int
    instruction: int = -1


@dataclass(frozen=True, slots=True)
class ScopeTree:
    """The groups, and for every node (groups first, then instructions) its parent and its place in there.

    Attributes:
        groups: Every group after the one that it stands in.
        parent: `[nodes]`: a group, `ROOT` or `LEFT_OUT`.
        places: `[nodes, 3]`: column, row and order inside the parent.
        edges: `[edges, 2]`: nodes, of which the first is an operand of the second.
    """

    groups: tuple[Group, ...]
    parent: np.ndarray
    places: np.ndarray
    edges: np.ndarray


def read_scopes(found: Sequence[InstructionRecord], plan: PlanRecord | None = None) -> ScopeTree:
    """The tree of a module, each group laid out by itself.

    What a reduction does with two numbers is left out: the reduction stands for it.
    """
    groups, homes = _grow(found, {stage.path: stage.name for stage in plan.walk()} if plan is not None else {})
    count = len(groups)
    drawn_as = {group.instruction: i for i, group in enumerate(groups) if group.instruction >= 0}
    parent = [group.parent for group in groups]
    parent += [LEFT_OUT if i in drawn_as else home for i, home in enumerate(homes)]
    number = {each.name: i for i, each in enumerate(found) if homes[i] != LEFT_OUT}
    edges = [
        (drawn_as.get(number[operand], count + number[operand]), drawn_as.get(i, count + i))
        for i, each in enumerate(found)
        if homes[i] != LEFT_OUT
        for operand in each.operands
        if operand in number
    ]
    return ScopeTree(tuple(groups), np.array(parent), _places(parent, edges), np.array(edges).reshape(-1, 2))


def kind_of(each: InstructionRecord) -> str:
    """The kind of its stage; older records know it from the scope alone."""
    found = [] if each.kind else _STAGE_KIND.findall(each.op_name)
    return found[-1] if found else each.kind


def _grow(found: Sequence[InstructionRecord], names: Mapping[str, str]) -> tuple[list[Group], list[int]]:
    """The groups in the order of their first instructions, and the group that every instruction stands in."""
    scope_of = functools.cache(lambda path, stage: _scope(path, stage, names))  # few differ
    scopes = {
        i: scope_of(each.op_name.rpartition("/")[0], each.stage) for i, each in enumerate(found) if not each.fused
    }
    known = set(scopes.values())
    below = Counter(scope[:-1] for scope in {s[:depth] for s in known for depth in range(1, len(s) + 1)})
    groups: list[Group] = []
    place: dict[Scope | int, int] = {(): ROOT}  # a scope or a fusion -> its group

    def group_of(scope: Scope, kind: str) -> int:
        """The group of a scope; a scope that holds nothing but one other is joined with that one."""
        if scope not in place:
            start = len(scope) - 1
            while start and below[scope[:start]] == 1 and scope[:start] not in known:
                start -= 1
            parent = group_of(scope[:start], kind)
            groups.append(Group(" / ".join(scope[start:]), kind, parent))
            place[scope] = len(groups) - 1
        return place[scope]

    owner = {called: i for i, each in enumerate(found) for called in each.calls}

    def home_of(index: int) -> int:
        each = found[index]
        if not each.fused:
            return group_of(scopes[index], kind_of(each))
        caller = owner.get(each.computation)
        if caller is None or found[caller].opcode != "fusion":
            return LEFT_OUT
        if caller not in place:
            parent = home_of(caller)
            if parent == LEFT_OUT:
                return LEFT_OUT
            groups.append(Group(found[caller].name, kind_of(found[caller]), parent, caller))
            place[caller] = len(groups) - 1
        return place[caller]

    # What is not fused first, so that stages come in the order in which they run.
    order = sorted(range(len(found)), key=lambda i: (found[i].fused, _stage_order(found[i].stage)))
    homes = [LEFT_OUT] * len(found)
    for index in order:
        homes[index] = home_of(index)
    return groups, homes


def _scope(path: str, stage: str | None, names: Mapping[str, str]) -> Scope:
    parts = path.split("/")
    last = max((i for i, part in enumerate(parts) if _STAGE.search(part)), default=-1)
    inner = [part for part in parts[last + 1 :] if part not in _SILENT and not part.startswith("jit(")]
    numbers = [] if stage is None else stage.split(".")
    chain = [".".join(numbers[: depth + 1]) for depth in range(len(numbers))]
    titles = [f"stage {each} · {names[each]}" if each in names else f"stage {each}" for each in chain]
    return (*(titles or [OUTSIDE]), *inner)


@functools.cache
def _stage_order(stage: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in stage.split(".") if part.isdigit()) if stage else ()


def _places(parent: Sequence[int], edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Every group's nodes in layers, by the edges between them or between what they hold."""
    members: dict[int, list[int]] = {}
    for node, group in enumerate(parent):
        if group != LEFT_OUT:
            members.setdefault(group, []).append(node)
    above = [_chain(node, parent) for node in range(len(parent))]
    between: dict[int, set[tuple[int, int]]] = {}
    for a, b in edges:
        first, second = above[a], above[b]
        depth = next((d for d, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), None)
        if depth is not None:
            between.setdefault(first[depth - 1] if depth else ROOT, set()).add((first[depth], second[depth]))
    places = np.zeros((len(parent), 3))
    for group, nodes in members.items():
        local = {node: i for i, node in enumerate(nodes)}
        inside = [(local[a], local[b]) for a, b in sorted(between.get(group, ()))]
        places[nodes] = lay_out_graph(len(nodes), inside)
    return places


def _chain(node: int, parent: Sequence[int]) -> tuple[int, ...]:
    """A node and the groups that it stands in, from the outside in."""
    chain = []
    while node >= 0:
        chain.append(node)
        node = parent[node]
    return tuple(reversed(chain))
