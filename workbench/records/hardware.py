"""Records of meshes, devices and chips."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRecord(Record):
    """A mesh axis; hops are counted along the axis on the torus, and are None if coordinates are unknown."""

    name: str
    size: int
    type: Literal["auto", "explicit", "manual"] = "auto"
    mean_hops: float | None = None
    max_hops: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(Record):
    """A device of a mesh; `position` is its index per mesh axis, and `coords` is its torus position."""

    id: int
    position: tuple[int, ...]
    platform: str = ""
    kind: str = ""
    host: int = 0
    coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    slice_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRange(Record):
    """The clients from `start` to `stop` (exclusive) on device `device_id`; `padding` counts empty slots."""

    placement: str
    device_id: int
    start: int
    stop: int
    padding: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRecord(Record):
    """A mesh: axes in order, devices in row-major order; the devices of an abstract mesh are numbered."""

    axes: tuple[AxisRecord, ...]
    devices: tuple[DeviceRecord, ...]
    abstract: bool = False
    clients: tuple[ClientRange, ...] = ()
    wraps: tuple[bool, ...] | None = None  # torus dimensions whose ends are wired together; None: no coordinates

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(axis.size for axis in self.axes)


RateKind = Literal[
    "matrix product",
    "thin product",
    "convolution",
    "elementwise",
    "arithmetic",
    "transcendental",
    "reduction",
    "transpose",
    "gather",
    "scatter",
    "sort",
    "factorisation",
    "eigenvalues",
    "operation",
    "first run",
    "call",
    "array",
    "upload",
    "download",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRecord(Record):
    """Measured time of one small program per device, run on all attached devices at once."""

    kind: RateKind
    # FLOPs (textbook counts for factorisations), elementwise operations, transcendental results, bytes of main memory,
    # or bytes of one device's operand
    amount: float
    seconds: float  # median
    low_seconds: float  # quartiles
    high_seconds: float
    runs: int
    dtype: str = ""
    axis: str = ""  # the mesh axis, for a collective
    group_size: int = 1

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median."""
        return (self.high_seconds - self.low_seconds) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipRecord(Record):
    """A chip's published peaks (shared by its `devices_per_chip` JAX devices), or its measured rates."""

    name: str
    peak_flops_per_second: dict[str, float]  # by JAX's dtype name: "bfloat16", "float8_e4m3fn", "int4"
    hbm_bytes: int
    hbm_bytes_per_second: float
    link_bytes_per_second: float  # one direction, of one link (TPU) or the whole NVLink port (GPU)
    links: int
    topology: Literal["torus2d", "torus3d", "switch"]
    devices_per_chip: int = 1
    dcn_bytes_per_second: float | None = None
    domain: int | None = None  # number of chips joined by fast links; beyond them, data use the data-centre network
    vector_flops_per_second: float = 0.0  # float32 without matrix units; 0: not in the table
    rates: tuple[RateRecord, ...] = ()  # from `workbench.calibrate`; empty: values are from data sheets
    source: str = ""
    as_of: str = ""  # ISO date
