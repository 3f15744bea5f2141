"""Poisson cohorts: what the accountant of privacy assumes of a sample, and shapes that never change."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import DataError
from workbench.federated import algorithms, data as wd
from workbench.federated.data._cohorts import most_drawn

CLIENTS = 30


@pytest.fixture(scope="module")
def held():
    return wd.ClientData(arrays={str(c): {"x": np.full(1 + c % 3, c, np.float32)} for c in range(CLIENTS)})


@pytest.fixture(scope="module")
def presence(held):
    """Who took part in each of 2,000 rounds: bool `[rounds, clients]`."""
    found = np.zeros((2000, CLIENTS), bool)
    for row, padded in zip(found, wd.poisson_cohorts(held, 0.2, key=7, rounds=2000), strict=True):
        row[[int(client) for client in padded.clients if client]] = True
    return found


def test_every_client_takes_part_with_the_chance(presence):
    spread = math.sqrt(0.2 * 0.8 / 2000)
    assert np.abs(presence.mean(0) - 0.2).max() < 4.5 * spread


def test_clients_take_part_independently(presence):
    """A cohort of a fixed number has a variance of 0, and pairs that avoid each other."""
    sizes = presence.sum(1)
    expected = CLIENTS * 0.2 * 0.8
    assert abs(sizes.var() - expected) < 5 * expected * math.sqrt(2 / 2000)
    joint = (presence.T.astype(float) @ presence / 2000)[~np.eye(CLIENTS, dtype=bool)]
    assert abs(joint.mean() - 0.04) < 5 * math.sqrt(0.04 * 0.96 / 2000 / 435)


def test_a_round_depends_on_the_key_and_its_number_alone(held):
    long = [padded.clients for padded in wd.poisson_cohorts(held, 0.3, key=1, rounds=6)]
    short = [padded.clients for padded in wd.poisson_cohorts(held, 0.3, key=1, rounds=3)]
    assert long[:3] == short
    assert long != [padded.clients for padded in wd.poisson_cohorts(held, 0.3, key=2, rounds=6)]


def test_all_rounds_have_the_same_shapes_and_hold_the_clients_data(held):
    rounds = list(wd.poisson_cohorts(held, 0.2, key=3, rounds=20, batch_size=2, multiple_of=8))
    assert {(padded["x"].shape, padded.mask.shape) for padded in rounds} == {(rounds[0]["x"].shape, (24, 2, 2))}
    for padded in rounds:
        for slot, client in enumerate(padded.clients):
            assert padded.counts[slot] == (0 if client == "" else 1 + int(client) % 3)
            assert set(padded["x"][slot][padded.mask[slot]].tolist()) == (set() if client == "" else {float(client)})


def test_a_round_without_clients_has_weight_zero_everywhere(held):
    empty = next(padded for padded in wd.poisson_cohorts(held, 0.01, key=0) if not any(padded.clients))
    assert not empty.counts.any()
    assert not empty.mask.any()
    assert not empty["x"].any()


def test_more_clients_than_places_are_an_error_and_never_left_out(held):
    with pytest.raises(DataError, match=r"drew \d+ of 30 clients in round \d+ for 4 slots"):
        list(wd.poisson_cohorts(held, 0.3, key=0, rounds=50, slots=4))


def test_everybody_takes_part_with_a_chance_of_one(held):
    (padded,) = wd.poisson_cohorts(held, 1.0, key=0, rounds=1)
    assert padded.clients == tuple(map(str, range(CLIENTS)))


@pytest.mark.parametrize(
    "options", [{"participation": 0.0}, {"participation": 1.5}, {"participation": 0.5, "slots": 0}]
)
def test_wrong_chances_are_refused_at_once(held, options):
    with pytest.raises(DataError, match=f"`poisson_cohorts` received {[*options][-1]}="):
        wd.poisson_cohorts(held, key=0, **options)


@pytest.mark.parametrize(("clients", "chance"), [(30, Fraction(1, 5)), (100, Fraction(1, 100)), (7, Fraction(9, 10))])
def test_places_are_exceeded_with_a_chance_below_one_in_a_trillion(clients, chance):
    places = most_drawn(clients, float(chance))
    tail = sum(
        math.comb(clients, k) * chance**k * (1 - chance) ** (clients - k) for k in range(places + 1, clients + 1)
    )
    assert tail < Fraction(1, 10**12)


def test_a_private_mean_divides_by_the_expected_number(held):
    """The sum of clipped updates over qN: a round of twice as many clients moves twice as far."""
    expected = 0.2 * CLIENTS
    mean = algorithms.gaussian_mean(clip=100.0, noise_multiplier=0.0, expected=expected)
    for padded in wd.poisson_cohorts(held, 0.2, key=5, rounds=4):
        came = [float(client) for client in padded.clients if client]
        values = jnp.asarray([float(client or 0) for client in padded.clients])
        with wb.program(clients=len(padded.clients)):
            update, _ = mean.combine(values[:, None], jnp.asarray(padded.tree["weight"]), mean.init(None))
        assert float(update[0]) == pytest.approx(sum(came) / expected, rel=1e-5)
