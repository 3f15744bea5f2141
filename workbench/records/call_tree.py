"""Records of the call tree: every figure of a program on the user's own functions, modules and lines."""

from collections.abc import Iterable, Iterator, Mapping
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
    axes: tuple[str, ...]  # the user's mesh axes; () where the group is no product of axes
    count: float  # instructions; below 1 where a combined collective is split over several lines
    executions: float  # in one call of the program
    payload_bytes: float  # one device's operands, all executions together
    sent_bytes: float  # what one device sends, all executions together


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFiguresRecord(Record):
    """Cost of a node in one call of the program; seconds are None until a chip is named.

    Of a compiled module the figures are those of one device. Of a jaxpr they are those of all devices together,
    with what XLA's partitioner will add left out.
    """

    flops_matmul: float = 0.0  # dot products and convolutions; a multiply and an add are two
    flops_elementwise: float = 0.0  # one per element of an arithmetic operation, or per element that is reduced
    traffic_bytes: float = 0.0  # of main memory, read and written
    sent_bytes: dict[str, float] = field(default_factory=dict)  # mesh axes (joined by "+") -> bytes one device sends
    collectives: tuple[CallCollectiveRecord, ...] = ()
    peak_bytes: float = 0.0  # of the buffers alive at the peak of memory, those that this node made
    constant_bytes: float = 0.0  # compile-time constants
    predicted_seconds: float | None = None
    unknown_seconds: bool = False  # a part has no known seconds, so that neither the node nor those above have a sum
    measured_seconds: dict[str, float] = field(default_factory=dict)  # device -> seconds per call

    @property
    def flops(self) -> float:
        """Matrix products, convolutions and elementwise operations together."""
        return self.flops_matmul + self.flops_elementwise

    @property
    def sent(self) -> float:
        """Bytes that one device sends, over all mesh axes."""
        return sum(self.sent_bytes.values())

    @property
    def is_zero(self) -> bool:
        """True if the node costs nothing that is counted."""
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
    """One node of a call tree; `id` is its position in `CallTreeRecord.nodes`, where parents come before children.

    Kinds: `root` is the program; `function` a Python function, at the line of its definition where that is known;
    `call` the line of a function that calls the function below it; `line` a line whose operations are its own;
    `scope` a name scope or module path that no function opened; `loop` a `scan`, `while` or `cond`; `operation` an HLO
    instruction or an equation; `unattributed` what carries no place in the user's code.
    """

    id: int
    parent: int | None
    kind: CallKind
    name: str  # a qualified name, "train.py:31", "layers_0/mlp", "scan", "dot_general"
    file: str | None = None  # "In [3]" for a cell of a notebook
    line: int | None = None
    column: int | None = None
    pass_name: CallPass = "forward"  # "mixed": the children are of several passes
    trip_count: float | None = (
        None  # of a loop: iterations per time that the loop is entered; None: unknown, or no loop
    )
    hidden: bool = False  # a frame of a library: fold it into its parent
    scope: str = ""  # the module path of this node: "decoder/layers_0/mlp"
    split: bool = False  # figures are shares of instructions that the compiler fused or combined from several lines
    at_least: bool = False  # a loop of unknown length is inside, of which one iteration is counted
    instructions: dict[str, float] = field(default_factory=dict)  # of an operation: HLO instruction -> share of it
    own: CallFiguresRecord = field(default_factory=CallFiguresRecord)  # without the children
    total: CallFiguresRecord = field(default_factory=CallFiguresRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTreeRecord(Record):
    """Every figure of one call of a program, on the user's functions, modules and lines.

    `total` of a node is its `own` and the totals of its children; that of the root is the program's.
    """

    made_from: Literal["compiled", "jaxpr"]
    nodes: tuple[CallNodeRecord, ...]  # depth first, so that the nodes below one follow it directly
    attributed_to_line: dict[str, float] = field(default_factory=dict)  # figure -> share on a user's line, 0..1
    attributed_to_module: dict[str, float] = field(default_factory=dict)  # figure -> share in a function or module
    # figure -> share on a line that was taken from what reads or makes the value, because the compiler dropped its own
    inferred: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def root(self) -> CallNodeRecord:
        """The program."""
        return self.nodes[0]

    def children(self, node: int | CallNodeRecord) -> tuple[CallNodeRecord, ...]:
        """The nodes directly below one.

        Example:
            >>> tree = wb.trace(lambda x: jnp.sin(x) * 2)(1.0).call_tree
            >>> [node.kind for node in tree.children(0)]
            ['function']
        """
        number = node if isinstance(node, int) else node.id
        found = []
        for below in self.nodes[number + 1 :]:
            if below.parent is None or below.parent < number:
                break
            if below.parent == number:
                found.append(below)
        return tuple(found)

    def path(self, node: int | CallNodeRecord) -> tuple[CallNodeRecord, ...]:
        """The nodes from the root to one.

        Example:
            >>> tree = wb.trace(lambda x: jnp.sin(x) * 2)(1.0).call_tree
            >>> [node.kind for node in tree.path(1)]
            ['root', 'function']
        """
        at: CallNodeRecord | None = self.nodes[node if isinstance(node, int) else node.id]
        found = []
        while at is not None:
            found.append(at)
            at = None if at.parent is None else self.nodes[at.parent]
        return tuple(reversed(found))

    def fold(self, *, hidden: bool = True, passes: bool = True, operations: bool = False) -> "CallTreeRecord":
        """The tree with some nodes folded into the ones above them; no figure is lost and the root stays as it is.

        Args:
            hidden: Folds frames of libraries, so that their cost is the user's line's.
            passes: Folds the transposed and the rematerialised work of a line onto the line.
            operations: Folds single operations too.

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
        return _fold(self, hidden=hidden, passes=passes, operations=operations)

    def with_own(self, own: Mapping[int, CallFiguresRecord]) -> "CallTreeRecord":
        """The tree with other figures of single nodes, and the totals that follow.

        Args:
            own: The new figures by the number of the node.
        """
        return _with_own(self, own)

    def walk(self) -> Iterator[tuple[int, CallNodeRecord]]:
        """Every node with its depth, parents first.

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


def _is_pass(node: CallNodeRecord, tree: CallTreeRecord) -> bool:
    """Returns whether a node only says which pass the work of its parent's line belongs to."""
    if node.kind not in ("line", "call") or node.parent is None:
        return False
    parent = tree.nodes[node.parent]
    return (parent.name, parent.line, parent.file) == (node.name, node.line, node.file) and parent.kind != "function"


def _written(groups: list[list[CallNodeRecord]], parents: list[int | None]) -> tuple[CallNodeRecord, ...]:
    below: list[list[int]] = [[] for _ in groups]
    for number, parent in enumerate(parents):
        if parent is not None:
            below[parent].append(number)
    empty = type(groups[0][0].own)()
    own = [_sum_figures((node.own for node in group), empty) for group in groups]
    total: list[CallFiguresRecord] = list(own)
    for number in reversed(range(len(groups))):  # children are after their parents
        total[number] = _sum_figures((own[number], *(total[child] for child in below[number])), empty)
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


def _pass(nodes: list[CallNodeRecord]) -> CallPass:
    first = nodes[0].pass_name
    return first if all(node.pass_name == first for node in nodes) else "mixed"


def _with_own(tree: CallTreeRecord, own: Mapping[int, CallFiguresRecord]) -> CallTreeRecord:
    """The tree with other figures of some nodes, and the totals that follow."""
    empty = type(tree.root.own)()
    parts: list[list[CallFiguresRecord]] = [[own.get(node.id, node.own)] for node in tree.nodes]
    nodes: list[CallNodeRecord] = list(tree.nodes)
    for node in reversed(tree.nodes):  # children are after their parents
        total = _sum_figures(parts[node.id], empty)
        nodes[node.id] = node.replace(own=parts[node.id][0], total=total)
        if node.parent is not None:
            parts[node.parent].append(total)
    return tree.replace(nodes=tuple(nodes))


def _sum_figures(figures: Iterable[CallFiguresRecord], empty: CallFiguresRecord) -> CallFiguresRecord:
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


def _collectives(given: list[CallFiguresRecord]) -> tuple[Any, ...]:
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
