"""Records of the call tree: costs by the user's functions, modules and lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.records._base import Record
from workbench.records.sharding import CollectiveKind

CallKind = Literal["root", "function", "call", "line", "scope", "loop", "operation", "unattributed"]
CallPass = Literal["forward", "transpose", "remat", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCollectiveRecord(Record):
    """Collectives of one kind over the same mesh axes on one node."""

    kind: CollectiveKind
    axes: tuple[str, ...]  # the user's mesh axes; () if the group is not a product of axes
    count: float  # number of instructions; below 1 if a combined collective is split over several lines
    executions: float  # in one call of the program
    payload_bytes: float  # one device's operands, over all executions
    sent_bytes: float  # bytes that one device sends, over all executions
    largest_bytes: float | None = None  # one device's operands in the largest execution; None: combined


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFiguresRecord(Record):
    """A node's cost in one call of the program; times are None if no chip is known.

    For a compiled module, costs are per device. For a jaxpr, costs are for all devices together, excluding work that
    XLA's partitioner will add.
    """

    flops_matmul: float = 0.0  # dot products and convolutions; a multiply and an add count as two
    flops_elementwise: float = 0.0  # one per element of an arithmetic operation, or per element that is reduced
    traffic_bytes: float = 0.0  # read from and written to main memory
    sent_bytes: dict[str, float] = field(default_factory=dict)  # mesh axes (joined by "+") -> bytes one device sends
    collectives: tuple[CallCollectiveRecord, ...] = ()
    peak_bytes: float = 0.0  # buffers created by this node that are alive at the memory peak
    constant_bytes: float = 0.0  # compile-time constants
    predicted_seconds: float | None = None
    unknown_seconds: bool = False  # a part has unknown seconds, so the node and all nodes above have no sum
    measured_seconds: dict[str, float] = field(default_factory=dict)  # device -> seconds per call

    @property
    def flops(self) -> float:
        """FLOPs of matrix products, convolutions and elementwise operations."""
        return self.flops_matmul + self.flops_elementwise

    @property
    def sent(self) -> float:
        """Bytes that one device sends over all mesh axes."""
        return sum(self.sent_bytes.values())

    @property
    def is_zero(self) -> bool:
        """True if all counted costs of the node are zero."""
        return not (
            self.flops_matmul
            or self.flops_elementwise
            or self.traffic_bytes
            or self.collectives
            or self.peak_bytes
            or self.constant_bytes
            or self.predicted_seconds
            or self.unknown_seconds
            or self.measured_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNodeRecord(Record):
    """One node of a call tree; `id` is its index in `CallTreeRecord.nodes`, parents first.

    Kinds: `root` is the program; `function` is a Python function, at the line of its definition if known; `call` is a
    line that calls the function below it; `line` is a line with its own operations; `scope` is a name scope or module
    path without a function; `loop` is a `scan`, `while` or `cond`; `operation` is an HLO instruction or an equation;
    `unattributed` contains operations without a place in the user's code.
    """

    id: int
    parent: int | None
    kind: CallKind
    name: str  # a qualified name, "train.py:31", "layers_0/mlp", "scan", "dot_general"
    file: str | None = None  # "In [3]" for a cell of a notebook
    line: int | None = None
    column: int | None = None
    pass_name: CallPass = "forward"  # "mixed": the children belong to several passes
    trip_count: float | None = None  # iterations per entry of a loop; None: unknown, or not a loop
    hidden: bool = False  # a library frame: fold it into its parent
    scope: str = ""  # the module path of this node: "decoder/layers_0/mlp"
    split: bool = False  # costs are shares of instructions that the compiler fused or combined from several lines
    at_least: bool = False  # contains a loop of unknown length, of which one iteration is counted
    # for an operation: HLO instruction -> this operation's share of it
    instructions: dict[str, float] = field(default_factory=dict)
    own: CallFiguresRecord = field(default_factory=CallFiguresRecord)  # without the children
    total: CallFiguresRecord = field(default_factory=CallFiguresRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTreeRecord(Record):
    """All costs of one call to a program, by the user's functions, modules and lines.

    A node's `total` is its `own` plus the totals of its children; the root's total is the program's total.
    """

    made_from: Literal["compiled", "jaxpr"]
    nodes: tuple[CallNodeRecord, ...]  # depth first, so that descendants follow their node directly
    attributed_to_line: dict[str, float] = field(default_factory=dict)  # cost -> share on a user's line, 0..1
    attributed_to_module: dict[str, float] = field(default_factory=dict)  # cost -> share in a function or module
    # cost -> share on a line inferred from readers or makers of the value, because the compiler dropped the line
    inferred: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def root(self) -> CallNodeRecord:
        """The program."""
        return self.nodes[0]

    def children(self, node: int | CallNodeRecord) -> tuple[CallNodeRecord, ...]:
        """The children of a node.

        Example:
            >>> tree = wb.trace(lambda x: jnp.sin(x) * 2)(1.0).call_tree
            >>> [node.kind for node in tree.children(0)]
            ['function']
        """
        number = node if isinstance(node, int) else node.id
        children = []
        for below in self.nodes[number + 1 :]:
            if below.parent is None or below.parent < number:
                break
            if below.parent == number:
                children.append(below)
        return tuple(children)

    def path(self, node: int | CallNodeRecord) -> tuple[CallNodeRecord, ...]:
        """The nodes from the root to a node.

        Example:
            >>> tree = wb.trace(lambda x: jnp.sin(x) * 2)(1.0).call_tree
            >>> [node.kind for node in tree.path(1)]
            ['root', 'function']
        """
        at: CallNodeRecord | None = self.nodes[node if isinstance(node, int) else node.id]
        nodes = []
        while at is not None:
            nodes.append(at)
            at = None if at.parent is None else self.nodes[at.parent]
        return tuple(reversed(nodes))

    def fold(
        self, *, hidden: bool = True, passes: bool = True, operations: bool = False, layers: bool = False
    ) -> "CallTreeRecord":
        """Folds some nodes into their parents or siblings; no cost is lost, and the root is unchanged.

        Args:
            hidden: Fold library frames, so that their cost is attributed to the user's line.
            passes: Fold a line's transposed and rematerialised work into the line.
            operations: Also fold individual operations.
            layers: Also fold identical layers into one node, `12 × blocks_0…11`; see `fold_layers`.

        Example:
            >>> work = CallFiguresRecord(flops_matmul=2.0)
            >>> tree = CallTreeRecord(
            ...     made_from="jaxpr",
            ...     nodes=(
            ...         CallNodeRecord(id=0, parent=None, kind="root", name="step", total=work),
            ...         CallNodeRecord(id=1, parent=0, kind="line", name="a.py:3", hidden=True, own=work, total=work),
            ...     ),
            ... )
            >>> [(node.name, node.own.flops) for node in tree.fold().nodes]
            [('step', 2.0)]
        """
        folded = _fold(self, hidden=hidden, passes=passes, operations=operations)
        return _one_of_each_layer(folded) if layers else folded

    def with_own(self, own: Mapping[int, CallFiguresRecord]) -> "CallTreeRecord":
        """Replaces the costs of individual nodes, and updates the totals.

        Args:
            own: The new costs by node id.
        """
        return _with_own(self, own)

    def walk(self) -> Iterator[tuple[int, CallNodeRecord]]:
        """Yields every node with its depth, parents first.

        Example:
            >>> tree = CallTreeRecord(
            ...     made_from="jaxpr",
            ...     nodes=(
            ...         CallNodeRecord(id=0, parent=None, kind="root", name="step"),
            ...         CallNodeRecord(id=1, parent=0, kind="function", name="loss"),
            ...     ),
            ... )
            >>> [(depth, node.name) for depth, node in tree.walk()]
            [(0, 'step'), (1, 'loss')]
        """
        depths: dict[int, int] = {}
        for node in self.nodes:
            depths[node.id] = 0 if node.parent is None else depths[node.parent] + 1
            yield depths[node.id], node


def _fold(tree: CallTreeRecord, *, hidden: bool, passes: bool, operations: bool) -> CallTreeRecord:
    """Folds nodes into their parents; see `CallTreeRecord.fold`."""
    targets: dict[int, int] = {}  # node -> its new node, or the node that it was folded into
    groups: list[list[CallNodeRecord]] = []
    places: dict[tuple, int] = {}
    parents: list[int | None] = []
    for node in tree.nodes:
        parent = None if node.parent is None else targets[node.parent]
        is_folded = parent is not None and (
            (hidden and node.hidden) or (operations and node.kind == "operation") or (passes and _is_pass(node, tree))
        )
        if is_folded:
            targets[node.id] = parent  # type: ignore[assignment]
            groups[parent].append(node)  # type: ignore[index]
            continue
        key = (parent, node.kind if node.kind != "call" else "line", node.name, node.file, node.line, node.trip_count)
        key = (*key, None if passes else node.pass_name)
        if key not in places:
            places[key] = len(groups)
            groups.append([])
            parents.append(parent)
        targets[node.id] = places[key]
        groups[places[key]].append(node)
    return tree.replace(nodes=_written(groups, parents))


@dataclass(frozen=True, slots=True)
class Layers:
    """Siblings whose names differ only in a number; positions are indices of the given nodes."""

    parent: int
    members: tuple[int, ...]
    name: str


_FEWEST_LAYERS = 3
_NUMBER = re.compile(r"\d+(?!.*\d)")  # the last number in a name


def fold_layers(nodes: Sequence[CallNodeRecord], parents: Sequence[int]) -> list[Layers]:
    """Finds modules that contain the same functions and modules and whose names differ only in a number.

    Args:
        nodes: Nodes of a call tree.
        parents: The position of each node's parent; -1 for the root.

    Returns:
        The layers in the order of their first members; groups with fewer than three members are omitted.
    """
    inside: list[set[tuple[str, str]]] = [set() for _ in nodes]
    for node, parent in zip(nodes, parents, strict=True):
        if parent >= 0 and node.kind in ("scope", "function"):
            inside[parent].add((node.kind, _NUMBER.sub("#", node.name)))
    groups: dict[tuple[object, ...], list[int]] = {}
    for at, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
        if parent >= 0 and node.kind == "scope" and _NUMBER.search(node.name):
            key = (parent, node.pass_name, _NUMBER.sub("#", node.name), frozenset(inside[at]))
            groups.setdefault(key, []).append(at)
    layers = []
    for key, members in groups.items():
        members.sort(key=lambda at: _number_in(nodes[at].name))
        if len({nodes[at].name for at in members}) == len(members) >= _FEWEST_LAYERS:
            layers.append(Layers(int(str(key[0])), tuple(members), _layers_name([nodes[at].name for at in members])))
    return layers


def _number_in(name: str) -> int:
    match = _NUMBER.search(name)
    return int(match[0]) if match else 0


def _layers_name(names: Sequence[str]) -> str:
    """A group of layers as text: `6 × blocks_0…5`, or `5 × blocks_0, 2…5` if a layer in between is different."""
    numbers = [_number_in(name) for name in names]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}…{run[-1]}" for run in runs]
    return f"{len(names)} × {_NUMBER.sub(lambda _: ', '.join(ranges), names[0])}"


def _one_of_each_layer(tree: CallTreeRecord) -> CallTreeRecord:
    """Merges identical layers and everything inside them, node by node."""
    names: dict[int, str] = {}
    for layers in fold_layers(tree.nodes, [-1 if node.parent is None else node.parent for node in tree.nodes]):
        names |= dict.fromkeys(layers.members, layers.name)
    if not names:
        return tree
    targets: dict[int, int] = {}
    places: dict[tuple, int] = {}
    groups: list[list[CallNodeRecord]] = []
    parents: list[int | None] = []
    inside: set[int] = set()  # nodes of layers
    for node in tree.nodes:
        parent = None if node.parent is None else targets[node.parent]
        key: tuple = (parent, node.id)
        if node.id in names or node.parent in inside:
            inside.add(node.id)
            key = (parent, node.kind, names.get(node.id, node.name), node.file, node.line, node.trip_count)
            key = (*key, node.pass_name)
        if key not in places:
            places[key] = len(groups)
            groups.append([])
            parents.append(parent)
        targets[node.id] = places[key]
        scope = _scope_of_layers(tree, node, names) if node.id in inside else node.scope
        groups[places[key]].append(node.replace(name=names.get(node.id, node.name), scope=scope))
    return tree.replace(nodes=_written(groups, parents))


def _scope_of_layers(tree: CallTreeRecord, node: CallNodeRecord, names: Mapping[int, str]) -> str:
    """The module path of a node, with numbers combined into ranges: `decoder/blocks_0…11/mlp`."""
    parts = node.scope.split("/")
    for above in reversed(tree.path(node)):
        last, length = above.scope.count("/") + 1, above.name.count("/") + 1
        if above.id in names and "/".join(parts[:last]).endswith(above.name):
            parts[last - length : last] = [names[above.id].partition(" × ")[2]]
    return "/".join(parts)


def _is_pass(node: CallNodeRecord, tree: CallTreeRecord) -> bool:
    """Returns whether a node only marks one pass (such as backward) of the work on its parent's line."""
    if node.kind not in ("line", "call") or node.parent is None:
        return False
    parent = tree.nodes[node.parent]
    return (parent.name, parent.line, parent.file) == (node.name, node.line, node.file) and parent.kind != "function"


