"""Record of one node in a launched program."""

from collections import deque
from dataclasses import dataclass, field

from workbench.launch._engine import Host
from workbench.launch._nodes import NodeSpec
from workbench.records.launch import NodeStateName

_RATE_SECONDS = 2.0  # averaging period for calls and processor time


@dataclass(slots=True)
class NodeLife:
    """A node's state, restart count and exit status, and its rates over the last two seconds."""

    spec: NodeSpec
    host: Host
    state: NodeStateName = "waiting"
    restarts: int = 0
    exit_code: int | None = None
    error: str | None = None
    seen: deque[tuple[float, int, float | None]] = field(default_factory=deque)  # time, calls, processor seconds

    def note(self, now: float) -> None:
        """Takes a sample."""
        snapshot = self.host.snapshot(self.spec.label)
        self.seen.append((now, snapshot.get("calls", 0), snapshot.get("cpu_seconds")))
        while now - self.seen[0][0] > _RATE_SECONDS:
            self.seen.popleft()

    def rates(self, computing: bool) -> tuple[float | None, float | None]:
        """Returns calls per second and, if `computing`, processor load; None for nodes that have ended."""
        if self.exit_code is not None or not self.seen or self.seen[-1][0] <= self.seen[0][0]:
            return None, None
        (began, calls, cpu), (ended, calls_now, cpu_now) = self.seen[0], self.seen[-1]
        rate = (calls_now - calls) / (ended - began)
        if not computing or cpu is None or cpu_now is None:
            return rate, None
        return rate, (cpu_now - cpu) / (ended - began)
