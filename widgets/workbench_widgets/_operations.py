"""The operations view: a tree of the user's functions, modules and lines with all figures of a program."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from workbench.records import cell_name
from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord, fold_layers
from workbench.render.units import axes_text, bytes_text, count_text, source_text
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._source import read_lines
from workbench_widgets.states import FigureColumn, OperationsState

KINDS = ("root", "function", "call", "line", "scope", "loop", "operation", "unattributed")
PASSES = ("forward", "transpose", "remat", "mixed")
AROUND = 2  # lines of code shown before and after a node's line
MOST_DEVICES = 8  # mesh axes with separate columns
MOST_SOURCES = 4_000  # maximum number of lines whose code is sent


def operations_state(
    tree: CallTreeRecord, files: Iterable[str] = (), *, measured: bool = False
) -> tuple[OperationsState, Arrays]:
    """State of the operations view: names and places as lists, figures as columns, library frames folded."""
    cells = _cells(files)
    nodes, parents, places = _shown(tree)
    number = {node.id: at for at, node in enumerate(nodes)}
    layers = fold_layers(nodes, parents)
    for at, group in enumerate(layers, start=len(nodes)):
        members = [nodes[member] for member in group.members]
        parents.append(group.parent)
        nodes.append(_joined(at, group.name, members))
        places.append(_NOWHERE)
        for member in group.members:
            parents[member] = at
    sends = any(node.total.collectives for node in nodes)
    columns, arrays = _measured_columns(nodes) if measured else _columns(nodes)
    arrays |= {
        "tree.parent": floats(parents),
        "tree.kind": floats([KINDS.index(node.kind) for node in nodes]),
        "tree.pass": floats([PASSES.index(node.pass_name) for node in nodes]),
    }
    state: OperationsState = {
        "names": [node.name for node in nodes],
        "keys": [_key(node, cells) for node in places],
        "places": [_place(node) for node in places],
        "scopes": [node.scope for node in nodes],
        "iterations": {str(number[node.id]): node.trip_count for node in nodes if node.trip_count is not None},
        "instructions": {str(number[node.id]): list(node.instructions) for node in nodes if node.instructions},
        "collectives": {str(at): _collectives(node.total) for at, node in enumerate(nodes) if node.total.collectives},
        "layers": {str(at): list(group.members) for at, group in enumerate(layers, start=len(number))},
        "shared": [at for at, node in enumerate(nodes) if node.split],
        "at_least": [at for at, node in enumerate(nodes) if node.at_least],
        "kinds": list(KINDS),
        "passes": list(PASSES),
        "columns": columns,
        "code": _code(places, cells),
        "made_from": tree.made_from,
        "counted": "all calls in the profile, measured" if measured else None,
        "notes": [
            *_notes(tree, {column["key"] for column in columns}),
            *(["The seconds of a collective include the wait for other devices."] if measured and sends else []),
        ],
    }
    return state, arrays


_NOWHERE = CallNodeRecord(id=0, parent=None, kind="scope", name="")


def _joined(at: int, name: str, members: Sequence[CallNodeRecord]) -> CallNodeRecord:
    """One node for identical layers, with their figures summed."""
    root = CallNodeRecord(id=0, parent=None, kind="root", name=name)
    below = (member.replace(id=i, parent=0, own=member.total) for i, member in enumerate(members, start=1))
    tree = CallTreeRecord(made_from="compiled", nodes=(root, *below))
    return CallNodeRecord(
        id=at,
        parent=None,
        kind="scope",
        name=name,
        pass_name=members[0].pass_name,
        split=any(member.split for member in members),
        at_least=any(member.at_least for member in members),
        total=tree.with_own({}).root.total,
    )


def _notes(tree: CallTreeRecord, keys: set[str]) -> list[str]:
    """The tree's notes about what is shown."""
    return [note for note in tree.notes if "peak" in keys or not note.startswith("peak bytes")]


def with_measured(tree: CallTreeRecord, measured: CallTreeRecord | None) -> CallTreeRecord:
    """The tree, with the times that a run measured for the same functions, lines and operations.

    Times measured for nodes that the tree lacks are added to the nearest node present in both trees. A loop in only
    one of the trees is passed over: a run that measures each client loops over clients that `inspect` batches.
    """
    if measured is None or not measured.root.total.measured_seconds:
        return tree
    children: dict[int, dict[tuple[object, ...], list[int]]] = {}
    for node in tree.nodes:
        if node.parent is not None:
            children.setdefault(node.parent, {}).setdefault(_identity(node), []).append(node.id)
    calls = _plain_calls(tree)
    at = {measured.root.id: tree.root.id}  # where the times of a measured node go
    lost: set[int] = set()  # measured nodes that the tree lacks
    counts: dict[tuple[object, ...], int] = {}
    for node in measured.nodes:
        if node.parent is None:
            continue
        above, key = at[node.parent], _identity(node)
        number = counts[above, key] = counts.get((above, key), -1) + 1
        twins = [] if node.parent in lost else _below(above, key, children, tree)
        at[node.id] = twins[number] if number < len(twins) else above
        if number >= len(twins) and (node.parent in lost or node.kind != "loop"):
            lost.add(node.id)
    seconds: dict[int, dict[str, float]] = {}
    for node in measured.nodes:
        place = calls.get(at[node.id], at[node.id])  # a call's row is that of its function
        by_device = seconds.setdefault(place, {})
        for device, amount in node.own.measured_seconds.items():
            by_device[device] = by_device.get(device, 0.0) + amount
    return tree.with_own(
        {number: tree.nodes[number].own.replace(measured_seconds=d) for number, d in seconds.items() if d}
    )


