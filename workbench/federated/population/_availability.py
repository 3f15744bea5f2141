"""Availability of devices: in daily sessions or in recorded sessions."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float, Integer

from workbench.errors import ProgramError
from workbench.federated.population._draws import draw_bits, key_of, parts_of

HOUR, DAY = 3600.0, 86_400.0


class Availability(Protocol):
    """Times at which devices can train."""

    def remaining_seconds(
        self,
        ids: Integer[np.ndarray, " n"],
        seconds: float | Float[np.ndarray, " n"],
        zone_hours: Float[np.ndarray, " n"],
        seed: int,
    ) -> Float[np.ndarray, " n"]:
        """Returns how many seconds each device stays available after `seconds` (UTC), or 0."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Sessions:
    """Daily sessions of idle, charging devices on an unmetered network.

    On each day, a device has a session with probability `chance`. The session starts at `start_hour` local time plus a
    triangular deviation of at most `spread_hours`. A session's length is uniform between `shortest_hours` and
    `longest_hours`.

    Args (of the constructor):
        start_hour: Local hour around which sessions start, from 0 to 24.
        spread_hours: Largest deviation from `start_hour`, at most 12.
        shortest_hours: Minimum length of a session, at least 0.
        longest_hours: Maximum length of a session, at most 24.
        chance: Probability of a session on each day, from 0 to 1.

    Raises:
        ProgramError: if a number is out of range.

    Example:
        >>> night = Sessions(start_hour=22, spread_hours=1, shortest_hours=6, longest_hours=8)
        >>> hours = (36, 25)
        >>> at_noon, at_one = (night.remaining_seconds(np.arange(3), h * 3600.0, np.zeros(3), 0) for h in hours)
        >>> at_noon.tolist(), bool((at_one > 0).all())
        ([0.0, 0.0, 0.0], True)

    References:
        Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019, section 9 and figure 5: the
        number of available devices varies about fourfold over a day.
    """

    start_hour: float
    spread_hours: float
    shortest_hours: float
    longest_hours: float
    chance: float = 1.0

    def __post_init__(self) -> None:
        fits = 0 <= self.start_hour <= 24 and 0 <= self.spread_hours <= 12 and 0 <= self.chance <= 1
        if not (fits and 0 <= self.shortest_hours <= self.longest_hours <= 24):
            message = (
                f"`Sessions` received {self}. A session starts at an hour of the day, plus or minus at most 12 hours, "
                "and lasts at most 24 hours: pass 0 <= start_hour <= 24, 0 <= spread_hours <= 12, 0 <= shortest_hours "
                "<= longest_hours <= 24 and 0 <= chance <= 1."
            )
            raise ProgramError(message)

    def bounds(
        self, ids: Integer[np.ndarray, " n"], days: Integer[np.ndarray, " n"], seed: int
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Returns the start and end of a day's session in seconds of local time, and whether the day has a session."""
        day_keys = draw_bits(key_of(seed, repr(self)), days + 4)  # counters must not be negative
        first, second, length, lot = parts_of(draw_bits(day_keys, ids))
        starts = days * DAY + (self.start_hour + (first + second - 1) * self.spread_hours) * HOUR
        lengths = self.shortest_hours + length * (self.longest_hours - self.shortest_hours)
        return starts, starts + lengths * HOUR, lot < self.chance

    def remaining_seconds(
        self,
        ids: Integer[np.ndarray, " n"],
        seconds: float | Float[np.ndarray, " n"],
        zone_hours: Float[np.ndarray, " n"],
        seed: int,
    ) -> Float[np.ndarray, " n"]:
        """Returns the seconds to the end of the current session (the later end if two overlap), or 0."""
        local = np.asarray(seconds) + zone_hours * HOUR
        # Sessions of a day begin within 12 hours of `start_hour`, so at most two sessions include the current time.
        newest = np.floor((local - (self.start_hour - 12) * HOUR) / DAY).astype(np.int64)
        remaining = np.zeros(len(ids))
        for days in (newest - 1, newest):
            starts, ends, there = self.bounds(ids, days, seed)
            inside = there & (starts <= local) & (local < ends)
            np.maximum(remaining, np.where(inside, ends - local, 0.0), out=remaining)
        return remaining


@dataclasses.dataclass(frozen=True)
class RecordedSessions:
    """Recorded sessions of real devices; each client repeats the sessions of one device.

    Args (of the constructor):
        starts: Start of every session in seconds; a device's sessions are contiguous and in chronological order.
        ends: End of every session in seconds, in the same order.
        offsets: Index of each device's first session in `starts` and `ends`, `[devices + 1]`.
        periods: Time in seconds after which each device's record starts again, `[devices]`.

    Example:
        >>> recorded = RecordedSessions(np.array([10.0]), np.array([30.0]), np.array([0, 1]), np.array([100.0]))
        >>> [float(recorded.remaining_seconds(np.arange(1), at, np.zeros(1), 0)[0]) for at in (0.0, 15.0, 115.0, 40.0)]
        [0.0, 15.0, 15.0, 0.0]
    """

    starts: Float[np.ndarray, " sessions"]
    ends: Float[np.ndarray, " sessions"]
    offsets: Integer[np.ndarray, " devices+1"]
    periods: Float[np.ndarray, " devices"]

    def devices_of(self, ids: Integer[np.ndarray, " n"], seed: int) -> Integer[np.ndarray, " n"]:
        """Returns the recorded device that each client repeats."""
        return (draw_bits(key_of(seed, "recorded sessions"), ids) % np.uint64(len(self.periods))).astype(np.int64)

    def remaining_seconds(
        self,
        ids: Integer[np.ndarray, " n"],
        seconds: float | Float[np.ndarray, " n"],
        zone_hours: Float[np.ndarray, " n"],
        seed: int,
    ) -> Float[np.ndarray, " n"]:
        """Returns the seconds to the end of the recorded session; ignores time zones."""
        device = self.devices_of(ids, seed)
        now = np.asarray(seconds) % self.periods[device]
        low, high = self.offsets[device], self.offsets[device + 1]
        first, last = low.copy(), high.copy()
        while (open_ := first < last).any():  # bisection for the number of started sessions of each device
            middle = (first + last) // 2
            begun = open_ & (self.starts[np.minimum(middle, len(self.starts) - 1)] <= now)
            first = np.where(begun, middle + 1, first)
            last = np.where(open_ & ~begun, middle, last)
        begun = first > low
        ends = self.ends[np.maximum(first - 1, 0)]
        return np.where(begun & (now < ends), ends - now, 0.0)


def remaining_of_all(
    kinds: Sequence[Availability],
    ids: Integer[np.ndarray, " n"],
    seconds: float | Float[np.ndarray, " n"],
    zone_hours: Float[np.ndarray, " n"],
    seed: int,
) -> Float[np.ndarray, " n"]:
    """Returns the longest remaining session among all kinds of sessions."""
    durations = np.zeros(len(ids))
    for kind in kinds:
        np.maximum(durations, kind.remaining_seconds(ids, seconds, zone_hours, seed), out=durations)
    return durations
