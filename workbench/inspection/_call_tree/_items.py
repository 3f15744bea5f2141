"""Input for a call tree: amounts of work and their places."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from workbench.inspection._call_tree._frames import Frame
from workbench.records.call_tree import CallCollectiveRecord, CallFiguresRecord, CallPass
from workbench.records.sharding import CollectiveKind


class Scope(NamedTuple):
    """A scope or loop around an operation; `depth` is the number of frames outside it, if known."""

    name: str
    kind: str  # "scope" or "loop"
    depth: int | None = None
    trip_count: float | None = None


@dataclass(slots=True, eq=False)
class Amounts:
    """Running sums of work, traffic and memory."""

    flops_matmul: float = 0.0
    flops_elementwise: float = 0.0
    traffic_bytes: float = 0.0
    sent_bytes: dict[str, float] = field(default_factory=dict)
    # (kind, axes) -> count, executions, payload, sent, largest payload of one execution (infinite: unknown)
    collectives: dict[tuple[CollectiveKind, tuple[str, ...]], list[float]] = field(default_factory=dict)
    peak_bytes: float = 0.0
    constant_bytes: float = 0.0

    def add(self, other: "Amounts") -> None:
        """Adds the amounts of `other`."""
        self.flops_matmul += other.flops_matmul
        self.flops_elementwise += other.flops_elementwise
        self.traffic_bytes += other.traffic_bytes
        self.peak_bytes += other.peak_bytes
        self.constant_bytes += other.constant_bytes
        for axis, amount in other.sent_bytes.items():
            self.sent_bytes[axis] = self.sent_bytes.get(axis, 0.0) + amount
        for key, numbers in other.collectives.items():
            totals = self.collectives.setdefault(key, [0.0, 0.0, 0.0, 0.0, 0.0])
            for index, number in enumerate(numbers[:4]):
                totals[index] += number
            totals[4] = max(totals[4], numbers[4])

    @property
    def any(self) -> bool:
        """True if anything was counted."""
        return bool(
            self.flops_matmul
            or self.flops_elementwise
            or self.traffic_bytes
            or self.collectives
            or self.peak_bytes
            or self.constant_bytes
        )


@dataclass(slots=True, eq=False)
class Item:
    """Work that one operation does at one place."""

    frames: tuple[Frame, ...]  # frames of the user, outermost first
    inside: tuple[Frame, ...]  # frames of libraries, below the user's innermost frame
    scopes: tuple[Scope, ...]
    pass_name: CallPass
    operation: str
    amounts: Amounts
    instruction: str = ""
    share: float = 1.0  # share of the instruction's work; 0 for memory that the instruction holds
    at_least: bool = False
    inferred: bool = False  # the place belongs to the value's reader or producer
    taken: int = 0  # number of scopes that are already nodes


def figures(amounts: Amounts) -> CallFiguresRecord:
    return CallFiguresRecord(
        flops_matmul=amounts.flops_matmul,
        flops_elementwise=amounts.flops_elementwise,
        traffic_bytes=amounts.traffic_bytes,
        sent_bytes=dict(amounts.sent_bytes),
        collectives=tuple(
            CallCollectiveRecord(
                kind=kind,
                axes=axes,
                count=n[0],
                executions=n[1],
                payload_bytes=n[2],
                sent_bytes=n[3],
                largest_bytes=None if math.isinf(n[4]) else n[4],
            )
            for (kind, axes), n in amounts.collectives.items()
        ),
        peak_bytes=amounts.peak_bytes,
        constant_bytes=amounts.constant_bytes,
    )
