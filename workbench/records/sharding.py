"""Records of array shardings, and of the reasons for communication."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record
from workbench.records.hardware import MeshRecord
from workbench.records.program import SourceLine

CollectiveKind = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
]
# collectives planned by Shardy; the compiler chooses how to implement a `reshard`
PlannedCollectiveKind = Literal[CollectiveKind, "reshard"]
# `auto`, `explicit`, `manual` and `mixed` are the types of the mesh axes; a `positional` sharding has no axis names
ShardingKind = Literal["auto", "explicit", "manual", "mixed", "single", "positional", "host", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord(Record):
    """The slice of a leaf (start and stop per dimension) on one device."""

    device_id: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    replica: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafShardingRecord(Record):
    """The layout of one array (of a pytree) on the devices."""

    path: str  # source notation: `params['w']` for a program, `jax.tree_util.keystr` for a pytree
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]  # mesh axes per dimension
    shard_shape: tuple[int, ...]
    size_bytes: int
    bytes_per_device: int
    replication: int  # number of devices with the same slice
    padding_bytes: int = 0
    kind: ShardingKind = "auto"
    memory_kind: str | None = None
    shards: tuple[ShardRecord, ...] = ()  # left out (empty) for summarised leaves; see `notes`
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingGroupRecord(Record):
    """Sums over the arrays below one module path."""

    path: str  # "params['decoder']['layers_0']"; "" for the whole pytree
    depth: int  # parts of the path
    arrays: int
    size_bytes: int
    bytes_per_device: int
    replicated_bytes: int  # part of `bytes_per_device` that is also stored on other devices
    unsharded: tuple[str, ...] = ()  # paths of its fully replicated arrays, largest first


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRecord(Record):
    """The shardings of a whole pytree."""

    leaves: tuple[LeafShardingRecord, ...]
    mesh: MeshRecord | None = None
    total_bytes: int = 0
    bytes_per_device: int = 0  # the fullest device
    notes: tuple[str, ...] = ()

    def groups(self, depth: int | None = None) -> tuple[ShardingGroupRecord, ...]:
        """Groups the arrays by module path: a group before its inner groups, most replicated bytes first.

        Args:
            depth: Number of path parts to distinguish; None means all, down to the modules that contain the arrays.

        Returns:
            One record per module path, the whole pytree first. A chain of modules without branches is one group.

        Example:
            >>> leaf = LeafShardingRecord(path="['params']['dense']['kernel']", shape=(4,), dtype="float32", spec=((),),
            ...                           shard_shape=(4,), size_bytes=16, bytes_per_device=16, replication=2)
            >>> [(group.path, group.replicated_bytes) for group in ShardingRecord(leaves=(leaf,)).groups()]
            [("['params']['dense']", 16)]
        """
        return tuple(_grouped([(_split_path(leaf.path), leaf) for leaf in self.leaves], 0, depth))

    def unsharded(self, least_bytes: int = 1 << 20) -> tuple[LeafShardingRecord, ...]:
        """Lists fully replicated arrays of at least `least_bytes`, largest first."""
        arrays = [leaf for leaf in self.leaves if leaf.size_bytes >= least_bytes and _is_unsharded(leaf)]
        return tuple(sorted(arrays, key=lambda leaf: -leaf.size_bytes))


def _is_unsharded(leaf: LeafShardingRecord) -> bool:
    """Returns whether an array is fully replicated on several devices."""
    return leaf.replication > 1 and leaf.bytes_per_device >= leaf.size_bytes > 0


def _split_path(path: str) -> tuple[str, ...]:
    """Splits a `keystr` into its parts.

    Example:
        >>> _split_path("[0].mu['params']['dense'].kernel")
        ('0', 'mu', 'params', 'dense', 'kernel')
    """
    return tuple(key or attribute or index or other for key, index, other, attribute in _PART.findall(path))


def _prefix(path: str, depth: int) -> str:
    """Returns the first `depth` parts of a path, in their original notation."""
    ends = [part.end() for part in _PART.finditer(path)]
    return path[: ends[depth - 1]] if depth else ""


def pattern_of(name: str) -> str:
    """Replaces the layer numbers in a leaf's path with `*`.

    Example:
        >>> pattern_of("params['layers'][3]['w']"), pattern_of("params['block_12']['w']")
        ("params['layers'][*]['w']", "params['block_*']['w']")
    """
    return LAYER_NUMBER.sub("*", name)


LAYER_NUMBER = re.compile(r"(?<=[\[._])\d+(?=$|[\]._])|(?<=_)\d+(?=['\"\]])")
_PART = re.compile(r"""\[['"]([^\]]*)['"]\]|\[(\d+)\]|\[([^\]]*)\]|\.?([A-Za-z_]\w*)""")


def _grouped(
    leaves: list[tuple[tuple[str, ...], LeafShardingRecord]], start: int, limit: int | None
) -> Iterator[ShardingGroupRecord]:
    """Yields the group of leaves that have the first `start` path parts in common, then the groups inside it."""
    depth = start
    while leaves and all(len(path) > depth + 1 and path[depth] == leaves[0][0][depth] for path, _ in leaves):
        depth += 1  # a chain without branches: no separate group
    if limit is not None:
        depth = min(depth, limit)
    yield _group(leaves, depth)
    if limit is not None and depth >= limit:
        return
    inside: dict[str, list[tuple[tuple[str, ...], LeafShardingRecord]]] = {}
    for path, leaf in leaves:
        if len(path) > depth + 1:
            inside.setdefault(path[depth], []).append((path, leaf))
    groups = [tuple(_grouped(part, depth + 1, limit)) for part in inside.values()]
    for group in sorted(groups, key=lambda group: (-group[0].replicated_bytes, -group[0].bytes_per_device)):
        yield from group


def _group(leaves: list[tuple[tuple[str, ...], LeafShardingRecord]], depth: int) -> ShardingGroupRecord:
    arrays = [leaf for _, leaf in leaves]
    full_arrays = sorted((leaf for leaf in arrays if _is_unsharded(leaf)), key=lambda leaf: -leaf.size_bytes)
    return ShardingGroupRecord(
        path=_prefix(leaves[0][1].path, depth) if leaves else "",
        depth=depth,
        arrays=len(arrays),
        size_bytes=sum(leaf.size_bytes for leaf in arrays),
        bytes_per_device=sum(leaf.bytes_per_device for leaf in arrays),
        replicated_bytes=sum(leaf.bytes_per_device for leaf in arrays if leaf.replication > 1),
        unsharded=tuple(leaf.path for leaf in full_arrays),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationEdge(Record):
    """The reason why a mesh axis shards a value: it was propagated from `origin` at `step`."""

    step: int
    axis: str
    from_value: str
    to_value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisArrivalRecord(Record):
    """Propagation of one mesh axis to one value: the step, and the source value.

    An initial axis (an input's sharding or a constraint) has neither a step nor a source.
    """

    value: str
    axis: str
    dimensions: tuple[int, ...]
    step: int | None = None
    from_value: str | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValueRecord(Record):
    """A value of the StableHLO program with its propagated sharding."""

    name: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]
    origins: dict[str, str]  # mesh axis -> "input: 2", "constraint: 0", ...
    rule: str = ""  # einsum-like sharding rule
    stage: str | None = None
    source: SourceLine | None = None
    op_name: str = ""
    operands: tuple[str, ...] = ()  # names of its operands


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCollectiveRecord(Record):
    """A collective requested by propagation; the compiler may combine or change it."""

    kind: PlannedCollectiveKind
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    stage: str | None = None
    source: SourceLine | None = None
    device_bytes: int | None = None  # bytes of one device's operand; `size_bytes` is the size of the value as written
    op_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationRecord(Record):
    """Shardy's propagation for one program; `engine` is `none` if Shardy rejected the program."""

    values: tuple[PlannedValueRecord, ...] = ()
    edges: tuple[PropagationEdge, ...] = ()
    collectives: tuple[PlannedCollectiveRecord, ...] = ()
    engine: Literal["in-process", "none"] = "in-process"
    notes: tuple[str, ...] = ()


Reason = Literal[
    "sum",  # parts are added
    "disagreement",  # operands, or an operand and the result, are sharded differently
    "constraint",  # `with_sharding_constraint`, `reshard`
    "whole dimension",  # the operation moves elements along it
    "unsplit operation",  # the partitioner cannot split it
    "output",  # the sharding of the results
    "program",  # an explicit collective in the program
    "compiler",  # a choice by the compiler that propagation does not explain
    "unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOperandRecord(Record):
    """An operand in a conflict: its sharding, and the origin of every axis."""

    name: str  # user-facing name: the argument, or the operation with its line
    value: str  # its name in the propagation, such as "%4"
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]
    source: SourceLine | None = None
    origins: dict[str, str] = field(default_factory=dict)  # mesh axis -> text about its origin
    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)  # mesh axis -> the steps back to its origin


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyCollectiveRecord(Record):
    """The reason for one collective: the operation that needs it, its operands and their shardings."""

    kind: str
    axes: tuple[str, ...]
    executions: float | None
    payload_bytes: int
    reason: Reason
    sentence: str
    operation: str = ""
    source: SourceLine | None = None  # the line that needs the exchange
    callers: tuple[SourceLine, ...] = ()  # lines that lead to the call of that line's function, innermost first
    operands: tuple[WhyOperandRecord, ...] = ()
    advice: str = ""
    instruction: str = ""  # name in the compiled module
    sent_bytes: float | None = None  # `CollectiveRecord.sent_bytes`; None if nothing was compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyArrayRecord(Record):
    """The reason why one large array is fully or partly replicated."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    copies: int
    sentence: str
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyCauseRecord(Record):
    """A propagation decision that causes several collectives."""

    axis: str
    sentence: str
    advice: str
    source: SourceLine | None = None
    value: str = ""  # name in the propagation of the first value without the axis
    spec: tuple[tuple[str, ...], ...] = ()  # the sharding that keeps the axis
    collectives: int = 0  # how many follow
    payload_bytes: float = 0.0  # payload of these collectives, per device and call
    sent_bytes: float = 0.0  # bytes that one device sends per call for these collectives


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyRecord(Record):
    """Reasons for a program's communication, and for its large replicated arrays."""

    name: str
    target: str
    causes: tuple[WhyCauseRecord, ...] = ()  # most bytes first
    collectives: tuple[WhyCollectiveRecord, ...] = ()
    arrays: tuple[WhyArrayRecord, ...] = ()
    notes: tuple[str, ...] = ()