def _identity(node: CallNodeRecord) -> tuple[object, ...]:
    """Kind, name, line and pass, which nodes of two trees can share."""
    return (node.kind, node.name, node.file, node.line, node.pass_name)


def _below(
    above: int,
    key: tuple[object, ...],
    children: Mapping[int, dict[tuple[object, ...], list[int]]],
    tree: CallTreeRecord,
) -> list[int]:
    """The children with this identity, or else those inside the loops among the children."""
    below = children.get(above, {})
    if key in below:
        return below[key]
    loops = (node for group in below.values() for node in group if tree.nodes[node].kind == "loop")
    return [child for loop in loops for child in children.get(loop, {}).get(key, [])]


def visible_rows(tree: CallTreeRecord) -> dict[int, int]:
    """For each node, the row of the operations view that shows the node or the node it is folded into."""
    number = {node.id: at for at, node in enumerate(_kept(tree, _plain_calls(tree)))}
    return {node.id: number.get(node.id, _visible_parent(tree, node, number)) for node in tree.nodes}


def shown_nodes(tree: CallTreeRecord) -> tuple[list[CallNodeRecord], list[int]]:
    """The nodes that the operations view shows, and the position of each node's parent (-1: none)."""
    nodes, parents, _ = _shown(tree)
    return nodes, parents


def visible_nodes(tree: CallTreeRecord, files: Iterable[str] = ()) -> tuple[list[CallNodeRecord], list[int], list[str]]:
    """The nodes that the operations view shows, with the position of the parent (-1: none) and `file:line`."""
    nodes, parents, places = _shown(tree)
    cells = _cells(files)
    return nodes, parents, [_key(node, cells) for node in places]


def _shown(tree: CallTreeRecord) -> tuple[list[CallNodeRecord], list[int], list[CallNodeRecord]]:
    """The nodes that have a row, and for each row its parent row (-1: none) and the node that supplies its line."""
    calls = _plain_calls(tree)
    nodes = _kept(tree, calls)
    called_at = {function: tree.nodes[call] for call, function in calls.items()}
    number = {node.id: at for at, node in enumerate(nodes)}
    parents = [_visible_parent(tree, node, number) for node in nodes]
    places: list[CallNodeRecord] = []
    for node, parent in zip(nodes, parents, strict=True):
        # Library work is shown below the line that calls it, under that line's number.
        around = tree.nodes[node.parent] if node.parent is not None else node
        folded = node.kind == "operation" and around.hidden and around.file == node.file and parent >= 0
        places.append(places[parent] if folded else called_at.get(node.id, node))
    return nodes, parents, places


def _cells(files: Iterable[str]) -> dict[str, str]:
    return {name: file for file in files if (name := cell_name(file)) is not None}


def _kept(tree: CallTreeRecord, calls: Mapping[int, int]) -> list[CallNodeRecord]:
    first = [node for node in tree.nodes if node.parent == tree.root.id]
    repeats = first[0].id if len(first) == 1 and first[0].name == tree.root.name else None  # the program's function
    return [n for n in tree.nodes if n.parent is None or not (n.hidden or n.id in calls or n.id == repeats)]


def _plain_calls(tree: CallTreeRecord) -> dict[int, int]:
    """Lines that only call one function; such a line shares a row with the function, placed at the call."""
    below: dict[int, list[CallNodeRecord]] = {}
    for node in tree.nodes:
        if node.parent is not None:
            below.setdefault(node.parent, []).append(node)
    callees = {}
    for node in tree.nodes:
        inside = below.get(node.id, [])
        if node.kind == "call" and len(inside) == 1 and inside[0].kind == "function" and not inside[0].hidden:
            callees[node.id] = inside[0].id
    return callees


def _visible_parent(tree: CallTreeRecord, node: CallNodeRecord, number: dict[int, int]) -> int:
    at = node.parent
    while at is not None and at not in number:
        at = tree.nodes[at].parent
    return -1 if at is None else number[at]


