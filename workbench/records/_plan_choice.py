"""Configuration of a compiled program's client loop, and the reason for it."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record

Spread = Literal["auto", "shard_map", "vmap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCandidateRecord(Record):
    """One way to compute the clients of a device that was tried, and how long the program took with it."""

    chunk_size: int | Literal["auto"] | None  # "auto": by the rule; None: all clients of a device together
    spread: Spread = "auto"  # how clients are spread over a mesh
    kept_bytes: int | None = None  # rows that a later pass reads are kept up to so many bytes; None: always
    unroll: int = 1  # chunks that one iteration of the loop computes
    runs: int
    ratio: float  # median, over its runs, of its seconds by those of the rule's choice in the run next to it
    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoiceRecord(Record):
    """Configuration of a program's client loop, for one set of shapes on one set of devices.

    Given to `workbench.jit` as `plan` it makes the same plan again, on any machine.
    """

    program: str
    chunk_size: int | Literal["auto"] | None
    spread: Spread = "auto"
    kept_bytes: int | None = None
    unroll: int = 1
    source: Literal["measured", "cache", "given", "rule"]
    why: str  # in a sentence
    candidates: tuple[PlanCandidateRecord, ...] = ()
    tuning_seconds: float = 0.0  # compilations included

    def chose(self, candidate: PlanCandidateRecord) -> bool:
        """Returns whether a candidate is the choice."""
        fields = ("chunk_size", "spread", "kept_bytes", "unroll")
        return all(getattr(self, name) == getattr(candidate, name) for name in fields)
