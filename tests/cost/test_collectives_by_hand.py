"""Times of collectives, derived by hand from links of 1 GB/s, and their formulas checked against routes."""

import pytest
from records_parts import TOY_CHIP

from workbench.cost import collective_seconds, known_chip, seconds_of_collective
from workbench.cost._collectives import is_closed_ring, sent_bytes, why_unpriced
from workbench.records.compiled import CollectiveRecord
from workbench.records.hardware import RateRecord

MEGA, HOP = 1e6, 1e-6
# Family "other": the whole bandwidth, no time to start, 1 µs per step.
SWITCH = TOY_CHIP.replace(domain=8)
CUBE = TOY_CHIP.replace(topology="torus3d", domain=64)
PLANE = TOY_CHIP.replace(topology="torus2d", domain=256)


def nvidia(**fields):
    """80 % of the links, 95 % of the network, 5 µs to start, 2.8 µs per step and 6 µs from 4 MiB on."""
    return SWITCH.replace(name="H1", **fields)


def tpu(**fields):
    """88 % of links and network, 10 µs to start and 4 µs for a permute, 1 µs per step."""
    return CUBE.replace(name="v0", **fields)


@pytest.mark.parametrize(
    ("chip", "size", "closed"),
    [(SWITCH, 3, True), (CUBE, 3, False), (CUBE, 4, True), (CUBE, 5, False), (CUBE, 8, True),
     (PLANE, 8, False), (PLANE, 15, False), (PLANE, 16, True), (PLANE, 17, False), (PLANE, 32, True)],
)  # fmt: skip
def test_rings_that_close(chip, size, closed):
    assert is_closed_ring(chip, size) is closed


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all-reduce", 2 * 3 / 4), ("all-gather", 3), ("reduce-scatter", 3 / 4), ("all-to-all", 3 / 4),
        ("ragged-all-to-all", 3 / 4), ("collective-permute", 1), ("collective-broadcast", 1), ("send", 1),
    ],
)  # fmt: skip
def test_bytes_that_a_device_of_four_sends(kind, factor):
    assert sent_bytes(kind, MEGA, 4) == factor * MEGA


@pytest.mark.parametrize(
    ("kind", "payload", "size", "expected"),
    [("all-reduce", MEGA, 1, 0.0), ("all-reduce", MEGA, 0, 0.0), ("all-reduce", 0, 4, 0.0), ("recv", MEGA, 4, 0.0),
     ("all-reduce", MEGA, 2, 1e-3 + 2 * HOP), ("all-reduce", 1, 2, 1e-9 + 2 * HOP)],
)  # fmt: skip
def test_only_two_devices_with_bytes_take_time(kind, payload, size, expected):
    assert collective_seconds(kind, payload, size, SWITCH) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "size", "steps"),
    [("all-reduce", 8, 14), ("all-gather", 8, 7), ("reduce-scatter", 8, 7), ("all-to-all", 8, 7), ("all-gather", 2, 1),
     ("collective-permute", 8, 1), ("send", 8, 1), ("collective-broadcast", 8, 7)],
)  # fmt: skip
def test_steps_through_a_switch(kind, size, steps):
    sent = sent_bytes(kind, MEGA, size) / 1e9
    assert collective_seconds(kind, MEGA, size, SWITCH) == pytest.approx(sent + steps * HOP)


@pytest.mark.parametrize(("payload", "hop"), [(2**22 - 4, 2.8e-6), (2**22, 6e-6), (2**22 + 4, 6e-6)])
@pytest.mark.parametrize("kind", ["all-gather", "send"])
def test_steps_of_nvidia_chips_take_longer_from_4_mebibytes_on(kind, payload, hop):
    steps, parts = (7, 7) if kind == "all-gather" else (1, 1)
    expected = parts * payload / (0.8 * 1e9) + steps * hop + 5e-6
    assert collective_seconds(kind, payload, 8, nvidia()) == pytest.approx(expected, rel=1e-9)


