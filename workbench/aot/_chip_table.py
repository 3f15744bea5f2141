"""The table of chips: published peaks with their source, and all names for each chip.

Conventions: FLOP/s values are dense (without sparsity). "float32" on a GPU means TF32, which is the default for float32
matrix products on GPUs. A TPU's link bandwidth is half the published bidirectional bandwidth per chip, divided by the
number of links. A GPU's link bandwidth is the bandwidth of its NVLink or Infinity Fabric port in one direction. The
link bandwidth of cards that have only PCIe is 0, and their communication time is not predicted. The rates of float32
outside matrix units (`vector`) are quoted from memory; the data sheets were not consulted. Names must match exactly: a
chip that is not in the table is unknown, even if its name resembles a name in the table.
"""

import difflib
import math
import re

from workbench.aot._calibrations import named_calibration
from workbench.aot._networks import with_network
from workbench.errors import MeshError
from workbench.records.hardware import ChipRecord

_GIB = 2**30
_GB = 10**9

# Memory in GiB as drivers report it: the "GB" of data sheets are neither GB nor GiB. A800, H800, H200 NVL and MI350X
# have the memory of their siblings; GPUs that are not listed here have the GB of their data sheets.
_REPORTED_GIB = {
    "V100": 31.74, "V100 16GB": 15.77, "T4": 14.75, "L4": 22.03, "A100": 79.15, "A100 40GB": 39.39, "A800": 79.15,
    "H100": 79.1, "H100 PCIe": 79.19, "H100 NVL": 93.1, "H800": 79.1, "H200": 139.8, "H200 NVL": 139.8,
    "B200": 178.35, "GB200": 185.03, "MI250X": 2 * 63.98, "MI300X": 191.98,
    "MI325X": 255.98, "MI350X": 287.98, "MI355X": 287.98,
}  # fmt: skip
_AS_OF = "2026-11-22"
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_FLOAT8_AMD = ("float8_e4m3fnuz", "float8_e5m2fnuz")


def _peaks(
    bfloat16: float,
    *,
    float32: float = 0.0,
    int8: float = 0.0,
    float8: float = 0.0,
    int4: float = 0.0,
    float4: float = 0.0,
    float16: float = 0.0,
    kinds: tuple[str, ...] = _FLOAT8,
) -> dict[str, float]:
    """Tera-operations per second, keyed by the names of JAX's dtypes."""
    named = {
        "bfloat16": bfloat16,
        "float16": float16,
        "float32": float32,
        "int8": int8,
        "uint8": int8,
        **dict.fromkeys(kinds, float8),
        "int4": int4,
        "uint4": int4,
        "float4_e2m1fn": float4,
    }
    return {dtype: tera * 1e12 for dtype, tera in named.items() if tera}


def _tpu(
    name: str,
    peaks: dict[str, float],
    gib: int,
    bandwidth: float,
    ici: float,
    *,
    links: int,
    domain: int,
    source: str,
    dcn: float | None = None,
    devices: int = 1,
) -> ChipRecord:
    """A TPU; `bandwidth` and `ici` in GB/s, where `ici` sums both directions of all links, as Google's figures do."""
    return ChipRecord(
        name=name,
        peak_flops_per_second=peaks,
        hbm_bytes=gib * _GIB,
        hbm_bytes_per_second=bandwidth * 1e9,
        link_bytes_per_second=ici * 1e9 / 2 / links,
        links=links,
        topology="torus3d" if links == 6 else "torus2d",
        devices_per_chip=devices,
        dcn_bytes_per_second=dcn,
        domain=domain,
        source=source,
        as_of=_AS_OF,
    )


def _gpu(
    name: str,
    peaks: dict[str, float],
    gb: int,
    bandwidth: float,
    *,
    source: str,
    link: float = 0.0,
    domain: int = 1,
    devices: int = 1,
    vector: float = 0.0,
) -> ChipRecord:
    """A GPU; `bandwidth` and `link` (one way) in GB/s, `vector` in TFLOP/s of float32 outside matrix units."""
    return ChipRecord(
        name=name,
        peak_flops_per_second=peaks,
        hbm_bytes=int(_REPORTED_GIB[name] * _GIB) if name in _REPORTED_GIB else gb * _GB,
        hbm_bytes_per_second=bandwidth * 1e9,
        link_bytes_per_second=link * 1e9,
        links=1 if link else 0,
        topology="switch",
        devices_per_chip=devices,
        domain=domain,
        vector_flops_per_second=vector * 1e12,
        source=source,
        as_of=_AS_OF,
    )


