"""Main function of a spawned process: runs its nodes as threads and answers calls.

The process exits with its parent. This module imports neither JAX nor NumPy: a child imports only modules that its
nodes need.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from workbench.launch._client import CallQueue, Client
from workbench.launch._nodes import Handle, NodeSpec
from workbench.launch._remote import RemoteHost, RemoteService, serve
from workbench.launch._runner import NodeRunner
from workbench.launch._values import Value

REPORT_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A service's address, known before anything starts."""

    label: str
    methods: tuple[str, ...]
    parallel: int
    host: str  # address of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupConfig:
    """Data that a child receives when it starts."""

    specs: bytes  # cloudpickled tuple of NodeSpec: unpickling it may import anything
    addresses: dict[int, Address]  # of all services, keyed by node index
    here: str
    authkey: bytes
    attempt: int


def main(order: StartupConfig, pipe: Connection, log_path: str, environment: dict[str, str]) -> None:
    """Runs until the nodes have ended, the parent asks to stop, or the parent has exited."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a notebook's interrupt signals the whole group; the parent decides
    try:
        _capture_output(log_path)
    except FileNotFoundError:  # the notebook was just killed, and its folder has been removed
        parent = parent_process()
        if parent is None or parent.is_alive():
            raise
        os._exit(1)
    os.environ.clear()
    os.environ.update(environment)
    send = _Sender(pipe)
    try:
        _Child(order, pickle.loads(order.specs), send).live(pipe)
    except BaseException:  # report everything; most errors are failed imports
        text = traceback.format_exc()
        print(text, flush=True)
        send(("event", None, "raised", text))
        _leave(1)


class _Sender:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def __call__(self, message: tuple[Any, ...]) -> None:
        try:
            with self._lock:
                self._pipe.send(message)
        except OSError:  # the parent is gone
            _leave(1)


class _Child:
    def __init__(self, order: StartupConfig, specs: tuple[NodeSpec, ...], send: _Sender) -> None:
        self._send = send
        self._order = order
        self._lock = threading.Lock()
        self._codes: dict[str, int] = {}
        self._closing = False
        self._wake, self._waker = connection.Pipe(duplex=False)
        self._hosts: dict[str, RemoteHost] = {}
        self._lines: dict[int, CallQueue] = {}
        apart = len(specs) > 1
        self._runners = {
            spec.label: NodeRunner(spec, self._client_of, self._emit, write=_writer(spec.label if apart else None))
            for spec in specs
        }
        self._services = {label: r.service for label, r in self._runners.items() if r.service is not None}
        if self._services:
            serve(self._services, order.here, order.authkey)
        for runner in self._runners.values():
            runner.start(order.attempt)

    def live(self, pipe: Connection) -> None:
        parent = parent_process()
        watched = [pipe, self._wake, *([parent.sentinel] if parent is not None else [])]
        while True:
            self._report()
            ready = connection.wait(watched, REPORT_SECONDS)
            if parent is not None and parent.sentinel in ready:
                _leave(1)
            if pipe in ready:
                try:
                    self._on_command(*pipe.recv())
                except (EOFError, OSError):
                    _leave(1)
            if self._wake in ready:
                self._report()
                _leave(self._wake.recv())

    def _on_command(self, order: str, *details: str) -> None:
        for runner in self._runners.values():
            runner.obey(order, *details)
        if order == "gone":
            self._host(details[0]).gone = details[1]
        elif order == "close":
            self._closing = True
            self._leave_when_done()

    def _emit(self, label: str, event: str, detail: Value) -> None:
        self._send(("event", label, event, detail))
        if event in ("finished", "stopped", "raised"):
            with self._lock:
                self._codes[label] = 1 if event == "raised" else (detail or 0)
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        with self._lock:
            codes = tuple(self._codes.values())
        if any(codes):  # all nodes of a process end together
            self._waker.send(max(codes, key=abs))
        elif len(codes) == len(self._runners) and (self._closing or not self._services):
            self._waker.send(0)  # after `run` has returned, a service still answers until it is closed

    def _report(self) -> None:
        self._send(("reports", {label: runner.report() for label, runner in self._runners.items()}))

    def _client_of(self, handle: Handle) -> Client:
        with self._lock:
            line = self._lines.get(handle.index)
            if line is None:
                line = self._lines[handle.index] = self._line(self._order.addresses[handle.index])
        return Client(line)

    def _line(self, address: Address) -> CallQueue:
        service = self._services.get(address.label)
        host = self._hosts.setdefault(address.host, RemoteHost(address.host, self._order.authkey))
        endpoint = service or RemoteService(host, address.label, address.methods)
        return CallQueue(endpoint, address.parallel)

    def _host(self, address: str) -> RemoteHost:
        with self._lock:
            return self._hosts.setdefault(address, RemoteHost(address, self._order.authkey))


def _writer(label: str | None) -> Callable[[str], None]:
    prefix = f"{label}: " if label else ""

    def write(line: str) -> None:
        print(prefix + line, flush=True)

    return write


def _capture_output(log_path: str) -> None:
    # At the level of file descriptors, so that the node's log includes C++ output of XLA.
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")


def _leave(code: int) -> NoReturn:
    # Not sys.exit, which would wait for the nodes' threads and pools, and one of them may hang.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
