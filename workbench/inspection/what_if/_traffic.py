"""Compares the collectives of two versions of a program by kind, mesh axes and stage."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from workbench.records.compiled import CollectiveRecord, TrafficRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import PlannedCollectiveKind, PlannedCollectiveRecord

Key = tuple[PlannedCollectiveKind, tuple[str, ...], str | None]


@dataclasses.dataclass
class _Sum:
    runs: float | None = 0.0
    size_bytes: float | None = 0.0
    source: SourceLine | None = None

    def add(self, runs: float | None, each_bytes: float, source: SourceLine | None) -> None:
        if runs is None or self.runs is None or self.size_bytes is None:
            self.runs = self.size_bytes = None  # a loop of unknown length, so the sum is unknown
        else:
            self.runs += runs
            self.size_bytes += runs * each_bytes
        self.source = self.source or source


def compare_compiled(
    before: Iterable[CollectiveRecord], after: Iterable[CollectiveRecord], stages: Mapping[str, str]
) -> tuple[TrafficRecord, ...]:
    """Compares compiled collectives.

    A collective that was combined from several stages is divided among these stages in proportion to their shares.
    """
    return _compare(_compiled(before), _compiled(after), stages)


def compare_planned(
    before: Iterable[PlannedCollectiveRecord], after: Iterable[PlannedCollectiveRecord], stages: Mapping[str, str]
) -> tuple[TrafficRecord, ...]:
    """Compares planned collectives. A collective in a loop counts once."""
    return _compare(_planned(before), _planned(after), stages)


def _compiled(collectives: Iterable[CollectiveRecord]) -> dict[Key, _Sum]:
    sums: dict[Key, _Sum] = collections.defaultdict(_Sum)
    for collective in collectives:
        only = collective.stages[0] if collective.stages else None
        shares: dict[str | None, float] = (
            {**collective.stage_shares} if len(collective.stage_shares) > 1 else {only: 1.0}
        )
        for stage, share in shares.items():
            source = collective.sources[0] if collective.sources else None
            sums[collective.kind, collective.axes, stage].add(
                collective.executions, collective.payload_bytes * share, source
            )
    return sums


def _planned(collectives: Iterable[PlannedCollectiveRecord]) -> dict[Key, _Sum]:
    sums: dict[Key, _Sum] = collections.defaultdict(_Sum)
    for collective in collectives:
        size = collective.device_bytes if collective.device_bytes is not None else collective.size_bytes
        sums[collective.kind, collective.axes, collective.stage].add(1.0, size, collective.source)
    return sums


def _compare(
    before: Mapping[Key, _Sum], after: Mapping[Key, _Sum], stages: Mapping[str, str]
) -> tuple[TrafficRecord, ...]:
    rows = []
    for key in sorted({*before, *after}, key=lambda key: (_place(key[2]), key[1], key[0])):
        kind, axes, stage = key
        old, new = before.get(key, _Sum()), after.get(key, _Sum())
        rows.append(
            TrafficRecord(
                kind=kind,
                axes=axes,
                stage=stage,
                stage_name=stages.get(stage or "", ""),
                runs_before=old.runs,
                runs_after=new.runs,
                before_bytes=old.size_bytes,
                after_bytes=new.size_bytes,
                source=new.source or old.source,
            )
        )
    return tuple(rows)


def _place(stage: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in stage.split(".") if part.isdigit()) if stage else (1 << 30,)
