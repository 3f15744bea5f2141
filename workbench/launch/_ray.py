"""Nodes as actors on a Ray cluster."""

import contextlib
import secrets
import threading
import time
from collections import deque
from importlib import import_module
from typing import Any

from workbench._open_types import Foreign
from workbench._processes import end_ray_with_this_process
from workbench.errors import MissingDependencyError, ProgramError
from workbench.launch import _spawned
from workbench.launch._client import CallQueue
from workbench.launch._context import LOG_LINES
from workbench.launch._nodes import NodeSpec
from workbench.launch._pickling import pickled, pickled_nodes
from workbench.launch._pipeline import PipelinedLine
from workbench.launch._program import Program
from workbench.launch._ray_calls import RayEndpoint
from workbench.launch._reporting import ReportingHost
from workbench.launch._runner import Emit
from workbench.launch._service import parallel_calls

_LOOK_SECONDS = 0.25
_ALIVE_SECONDS = 1.0  # interval of the connection checks
_NAME_SECONDS = 30.0  # time until Ray releases the name of a killed actor
_WAITING_CALLS = 32  # additional waiting calls beyond the concurrency of the services


class RayHost(ReportingHost):
    """The nodes that share one actor."""

    def __init__(self, specs: tuple[NodeSpec, ...], engine: "RayEngine") -> None:
        super().__init__(specs, place="actor", patience_seconds=5.0)
        self._engine = engine
        self._payload = pickled_nodes(specs, engine.name)
        self._actor: Foreign = None
        self._waiting: list[tuple[str, ...]] = []  # orders for an actor that is not yet created
        self._telling = threading.Lock()
        self._over = True
        self._killed = False  # killed by this host, so its end is not a failure
        self._logs: dict[str, deque[str]] = {spec.label: deque(maxlen=LOG_LINES) for spec in specs}

    def start(self, attempt: int) -> None:
        """Requests an actor that starts the nodes; Ray chooses the machine."""
        self._over, self._killed, self._waiting = False, False, []
        self._hear({})
        name = f"{self.specs[0].program}:{self.specs[0].label}"
        threading.Thread(target=self._live, args=(attempt,), name=f"reports of {name}", daemon=True).start()

    def kill(self) -> None:
        """Kills the actor's process."""
        self._killed = True
        if self._actor is not None and import_module("ray").is_initialized():
            with contextlib.suppress(Exception):  # Ray may be shut down already, with the actor
                import_module("ray").kill(self._actor)

    def failed(self, reason: str) -> None:
        """Notifies callers in this process that the nodes have failed permanently."""
        for spec in self.specs:
            if spec.kind == "service":
                self._engine.endpoint(spec).gone = reason

    def ended(self) -> bool:
        """Returns whether the actor has exited."""
        return self._over

    def snapshot(self, label: str) -> dict[str, Any]:
        """Returns the most recently reported numbers for a `NodeStateRecord`."""
        log_tail = tuple(self._logs[label])[-5:]
        return {"where": "actor that is starting"} | self._reported(label) | {"log_tail": log_tail}

    def log_lines(self, label: str) -> tuple[str, ...]:
        return tuple(self._logs[label])

    def line(self, label: str) -> CallQueue:
        """Creates a new call queue to a service of this actor."""
        spec = next(spec for spec in self.specs if spec.label == label)
        return PipelinedLine(self._engine.endpoint(spec), parallel_calls(spec))

    def _send(self, *order: str) -> None:
        with self._telling:
            if self._actor is None and not self._over:
                self._waiting.append(order)
                return
        if self._actor is not None and not self._over and import_module("ray").is_initialized():
            with contextlib.suppress(Exception):  # the listening thread reports an actor that is gone
                self._actor.obey.options(concurrency_group="control").remote(*order)

    def _live(self, attempt: int) -> None:
        emit, first, code = self._engine.emit, self.specs[0].label, -9
        try:
            actor = self._made(attempt)
            with self._telling:
                self._actor, waiting, self._waiting = actor, self._waiting, []
            for order in waiting:
                self._send(*order)
            while not self._killed:  # `kill` may come before the actor exists
                status = self._events()
                self._hear(status["seen"])
                for label, line in status["lines"]:
                    self._logs[label].append(line)
                for event in status["events"]:
                    emit(*event)
                if status["code"] is not None:
                    code = status["code"]
                    break
        except Exception as error:  # the actor died or could not be created
            if not self._killed:
                emit(first, "killed", f"The actor of {first!r} was lost: {error}")
        self.kill()  # also for a dead actor: while a handle exists, Ray does not release its name for the next actor
        self._actor = None
        for spec in self.specs:
            if spec.kind == "service":
                self._engine.endpoint(spec).forget()
        emit(first, "exited", code)
        self._over = True  # after its events, so that they are received before the next attempt starts
        emit(first, "gone", None)

    def _events(self) -> dict[str, Any]:
        # Do not use `ray.get`: if Ray is shut down while a thread is in `ray.get`, the next start of Ray crashes the
        # process.
        answer = self._actor.events.options(concurrency_group="control").remote(_LOOK_SECONDS).future()
        while True:
            try:
                return answer.result(_ALIVE_SECONDS)
            except TimeoutError:
                _check_connected()

    def _made(self, attempt: int) -> Foreign:
        from workbench.launch._ray_worker import CONTROL_CALLS, RayOrder

        _check_connected()
        ray, engine = import_module("ray"), self._engine
        order = RayOrder(launch=engine.launch, specs=self._payload, services=engine.services, attempt=attempt)
        parallel = {spec.label: parallel_calls(spec) for spec in self.specs if spec.kind == "service"}
        needs = {name: sum(spec.resources.get(name, 0.0) for spec in self.specs) for name in engine.names(self.specs)}
        actor_class = ray.remote(
            num_cpus=needs.pop("CPU", 0),
            num_gpus=needs.pop("GPU", 0),
            resources=needs or None,
            # Use only named groups: with a large default group, Ray begins an actor's calls in any order.
            concurrency_groups={
                "control": CONTROL_CALLS,
                "direct": sum(parallel.values()) + _WAITING_CALLS,  # blocking calls
                **parallel,  # pipelined calls to the service with that label
            },
            allow_out_of_order_execution=False,
            max_restarts=0,  # `Restart` controls restarts
            runtime_env={"env_vars": dict(self.specs[0].environment)} if self.specs[0].environment else None,
        )(_spawned.RayNode)
        deadline = time.monotonic() + _NAME_SECONDS
        while True:
            try:
                return actor_class.options(name=self.specs[0].label, namespace=engine.launch).remote(pickled(order))
            except ValueError:  # the actor of the previous attempt still has the name
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _check_connected() -> None:
    if not import_module("ray").is_initialized():  # any other call would start a cluster
        message = "Ray was shut down"
        raise ConnectionError(message)


