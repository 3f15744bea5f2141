"""Simulated rounds agree with an independent event simulator (SimPy), with cases by hand, and with laws."""

import dataclasses
import math

import numpy as np
import pytest

from workbench.errors import ProgramError
from workbench.federated.population import (
    PHONES,
    Buffered,
    Population,
    Servers,
    Sessions,
    Synchronous,
    simulate,
)
from workbench.federated.population._buffered import _AT, _Chains
from workbench.federated.population._draws import Permutation, key_of
from workbench.federated.population._selection import load_of
from workbench.records import Record
from workbench.records.run import ProtocolCostRecord, ProtocolRoundRecord, WorkRecord

WORK = WorkRecord(flops=3e11, download_bytes=5e6, upload_bytes=5e6, spread=0.3)
LATENCY = 0.1
FAST = Servers(1e30)  # adds in no time
EVENINGS = Sessions(start_hour=2, spread_hours=3, shortest_hours=0.2, longest_hours=6, chance=0.8)
PEOPLE = Population(2000, PHONES, [EVENINGS], {0.0: 0.5, 3.0: 0.5}, interruptions_per_hour=6.0)
ALIKE = PHONES[0].replace(share=1.0, compute_spread=0.0, bandwidth_spread=0.0)
MACHINES = Population(1000, (ALIKE,), None, {0.0: 1.0}, interruptions_per_hour=0.0)
# Of every machine: 5 MB down at 1.5 MB/s, 3e11 FLOPs at 2 GFLOP/s, 5 MB up at 0.5 MB/s, and two exchanges.
SECONDS = 10 / 3 + 150 + 10 + 2 * LATENCY
EVEN = WORK.replace(spread=0.0)


class Client:
    """One client as a process of an event simulator."""

    def __init__(self, population, number, attempt):
        ids = np.array([number])
        device = population.devices_of(ids)
        flops = WORK.flops * population.work_factor(ids, WORK.spread)[0]
        self.stages = [
            (WORK.download_bytes / device.download_bytes_per_second[0], device.radio_watts[0], "down"),
            (LATENCY, 0.0, "wait"),
            (flops / device.flops_per_second[0], device.compute_watts[0], "compute"),
            (LATENCY, 0.0, "wait"),
            (WORK.upload_bytes / device.upload_bytes_per_second[0], device.radio_watts[0], "up"),
        ]
        self.failure = float(population.failure_seconds(ids, attempt)[0])
        self.joules, self.status, self.parts = 0.0, "working", {"down": 0.0, "up": 0.0}

    def run(self, environment, remaining):
        import simpy

        gone = environment.timeout(min(remaining, self.failure))
        for seconds, watts, name in self.stages:
            begun = environment.now
            done = environment.timeout(seconds)
            try:
                happened = yield done | gone
            except simpy.Interrupt:
                happened, self.status = {}, "stopped"
            spent = environment.now - begun
            self.joules += watts * spent
            if name in self.parts:
                self.parts[name] = spent / seconds
            if done not in happened:
                self.status = self.status if self.status == "stopped" else "dropped"
                return
        self.status = "done"


def one_round_of_events(population, schedule, now, number, seed=0):
    """A round in which every client is a process, and the server one that counts their results."""
    simpy = pytest.importorskip("simpy", reason="the independent event simulator of the test group")
    order = Permutation(population.clients, key_of(seed, "cohort", number))
    ids = order.stretch(0, order.positions)
    remaining = population.remaining_seconds(ids, now)
    there = np.flatnonzero(remaining > 0)[: math.ceil(schedule.cohort * schedule.over_selection)]
    environment = simpy.Environment()
    clients = [Client(population, ids[i], number) for i in there]
    processes = [
        environment.process(client.run(environment, remaining[i])) for client, i in zip(clients, there, strict=True)
    ]
    full = environment.event()

    def count(_):
        if sum(client.status == "done" for client in clients) == schedule.cohort and not full.triggered:
            full.succeed()

    for process in processes:
        process.callbacks.append(count)
    limit = environment.timeout(math.inf if schedule.deadline_seconds is None else schedule.deadline_seconds)
    environment.run(full | limit)
    end = environment.now
    for process in processes:
        if process.is_alive:
            process.interrupt()
    environment.run(environment.timeout(0))
    status = [client.status for client in clients]
    return {
        "seconds": end,
        "used": status.count("done"),
        "dropped": status.count("dropped"),
        "late": status.count("stopped"),
        "energy_joules": sum(client.joules for client in clients),
        "download_bytes": sum(client.parts["down"] for client in clients) * WORK.download_bytes,
        "upload_bytes": sum(client.parts["up"] for client in clients) * WORK.upload_bytes,
    }


