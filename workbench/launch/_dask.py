"""Nodes on a Dask cluster, for programs that are too large for one machine."""

import contextlib
import functools
import math
import queue
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any

from workbench._open_types import Foreign
from workbench.errors import MissingDependencyError, ProgramError
from workbench.launch._client import CallQueue
from workbench.launch._context import LOG_LINES
from workbench.launch._dask_calls import DaskEndpoint, Place
from workbench.launch._nodes import NodeSpec
from workbench.launch._pickling import pickled_nodes
from workbench.launch._pipeline import PipelinedLine
from workbench.launch._program import Program
from workbench.launch._reporting import ReportingHost
from workbench.launch._runner import Emit
from workbench.launch._service import parallel_calls

_SILENT_SECONDS = 10.0  # without a report for this long, an actor's worker counts as lost


class DaskHost(ReportingHost):
    """One node in an actor or a task on a Dask cluster."""

    def __init__(self, spec: NodeSpec, engine: "DaskEngine") -> None:
        super().__init__((spec,), place="worker", patience_seconds=math.inf)  # `_placed` finds lost workers
        self._spec = spec
        self._payload = pickled_nodes((spec,), engine.name)
        self._engine = engine
        self._future: Foreign = None
        self._address = "-"
        self._attempt = 0
        self._over = True
        self._log: deque[str] = deque(maxlen=LOG_LINES)

    def start(self, attempt: int) -> None:
        """Submits the node; Dask chooses the worker."""
        from workbench.launch._dask_worker import DaskNodeActor, DaskOrder, run_node

        engine, spec = self._engine, self._spec
        order = DaskOrder(
            launch=engine.launch,
            spec=self._payload,
            services=engine.services,
            attempt=attempt,
            key=f"{engine.launch}-{spec.label}-{attempt}",
        )
        self._attempt, self._over = attempt, False
        self._hear({})
        service = spec.kind == "service"
        self._future = engine.client.submit(
            DaskNodeActor if service else run_node,
            order,
            key=order.key,
            actor=service,
            pure=False,
            resources=dict(spec.resources) or None,
        )
        settle = self._placed if service else self._done
        threading.Thread(target=settle, args=(self._future, attempt), daemon=True).start()

    def request_stop(self) -> None:
        """Sets `stop_requested` for all nodes, because they share their orders."""
        self._engine.send(stop=True)

    def close(self, reason: str) -> None:
        """Closes the services when the program stops; failed services have already ended."""
        if self._engine.stopping:
            self._engine.send(close=reason)

    def kill(self) -> None:
        """Abandons the node, because Dask cannot stop a worker's thread."""
        self._over = True
        if self._future is not None:
            with contextlib.suppress(Exception):  # the node ended with its cluster
                self._future.cancel()
            if self._spec.kind == "service":
                self._engine.place(self._spec, None)

    def release(self) -> None:
        """Releases the node's actor or result on Dask."""
        self._over, self._future = True, None

    def report_failed(self, label: str, reason: str) -> None:
        self._engine.send(failed={label: reason})

    def failed(self, reason: str) -> None:
        """Notifies callers in this process that the node has failed permanently."""
        endpoint = self._engine.endpoint(self._spec)
        endpoint.gone = reason
        endpoint.forget()

    def ended(self) -> bool:
        """Returns whether the node has ended or was abandoned."""
        return self._over

    def snapshot(self, label: str) -> dict[str, Any]:
        """Returns the most recently reported numbers for a `NodeStateRecord`."""
        return self._reported(label) | {"where": f"worker {self._address}", "log_tail": tuple(self._log)[-5:]}

    def log_lines(self, label: str) -> tuple[str, ...]:
        del label
        return tuple(self._log)

    def line(self, label: str) -> CallQueue:
        """Creates a new call queue to the node's service."""
        del label
        return PipelinedLine(self._engine.endpoint(self._spec), parallel_calls(self._spec))

    def take_event(self, worker: str, message: dict[str, Any]) -> None:
        """Processes a report; reports from an earlier attempt are ignored."""
        if message["attempt"] != self._attempt or self._future is None:
            return
        self._heard_at, self._address = time.monotonic(), worker
        if "seen" in message:
            self._reports = {message["label"]: message["seen"]}
        elif "line" in message:
            self._log.append(message["line"])
        elif "key" in message:  # Dask itself reports it a few milliseconds later
            self._engine.found(self._spec, (worker, message["key"]))
        elif not self._over:
            if message["event"] in ("finished", "stopped", "raised"):
                self._over = message["event"] != "finished" or not (self._spec.kind == "service" and self._spec.runs)
            self._engine.emit(message["label"], message["event"], message["detail"])

    def _placed(self, future: Foreign, attempt: int) -> None:
        try:
            actor = future.result()
        except BaseException:  # the actor could not be made
            self._end(attempt, "raised", traceback.format_exc())
            return
        self._address = actor._address
        self._engine.place(self._spec, (actor._address, actor.key))
        while attempt == self._attempt and not self._over:
            time.sleep(0.25)
            if attempt != self._attempt or self._over:
                return
            lost = future.status not in ("finished", "pending")
            if lost or time.monotonic() - self._heard_at > _SILENT_SECONDS:
                self._engine.place(self._spec, None)
                self._end(attempt, "killed", f"The worker {self._address} of {self._spec.label!r} was lost.")

    def _done(self, future: Foreign, attempt: int) -> None:
        distributed = import_module("distributed")

        try:
            future.result()
            fault, event = None, None
        except distributed.CancelledError:
            return
        except Exception as error:
            killed = type(error).__name__ in ("LostWorkerError", "KilledWorker")
            fault, event = ("".join(traceback.format_exception(error)), "killed" if killed else "raised")
        if event is not None:
            self._end(attempt, event, fault)

    def _end(self, attempt: int, event: str, detail: str | None) -> None:
        if attempt == self._attempt and not self._over:
            self._over = True
            self._engine.emit(self._spec.label, event, detail)