_HOPPER = _peaks(989, float16=989, float32=494.5, int8=1979, float8=1979)
_HOPPER_NVL = _peaks(835, float16=835, float32=417.5, int8=1671, float8=1671)
_BLACKWELL = _peaks(2250, float16=2250, float32=1125, int8=4500, float8=4500, float4=9000)
_AMPERE = _peaks(312, float16=312, float32=156, int8=624, int4=1248)
_CLOUD = "Google Cloud documentation, docs.cloud.google.com/tpu/docs"
_KLOCKWOOD = "glennklockwood.com/garden/processors (NVIDIA's Blackwell brief)"

_ROWS = (
    _tpu(
        "v4", _peaks(275, int8=275), 32, 1200, 600, links=6, domain=4096,
        source=f"{_CLOUD}/v4: 2400 Gbps one way over 6 links; one JAX device per chip (megacore)",
    ),
    _tpu(
        "v5e", _peaks(197, int8=393, int4=788), 16, 819, 400, links=4, domain=256, dcn=25e9 / 8,
        source=f"{_CLOUD}/v5e: 6.4 Tbps of data-centre network per pod of 256; int4: JAX's tpu_info",
    ),
    _tpu(
        "v5p", _peaks(459, int8=918, float8=459), 95, 2765, 1200, links=6, domain=8960, dcn=50e9 / 8,
        source=f"{_CLOUD}/v5p-training (float8 at the rate of bfloat16)",
    ),
    _tpu(
        "v6e", _peaks(918, int8=1836, float8=918, int4=3680), 32, 1638, 800, links=4, domain=256, dcn=100e9 / 8,
        source=f"{_CLOUD}/v6e, and the device planes of a recorded profile; float8 and int4: JAX's tpu_info",
    ),
    _tpu(
        "tpu7x", _peaks(2307, float8=4614), 192, 7380, 1200, links=6, domain=9216, dcn=100e9 / 8, devices=2,
        source=f"{_CLOUD}/tpu7x",
    ),
    _gpu("V100", _peaks(0, float16=125, float32=15.7), 32, 900, link=150, domain=8,
         vector=15.7, source="NVIDIA V100 data sheet, SXM2; no bfloat16"),
    _gpu("V100 16GB", _peaks(0, float16=125, float32=15.7), 16, 900, link=150, domain=8,
         vector=15.7, source="NVIDIA V100 data sheet, SXM2; no bfloat16"),
    _gpu("V100 PCIe", _peaks(0, float16=112, float32=14), 16, 900, vector=14,
         source="NVIDIA V100 data sheet, PCIe; no bfloat16"),
    _gpu("T4", _peaks(0, float16=65, float32=8.1, int8=130, int4=260), 16, 320,
         vector=8.1, source="NVIDIA T4 data sheet; sysrqmts.com, hmc-tech.com; no bfloat16"),
    _gpu("A100", _AMPERE, 80, 2039, link=300, domain=8, vector=19.5, source="NVIDIA A100 data sheet, SXM4 80 GB"),
    _gpu("A100 40GB", _AMPERE, 40, 1555, link=300, domain=8, vector=19.5, source="NVIDIA A100 data sheet, SXM4 40 GB"),
    _gpu("A100 PCIe", _AMPERE, 80, 1935, vector=19.5, source="NVIDIA A100 data sheet, PCIe 80 GB"),
    _gpu("A100 PCIe 40GB", _AMPERE, 40, 1555, vector=19.5, source="NVIDIA A100 data sheet, PCIe 40 GB"),
    _gpu("A800", _AMPERE, 80, 2039, link=200, domain=8, vector=19.5,
         source="A100 SXM4 80 GB with NVLink of 400 GB/s both ways"),
    _gpu("A10G", _peaks(70, float16=70, float32=35, int8=140), 24, 600, vector=31.2,
         source="AWS and NVIDIA A10G figures, dense"),
    _gpu("L4", _peaks(121, float16=121, float32=60, int8=242.5, float8=242.5), 24, 300,
         vector=30.3, source="NVIDIA L4 data sheet, half of the sparse figures"),
    _gpu("L40S", _peaks(362, float16=362, float32=183, int8=733, float8=733), 48, 864,
         vector=91.6, source="NVIDIA L40S data sheet, dense"),
    _gpu("H100", _HOPPER, 80, 3350, link=450, domain=8,
         vector=67,
         source="NVIDIA H100 data sheet, SXM5, dense; XLA's h100_sxm target (132 SM × 4 × 512 × 2 × 1.83 GHz)"),
    _gpu("H100 PCIe", _peaks(756, float16=756, float32=378, int8=1513, float8=1513), 80, 2000,
         vector=51, source="NVIDIA H100 data sheet and product brief PB-11133-001, PCIe, dense"),
    _gpu("H100 NVL", _HOPPER_NVL, 94, 3938, vector=60,
         source="NVIDIA H100 NVL data sheet, one card, dense; no bridges"),
    _gpu("H800", _HOPPER, 80, 3350, link=200, domain=8, vector=67,
         source="H100 SXM5 with NVLink of 400 GB/s both ways"),
    _gpu("H20", _peaks(148, float16=148, float32=74, int8=296, float8=296), 96, 4000, link=450, domain=8,
         vector=44, source="NVIDIA H20 figures as quoted by secondary pages, dense"),
    _gpu("H200", _HOPPER, 141, 4800, link=450, domain=8,
         vector=67, source="NVIDIA H200 data sheet, SXM, dense (anandtech.com, itkb.uw.cz)"),
    _gpu("H200 NVL", _HOPPER_NVL, 141, 4800,
         vector=60, source="NVIDIA H200 data sheet, NVL, dense; bridges are not counted"),
    _gpu("GH200", _HOPPER, 96, 4000, vector=67, source="NVIDIA GH200 data sheet, 96 GB of HBM3, one superchip alone"),
    _gpu("GH200 144GB", _HOPPER, 144, 4900, link=450, domain=32, vector=67,
         source="NVIDIA GH200 data sheet, 144 GB of HBM3e"),
    _gpu("B100", _peaks(1750, float16=1750, float32=875, int8=3500, float8=3500, float4=7000), 180, 8000, link=900,
         domain=8, source=f"{_KLOCKWOOD}; HGX B100, dense"),
    _gpu("B200", _BLACKWELL, 180, 7700, link=900, domain=8,
         vector=75,
         source=f"{_KLOCKWOOD}, verda.com/blog/gb300-nvl72-architecture, dense; XLA's b200 target gives 2225 and 7.67"),
    _gpu("GB200", _peaks(2500, float16=2500, float32=1250, int8=5000, float8=5000, float4=10000), 186, 8000, link=900,
         domain=72, vector=80, source=f"{_KLOCKWOOD}, at 1200 W, dense"),
    _gpu("B300", _peaks(2250, float16=2250, float32=1125, int8=150, float8=4500, float4=14000), 270, 7700, link=900,
         domain=8, source="verda.com/blog/gb300-nvl72-architecture, dense (int8 is no longer accelerated)"),
    _gpu("GB300", _peaks(2500, float16=2500, float32=1250, int8=165, float8=5000, float4=15000), 279, 8000, link=900,
         domain=72, source="verda.com/blog/gb300-nvl72-architecture, dense (int8 is no longer accelerated)"),
    _gpu("MI250X", _peaks(383, float16=383, float32=95.7, int8=383), 128, 3277, link=400, domain=8, devices=2,
         vector=95.7, source="AMD Instinct MI250X data sheet, both dies; float32: matrix"),
    _gpu("MI300X", _peaks(1307, float16=1307, float32=163.4, int8=2615, float8=2615, kinds=_FLOAT8_AMD), 192, 5300,
         link=448, domain=8, vector=163.4,
         source="AMD Instinct MI300X data sheet, dense; seven Infinity Fabric links of 64 GB/s"),
    _gpu("MI325X", _peaks(1307, float16=1307, float32=163.4, int8=2615, float8=2615, kinds=_FLOAT8_AMD), 256, 6000,
         link=448, domain=8, vector=163.4, source="AMD Instinct MI325X data sheet, dense"),
    _gpu("MI350X", _peaks(2300, float16=2300, float32=144.2, int8=4600, float8=4600, float4=9200), 288, 8000, link=538,
         domain=8, vector=144.2, source="AMD Instinct MI350X data sheet, dense; no TF32"),
    _gpu("MI355X", _peaks(2500, float16=2500, float32=157.3, int8=5000, float8=5000, float4=10100), 288, 8000, link=538,
         domain=8, vector=157.3,
         source="AMD Instinct MI355X data sheet, dense; ISSCC 2026 (5 PFLOP/s of float8); no TF32"),
)  # fmt: skip

