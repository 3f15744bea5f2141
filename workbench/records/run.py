"""Records of runs: measured runs, played runs, overlaid runs, and simulated populations."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record, Results, deferring
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import DisclosedRecord, SourceLine, StageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRunRecord(Record):
    """Measured time of one stage at one place, per call."""

    stage: str
    where: str  # "cpu:3", "thread 2", "worker tcp://…"
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    wait_seconds: float = 0.0
    calls: int = 1
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    peak_flops_share: float | None = None  # share of the chip's published peak, 0..1
    peak_bandwidth_share: float | None = None
    elementwise_flops_per_second: float | None = None  # `flops_per_second` counts dot products and convolutions
    copy_seconds: float = 0.0  # copies between memories, if the profile names them; not included in the compute seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRunRecord(Record):
    """Measured work of one client in one stage."""

    stage: str
    client: int | str
    seconds: float | None = None
    steps: int | None = None
    where: str = ""
    sent_bytes: int | None = None  # bytes from the client to the server
    received_bytes: int | None = None  # bytes from the server to the client
    error: str | None = None
    flops: float | None = None  # FLOPs that this client computed, in dot products and convolutions
    loops: dict[str, int] = field(default_factory=dict)  # instruction of an inner loop -> its iterations
    elementwise_flops: float | None = None  # the same for elementwise operations and reductions


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord(Record):
    """One span on a device's timeline, in seconds from the start of the run."""

    where: str
    name: str
    start_seconds: float
    seconds: float
    kind: Literal["compute", "collective", "copy", "wait", "other"] = "compute"
    stage: str | None = None
    source: SourceLine | None = None
    program: str | None = None  # for a profile with several programs: "jit_step(17)"


@deferring("clients")  # an engine's run has a record for each of possibly millions of clients
@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Record):
    """A recorded run.

    `results` is the program's output pytree, which is left out of the JSON.
    """

    name: str
    engine: str
    seconds: float  # wall time of the measured calls, without warm-up
    rounds: int = 1
    warmup_seconds: float | None = None
    stages: tuple[StageRunRecord, ...] = ()
    clients: tuple[ClientRunRecord, ...] = ()
    events: tuple[EventRecord, ...] = ()
    round_seconds: tuple[float, ...] = ()
    overhead: float | None = None  # time of measured calls divided by unmeasured calls; 1.0: no overhead
    moved_bytes: int | None = None
    disclosed: tuple[DisclosedRecord, ...] = ()  # disclosed by the clients to the server, by stage
    call_tree: CallTreeRecord | None = None  # call tree of the executed module, with measured seconds
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
    """One array that a stage computed.

    For values at the clients, the lists have one entry per client; otherwise, they have one entry.
    """

    name: str
    shape: tuple[int, ...]  # of one client
    dtype: str
    size_bytes: int  # of one client
    norms: tuple[float, ...]  # Euclidean norm of the finite numbers
    distances: tuple[float, ...] = ()  # distance of each client's value from its received value, if shapes are equal
    picture: tuple[float, ...] = ()  # the array, downsampled to `picture_shape` by averaging; clients are concatenated
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
    """A value that every client emitted at each local step; None where it is not finite."""

    name: str
    values: tuple[tuple[float | None, ...], ...]  # [clients][steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRecord(Record):
    """One evaluation of a program, stage by stage; `results` is left out of the JSON."""

    name: str
    stages: tuple[PlayedStageRecord, ...]
    courses: tuple[PlayedCourseRecord, ...] = ()
    pictured_clients: tuple[int, ...] = ()  # clients in the pictures
    notes: tuple[str, ...] = ()
    results: Results = field(default=None, repr=False, compare=False)


_Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaidMetricRecord(Record):
    """One result's metric over rounds: mean over seeds, interval, and every seed's curve.

    Attributes:
        metric: Name of the metric; per-client metrics are averaged.
        rounds: Rounds for which the curves have points; for long runs, some rounds are left out.
        mean: Mean over the compared seeds; None if unknown.
        low: Lower end of the interval; None if there is a single seed.
        high: Upper end of the interval.
        seeds: The curves of the drawn seeds.
        final: Mean of the final values over the compared seeds; None if no seed is compared.
        final_low: Lower end of the interval for `final`.
        final_high: Upper end of the interval for `final`.
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
        name: Name of the result.
        status: Final states of its runs, such as "finished" or "2 finished, 1 diverged".
        seeds: The seeds that are drawn.
        compared: Number of seeds in means and tests.
        left_out: Reasons for leaving out the remaining seeds, one sentence each.
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
        metric: The compared metric.
        a: The first result.
        b: The second result.
        pairs: Number of seeds in both results.
        difference: Mean of `a` minus mean of `b`.
        low: Lower end of the interval for `difference`; None if there is a single pair.
        high: Upper end of the interval.
        p: p-value of the paired test; None with too few pairs.
        p_corrected: p-value corrected for the number of pairs of results.
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
    """Several runs, or all trials of a sweep, overlaid.

    Attributes:
        name: Name of the overlay.
        metric: The metric to show first.
        minimize: Whether smaller values are better.
        confidence: Confidence level of all intervals.
        results: The results, in the given order.
        pairs: Paired tests for the metric that is shown first.
        running: Whether some runs are still in progress, so that there are no tests yet.
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
        """The names of all metrics without duplicates; the metric to show first comes first."""
        every = (curve.metric for result in self.results for curve in result.metrics)
        return tuple(dict.fromkeys((self.metric, *every)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClassRecord(Record):
    """Medians of a device class; individual devices vary log-normally around these medians."""

    name: str
    share: float  # share of the population, 0..1
    flops_per_second: float  # sustained speed in training, not the peak of a data sheet
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
    """One client's computation and communication in one round; both kinds of FLOPs contribute to the time."""

    flops: float  # of matrix products and convolutions
    download_bytes: float
    upload_bytes: float
    # a lower bound on the memory needed for training; devices with less memory do not participate
    memory_bytes: int = 0
    spread: float = 0.0  # standard deviation of the logarithm of a client's work, whose mean is `total_flops`
    source: str = ""  # the program that is the source of the numbers
    elementwise_flops: float = 0.0  # one per element of an elementwise operation or a reduction

    @property
    def total_flops(self) -> float:
        """The sum of matrix and elementwise work."""
        return self.flops + self.elementwise_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRoundRecord(Record):
    """One exchange of a protocol between every client and the server."""

    name: str
    upload_bytes: float  # by one client
    download_bytes: float
    after_training: bool  # whether the server requests it after the results have arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolCostRecord(Record):
    """Additional cost of a protocol per client and round of aggregation."""

    name: str
    rounds: tuple[ProtocolRoundRecord, ...]
    clients: int
    threshold: int  # the round fails with fewer results
    server_operations: float = 0.0  # mask words that the server expands when `dropouts` clients are missing
    client_operations: float = 0.0  # mask words that one client expands
    dropouts: int = 0
    references: tuple[str, ...] = ()

    @property
    def upload_bytes(self) -> float:
        """Bytes that one client sends, over all exchanges."""
        return sum(exchange.upload_bytes for exchange in self.rounds)

    @property
    def download_bytes(self) -> float:
        """Bytes that one client receives, over all exchanges."""
        return sum(exchange.download_bytes for exchange in self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRoundRecord(Record):
    """One server step on the virtual clock. Bytes and energy are totals over all clients."""

    round: int
    start_seconds: float  # since midnight UTC of the first day
    seconds: float
    asked: int  # clients that started to work
    used: int  # results used in the server's step
    late: int  # clients that were stopped, or that finished after the end of the round
    dropped: int  # clients whose device left or failed
    succeeded: bool
    download_bytes: float
    upload_bytes: float
    wasted_bytes: float  # in both directions, by clients whose result was not used
    between_servers_bytes: float = 0.0
    energy_joules: float = 0.0
    wasted_joules: float = 0.0
    staleness: float = 0.0  # mean number of server steps between a client's start and the use of its result
    available_share: float | None = None  # share of the sampled clients that were available


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationRunRecord(Record):
    """Simulated rounds of a population, with models of devices, networks and device owners."""

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
        """Virtual time in seconds from the start of the first round to the end of the last round."""
        return self.rounds[-1].start_seconds + self.rounds[-1].seconds - self.rounds[0].start_seconds

    @property
    def energy_joules(self) -> float:
        """Energy used by all devices in all rounds."""
        return sum(record.energy_joules for record in self.rounds)

    @property
    def moved_bytes(self) -> float:
        """Bytes sent and received by all clients in all rounds."""
        return sum(record.download_bytes + record.upload_bytes for record in self.rounds)
