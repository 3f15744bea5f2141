"""Builds the tree: frames supply functions and lines; scopes are inserted where they were opened."""

import functools
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

from workbench.inspection._call_tree._frames import Frame, layer_of, shown_file
from workbench.inspection._call_tree._items import Amounts, Item, Scope, figures
from workbench.records.call_tree import CallKind, CallNodeRecord, CallPass, CallTreeRecord


@dataclass(slots=True, eq=False)
class _Node:
    kind: CallKind
    name: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    pass_name: CallPass | None = None  # None: the children's
    trip_count: float | None = None
    hidden: bool = False
    scope: str = ""
    split: bool = False
    at_least: bool = False
    instructions: dict[str, float] = field(default_factory=dict)
    own: Amounts = field(default_factory=Amounts)
    below: dict[Hashable, "_Node"] = field(default_factory=dict)

    def child(self, key: Hashable, make: Callable[[], "_Node"]) -> "_Node":
        node = self.below.get(key)
        if node is None:
            node = self.below[key] = make()
        return node


# Nodes below a line, keyed by scopes, pass and identity of the library's frames, which the items keep alive.
_Known: TypeAlias = dict[tuple[_Node, tuple[Scope, ...], CallPass, int], _Node]


def build_tree(
    items: Iterable[Item],
    *,
    name: str,
    made_from: Literal["compiled", "jaxpr"],
    notes: tuple[str, ...] = (),
    file: str | None = None,
) -> CallTreeRecord:
    root = _Node("root", name, file=file)
    places: _Known = {}
    placed, lost = [], []
    for item in items:
        (placed if item.frames else lost).append(item)
    _fill(root, placed, 0, places)
    named = [item for item in lost if item.scopes or item.inside]
    for item in named:  # of a module without stack frames, or with library frames only, so only scopes are known
        _leaf(root, item, places)
    rest = [item for item in lost if not item.scopes and not item.inside]
    if rest:
        node = root.below["unattributed"] = _Node("unattributed", "not attributed to a line")
        for item in rest:
            _operation(node, item)
    everything = _sums([*placed, *lost])
    inferred = [item for item in placed if item.inferred]
    shares = (_shares(part, everything) for part in (placed, [*placed, *named], inferred))
    return _record(root, made_from, notes, *shares)


def _sums(items: list[Item]) -> dict[str, float]:
    total = Amounts()
    for item in items:
        total.add(item.amounts)
    executed = sum(numbers[1] for numbers in total.collectives.values())
    return {
        "flops_matmul": total.flops_matmul,
        "flops_elementwise": total.flops_elementwise,
        "traffic_bytes": total.traffic_bytes,
        "sent_bytes": sum(total.sent_bytes.values()),
        "collectives": executed,
        "peak_bytes": total.peak_bytes,
        "constant_bytes": total.constant_bytes,
    }


def _shares(items: list[Item], everything: dict[str, float]) -> dict[str, float]:
    return {figure: part / everything[figure] for figure, part in _sums(items).items() if everything[figure]}


def _fill(node: _Node, items: list[Item], depth: int, places: _Known) -> None:
    """Adds items below a node; the items share the node's frames up to `depth`."""
    here = [item for item in items if len(item.frames) <= depth]
    deep = [item for item in items if len(item.frames) > depth]
    for item in here:
        _leaf(node, item, places)
    if not deep:
        return
    if _scopes_first(deep, depth):
        for scope, group in _grouped(deep, lambda item: _next(item, depth)):
            if scope is None:
                _descend(node, group, depth, places)
                continue
            for item in group:
                item.taken += 1
            _fill(_scope_node(node, scope), group, depth, places)
        return
    _descend(node, deep, depth, places)


def _descend(node: _Node, items: list[Item], depth: int, places: _Known) -> None:
    for (file, function), group in _grouped(items, lambda item: item.frames[depth][:2]):
        below = node.child(("function", file, function), functools.partial(_function_node, file, function, node.scope))
        for number, members in _grouped(group, lambda item: item.frames[depth].line):
            call = below.child(("line", number), functools.partial(_line_node, members[0].frames[depth], below.scope))
            _fill(call, members, depth + 1, places)


def _function_node(file: str, function: str, scope: str) -> _Node:
    return _Node("function", _function_name(function), file=shown_file(file), scope=scope)


def _line_node(frame: Frame, scope: str) -> _Node:
    file = shown_file(frame.file)
    return _Node(
        "line", f"{PurePath(file).name}:{frame.line}", file=file, line=frame.line, column=frame.column, scope=scope
    )


def _scope_node(node: _Node, scope: Scope) -> _Node:
    path = node.scope if scope.kind == "loop" else f"{node.scope}/{scope.name}".strip("/")

    def make() -> _Node:
        return _Node(scope.kind, scope.name, node.file, node.line, trip_count=scope.trip_count, scope=path)  # type: ignore[arg-type]

    return node.child((scope.kind, scope.name, scope.trip_count), make)


def _next(item: Item, depth: int) -> Scope | None:
    """The scope that an item enters next; None if the next scope is a loop in a deeper frame."""
    if item.taken >= len(item.scopes):
        return None
    scope = item.scopes[item.taken]
    return None if scope.depth is not None and scope.depth > depth else scope


