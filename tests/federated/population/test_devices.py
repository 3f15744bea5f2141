"""Clients are functions of their numbers; their devices and sessions have the distributions that were asked for."""

import dataclasses

import numpy as np
import pytest

from workbench.errors import ProgramError
from workbench.federated.population import PHONES, Population, Sessions

IDS = np.arange(40_000)
NIGHT = Sessions(start_hour=23, spread_hours=2, shortest_hours=3, longest_hours=7, chance=0.6)


def test_a_client_is_the_same_alone_and_among_others():
    phones = Population(10**8)
    ids = np.array([3, 99_999_999, 12_345_678])
    together = phones.devices_of(ids)
    alone = phones.devices_of(ids[1:2])
    assert all(a[1] == b[0] for a, b in zip(together, alone, strict=True))
    assert phones.remaining_seconds(ids, 5e4)[2] == phones.remaining_seconds(ids[2:], 5e4)[0]


def test_classes_have_their_shares_and_medians():
    found = Population(10**8).devices_of(IDS)
    for number, each in enumerate(PHONES):
        members = found.device_class == number
        assert members.mean() == pytest.approx(each.share, abs=0.01)
        assert np.median(found.flops_per_second[members]) == pytest.approx(each.flops_per_second, rel=0.03)
        assert np.log(found.upload_bytes_per_second[members]).std() == pytest.approx(each.bandwidth_spread, rel=0.03)


def test_time_zones_have_their_shares():
    zones = Population(10**6, time_zones={-8.0: 0.25, 5.5: 0.75}).zones_of(IDS)
    assert (zones == 5.5).mean() == pytest.approx(0.75, abs=0.01)


def test_share_of_available_clients_over_a_day_is_mean_session_length():
    # Each device is available `chance * mean length` of every 24 hours.
    phones = Population(10**6, availability=[NIGHT])
    hours = np.arange(48, 72, 0.5)
    shares = [phones.available_share(hour * 3600, sample=5000) for hour in hours]
    assert np.mean(shares) == pytest.approx(0.6 * 5 / 24, rel=0.03)


def test_remaining_seconds_agree_with_the_sessions_written_out():
    phones = Population(1000, availability=[NIGHT], time_zones={5.5: 0.5, -8.0: 0.5})
    ids = np.arange(300)
    zones = phones.zones_of(ids)
    for now in (0.0, 3.3e4, 6.1e4, 1.2e5, 2e5):
        expected = np.zeros(len(ids))
        for day in range(-3, 5):
            starts, ends, there = NIGHT.bounds(ids, np.full(len(ids), day), phones.seed)
            starts, ends = starts - zones * 3600, ends - zones * 3600
            inside = there & (starts <= now) & (now < ends)
            expected = np.maximum(expected, np.where(inside, ends - now, 0))
        np.testing.assert_allclose(phones.remaining_seconds(ids, now), expected, atol=1e-6)


def test_interruptions_are_exponential():
    seconds = Population(10**6, interruptions_per_hour=2.0).failure_seconds(IDS, 0)
    assert seconds.mean() == pytest.approx(1800, rel=0.02)
    assert (seconds > 3600).mean() == pytest.approx(np.exp(-2), abs=0.01)


def test_work_factor_has_mean_one():
    assert Population(10**6).work_factor(IDS, 0.8).mean() == pytest.approx(1, abs=0.02)


def test_seeds_make_other_populations():
    first, second = (Population(10**6, seed=seed).devices_of(IDS).flops_per_second for seed in (0, 1))
    assert abs(np.corrcoef(np.log(first), np.log(second))[0, 1]) < 0.02


@pytest.mark.parametrize(
    "wrong",
    [{"clients": 0}, {"devices": PHONES[:1]}, {"time_zones": {0.0: 0.5}}, {"availability": []}, {"battery_share": 0}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_impossible_populations_are_refused(wrong):
    with pytest.raises(ProgramError, match=f"`Population` received [^.]*{next(iter(wrong))}"):
        Population(**{"clients": 10, **wrong})


def test_impossible_sessions_are_refused():
    with pytest.raises(ProgramError, match="longest_hours=25"):
        dataclasses.replace(NIGHT, longest_hours=25)


def test_devices_that_never_leave():
    assert np.isinf(Population(10, availability=None).remaining_seconds(IDS[:10], 1e6)).all()