@pytest.mark.parametrize("deadline", [None, 150.0, 600.0])
def test_synchronous_rounds_are_those_of_an_event_simulator(deadline):
    schedule = Synchronous(cohort=40, over_selection=1.5, deadline_seconds=deadline, minimum_share=0.1)
    rounds = simulate(
        PEOPLE, WORK, schedule, rounds=4, servers=FAST, start_hour=3, latency_seconds=LATENCY
    ).record.rounds
    for each in rounds:
        expected = one_round_of_events(PEOPLE, schedule, each.start_seconds, each.round)
        found = {name: getattr(each, name) for name in expected}
        assert found == pytest.approx(expected, rel=1e-9)


def buffered_by_events(population, schedule, steps, seed):
    """Seconds per step, mean staleness and share of lost clients, with one process per slot and random clients."""
    simpy = pytest.importorskip("simpy", reason="the independent event simulator of the test group")
    environment, random = simpy.Environment(initial_time=4 * 3600), np.random.default_rng(seed)
    versions, held, ages, lost = [environment.now], [], [], []
    full = environment.event()

    def slot():
        while True:
            numbers = random.integers(population.clients, size=64)
            stays = population.remaining_seconds(numbers, environment.now)
            if not stays.any():
                continue
            number, remaining = numbers[stays > 0][0], stays[stays > 0][0]
            client, begun = Client(population, number, int(random.integers(2**40))), len(versions)
            yield environment.process(client.run(environment, remaining))
            lost.append(client.status != "done")
            if client.status == "done":
                held.append(begun)
            if len(held) == schedule.buffer:
                ages.extend(len(versions) - begun for begun in held)
                held.clear()
                versions.append(environment.now)
            if len(versions) > steps and not full.triggered:
                full.succeed()

    for _ in range(schedule.concurrency):
        environment.process(slot())
    environment.run(full)
    return (versions[-1] - versions[0]) / steps, np.mean(ages), np.mean(lost)


def test_buffered_steps_have_the_rates_of_an_event_simulator():
    schedule, people = Buffered(concurrency=60, buffer=20), dataclasses.replace(PEOPLE, interruptions_per_hour=20.0)
    record = simulate(people, WORK, schedule, rounds=60, servers=FAST, start_hour=4, latency_seconds=LATENCY).record
    seconds, staleness, lost = np.mean([buffered_by_events(people, schedule, 50, seed) for seed in (1, 2)], axis=0)
    assert record.seconds / 60 == pytest.approx(seconds, rel=0.1)
    assert np.mean([each.staleness for each in record.rounds]) == pytest.approx(staleness, rel=0.1)
    dropped = sum(each.dropped for each in record.rounds) / sum(each.asked for each in record.rounds)
    assert dropped == pytest.approx(lost, rel=0.15)


def test_round_of_machines_that_are_alike_by_hand():
    schedule = Synchronous(cohort=10, over_selection=2, deadline_seconds=None)
    (each,) = simulate(MACHINES, EVEN, schedule, rounds=1, servers=FAST).record.rounds
    assert each.seconds == pytest.approx(SECONDS)
    assert (each.asked, each.used, each.late, each.dropped) == (20, 10, 10, 0)
    assert each.energy_joules == pytest.approx(20 * (2.5 * 150 + 1.0 * (10 / 3 + 10)))
    assert each.download_bytes == each.upload_bytes == pytest.approx(20 * 5e6)
    assert each.wasted_bytes == pytest.approx(10 * 1e7)


def test_share_of_interrupted_clients_is_that_of_an_exponential():
    machines = dataclasses.replace(MACHINES, clients=10**6, interruptions_per_hour=6.0)
    schedule = Synchronous(cohort=20_000, over_selection=1, deadline_seconds=None, minimum_share=0.1)
    (each,) = simulate(machines, EVEN, schedule, rounds=1, servers=FAST).record.rounds
    assert each.dropped / each.asked == pytest.approx(1 - math.exp(-6 * SECONDS / 3600), abs=0.01)


