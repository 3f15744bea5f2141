"""Chips and their published peaks."""

import re

from workbench.errors import MeshError
from workbench.records import ChipRecord

_GIB = 2**30
_AS_OF = "2026-11-20"
_BOOK = "JAX scaling book, 'How to think about TPUs'"

CHIPS: dict[str, ChipRecord] = {
    chip.name: chip
    for chip in (
        ChipRecord(
            name="v4",
            peak_flops_per_second={"bfloat16": 275e12, "int8": 275e12},
            hbm_bytes=32 * _GIB,
            hbm_bytes_per_second=1.2e12,
            link_bytes_per_second=45e9,
            links=6,
            topology="torus3d",
            domain=4096,
            source=f"{_BOOK}; one JAX device per chip (megacore), compiled ahead of time without it two",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="v5e",
            peak_flops_per_second={"bfloat16": 197e12, "int8": 393e12},
            hbm_bytes=16 * _GIB,
            hbm_bytes_per_second=819e9,
            link_bytes_per_second=45e9,
            links=4,
            topology="torus2d",
            domain=256,
            source=f"Google Cloud documentation of v5e; links: {_BOOK}",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="v5p",
            peak_flops_per_second={"bfloat16": 459e12, "int8": 918e12},
            hbm_bytes=95 * _GIB,
            hbm_bytes_per_second=2.765e12,
            link_bytes_per_second=90e9,
            links=6,
            topology="torus3d",
            dcn_bytes_per_second=50e9 / 8,
            domain=8960,
            source=f"Google Cloud documentation of v5p (JAX's tpu_info has 2.46e12 B/s of HBM); links: {_BOOK}",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="v6e",
            peak_flops_per_second={"bfloat16": 918e12, "int8": 1836e12},
            hbm_bytes=32 * _GIB,
            hbm_bytes_per_second=1.638e12,
            link_bytes_per_second=90e9,
            links=4,
            topology="torus2d",
            dcn_bytes_per_second=100e9 / 8,
            domain=256,
            source=f"Google Cloud documentation of v6e; links: {_BOOK}",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="tpu7x",
            peak_flops_per_second={"bfloat16": 2307e12, "float8": 4614e12},
            hbm_bytes=192 * _GIB,
            hbm_bytes_per_second=7.38e12,
            link_bytes_per_second=100e9,
            links=6,
            topology="torus3d",
            devices_per_chip=2,
            dcn_bytes_per_second=100e9 / 8,
            domain=9216,
            source="Google Cloud documentation of tpu7x; link: 1200 GB/s both ways over 6 links",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="H100",
            peak_flops_per_second={"bfloat16": 989e12, "float16": 989e12, "float8": 1979e12, "int8": 1979e12},
            hbm_bytes=80 * 10**9,
            hbm_bytes_per_second=3.35e12,
            link_bytes_per_second=450e9,
            links=1,
            topology="switch",
            domain=8,
            source="NVIDIA H100 SXM data sheet, dense; XLA's h100_sxm target (132 SM × 4 × 512 × 2 × 1.83 GHz)",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="H200",
            peak_flops_per_second={"bfloat16": 989e12, "float16": 989e12, "float8": 1979e12, "int8": 1979e12},
            hbm_bytes=141 * 10**9,
            hbm_bytes_per_second=4.8e12,
            link_bytes_per_second=450e9,
            links=1,
            topology="switch",
            domain=8,
            source="NVIDIA H200 SXM data sheet as quoted by secondary pages, dense",
            as_of=_AS_OF,
        ),
        ChipRecord(
            name="B200",
            peak_flops_per_second={"bfloat16": 2250e12, "float16": 2250e12, "float8": 4500e12, "int8": 4500e12},
            hbm_bytes=180 * 10**9,
            hbm_bytes_per_second=7.7e12,
            link_bytes_per_second=900e9,
            links=1,
            topology="switch",
            domain=8,
            source="HGX B200 figures as quoted by secondary pages, dense; XLA's b200 target gives 2225e12 and 7.67e12",
            as_of=_AS_OF,
        ),
    )
}

_ALIASES = {
    "v5": "v5p",
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v6lite": "v6e",
    "tpuv7x": "tpu7x",
    "7x": "tpu7x",
    "v7x": "tpu7x",
}


def known_chip(name: str) -> ChipRecord | None:
    """The record of a chip by its name, or by the kind that a device reports.

    Args:
        name: "v5e", "TPU v5 lite", "NVIDIA H100 80GB HBM3", a target such as "v5e:16x16", or "cpu".

    Returns:
        The row of the table. For a TPU that the table lacks, what JAX itself knows (no links, so that collectives stay
        unpriced). None for a CPU, whose peaks nobody publishes.

    Raises:
        MeshError: if neither knows the chip.

    Example:
        >>> known_chip("v5e:16x16").peak_flops_per_second["bfloat16"]
        197000000000000.0
    """
    plain = re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())
    if plain in ("cpu", "host", "thiscpu"):
        return None
    plain = plain.removeprefix("tpu") if plain.startswith("tpuv") else plain
    plain = _ALIASES.get(plain, plain)
    for chip in CHIPS.values():
        if plain == chip.name.lower() or (chip.topology == "switch" and chip.name.lower() in plain):
            return chip
    return _from_jax(name, plain)


def _from_jax(name: str, plain: str) -> ChipRecord:
    from jax.experimental.pallas import tpu  # costs a second, and only unlisted chips need it

    versions = {str(version.value): version for version in tpu.ChipVersion}
    if plain not in versions:
        message = (
            f"`known_chip` was given {name!r}, which is no chip of the table. Costs in seconds need a chip's published "
            f"peaks: use one of {', '.join(CHIPS)}, or of JAX's own {', '.join(versions)}, or pass a `ChipRecord`."
        )
        raise MeshError(message)
    info = tpu.get_tpu_info_for_chip(versions[plain], 1)
    peaks = {
        "bfloat16": float(info.bf16_ops_per_second),
        "int8": float(info.int8_ops_per_second),
        "float8": float(info.fp8_ops_per_second),
    }
    return ChipRecord(
        name=plain,
        peak_flops_per_second={dtype: peak for dtype, peak in peaks.items() if peak},
        hbm_bytes=int(info.hbm_capacity_bytes),
        hbm_bytes_per_second=float(info.mem_bw_bytes_per_second),
        link_bytes_per_second=0.0,
        links=0,
        topology="torus3d" if plain.startswith("v4") else "torus2d",
        source="JAX's tpu_info, per device",
        as_of=_AS_OF,
    )
