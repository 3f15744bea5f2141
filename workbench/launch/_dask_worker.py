"""What a Dask worker does for a node: services live in actors, nodes that only run in tasks.

All actor methods of a worker share one thread, unless they are coroutines; so calls go through one, into a pool.
"""

import asyncio
import pickle
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from workbench.launch._client import Client, Line
from workbench.launch._nodes import Handle
from workbench.launch._pickling import pickled
from workbench.launch._pool import DaemonPool
from workbench.launch._remote import CONNECT_SECONDS, Keeper, unpacked, unreachable
from workbench.launch._runner import NodeRunner

REPORT_SECONDS = 0.25


class LostWorkerError(RuntimeError):
    """Dask ran a node's task again because it lost the worker: here that is a failure, and a restart is ours to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskOrder:
    """What a worker is told about a node."""

    launch: str  # unique name, part of every name on the scheduler
    spec: bytes
    services: Mapping[int, tuple[str, tuple[str, ...], int]]  # label, methods, parallel calls
    attempt: int


class DaskEndpoint:
    """Calls a service in an actor, wherever it lives now."""

    def __init__(self, client: Any, launch: str, label: str, methods: tuple[str, ...]) -> None:
        self.label = label
        self.methods = methods
        self.gone: str | None = None
        self._client = client
        self._place = f"{launch}-{label}"
        self._actor: Any = None

    def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls `method` and waits for its answer."""
        payload = pickled((method, args, kwargs))
        with self._client.as_current():
            actor = self._actor or self._find(method)
            try:
                answer = actor.ask(payload).result()
            except (OSError, RuntimeError, KeyError) as error:  # the worker is gone, or does not know the actor
                self._actor = None
                raise unreachable(self.label, method, f"its worker was lost ({error})") from error
        return unpacked(answer)

    def forget(self) -> None:
        """Looks for the actor anew at the next call."""
        self._actor = None

    def _find(self, method: str) -> Any:
        distributed = import_module("distributed")

        deadline = time.monotonic() + CONNECT_SECONDS
        while time.monotonic() < deadline:
            if self.gone is not None:
                raise unreachable(self.label, method, self.gone)
            try:
                address, key = distributed.Variable(self._place, client=self._client).get(timeout=REPORT_SECONDS)
            except TimeoutError:
                continue
            self._actor = distributed.Actor(NodeActor, address, key)
            return self._actor
        raise unreachable(self.label, method, f"it did not start within {CONNECT_SECONDS:.0f} s")


class _Seat:
    """A node on a worker: runs it, reports over a topic of the scheduler, obeys a variable there."""

    def __init__(self, order: DaskOrder) -> None:
        distributed = import_module("distributed")

        self._order = order
        self._client, self._worker = distributed.get_client(), distributed.get_worker()
        self._lines: dict[int, Line] = {}
        self._endpoints: list[DaskEndpoint] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        spec = pickle.loads(order.spec)
        self._label = spec.label
        self.runner = NodeRunner(spec, self._client_of, self._emit, write=self._write)
        self.runner.start(order.attempt)

    def live(self) -> None:
        """Reports and obeys until the node has ended."""
        distributed = import_module("distributed")

        orders = distributed.Variable(f"{self._order.launch}-orders", client=self._client)
        closing = False
        while not self._ended.wait(REPORT_SECONDS):
            self._report()
            try:
                told = orders.get(timeout=CONNECT_SECONDS)
            except TimeoutError:  # the notebook gave the program up and removed its orders
                told = {"stop": True, "close": "the program has stopped", "failed": {}}
            if told["stop"]:
                self.runner.request_stop()
            if told["close"] and not closing:
                closing = True
                self.runner.close(told["close"])
                if self.runner.thread is not None and not self.runner.thread.is_alive():
                    break
            for label, reason in told["failed"].items():
                if self.runner.context is not None:
                    self.runner.context.tell_failed(label, reason)
                for endpoint in self._endpoints:
                    if endpoint.label == label:
                        endpoint.gone = reason
        self._report()

    def _emit(self, label: str, event: str, detail: Any) -> None:
        self._log({"label": label, "event": event, "detail": detail, "worker": self._worker.address})
        # A service whose `run` returned answers on until it is closed, and a passive one ends by being closed.
        answers_on = self.runner.service is not None and event == "finished" and self.runner.spec.runs
        if event in ("finished", "stopped", "raised") and not answers_on:
            self._ended.set()

    def _write(self, line: str) -> None:
        self._log({"label": self._label, "line": line, "worker": self._worker.address})

    def _report(self) -> None:
        spec, silent = self.runner.spec, self.runner.silent_seconds()
        hung = spec.hang_seconds is not None and silent > spec.hang_seconds
        seen = self.runner.snapshot() | {"silent_seconds": silent, "stack": self.runner.stack() if hung else None}
        seen.pop("native_id")
        self._log({"label": self._label, "seen": seen | {"log_tail": []}, "worker": self._worker.address})

    def _log(self, message: dict[str, Any]) -> None:
        self._worker.log_event(self._order.launch, message | {"attempt": self._order.attempt})

    def _client_of(self, handle: Handle) -> Client:
        with self._lock:
            if handle.index not in self._lines:
                label, methods, parallel = self._order.services[handle.index]
                endpoint = DaskEndpoint(self._client, self._order.launch, label, methods)
                self._endpoints.append(endpoint)
                self._lines[handle.index] = Line(endpoint, parallel)
            return Client(self._lines[handle.index])


class NodeActor:
    """A service node in a Dask actor."""

    def __init__(self, order: DaskOrder) -> None:
        self._seat = _Seat(order)
        service = self._seat.runner.service
        if service is None:
            message = f"node {self._seat.runner.spec.label!r} offers no methods, so it cannot be an actor"
            raise TypeError(message)
        self._label = service.label
        self._keeper = Keeper({service.label: service})
        self._pool = DaemonPool(256, f"calls for {service.label}")
        threading.Thread(target=self._seat.live, name=f"reports of {service.label}", daemon=True).start()

    async def ask(self, payload: bytes) -> bytes:
        """Runs one call in a thread of this node's own, so that calls to other actors of the worker go on."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._keeper.ask, self._label, payload)


def run_node(order: DaskOrder) -> None:
    """A node without methods, as a task that lasts as long as the node."""
    distributed = import_module("distributed")

    spec = pickle.loads(order.spec)
    begun = distributed.Event(f"{order.launch}-{spec.label}-{order.attempt}")
    if begun.is_set():
        message = f"the worker that ran node {spec.label!r} was lost"
        raise LostWorkerError(message)
    begun.set()
    _Seat(order).live()
