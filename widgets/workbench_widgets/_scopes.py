"""Instructions as a tree of groups (by stage and scope, or by call tree), with fusions expanded."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import InstructionRecord
from workbench.records.program import PlanRecord
from workbench_widgets._operations import visible_nodes

ROOT, LEFT_OUT = -1, -2
OUTSIDE = "outside of every stage"
Scope = tuple[str, ...]  # titles, outermost first

_STAGE = re.compile(r"wb:([\d.]+):(\w+)$")
_STAGE_KIND = re.compile(r"wb:[\d.]+:(\w+)")
_SILENT = frozenset({"closed_call", "body", "shard_map", "jvp()", ""})  # parts of a scope that carry no information


@dataclass(frozen=True, slots=True)
class ScopeBox:
    """A box of the graph.

    Attributes:
        instruction: The fusion that the group represents, or -1.
        node: The node of the call tree, numbered as in the operations view, or -1.
        key: `file:line` of that tree node, or "".
    """

    title: str
    kind: str
    parent: int
    instruction: int = -1
    node: int = -1
    key: str = ""


@dataclass(frozen=True, slots=True)
class GroupTree:
    """The groups, and the parent of every node (groups first, then instructions).

    Attributes:
        groups: The groups; parents precede children.
        parent: A group, `ROOT` or `LEFT_OUT` for each node, `[nodes]`. A fusion that has a group is omitted, because
            the group shows it.
    """

    groups: tuple[ScopeBox, ...]
    parent: np.ndarray


def read_edges(instructions: Sequence[InstructionRecord]) -> np.ndarray:
    """`[edges, 2]`: pairs of instructions; the first is an operand of the second."""
    number = {instruction.name: i for i, instruction in enumerate(instructions)}
    edges = [
        (number[name], i)
        for i, instruction in enumerate(instructions)
        for name in instruction.operands
        if name in number
    ]
    return np.array(edges).reshape(-1, 2)


def read_scopes(instructions: Sequence[InstructionRecord], plan: PlanRecord | None = None) -> GroupTree:
    """Stages, and the named scopes inside them.

    The scalar computation of a reduction is omitted, because the reduction represents it.
    """
    names = {stage.path: stage.name for stage in plan.walk()} if plan is not None else {}
    scope_of = functools.cache(lambda path, stage: _scope(path, stage, names))  # few differ
    scopes = {
        i: scope_of(instruction.op_name.rpartition("/")[0], instruction.stage)
        for i, instruction in enumerate(instructions)
        if not instruction.fused
    }
    scope_set = set(scopes.values())
    below = Counter(scope[:-1] for scope in {s[:depth] for s in scope_set for depth in range(1, len(s) + 1)})
    groups: list[ScopeBox] = []
    place: dict[Scope, int] = {(): ROOT}

    def group_of(scope: Scope, kind: str) -> int:
        """The group of a scope; a scope that contains only one other scope is merged with it."""
        missing: list[tuple[Scope, int]] = []  # innermost first; iterative, because hostile text may nest without end
        while scope not in place:
            start = len(scope) - 1
            while start and below[scope[:start]] == 1 and scope[:start] not in scope_set:
                start -= 1
            missing.append((scope, start))
            scope = scope[:start]
        for inner, start in reversed(missing):
            groups.append(ScopeBox(" / ".join(inner[start:]), kind, place[inner[:start]]))
            place[inner] = len(groups) - 1
        return place[missing[0][0]] if missing else place[scope]

    return _grow(instructions, groups, lambda i: group_of(scopes[i], kind_of(instructions[i])))


def read_call_groups(instructions: Sequence[InstructionRecord], tree: CallTreeRecord) -> GroupTree:
    """Functions, modules and lines: the nodes of the call tree that the operations view shows.

    An instruction that comes from several lines is in the group of the line with the largest share.
    """
    nodes, parents, keys = visible_nodes(tree, {i.source.file for i in instructions if i.source is not None})
    holder: dict[str, tuple[float, int]] = {}
    for at, node in enumerate(nodes):
        for name, share in node.instructions.items():
            if share > holder.get(name, (0.0, 0))[0]:
                holder[name] = (share, at)
    counts = Counter(at for _, at in holder.values())
    groups: list[ScopeBox] = []
    place: dict[int, int] = {-1: ROOT}

    def group_of(at: int) -> int:
        """The group of a tree node; the root and single-instruction operations have no separate group."""
        if at not in place:
            node = nodes[at]
            single = at == 0 or (node.kind == "operation" and counts[at] <= 1)
            if single:
                place[at] = group_of(parents[at])
            else:
                parent = group_of(parents[at])
                title = f"{node.name} (backward)" if node.pass_name == "transpose" else node.name
                groups.append(ScopeBox(title, "", parent, node=at, key=keys[at]))
                place[at] = len(groups) - 1
        return place[at]

    homes: dict[str, int] = {}

    def home_of(i: int) -> int:
        instruction = instructions[i]
        if instruction.name in holder:
            homes[instruction.name] = group_of(holder[instruction.name][1])
        else:  # a tuple or a bitcast: grouped with its operand
            homes[instruction.name] = next((homes[name] for name in instruction.operands if name in homes), ROOT)
        return homes[instruction.name]

    return _grow(instructions, groups, home_of)


def kind_of(instruction: InstructionRecord) -> str:
    """The kind of an instruction's stage; in older records, only the name scope contains the kind."""
    kinds = [] if instruction.kind else _STAGE_KIND.findall(instruction.op_name)
    return kinds[-1] if kinds else instruction.kind