def _written(groups: list[list[CallNodeRecord]], parents: list[int | None]) -> tuple[CallNodeRecord, ...]:
    below: list[list[int]] = [[] for _ in groups]
    for number, parent in enumerate(parents):
        if parent is not None:
            below[parent].append(number)
    own_figures = [sum_figures(node.own for node in group) for group in groups]
    total: list[CallFiguresRecord] = list(own_figures)
    for number in reversed(range(len(groups))):  # children follow their parents
        total[number] = sum_figures((own_figures[number], *(total[child] for child in below[number])))
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
            own=own_figures[number],
            total=total[number],
        )
        for number in order
    )


def _pass(nodes: list[CallNodeRecord]) -> CallPass:
    first = nodes[0].pass_name
    return first if all(node.pass_name == first for node in nodes) else "mixed"


def _with_own(tree: CallTreeRecord, figures: Mapping[int, CallFiguresRecord]) -> CallTreeRecord:
    """Replaces the costs of some nodes, and updates the totals."""
    parts: list[list[CallFiguresRecord]] = [[figures.get(node.id, node.own)] for node in tree.nodes]
    nodes: list[CallNodeRecord] = list(tree.nodes)
    for node in reversed(tree.nodes):  # children follow their parents
        total = sum_figures(parts[node.id])
        nodes[node.id] = node.replace(own=parts[node.id][0], total=total)
        if node.parent is not None:
            parts[node.parent].append(total)
    return tree.replace(nodes=tuple(nodes))