CHIPS: dict[str, ChipRecord] = {chip.name: chip for chip in _ROWS}

# Other names, normalized: lower case, without spaces, punctuation and vendor prefix.
NAMES: dict[str, tuple[str, ...]] = {
    "v4": ("v4megacore",),
    "v5e": ("v5litepod", "v5lite"),
    "v5p": ("v5",),
    "v6e": ("v6", "v6lite", "trillium"),
    "tpu7x": ("v7x", "v7", "7x", "7", "tpu7", "tpuv7", "tpuv7x", "ironwood"),
    "V100": ("v100sxm232gb", "v100sxm332gb", "v10032gb", "v100sxm2"),
    "V100 16GB": ("v100sxm216gb",),
    "V100 PCIe": ("v100pcie16gb",),
    "A100": ("a100sxm480gb", "a10080gb", "a100sxm", "a100sxm80gb"),
    "A100 40GB": ("a100sxm440gb", "a100sxm40gb"),
    "A100 PCIe": ("a10080gbpcie", "a100pcie80gb"),
    "A100 PCIe 40GB": ("a100pcie40gb", "a10040gbpcie"),
    "A800": ("a800sxm480gb",),
    "H100": ("h10080gbhbm3", "h100sxm", "h100sxm5", "h100sxm80gb", "h100sxm580gb", "hopper", "h10080gb"),
    "H100 PCIe": ("h10080gbpcie", "h100pcie80gb"),
    "H100 NVL": ("h10094gbnvl",),
    "H800": ("h800sxm", "h80080gbhbm3"),
    "H200": ("h200sxm", "h200141gb", "h200141gbhbm3e", "h200sxm141gb"),
    "GH200": ("gh200480gb", "gh200120gb", "gh20096gb", "gh20096gbhbm3"),
    "GH200 144GB": ("gh200144g", "gh200144ghbm3e", "gh200144gbhbm3e"),
    "B200": ("b200sxm", "blackwell", "b200sxm180gb", "b200180gb"),
    "GB200": ("gb200nvl72", "gb200nvl4"),
    "B300": ("b300sxm", "b300sxm6ac", "blackwellultra"),
    "GB300": ("gb300nvl72",),
    "MI250X": ("mi250", "instinctmi250xmi250"),
    "MI300X": ("mi300xoam", "gfx942mi300x"),
    "MI325X": ("mi325xoam",),
    "MI350X": ("mi350xoam",),
    "MI355X": ("mi355xoam",),
}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_NAME = {
    **{_plain(name): name for name in CHIPS},
    **{alias: name for name, aliases in NAMES.items() for alias in aliases},
}
_VENDOR = re.compile(r"^(?:nvidia|tesla|amd|instinct|radeon|google|cloud|dgx|hgx)+(?=\w)")
_MIG = re.compile(r"^(.*?)[ -]*\bMIG\b[ -]*(\d+)g\.(\d+)gb", re.IGNORECASE)
_MIG_SLICES = 7  # number of compute slices on every GPU with MIG
_CPU = ("cpu", "host", "thiscpu")

