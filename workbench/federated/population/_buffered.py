"""Buffered asynchronous steps on the virtual clock.

Each concurrent slot of the server is a chain of clients, in which a client starts when the previous client finishes.
Chains are independent, so all chains are advanced together, and their results are then merged by time. The events are
the same as with an event queue.
"""

import math
from collections.abc import Iterator

import numpy as np

from workbench.errors import ProgramError
from workbench.federated.population._devices import Population
from workbench.federated.population._rounds import ServerStep, check_able, spent_until
from workbench.federated.population._schedules import Buffered
from workbench.federated.population._selection import Load, ask, draw_available
from workbench.federated.population._servers import Servers
from workbench.records.run import SimulatedRoundRecord

_LOOKS = 8  # clients that are checked together for one slot
_PAUSE_SECONDS = 10.0  # a slot's waiting time if none of these clients is available
_PATIENCE = 2 * 86_400.0
_COLUMNS = ("time", "start", "id", "result", "late", "down", "up", "joules")
_AT = {name: column for column, name in enumerate(_COLUMNS)}


class _Chains:
    """The server's slots, and their events that no step has used yet."""

    def __init__(self, population: Population, load: Load, schedule: Buffered, start: float, seed: int) -> None:
        self.population, self.load, self.seed = population, load, seed
        self.timeout = math.inf if schedule.timeout_seconds is None else schedule.timeout_seconds
        self.free = np.full(schedule.concurrency, float(start))  # when each slot's client finishes
        self.events = np.empty((0, len(_COLUMNS)))
        self.drawn = self.looked = self.found = 0

    def advance(self, until: float) -> np.ndarray:
        """Starts clients up to the time `until`; returns the events up to then, sorted by time."""
        while len(idle := np.flatnonzero(self.free <= until)):
            self._start(idle)
        passed = self.events[:, 0] <= until
        events, self.events = self.events[passed], self.events[~passed]
        return events[np.argsort(events[:, 0], kind="stable")]

    def _start(self, idle: np.ndarray) -> None:
        starts = np.repeat(self.free[idle], _LOOKS)
        ids, remaining, able = draw_available(self.population, self.load, starts, self.drawn, self.seed)
        number = self.drawn + np.arange(len(ids))  # unique: attempts of one client fail independently
        self.drawn += len(ids)
        working = self.events[self.events[:, 0] > self.free[idle].min(), _AT["id"]]
        able &= ~np.isin(ids, working)
        self.looked, self.found = self.looked + len(ids), self.found + int(able.sum())
        first = able.reshape(-1, _LOOKS).argmax(axis=1) + _LOOKS * np.arange(len(idle))
        lucky = able[first]
        first, slots = first[lucky], idle[lucky]
        _, once = np.unique(ids[first], return_index=True)  # one client cannot begin in two slots
        first, slots = first[once], slots[once]
        waiting = np.setdiff1d(idle, slots, assume_unique=True)
        self.free[waiting] += np.where(np.isin(waiting, idle[lucky]), 0.0, _PAUSE_SECONDS)
        selection = ask(self.population, ids[first], remaining[first], self.load, number[first])
        stop = np.minimum(np.minimum(selection.finish, selection.leave), self.timeout)
        spent = spent_until(selection, stop, self.load)
        begun = self.free[slots]
        result = selection.finish <= np.minimum(selection.leave, self.timeout)
        late = ~result & (stop == self.timeout)
        columns = (begun + stop, begun, selection.ids, result, late, *spent)
        self.events = np.concatenate([self.events, np.stack(columns, axis=1)])
        self.free[slots] = begun + stop


def buffered_steps(
    population: Population, load: Load, schedule: Buffered, servers: Servers, *, start: float, seed: int
) -> Iterator[ServerStep]:
    """Yields server steps indefinitely."""
    chains = _Chains(population, load, schedule, start, seed)
    check_able(population, load)
    delay = servers.adding_seconds(schedule.buffer, load.upload_bytes)
    between = servers.between_bytes(load.download_bytes, load.upload_bytes)
    versions = np.empty(0)  # time at which each version of the model was available
    waiting = np.empty((0, len(_COLUMNS)))
    now = last = start
    window = _PAUSE_SECONDS
    number = 0
    while True:
        now += window
        waiting = np.concatenate([waiting, chains.advance(now)])
        results = np.flatnonzero(waiting[:, _AT["result"]] > 0)
        ends = results[schedule.buffer - 1 :: schedule.buffer]
        versions = np.concatenate([versions, waiting[ends, 0] + delay])
        first = 0
        for end in ends:
            events = waiting[first : end + 1]
            step = _step(events, versions, number, last, chains.found / max(chains.looked, 1), between)
            yield step
            last, number, first = last + step.record.seconds, number + 1, int(end) + 1
        waiting = waiting[first:]
        if now - last > _PATIENCE:
            message = (
                f"`simulate` waited {_PATIENCE / 3600:.0f} hours of virtual time for step {number}, which has "
                f"{int((waiting[:, _AT['result']] > 0).sum())} of {schedule.buffer} results. A step needs all of them: "
                "use a smaller buffer, higher concurrency or longer sessions."
            )
            raise ProgramError(message)
        # Make about four steps at once: enough for vectorization, with few events to store.
        window = max(_PAUSE_SECONDS, (now - start) / max(number, 1) * 4) if number else min(2 * window, 3600.0)


def _step(
    events: np.ndarray, versions: np.ndarray, number: int, last: float, share: float, between: float
) -> ServerStep:
    results = events[events[:, _AT["result"]] > 0]
    # Version 0 is available from the start; version k + 1 after step k.
    staleness = number - np.searchsorted(versions, results[:, _AT["start"]], "right")
    column = {name: events[:, i] for name, i in _AT.items()}
    lost = column["result"] == 0
    record = SimulatedRoundRecord(
        round=number,
        start_seconds=last,
        seconds=float(versions[number]) - last,
        asked=len(events),
        used=len(results),
        late=int(column["late"].sum()),
        dropped=int((lost & (column["late"] == 0)).sum()),
        succeeded=True,
        download_bytes=float(column["down"].sum()),
        upload_bytes=float(column["up"].sum()),
        wasted_bytes=float((column["down"] + column["up"])[lost].sum()),
        between_servers_bytes=between,
        energy_joules=float(column["joules"].sum()),
        wasted_joules=float(column["joules"][lost].sum()),
        staleness=float(staleness.mean()),
        available_share=share,
    )
    return ServerStep(record, results[:, _AT["id"]].astype(np.int64), staleness)
