"""Records of advice: ranked findings about a program, each with its evidence and the change that it suggests."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record
from workbench.records._program import SourceLine

Spec = tuple[tuple[str, ...], ...]
Quantity = Literal[
    "bytes sent",
    "bytes sent x links",
    "peak bytes",
    "argument bytes",
    "seconds",
    "FLOPs",
    "elementwise FLOPs",
    "instructions started",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRecord(Record):
    """Saving of a change on one device in one call; `verified`: the changed program was compiled."""

    quantity: Quantity
    before: float
    after: float
    verified: bool
    how: str = ""  # how it was verified, or why it could not be

    @property
    def saved_share(self) -> float:
        """The share of `before` that is saved, 0..1; 0 where there was nothing."""
        return 0.0 if not self.before else 1 - self.after / self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRecord(Record):
    """One finding: what was seen, why it happens, what to change, and what that gains."""

    rule: str
    what: str  # one sentence: the title
    why: str
    change: str  # what to do, in words, with the user's names
    evidence: tuple[str, ...]
    weight: float  # share of the program's figure that it concerns, 0..1: findings are ranked by it
    code: str = ""  # of the change, to paste; empty where the rule cannot write it
    instructions: tuple[str, ...] = ()  # of the compiled module
    nodes: tuple[int, ...] = ()  # of the call tree: `CallNodeRecord.id`
    leaves: tuple[str, ...] = ()  # arguments, by the path that `inspect().inputs` calls them
    axes: tuple[str, ...] = ()  # of the mesh
    size_bytes: float | None = None  # what it concerns: sent, or in memory, on one device in one call
    seconds: float | None = None  # predicted, of the instructions; None without a chip
    sources: tuple[SourceLine, ...] = ()
    gain: GainRecord | None = None
    specs: dict[str, Spec] = field(default_factory=dict)  # by path, as `what_if` takes them: what it advises
    compared: tuple[GainRecord, ...] = ()  # other figures of the program before and after the change, once compiled

    @property
    def is_verified(self) -> bool:
        """True if the changed program was compiled."""
        return self.gain is not None and self.gain.verified

    @property
    def costs(self) -> tuple[GainRecord, ...]:
        """The figures that the compiled change makes worse by more than 5 %; elementwise work apart."""
        return tuple(g for g in self.compared if g.quantity != "elementwise FLOPs" and g.after > 1.05 * g.before)

    @property
    def saved_seconds(self) -> float | None:
        """The share of the predicted seconds that the compiled change saves; None where no chip is known."""
        return next((each.saved_share for each in self.compared if each.quantity == "seconds"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRecord(Record):
    """Findings about one program, the most important first, and the rules that were checked."""

    name: str
    target: str
    findings: tuple[FindingRecord, ...]
    checked: tuple[str, ...]
    notes: tuple[str, ...] = ()