class RayEngine:
    """The engine that runs nodes as actors on the Ray cluster to which `ray.init` connected.

    Colocated nodes share an actor. A group's `resources` are Ray resources: "CPU", "GPU" or custom resources. A node
    without resources reserves nothing. Nodes restart according to their `Restart` policy; Ray's own restarts are off.
    Printed output goes to Ray's logs; lines from `current_node().log` go to the node's log. A lost actor has exit code
    -9.

    Raises:
        MissingDependencyError: if `ray` is not installed.
        ProgramError: before `ray.init`.
    """

    name = "ray"
    kills = True

    def __init__(self) -> None:
        try:
            ray = import_module("ray")
        except ImportError as error:
            raise MissingDependencyError("ray", extra="ray", needed_for="RayEngine") from error
        if not ray.is_initialized():
            message = (
                "`RayEngine()` was created before `ray.init`. The engine runs nodes on the cluster to which Ray is "
                "connected; it does not start a cluster: call `ray.init()` for this machine, or "
                "`ray.init(address=...)`, first."
            )
            raise ProgramError(message)
        end_ray_with_this_process()
        self.services: dict[int, tuple[str, str, tuple[str, ...], int]] = {}
        self._endpoints: dict[int, RayEndpoint] = {}

    def open(self, program: Program, emit: Emit) -> list[RayHost]:
        """Creates one host for each set of nodes that share an actor.

        Raises:
            ProgramError: if no machine in the cluster has the resources that a node needs, or if a node cannot be
                pickled.
        """
        self._check(program)
        self.launch: str = f"workbench-{program.name}-{secrets.token_hex(4)}"
        self.emit = emit
        self.services = {
            spec.index: (specs[0].label, spec.label, spec.methods, parallel_calls(spec))
            for specs in program.hosts()
            for spec in specs
            if spec.kind == "service"
        }
        self._endpoints = {}
        return [RayHost(specs, self) for specs in program.hosts()]

    def close(self) -> None:
        """Does nothing, because actors have ended with their nodes."""

    def endpoint(self, spec: NodeSpec) -> RayEndpoint:
        """Returns this process's endpoint of a service."""
        if spec.index not in self._endpoints:
            actor, label, methods, _ = self.services[spec.index]
            self._endpoints[spec.index] = RayEndpoint(self.launch, actor, label, methods)
        return self._endpoints[spec.index]

    @staticmethod
    def names(specs: tuple[NodeSpec, ...]) -> list[str]:
        """Returns the names of all requested resources."""
        return sorted({name for spec in specs for name in spec.resources})

    def _check(self, program: Program) -> None:
        ray = import_module("ray")

        offers = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
        faults = []
        for specs in program.hosts():
            needs = {name: sum(spec.resources.get(name, 0.0) for spec in specs) for name in self.names(specs)}
            if needs and not any(all(offer.get(name, 0) >= need for name, need in needs.items()) for offer in offers):
                faults.append(f"{' and '.join(spec.label for spec in specs)} needs {needs}")
        if faults:
            message = (
                f"`launch` on Ray was given program {program.name!r} with nodes that no machine in the cluster can "
                f"run: {'; '.join(faults)}. An actor runs on one machine: start machines with these resources, request "
                "fewer resources, or do not colocate nodes."
            )
            raise ProgramError(message)
