"""Records of node programs: the graph before launch, and node states after launch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record

NodeKind = Literal["function", "class", "service"]
NodeStateName = Literal[
    "waiting", "starting", "running", "serving", "finished", "stopped", "restarting", "raised", "killed", "hung"
]


LaunchStatus = Literal["running", "stopping", "finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord(Record):
    """One node: a function, an object with a `run` loop, or a service with callable methods."""

    label: str  # "actors/0"
    group: str
    kind: NodeKind
    target: str  # the qualified name of the function or class
    methods: tuple[str, ...] = ()  # methods that other nodes may call
    runs: bool = True  # False: a passive service that only answers calls
    host: int = 0  # nodes of one host share a process
    concurrency: int = 1  # maximum concurrent calls of a service
    restart_limit: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRecord(Record):
    """`source` has a handle to `target`, so it may call `target`."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramGraphRecord(Record):
    """A program before it is launched."""

    name: str
    nodes: tuple[NodeRecord, ...]
    edges: tuple[EdgeRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStateRecord(Record):
    """Current state of one node. All numbers are measured; numbers that this engine cannot measure are None."""

    label: str
    state: NodeStateName
    where: str  # "thread 1234", "process 4321", "worker tcp://…"
    heartbeat_age_seconds: float | None = None  # since the node last called, answered, logged or checked the stop flag
    uptime_seconds: float | None = None
    calls: int = 0  # answered since the node (re)started
    calls_per_second: float | None = None
    call_errors: int = 0
    active_calls: int = 0
    queue_length: int = 0  # calls that wait
    # processor seconds per second; a process shared by several nodes counts fully for each node
    cpu_cores: float | None = None
    memory_bytes: int | None = None  # resident memory of the node's process
    restarts: int = 0
    exit_code: int | None = None  # 0 finished, 1 raised, -9 killed by signal 9, None while it runs
    log_tail: tuple[str, ...] = ()
    error: str | None = None  # traceback, or other information about how the node ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRecord(Record):
    """State of a launched program at one point in time."""

    graph: ProgramGraphRecord
    engine: str  # "threads", "processes", "dask", "ray"
    status: LaunchStatus
    elapsed_seconds: float  # from launch until now, or until its end
    states: tuple[NodeStateRecord, ...]


class LiveProgram(ABC):
    """A launched program, which changes while a view shows it."""

    @property
    @abstractmethod
    def record(self) -> LaunchedRecord:
        """The graph and the current state of each node."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """True while any part of the program is running."""

    @abstractmethod
    def logs(self, node: str) -> Sequence[str]:
        """The lines of a node's log."""

    @abstractmethod
    def stop(self) -> object:
        """Ends all nodes."""
