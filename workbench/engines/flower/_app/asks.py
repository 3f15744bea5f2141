"""Messages between server and nodes, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NAME: str = __name__.split(".")[-2]
"""Name of this package and action of its messages; it lets one ClientApp contain several programs."""


class NodeFailure(RuntimeError):
    """A node raised an error, left, or did not answer; `slot` is the node's number in the run.

    `worker_lost` is true if the node's process has exited or is still computing an abandoned request.
    """

    def __init__(self, slot: int, fault: str, *, worker_lost: bool = False) -> None:
        super().__init__(fault)
        self.slot, self.worker_lost = slot, worker_lost


class ToDrop(dict[int, list[str]]):
    """For each node, the names of its kept rows that nothing refers to any more; `pop` gives them to a request."""

    def forget(self, dropped: list[str], nodes: int) -> None:
        """Moves the names of dropped rows to the lists of all nodes."""
        while dropped:
            name = dropped.pop()
            for slot in range(nodes):
                self.setdefault(slot, []).append(name)


@dataclass
class Ask:
    """Request to one node, with a stage (as bytes or digest), the source of each row, and the values to keep.

    A row is "own:<input>" (the node's data), "held:<name>" (kept on the node by an earlier stage) or "sent:<i>"
    (`sent[i]`). `shared` contains the indices of the server's values in `sent`. With `fetch`, the node returns the
    named rows.
    """

    digest: str = ""
    blob: bytes = b""
    rows: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    fetch: list[str] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    slot: int = 0


@dataclass(frozen=True)
class NodeReply:
    """Reply of a node, with its results, its host, its compute time and its compile time in seconds."""

    values: list[np.ndarray]
    reported: Mapping[str, Any]