def test_switches_that_reduce_have_a_share_of_their_own_for_sums():
    chip, small = SWITCH.replace(name="H100"), 7 * 2.8e-6 + 5e-6
    assert collective_seconds("all-gather", MEGA, 8, chip) == pytest.approx(7e6 / 0.8e9 + small)
    assert collective_seconds("all-reduce", MEGA, 8, chip) == pytest.approx(1.75e6 / 1.07e9 + small + 7 * 2.8e-6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all-gather", 3 * MEGA / 2 / 0.88e9 + 2 * HOP + 10e-6),
        ("all-reduce", 1.5 * MEGA / 2 / 0.88e9 + 4 * HOP + 10e-6),
        ("collective-permute", MEGA / 0.88e9 + HOP + 4e-6),
        ("send", MEGA / 0.88e9 + HOP + 4e-6),
        ("all-to-all", MEGA / 2 / 0.88e9 + 2 * HOP + 10e-6),
        ("ragged-all-to-all", MEGA / 2 / 0.88e9 + 2 * HOP + 10e-6),
    ],
)
def test_fixed_costs_on_a_ring_of_tpus(kind, expected):
    assert collective_seconds(kind, MEGA, 4, tpu()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("chip", "size", "closed", "lanes", "steps"),
    [
        (CUBE, 4, None, 2, 2), (CUBE, 4, True, 2, 2), (CUBE, 4, False, 1, 3), (CUBE, 3, None, 1, 2),
        (CUBE, 3, True, 2, 1), (CUBE, 2, True, 1, 1),
        (PLANE, 256, None, 4, 16),  # a whole pod: both rings of 16
        (PLANE, 256, True, 2, 128), (PLANE, 128, None, 2, 64), (PLANE, 240, None, 2, 120),
        (CUBE.replace(domain=16), 16, None, 2, 8),
    ],
)  # fmt: skip
def test_lanes_and_steps_of_a_gather_without_coordinates(chip, size, closed, lanes, steps):
    found = collective_seconds("all-gather", MEGA, size, chip, closed=closed)
    assert found == pytest.approx((size - 1) * MEGA / lanes / 1e9 + steps * HOP)


@pytest.mark.parametrize(
    ("devices_per_chip", "size", "sharing", "cores"),
    [
        (1, 4, 1, 1), (2, 4, 2, 1), (2, 8, 1, 2), (4, 8, 2, 2), (4, 16, 1, 4),
        (1, 8, 1, 2),  # fewer devices on a chip than the group has: never below one
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "sent"), [("all-gather", 3 / 2), ("all-to-all", 1 / 2), ("reduce-scatter", 3 / 8), ("all-reduce", 3 / 4)]
)
def test_devices_of_a_chip_share_its_links(kind, sent, devices_per_chip, size, sharing, cores):
    """A ring of 4 chips: a gather and an exchange send the operands of all devices of a chip."""
    chip = CUBE.replace(devices_per_chip=devices_per_chip)
    amount = sent * sharing * (cores if kind in ("all-gather", "all-to-all") else 1)
    steps = 4 if kind == "all-reduce" else 2
    found = collective_seconds(kind, MEGA, size, chip, torus=((4, True),))
    assert found == pytest.approx(amount * MEGA / 1e9 + steps * HOP)


def test_torus_of_another_number_of_chips_is_not_used():
    found = collective_seconds("all-gather", MEGA, 6, CUBE, torus=((4, True),))
    assert found == collective_seconds("all-gather", MEGA, 6, CUBE) == pytest.approx(5 * MEGA / 1e9 + 5 * HOP)


def test_an_exchange_takes_the_narrowest_cut_of_its_torus():
    # halves of the line of 4 exchange 2 · 2 / 4 operands over one link, those of the ring of 8 less over two: 8 / 8
    found = collective_seconds("all-to-all", MEGA, 32, CUBE, torus=((8, True), (4, False)))
    assert found == pytest.approx(1.0 * MEGA / 1e9 + (4 + 3) * HOP)
    odd = collective_seconds("all-to-all", MEGA, 5, CUBE, torus=((5, True),))
    assert odd == pytest.approx((25 - 1) / 40 * MEGA / 1e9 + 2 * HOP)


