"""Populations of devices; clients are computed from their numbers and not stored."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from workbench.errors import check_settings, needs_library
from workbench.federated.population._availability import Availability, Sessions, remaining_of_all
from workbench.federated.population._draws import draw_bits, draw_normal, draw_uniform, key_of
from workbench.records.run import DeviceClassRecord

if TYPE_CHECKING:
    import pandas as pd

MEGABYTE, GIGABYTE = 1e6, 10**9

PHONES = (
    DeviceClassRecord(
        name="low-end phone", share=0.4, flops_per_second=2e9, download_bytes_per_second=1.5 * MEGABYTE,
        upload_bytes_per_second=0.5 * MEGABYTE, memory_bytes=GIGABYTE // 2, battery_joules=42e3, compute_watts=2.5,
        radio_watts=1.0, compute_spread=0.5, bandwidth_spread=0.8,
    ),
    DeviceClassRecord(
        name="mid-range phone", share=0.4, flops_per_second=1e10, download_bytes_per_second=4 * MEGABYTE,
        upload_bytes_per_second=1.5 * MEGABYTE, memory_bytes=GIGABYTE, battery_joules=58e3, compute_watts=3.5,
        radio_watts=1.0, compute_spread=0.5, bandwidth_spread=0.8,
    ),
    DeviceClassRecord(
        name="high-end phone", share=0.2, flops_per_second=4e10, download_bytes_per_second=10 * MEGABYTE,
        upload_bytes_per_second=4 * MEGABYTE, memory_bytes=2 * GIGABYTE, battery_joules=69e3, compute_watts=5.0,
        radio_watts=1.0, compute_spread=0.5, bandwidth_spread=0.8,
    ),
)  # fmt: skip
"""Three classes of phones, with assumed round numbers: replace these with numbers for your population."""

NIGHTS = (
    Sessions(start_hour=23, spread_hours=3, shortest_hours=4, longest_hours=9, chance=0.7),
    Sessions(start_hour=14, spread_hours=8, shortest_hours=0.25, longest_hours=1.5, chance=0.5),
)
"""Charging at night, and for a while during the day. This is also an assumption.

