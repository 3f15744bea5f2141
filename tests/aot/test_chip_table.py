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
    core = tpu.get_tpu_info_for_chip(tpu.ChipVersion(version), 1)
    chip = known_chip(name)
    assert chip is not None
    assert (chip.name, chip.links, chip.link_bytes_per_second) == (version, 0, 0)
    assert (chip.hbm_bytes, chip.hbm_bytes_per_second) == (core.hbm_capacity_bytes, core.mem_bw_bytes_per_second)
    rates = {"bfloat16": core.bf16_ops_per_second, "float8_e5m2": core.fp8_ops_per_second}
    for dtype, rate in rates.items():
        assert chip.peak_flops_per_second.get(dtype, 0) == pytest.approx(rate, rel=1e-15)
    assert "float16" not in chip.peak_flops_per_second
    assert chip.topology == ("torus3d" if version == "v4i" else "torus2d")
    assert all(peak > 0 for peak in chip.peak_flops_per_second.values())  # a dtype without operations has no peak


def test_misspelt_name_is_answered_with_a_near_one():
    with pytest.raises(
        MeshError, match=r"'H100 PCI:1x8'.*did you mean 'H100 PCIe'.*one of v4, v5e.*JAX's own names v2"
    ):
        known_chip("H100 PCI:1x8")
    with pytest.raises(MeshError) as error:
        known_chip("quantum")
    assert "did you mean" not in str(error.value)


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


# Cloud's pages of each TPU: TFLOP/s, GiB and GB/s of memory, chips of a pod, dimensions of its torus, and Gbit/s of
# data-centre network per chip (6.4 Tbit/s of 256 chips for v5e).
CLOUD = {
    "v4": ({"bfloat16": 275, "int8": 275}, 32, 1200, 4096, 3, None),
    "v5e": ({"bfloat16": 197, "int8": 393}, 16, 819, 256, 2, 6400 / 256),
    "v5p": ({"bfloat16": 459, "float8_e5m2": 459}, 95, 2765, 8960, 3, 50),
    "v6e": ({"bfloat16": 918, "int8": 1836, "float8_e5m2": 918}, 32, 1638, 256, 2, 25600 / 256),
    "tpu7x": ({"bfloat16": 2307, "float8_e5m2": 4614}, 192, 7380, 9216, 3, 100),
}


@pytest.mark.parametrize("name", CLOUD)
def test_tpus_are_those_of_clouds_pages(name):
    chip, (peaks, gib, bandwidth, pod, dimensions, network) = CHIPS[name], CLOUD[name]
    assert {dtype: chip.peak_flops_per_second[dtype] / 1e12 for dtype in peaks} == peaks
    assert (chip.hbm_bytes, chip.hbm_bytes_per_second) == (gib * 2**30, bandwidth * 1e9)
    assert (chip.domain, chip.links, chip.topology) == (pod, 2 * dimensions, f"torus{dimensions}d")
    assert chip.dcn_bytes_per_second == (network and network * 1e9 / 8)


@pytest.mark.parametrize("name", CLOUD)
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
    assert chip.hbm_bytes == pytest.approx(cores * core.hbm_capacity_bytes, rel=0.08)
    rates = {"bfloat16": "bf16", "int8": "int8", "float8_e5m2": "fp8", "int4": "int4"}
    for dtype, rate in rates.items():
        per_core = getattr(core, f"{rate}_ops_per_second")
        if per_core and dtype in chip.peak_flops_per_second:
            far = 0.01 if dtype in CLOUD[name][0] else 0  # Cloud and JAX round differently
            assert chip.peak_flops_per_second[dtype] == pytest.approx(cores * per_core, rel=far)