class DaskEngine:
    """The engine that runs nodes on a Dask cluster, on one or several machines.

    Service nodes are actors. Other nodes are tasks that occupy a thread of a worker while they run, so the cluster
    needs more threads than there are such nodes. If a worker dies, the node's `Restart` policy applies. Dask cannot
    stop a running thread, so a hung node is abandoned. Calls are faster with `Client(..., direct_to_workers=True)`.

    Args (of the constructor):
        client: A `distributed.Client`; the engine does not close it.

    Raises:
        MissingDependencyError: if `distributed` is not installed.
    """

    name = "dask"
    kills = False

    def __init__(self, client: Foreign) -> None:
        try:
            import_module("distributed")
        except ImportError as error:
            raise MissingDependencyError("distributed", extra="dask", needed_for="DaskEngine") from error
        self.client = client
        self.stopping: bool = False
        self.services: dict[int, tuple[str, tuple[str, ...], int]] = {}
        self._endpoints: dict[int, DaskEndpoint] = {}
        self._telling = threading.Lock()
        self._places: dict[str, Place] = {}
        self._placing = threading.Condition()
        self._making = threading.Lock()

    def open(self, program: Program, emit: Emit) -> list[DaskHost]:
        """Creates one host for each node.

        Raises:
            ProgramError: if nodes are colocated, set environment variables or cannot be pickled, or if no worker has
                the resources that they need.
        """
        distributed = import_module("distributed")

        self._check(program)
        self._hosts = {spec.label: DaskHost(spec, self) for spec in program.specs}
        self.launch: str = f"workbench-{program.name}-{secrets.token_hex(4)}"
        self.emit = emit
        self.stopping = False
        self._endpoints, self._places = {}, {}
        self._last_order: dict[str, Any] = {"stop": False, "close": None, "failed": {}}
        self._orders = distributed.Variable(f"{self.launch}-orders", client=self.client)
        # Nodes first read their orders 0.25 s after their start, so this need not block.
        threading.Thread(target=self.send, kwargs={"first": True}, daemon=True).start()
        self.services = {
            spec.index: (spec.label, spec.methods, parallel_calls(spec))
            for spec in program.specs
            if spec.kind == "service"
        }
        self._reports: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(
            target=self._listen, args=(self._reports,), name=f"reports of {program.name}", daemon=True
        ).start()
        self.client.subscribe_topic(self.launch, self._take_event)
        return list(self._hosts.values())

    def close(self) -> None:
        """Removes the program's data from the scheduler."""
        self._on_the_cluster(self.client.unsubscribe_topic, self.launch)
        self._reports.put(None)
        for spec in (host.specs[0] for host in self._hosts.values()):
            if spec.kind == "service":
                self.place(spec, None)
        for host in self._hosts.values():
            host.release()
        self._on_the_cluster(self._orders.delete)

    def send(
        self, *, stop: bool = False, close: str | None = None, failed: dict[str, str] | None = None, first: bool = False
    ) -> None:
        """Adds an order to the orders that all nodes read."""
        with self._telling:
            order = {
                "stop": self._last_order["stop"] or stop,
                "close": self._last_order["close"] or close,
                "failed": self._last_order["failed"] | (failed or {}),
            }
            self.stopping = self.stopping or stop
            if order != self._last_order or first:
                self._last_order = order
                self._on_the_cluster(self._orders.set, order)

    def place(self, spec: NodeSpec, where: Place | None) -> None:
        """Publishes or removes the location of a service's actor."""
        distributed = import_module("distributed")

        self.found(spec, where)
        place = distributed.Variable(f"{self.launch}-{spec.label}", client=self.client)
        if where is None:
            self._on_the_cluster(place.delete)
            self.endpoint(spec).forget()
        else:
            self._on_the_cluster(place.set, list(where))

    def _on_the_cluster(self, does: Callable[..., Any], *args: object) -> None:
        if self.client.status == "running":
            with contextlib.suppress(Exception):  # the cluster may be gone; lost nodes are reported elsewhere
                does(*args)

    def found(self, spec: NodeSpec, where: Place | None) -> None:
        """Sets the location only for this process; Dask's thread may call this method."""
        with self._placing:
            if where is None:
                self._places.pop(spec.label, None)
            else:
                self._places[spec.label] = where
            self._placing.notify_all()

    def endpoint(self, spec: NodeSpec) -> DaskEndpoint:
        """Returns this process's endpoint of a service."""
        from workbench.launch._dask_worker import DaskNodeActor

        with self._making:
            if spec.index not in self._endpoints:
                look = functools.partial(self._look, self._places, spec.label)
                self._endpoints[spec.index] = DaskEndpoint(self.client, spec.label, spec.methods, look, DaskNodeActor)
            return self._endpoints[spec.index]

    def _look(self, places: dict[str, Place], label: str, seconds: float) -> Place | None:
        with self._placing:
            self._placing.wait_for(lambda: label in places, seconds)
            return places.get(label)

    def _take_event(self, event: tuple[float, dict[str, Any]]) -> None:
        # This runs in the thread of Dask's event loop, which must not block. Locations of actors are processed at once,
        # because callers wait for them; a thread processes the other messages.
        message = dict(event[1])
        if "key" in message:
            self._take(message)
        else:
            self._reports.put(message)

    def _listen(self, reports: "queue.SimpleQueue[dict[str, Any] | None]") -> None:
        for message in iter(reports.get, None):
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        host = self._hosts.get(message["label"])
        if host is not None:
            host.take_event(str(message.get("worker", "-")), message)

    def _check(self, program: Program) -> None:
        faults = [
            f"{' and '.join(spec.label for spec in specs)} are colocated" for specs in program.hosts() if len(specs) > 1
        ]
        faults += [f"{spec.label} sets environment variables" for spec in program.specs if spec.environment]
        demanding = [spec for spec in program.specs if spec.resources]
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values() if demanding else ()
        offers = [worker.get("resources", {}) for worker in workers]
        for spec in demanding:
            if not any(all(offer.get(name, 0) >= need for name, need in spec.resources.items()) for offer in offers):
                faults.append(f"{spec.label} needs {dict(spec.resources)}, which no worker offers")
        if faults:
            message = (
                f"`launch` on Dask was given program {program.name!r}, which this cluster cannot run: "
                f"{'; '.join(faults)}. A Dask node runs separately in an existing worker process. Either "
                "start workers with the variables and `resources=` that the nodes need, and leave nodes uncolocated, "
                "or launch on 'processes'."
            )
            raise ProgramError(message)
