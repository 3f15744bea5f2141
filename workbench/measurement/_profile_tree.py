"""Adds measured times to a program's call tree."""

import re
from collections.abc import Iterable, Mapping

from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.compiled import ModuleRecord
from workbench.records.profile import ProfiledOperationRecord

_COPY = re.compile(r".*-(start|done)(\.\d+)?$")
_HOPS = 3
UNKNOWN = "measured, but not found in the program"


def measured_tree(
    tree: CallTreeRecord, operations: Iterable[ProfiledOperationRecord], module: ModuleRecord | None = None
) -> CallTreeRecord:
    """Adds the measured time of every operation to the operation's nodes in the tree.

    The time of an instruction that was fused from several lines is divided in the same proportions as in the tree.
    Operations without a node are assigned to a separate node, so that the root contains the total time.

    Args:
        tree: Call tree of the compiled module.
        operations: Measured operations of the same program.
        module: The program. If given, the time of an asynchronous copy that the compiler inserted is added to the node
            of the copied value.
    """
    operands_of = {i.name: i.operands[:1] for i in module.instructions} if module is not None else {}
    places: dict[str, list[tuple[int, float]]] = {}
    for node in tree.nodes:
        for name, share in node.instructions.items():
            places.setdefault(name, []).append((node.id, share))
    by_node: dict[int, dict[str, float]] = {}
    lost: list[ProfiledOperationRecord] = []
    ends: dict[int, str] = {}  # for `-start` nodes: the `-done` operation whose seconds are added
    for operation in operations:
        shares = places.get(operation.name, [])
        name = operation.name
        for _ in range(_HOPS if _COPY.match(name) else 0):  # from the end of a copy to its start and its operand
            if shares or not operands_of.get(name):
                break
            (name,) = operands_of[name]
            shares = places.get(name, [])
        total = sum(share for _, share in shares)
        if not total:
            lost.append(operation)
            continue
        for number, share in shares:
            _add(by_node.setdefault(number, {}), operation.seconds_by_device, share / total)
            if operation.category.endswith("-done") and tree.nodes[number].name.endswith("-start"):
                ends[number] = operation.category
    nodes = list(tree.nodes)
    nodes += _lost_nodes(lost, len(nodes), by_node)
    sums: dict[int, dict[str, float]] = {number: dict(seconds) for number, seconds in by_node.items()}
    for node in reversed(nodes):  # parents precede their children
        if node.parent is not None and node.id in sums:
            _add(sums.setdefault(node.parent, {}), sums[node.id], 1.0)
    return tree.replace(
        nodes=tuple(
            node.replace(
                name=f"{node.name} and {ends[node.id]}" if node.id in ends else node.name,
                own=node.own.replace(measured_seconds=by_node.get(node.id, {})),
                total=node.total.replace(measured_seconds=sums.get(node.id, {})),
            )
            for node in nodes
        )
    )


def tree_of_names(name: str, operations: Iterable[ProfiledOperationRecord]) -> CallTreeRecord:
    """Makes a tree from the operation names in the profile if there is no HLO."""
    children: dict[tuple[str, ...], dict[str, None]] = {(): {}}
    leaves: dict[tuple[str, ...], list[ProfiledOperationRecord]] = {}
    for operation in operations:
        path = tuple(part for part in operation.op_name.rstrip(":").split("/") if part) or (f"({operation.category})",)
        for depth in range(len(path)):
            children.setdefault(path[:depth], {})[path[depth]] = None
        leaves.setdefault(path, []).append(operation)
    nodes: list[CallNodeRecord] = []

    def visit(path: tuple[str, ...], parent: int | None) -> dict[str, float]:
        number = len(nodes)
        here = leaves.get(path, [])
        by_device: dict[str, float] = {}
        for operation in here:
            _add(by_device, operation.seconds_by_device, 1.0)
        source = next((operation.source for operation in here if operation.source), None)
        nodes.append(
            CallNodeRecord(
                id=number,
                parent=parent,
                kind="root" if parent is None else "operation" if here else "scope",
                name=path[-1] if path else name,
                file=source.file if source else None,
                line=source.line if source else None,
                scope="/".join(path),
                instructions={operation.name: 1.0 for operation in here},
            )
        )
        total = dict(by_device)
        for below in children.get(path, {}):
            _add(total, visit((*path, below), number), 1.0)
        nodes[number] = nodes[number].replace(
            own=CallFiguresRecord(measured_seconds=by_device), total=CallFiguresRecord(measured_seconds=total)
        )
        return total

    visit((), None)
    return CallTreeRecord(
        made_from="compiled",
        nodes=tuple(nodes),
        notes=("from operation names: the profile has no HLO for this program",),
    )


def _lost_nodes(
    lost: list[ProfiledOperationRecord], first: int, by_node: dict[int, dict[str, float]]
) -> list[CallNodeRecord]:
    if not lost:
        return []
    nodes = [CallNodeRecord(id=first, parent=0, kind="unattributed", name=UNKNOWN)]
    for number, operation in enumerate(lost, start=first + 1):
        by_node[number] = dict(operation.seconds_by_device)
        nodes.append(
            CallNodeRecord(
                id=number, parent=first, kind="operation", name=operation.name, instructions={operation.name: 1.0}
            )
        )
    return nodes


def _add(into: dict[str, float], seconds: Mapping[str, float], share: float) -> None:
    for device, amount in seconds.items():
        into[device] = into.get(device, 0.0) + amount * share