def _grow(
    instructions: Sequence[InstructionRecord], groups: list[ScopeBox], unfused_home: Callable[[int], int]
) -> GroupTree:
    """Adds the operations inside fusions to the groups given by `unfused_home`."""
    owner = {called: i for i, instruction in enumerate(instructions) for called in instruction.calls}
    place: dict[int, int] = {}  # a fusion -> its group
    # Unfused instructions come first, so that stages are in execution order.
    order = sorted(range(len(instructions)), key=lambda i: (instructions[i].fused, _stage_order(instructions[i].stage)))
    homes = [LEFT_OUT] * len(instructions)

    def fused_home(index: int) -> int:
        missing: dict[int, None] = {}  # fusions without a group, innermost first
        caller = owner.get(instructions[index].computation)
        while caller is not None and caller not in place:
            if (
                instructions[caller].opcode != "fusion" or caller in missing
            ):  # a fusion that contains itself has no group
                return LEFT_OUT
            missing[caller] = None
            if not instructions[caller].fused:
                break
            caller = owner.get(instructions[caller].computation)
        if caller is None:
            return LEFT_OUT
        parent = place[caller] if caller in place else homes[caller]
        if parent == LEFT_OUT:
            return LEFT_OUT
        for fusion in reversed(missing):
            groups.append(ScopeBox(instructions[fusion].name, kind_of(instructions[fusion]), parent, fusion))
            parent = place[fusion] = len(groups) - 1
        return parent

    for index in order:
        homes[index] = fused_home(index) if instructions[index].fused else unfused_home(index)
    parent = [group.parent for group in groups]
    parent += [LEFT_OUT if i in place else home for i, home in enumerate(homes)]
    return GroupTree(tuple(groups), np.array(parent))


def _scope(path: str, stage: str | None, names: Mapping[str, str]) -> Scope:
    parts = path.split("/")
    last = max((i for i, part in enumerate(parts) if _STAGE.search(part)), default=-1)
    inner = [part for part in parts[last + 1 :] if part not in _SILENT and not part.startswith("jit(")]
    numbers = [] if stage is None else stage.split(".")
    chain = [".".join(numbers[: depth + 1]) for depth in range(len(numbers))]
    titles = [f"stage {part} · {names[part]}" if part in names else f"stage {part}" for part in chain]
    return (*(titles or [OUTSIDE]), *inner)


@functools.lru_cache(maxsize=4096)
def _stage_order(stage: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in stage.split(".") if part.isdigit()) if stage else ()
