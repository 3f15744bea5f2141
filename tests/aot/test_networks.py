"""The network between hosts, where no page publishes one."""

import pytest

from workbench.cost import collective_seconds, known_chip
from workbench.errors import MeshError
from workbench.inspection import machine_of


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("h100@400G", 50.0),
        ("h100@8x400G", 50.0),
        ("h100@4x100Gb/s", 6.25),
        ("l4@2x100G", 25.0),
        ("a100@infiniband-hdr", 25.0),
        ("NVIDIA H100 80GB HBM3@EFA-P5", 50.0),
    ],
)
def test_network_is_stated_per_chip_or_per_host(name, gigabytes):
    assert known_chip(name).dcn_bytes_per_second == gigabytes * 1e9


def test_stated_network_gives_sums_beyond_a_host_their_seconds():
    assert collective_seconds("all-reduce", 1e9, 16, known_chip("h100")) is None
    # 15/16 of a gigabyte twice: through eight adapters at 95 % of 50 GB/s, or of 6.25 GB/s, and 30 steps of 6 µs.
    # NVLink, at 80 % of 450 GB/s, is the slower one where the adapters are fast.
    sent, steps = 2 * 15 / 16 * 1e9, 30 * 6e-6 + 5e-6
    fast = collective_seconds("all-reduce", 1e9, 16, known_chip("h100@8x400G"))
    assert fast == pytest.approx(max(sent / (8 * 50e9 * 0.95), sent / (450e9 * 0.8)) + steps)
    slow = collective_seconds("all-reduce", 1e9, 16, known_chip("h100@efa-p4d"))
    assert slow == pytest.approx(sent / (8 * 6.25e9 * 0.95) + steps)


def test_network_is_a_part_of_the_machine():
    machine = machine_of("h100:4x8@efa-p5", "inspect")
    assert (machine.target, machine.chip, machine.priced) == ("h100:4x8", "h100@efa-p5", "h100@efa-p5")
    assert machine_of("h100@400G", "inspect").chip == "h100@400G"


@pytest.mark.parametrize(
    ("network", "hint"), [("efa-p", "did you mean 'efa-p"), ("0G", "more than 0"), ("fast", "400G")]
)
def test_unknown_network_is_refused(network, hint):
    with pytest.raises(MeshError, match=hint):
        known_chip(f"h100@{network}")
