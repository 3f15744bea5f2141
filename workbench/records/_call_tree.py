"""Records of the call tree: every figure of a program on the user's own functions, modules and lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record
from workbench.records._call_fold import fold, with_own
from workbench.records._sharding import CollectiveKind

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
        return fold(self, hidden=hidden, passes=passes, operations=operations)

    def with_own(self, own: Mapping[int, CallFiguresRecord]) -> "CallTreeRecord":
        """The tree with other figures of single nodes, and the totals that follow.

        Args:
            own: The new figures by the number of the node.
        """
        return with_own(self, own)

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
