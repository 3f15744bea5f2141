"""Records of the measured side: samples, arrays in memory, rounds, time lines, retraces and compilations."""

from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.records._base import Record, Results
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import SourceLine


@dataclass(frozen=True, slots=True, kw_only=True)
class RetraceRecord(Record):
    """A jitted function that was traced again after its first time, and why."""

    function: str
    defined: str  # "train.py:12"
    called: str  # the line of the last call that traced it
    count: int
    reasons: tuple[tuple[str, int], ...] = ()  # in words, with how often


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationRecord(Record):
    """Seconds that tracing, lowering and compiling a function took in the block, over all its compilations."""

    function: str
    count: int
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    called: str = ""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArrayRecord(Record):
    """Arrays of one kind that were alive when memory ran out: the line that made them, the variables that hold them."""

    shape: tuple[int, ...]
    dtype: str
    count: int
    device_bytes: int  # of all of them, on the fullest device
    names: tuple[str, ...] = ()  # "state.params['w'] in train (loop.py:31)"
    made_at: str = ""  # "model.py:12 in init", the user's line that all of them were made on


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryRecord(Record):
    """The moment at which memory ran out."""

    message: str
    line: str
    in_use_bytes: int | None = None
    limit_bytes: int | None = None
    arrays: tuple[LiveArrayRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRecord(Record):
    """Events that `with explain():` recorded in a block."""

    seconds: float
    retraces: tuple[RetraceRecord, ...] = ()
    compilations: tuple[CompilationRecord, ...] = ()
    out_of_memory: OutOfMemoryRecord | None = None
    slow_seconds: float = 1.0  # from which on a compilation is worth a line
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRecord(Record):
    """A live array; `bytes_per_device` maps the label of a device ("cpu:3") to the bytes that it holds there."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    bytes_per_device: dict[str, int]
    sharding: str = ""
    made_at: SourceLine | None = None  # the user's line that made it, where JAX knows it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampleRecord(Record):
    """One device at one moment; every figure is measured, None where backend or computer do not report it."""

    where: str  # "cpu:3"
    device_id: int
    platform: str
    kind: str = ""
    present: bool = True  # False: the device could not be read any more
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
    """The computer that holds the devices, and the process that drives them."""

    cpu_percent: float | None = None  # of all cores together, 0..100
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    process_bytes: int | None = None  # resident set of this process


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Record):
    """All devices and the host at one moment; `time_seconds` counts from the start of the monitor."""

    time_seconds: float
    unix_seconds: float
    devices: tuple[DeviceSampleRecord, ...]
    host: HostSampleRecord
    arrays: tuple[ArrayRecord, ...] = ()  # the largest live arrays, largest first
    live_arrays: int = 0
    sampling_seconds: float = 0.0  # what taking this sample cost
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRecord(Record):
    """Something that went wrong in a round without ending the run, named as closely as it is known."""

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
    unix_seconds: float | None = None  # when it ended, to lay it over samples of the devices


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProfileRecord(Record):
    """Capabilities of a simulated client: its speed, its links, and its chance to leave in a round."""

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
    complete: bool = True  # False: cut off by a dropout or by the end of the round


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOutcomeRecord(Record):
    """Outcome of a simulated round for one client.

    `finished`: its update counts. `late`: not done at the deadline. `dropped`: left during the round.
    `surplus`: still working when enough others had finished.
    """

    client: int
    status: Literal["finished", "late", "dropped", "surplus"]
    end_seconds: float | None = None  # when it finished or left; None where the round ended before
    needed_seconds: float | None = None  # what the client would have needed without an end of the round


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRecord(Record):
    """A simulated round on a virtual clock; nothing in it was measured."""

    name: str
    seconds: float  # when the server may go on
    spans: tuple[SpanRecord, ...]
    outcomes: tuple[ClientOutcomeRecord, ...]
    deadline_seconds: float | None = None
    wanted: int | None = None  # clients that the server waits for
    start_seconds: float = 0.0  # where the round begins in a sequence of rounds
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> tuple[int, ...]:
        """The clients whose updates count."""
        return tuple(outcome.client for outcome in self.outcomes if outcome.status == "finished")

    @property
    def idle_share(self) -> float:
        """Share of the clients' time in this round in which they had nothing to do, 0..1."""
        if not self.outcomes or not self.seconds:
            return 0.0
        busy = sum(span.seconds for span in self.spans)
        return 1.0 - busy / (self.seconds * len(self.outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TappedValueRecord(Record):
    """A value that one client computed; `value` is the array itself and stays out of JSON.

    `name` is the variable that the user's line assigns it to, or else the expression as it is written. The figures are
    of its finite numbers; None where it has none.
    """

    stage: str  # path of the stage
    name: str
    operation: str  # the primitive that made it, "emit" where the program handed it out, "input" where it came in
    shape: tuple[int, ...]
    dtype: str
    round: int = 0  # which execution of the stage, where the program loops over rounds
    steps: tuple[int, ...] = ()  # iterations of the client's own loops, the outermost first
    client: str = ""  # "3", or "2/0" for client 0 inside client 2
    source: SourceLine | None = None
    least: float | None = None
    mean: float | None = None
    most: float | None = None
    nonfinite: int = 0
    value: Results = field(default=None, repr=False, compare=False)  # None where there were too many bytes to keep

    @property
    def figures(self) -> str:
        """Type and range in words."""
        shape = ", ".join(map(str, self.shape))
        said = f"{self.dtype}[{shape}]" if self.shape else self.dtype
        if self.least is not None and self.shape:
            said += f" from {self.least:.4g} to {self.most:.4g}, mean {self.mean:.4g}"
        elif self.mean is not None:
            said += f" {self.mean:.6g}"
        return said + (f", {self.nonfinite} not finite" if self.nonfinite else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRecord(Record):
    """Every named value of one client in one evaluation of a program, in order; `results` are the program's."""

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
        """The first value that is not finite: where a NaN comes from."""
        return next((value for value in self.values if value.nonfinite), None)

    def find(self, name: str, **where: object) -> tuple[TappedValueRecord, ...]:
        """All values of that name, one per round and step; `where` narrows it down by `stage`, `round` or `steps`.

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
            if value.name == name and all(getattr(value, key) == wanted for key, wanted in where.items())
        )

    def to_tree(self) -> dict[str, Any]:
        """Nested dictionaries, stage → round → step → name → array, leaving out levels that there is only one of."""
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
    """The name, counted where there is a value of that name already."""
    count = 2
    found = name
    while found in node:
        found = f"{name} ({count})"
        count += 1
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRecord(Record):
    """A training loop as `watch` saw it: steps, their parts, compilations with reasons, problems.

    Seconds are medians over the recent steps that compiled nothing; None before the first of them. `step_seconds` is a
    median over means of ten steps. FLOPs, bytes and collectives are those of the compiled step on one device; None
    where they are unknown, and `notes` has the reason.
    """

    name: str
    status: str  # "ready", "running", "finished", "failed"
    steps: int
    history: tuple[RoundRecord, ...] = ()  # the kept steps; of old ones every second, fourth, …
    step_seconds: float | None = None  # from the call, or the end of the step before, until the results are ready
    dispatch_seconds: float | None = None  # until the call returned
    between_seconds: float | None = None  # on the host, from one call to the next
    idle_share: float | None = None  # of the time between steps that devices waited for the next call, 0..1
    flops: float | None = None
    accessed_bytes: float | None = None
    flops_per_second: float | None = None
    bytes_per_second: float | None = None
    peak_flops_share: float | None = None
    peak_bandwidth_share: float | None = None
    planned_peak_bytes: int | None = None  # by the compiler
    memory_bytes: int | None = None  # measured on the fullest device
    peak_bytes: int | None = None
    collectives: int | None = None  # executions in one step
    sent_bytes: float | None = None  # by one device in one step
    compilations: tuple[CompilationRecord, ...] = ()
    retraces: tuple[RetraceRecord, ...] = ()
    changes: tuple[str, ...] = ()  # against the version that was watched before under this name
    problems: tuple[ProblemRecord, ...] = ()
    call_tree: CallTreeRecord | None = None  # of the compiled step, with the measured seconds of the latest profile
    notes: tuple[str, ...] = ()