def test_buffered_steps_of_machines_that_are_alike_by_hand():
    # Ten start together and end together: two steps of five at each multiple of the time that one takes.
    record = simulate(MACHINES, EVEN, Buffered(10, 5), rounds=6, servers=FAST).record
    ends = [each.start_seconds + each.seconds for each in record.rounds]
    np.testing.assert_allclose(ends, np.repeat([1, 2, 3], 2) * SECONDS)
    # Those who start at the second's end have seen both steps: at the next end they are 0 and 1 steps late.
    assert [each.staleness for each in record.rounds] == [0, 1, 0, 1, 0, 1]


def test_buffered_steps_follow_littles_law():
    # Throughput is concurrency over the mean time of a client, and a result misses about concurrency / buffer steps.
    people = dataclasses.replace(PEOPLE, clients=10**6, availability=None, interruptions_per_hour=0.0)
    ids = np.arange(100_000)
    devices = people.devices_of(ids)
    compute = WORK.flops * people.work_factor(ids, WORK.spread) / devices.flops_per_second
    mean = (compute + 5e6 / devices.download_bytes_per_second + 5e6 / devices.upload_bytes_per_second + 0.2).mean()
    rounds = simulate(people, WORK, Buffered(400, 100), rounds=200, servers=FAST).record.rounds[100:]
    assert np.mean([each.seconds for each in rounds]) == pytest.approx(100 * mean / 400, rel=0.05)
    assert np.mean([each.staleness for each in rounds]) == pytest.approx(400 / 100, rel=0.1)


def test_slots_never_hold_one_client_twice():
    people = dataclasses.replace(MACHINES, clients=25, interruptions_per_hour=20.0)
    chains = _Chains(people, load_of(WORK, None, LATENCY), Buffered(20, 10), 0.0, 0)
    events = np.concatenate([chains.advance(until) for until in np.arange(1, 20) * 60.0])
    assert len(events) > 100
    for client in range(25):
        own = events[events[:, _AT["id"]] == client]
        own = own[np.argsort(own[:, _AT["start"]])]
        assert (own[1:, _AT["start"]] >= own[:-1, _AT["time"]]).all()


def test_same_seed_gives_the_same_rounds():
    for schedule in (Synchronous(cohort=30), Buffered(30, 10)):
        first, second = (simulate(PEOPLE, WORK, schedule, rounds=5, start_hour=3) for _ in range(2))
        assert first.record == second.record
        np.testing.assert_array_equal(first.sampled_ids, second.sampled_ids)


def test_cohorts_have_no_client_twice_and_only_available_ones():
    simulation = simulate(PEOPLE, WORK, Synchronous(cohort=50), rounds=3, start_hour=3, sampled=50)
    for ids, each in zip(simulation.sampled_ids, simulation.record.rounds, strict=True):
        kept = ids[ids >= 0]
        assert len(set(kept.tolist())) == len(kept) == each.used
        assert (PEOPLE.remaining_seconds(kept, each.start_seconds) > 0).all()


def test_a_round_without_enough_results_is_lost():
    schedule = Synchronous(cohort=40, deadline_seconds=20.0, minimum_share=1.0)
    (each,) = simulate(PEOPLE, WORK, schedule, rounds=1, start_hour=3).record.rounds
    assert (each.succeeded, each.used, each.wasted_joules) == (False, 0, each.energy_joules)


def test_rounds_wait_for_the_night():
    night = Sessions(start_hour=22, spread_hours=0, shortest_hours=4, longest_hours=4)
    people = dataclasses.replace(PEOPLE, availability=[night], time_zones={0.0: 1.0})
    (each,) = simulate(people, WORK, Synchronous(cohort=10), rounds=1, start_hour=21).record.rounds
    assert 3600 <= each.seconds <= 2.5 * 3600  # a pause doubles until the session starts


def test_devices_without_the_memory_are_not_asked():
    small, large = ALIKE.replace(share=0.5, memory_bytes=10), ALIKE.replace(name="large", share=0.5)
    people = dataclasses.replace(MACHINES, devices=(small, large))
    work = EVEN.replace(memory_bytes=1000)
    ids = simulate(people, work, Synchronous(cohort=32), rounds=2).sampled_ids
    assert set(people.frame(ids.ravel())["device class"]) == {"large"}


