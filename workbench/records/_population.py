"""Records of a simulated population: its devices, the work of one client, and the rounds on a virtual clock."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record

ScheduleKind = Literal["synchronous", "buffered"]


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
    schedule: ScheduleKind
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
