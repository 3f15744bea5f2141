"""How a compiled program computes its clients, and on what that choice rests."""

import math
from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCandidateRecord(Record):
    """One chunk size that was tried, and how long the program took with it."""

    chunk_size: int | Literal["auto"] | None  # "auto": by the rule; None: all clients of a device together
    runs: int
    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoiceRecord(Record):
    """The chunk size of a program, for one set of shapes on one set of devices.

    `chunk_size` given to `workbench.jit` makes the same plan again, on any machine.
    """

    program: str
    chunk_size: int | Literal["auto"] | None
    source: Literal["measured", "cache", "rule"]
    why: str  # in a sentence
    candidates: tuple[ChunkCandidateRecord, ...] = ()
    tuning_seconds: float = 0.0  # compilations included

    def ratio_to_rule(self) -> float:
        """Median seconds of what was chosen over those of "auto"; NaN where nothing was measured."""
        median = {candidate.chunk_size: candidate.median_seconds for candidate in self.candidates}
        return median.get(self.chunk_size, math.nan) / median.get("auto", math.nan)