def test_work_that_no_device_can_do_is_refused():
    with pytest.raises(ProgramError, match="none of 10,000 sampled devices"):
        simulate(PEOPLE, WORK.replace(memory_bytes=10**12), Synchronous(cohort=10), rounds=1)
    with pytest.raises(ProgramError, match="spend at most 10 % of a battery"):
        simulate(PEOPLE, WORK.replace(flops=1e18), Buffered(10, 5), rounds=1)


def test_a_cohort_larger_than_the_population_is_refused():
    with pytest.raises(ProgramError, match="at most 1000 of 1000 clients"):
        simulate(MACHINES, EVEN, Synchronous(cohort=2000), rounds=1)


def test_tiers_shorten_the_sum_and_send_between_servers():
    slow = Servers(5e6)
    schedule = Synchronous(cohort=100, over_selection=1, deadline_seconds=None)
    flat = simulate(MACHINES, EVEN, schedule, rounds=1, servers=slow).record.rounds[0]
    tiered = simulate(MACHINES, EVEN, schedule, rounds=1, servers=Servers(5e6, tiers=(10,))).record.rounds[0]
    # One link of a result per second: 100 out and 100 in; with ten aggregators 10 + 10 each way.
    assert flat.seconds == pytest.approx(SECONDS + 200)
    assert tiered.seconds == pytest.approx(SECONDS + 40)
    assert (flat.between_servers_bytes, tiered.between_servers_bytes) == (0, 10 * 1e7)


def protocol(threshold, operations=0.0):
    rounds = (
        ProtocolRoundRecord(name="keys", upload_bytes=1e6, download_bytes=3e6, after_training=False),
        ProtocolRoundRecord(name="unmasking", upload_bytes=2e6, download_bytes=0, after_training=True),
    )
    return ProtocolCostRecord(
        name="masks", rounds=rounds, clients=10, threshold=threshold, server_operations=operations
    )


def test_a_protocol_costs_its_exchanges():
    schedule = Synchronous(cohort=10, over_selection=1, deadline_seconds=None)
    servers = Servers(1e30, operations_per_second=1e6)
    (each,) = simulate(MACHINES, EVEN, schedule, rounds=1, servers=servers, protocol=protocol(8, 7e6)).record.rounds
    # Before: 3 MB down, 1 MB up and an exchange; after: 2 MB up and an exchange; then 7 million operations.
    assert each.seconds == pytest.approx(SECONDS + 2 + 2 + LATENCY + 4 + LATENCY + 7)
    assert each.upload_bytes == pytest.approx(10 * 8e6)


@pytest.mark.parametrize(
    ("schedule", "threshold", "reason"),
    [
        (Buffered(10, 5), 3, "trusted enclave"),
        (Synchronous(cohort=10), 11, "threshold of 11 clients for cohorts of 10"),
    ],
    ids=["buffered", "threshold"],
)
def test_protocols_that_do_not_fit_are_refused(schedule, threshold, reason):
    with pytest.raises(ProgramError, match=reason):
        simulate(MACHINES, EVEN, schedule, rounds=1, protocol=protocol(threshold))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Synchronous(cohort=0),
        lambda: Synchronous(cohort=1, over_selection=0.5),
        lambda: Buffered(0, 1),
        lambda: Buffered(1, 1, timeout_seconds=0),
        lambda: Servers(tiers=(10, 10)),
        lambda: simulate(MACHINES, EVEN, Synchronous(cohort=1), rounds=0),
        lambda: simulate(MACHINES, 3, Synchronous(cohort=1), rounds=1),
    ],
    ids=["cohort", "over-selection", "concurrency", "timeout", "tiers", "rounds", "work"],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ProgramError, match="received"):
        make()


def test_timeouts_of_a_buffer_count_as_late():
    record = simulate(PEOPLE, WORK, Buffered(30, 10, timeout_seconds=60.0), rounds=5, start_hour=4).record
    assert sum(each.late for each in record.rounds) > 0


def test_frame_adds_up_and_record_reads_back():
    simulation = simulate(PEOPLE, WORK, Synchronous(cohort=20), rounds=5, start_hour=3)
    frame, record = simulation.frame(), simulation.record
    assert frame["hours"].iloc[-1] == pytest.approx(record.seconds / 3600)
    assert frame["moved (GB)"].iloc[-1] * 1e9 == pytest.approx(record.moved_bytes)
    assert frame["energy (kWh)"].iloc[-1] * 3.6e6 == pytest.approx(record.energy_joules)
    assert Record.from_json(record.to_json()) == record