def figures_of(figures: Iterable[CallFiguresRecord]) -> list[tuple[str, str, str, Callable[[Any], float | None]]]:
    """Figures of a call tree (seconds, FLOPs, bytes, bytes per mesh axis), each with key, title, unit and format."""
    all_figures = list(figures)
    most = {axis: 0.0 for figure in all_figures for axis in figure.sent_bytes}
    for figure in all_figures:
        for axis, size in figure.sent_bytes.items():
            most[axis] = max(most[axis], size)
    axes = sorted(most, key=lambda axis: (-most[axis], axis))  # narrow views show only the first columns
    devices = sorted({device for figure in all_figures for device in figure.measured_seconds})

    def longest(figure: CallFiguresRecord) -> float | None:
        return max((figure.measured_seconds.get(device, 0.0) for device in devices), default=None)

    return [
        ("measured", "measured", "seconds", longest),
        ("predicted", "predicted", "seconds", lambda f: f.predicted_seconds),
        ("flops", "FLOPs", "flops", lambda f: f.flops),
        ("matmul", "matrix FLOPs", "flops", lambda f: f.flops_matmul),
        ("traffic", "memory traffic", "bytes", lambda f: f.traffic_bytes),
        *([("sent", "sent", "bytes", lambda f: f.sent)] if len(axes) > 1 else []),
        *((f"sent/{a}", f"sent over {a}", "bytes", lambda f, a=a: f.sent_bytes.get(a, 0.0)) for a in axes),
        ("peak", "at the peak", "bytes", lambda f: f.peak_bytes),
        ("constants", "constants", "bytes", lambda f: f.constant_bytes),
    ]


TIPS = {
    "measured": "Measured seconds per call on the slowest device. A collective includes the wait for other devices.",
    "predicted": (
        "Predicted seconds that an operation adds to one call on the named chip. Collective time that overlaps with "
        "other operations is not counted."
    ),
    "flops": "Matrix products, convolutions and elementwise operations.",
    "matmul": "FLOPs of matrix products and convolutions only.",
    "traffic": "Bytes read from and written to main memory.",
    "sent": "Bytes that one device sends over all mesh axes in one call.",
    "peak": "Bytes of values created here that are alive at the memory peak.",
    "constants": "Bytes of compile-time constants.",
}


def _columns(nodes: list[CallNodeRecord]) -> tuple[list[FigureColumn], Arrays]:
    """Every figure that is nonzero in some node, with (`total`) or without (`own`) the figures of its descendants."""
    columns: list[FigureColumn] = []
    arrays: Arrays = {}
    for key, title, unit, value in figures_of(node.total for node in nodes):
        total = [value(node.total) for node in nodes]
        if not any(total):
            continue
        axis = key.partition("/")[2]
        if key == "measured" and any(node.total.collectives for node in nodes):
            title = "measured, with waits"
        tip = TIPS.get(key, f"Bytes that one device sends over mesh axis {axis} in one call.")
        columns.append({"key": key, "title": title, "unit": unit, "tip": tip})
        arrays[f"tree.{key}"] = floats(total)
        arrays[f"tree.{key}.own"] = floats([value(node.own) for node in nodes])
    return columns, arrays


def _measured_columns(nodes: list[CallNodeRecord]) -> tuple[list[FigureColumn], Arrays]:
    devices = list(dict.fromkeys(device for node in nodes for device in node.total.measured_seconds))
    devices.sort(key=lambda name: (len(name), name))
    columns = [
        _figure("measured", "all devices", "Measured seconds of all calls in the profile, summed over all devices.")
    ]
    arrays = {
        "tree.measured": floats([sum(node.total.measured_seconds.values()) for node in nodes]),
        "tree.measured.own": floats([sum(node.own.measured_seconds.values()) for node in nodes]),
    }
    for device in devices[:MOST_DEVICES] if len(devices) > 1 else ():
        columns.append(_figure(device, device, f"Measured seconds of all calls in the profile on {device}."))
        arrays[f"tree.{device}"] = floats([node.total.measured_seconds.get(device, 0.0) for node in nodes])
        arrays[f"tree.{device}.own"] = floats([node.own.measured_seconds.get(device, 0.0) for node in nodes])
    return columns, arrays


def _figure(key: str, title: str, tip: str) -> FigureColumn:
    return {"key": key, "title": title, "unit": "seconds", "tip": tip}


def _collectives(figures: CallFiguresRecord) -> list[list[str]]:
    ranked = sorted(figures.collectives, key=lambda row: -row.sent_bytes)
    return [
        [
            row.kind,
            axes_text(row.axes),
            f"{row.count:.3g}",
            count_text(row.executions),
            bytes_text(row.payload_bytes),
            bytes_text(row.sent_bytes),
        ]
        for row in ranked
    ]


def _key(node: CallNodeRecord, cells: Mapping[str, str]) -> str:
    return f"{cells.get(node.file, node.file)}:{node.line}" if node.file and node.line else ""


def _place(node: CallNodeRecord) -> str:
    if not node.file or not node.line:
        return ""
    return f"{node.file}:{node.line}" if node.file.startswith("In [") else source_text(node.file, node.line)


def _code(nodes: list[CallNodeRecord], cells: Mapping[str, str]) -> dict[str, list[tuple[int, str, bool]]]:
    """The source lines around every place in the tree, keyed by place."""
    places = {_key(node, cells): (node.file, node.line) for node in nodes if node.file and node.line}
    code = {}
    for key, (file, line) in list(places.items())[:MOST_SOURCES]:
        lines = read_lines(file, line, AROUND)
        if lines:
            code[key] = [(number, text, number == line) for number, text in lines]
    return code
