"""Records of runs: on an engine or a mesh, played stage by stage, overlaid, and of simulated populations."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record, Results
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import DisclosedRecord, SourceLine, StageKind


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedValueRecord(Record):
    """One array that a stage made. Of a client-placed one, the lists have one entry per client, else one in all."""

    name: str
    shape: tuple[int, ...]  # of one client
    dtype: str
    size_bytes: int  # of one client
    norms: tuple[float, ...]  # Euclidean, of finite numbers
    distances: tuple[float, ...] = ()  # of each client's value from what it received, where the shapes are equal
    picture: tuple[float, ...] = ()  # the array, averaged down to `picture_shape`; clients one after the other
    picture_shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStageRecord(Record):
    """One stage with its values."""

    path: str
    kind: StageKind
    name: str
    clients: int = 1
    moved_bytes: int = 0  # between the server and all clients
    values: tuple[PlayedValueRecord, ...] = ()
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedCourseRecord(Record):
    """A number that every client emitted at its local steps; None where it is not finite."""

    name: str
    values: tuple[tuple[float | None, ...], ...]  # [clients][steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRecord(Record):
    """One evaluation of a program, stage by stage; `results` is the program's output pytree and stays out of JSON."""

    name: str
    stages: tuple[PlayedStageRecord, ...]
    courses: tuple[PlayedCourseRecord, ...] = ()
    pictured_clients: tuple[int, ...] = ()  # whose values are in the pictures
    notes: tuple[str, ...] = ()
    results: Results = field(default=None, repr=False, compare=False)


_Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaidMetricRecord(Record):
    """One metric of one result over its rounds: the mean over seeds, its interval, and every seed.

    Attributes:
        metric: Its name; of a metric with one value per client, the mean over them.
        rounds: Which rounds the curves have points at; long runs are thinned.
        mean: Over the seeds that are compared; None where it is not known.
        low: Lower end of the interval; None with a single seed, which says nothing about others.
        high: Its upper end.
        seeds: The curve of every seed that is drawn.
        final: Mean of the final values over the compared seeds; None where no seed is compared.
        final_low: Lower end of its interval.
        final_high: Its upper end.
    """

    metric: str
    rounds: tuple[int, ...]
    mean: _Numbers
    low: _Numbers
    high: _Numbers
    seeds: tuple[_Numbers, ...] = ()
    final: float | None = None
    final_low: float | None = None
    final_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaidResultRecord(Record):
    """Runs with several seeds under one name.

    Attributes:
        name: Of the result.
        status: How its runs ended, such as "finished" or "2 finished, 1 diverged".
        seeds: The seeds that are drawn.
        compared: How many of them count in means and tests.
        left_out: Why the others do not, one sentence each.
        metrics: The curves.
    """

    name: str
    status: str
    seeds: tuple[int, ...]
    compared: int
    left_out: tuple[str, ...] = ()
    metrics: tuple[OverlaidMetricRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPairRecord(Record):
    """The difference of two results, paired by seed.

    Attributes:
        metric: What is compared.
        a: The first result.
        b: The second result.
        pairs: Seeds that both have.
        difference: Mean of a minus that of b.
        low: Lower end of its interval; None for a single pair.
        high: Its upper end.
        p: Of the paired test; None where there are too few pairs for one.
        p_corrected: Corrected for the number of pairs of results.
    """

    metric: str
    a: str
    b: str
    pairs: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverlayRecord(Record):
    """Several runs, or all trials of a sweep, over one another.

    Attributes:
        name: What they are.
        metric: The one that is shown first.
        minimize: Whether small is good.
        confidence: Of all intervals.
        results: In the order in which they were given.
        pairs: Paired tests, for the metric that is shown first.
        running: Whether some of them have not ended, so that there are no tests yet.
    """

    name: str
    metric: str
    minimize: bool
    confidence: float
    results: tuple[OverlaidResultRecord, ...]
    pairs: tuple[ResultPairRecord, ...] = ()
    running: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics, each once, the first one first."""
        every = (curve.metric for result in self.results for curve in result.metrics)
        return tuple(dict.fromkeys((self.metric, *every)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClassRecord(Record):
    """Devices that are alike: medians, around which single devices are spread log-normally."""

    name: str
    share: float  # of the population, 0..1
    flops_per_second: float  # sustained while training, not the peak of a data sheet
    download_bytes_per_second: float
    upload_bytes_per_second: float
    memory_bytes: int  # free for training
    battery_joules: float
    compute_watts: float
    radio_watts: float
    compute_spread: float = 0.0  # standard deviation of the logarithm of a device's speed
    bandwidth_spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecord(Record):
    """Computation and exchange of one client in one round; both kinds of FLOPs take time."""

    flops: float  # of matrix products and convolutions
    download_bytes: float
    upload_bytes: float
    memory_bytes: int = 0  # a lower bound of what training needs; devices with less do not participate
    spread: float = 0.0  # standard deviation of the logarithm of a client's work, whose mean is `total_flops`
    source: str = ""  # the program that the numbers were read from
    elementwise_flops: float = 0.0  # one per element of an elementwise operation or a reduction

    @property
    def total_flops(self) -> float:
        """Matrix and elementwise work together."""
        return self.flops + self.elementwise_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRoundRecord(Record):
    """One exchange of a protocol between every client and the server."""

    name: str
    upload_bytes: float  # by one client
    download_bytes: float
    after_training: bool  # whether the server asks for it once results are there


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolCostRecord(Record):
    """Cost that a protocol adds to a round of aggregation, for each client."""

    name: str
    rounds: tuple[ProtocolRoundRecord, ...]
    clients: int
    threshold: int  # with fewer results than this the round is lost
    server_operations: float = 0.0  # mask words that the server expands when `dropouts` clients are missing
    client_operations: float = 0.0  # mask words that one client expands
    dropouts: int = 0
    references: tuple[str, ...] = ()

    @property
    def upload_bytes(self) -> float:
        """Of one client, in all exchanges."""
        return sum(each.upload_bytes for each in self.rounds)

    @property
    def download_bytes(self) -> float:
        """Of one client, in all exchanges."""
        return sum(each.download_bytes for each in self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRoundRecord(Record):
    """One server step on the virtual clock. Bytes and energy are those of all clients together."""

    round: int
    start_seconds: float  # since midnight UTC of the first day
    seconds: float
    asked: int  # clients that began to work
    used: int  # results in the server's step
    late: int  # clients that were stopped, or came after the round had ended
    dropped: int  # clients whose device left or failed
    succeeded: bool
    download_bytes: float
    upload_bytes: float
    wasted_bytes: float  # of both directions, by clients whose result was not used
    between_servers_bytes: float = 0.0
    energy_joules: float = 0.0
    wasted_joules: float = 0.0
    staleness: float = 0.0  # server steps between a client's start and the use of its result, the mean
    available_share: float | None = None  # of the clients that were looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationRunRecord(Record):
    """Rounds of a population on a virtual clock: nothing ran but a model of devices, networks and their owners."""

    clients: int
    schedule: Literal["synchronous", "buffered"]
    cohort: int
    work: WorkRecord
    devices: tuple[DeviceClassRecord, ...]
    rounds: tuple[SimulatedRoundRecord, ...]
    seed: int
    protocol: ProtocolCostRecord | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of virtual time, from the start of the first round to the end of the last."""
        return self.rounds[-1].start_seconds + self.rounds[-1].seconds - self.rounds[0].start_seconds

    @property
    def energy_joules(self) -> float:
        """Of all devices in all rounds."""
        return sum(each.energy_joules for each in self.rounds)

    @property
    def moved_bytes(self) -> float:
        """By all clients in all rounds, both directions."""
        return sum(each.download_bytes + each.upload_bytes for each in self.rounds)
