"""Nodes as threads of this process, with one JIT cache and direct calls."""

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from workbench.errors import ProgramError, needs_library
from workbench.launch._client import CallQueue, Client
from workbench.launch._nodes import Handle, NodeSpec
from workbench.launch._output import install, uninstall
from workbench.launch._program import Program
from workbench.launch._runner import Emit, NodeRunner
from workbench.launch._service import parallel_calls

with needs_library("psutil", needed_for="`launch` on threads"):
    import psutil


class ThreadHost:
    """One node in a thread of this process."""

    def __init__(self, spec: NodeSpec, client_of: Callable[[Handle], Client], emit: Emit) -> None:
        self.specs = (spec,)
        self._runner = NodeRunner(spec, client_of, emit)

    def start(self, attempt: int) -> None:
        self._runner.start(attempt)

    def request_stop(self) -> None:
        """Sets the node's `stop_requested`."""
        self._runner.request_stop()

    def close(self, reason: str) -> None:
        """Closes the node's service."""
        self._runner.close(reason)

    def kill(self) -> None:
        """Abandons the thread, because Python cannot stop it."""
        self._runner.abandon()

    def report_failed(self, label: str, reason: str) -> None:
        """Notifies the node that another node has failed."""
        if self._runner.context is not None:
            self._runner.context.report_failed(label, reason)

    def ended(self) -> bool:
        """Returns whether the node's work has ended, or its thread was abandoned."""
        thread, context = self._runner.thread, self._runner.context
        if thread is None or context is None or not thread.is_alive():
            return True
        return context.attempt < 0 or context.ended_at is not None  # threads outlive their last event briefly

    def hung(self) -> list[tuple[str, float, str]]:
        """Returns the label, the seconds without a heartbeat, and the stack of a hung node."""
        limit, silent = self.specs[0].hang_seconds, self._runner.silent_seconds()
        return [(self.specs[0].label, silent, self._runner.stack())] if limit is not None and silent > limit else []

    def wait(self) -> None:
        """Waits for a thread whose work has ended; skips a hung thread."""
        thread, context = self._runner.thread, self._runner.context
        if thread is None or context is None or context.attempt < 0 or context.ended_at is None:
            return
        if thread is not threading.current_thread():
            thread.join(1.0)

    def snapshot(self, label: str) -> dict[str, Any]:
        """Returns the numbers of a `NodeStateRecord`, including processor seconds."""
        del label
        snapshot = self._runner.snapshot()
        native_id = snapshot.pop("native_id")
        return snapshot | {
            "where": f"thread {native_id}" if native_id else "a thread that ended",
            "cpu_seconds": _CLOCK.seconds(native_id),
        }

    def log_lines(self, label: str) -> tuple[str, ...]:
        del label
        context = self._runner.context
        return () if context is None else (*context.lines, *([context.partial] if context.partial else []))

    def echo(self) -> None:
        """Writes the node's label before the lines that it prints."""
        self._runner.echo = True

    def line(self, label: str) -> CallQueue:
        """Creates a new call queue to the node's service."""
        if self._runner.service is None:
            raise KeyError(label)
        return CallQueue(self._runner.service, parallel_calls(self.specs[0]))


class Threads:
    """The engine that runs nodes as threads of this process.

    A hung thread cannot be killed; it is reported, abandoned and, depending on its `Restart` policy, replaced. `print`
    writes to the notebook and to the node's log; `current_node().log` writes only to the log.
    """

    name = "threads"
    kills = False

    def open(self, program: Program, emit: Emit) -> list[ThreadHost]:
        """Creates one host for each node of `program`."""
        asking = sorted({spec.group for spec in program.specs if spec.environment})
        if asking:
            message = (
                f'`launch` on "threads" was given program {program.name!r}, whose groups {", ".join(asking)} set '
                "environment variables. All threads share the environment of this process: launch on "
                '"processes", or set the variables before the notebook starts.'
            )
            raise ProgramError(message)
        install()
        self._hosts = [ThreadHost(spec, self._client_of, emit) for spec in program.specs]
        self._lines: dict[int, CallQueue] = {}
        return self._hosts

    def close(self) -> None:
        """Drops waiting calls, and joins threads that have sent their last event."""
        for host in self._hosts:
            host.wait()
        uninstall()
        for line in list(self._lines.values()):
            line.close()

    def _client_of(self, handle: Handle) -> Client:
        line = self._lines.get(handle.index)
        if line is None:  # if two nodes create it concurrently, one is kept
            line = self._lines.setdefault(handle.index, self._hosts[handle.index].line(handle.label))
        return Client(line)


class _Clock:
    """Processor time of this process's threads in seconds, cached for 0.2 s."""

    def __init__(self) -> None:
        self._read_at = -math.inf
        self._seconds: dict[int, float] = {}

    def seconds(self, native_id: int | None) -> float | None:
        now = time.monotonic()
        if now - self._read_at > 0.2:
            try:
                threads = psutil.Process(os.getpid()).threads()
            except psutil.Error:  # macOS requires permissions that a notebook rarely has
                threads = []
            self._read_at = now
            self._seconds = {thread.id: thread.user_time + thread.system_time for thread in threads}
        return self._seconds.get(native_id) if native_id is not None else None


_CLOCK = _Clock()
