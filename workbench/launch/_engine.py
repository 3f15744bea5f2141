"""The interface of all launch engines."""

from collections.abc import Sequence
from typing import Any, Protocol

from workbench.launch._client import CallQueue
from workbench.launch._nodes import NodeSpec
from workbench.launch._program import Program
from workbench.launch._runner import Emit


class Host(Protocol):
    """Nodes that start and end together on an engine.

    The host emits an event when or after `ended()` becomes true, because a stopping program checks `ended()` only after
    events.
    """

    specs: tuple[NodeSpec, ...]

    def start(self, attempt: int) -> None: ...
    def request_stop(self) -> None: ...
    def close(self, reason: str) -> None: ...
    def kill(self) -> None: ...
    def report_failed(self, label: str, reason: str) -> None: ...
    def ended(self) -> bool: ...
    def hung(self) -> list[tuple[str, float, str]]: ...
    def snapshot(self, label: str) -> dict[str, Any]: ...
    def log_lines(self, label: str) -> tuple[str, ...]: ...
    def line(self, label: str) -> CallQueue: ...


class LaunchEngine(Protocol):
    """Runs the nodes of programs."""

    name: str
    kills: bool  # whether `Host.kill` ends a node, or only abandons it

    def open(self, program: Program, emit: Emit) -> Sequence[Host]:
        """Creates hosts (not yet started) for nodes; the hosts call `emit(label, event, detail)`."""
        ...

    def close(self) -> None:
        """Releases the hosts' shared resources."""
        ...
