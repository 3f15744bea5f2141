"""Records of absent hardware: the target, what can be compiled for it, and one compilation."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record
from workbench.records._compiled import MemoryRecord
from workbench.records._hardware import MeshRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord(Record):
    """A machine named by the user, such as `v5e:16x16*4`; counts are over all slices.

    `topology` is `16x16` (chips along the axes of one slice's torus) or `4x8` (hosts x GPUs of one slice).
    """

    name: str  # canonical: "v5e:16x16*4", "h100:1x8"
    chip: str  # "v5e", "h100"
    platform: Literal["tpu", "cuda"]
    topology: str
    slices: int
    hosts: int
    chips: int
    devices: int  # JAX devices: two per chip on v2, v3 and tpu7x
    available_bytes: int  # HBM that one device leaves to a program
    seen: bool = True  # this topology was compiled for when this version of the workbench was made
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAvailability(Record):
    """One kind of chip: whether its compiler is installed here, and the line that installs it where it is not."""

    chip: str
    platform: Literal["tpu", "cuda"]
    description: str
    topologies: tuple[str, ...]  # seen working, smallest first
    installed: bool
    compiler: str  # "libtpu 0.0.42.1"; "" where it is not installed
    install: str  # "" where it is installed
    terms: str  # whose terms the compiler comes under


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCompilation(Record):
    """Compilation of one program for absent hardware; no figure in it was measured on that hardware.

    A program that does not fit has `memory.fits` False, `error` with the compiler's own words, and the HLO as far as
    the compiler came (scheduled and with buffers assigned, before code was generated).
    """

    target: TargetRecord
    hlo: str
    memory: MemoryRecord
    mesh: MeshRecord
    order: Literal["topology", "naive"]
    seconds: float  # that the compiler took, here, whenever that was
    cached: bool
    cost_analysis: dict[str, float] = field(
        default_factory=dict
    )  # XLA's own: loop bodies once, -1 where it does not know
    needed_bytes: int | None = None  # per device, where it does not fit
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
