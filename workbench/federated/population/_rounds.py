"""Synchronous rounds on the virtual clock, vectorized over the clients of a round."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

from workbench.errors import ProgramError
from workbench.federated.population._devices import Population
from workbench.federated.population._draws import draw_bits, key_of
from workbench.federated.population._schedules import Synchronous
from workbench.federated.population._selection import Asked, Load, eligible, select
from workbench.federated.population._servers import Servers
from workbench.records.run import ProtocolCostRecord, SimulatedRoundRecord
from workbench.render.units import share_text

_FIRST_WAIT, _LONGEST_WAIT, _PATIENCE = 60.0, 3600.0, 2 * 86_400.0


class ServerStep(NamedTuple):
    """One server step and its clients."""

    record: SimulatedRoundRecord
    ids: Integer[np.ndarray, " used"]
    staleness: Integer[np.ndarray, " used"]


class Spent(NamedTuple):
    """The bytes and joules that each client had used when it stopped."""

    download_bytes: Float[np.ndarray, " n"]
    upload_bytes: Float[np.ndarray, " n"]
    joules: Float[np.ndarray, " n"]


def spent_until(selection: Asked, stop: Float[np.ndarray, " n"], load: Load) -> Spent:
    """Computes each client's usage after `stop` seconds; network latency costs nothing."""
    received = np.minimum(stop, selection.download)
    computed = np.clip(stop - selection.download - load.lead, 0, selection.compute)
    upload_time = np.clip(stop - (selection.finish - selection.upload), 0, selection.upload)
    return Spent(
        load.download_bytes * _share(received, selection.download),
        load.upload_bytes * _share(upload_time, selection.upload),
        computed * selection.watts + (received + upload_time) * selection.radio,
    )


