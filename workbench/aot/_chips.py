"""The chips for ahead-of-time compilation, and their tested topologies.

"Tested" means compiled with jax 0.10.2 and libtpu 0.0.42.1 (or with the CUDA 12 plugin 0.10.2). Other topologies can
make the compiler abort with SIGFPE or SIGABRT, so they need `force=True`, and all compilations run in a worker process.
"""

from dataclasses import dataclass, field
from typing import Literal

from workbench.aot._chip_table import CHIPS, NAMES

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFamily:
    """One kind of chip, under the name that the compiler uses."""

    name: str
    platform: Literal["tpu", "cuda"]
    description: str
    available_bytes: int  # bytes per device that are available to a program (TPU: from the out-of-memory error)
    topologies: tuple[str, ...]
    dimensions: int = 2
    devices_per_chip: int = 1
    plugin_arguments: dict[str, str] = field(default_factory=dict)
    gpu: dict[str, int | float] = field(default_factory=dict)

    @property
    def chip(self) -> str:
        """Name of this chip in the chip table, which contains the peaks and other names."""
        return self.name.upper() if self.platform == "cuda" else self.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names for the chip, used by users and devices."""
        return NAMES.get(self.chip, ())


_TORUS_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_TORUS_3D = (
    "1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16",
)  # fmt: skip
_GPU_HOSTS = ("1x1", "1x2", "1x4", "1x8", "2x8", "4x8", "8x8", "16x8", "32x8", "64x8", "128x8")

# Limits that apply to all NVIDIA data-centre GPUs since Ampere (CUDA C++ Programming Guide, compute capabilities).
_CUDA = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "shared_memory_per_block": 48 * 1024,
}
_HOPPER = _CUDA | {
    "shared_memory_per_core": 228 * 1024,
    "shared_memory_per_block_optin": 227 * 1024,
    "fpus_per_core": 128,
}

_FAMILIES = (
    ChipFamily(
        name="v2",
        platform="tpu",
        description="Cloud TPU v2, 2-D torus",
        available_bytes=int(7.48 * GIB),
        topologies=("2x2", "4x4", "8x8", "16x16"),
        devices_per_chip=2,
    ),
    ChipFamily(
        name="v3",
        platform="tpu",
        description="Cloud TPU v3, 2-D torus",
        available_bytes=int(15.48 * GIB),
        topologies=("2x2", "4x4", "8x8", "16x16", "32x32"),
        devices_per_chip=2,
    ),
    ChipFamily(
        name="v4",
        platform="tpu",
        description="Cloud TPU v4, 3-D torus, one device per chip (megacore)",
        available_bytes=int(30.75 * GIB),
        topologies=_TORUS_3D,
        dimensions=3,
        plugin_arguments={"chip_config_name": "megacore"},
    ),
    ChipFamily(
        name="v5e",
        platform="tpu",
        description="Cloud TPU v5e, 2-D torus of up to 256 chips",
        available_bytes=int(15.75 * GIB),
        topologies=_TORUS_2D,
    ),
    ChipFamily(
        name="v5p",
        platform="tpu",
        description="Cloud TPU v5p, 3-D torus",
        available_bytes=int(95.74 * GIB),
        topologies=(*_TORUS_3D, "16x16x24"),
        dimensions=3,
    ),
    ChipFamily(
        name="v6e",
        platform="tpu",
        description="Cloud TPU v6e (Trillium), 2-D torus of up to 256 chips",
        available_bytes=int(31.25 * GIB),
        topologies=_TORUS_2D,
    ),
    ChipFamily(
        name="tpu7x",
        platform="tpu",
        description="TPU7x (Ironwood), 3-D torus, two devices per chip",
        available_bytes=int(94.75 * GIB),
        topologies=_TORUS_3D,
        dimensions=3,
        devices_per_chip=2,
    ),
    ChipFamily(
        name="a100",
        platform="cuda",
        description="NVIDIA A100 SXM 80 GB",
        available_bytes=80 * GIB,
        topologies=_GPU_HOSTS,
        gpu=_CUDA
        | {
            "major": 8,
            "minor": 0,
            "core_count": 108,
            "clock_rate_ghz": 1.41,
            "l2_cache_size": 40 * 2**20,
            "device_memory_size": 80 * GIB,
            "shared_memory_per_core": 164 * 1024,
            "shared_memory_per_block_optin": 163 * 1024,
            "fpus_per_core": 64,
        },
    ),
    ChipFamily(
        name="h100",
        platform="cuda",
        description="NVIDIA H100 SXM 80 GB",
        available_bytes=80 * GIB,
        topologies=_GPU_HOSTS,
        gpu=_HOPPER
        | {
            "major": 9,
            "minor": 0,
            "core_count": 132,
            "clock_rate_ghz": 1.83,
            "l2_cache_size": 50 * 2**20,
            "device_memory_size": 80 * GIB,
        },
    ),
    ChipFamily(
        name="h200",
        platform="cuda",
        description="NVIDIA H200 SXM 141 GB",
        available_bytes=141_000_000_000,
        topologies=_GPU_HOSTS,
        gpu=_HOPPER
        | {
            "major": 9,
            "minor": 0,
            "core_count": 132,
            "clock_rate_ghz": 1.83,
            "l2_cache_size": 50 * 2**20,
            "device_memory_size": 141_000_000_000,
        },
    ),
    ChipFamily(
        name="b200",
        platform="cuda",
        description="NVIDIA B200 SXM 180 GB",
        available_bytes=180_000_000_000,
        topologies=_GPU_HOSTS,
        gpu=_HOPPER
        | {
            "major": 10,
            "minor": 0,
            "core_count": 148,
            "clock_rate_ghz": 1.83,
            "l2_cache_size": 126 * 2**20,
            "device_memory_size": 180_000_000_000,
        },
    ),
)

FAMILIES: dict[str, ChipFamily] = {family.name: family for family in _FAMILIES}
ALIASES: dict[str, str] = {alias: family.name for family in _FAMILIES for alias in family.aliases}


def gpu_target_config(family: ChipFamily) -> str:
    """The text of a GPU's `GpuTargetConfigProto` for XLA's compiler, based on published numbers.

    The compiler requires only the warp size, the shared memory per block and the block limits (it divides by them). The
    other fields affect how the compiler chooses tiles and schedules instructions.
    """
    numbers = dict(family.gpu) | {"memory_bandwidth": int(CHIPS[family.chip].hbm_bytes_per_second)}
    major, minor = numbers.pop("major"), numbers.pop("minor")
    fields = "\n".join(f"  {key}: {value}" for key, value in sorted(numbers.items()))
    return (
        f"gpu_device_info {{\n  cuda_compute_capability {{ major: {major} minor: {minor} }}\n{fields}\n}}\n"
        f'platform_name: "CUDA"\ndevice_description_str: "{family.description}"\n'
    )