# The vendors' data sheets. TFLOP/s of float32 (TF32 on NVIDIA), float16, float8, int8 and 4-bit types: NVIDIA's of A100
# and later count zeros of sparse matrices, the others do not. Then TFLOP/s outside matrix units, GB and GB/s of memory,
# GB/s of NVLink or Infinity Fabric both ways, and the number of GPUs that these links join. None: no such rate. The
# peaks of A100, H100, H200, B200, B300, MI300X and MI355X were compared with published tables; the rest is from memory.
SHEETS = {
    "V100": (15.7, 125, None, None, None, 15.7, 32, 900, 300, 8),
    "V100 16GB": (15.7, 125, None, None, None, 15.7, 16, 900, 300, 8),
    "V100 PCIe": (14, 112, None, None, None, 14, 16, 900, 0, 1),
    "T4": (8.1, 65, None, 130, 260, 8.1, 16, 320, 0, 1),
    "A100": (312, 624, None, 1248, 2496, 19.5, 80, 2039, 600, 8),
    "A100 40GB": (312, 624, None, 1248, 2496, 19.5, 40, 1555, 600, 8),
    "A100 PCIe": (312, 624, None, 1248, 2496, 19.5, 80, 1935, 0, 1),
    "A100 PCIe 40GB": (312, 624, None, 1248, 2496, 19.5, 40, 1555, 0, 1),
    "A800": (312, 624, None, 1248, 2496, 19.5, 80, 2039, 400, 8),
    "A10G": (70, 140, None, 280, None, 31.2, 24, 600, 0, 1),
    "L4": (120, 242, 485, 485, None, 30.3, 24, 300, 0, 1),
    "L40S": (366, 724.1, 1466, 1466, None, 91.6, 48, 864, 0, 1),
    "H100": (989, 1978.9, 3957.8, 3957.8, None, 67, 80, 3350, 900, 8),
    "H100 PCIe": (756, 1513, 3026, 3026, None, 51, 80, 2000, 0, 1),
    "H100 NVL": (835, 1671, 3341, 3341, None, 60, 94, 3938, 0, 1),
    "H800": (989, 1978.9, 3957.8, 3957.8, None, 67, 80, 3350, 400, 8),
    "H20": (148, 296, 592, 592, None, 44, 96, 4000, 900, 8),
    "H200": (989, 1978.9, 3957.8, 3957.8, None, 67, 141, 4800, 900, 8),
    "H200 NVL": (835, 1671, 3341, 3341, None, 60, 141, 4800, 0, 1),
    "GH200": (989, 1978.9, 3957.8, 3957.8, None, 67, 96, 4000, 0, 1),
    "GH200 144GB": (989, 1978.9, 3957.8, 3957.8, None, 67, 144, 4900, 900, 32),
    "B100": (1750, 3500, 7000, 7000, 14000, 0, 180, 8000, 1800, 8),
    "B200": (2250, 4500, 9000, 9000, 18000, 75, 180, 7700, 1800, 8),
    "GB200": (2500, 5000, 10000, 10000, 20000, 80, 186, 8000, 1800, 72),
    "B300": (2250, 4500, 9000, 300, 28000, 0, 270, 7700, 1800, 8),  # 14,000 of dense float4, doubled here
    "GB300": (2500, 5000, 10000, 330, 30000, 0, 279, 8000, 1800, 72),
    "MI250X": (95.7, 383, None, 383, None, 95.7, 128, 3276.8, 800, 8),
    "MI300X": (163.4, 1307.4, 2614.9, 2614.9, None, 163.4, 192, 5300, 896, 8),
    "MI325X": (163.4, 1307.4, 2614.9, 2614.9, None, 163.4, 256, 6000, 896, 8),
    "MI350X": (144.2, 2300, 4600, 4600, 9200, 144.2, 288, 8000, 1075.2, 8),
    "MI355X": (157.3, 2500, 5000, 5000, 10100, 157.3, 288, 8000, 1075.2, 8),
}


@pytest.mark.parametrize("name", SHEETS)
def test_gpus_are_those_of_the_data_sheets(name):
    chip, (float32, float16, float8, int8, four_bits, vector, *sizes) = CHIPS[name], SHEETS[name]
    memory, bandwidth, link, joined = sizes
    zeros = 1 if name.startswith(("V", "T", "M")) else 2
    peaks = {dtype: rate / 1e12 for dtype, rate in chip.peak_flops_per_second.items()}
    assert peaks["float32"] == pytest.approx(float32 / zeros, abs=0.5)
    assert peaks["float16"] == pytest.approx(float16 / zeros, abs=0.5)
    assert peaks.get("bfloat16") == (None if zeros == 1 and name[0] in "VT" else peaks["float16"])
    assert peaks.get("int8") == peaks.get("uint8") == (int8 and pytest.approx(int8 / zeros, abs=0.5))
    eights = {rate for dtype, rate in peaks.items() if dtype.startswith("float8")}
    assert list(eights) == ([pytest.approx(float8 / zeros, abs=0.5)] if float8 else [])
    fours = {rate for dtype, rate in peaks.items() if dtype in ("int4", "uint4", "float4_e2m1fn")}
    assert list(fours) == ([pytest.approx(four_bits / zeros, abs=0.5)] if four_bits else [])
    assert chip.vector_flops_per_second == vector * 1e12
    assert chip.hbm_bytes == pytest.approx(memory * 10**9, rel=0.075)
    assert chip.hbm_bytes_per_second == pytest.approx(bandwidth * 1e9, abs=0.5e9)
    assert chip.link_bytes_per_second == pytest.approx(link * 1e9 / 2, abs=0.5e9)
    assert (chip.domain, chip.links, chip.topology) == (joined, int(link > 0), "switch")