def _share(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.divide(part, total, out=np.ones_like(part), where=total > 0)


def synchronous_steps(
    population: Population,
    load: Load,
    schedule: Synchronous,
    servers: Servers,
    protocol: ProtocolCostRecord | None,
    *,
    start: float,
    seed: int,
) -> Iterator[ServerStep]:
    """Yields rounds indefinitely."""
    now, number = start, 0
    while True:
        selection, share, waited = _ask_enough(population, load, schedule, now, number, seed)
        step = _round(
            selection, load, schedule, servers, protocol, number=number, start=now, waited=waited, share=share
        )
        yield step
        now, number = now + step.record.seconds, number + 1


def _ask_enough(
    population: Population, load: Load, schedule: Synchronous, now: float, number: int, seed: int
) -> tuple[Asked, float, float]:
    """Waits until enough clients are available for a round to succeed."""
    count, needed = math.ceil(schedule.cohort * schedule.over_selection), _needed(schedule)
    waited, pause = 0.0, _FIRST_WAIT
    while True:
        selection, share = select(population, load, count=count, seconds=now + waited, number=number, seed=seed)
        if len(selection.ids) >= needed:
            return selection, share, waited
        if waited == 0:
            check_able(population, load)
        if waited > _PATIENCE:
            message = (
                f"`simulate` waited {_PATIENCE / 3600:.0f} hours of virtual time for round {number}, in which at most "
                f"{len(selection.ids)} of {population.clients} clients were available at once. A round needs "
                f"{needed}: use a smaller cohort, a larger population or longer sessions."
            )
            raise ProgramError(message)
        waited, pause = waited + pause, min(2 * pause, _LONGEST_WAIT)


def check_able(population: Population, load: Load) -> None:
    """Raises if no device of a sample can do the work."""
    draws = draw_bits(key_of(population.seed, "sample"), np.arange(10_000))
    ids = (draws % np.uint64(population.clients)).astype(np.int64)
    devices = population.devices_of(ids)
    if not eligible(population, devices, ids, load).any():
        work = load.work
        message = (
            f"`simulate` received work of {work.total_flops:.3g} FLOPs and {work.memory_bytes / 1e6:,.0f} MB, which "
            f"none of 10,000 sampled devices can handle: they have up to {devices.memory_bytes.max() / 1e6:,.0f} "
            f"MB, and spend at most {share_text(population.battery_share, 0)} of a battery of up to "
            f"{devices.battery_joules.max() / 1e3:.0f} kJ. Use a smaller model or fewer local steps, or raise "
            "`battery_share`."
        )
        raise ProgramError(message)


def _needed(schedule: Synchronous) -> int:
    return math.ceil(schedule.cohort * schedule.minimum_share)


def _end(selection: Asked, is_complete: Bool[np.ndarray, " n"], schedule: Synchronous) -> float:
    """Returns the time at which the server has enough results or gives up."""
    deadline = math.inf if schedule.deadline_seconds is None else schedule.deadline_seconds
    finishes = selection.finish[is_complete]
    if len(finishes) >= schedule.cohort:
        return min(float(np.partition(finishes, schedule.cohort - 1)[schedule.cohort - 1]), deadline)
    return deadline if math.isfinite(deadline) else float(np.minimum(selection.finish, selection.leave).max())


def _round(
    selection: Asked,
    load: Load,
    schedule: Synchronous,
    servers: Servers,
    protocol: ProtocolCostRecord | None,
    *,
    number: int,
    start: float,
    waited: float,
    share: float,
) -> ServerStep:
    is_complete = selection.finish <= selection.leave
    end = _end(selection, is_complete, schedule)
    used = np.flatnonzero(is_complete & (selection.finish <= end))
    if len(used) > schedule.cohort:  # includes results that arrive at the same moment
        used = used[np.argsort(selection.finish[used], kind="stable")[: schedule.cohort]]
    spent = spent_until(selection, np.minimum(np.minimum(selection.finish, selection.leave), end), load)
    dropout_mask = ~is_complete & (selection.leave <= end)
    after, alive = _unmasking(selection, used, end, protocol)
    succeeded = len(used) >= _needed(schedule) and (protocol is None or alive >= protocol.threshold)
    wasted = np.ones(len(selection.ids), bool)
    if succeeded:
        wasted[used] = False
    exchanged = spent.download_bytes + spent.upload_bytes
    sending = servers.adding_seconds(len(selection.ids), load.download_bytes)
    adding = servers.adding_seconds(len(used), load.upload_bytes)
    removing = protocol.server_operations / servers.operations_per_second if protocol else 0.0
    record = SimulatedRoundRecord(
        round=number,
        start_seconds=start,
        seconds=waited + sending + end + after + adding + removing,
        asked=len(selection.ids),
        used=len(used) if succeeded else 0,
        late=len(selection.ids) - len(used) - int(dropout_mask.sum()),
        dropped=int(dropout_mask.sum()),
        succeeded=succeeded,
        download_bytes=float(spent.download_bytes.sum()),
        upload_bytes=float(spent.upload_bytes.sum()) + alive * load.after_bytes,
        wasted_bytes=float(exchanged[wasted].sum()),
        between_servers_bytes=servers.between_bytes(load.download_bytes, load.upload_bytes),
        energy_joules=float(spent.joules.sum()),
        wasted_joules=float(spent.joules[wasted].sum()),
        available_share=share,
    )
    ids = selection.ids[used] if succeeded else selection.ids[:0]
    return ServerStep(record, ids, np.zeros(len(ids), np.int64))


def _unmasking(
    selection: Asked, used: Integer[np.ndarray, " used"], end: float, protocol: ProtocolCostRecord | None
) -> tuple[float, int]:
    """Returns the seconds until enough clients have answered after training, and the number of answers."""
    if protocol is None or not any(exchange.after_training for exchange in protocol.rounds):
        return 0.0, len(used)
    seconds = selection.unmask[used]
    there = selection.leave[used] >= end + seconds
    alive = int(there.sum())
    if alive < protocol.threshold:
        return float(seconds.max(initial=0.0)), alive
    return float(np.partition(seconds[there], protocol.threshold - 1)[protocol.threshold - 1]), alive
