"""A tree with less in it: library frames, passes and operations folded into the nodes above them."""

from workbench.inspection.call_tree._items import sum_figures
from workbench.records import CallFiguresRecord, CallNodeRecord, CallPass, CallTreeRecord


def fold(tree: CallTreeRecord, *, hidden: bool = True, passes: bool = True, operations: bool = False) -> CallTreeRecord:
    """Folds nodes into the ones above them; no figure is lost, and the root stays as it is.

    Args:
        tree: A call tree.
        hidden: Folds frames of libraries, so that their cost is the user's line's.
        passes: Folds the transposed and the rematerialised work of a line onto the line.
        operations: Folds single operations too.

    Returns:
        The smaller tree.

    Example:
        >>> from workbench.records import CallFiguresRecord, CallNodeRecord
        >>> work = CallFiguresRecord(flops_matmul=2.0)
        >>> tree = CallTreeRecord(made_from="jaxpr", nodes=(
        ...     CallNodeRecord(id=0, parent=None, kind="root", name="f", total=work),
        ...     CallNodeRecord(id=1, parent=0, kind="function", name="optax", hidden=True, own=work, total=work)))
        >>> [(node.name, node.own.flops) for node in fold(tree).nodes]
        [('f', 2.0)]
    """
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


def _is_pass(node: CallNodeRecord, tree: CallTreeRecord) -> bool:
    """Whether a node only says which pass the work of its parent's line belongs to."""
    if node.kind not in ("line", "call") or node.parent is None:
        return False
    parent = tree.nodes[node.parent]
    return (parent.name, parent.line, parent.file) == (node.name, node.line, node.file) and parent.kind != "function"


def _written(groups: list[list[CallNodeRecord]], parents: list[int | None]) -> tuple[CallNodeRecord, ...]:
    below: list[list[int]] = [[] for _ in groups]
    for number, parent in enumerate(parents):
        if parent is not None:
            below[parent].append(number)
    own = [sum_figures(node.own for node in group) for group in groups]
    total: list[CallFiguresRecord] = list(own)
    for number in reversed(range(len(groups))):  # children stand after their parents
        total[number] = sum_figures((own[number], *(total[child] for child in below[number])))
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
            instructions=_instructions(groups[number]),
            own=own[number],
            total=total[number],
        )
        for number in order
    )


def _pass(nodes: list[CallNodeRecord]) -> CallPass:
    first = nodes[0].pass_name
    return first if all(node.pass_name == first for node in nodes) else "mixed"


def _instructions(nodes: list[CallNodeRecord]) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in nodes:
        for name, share in node.instructions.items():
            found[name] = found.get(name, 0.0) + share
    return found