# Chips with the vendor and number of cores that a profile states, ordered by memory.
_BY_CORES = {
    ("nvidia", 40): ("T4",), ("nvidia", 58): ("L4",), ("nvidia", 80): ("V100 16GB", "V100"),
    ("nvidia", 108): ("A100 40GB", "A100"), ("nvidia", 114): ("H100 PCIe",),
    ("nvidia", 132): ("H100", "H100 NVL", "H200"), ("nvidia", 148): ("B200",), ("nvidia", 152): ("GB200",),
    ("amd", 110): ("MI250X",), ("amd", 256): ("MI355X",), ("amd", 304): ("MI300X", "MI325X"),
}  # fmt: skip
_MEMORY_TOLERANCE = 0.012  # drivers, clouds and tools report the memory of the same GPU slightly differently


def known_chip(name: str) -> ChipRecord | None:
    """The record of a chip, looked up by its name or by a device kind.

    Args:
        name: "v5e", "TPU v5 lite", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"; a target such as
            "v5e:16x16"; "here" for the attached devices as measured by `calibrate`; the path of a calibration
            (`*.json`); or "cpu". A network between hosts is appended after "@", as in "h100@8x400G" or
            "a100@infiniband-hdr".

    Returns:
        The table row or the calibration; for a MIG slice, its part of the GPU. For a TPU that is not in the table,
        JAX's own figures; these lack links, so the time of collectives is unknown. None for a CPU, because CPU
        peaks are not published.

    Raises:
        MeshError: if neither the table nor JAX contains the chip, or if a calibration is missing or unreadable.

    Example:
        >>> known_chip("v5e:16x16").peak_flops_per_second["bfloat16"]
        197000000000000.0
    """
    name, stated, network = name.partition("@")
    if stated:
        chip = known_chip(name)
        return None if chip is None else with_network(chip, network)
    calibrated = named_calibration(name)
    if calibrated is not None:
        return calibrated
    slice_of = _MIG.match(name)
    if slice_of:
        full_chip = known_chip(slice_of[1])
        return None if full_chip is None else _mig_slice(full_chip, int(slice_of[2]), int(slice_of[3]))
    plain = _plain(name.split(":")[0])
    if plain in _CPU:
        return None
    chip_name = _BY_NAME.get(plain) or _BY_NAME.get(_VENDOR.sub("", plain)) or _BY_NAME.get(_without_tpu(plain))
    return CHIPS[chip_name] if chip_name else _from_jax(name, _without_tpu(plain))


