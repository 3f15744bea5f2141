"""Records of the measured side: device samples, arrays in memory, rounds, and the virtual time line of a round."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record
from workbench.records._program import SourceLine


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
    """One device at one moment; every figure is measured, None where this backend or this computer does not tell it."""

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
    metrics: dict[str, float | tuple]
    problems: tuple[ProblemRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProfileRecord(Record):
    """What a simulated client can do: its speed, its links, and how likely it leaves during a round."""

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
    """How a simulated round ended for one client.

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
