"""Runs nodes in a Ray actor as threads, answers calls and reports events."""

import os
import pickle
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.errors import needs_library
from workbench.launch._client import CallQueue, Client
from workbench.launch._nodes import Handle, NodeSpec
from workbench.launch._output import install, uninstall
from workbench.launch._pipeline import PipelinedLine
from workbench.launch._ray_calls import RayEndpoint
from workbench.launch._remote import RequestHandler
from workbench.launch._runner import NodeRunner
from workbench.launch._values import Value

with needs_library("psutil", needed_for="`RayEngine`"):
    import psutil

CONTROL_CALLS = 4  # concurrent calls from the notebook, which must not wait for calls from other nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOrder:
    """Data that an actor receives when it starts."""

    launch: str  # unique name, the namespace of the launch's actors
    specs: bytes
    services: Mapping[int, tuple[str, str, tuple[str, ...], int]]  # actor's name, label, methods, parallel calls
    attempt: int


class RayNodeActor:
    """The nodes of one host in a Ray actor."""

    def __init__(self, order: RayOrder) -> None:
        self._order = order
        self._changed = threading.Condition()
        self._events: list[tuple[str, str, Any]] = []
        self._lines: list[tuple[str, str]] = []
        self._codes: dict[str, int] = {}
        self._closing = False
        self._calling: dict[int, CallQueue] = {}
        self._endpoints: list[RayEndpoint] = []
        self._process = psutil.Process(os.getpid())
        specs: tuple[NodeSpec, ...] = pickle.loads(order.specs)
        self._runners = {
            spec.label: NodeRunner(spec, self._client_of, self._emit, write=self._writer(spec.label)) for spec in specs
        }
        self._services = {label: r.service for label, r in self._runners.items() if r.service is not None}
        self._handler = RequestHandler(self._services)
        install()
        self._installed = True
        for runner in self._runners.values():
            runner.start(order.attempt)

    def ask(self, label: str, payload: bytes) -> bytes:
        """Answers one call."""
        return self._handler.ask(label, payload)

    def events(self, seconds: float) -> dict[str, Any]:
        """Returns the events since the last call, after at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._code() is not None, seconds)
            events, self._events = self._events, []
            lines, self._lines = self._lines, []
            code = self._code()
        return {"events": events, "lines": lines, "code": code, "seen": self._seen()}

    def obey(self, order: str, *details: str) -> None:
        """Executes an order from the notebook."""
        for runner in self._runners.values():
            runner.obey(order, *details)
        for endpoint in list(self._endpoints) if order == "failed" else ():
            if endpoint.label == details[0]:
                endpoint.gone = details[1]
        if order == "close":
            with self._changed:
                self._closing = True
                self._changed.notify_all()

    def _code(self) -> int | None:
        """The exit code of the nodes, which end together; None while the nodes run."""
        codes = tuple(self._codes.values())
        if any(codes):
            return max(codes, key=abs)
        return 0 if len(codes) == len(self._runners) and (self._closing or not self._services) else None

    def _emit(self, label: str, event: str, detail: Value) -> None:
        context = self._runners[label].context
        if event in ("finished", "stopped", "raised") and context is not None:
            context.end_line()
        with self._changed:
            self._events.append((label, event, detail))
            if event in ("finished", "stopped", "raised"):
                self._codes[label] = 1 if event == "raised" else (detail or 0)
            ended = len(self._codes) == len(self._runners)
            self._changed.notify_all()
        if ended:
            self.end_output()

    def end_output(self) -> None:
        """Stops copying printed lines to the nodes' logs."""
        with self._changed:
            installed, self._installed = self._installed, False
        if installed:
            uninstall()

    def _writer(self, label: str) -> Callable[[str], None]:
        return lambda line: self._lines.append((label, line))

    def _seen(self) -> dict[str, dict[str, Any]]:
        times = self._process.cpu_times()
        process_state = {
            "where": f"actor in process {self._process.pid}",
            "cpu_seconds": times.user + times.system,
            "memory_bytes": self._process.memory_info().rss,
        }
        return {label: runner.report() | process_state for label, runner in self._runners.items()}

    def _client_of(self, handle: Handle) -> Client:
        with self._changed:
            line = self._calling.get(handle.index)
            if line is None:
                actor, label, methods, parallel = self._order.services[handle.index]
                here = self._services.get(label)
                line = (
                    CallQueue(here, parallel) if here else PipelinedLine(self._remote(actor, label, methods), parallel)
                )
                self._calling[handle.index] = line
            return Client(line)

    def _remote(self, actor: str, label: str, methods: tuple[str, ...]) -> RayEndpoint:
        self._endpoints.append(RayEndpoint(self._order.launch, actor, label, methods))
        return self._endpoints[-1]
