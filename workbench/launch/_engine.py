"""The interface of all launch engines, so that one program runs on each of them."""

from collections.abc import Sequence
from typing import Any, Protocol

from workbench.launch._client import CallQueue
from workbench.launch._nodes import NodeSpec
from workbench.launch._program import Program
from workbench.launch._runner import Emit


class Host(Protocol):
    """Nodes that live and die together, on an engine.

    It sends news after `ended()` became true, or while it is: a program that stops looks again when it hears something.
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
    """A place for nodes."""

    name: str
    kills: bool  # whether `Host.kill` ends a node, or gives it up where it is

    def open(self, program: Program, emit: Emit) -> Sequence[Host]:
        """Hosts for the program's nodes, not yet started; they report to `emit(label, event, detail)`."""
        ...

    def close(self) -> None:
        """Gives back what the hosts shared."""
        ...