def chip_of_gpu(vendor: str, cores: int, memory_bytes: int) -> ChipRecord | None:
    """The chip that matches a GPU in a profile, by vendor, core count and memory; None if no row matches.

    Args:
        vendor: "Nvidia" or "AMD".
        cores: Number of streaming multiprocessors or compute units.
        memory_bytes: Memory of the device.

    Example:
        >>> chip_of_gpu("AMD", 304, 206141652992).name
        'MI300X'
    """
    for name in _BY_CORES.get((vendor.lower(), cores), ()):
        chip = CHIPS[name]
        if abs(memory_bytes * chip.devices_per_chip / chip.hbm_bytes - 1) <= _MEMORY_TOLERANCE:
            return chip
    return None


def _without_tpu(plain: str) -> str:
    return plain.removeprefix("google").removeprefix("cloud").removeprefix("tpu") or plain


def _mig_slice(chip: ChipRecord, compute: int, gigabytes: int) -> ChipRecord:
    share = min(1.0, compute / _MIG_SLICES)
    memory = min(1.0, gigabytes / math.ceil(chip.hbm_bytes / _GIB))
    return chip.replace(
        name=f"{chip.name} MIG {compute}g.{gigabytes}gb",
        peak_flops_per_second={dtype: peak * share for dtype, peak in chip.peak_flops_per_second.items()},
        hbm_bytes=chip.hbm_bytes if memory == 1 else gigabytes * _GB,
        hbm_bytes_per_second=chip.hbm_bytes_per_second * memory,
        vector_flops_per_second=chip.vector_flops_per_second * share,
        link_bytes_per_second=0.0,
        links=0,
        domain=1,
        source=f"{compute} of {_MIG_SLICES} compute slices and {gigabytes} GB; whole GPU: {chip.source}",
    )


def _from_jax(name: str, plain: str) -> ChipRecord:
    from jax.experimental.pallas import tpu  # takes a second, and is needed only for unlisted chips

    versions = {str(version.value): version for version in tpu.ChipVersion}
    plain = {"v4lite": "v4i"}.get(plain, plain)
    if plain not in versions:
        chip_names = [*CHIPS, *versions]
        near = difflib.get_close_matches(name.split(":")[0], chip_names, n=1, cutoff=0.6)
        message = (
            f"`known_chip` was given {name!r}, which is not in the chip table"
            f"{f' (did you mean {near[0]!r}?)' if near else ''}. Costs in seconds need a chip's published peaks: use "
            f"one of {', '.join(CHIPS)}, or one of JAX's own names {', '.join(versions)}, or pass a `ChipRecord`."
        )
        raise MeshError(message)
    info = tpu.get_tpu_info_for_chip(versions[plain], 1)
    tera = 1e-12
    peaks = _peaks(
        float(info.bf16_ops_per_second) * tera,
        int8=float(info.int8_ops_per_second) * tera,
        float8=float(info.fp8_ops_per_second) * tera,
        int4=float(getattr(info, "int4_ops_per_second", 0) or 0) * tera,
    )
    return ChipRecord(
        name=plain,
        peak_flops_per_second=peaks,
        hbm_bytes=int(info.hbm_capacity_bytes),
        hbm_bytes_per_second=float(info.mem_bw_bytes_per_second),
        link_bytes_per_second=0.0,
        links=0,
        topology="torus3d" if plain.startswith("v4") else "torus2d",
        source="JAX's tpu_info, per device",
        as_of=_AS_OF,
    )
