"""Records of several programs side by side."""

from dataclasses import dataclass
from typing import Literal

from workbench.records._base import Record
from workbench.records._call_tree import CallTreeRecord

Unit = Literal["", "count", "bytes", "flops", "seconds"]
Group = Literal[
    "program",
    "stages",
    "collectives",
    "collective bytes",
    "collective strategy",
    "planned collectives",
    "per device",
    "profile",
    "seconds per category",
    "seconds per call path",
    "seconds per program",
    "measured",
    "seconds per stage",
    "seconds per line",
]
Status = Literal["same", "changed", "added", "removed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRecord(Record):
    """One quantity in each of the compared programs; None where a program lacks it or it is not known."""

    group: Group
    name: str
    values: tuple[float | str | None, ...]
    unit: Unit = ""
    status: Status = "same"  # of the last program against the first; "unknown": known in some only

    @property
    def ratio(self) -> float | None:
        """The last value as a multiple of the first, where both are numbers and the first is not zero."""
        first, last = self.values[0], self.values[-1]
        if isinstance(first, str) or isinstance(last, str) or first is None or last is None or first == 0:
            return None
        return last / first


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord(Record):
    """Several programs side by side, in the order they were given."""

    names: tuple[str, ...]
    targets: tuple[str, ...]
    rows: tuple[ComparedRecord, ...]
    notes: tuple[str, ...] = ()
    trees: tuple[CallTreeRecord, ...] = ()  # of the programs, where all of them have one

    @property
    def differences(self) -> tuple[ComparedRecord, ...]:
        """The rows that are not the same everywhere."""
        return tuple(row for row in self.rows if row.status != "same")
