"""TPU metrics from libtpu's monitoring SDK, read in a child process because calls can hang."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence

_SCRIPT = """
import json
from libtpu.sdk import tpumonitoring
known = tpumonitoring.list_supported_metrics()
wanted = ["duty_cycle_pct"]
print(json.dumps({name: list(tpumonitoring.get_metric(name).data()) for name in wanted if name in known}))
"""


class TpuMetrics:
    """Queries the SDK periodically without blocking; gives up after a failed query.

    Args:
        command: Command that prints one JSON object, whose values are lists with one item per chip. None means libtpu's
            SDK in this Python.
        timeout_seconds: Time after which a query counts as hanging and its process is killed.
        every_seconds: Time between two queries.
    """

    def __init__(
        self, command: Sequence[str] | None = None, *, timeout_seconds: float = 20.0, every_seconds: float = 10.0
    ) -> None:
        self._command = list(command) if command else [sys.executable, "-c", _SCRIPT]
        self._timeout = timeout_seconds
        self._every = every_seconds
        self._process: subprocess.Popen[str] | None = None
        self._last_request = float("-inf")
        self.latest: dict[str, list[float]] = {}
        self.problem: str | None = None

    def poll(self) -> dict[str, list[float]]:
        """Reads an answer if one has arrived, starts the next query if it is due, and returns the last answer."""
        now = time.monotonic()
        if self._process is None:
            if self.problem is None and now - self._last_request >= self._every:
                self._last_request = now
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
        elif self._process.poll() is not None:
            self._read()
        elif now - self._last_request > self._timeout:
            self.close()
            self.problem = f"The TPU's monitoring did not answer within {self._timeout:g} s and is not queried again."
        return self.latest

    def close(self) -> None:
        """Stops a pending query."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _read(self) -> None:
        assert self._process is not None
        answer, complaint = self._process.communicate()
        code, self._process = self._process.returncode, None
        try:
            self.latest = {name: [float(value) for value in values] for name, values in json.loads(answer).items()}
        except (ValueError, AttributeError, TypeError):
            last = (complaint.strip().splitlines() or ["no message"])[-1]
            self.problem = f"The TPU's monitoring ended with code {code} ({last}) and is not queried again."
