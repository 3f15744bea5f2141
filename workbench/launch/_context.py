"""Context of the running node, stored in a ContextVar."""

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import MappingProxyType

from workbench.errors import ProgramError

LOG_LINES = 2000  # lines kept per node; older lines are dropped


class NodeContext:
    """A running node's view of its program: stop requests, failed nodes and the log.

    Four things count as heartbeats: reading `stop_requested`, calling `heartbeat()` or `log()`, and answering a call.
    """

    def __init__(
        self,
        label: str,
        program: str,
        attempt: int,
        on_stop_program: Callable[[str], None],
        write: Callable[[str], None] | None = None,
    ) -> None:
        self.label = label
        self.program = program
        self.attempt = attempt  # 0, then 1 after the first restart, …
        self.started_at: float = time.monotonic()
        self.last_beat: float = self.started_at
        self.ended_at: float | None = None
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self.partial: str = ""  # printed part of an unfinished line
        self.echo: bool = False  # whether printed lines start with the label
        self._stop = threading.Event()
        self._on_stop_program = on_stop_program
        self._write = write
        self._failed: dict[str, str] = {}

    @property
    def stop_requested(self) -> bool:
        """True if the node should stop soon; check it once per iteration of a `run` loop."""
        self.heartbeat()
        return self._stop.is_set()

    def wait_for_stop(self, seconds: float | None = None) -> bool:
        """Sleeps until a stop is requested, for at most `seconds`; returns whether it was requested."""
        self.heartbeat()
        stopped = self._stop.wait(seconds)
        self.heartbeat()
        return stopped

    def heartbeat(self) -> None:
        """Reports that the node is alive; needed if work takes longer than `hang_seconds`."""
        self.last_beat = time.monotonic()

    def log(self, text: object) -> None:
        """Adds lines to the node's log; works on every engine."""
        self.heartbeat()
        self.add(str(text).splitlines())

    def add(self, lines: Sequence[str]) -> None:
        """Adds whole lines to the node's log."""
        self.lines.extend(lines)
        if self._write is not None:
            for line in lines:
                self._write(line)

    def end_line(self) -> None:
        """Adds an unfinished printed line to the node's log."""
        line, self.partial = self.partial, ""
        if line:
            self.add([line])

    def stop_program(self) -> None:
        """Asks all nodes of the program to stop, as `Launched.stop` does."""
        self._on_stop_program(self.label)

    @property
    def failed_peers(self) -> MappingProxyType[str, str]:
        """Reason for the failure of each permanently failed node, keyed by label."""
        return MappingProxyType(self._failed)

    def request_stop(self) -> None:
        """Sets `stop_requested`; called by the engines."""
        self._stop.set()

    def report_failed(self, label: str, reason: str) -> None:
        """Adds a node to `failed_peers`; called by the engines."""
        self._failed[label] = reason


CURRENT: contextvars.ContextVar[NodeContext] = contextvars.ContextVar("workbench_launch_node")


def current_node() -> NodeContext:
    """Returns the running node's context: its label, its log and stop requests.

    The context has `stop_requested`, `wait_for_stop(seconds)`, `stop_program()`, `heartbeat()`, `log(text)`,
    `failed_peers`, `label` and `attempt`. Reading `stop_requested`, and calling `heartbeat()` or `log()`, counts as a
    heartbeat.

    Raises:
        ProgramError: if called outside a node.

    Example:
        >>> from workbench.launch import Program, PyNode, launch
        >>> program = Program("one")
        >>> node = program.add_node(PyNode(lambda: current_node().log("here")))
        >>> with launch(program) as launched:
        ...     codes = launched.wait()
        ...     print(launched.logs(node))
        ('here',)
    """
    context = CURRENT.get(None)
    if context is None:
        message = (
            "`current_node` was called outside of a launched node: no node runs in this thread. `current_node` works "
            "inside a node's function, constructor, `run` and service methods; in a thread that a node starts itself, "
            "pass the context on as an argument."
        )
        raise ProgramError(message)
    return context