Over all time zones, availability varies within a day about as much as the paper reports for phones mostly in one
country. In a single time zone it varies more.
"""

WORLD = MappingProxyType(
    {-8.0: 0.05, -5.0: 0.1, -3.0: 0.08, 0.0: 0.08, 1.0: 0.14, 3.0: 0.1, 5.5: 0.2, 8.0: 0.2, 9.0: 0.05}
)
"""Shares of clients by offset from UTC in hours, roughly proportional to world population."""


class Devices(NamedTuple):
    """The devices of a group of clients, one entry per client."""

    device_class: Integer[np.ndarray, " n"]
    flops_per_second: Float[np.ndarray, " n"]
    download_bytes_per_second: Float[np.ndarray, " n"]
    upload_bytes_per_second: Float[np.ndarray, " n"]
    memory_bytes: Float[np.ndarray, " n"]
    battery_joules: Float[np.ndarray, " n"]
    compute_watts: Float[np.ndarray, " n"]
    radio_watts: Float[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True)
class RecordedDevices:
    """Recorded devices; each client has the speeds of one recorded device.

    Args (of the constructor):
        flops_per_second: `[devices]`.
        download_bytes_per_second: `[devices]`.
        upload_bytes_per_second: `[devices]`.
        like: Class of devices that supplies memory, battery and power consumption, which the record lacks.
    """

    flops_per_second: Float[np.ndarray, " devices"]
    download_bytes_per_second: Float[np.ndarray, " devices"]
    upload_bytes_per_second: Float[np.ndarray, " devices"]
    like: DeviceClassRecord = PHONES[1]


@dataclasses.dataclass(frozen=True)
class Population:
    """Clients 0 to `clients - 1`, each computed from its number, the seed and the time.

    Nothing is stored per client: 10⁸ clients take as much memory as one client.

    Args (of the constructor):
        clients: Number of clients.
        devices: Classes of devices with their shares, or recorded devices (`read_devices`).
        availability: Kinds of sessions; a device is available during any of them. None: devices are always available.
        time_zones: Share of clients by offset from UTC in hours.
        interruptions_per_hour: Rate at which working clients fail before the end of their session, because the user
            returns, the network is lost, or the process is killed.
        battery_share: Maximum share of its battery that a device spends on one round. Devices that would need a larger
            share are not asked.
        seed: Seed for all clients.

    Raises:
        ProgramError: if there are no clients, or shares do not sum to 1.

    Example:
        >>> phones = Population(100_000_000)
        >>> phones.frame([17, 99_999_999])["device class"].tolist()  # the same in every process
        ['high-end phone', 'low-end phone']

    References:
        Lai et al., "FedScale: Benchmarking Model and System Performance of Federated Learning at Scale", ICML 2022
        (arXiv 2105.11367); Wang et al., "FLINT: A Platform for Federated Learning Integration", MLSys 2023
        (arXiv 2302.12862).
    """

    clients: int
    devices: tuple[DeviceClassRecord, ...] | RecordedDevices = PHONES
    availability: Sequence[Availability] | None = NIGHTS
    time_zones: Mapping[float, float] = dataclasses.field(default_factory=lambda: WORLD)
    interruptions_per_hour: float = 0.2
    battery_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        shares = 1.0 if isinstance(self.devices, RecordedDevices) else sum(device.share for device in self.devices)
        zones = sum(self.time_zones.values())
        check_settings(
            "Population",
            (self.clients >= 1, f"clients={self.clients}", "Pass at least 1 client."),
            (
                math.isclose(shares, 1, abs_tol=1e-6),
                f"`devices` whose shares sum to {shares:g}",
                "Each client has one class of device: pass classes whose shares sum to 1.",
            ),
            (
                math.isclose(zones, 1, abs_tol=1e-6),
                f"`time_zones` whose shares sum to {zones:g}",
                "Each client is in one time zone: pass shares that sum to 1.",
            ),
            (
                self.availability is None or len(self.availability) > 0,
                "an empty `availability`",
                "Pass at least one kind of availability, or None for devices that never leave.",
            ),
            (
                self.interruptions_per_hour >= 0,
                f"interruptions_per_hour={self.interruptions_per_hour}",
                "`interruptions_per_hour` must be at least 0.",
            ),
            (self.battery_share > 0, f"battery_share={self.battery_share}", "Pass a positive `battery_share`."),
        )

    @property
    def device_classes(self) -> tuple[DeviceClassRecord, ...]:
        """Classes of devices; recorded devices form one class, whose values are their medians."""
        return _median_class(self.devices) if isinstance(self.devices, RecordedDevices) else self.devices

    def devices_of(self, ids: Integer[np.ndarray, " n"]) -> Devices:
        """Returns the devices of the given clients."""
        if isinstance(self.devices, RecordedDevices):
            return _recorded(self.devices, ids, self.seed)
        bounds = np.cumsum([device.share for device in self.devices])
        kind = np.minimum(np.searchsorted(bounds, draw_uniform(self._key("class"), ids), "right"), len(bounds) - 1)
        table = self._table
        compute = np.exp(table["compute_spread"][kind] * draw_normal(self._key("compute"), ids))
        # Each device has one network, so a fast download implies a fast upload.
        network = np.exp(table["bandwidth_spread"][kind] * draw_normal(self._key("network"), ids))
        return Devices(
            kind,
            table["flops_per_second"][kind] * compute,
            table["download_bytes_per_second"][kind] * network,
            table["upload_bytes_per_second"][kind] * network,
            table["memory_bytes"][kind],
            table["battery_joules"][kind],
            table["compute_watts"][kind],
            table["radio_watts"][kind],
        )

    def zones_of(self, ids: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Returns the time zones of the given clients, as offsets from UTC in hours."""
        hours, bounds = self._zones
        chosen = np.searchsorted(bounds, draw_uniform(self._key("zone"), ids), "right")
        return hours[np.minimum(chosen, len(hours) - 1)]

    def remaining_seconds(
        self, ids: Integer[np.ndarray, " n"], seconds: float | Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Returns how many seconds each client stays available after `seconds` since midnight UTC, or 0."""
        if self.availability is None:
            return np.full(len(ids), math.inf)
        return remaining_of_all(self.availability, ids, seconds, self.zones_of(ids), self.seed)

    def failure_seconds(
        self, ids: Integer[np.ndarray, " n"], attempt: Integer[np.ndarray, " n"] | int
    ) -> Float[np.ndarray, " n"]:
        """Draws each client's time to interruption, exponentially distributed, for the given `attempt`."""
        if self.interruptions_per_hour == 0:
            return np.full(len(ids), math.inf)
        attempts = np.broadcast_to(np.asarray(attempt, np.int64), len(ids))
        keys = draw_bits(self._key("interruptions"), attempts)
        return -np.log(draw_uniform(keys, ids)) * 3600 / self.interruptions_per_hour

    def work_factor(self, ids: Integer[np.ndarray, " n"], spread: float) -> Float[np.ndarray, " n"]:
        """Draws each client's relative work, which models unequal data sizes; log-normal with mean 1."""
        if spread == 0:
            return np.ones(len(ids))
        return np.exp(spread * draw_normal(self._key("work"), ids) - spread**2 / 2)

    def available_share(self, seconds: float, *, sample: int = 100_000) -> float:
        """Estimates the share of clients that are available, from a sample.

        Example:
            >>> night = Sessions(start_hour=22, spread_hours=0, shortest_hours=8, longest_hours=8, chance=0.25)
            >>> phones = Population(10**8, availability=[night], time_zones={0.0: 1.0})
            >>> round(phones.available_share(23 * 3600), 2)
            0.25
        """
        draws = draw_bits(self._key("sample"), np.arange(sample))
        ids = (draws % np.uint64(self.clients)).astype(np.int64)
        return float((self.remaining_seconds(ids, seconds) > 0).mean())

    def frame(self, ids: Sequence[int] | Integer[np.ndarray, " n"]) -> "pd.DataFrame":
        """Creates a table of the given clients, one row per client."""
        with needs_library("pandas", needed_for="`Population.frame`"):
            import pandas as pd
        numbers = np.asarray(ids, np.int64)
        devices = self.devices_of(numbers)
        names = [device_class.name for device_class in self.device_classes]
        return pd.DataFrame(
            {
                "client": numbers,
                "device class": [names[kind] for kind in devices.device_class],
                "time zone (h)": self.zones_of(numbers),
                "compute (GFLOP/s)": devices.flops_per_second / 1e9,
                "download (MB/s)": devices.download_bytes_per_second / MEGABYTE,
                "upload (MB/s)": devices.upload_bytes_per_second / MEGABYTE,
                "memory (GB)": devices.memory_bytes / GIGABYTE,
                "battery (kJ)": devices.battery_joules / 1e3,
            }
        )

    def _key(self, name: str) -> np.uint64:
        return self._keys.setdefault(name, key_of(self.seed, name))

    @functools.cached_property
    def _keys(self) -> dict[str, np.uint64]:
        return {}

    @functools.cached_property
    def _zones(self) -> tuple[Float[np.ndarray, " zones"], Float[np.ndarray, " zones"]]:
        return np.array(list(self.time_zones)), np.cumsum(list(self.time_zones.values()))

    @functools.cached_property
    def _table(self) -> dict[str, Float[np.ndarray, " classes"]]:
        fields = [field.name for field in dataclasses.fields(DeviceClassRecord) if field.name != "name"]
        return {name: np.array([getattr(c, name) for c in self.device_classes], float) for name in fields}


def _recorded(devices: RecordedDevices, ids: Integer[np.ndarray, " n"], seed: int) -> Devices:
    chosen = (draw_bits(key_of(seed, "recorded devices"), ids) % np.uint64(len(devices.flops_per_second))).astype(int)
    like, ones = devices.like, np.ones(len(ids))
    return Devices(
        np.zeros(len(ids), int),
        devices.flops_per_second[chosen],
        devices.download_bytes_per_second[chosen],
        devices.upload_bytes_per_second[chosen],
        like.memory_bytes * ones,
        like.battery_joules * ones,
        like.compute_watts * ones,
        like.radio_watts * ones,
    )


def _median_class(devices: RecordedDevices) -> tuple[DeviceClassRecord]:
    recorded = devices.like.replace(
        name="recorded devices",
        share=1.0,
        flops_per_second=float(np.median(devices.flops_per_second)),
        download_bytes_per_second=float(np.median(devices.download_bytes_per_second)),
        upload_bytes_per_second=float(np.median(devices.upload_bytes_per_second)),
        compute_spread=float(np.log(devices.flops_per_second).std()),
        bandwidth_spread=float(np.log(devices.download_bytes_per_second).std()),
    )
    return (recorded,)
