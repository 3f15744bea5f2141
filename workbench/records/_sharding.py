"""Records of how arrays are laid out over devices, and why."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record
from workbench.records._hardware import MeshRecord
from workbench.records._program import SourceLine

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
# what Shardy plans, which leaves the choice of a `reshard` to the compiler
PlannedCollectiveKind = Literal[CollectiveKind, "reshard"]
# `auto`, `explicit`, `manual` and `mixed` are the types of the mesh axes; a `positional` sharding has no axis names
ShardingKind = Literal["auto", "explicit", "manual", "mixed", "single", "positional", "host", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord(Record):
    """The slice (start, stop per dimension) of one leaf that one device holds."""

    device_id: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    replica: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafShardingRecord(Record):
    """How one array of a pytree lies on the devices."""

    path: str  # jax.tree_util.keystr
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]  # mesh axes per dimension
    shard_shape: tuple[int, ...]
    size_bytes: int
    bytes_per_device: int
    replication: int  # how many devices hold the same slice
    padding_bytes: int = 0
    kind: ShardingKind = "auto"
    memory_kind: str | None = None
    shards: tuple[ShardRecord, ...] = ()  # left out (empty) for summarised leaves; see `notes`
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRecord(Record):
    """The shardings of a whole pytree."""

    leaves: tuple[LeafShardingRecord, ...]
    mesh: MeshRecord | None = None
    total_bytes: int = 0
    bytes_per_device: int = 0  # the fullest device
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationEdge(Record):
    """Why one mesh axis shards one value: at `step` it came from `origin` through an operation."""

    step: int
    axis: str
    from_value: str
    to_value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisArrivalRecord(Record):
    """How one mesh axis came to shard one value: at which step of the propagation, and from which value.

    An axis that was there from the beginning (an input's sharding, a constraint) has neither.
    """

    value: str
    axis: str
    dimensions: tuple[int, ...]
    step: int | None = None
    from_value: str | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValueRecord(Record):
    """A value of the StableHLO program with the sharding that propagation gave it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCollectiveRecord(Record):
    """A collective that propagation asks for, by mesh axis name; the compiler may combine or change it."""

    kind: PlannedCollectiveKind
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    stage: str | None = None
    source: SourceLine | None = None
    device_bytes: int | None = None  # one device's operand; `size_bytes` is of the value as written
    op_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationRecord(Record):
    """Shardy's propagation of one program; `engine` is `dump` where it was read from dump files."""

    values: tuple[PlannedValueRecord, ...] = ()
    edges: tuple[PropagationEdge, ...] = ()
    collectives: tuple[PlannedCollectiveRecord, ...] = ()
    engine: Literal["in-process", "dump", "none"] = "in-process"
    notes: tuple[str, ...] = ()
