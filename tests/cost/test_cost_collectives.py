"""Chips and the time of collectives, by hand."""

import math

import pytest
from records_parts import TOY_CHIP

from workbench.cost import CHIPS, collective_seconds, known_chip
from workbench.cost._collectives import why_unpriced
from workbench.errors import MeshError

HOP = 1e-6
TORUS = TOY_CHIP.replace(
    name="toy torus",
    peak_flops_per_second={"bfloat16": 1e12},
    hbm_bytes=10**9,
    links=6,
    topology="torus3d",
    dcn_bytes_per_second=1e8,
    domain=64,
)
SWITCH = TORUS.replace(name="toy switch", topology="switch", links=1, domain=8, dcn_bytes_per_second=None)
MEGA = 1e6


def test_domains_of_one_device_have_the_network_alone():
    alone = SWITCH.replace(domain=1, dcn_bytes_per_second=1e8)
    inside = SWITCH.replace(domain=64, dcn_bytes_per_second=1e8)
    for kind in ("all-gather", "all-reduce"):
        through = collective_seconds(kind, MEGA, 8, inside, across_slices=True)
        assert collective_seconds(kind, MEGA, 8, alone) == through


def test_pairs_with_fast_links_send_less_through_the_network_than_devices_alone():
    pairs, alone = (SWITCH.replace(domain=size, dcn_bytes_per_second=1e8) for size in (2, 1))
    for kind in ("all-gather", "all-reduce", "reduce-scatter"):
        assert collective_seconds(kind, MEGA, 8, pairs) < collective_seconds(kind, MEGA, 8, alone)


def test_mean_over_pods_of_v5e_has_seconds():
    # 35 pods of 16 × 16 chips: 255/256 of a gigabyte twice over 4 × 50 GB/s, 8 + 8 hops, a 256th of it between pods;
    # links and network reach 88 %, and each of the three parts takes 10 µs to start.
    links = 2 * (255 / 256 * 1e9 / 2e11 / 0.88 + 16 * HOP)
    network = 2 * 34 / 35 * 1e9 / 256 / 3.125e9 / 0.88 + 2 * 34 * HOP
    assert collective_seconds("all-reduce", 1e9, 8960, CHIPS["v5e"]) == pytest.approx(links + network + 3 * 10e-6)


def exchange_by_routes(size, wraps):
    """Of one operand, what passes through the busiest link when everybody sends everybody a part by the shortest way.

    Both ways around are taken by halves where they are equally long.
    """
    links = {}
    for source in range(size):
        for target in set(range(size)) - {source}:
            right = (target - source) % size if wraps else target - source
            ways = [(1, right, 1.0)] if 0 < right and (not wraps or right < size / 2) else [(-1, abs(right), 1.0)]
            if wraps and right > size / 2:
                ways = [(-1, size - right, 1.0)]
            if wraps and 2 * right == size:
                ways = [(1, right, 0.5), (-1, right, 0.5)]
            for step, hops, share in ways:
                for hop in range(hops):
                    link = (source + step * hop) % size, step
                    links[link] = links.get(link, 0.0) + share / size
    return max(links.values())


