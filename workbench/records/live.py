"""Records of measurements: samples, live arrays, rounds, timelines, retraces, compilations."""

from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.records._base import Record, Results
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class RetraceRecord(Record):
    """A jitted function that was traced again, and the reasons."""

    function: str
    defined: str  # "train.py:12"
    called: str  # the line of the last call that traced it
    count: int
    reasons: tuple[tuple[str, int], ...] = ()  # reason -> number of retraces


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationRecord(Record):
    """Time of tracing, lowering and compiling a function in the block, over all compilations."""

    function: str
    count: int
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    called: str = ""

    @property
    def seconds(self) -> float:
        """Total time of tracing, lowering and compiling."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArrayRecord(Record):
    """Arrays of one kind that were live when memory ran out, their variables, and the line that created them."""

    shape: tuple[int, ...]
    dtype: str
    count: int
    device_bytes: int  # total for all arrays, on the fullest device
    names: tuple[str, ...] = ()  # "state.params['w'] in train (loop.py:31)"
    made_at: str = ""  # "model.py:12 in init", the user's line that created all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryRecord(Record):
    """State of the memory when it ran out."""

    message: str
    line: str
    in_use_bytes: int | None = None
    limit_bytes: int | None = None
    arrays: tuple[LiveArrayRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRecord(Record):
    """Events that were recorded in a watched block."""

    seconds: float
    retraces: tuple[RetraceRecord, ...] = ()
    compilations: tuple[CompilationRecord, ...] = ()
    out_of_memory: OutOfMemoryRecord | None = None
    slow_seconds: float = 1.0  # minimum seconds of reported compilations
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRecord(Record):
    """A live array; `bytes_per_device` maps device labels ("cpu:3") to the array's bytes on that device."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    bytes_per_device: dict[str, int]
    sharding: str = ""
    made_at: SourceLine | None = None  # the user's line that created it, if JAX knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampleRecord(Record):
    """Measurements of one device at one point in time; None if they are not reported."""

    where: str  # "cpu:3"
    device_id: int
    platform: str
    kind: str = ""
    present: bool = True  # False: the device can no longer be read
    bytes_in_use: int | None = None
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    memory_source: Literal["memory_stats", "live_arrays", ""] = ""
    utilisation_percent: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSampleRecord(Record):
    """The computer that contains the devices, and the process that controls them."""

    cpu_percent: float | None = None  # load of all cores together, 0..100
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    process_bytes: int | None = None  # resident set of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Record):
    """All devices and the host at one point in time; `time_seconds` is measured from the monitor's start."""

    time_seconds: float
    unix_seconds: float
    devices: tuple[DeviceSampleRecord, ...]
    host: HostSampleRecord
    arrays: tuple[ArrayRecord, ...] = ()  # the largest live arrays, largest first
    live_arrays: int = 0
    sampling_seconds: float = 0.0  # cost of taking this sample
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord(Record):
    """A problem that did not stop the run, with its round and all known details."""

    round: int
    what: str
    metric: str | None = None
    client: int | None = None
    value: str | None = None  # "nan", "inf", "-inf"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord(Record):
    """One finished round: metrics by name, each a number or nested tuples (`[clients]`, `[clients, steps]`)."""

    round: int
    seconds: float
    metrics: dict[str, float | tuple[Any, ...]]
    problems: tuple[ProblemRecord, ...] = ()
    unix_seconds: float | None = None  # end time, to align it with samples of the devices


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProfileRecord(Record):
    """Capabilities of a simulated client: speed, links, and dropout probability per round."""

    client: int
    flops_per_second: float
    down_bytes_per_second: float
    up_bytes_per_second: float
    dropout_probability: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord(Record):
    """A bar of the Gantt chart, in seconds of the virtual clock."""

    client: int
    kind: Literal["download", "compute", "upload"]
    start_seconds: float
    seconds: float
    complete: bool = True  # False: interrupted by a dropout or the end of the round


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcomeRecord(Record):
    """Outcome of a simulated round for one client.

    `finished`: its update is included in the result. `late`: not finished at the deadline. `dropped`: dropped out
    during the round. `surplus`: was still working when enough other clients had finished.
    """

    client: int
    status: Literal["finished", "late", "dropped", "surplus"]
    end_seconds: float | None = None  # time when it finished or dropped out; None if the round ended earlier
    needed_seconds: float | None = None  # duration of the client's work if the round had not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRecord(Record):
    """A simulated round on a virtual clock, without measurements."""

    name: str
    seconds: float  # time when the server can continue
    spans: tuple[SpanRecord, ...]
    outcomes: tuple[ClientOutcomeRecord, ...]
    deadline_seconds: float | None = None
    wanted: int | None = None  # clients that the server waits for
    start_seconds: float = 0.0  # start of the round in a sequence of rounds
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> tuple[int, ...]:
        """The clients whose updates are included in the result."""
        return tuple(outcome.client for outcome in self.outcomes if outcome.status == "finished")

    @property
    def idle_share(self) -> float:
        """Share of the clients' time in this round during which they were idle, 0..1."""
        if not self.outcomes or not self.seconds:
            return 0.0
        busy = sum(span.seconds for span in self.spans)
        return 1.0 - busy / (self.seconds * len(self.outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TappedValueRecord(Record):
    """A value that one client computed; `value` is the array, and is left out of the JSON.

    `name` is the variable that the user's line assigns it to, or otherwise its source expression. Statistics cover the
    value's finite numbers; they are None if there are no finite numbers.
    """

    stage: str  # path of the stage
    name: str
    operation: str  # the primitive that created it, "emit" for emitted values, "input" for inputs
    shape: tuple[int, ...]
    dtype: str
    round: int = 0  # number of the execution of the stage, if the program loops over rounds
    steps: tuple[int, ...] = ()  # iterations of the client's loops, outermost first
    client: str = ""  # "3", or "2/0" for client 0 inside client 2
    source: SourceLine | None = None
    least: float | None = None
    mean: float | None = None
    most: float | None = None
    nonfinite: int = 0
    value: Results = field(default=None, repr=False, compare=False)  # None if there were too many bytes to keep

    @property
    def figures(self) -> str:
        """Type, range and mean of the value as text."""
        shape = ", ".join(map(str, self.shape))
        text = f"{self.dtype}[{shape}]" if self.shape else self.dtype
        if self.least is not None and self.shape:
            text += f" from {self.least:.4g} to {self.most:.4g}, mean {self.mean:.4g}"
        elif self.mean is not None:
            text += f" {self.mean:.6g}"
        return text + (f", {self.nonfinite} not finite" if self.nonfinite else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRecord(Record):
    """Every named value of one client in one evaluation of a program, and the results."""

    name: str
    client: tuple[int, ...]
    stages: dict[str, str]  # path -> name of the client's function
    values: tuple[TappedValueRecord, ...]
    notes: tuple[str, ...] = ()
    results: Results = field(default=None, repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values, in order of appearance."""
        return tuple(dict.fromkeys(value.name for value in self.values))

    @property
    def first_nonfinite(self) -> TappedValueRecord | None:
        """The first non-finite value, which is the origin of later NaNs; None if all values are finite."""
        return next((value for value in self.values if value.nonfinite), None)

    def find(self, name: str, **where: object) -> tuple[TappedValueRecord, ...]:
        """All values with this name, one per round and step, filtered by `stage`, `round` or `steps`.

        Example:
            >>> @wb.program(clients=4)
            ... def mean_square(x):
            ...     return wb.reduce_mean(wb.map_fn(lambda own: own**2, x))
            >>> [value.mean for value in wb.trace(mean_square)(jnp.arange(4.0)).tap(client=3).find("own")]
            [3.0]
        """
        return tuple(
            value
            for value in self.values
            if value.name == name and all(getattr(value, key) == target for key, target in where.items())
        )

    def to_tree(self) -> dict[str, Any]:
        """Nested dictionaries, stage → round → step → name → array; levels with only one entry are omitted."""
        rounds = {value.round for value in self.values}
        tree: dict[str, Any] = {}
        for value in self.values:
            node = tree.setdefault(f"stage {value.stage}: {self.stages.get(value.stage, '')}".rstrip(": "), {})
            place = [f"round {value.round}"] if len(rounds) > 1 else []
            place += [f"client {value.client}"] if "/" in value.client and len(self.client) == 1 else []
            for key in [*place, *(f"step {step}" for step in value.steps)]:
                node = node.setdefault(key, {})
            node[_unused(node, value.name)] = value.figures if value.value is None else value.value
        return tree


def _unused(node: dict[str, Any], name: str) -> str:
    """The name, numbered if the name is already used."""
    count = 2
    label = name
    while label in node:
        label = f"{name} ({count})"
        count += 1
    return label


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRecord(Record):
    """A training loop recorded by `watch`: steps, their parts, compilations, problems.

    Times are medians over the recent steps without a compilation; None before the first such step. `step_seconds` is a
    median over means of ten steps. FLOPs, bytes and collectives are per device and come from the compiled step; None if
    they are unknown (`notes` states the reason).
    """

    name: str
    status: str  # "ready", "running", "waiting" (the cell of the loop has ended), "paused", "finished", "failed"
    steps: int
    history: tuple[RoundRecord, ...] = ()  # the stored steps; every second, fourth, … of older steps
    step_seconds: float | None = None  # from the call, or the end of the previous step, until the results are ready
    dispatch_seconds: float | None = None  # until the call returned
    between_seconds: float | None = None  # time on the host from one call to the next
    idle_share: float | None = None  # share of the time between steps in which devices waited for the next call, 0..1
    # share of the steps before which devices waited for more than 30 % of the step's time, 0..1
    idle_steps_share: float | None = None
    flops: float | None = None
    accessed_bytes: float | None = None
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    peak_flops_share: float | None = None
    peak_bandwidth_share: float | None = None
    planned_peak_bytes: int | None = None  # by the compiler
    memory_bytes: int | None = None  # measured on the fullest device
    peak_bytes: int | None = None
    collectives: int | None = None  # number of executions in one step
    sent_bytes: float | None = None  # sent by one device in one step
    compilations: tuple[CompilationRecord, ...] = ()
    retraces: tuple[RetraceRecord, ...] = ()
    changes: tuple[str, ...] = ()  # compared with the version that was watched before under this name
    problems: tuple[ProblemRecord, ...] = ()
    # call tree of the compiled step, with the measured seconds from the latest profile
    call_tree: CallTreeRecord | None = None
    notes: tuple[str, ...] = ()
