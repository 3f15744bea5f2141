"""One table of chips: every name that JAX or a user gives finds its own row, and nothing finds another's."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import pytest

from workbench.aot import CHIPS, chip_of_gpu, known_chip
from workbench.aot._chip_table import NAMES
from workbench.aot._chips import FAMILIES
from workbench.errors import MeshError
from workbench.measurement._xplane import read_space

RECORDED = Path(__file__).parents[1] / "recorded"

NAMED = {
    "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100 PCIe", "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200", "NVIDIA H200 NVL": "H200 NVL", "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 120GB": "GH200", "NVIDIA GH200 144G HBM3e": "GH200 144GB", "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200", "NVIDIA B300 SXM6 AC": "B300", "NVIDIA GB300": "GB300", "NVIDIA H800": "H800",
    "NVIDIA H20": "H20", "NVIDIA A100-SXM4-40GB": "A100 40GB", "NVIDIA A100-SXM4-80GB": "A100",
    "NVIDIA A100 80GB PCIe": "A100 PCIe", "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB", "a100": "A100",
    "NVIDIA A800-SXM4-80GB": "A800", "Tesla V100-SXM2-16GB": "V100 16GB", "Tesla V100-SXM2-32GB": "V100",
    "Tesla T4": "T4", "NVIDIA L4": "L4", "NVIDIA L40S": "L40S", "NVIDIA A10G": "A10G",
    "AMD Instinct MI250X": "MI250X", "AMD Instinct MI300X": "MI300X", "AMD Instinct MI355X": "MI355X",
    "AMD Instinct MI325X": "MI325X", "h100:1x8": "H100", "TPU v4": "v4", "TPU v5 lite": "v5e",
    "v5litepod": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e", "TPU v6 Lite": "v6e", "trillium": "v6e",
    "TPU7x": "tpu7x", "TPU7": "tpu7x", "TPU v7": "tpu7x", "ironwood": "tpu7x", "v7": "tpu7x",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_name_of_a_device_finds_its_own_row(name):
    chip = known_chip(name)
    assert chip is not None
    assert chip.name == NAMED[name]


@pytest.mark.parametrize("name", ["NVIDIA H100 XYZ", "NVIDIA GeForce RTX 99990", "MI999", "v99", "B2000", "xh100", ""])
def test_unknown_chip_is_unknown(name):
    with pytest.raises(MeshError, match="is not in the chip table"):
        known_chip(name)


@pytest.mark.parametrize(
    ("name", "version"), [("TPU v2", "v2"), ("TPU v3", "v3"), ("TPU v4 lite", "v4i"), ("TPU8i", "8i")]
)
def test_rest_comes_from_jax_where_jax_knows_it(name, version):
    from jax.experimental.pallas import tpu

    if version not in {str(known.value) for known in tpu.ChipVersion}:
        pytest.skip("this JAX does not know the chip")
    chip = known_chip(name)
    assert chip is not None
    assert (chip.name, chip.links) == (version, 0)


# Width of the memory bus in bits and data rate of a pin in Gbit/s: their product is the bandwidth.
MEMORY = {
    "V100": (4096, 1.76), "V100 16GB": (4096, 1.76), "V100 PCIe": (4096, 1.76), "T4": (256, 10), "A100": (5120, 3.19),
    "A100 40GB": (5120, 2.43), "A100 PCIe": (5120, 3.02), "A100 PCIe 40GB": (5120, 2.43), "A800": (5120, 3.19),
    "A10G": (384, 12.5), "L4": (192, 12.5), "L40S": (384, 18), "H100": (5120, 5.23), "H100 PCIe": (5120, 3.19),
    "H100 NVL": (6144, 5.12), "H800": (5120, 5.23), "H20": (6144, 5.2), "H200": (6144, 6.25), "H200 NVL": (6144, 6.25),
    "GH200": (6144, 5.2), "GH200 144GB": (6144, 6.4), "B100": (8192, 7.8), "B200": (8192, 7.6), "GB200": (8192, 7.8),
    "B300": (8192, 7.6), "GB300": (8192, 7.8), "MI250X": (8192, 3.2), "MI300X": (8192, 5.2), "MI325X": (8192, 5.9),
    "MI350X": (8192, 8.0), "MI355X": (8192, 8.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMORY)
def test_bandwidth_of_a_gpu_is_that_of_its_bus(name):
    bits, rate = MEMORY[name]
    assert CHIPS[name].hbm_bytes_per_second == pytest.approx(bits * rate / 8 * 1e9, rel=0.04)


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "tpu7x"])
def test_tpus_are_those_of_jax(name):
    from jax.experimental.pallas import tpu

    versions = {str(version.value): version for version in tpu.ChipVersion}
    if (key := name.removeprefix("tpu")) not in versions:
        pytest.skip("this JAX does not know the chip")
    core = tpu.get_tpu_info_for_chip(versions[key], 1)
    cores = 1 if name in ("v5e", "v6e") else 2
    chip = CHIPS[name]
    far = 0.13 if name == "v5p" else 0.04  # 2,765 GB/s on Cloud's page, 2,460 in JAX
    assert chip.hbm_bytes_per_second == pytest.approx(cores * core.mem_bw_bytes_per_second, rel=far)
    assert chip.peak_flops_per_second["bfloat16"] == pytest.approx(cores * core.bf16_ops_per_second, rel=0.01)
    assert chip.hbm_bytes == pytest.approx(cores * core.hbm_capacity_bytes, rel=0.08)


def test_every_chip_has_an_independent_bandwidth():
    assert set(MEMORY) | {"v4", "v5e", "v5p", "v6e", "tpu7x"} == set(CHIPS)


def test_mig_slice_is_its_part_of_the_gpu():
    whole, part = known_chip("NVIDIA A100-SXM4-40GB"), known_chip("NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert whole is not None
    assert part is not None
    assert part.name == "A100 40GB MIG 1g.5gb"
    assert part.peak_flops_per_second["bfloat16"] == whole.peak_flops_per_second["bfloat16"] / 7
    assert part.hbm_bytes_per_second == whole.hbm_bytes_per_second / 8
    assert (part.hbm_bytes, part.links) == (5 * 10**9, 0)


@pytest.mark.parametrize("name", CHIPS)
def test_peaks_are_named_as_jax_names_dtypes(name):
    for dtype in CHIPS[name].peak_flops_per_second:
        assert jnp.dtype(getattr(jnp, dtype)).name == dtype


def test_no_name_is_given_to_two_chips():
    names = [alias for aliases in NAMES.values() for alias in aliases]
    assert len(names) == len(set(names))
    assert NAMES.keys() <= CHIPS.keys()


def test_every_compile_target_with_peaks_has_them_from_the_table():
    missing = {family.name for family in FAMILIES.values() if family.chip not in CHIPS}
    assert missing == {"v2", "v3"}  # whose peaks JAX has


def test_link_is_half_of_the_bandwidth_that_cloud_publishes_both_ways():
    published = {"v5e": 400e9, "v5p": 1200e9, "v6e": 800e9, "tpu7x": 1200e9}
    assert {name: 2 * CHIPS[name].links * CHIPS[name].link_bytes_per_second for name in published} == published


def test_peaks_of_v6e_are_those_that_a_recorded_device_reports():
    planes = read_space(RECORDED / "tpu_v6e_4chips_host_offload.xplane.pb").planes
    for plane in (plane for plane in planes if plane.name.startswith("/device:TPU")):
        chip = known_chip(plane.stats["device_type_string"])
        assert chip is not None
        assert chip.peak_flops_per_second["bfloat16"] == plane.stats["peak_teraflops_per_second"] * 1e12
        reported = plane.stats["peak_hbm_bw_gigabytes_per_second"] * 1e9
        assert chip.hbm_bytes_per_second == pytest.approx(reported, rel=1e-3)


@pytest.mark.parametrize(("file", "name"), [("mi300x_8gpu_conv_jax08", "MI300X"), ("mi355x_te_attention", "MI355X")])
def test_recorded_gpus_are_known_by_their_sizes(file, name):
    planes = read_space(RECORDED / f"{file}.xplane.pb").planes
    stats = next(plane.stats for plane in planes if plane.name == "/device:GPU:0")
    chip = chip_of_gpu(stats["device_vendor"], stats["core_count"], stats["memory_size"])
    assert chip is not None
    assert chip.name == name
    assert stats["memory_size"] == pytest.approx(chip.hbm_bytes, rel=0.08)


def test_gpu_of_other_sizes_is_unknown():
    assert chip_of_gpu("AMD", 17, 10**9) is None


def test_rows_are_records_that_nobody_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CHIPS["v5e"].links = 3  # pyright: ignore[reportAttributeAccessIssue]
