"""Records of what really happened: runs on an engine or a mesh. Every number here is measured."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record, Results
from workbench.records._call_tree import CallTreeRecord
from workbench.records._program import DisclosedRecord, SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRunRecord(Record):
    """Measured seconds of one stage at one place, per call."""

    stage: str
    where: str  # "cpu:3", "thread 2", "worker tcp://…"
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    wait_seconds: float = 0.0
    calls: int = 1
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    peak_flops_share: float | None = None  # of the chip's published peak, 0..1
    peak_bandwidth_share: float | None = None
    elementwise_flops_per_second: float | None = None  # `flops_per_second` is that of dot products and convolutions
    copy_seconds: float = 0.0  # copies between memories, where the profile names them: not part of the computing


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRunRecord(Record):
    """Measured work of one client in one stage."""

    stage: str
    client: int | str
    seconds: float | None = None
    steps: int | None = None
    where: str = ""
    sent_bytes: int | None = None  # what left the client
    received_bytes: int | None = None  # what the server sent to it
    error: str | None = None
    flops: float | None = None  # that this client really computed: of dot products and convolutions
    loops: dict[str, int] = field(default_factory=dict)  # instruction of an inner loop -> its iterations
    elementwise_flops: float | None = None  # the same of elementwise operations and reductions


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord(Record):
    """One span on a device's time line, seconds from the start of the run."""

    where: str
    name: str
    start_seconds: float
    seconds: float
    kind: Literal["compute", "collective", "copy", "wait", "other"] = "compute"
    stage: str | None = None
    source: SourceLine | None = None
    program: str | None = None  # of a profile with several programs: "jit_step(17)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Record):
    """A run that took place. `results` is the program's output pytree and stays out of JSON."""

    name: str
    engine: str
    seconds: float  # wall time of the measured calls, warm-up left out
    rounds: int = 1
    warmup_seconds: float | None = None
    stages: tuple[StageRunRecord, ...] = ()
    clients: tuple[ClientRunRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    round_seconds: tuple[float, ...] = ()
    overhead: float | None = None  # measured calls over the same calls without measuring, 1.0: none
    moved_bytes: int | None = None
    disclosed: tuple[DisclosedRecord, ...] = ()  # by the clients to the server, by stage
    call_tree: CallTreeRecord | None = None  # of the module that ran, with measured seconds
    joined_events: float | None = None  # share of device events matched to an instruction
    attributed_seconds: float | None = None  # share of device time with a stage
    memory_before_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_after_bytes: int | None = None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    results: Results = field(default=None, repr=False, compare=False)
