"""Nodes on a Dask worker: services as actors, other nodes as tasks.

All actor methods on a worker share one thread, unless they are coroutines. Calls therefore use a coroutine, which
passes them to a pool.
"""

import asyncio
import functools
import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from workbench._open_types import Foreign
from workbench.launch._client import Client
from workbench.launch._dask_calls import DaskEndpoint, InOrder, Place
from workbench.launch._nodes import Handle
from workbench.launch._output import install, uninstall
from workbench.launch._pipeline import PipelinedLine
from workbench.launch._pool import DaemonPool
from workbench.launch._remote import CONNECT_SECONDS, RequestHandler
from workbench.launch._runner import NodeRunner
from workbench.launch._service import parallel_calls
from workbench.launch._values import Value

REPORT_SECONDS = 0.25
_DIRECT_CALLS = 256


class LostWorkerError(RuntimeError):
    """Raised if Dask lost a worker and reran its task; only a node's `Restart` policy may restart the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskOrder:
    """Data that a worker receives about a node."""

    launch: str  # unique name, part of every name on the scheduler
    spec: bytes
    services: Mapping[int, tuple[str, tuple[str, ...], int]]  # label, methods, parallel calls
    attempt: int
    key: str  # the node's task on the scheduler


class _Slot:
    """Runs a node on a worker; reports through a topic and reads orders from a variable."""

    def __init__(self, order: DaskOrder, *, announces: bool = False) -> None:
        distributed = import_module("distributed")

        self._messages: list[dict[str, Any]] | None = [] if announces else None  # Dask sends in batches, 2 ms apart
        self._order = order
        self._client, self._worker = distributed.get_client(), distributed.get_worker()
        self._lines: dict[int, PipelinedLine] = {}
        self._endpoints: list[DaskEndpoint] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        (spec,) = pickle.loads(order.spec)
        self._label = spec.label
        self.runner = NodeRunner(spec, self._client_of, self._emit, write=self._write)
        install()
        self.runner.start(order.attempt)

    def live(self) -> None:
        """Sends reports and follows orders until the node has ended."""
        distributed = import_module("distributed")

        orders = distributed.Variable(f"{self._order.launch}-orders", client=self._client)
        closing = False
        while not self._ended.wait(REPORT_SECONDS):
            self._report()
            try:
                reported = orders.get(timeout=CONNECT_SECONDS)
            except Exception:  # the notebook abandoned the program and removed its orders, or the cluster stops
                reported = {"stop": True, "close": "the program has stopped", "failed": {}}
            if reported["stop"]:
                self.runner.request_stop()
            if reported["close"] and not closing:
                closing = True
                self.runner.close(reported["close"])
                if self.runner.thread is not None and not self.runner.thread.is_alive():
                    break
            for label, reason in reported["failed"].items():
                if self.runner.context is not None:
                    self.runner.context.report_failed(label, reason)
                for endpoint in self._endpoints:
                    if endpoint.label == label:
                        endpoint.gone = reason
                        endpoint.forget()
        self._report()
        uninstall()

    def announce(self, actor: Foreign) -> None:
        """Reports earlier events and the actor's location when the actor can receive calls."""
        while self._worker.state.actors.get(self._order.key) is not actor and not self._ended.wait(0.0005):
            pass
        with self._lock:
            messages, self._messages = self._messages or [], None
        for message in (*messages, {"label": self._label, "key": self._order.key, "worker": self._worker.address}):
            self._log(message)

    def _emit(self, label: str, event: str, detail: Value) -> None:
        if event in ("finished", "stopped", "raised") and self.runner.context is not None:
            self.runner.context.end_line()
        self._log({"label": label, "event": event, "detail": detail, "worker": self._worker.address})
        # After `run` has returned, a service still answers until it is closed. A passive service ends when it is
        # closed.
        answers_on = self.runner.service is not None and event == "finished" and self.runner.spec.runs
        if event in ("finished", "stopped", "raised") and not answers_on:
            self._ended.set()

    def _write(self, line: str) -> None:
        self._log({"label": self._label, "line": line, "worker": self._worker.address})

    def _report(self) -> None:
        report = self.runner.report() | {"log_tail": []}
        self._log({"label": self._label, "seen": report, "worker": self._worker.address})

    def _log(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._messages is not None:
                self._messages.append(message)
                return
        self._worker.log_event(self._order.launch, message | {"attempt": self._order.attempt})

    def _client_of(self, handle: Handle) -> Client:
        with self._lock:
            if handle.index not in self._lines:
                label, methods, parallel = self._order.services[handle.index]
                endpoint = DaskEndpoint(
                    self._client, label, methods, functools.partial(self._look, label), DaskNodeActor
                )
                self._endpoints.append(endpoint)
                self._lines[handle.index] = PipelinedLine(endpoint, parallel)
            return Client(self._lines[handle.index])

    def _look(self, label: str, seconds: float) -> Place | None:
        distributed = import_module("distributed")

        try:
            address, key = distributed.Variable(f"{self._order.launch}-{label}", client=self._client).get(seconds)
        except TimeoutError:
            return None
        return address, key


class DaskNodeActor:
    """A service node in a Dask actor."""

    def __init__(self, order: DaskOrder) -> None:
        self._slot = _Slot(order, announces=True)
        service = self._slot.runner.service
        if service is None:
            message = f"node {self._slot.runner.spec.label!r} offers no methods, so it cannot be an actor"
            raise TypeError(message)
        self._label = service.label
        self._handler = RequestHandler({service.label: service})
        self._parallel = parallel_calls(service.spec)
        self._pool = DaemonPool(_DIRECT_CALLS, f"calls for {service.label}")
        self._callers: dict[str, InOrder] = {}
        threading.Thread(target=self._live, name=f"reports of {service.label}", daemon=True).start()

    async def ask(self, payload: bytes) -> bytes:
        """Runs one call in a thread of this node, so that it does not block other actors."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._handler.ask, self._label, payload)

    async def ask_in_order(self, payload: bytes, caller: str, number: int) -> bytes:
        """Starts one call as soon as the caller's earlier calls have started."""
        if caller not in self._callers:
            self._callers[caller] = InOrder(self._parallel, f"calls for {self._label} in order")
        return await self._callers[caller].run(number, self._handler.ask, self._label, payload)

    def _live(self) -> None:
        try:
            self._slot.announce(self)
            self._slot.live()
        finally:  # the worker continues
            self._pool.shutdown(cancel_futures=False)
            for caller in self._callers.values():
                caller.close()


def run_node(order: DaskOrder) -> None:
    """Runs a node without methods as a task."""
    distributed = import_module("distributed")

    (spec,) = pickle.loads(order.spec)
    begun = distributed.Event(f"{order.launch}-{spec.label}-{order.attempt}")
    if begun.is_set():
        message = f"the worker that ran node {spec.label!r} was lost"
        raise LostWorkerError(message)
    begun.set()
    _Slot(order).live()
