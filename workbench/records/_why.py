"""Reasons for communication and for replicated arrays, in words, with the values behind them."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record
from workbench.records._program import SourceLine

Reason = Literal[
    "sum",  # parts are added
    "disagreement",  # operands, or an operand and the result, are sharded otherwise
    "constraint",  # `with_sharding_constraint`, `reshard`
    "whole dimension",  # the operation moves elements along it
    "unsplit operation",  # the partitioner cannot split it
    "output",  # the sharding of the results
    "program",  # a collective that the program writes itself
    "compiler",  # a choice of the compiler that propagation does not explain
    "unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyOperandRecord(Record):
    """A value that met others at an operation: how it is sharded, and where every axis of that came from."""

    name: str  # as the reader knows it: the argument, or the operation with its line
    value: str  # its name in the propagation, such as "%4"
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[tuple[str, ...], ...]
    source: SourceLine | None = None
    origins: dict[str, str] = field(default_factory=dict)  # mesh axis -> where it came from, in words
    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)  # mesh axis -> the steps back to its origin


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyCollectiveRecord(Record):
    """Reason of one collective: the operation that needs it, its operands and their shardings."""

    kind: str
    axes: tuple[str, ...]
    executions: float | None
    payload_bytes: int
    reason: Reason
    sentence: str
    operation: str = ""
    source: SourceLine | None = None  # the line that needs the exchange
    operands: tuple[WhyOperandRecord, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyArrayRecord(Record):
    """Reason that one large array is replicated on devices, whole or in part."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    copies: int
    sentence: str
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyCauseRecord(Record):
    """A decision of the propagation from which several collectives follow."""

    axis: str
    sentence: str
    advice: str
    source: SourceLine | None = None
    value: str = ""  # the name, in the propagation, of the first value without the axis
    spec: tuple[tuple[str, ...], ...] = ()  # the sharding that keeps the axis
    collectives: int = 0  # how many follow
    payload_bytes: float = 0.0  # of these, per device and call


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyRecord(Record):
    """Reasons for a program's communication, and for its large replicated arrays."""

    name: str
    target: str
    causes: tuple[WhyCauseRecord, ...] = ()  # the most bytes first
    collectives: tuple[WhyCollectiveRecord, ...] = ()
    arrays: tuple[WhyArrayRecord, ...] = ()
    notes: tuple[str, ...] = ()
