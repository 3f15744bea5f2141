"""Records of a program under other shardings than its own, before anything runs."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record
from workbench.records._compiled import ProgramRecord
from workbench.records._program import SourceLine
from workbench.records._sharding import PlannedCollectiveKind

Change = Literal["added", "removed", "more", "less", "same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord(Record):
    """The collectives of one kind over the same mesh axes in one stage, in two versions of a program.

    Runs and bytes are of one call of the program, all iterations of loops included, and zero where there are none;
    `_bytes` is the sum of one device's operands. They are None where a loop of unknown length holds some.
    """

    kind: PlannedCollectiveKind
    axes: tuple[str, ...]
    stage: str | None
    stage_name: str = ""
    runs_before: float | None = 0.0
    runs_after: float | None = 0.0
    before_bytes: float | None = 0.0
    after_bytes: float | None = 0.0
    source: SourceLine | None = None

    @property
    def change(self) -> Change:
        """Change of the figures."""
        if self.runs_before == 0 and self.runs_after != 0:
            return "added"
        if self.runs_after == 0 and self.runs_before != 0:
            return "removed"
        before, after = self.before_bytes or 0.0, self.after_bytes or 0.0
        return "same" if before == after else "more" if after > before else "less"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRecord(Record):
    """A program with some arguments sharded differently, next to the program as it is; nothing was run.

    `planned` compares what Shardy asks for (sites in the program, a loop's counted once), `compiled` what the
    compiler made of it (None: not compiled). The two are never mixed.
    """

    specs: dict[str, tuple[tuple[str, ...], ...]]  # what was asked for: leaf -> mesh axes per dimension
    before: ProgramRecord
    after: ProgramRecord
    planned: tuple[TrafficRecord, ...] = ()
    compiled: tuple[TrafficRecord, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def traffic(self) -> tuple[TrafficRecord, ...]:
        """The compiled comparison where there is one, else the planned one."""
        return self.planned if self.compiled is None else self.compiled
