"""A call tree with less in it: library frames, passes and operations folded into the nodes above them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.records._call_tree import CallFiguresRecord, CallNodeRecord, CallPass, CallTreeRecord


def fold(tree: "CallTreeRecord", *, hidden: bool, passes: bool, operations: bool) -> "CallTreeRecord":
    """Folds nodes into the ones above them; see `CallTreeRecord.fold`."""
    kept: dict[int, int] = {}  # node -> the node that it became or was folded into
    groups: list[list[CallNodeRecord]] = []
    places: dict[tuple, int] = {}
    parents: list[int | None] = []
    for node in tree.nodes:
        parent = None if node.parent is None else kept[node.parent]
        gone = parent is not None and (
            (hidden and node.hidden) or (operations and node.kind == "operation") or (passes and _is_pass(node, tree))
        )
        if gone:
            kept[node.id] = parent  # type: ignore[assignment]
            groups[parent].append(node)  # type: ignore[index]
            continue
        key = (parent, node.kind if node.kind != "call" else "line", node.name, node.file, node.line, node.trip_count)
        key = (*key, None if passes else node.pass_name)
        if key not in places:
            places[key] = len(groups)
            groups.append([])
            parents.append(parent)
        kept[node.id] = places[key]
        groups[places[key]].append(node)
    return tree.replace(nodes=_written(groups, parents))


def _is_pass(node: "CallNodeRecord", tree: "CallTreeRecord") -> bool:
    """Returns whether a node only says which pass the work of its parent's line belongs to."""
    if node.kind not in ("line", "call") or node.parent is None:
        return False
    parent = tree.nodes[node.parent]
    return (parent.name, parent.line, parent.file) == (node.name, node.line, node.file) and parent.kind != "function"


def _written(groups: "list[list[CallNodeRecord]]", parents: list[int | None]) -> "tuple[CallNodeRecord, ...]":
    below: list[list[int]] = [[] for _ in groups]
    for number, parent in enumerate(parents):
        if parent is not None:
            below[parent].append(number)
    empty = type(groups[0][0].own)()
    own = [sum_figures((node.own for node in group), empty) for group in groups]
    total: list[CallFiguresRecord] = list(own)
    for number in reversed(range(len(groups))):  # children are after their parents
        total[number] = sum_figures((own[number], *(total[child] for child in below[number])), empty)
    order, pending = [], [0]
    while pending:
        number = pending.pop()
        order.append(number)
        pending += reversed(below[number])
    position = {number: index for index, number in enumerate(order)}
    return tuple(
        groups[number][0].replace(
            id=position[number],
            parent=None if parents[number] is None else position[parents[number]],  # type: ignore[index]
            pass_name=_pass(groups[number]),
            split=any(node.split for node in groups[number]),
            at_least=any(node.at_least for node in groups[number]),
            instructions=_added(node.instructions for node in groups[number]),
            own=own[number],
            total=total[number],
        )
        for number in order
    )


def _pass(nodes: list["CallNodeRecord"]) -> "CallPass":
    first = nodes[0].pass_name
    return first if all(node.pass_name == first for node in nodes) else "mixed"


def with_own(tree: "CallTreeRecord", own: Mapping[int, "CallFiguresRecord"]) -> "CallTreeRecord":
    """The tree with other figures of some nodes, and the totals that follow."""
    empty = type(tree.root.own)()
    parts: list[list[CallFiguresRecord]] = [[own.get(node.id, node.own)] for node in tree.nodes]
    nodes: list[CallNodeRecord] = list(tree.nodes)
    for node in reversed(tree.nodes):  # children are after their parents
        total = sum_figures(parts[node.id], empty)
        nodes[node.id] = node.replace(own=parts[node.id][0], total=total)
        if node.parent is not None:
            parts[node.parent].append(total)
    return tree.replace(nodes=tuple(nodes))


def sum_figures(figures: Iterable["CallFiguresRecord"], empty: "CallFiguresRecord") -> "CallFiguresRecord":
    """The figures of several nodes together."""
    given = [each for each in figures if not each.is_zero]
    if len(given) < 2:
        return given[0] if given else empty
    predicted = [each.predicted_seconds for each in given if each.predicted_seconds is not None]
    unknown = any(each.unknown_seconds for each in given)
    return empty.replace(
        flops_matmul=sum(each.flops_matmul for each in given),
        flops_elementwise=sum(each.flops_elementwise for each in given),
        traffic_bytes=sum(each.traffic_bytes for each in given),
        sent_bytes=_added(each.sent_bytes for each in given),
        collectives=_collectives(given),
        peak_bytes=sum(each.peak_bytes for each in given),
        constant_bytes=sum(each.constant_bytes for each in given),
        predicted_seconds=sum(predicted) if predicted and not unknown else None,
        unknown_seconds=unknown,
        measured_seconds=_added(each.measured_seconds for each in given),
    )


def _added(amounts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for each in amounts:
        for key, amount in each.items():
            total[key] = total.get(key, 0.0) + amount
    return total


def _collectives(given: list["CallFiguresRecord"]) -> tuple[Any, ...]:
    found: dict[tuple, Any] = {}
    for collective in (c for each in given for c in each.collectives):
        key = collective.kind, collective.axes
        other = found.get(key)
        found[key] = (
            collective
            if other is None
            else collective.replace(
                count=other.count + collective.count,
                executions=other.executions + collective.executions,
                payload_bytes=other.payload_bytes + collective.payload_bytes,
                sent_bytes=other.sent_bytes + collective.sent_bytes,
            )
        )
    return tuple(found.values())