# ---- beyond the links


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # 16 chips of domains of 8: inside 7 or 7/8 operands, between two groups an eighth of the data at 1e8 B/s
        ("all-gather", (7 * 2 * MEGA / 2e9 + 4 * HOP) + (MEGA / 1e8 + HOP)),
        ("reduce-scatter", (7 / 8 * MEGA / 2e9 + 4 * HOP) + (MEGA / 8 / 2 / 1e8 + HOP)),
        ("all-reduce", 2 * (7 / 8 * MEGA / 2e9 + 4 * HOP) + (MEGA / 8 / 1e8 + 2 * HOP)),
        ("all-to-all", 15 / 16 * MEGA / 1e8 + 15 * HOP),
        ("collective-permute", MEGA / 1e8 + HOP),
    ],
)
def test_collectives_of_two_domains(kind, expected):
    chip = CUBE.replace(domain=8, dcn_bytes_per_second=1e8)
    assert collective_seconds(kind, MEGA, 16, chip) == pytest.approx(expected)


def test_a_group_that_fills_a_part_of_a_domain_counts_the_domain():
    # 9 chips of domains of 4 are three groups of 4
    chip = CUBE.replace(domain=4, dcn_bytes_per_second=1e8)
    expected = (3 * 3 * MEGA / 2e9 + 2 * HOP) + (2 * MEGA / 1e8 + 2 * HOP)
    assert collective_seconds("all-gather", MEGA, 9, chip) == pytest.approx(expected)


def test_devices_of_a_chip_count_in_its_domain():
    chip = CUBE.replace(domain=4, devices_per_chip=2, dcn_bytes_per_second=1e8)
    assert collective_seconds("all-to-all", MEGA, 8, chip) == pytest.approx(MEGA / 1e9 + 4 * HOP)
    assert collective_seconds("all-to-all", MEGA, 9, chip) == pytest.approx(8 / 9 * MEGA / 1e8 + 8 * HOP)


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "reduce-scatter"])
def test_slices_have_the_network_alone(kind):
    chip = tpu(dcn_bytes_per_second=1e8)
    for size in (4, 128):
        steps = (size - 1) * (2 if kind == "all-reduce" else 1)
        expected = sent_bytes(kind, MEGA, size) / 0.88e8 + steps * HOP + 10e-6
        assert collective_seconds(kind, MEGA, size, chip, across_slices=True) == pytest.approx(expected)
    assert collective_seconds(kind, MEGA, 4, tpu(), across_slices=True) is None


@pytest.mark.parametrize(
    ("network", "payload", "sent", "hop"),
    [
        # 15 operands through two hosts: 8 adapters of 1e8 B/s at 95 %, or links of 1e9 B/s at 80 %
        (1e8, MEGA, 15 * MEGA / (8 * 0.95e8), 2.8e-6),
        (1e9, MEGA, 15 * MEGA / 0.8e9, 2.8e-6),
        (1e8, 2**22, 15 * 2**22 / (8 * 0.95e8), 6e-6),
        (1e8, 2**22 - 1, 15 * (2**22 - 1) / (8 * 0.95e8), 2.8e-6),
    ],
)
def test_rings_through_hosts_take_the_slower_of_network_and_links(network, payload, sent, hop):
    found = collective_seconds("all-gather", payload, 16, nvidia(dcn_bytes_per_second=network))
    assert found == pytest.approx(sent + 15 * hop + 5e-6)


def test_rings_through_hosts_twice_for_a_sum():
    found = collective_seconds("all-reduce", MEGA, 16, nvidia(dcn_bytes_per_second=1e8))
    assert found == pytest.approx(2 * 15 / 16 * MEGA / (8 * 0.95e8) + 30 * 2.8e-6 + 5e-6)


def test_links_of_unknown_bandwidth_have_no_time():
    assert collective_seconds("all-gather", MEGA, 4, SWITCH.replace(link_bytes_per_second=0.0)) is None
    assert collective_seconds("all-gather", MEGA, 8, SWITCH) is not None
    assert collective_seconds("all-gather", MEGA, 9, SWITCH) is None
    assert collective_seconds("all-gather", MEGA, 900, SWITCH.replace(domain=None)) is not None