@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("wraps", [True, False])
def test_all_to_all_takes_what_passes_through_the_busiest_link(size, wraps):
    latency = (size // 2 if wraps else size - 1) * HOP
    found = collective_seconds("all-to-all", MEGA, size, TORUS, torus=((size, wraps),))
    assert found == pytest.approx(exchange_by_routes(size, wraps) * MEGA / 1e9 + latency)


@pytest.mark.parametrize("kind", ["all-to-all", "all-gather"])
def test_two_chips_have_one_link_although_their_dimension_wraps_around(kind):
    line, ring = (collective_seconds(kind, MEGA, 2, TORUS, torus=((2, wraps),)) for wraps in (False, True))
    assert ring == line


@pytest.mark.parametrize(
    ("torus", "lanes", "hops"),
    [
        (((4, True),), 2, 2),
        (((4, False),), 1, 3),
        (((16, True), (16, True)), 4, 16),
        (((4, False), (4, False)), 2, 6),  # as one ring through all chips would
        (((4, True), (2, False)), 3, 3),
        (((4, True), (4, True), (4, True)), 6, 6),
    ],
    ids=str,
)
def test_gather_uses_every_link_of_a_corner_of_its_torus(torus, lanes, hops):
    size = math.prod(chips for chips, _ in torus)
    found = collective_seconds("all-gather", MEGA, size, TORUS.replace(domain=None), torus=torus)
    assert found == pytest.approx((size - 1) * MEGA / (lanes * 1e9) + hops * HOP)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("v5e:16x16", "v5e"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("TPU7x", "tpu7x"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h200", "H200"),
        ("NVIDIA B200", "B200"),
    ],
    ids=lambda value: str(value),
)
def test_chips_are_known_by_target_and_by_device_kind(name, chip):
    found = known_chip(name)
    assert found is not None
    assert found.name == chip


def test_cpu_has_no_published_peak():
    assert known_chip("cpu") is None


def test_chip_that_the_table_lacks_comes_from_jax_without_links():
    chip = known_chip("v3")
    assert chip is not None
    assert chip.peak_flops_per_second == pytest.approx({"bfloat16": 70e12})
    assert chip.source.startswith("JAX's tpu_info")
    assert collective_seconds("all-reduce", MEGA, 4, chip) is None


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_table_agrees_with_what_jax_knows(name):
    """JAX rounds, and knows some peaks per core; 15 % is its distance in HBM bandwidth of v5p."""
    from jax.experimental.pallas import tpu

    version, cores = {"tpu7x": ("7x", 2), "v4": ("v4", 2), "v5p": ("v5p", 2)}.get(name, (name, 1))
    info, chip = tpu.get_tpu_info_for_chip(tpu.ChipVersion(version), 1), CHIPS[name]
    assert info.bf16_ops_per_second * cores == pytest.approx(chip.peak_flops_per_second["bfloat16"], rel=0.01)
    assert info.mem_bw_bytes_per_second * cores == pytest.approx(chip.hbm_bytes_per_second, rel=0.15)
    assert info.hbm_capacity_bytes * cores == pytest.approx(chip.hbm_bytes, rel=0.08)


@pytest.mark.parametrize("name", CHIPS)
def test_every_row_has_source_and_date(name):
    assert CHIPS[name].source
    assert CHIPS[name].as_of[:2] == "20"


def test_unknown_chip_is_refused_with_the_known_ones():
    with pytest.raises(MeshError, match=r"was given 'v99'.*use one of v4, v5e, v5p, v6e, tpu7x, "):
        known_chip("v99")


def test_groups_of_one_gpu_per_host_have_the_network_alone():
    # Four GPUs on four hosts: three parts come in at 1e8 B/s of the adapter, not at 1e9 B/s of the links.
    clusters = SWITCH.replace(dcn_bytes_per_second=1e8)
    assert collective_seconds("all-gather", MEGA, 4, clusters, hosts=4) == pytest.approx(3 * MEGA / 1e8 + 3 * HOP)
    assert collective_seconds("all-gather", MEGA, 4, clusters, hosts=1) == pytest.approx(3 * MEGA / 1e9 + 3 * HOP)
    assert collective_seconds("all-gather", MEGA, 4, clusters) == collective_seconds(
        "all-gather", MEGA, 4, clusters, hosts=1
    )


def test_gpus_of_a_group_on_one_host_share_their_adapters():
    # Two GPUs on each of two hosts: two concurrent rings, so each adapter sends half of the bytes.
    clusters = SWITCH.replace(dcn_bytes_per_second=1e8)
    assert collective_seconds("all-gather", MEGA, 4, clusters, hosts=2) == pytest.approx(3 * MEGA / 2e8 + 3 * HOP)


def test_groups_on_several_hosts_without_a_known_network_have_no_time():
    assert collective_seconds("all-reduce", MEGA, 2, SWITCH, hosts=2) is None
    assert "span 2 hosts" in why_unpriced(2, SWITCH, hosts=2)