# Multiprocessors or compute units, float16 operations of one per clock on matrix units, and the highest clock in GHz.
UNITS = {
    "V100": (80, 1024, 1.53), "T4": (40, 1024, 1.59), "A100": (108, 2048, 1.41), "A10G": (80, 512, 1.71),
    "L4": (58, 1024, 2.04), "L40S": (142, 1024, 2.52), "H100": (132, 4096, 1.83), "H100 PCIe": (114, 4096, 1.62),
    "B200": (148, 8192, 1.85), "MI250X": (220, 1024, 1.7), "MI300X": (304, 2048, 2.1), "MI350X": (256, 4096, 2.2),
    "MI355X": (256, 4096, 2.4),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_peak_of_a_gpu_is_that_of_its_units(name):
    units, operations, gigahertz = UNITS[name]
    assert CHIPS[name].peak_flops_per_second["float16"] == pytest.approx(
        units * operations * gigahertz * 1e9, rel=0.015
    )


def test_two_devices_share_a_chip_of_two_dies():
    assert {name for name, chip in CHIPS.items() if chip.devices_per_chip == 2} == {"tpu7x", "MI250X"}
    assert {chip.devices_per_chip for chip in CHIPS.values()} == {1, 2}


def test_every_chip_is_on_a_data_sheet():
    assert set(MEMORY) | set(CLOUD) == set(SHEETS) | set(CLOUD) == set(CHIPS)


def test_mig_slice_is_its_part_of_the_gpu():
    whole, part = known_chip("NVIDIA A100-SXM4-40GB"), known_chip("NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert whole is not None
    assert part is not None
    assert part.name == "A100 40GB MIG 1g.5gb"
    assert part.peak_flops_per_second["bfloat16"] == whole.peak_flops_per_second["bfloat16"] / 7
    assert part.hbm_bytes_per_second == whole.hbm_bytes_per_second / 8
    assert part.vector_flops_per_second == whole.vector_flops_per_second / 7
    assert (part.hbm_bytes, part.links, part.link_bytes_per_second, part.domain) == (5 * 10**9, 0, 0, 1)


def test_largest_mig_slice_computes_like_the_gpu_without_its_links():
    whole, part = known_chip("NVIDIA H100 80GB HBM3"), known_chip("NVIDIA H100 80GB HBM3 MIG 7g.80gb")
    assert whole is not None
    assert part is not None
    assert part.peak_flops_per_second == whole.peak_flops_per_second
    assert (part.hbm_bytes, part.hbm_bytes_per_second) == (whole.hbm_bytes, whole.hbm_bytes_per_second)
    more = known_chip("NVIDIA H100 80GB HBM3 MIG 14g.160gb")  # does not exist
    assert more is not None
    assert more.peak_flops_per_second == whole.peak_flops_per_second
    assert (more.hbm_bytes, more.hbm_bytes_per_second) == (whole.hbm_bytes, whole.hbm_bytes_per_second)
    assert (part.links, known_chip("cpu"), known_chip("CPU MIG 1g.5gb")) == (0, None, None)


def test_network_of_a_cpu_or_of_a_chip_is_what_its_name_states():
    assert known_chip("cpu@8x400G") is None
    chip = known_chip("h100@8x400G")
    assert chip is not None
    assert chip.dcn_bytes_per_second == 400e9 / 8  # of each of the 8 GPUs


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
    published = {"v4": 2 * 2400e9 / 8, "v5e": 400e9, "v5p": 1200e9, "v6e": 800e9, "tpu7x": 1200e9}
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


# Memory in GiB as drivers report it (in CUDA's "total capacity" or nvidia-smi), with multiprocessors or compute units.
REPORTED = [
    ("Nvidia", 132, 79.10, "H100"), ("Nvidia", 132, 79.19, "H100"), ("Nvidia", 132, 79.65, "H100"),
    ("Nvidia", 132, 93.10, "H100 NVL"), ("Nvidia", 132, 139.80, "H200"), ("Nvidia", 114, 79.19, "H100 PCIe"),
    ("Nvidia", 108, 79.15, "A100"), ("Nvidia", 108, 79.25, "A100"), ("Nvidia", 108, 39.39, "A100 40GB"),
    ("Nvidia", 80, 31.74, "V100"), ("Nvidia", 80, 15.77, "V100 16GB"), ("Nvidia", 40, 14.75, "T4"),
    ("Nvidia", 58, 22.03, "L4"), ("Nvidia", 148, 178.35, "B200"), ("Nvidia", 152, 185.03, "GB200"),
    ("AMD", 304, 191.98, "MI300X"), ("AMD", 304, 255.98, "MI325X"), ("AMD", 256, 287.98, "MI355X"),
    ("AMD", 110, 63.98, "MI250X"),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "cores", "gib", "name"), REPORTED)
def test_gpu_is_known_by_the_memory_that_its_driver_reports(vendor, cores, gib, name):
    chip = chip_of_gpu(vendor, cores, int(gib * 2**30))
    assert chip is not None
    assert gib * 2**30 == pytest.approx(chip.hbm_bytes / chip.devices_per_chip, rel=0.008)
    assert chip.name == name


@pytest.mark.parametrize(
    ("vendor", "cores", "gib"),
    [("AMD", 17, 1), ("Nvidia", 304, 191.98), ("Nvidia", 132, 0), ("Nvidia", 132, 71), ("Nvidia", 132, 95.6)],
)
def test_gpu_of_other_sizes_is_unknown(vendor, cores, gib):
    assert chip_of_gpu(vendor, cores, int(gib * 2**30)) is None  # 95.6 GiB: a GH200


def test_rows_are_records_that_nobody_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CHIPS["v5e"].links = 3  # pyright: ignore[reportAttributeAccessIssue]