def _scopes_first(items: list[Item], depth: int) -> bool:
    """Returns whether the next scopes of these items were opened here rather than in a called function.

    A name scope leaves no frame, so its place is inferred. A scope that all lines of the next function share was opened
    before that function; a scope on only some of its lines was opened inside the function.
    """
    if any(s.depth is not None and s.depth <= depth for item in items for s in item.scopes[item.taken :]):
        return True  # a loop at this depth, so the scopes around the loop are already open
    following = [_next(item, depth) for item in items]
    if any(scope is None for scope in following):
        return False
    frames: dict[Any, set[Scope | None]] = {}
    for item, scope in zip(items, following, strict=True):
        frames.setdefault(item.frames[depth][:3], set()).add(scope)
    if len(frames) == 1:
        return False
    together = [scope for scopes in frames.values() for scope in scopes]
    return len(together) != len(set(together))


def _leaf(node: _Node, item: Item, places: _Known) -> None:
    """Adds an item below the user's innermost line, with its scopes, pass, library frames and operation."""
    key = node, item.scopes[item.taken :], item.pass_name, id(item.inside)
    place = places.get(key)
    if place is None:
        place = places[key] = _below(node, item)
    _operation(place, item)


def _below(node: _Node, item: Item) -> _Node:
    for scope in item.scopes[item.taken :]:
        node = _scope_node(node, scope)
    node = node.child(
        ("pass", item.pass_name),
        lambda: _Node("line", node.name, node.file, node.line, node.column, item.pass_name, scope=node.scope),
    )
    for frame in item.inside:
        layer = layer_of(frame.file, frame.function)
        if layer is not None:
            node = _layer_node(node, layer, item.pass_name)
        node = _library_node(node, frame, item.pass_name)
    return node


def _layer_node(node: _Node, layer: str, pass_name: CallPass) -> _Node:
    if node.scope.endswith(layer):  # Equinox itself opens a scope with that name
        return node
    path = f"{node.scope}/{layer}".strip("/")
    return node.child(
        ("scope", layer), lambda: _Node("scope", layer, node.file, node.line, pass_name=pass_name, scope=path)
    )


def _library_node(node: _Node, frame: Frame, pass_name: CallPass) -> _Node:
    def make() -> _Node:
        return _Node(
            "function", _function_name(frame.function), frame.file, frame.line, frame.column, pass_name, hidden=True,
            scope=node.scope,
        )  # fmt: skip

    return node.child(("library", frame.file, frame.function, frame.line), make)


def _operation(node: _Node, item: Item) -> None:
    leaf = node.child(
        ("operation", item.operation, item.pass_name),
        lambda: _Node("operation", item.operation, node.file, node.line, None, item.pass_name, scope=node.scope),
    )
    leaf.own.add(item.amounts)
    leaf.split = leaf.split or 0.0 < item.share < 1.0
    leaf.at_least = leaf.at_least or item.at_least
    if item.instruction:
        leaf.instructions[item.instruction] = leaf.instructions.get(item.instruction, 0.0) + item.share


def _function_name(qualified: str) -> str:
    return qualified.replace(".<locals>", "")


def _grouped(items: list[Item], key: Callable[[Item], Any]) -> list[tuple[Any, list[Item]]]:
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def _record(
    root: _Node,
    made_from: Literal["compiled", "jaxpr"],
    notes: tuple[str, ...],
    to_line: dict[str, float],
    to_module: dict[str, float],
    inferred: dict[str, float],
) -> CallTreeRecord:
    nodes: list[CallNodeRecord | None] = []

    def write(node: _Node, parent: int | None) -> tuple[Amounts, set[CallPass], bool]:
        number = len(nodes)
        nodes.append(None)
        total = Amounts()
        total.add(node.own)
        passes: set[CallPass] = {node.pass_name} if node.kind == "operation" and node.pass_name else set()
        at_least = node.at_least
        if node.kind in ("line", "scope", "loop") and len(node.below) == 1:
            ((key, only),) = node.below.items()
            if isinstance(key, tuple) and key[0] == "pass":  # work of a single pass does not need a separate node
                node.below, node.pass_name = only.below, only.pass_name
        for child in node.below.values():
            below, kinds, is_least = write(child, number)
            total.add(below)
            passes |= kinds
            at_least = at_least or is_least
        calls = node.kind == "line" and any(child.kind in ("function", "loop", "scope") and not child.hidden
                                            for child in node.below.values())  # fmt: skip
        nodes[number] = CallNodeRecord(
            id=number,
            parent=parent,
            kind="call" if calls else node.kind,
            name=node.name,
            file=node.file,
            line=node.line,
            column=node.column,
            pass_name=node.pass_name or (next(iter(passes)) if len(passes) == 1 else "mixed" if passes else "forward"),
            trip_count=node.trip_count,
            hidden=node.hidden,
            scope=node.scope,
            split=node.split,
            at_least=at_least,
            instructions=node.instructions,
            own=figures(node.own),
            total=figures(total),
        )
        return total, passes, at_least

    write(root, None)
    return CallTreeRecord(
        made_from=made_from,
        nodes=tuple(node for node in nodes if node is not None),
        attributed_to_line=to_line,
        attributed_to_module=to_module,
        inferred=inferred,
        notes=notes,
    )
