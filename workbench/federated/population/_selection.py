"""Selection of clients that are available and able to do the work, in random order."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

from workbench.federated.population._devices import Devices, Population
from workbench.federated.population._draws import Permutation, draw_bits, key_of
from workbench.records.run import ProtocolCostRecord, WorkRecord

_SCANNED = 4_000_000  # clients checked for one round; a round waits if too few of them are available
_MASK_OPERATIONS = 16.0  # integer operations per word of a mask: a ChaCha20 block is 320 of them for 16 words


class Asked(NamedTuple):
    """Clients that start work, one entry per client; times are in seconds since the client's start."""

    ids: Integer[np.ndarray, " n"]
    finish: Float[np.ndarray, " n"]  # time at which the result reaches the server, without failures
    leave: Float[np.ndarray, " n"]  # time at which the device leaves or fails
    download: Float[np.ndarray, " n"]
    compute: Float[np.ndarray, " n"]
    upload: Float[np.ndarray, " n"]
    watts: Float[np.ndarray, " n"]  # while it computes
    radio: Float[np.ndarray, " n"]  # while it receives or sends
    unmask: Float[np.ndarray, " n"]  # seconds for exchanges after training


class Load(NamedTuple):
    """A client's work and its part in the protocol, in bytes, operations and seconds."""

    work: WorkRecord
    download_bytes: float
    upload_bytes: float
    after_bytes: float  # after training, up
    mask_operations: float
    waits: float  # total seconds of latency
    lead: float  # part of `waits` before the client computes
    after_waits: float


def load_of(work: WorkRecord, protocol: ProtocolCostRecord | None, latency_seconds: float) -> Load:
    """Computes a client's load: its training and its part in a protocol."""
    rounds = protocol.rounds if protocol else ()
    before, after = [r for r in rounds if not r.after_training], [r for r in rounds if r.after_training]
    return Load(
        work,
        work.download_bytes + sum(r.download_bytes for r in before),
        work.upload_bytes + sum(r.upload_bytes for r in before),
        sum(r.upload_bytes + r.download_bytes for r in after),
        protocol.client_operations * _MASK_OPERATIONS if protocol else 0.0,
        latency_seconds * (2 + len(before)),
        latency_seconds * (1 + len(before)),
        latency_seconds * len(after),
    )


def eligible(population: Population, devices: Devices, ids: np.ndarray, load: Load) -> Bool[np.ndarray, " n"]:
    """Returns whether each device has enough memory and may spend enough energy."""
    watts = seconds_of(population, devices, ids, load)
    joules = watts[1] * devices.compute_watts + (watts[0] + watts[2]) * devices.radio_watts
    enough = joules <= population.battery_share * devices.battery_joules
    return (devices.memory_bytes >= load.work.memory_bytes) & enough


def seconds_of(
    population: Population, devices: Devices, ids: np.ndarray, load: Load
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Computes the seconds for download, computation and upload."""
    flops = load.work.total_flops * population.work_factor(ids, load.work.spread) + load.mask_operations
    return (
        load.download_bytes / devices.download_bytes_per_second,
        flops / devices.flops_per_second,
        load.upload_bytes / devices.upload_bytes_per_second,
    )


def ask(population: Population, ids: np.ndarray, remaining: np.ndarray, load: Load, attempt: np.ndarray | int) -> Asked:
    """Simulates the outcome for clients that start work."""
    devices = population.devices_of(ids)
    return _ask(population, devices, ids, remaining, load, attempt)


def _ask(
    population: Population, devices: Devices, ids: np.ndarray, remaining: np.ndarray, load: Load, attempt: object
) -> Asked:
    download, compute, upload = seconds_of(population, devices, ids, load)
    finish = download + compute + upload + load.waits
    unmask = load.after_bytes / devices.upload_bytes_per_second + load.after_waits
    failure = population.failure_seconds(ids, attempt)  # type: ignore[arg-type]
    leave = np.minimum(remaining, failure)
    return Asked(ids, finish, leave, download, compute, upload, devices.compute_watts, devices.radio_watts, unmask)


def select(
    population: Population, load: Load, *, count: int, seconds: float, number: int, seed: int
) -> tuple[Asked, float]:
    """Asks up to `count` available clients, drawn uniformly.

    Args:
        population: Population to draw from.
        load: Load of one client.
        count: Number of clients.
        seconds: Time of the request in seconds since midnight UTC.
        number: The round's number; every round has a different order.
        seed: Seed for the orders.

    Returns:
        The clients, and the share of checked clients that were available and able to do the work.
    """
    order = Permutation(population.clients, key_of(seed, "cohort", number))
    draws: list[tuple[np.ndarray, np.ndarray]] = []
    looked = have = position = 0
    step = 2 * count
    while have < count and position < order.positions and looked < _SCANNED:
        ids = order.stretch(position, position + step)
        position += step
        looked += len(ids)
        remaining = population.remaining_seconds(ids, seconds)
        there = remaining > 0
        ids, remaining = ids[there], remaining[there]
        able = eligible(population, population.devices_of(ids), ids, load)
        draws.append((ids[able], remaining[able]))
        have += int(able.sum())
        rate = max(have, 1) / looked
        step = int(min(max(1.2 * (count - have) / rate, 1024), 2**19))
    ids, remaining = (np.concatenate(parts)[:count] for parts in zip(*draws, strict=True))
    return ask(population, ids, remaining, load, number), have / max(looked, 1)


def draw_available(
    population: Population, load: Load, seconds: np.ndarray, first: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws one client for every free slot, and checks the client at that slot's time."""
    counters = np.arange(first, first + len(seconds))
    ids = (draw_bits(key_of(seed, "slots"), counters) % np.uint64(population.clients)).astype(np.int64)
    remaining = population.remaining_seconds(ids, seconds)
    there = np.flatnonzero(remaining > 0)
    able = np.zeros(len(ids), bool)
    able[there] = eligible(population, population.devices_of(ids[there]), ids[there], load)
    return ids, remaining, able