def sum_figures(figures: Iterable[CallFiguresRecord]) -> CallFiguresRecord:
    """Sums the costs of several nodes."""
    summands = [figure for figure in figures if not figure.is_zero]
    if len(summands) < 2:
        return summands[0] if summands else CallFiguresRecord()
    predicted = [figure.predicted_seconds for figure in summands if figure.predicted_seconds is not None]
    unknown = any(figure.unknown_seconds for figure in summands)
    return CallFiguresRecord(
        flops_matmul=sum(figure.flops_matmul for figure in summands),
        flops_elementwise=sum(figure.flops_elementwise for figure in summands),
        traffic_bytes=sum(figure.traffic_bytes for figure in summands),
        sent_bytes=_added(figure.sent_bytes for figure in summands),
        collectives=_collectives(summands),
        peak_bytes=sum(figure.peak_bytes for figure in summands),
        constant_bytes=sum(figure.constant_bytes for figure in summands),
        predicted_seconds=sum(predicted) if predicted and not unknown else None,
        unknown_seconds=unknown,
        measured_seconds=_added(figure.measured_seconds for figure in summands),
    )


def _added(amounts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for table in amounts:
        for key, amount in table.items():
            total[key] = total.get(key, 0.0) + amount
    return total


def _collectives(figures: list[CallFiguresRecord]) -> tuple[Any, ...]:
    sums: dict[tuple, Any] = {}
    for collective in (c for figure in figures for c in figure.collectives):
        key = collective.kind, collective.axes
        total = sums.get(key)
        sums[key] = (
            collective
            if total is None
            else collective.replace(
                count=total.count + collective.count,
                executions=total.executions + collective.executions,
                payload_bytes=total.payload_bytes + collective.payload_bytes,
                sent_bytes=total.sent_bytes + collective.sent_bytes,
                largest_bytes=None
                if total.largest_bytes is None or collective.largest_bytes is None
                else max(total.largest_bytes, collective.largest_bytes),
            )
        )
    return tuple(sums.values())
