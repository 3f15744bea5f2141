"""A population's rounds on a virtual clock."""

import dataclasses
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer

from workbench.errors import ProgramError, check_settings, needs_library
from workbench.federated.population._buffered import buffered_steps
from workbench.federated.population._devices import NIGHTS, PHONES, WORLD, Population
from workbench.federated.population._draws import draw_bits, key_of
from workbench.federated.population._rounds import ServerStep, synchronous_steps
from workbench.federated.population._schedules import Buffered, Synchronous
from workbench.federated.population._selection import load_of
from workbench.federated.population._servers import Servers
from workbench.records.run import PopulationRunRecord, ProtocolCostRecord, WorkRecord

if TYPE_CHECKING:
    import pandas as pd

_JOULES_PER_KWH = 3.6e6


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Simulated rounds, with a sample of each round's contributing clients.

    Attributes:
        record: The rounds.
        sampled_ids: A uniform sample of the clients whose results were used in each round, `[rounds, sampled]`; −1 for
            missing clients.
        sampled_staleness: Server steps between a sampled client's start and the use of its result, `[rounds, sampled]`.
    """

    record: PopulationRunRecord
    sampled_ids: Integer[np.ndarray, "rounds sampled"] = dataclasses.field(repr=False)
    sampled_staleness: Integer[np.ndarray, "rounds sampled"] = dataclasses.field(repr=False)

    def frame(self) -> "pd.DataFrame":
        """One row per round; the columns of hours, gigabytes and kWh are totals since the first round."""
        with needs_library("pandas", needed_for="`Simulation.frame`"):
            import pandas as pd
        rounds = self.record.rounds
        frame = pd.DataFrame({"round": [row.round for row in rounds]})
        ends = np.array([row.start_seconds + row.seconds for row in rounds])
        frame["hours"] = (ends - rounds[0].start_seconds) / 3600
        frame["minutes per round"] = [row.seconds / 60 for row in rounds]
        for name in ("asked", "used", "late", "dropped", "succeeded", "staleness"):
            frame[name] = [getattr(row, name) for row in rounds]
        totals = {
            "downloaded (GB)": ("download_bytes", 1e9),
            "uploaded (GB)": ("upload_bytes", 1e9),
            "wasted (GB)": ("wasted_bytes", 1e9),
            "between servers (GB)": ("between_servers_bytes", 1e9),
            "energy (kWh)": ("energy_joules", _JOULES_PER_KWH),
            "wasted energy (kWh)": ("wasted_joules", _JOULES_PER_KWH),
        }
        for name, (field, unit) in totals.items():
            frame[name] = np.cumsum([getattr(row, field) for row in rounds]) / unit
        frame["moved (GB)"] = frame["downloaded (GB)"] + frame["uploaded (GB)"]
        frame["available share"] = [row.available_share for row in rounds]
        return frame


def simulate(
    population: Population,
    work: WorkRecord,
    schedule: Synchronous | Buffered,
    *,
    rounds: int,
    start_hour: float = 0.0,
    servers: Servers | None = None,
    protocol: ProtocolCostRecord | None = None,
    latency_seconds: float = 0.1,
    sampled: int = 32,
    seed: int = 0,
) -> Simulation:
    """Simulates a population's rounds on a virtual clock, without training.

    The cost of a simulated round does not depend on the size of the population, because only the clients that the
    server checks are simulated.

    Args:
        population: The clients.
        work: Work of one client in a round: `work_of(wb.trace(round)(...))`.
        schedule: `Synchronous(...)` rounds, or `Buffered(...)` steps.
        rounds: Number of rounds.
        start_hour: Start of the first round, in hours UTC.
        servers: The servers and tiers of aggregators. Default: one server with 10 Gbit/s.
        protocol: Cost of secure aggregation: `algorithms.secure_aggregation_cost(...)`.
        latency_seconds: Round-trip time between a client and the server, per exchange.
        sampled: Number of contributing clients per round to keep for `train`.
        seed: Seed for cohorts and interruptions; the population has its own seed.

    Returns:
        The simulated rounds.

    Raises:
        ProgramError: if no device can do the work, too few devices are ever available, or the schedule does not support
            the protocol.

    Example:
        >>> from workbench.records.run import WorkRecord
        >>> work = WorkRecord(flops=1e11, download_bytes=5e6, upload_bytes=5e6)
        >>> simulation = simulate(Population(100_000_000), work, Synchronous(cohort=1000), rounds=3)
        >>> [each.used for each in simulation.record.rounds]
        [1000, 1000, 1000]
    """
    _check(work, schedule, rounds, protocol, latency_seconds, sampled)
    where = Servers() if servers is None else servers
    load, start = load_of(work, protocol, latency_seconds), start_hour * 3600
    if isinstance(schedule, Synchronous):
        steps = synchronous_steps(population, load, schedule, where, protocol, start=start, seed=seed)
    else:
        steps = buffered_steps(population, load, schedule, where, start=start, seed=seed)
    records, ids, staleness = [], [], []
    for step in islice(steps, rounds):
        chosen, ages = _some(step, sampled, seed)
        records.append(step.record)
        ids.append(chosen)
        staleness.append(ages)
    record = PopulationRunRecord(
        clients=population.clients,
        schedule="synchronous" if isinstance(schedule, Synchronous) else "buffered",
        cohort=schedule.cohort if isinstance(schedule, Synchronous) else schedule.buffer,
        work=work,
        devices=population.device_classes,
        rounds=tuple(records),
        seed=seed,
        protocol=protocol,
        assumptions=_assumptions(population, work),
    )
    return Simulation(record, np.stack(ids), np.stack(staleness))


def _check(
    work: WorkRecord,
    schedule: Synchronous | Buffered,
    rounds: int,
    protocol: ProtocolCostRecord | None,
    latency_seconds: float,
    sampled: int,
) -> None:
    if not isinstance(work, WorkRecord) or not isinstance(schedule, Synchronous | Buffered):
        message = (
            f"`simulate` received an object of type {type(work).__name__} as its work and an object of type "
            f"{type(schedule).__name__} as its schedule. The work must be a `WorkRecord`, and the schedule must be "
            "synchronous or buffered: pass `work_of(wb.trace(algorithm.round)(state, batches))`, and "
            "`Synchronous(...)` or `Buffered(...)`."
        )
        raise ProgramError(message)
    check_settings(
        "simulate",
        (rounds >= 1, f"rounds={rounds}", "Pass at least 1 round."),
        (latency_seconds >= 0, f"latency_seconds={latency_seconds}", "`latency_seconds` must be at least 0."),
        (
            sampled >= 1,
            f"sampled={sampled}",
            "`simulate` keeps `sampled` clients from each round: pass at least 1.",
        ),
    )
    if protocol is None:
        return
    if isinstance(schedule, Buffered):
        message = (
            f"`simulate` received the protocol {protocol.name!r} with a buffered schedule. Masks cancel among clients "
            "that train from the same model at the same time, but a buffer mixes results of several models: use "
            "`Synchronous(...)`, or omit the protocol (FedBuff aggregates inside a trusted enclave)."
        )
        raise ProgramError(message)
    if protocol.threshold > schedule.cohort:
        message = (
            f"`simulate` received the protocol {protocol.name!r} with a threshold of {protocol.threshold} clients for "
            f"cohorts of {schedule.cohort}. Masks can be removed only if at least that many clients "
            "answer: use a cohort of at least that size, or a lower threshold."
        )
        raise ProgramError(message)


def _some(step: ServerStep, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws a step's clients uniformly, with −1 for each missing client."""
    order = np.argsort(draw_bits(key_of(seed, "sampled", step.record.round), np.arange(len(step.ids))))[:count]
    ids, staleness = np.full(count, -1), np.zeros(count, np.int64)
    ids[: len(order)], staleness[: len(order)] = step.ids[order], step.staleness[order]
    return ids, staleness


def _assumptions(population: Population, work: WorkRecord) -> tuple[str, ...]:
    """Lists the result's assumptions, except those that the caller set."""
    assumptions = [
        "a device has constant speed and bandwidth",
        "interruptions are independent of the past; sessions end as scheduled",
        "the computation time is the program's FLOPs divided by the device's sustained rate",
        *(
            ["memory includes the values that a client receives, keeps and sends, but not activations"]
            * bool(work.memory_bytes)
        ),
        *(["device classes are the defaults, which are assumed, not measured"] * (population.devices is PHONES)),
        *(["sessions are the defaults, which are assumed, not measured"] * (population.availability is NIGHTS)),
        *(["time zones are the defaults, roughly proportional to world population"] * (population.time_zones is WORLD)),
    ]
    return tuple(assumptions)