@pytest.mark.parametrize(
    ("size", "facts", "expected"),
    [
        (4, {"across_slices": True},
         "it crosses slices, and no bandwidth of toy's data-centre network is published: specify it, as in "
         'on="toy@100G"'),
        (2000, {"hosts": 2},
         "its groups of 2,000 devices span 2 hosts, and no bandwidth of the network between hosts is published: "
         'specify it, as in on="toy@8x400G"'),
        (9, {"hosts": 1},
         "its groups of 9 devices exceed the 8 that toy's links join, and no bandwidth of the network beyond these "
         'links is published: specify it, as in on="toy@8x400G"'),
        (9, {},
         "its groups of 9 devices exceed the 8 that toy's links join, and no bandwidth of the network beyond these "
         'links is published: specify it, as in on="toy@8x400G"'),
        (8, {}, "no bandwidth of toy's links is published"),
        (8, {"hosts": 1}, "no bandwidth of toy's links is published"),
    ],
)  # fmt: skip
def test_reason_of_an_unknown_time(size, facts, expected):
    assert why_unpriced(size, SWITCH, **facts) == expected


# ---- measured


def rate(amount, seconds, size, kind="all-gather", axis=""):
    return RateRecord(
        kind=kind, amount=amount, seconds=seconds, low_seconds=seconds, high_seconds=seconds, runs=5, axis=axis,
        group_size=size,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "payload", "expected"),
    [
        (2, 1e3, 1.0), (2, 1e6, 10.0),
        (5, 1e3, 4.0),  # nearer to 8 than to 2 as a factor; 4/7 of the bytes, and never less than the first time
        (5, 7e6 / 4, 40.0), (3, 1e6 / 2, 10.0), (16, 7e6 / 15, 40.0), (16, 7e6 / 15 * 3, 120.0),
    ],
)  # fmt: skip
def test_measured_collectives_of_the_nearest_size_by_the_bytes_sent(size, payload, expected):
    rows = (
        rate(1e6, 10.0, 2), rate(1e3, 1.0, 2), rate(1e3, 4.0, 8), rate(1e6, 30.0, 8, axis="x"),
        rate(1e6, 40.0, 8, axis="y"), rate(1e6, 20.0, 8, axis="z"), rate(1e6, 0.1, 1), rate(1e6, 0.1, 2, "all-reduce"),
    )  # fmt: skip
    assert collective_seconds("all-gather", payload, size, SWITCH.replace(rates=rows)) == pytest.approx(expected)


def test_ragged_exchanges_take_the_measured_time_of_exchanges():
    chip = SWITCH.replace(rates=(rate(1e3, 5.0, 2, "all-to-all"),))
    assert collective_seconds("ragged-all-to-all", 1e3, 2, chip) == 5.0
    assert collective_seconds("all-gather", 1e3, 2, chip) == pytest.approx(1e3 / 1e9 + HOP)


# ---- records


def record(**fields):
    facts = {"name": "x", "kind": "all-gather", "axes": ("x",), "group_size": 4, "groups": 1, "payload_bytes": 10**6,
             "wire_bytes": 3e6, "executions": 5.0}  # fmt: skip
    return CollectiveRecord(**{**facts, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 3e-3 + 3 * HOP), ({"wire_bytes": None}, None), ({"wire_bytes": 0.0}, 0.0),
        ({"across_slices": True}, 3e-2 + 3 * HOP), ({"hosts": 4}, 3e-2 + 3 * HOP), ({"hosts": 2}, 3e-2 / 2 + 3 * HOP),
    ],
)  # fmt: skip
def test_seconds_of_one_execution_of_a_record(fields, expected):
    found = seconds_of_collective(record(**fields), SWITCH.replace(dcn_bytes_per_second=1e8))
    assert found == (None if expected is None else pytest.approx(expected))


def test_seconds_of_a_record_follow_its_torus():
    found = seconds_of_collective(record(torus=((2, False), (2, False))), CUBE)
    assert found == pytest.approx(3e6 / 2 / 1e9 + 2 * HOP)


def test_a_listed_chip_sends_at_its_published_bandwidth():
    # v5p: 100 GB/s a link one way, at 88 %
    chip = known_chip("v5p")
    assert chip is not None
    assert collective_seconds("send", MEGA, 2, chip) == pytest.approx(MEGA / 88e9 + HOP + 4e-6)
