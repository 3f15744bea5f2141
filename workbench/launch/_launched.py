"""Launched programs: monitoring, restarts, reports, waiting and stopping."""

import asyncio
import atexit
import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Generator
from typing import Any, Literal, Self

from workbench import render
from workbench.errors import ProgramError
from workbench.launch._client import CallQueue, Client
from workbench.launch._engine import Host, LaunchEngine
from workbench.launch._failures import failure_error, with_source_lines
from workbench.launch._life import NodeLife
from workbench.launch._nodes import Handle
from workbench.launch._output import Echo
from workbench.launch._processes import exit_text
from workbench.launch._program import Program
from workbench.launch._runner import Emit
from workbench.launch._threads import ThreadHost
from workbench.launch._values import Value
from workbench.records.launch import LaunchedRecord, LaunchStatus, LiveProgram, NodeStateName, NodeStateRecord
from workbench.render import display_object

_TICK_SECONDS = 0.25
_LOG = logging.getLogger("workbench.launch")
_RUNNING: "weakref.WeakSet[Launched]" = weakref.WeakSet()
_DROPPED: "queue.SimpleQueue[Launched]" = queue.SimpleQueue()  # the garbage collector may put objects here
_ENDING = threading.Lock()  # held once the thread that ends dropped programs has started


class Launched(LiveProgram):
    """A running program, as returned by `launch`.

    The program stops at the end of a `with` block, or when this object and all its clients are garbage-collected. In a
    notebook, wait for the end of the program with `await`.

    Example:
        >>> from workbench.launch import Program, PyNode, launch
        >>> program = Program("one")
        >>> _ = program.add_node(PyNode(lambda: None))
        >>> with launch(program) as launched:
        ...     print(launched.wait(), launched.state()[0].state)
        {'main/0': 0} finished
    """

    def __init__(
        self, program: Program, engine: LaunchEngine, on_failure: Literal["stop", "continue"], *, echo: bool = False
    ) -> None:
        self.program = program
        self.engine: str = engine.name
        self._engine = engine
        self._on_failure = on_failure
        self._events: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()
        self._changed = threading.Condition(threading.RLock())
        self._stopping = self._stopped = False
        self._began_at, self._ended_at = time.monotonic(), None
        self._due: list[tuple[float, Host]] = []
        self._rated_at = time.monotonic()
        self._lines: dict[str, CallQueue] = {}
        self._watching = threading.Lock()  # held once the watching thread has started
        self._watcher: threading.Thread | None = None
        self._over = threading.Event()  # for the watching thread, which has no strong reference to this object
        # The threads must not keep alive an object that its user has dropped.
        self._reference: list[weakref.ref[Launched]] = [weakref.ref(self)]
        self._hosts = engine.open(program, _teller(self._reference, self._events))
        self._nodes = {spec.label: NodeLife(spec, host) for host in self._hosts for spec in host.specs}
        _RUNNING.add(self)
        if _ENDING.acquire(blocking=False):
            threading.Thread(target=_end_dropped, name="end dropped programs", daemon=True).start()
        silent = [host for host in self._hosts if echo and not isinstance(host, ThreadHost)]
        self._echo = Echo(silent) if silent else None
        for host in self._hosts:
            if echo and isinstance(host, ThreadHost):
                host.echo()
            self._start(host, 0)
        if any(spec.hang_seconds is not None for spec in program.specs):
            self._begin_to_watch()

    def client(self, handle: Handle) -> Client:
        """Returns a client for calling a service node from this process.

        `client.method(...)` calls a method, `client.futures.method(...)` returns a future immediately, and
        `client.within(2.0).method(...)` waits at most 2 seconds.

        Raises:
            ProgramError: if the node belongs to another program or is not a service.
        """
        life = self._nodes.get(handle.label)
        if handle.program != self.program.name or life is None or life.spec.kind != "service":
            callable_nodes = ", ".join(label for label, node in self._nodes.items() if node.spec.kind == "service")
            message = (
                f"`Launched.client` of {self.program.name!r} was given the handle of {handle.label!r} of "
                f"{handle.program!r}. Only this program's service nodes can be called: {callable_nodes or 'none'}. "
                "Pass the handle that `add_node(ServiceNode(...))` returned."
            )
            raise ProgramError(message)
        with self._changed:
            line = self._lines.get(handle.label)
            if line is None:
                line = self._lines[handle.label] = life.host.line(handle.label)
        return Client(line, keeps=self)

    def wait(self, timeout_seconds: float | None = None) -> dict[str, int | None]:
        """Waits until all nodes with their own work have ended; services answer until `stop`.

        Args:
            timeout_seconds: Maximum time to wait; after this time, the method returns without an error.

        Returns:
            The exit code of each node: 0 if it finished, 1 if it raised, -9 if it was killed by signal 9, or None while
            it runs.

        Raises:
            NodeError: if a node failed permanently; the error lists all such nodes with tracebacks.
        """
        self._begin_to_watch()
        with self._changed:
            self._changed.wait_for(self._settled, timeout_seconds)
            failed = self.failures
        if self._echo is not None:
            self._echo.show()
        if failed:
            states = {label: self._nodes[label].state for label in failed}
            raise failure_error(self.program.name, self.engine, failed, states, self._on_failure)
        return self.exit_codes

    def __await__(self) -> Generator[Any, None, dict[str, int | None]]:
        """Waits like `wait()`, but keeps the notebook's kernel and views responsive."""
        while not self._settled():
            yield from asyncio.sleep(_TICK_SECONDS).__await__()
        return self.wait()

    def stop(self, grace_seconds: float = 5.0) -> dict[str, int | None]:
        """Asks all nodes to stop, closes services, and kills nodes that still run after `grace_seconds`.

        Returns:
            The exit code of each node, or None for a thread that did not end. Such a thread continues until the
            kernel exits.
        """
        with self._changed:
            first, self._stopping = not self._stopping, True
            self._due.clear()
        if first:
            try:
                self._stop(grace_seconds)
            except BaseException:  # Ctrl-C: the next call stops the remaining nodes instead of waiting for this call
                self._stopping = False
                raise
            if self._echo is not None:
                self._echo.end()
        else:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, 2 * grace_seconds + 5.0)
        return self.exit_codes

    def state(self) -> tuple[NodeStateRecord, ...]:
        """Returns the current state of each node."""
        self._begin_to_watch()  # for the rates
        return tuple(self._state_of(label, life) for label, life in self._nodes.items())

    @property
    def status(self) -> LaunchStatus:
        """The state of the program: "running" while a node runs and `stop` has not been called."""
        if self._stopping and not self._stopped:
            return "stopping"
        if self.alive:
            return "running"
        return "failed" if self.failures else "stopped" if self._stopping else "finished"

    @property
    def record(self) -> LaunchedRecord:
        """The graph and current node states as plain data, for `workbench.show`."""
        return LaunchedRecord(
            graph=self.program.graph(),
            engine=self.engine,
            status=self.status,
            elapsed_seconds=(self._ended_at or time.monotonic()) - self._began_at,
            states=self.state(),
        )

    def logs(self, node: Handle | str) -> tuple[str, ...]:
        """Returns a node's log, including printed lines."""
        label = node if isinstance(node, str) else node.label
        if label not in self._nodes:
            message = (
                f"`Launched.logs` of {self.program.name!r} was given {label!r}. Nodes are named by their group and "
                f"number: use one of {', '.join(self._nodes)}."
            )
            raise ProgramError(message)
        return self._nodes[label].host.log_lines(label)

    def kill(self, node: Handle | str) -> None:
        """Kills a node's process to simulate a crash; the node's restart policy applies."""
        label = node if isinstance(node, str) else node.label
        self._nodes[label].host.kill()

    def kill_now(self) -> None:
        """Kills all processes of the program without asking them to stop."""
        if self._stopped:
            return
        self._stopping = True
        for host in self._hosts:
            host.kill()

    @property
    def exit_codes(self) -> dict[str, int | None]:
        """Exit codes: 0 if finished or stopped, 1 if raised, -9 if killed by signal 9, or None while running."""
        return {label: life.exit_code for label, life in self._nodes.items()}

    @property
    def failures(self) -> dict[str, str]:
        """Traceback or reason for each permanently failed node, keyed by label."""
        return {
            label: life.error or life.state
            for label, life in self._nodes.items()
            if life.state in ("raised", "killed", "hung") and not self._restarting(life.host)
        }

    @property
    def alive(self) -> bool:
        """True if any part of the program is still running."""
        return not self._stopped and not all(host.ended() for host in self._hosts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_hosts", ()) and not self._stopped:
            self._reference[0] = weakref.ref(self)  # garbage collection of a cycle has cleared it
            _DROPPED.put(self)  # revives the object until another thread has stopped it

    def __repr__(self) -> str:
        states = [life.state for life in self._nodes.values()]
        counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"<{self.program.name} on {self.engine}: {counted}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        record = self.record
        picture = render.svg(record.graph, states=record.states)
        return display_object("Launched", f"{render.describe(record)} {render.describe(record.graph)}", picture=picture)

    def _notify(self, label: str, event: str, detail: str | int | None) -> None:
        if event in ("running", "serving"):  # no decision to make: the first answer must not wait for another thread
            with self._changed:
                self._nodes[label].state = event
                self._changed.notify_all()
        else:
            self._events.put((label, event, detail))
            self._begin_to_watch()

    def _begin_to_watch(self) -> None:
        if not self._over.is_set() and self._watching.acquire(blocking=False):
            arguments = (self._reference, self._events, self._over)
            watcher = threading.Thread(target=_watch, args=arguments, name=f"watch {self.program.name}", daemon=True)
            watcher.start()
            self._watcher = watcher

    def _start(self, host: Host, attempt: int) -> None:
        for spec in host.specs:
            life = self._nodes[spec.label]
            life.state, life.exit_code = "starting", None
            life.seen.clear()
        host.start(attempt)

    def _settled(self) -> bool:
        if self._stopped:
            return True
        if self._stopping or (self.failures and self._on_failure == "stop"):
            return False
        working = [life for life in self._nodes.values() if life.spec.runs or life.host.ended()]
        return all(life.state in ("finished", "stopped", "raised", "killed", "hung") for life in working) and not any(
            self._restarting(life.host) for life in working
        )

    def _restarting(self, host: Host) -> bool:
        return any(waiting is host for _, waiting in self._due)

    def _look_after(self, event: tuple[str, str, Any] | None) -> None:
        if event is not None:
            with self._changed:
                self._take(*event)
                self._changed.notify_all()
        with self._changed:
            self._look_for_hung()
            self._restart_due()
            self._note_rates()

    def _take(self, label: str, event: str, detail: Value) -> None:
        life = self._nodes[label]
        if event in ("running", "serving"):
            life.state = event
        elif event == "stop_program":
            threading.Thread(target=self.stop, name=f"stop {self.program.name}", daemon=True).start()
        elif event == "stopped" or (event == "finished" and detail == 0):
            life.state, life.exit_code = event, 0
        elif event == "finished":
            self._down(life, "raised", f"The node exited with code {detail}.", detail)
        elif event == "raised":
            self._down(life, "raised", with_source_lines(detail), 1)
        elif event == "killed":
            self._down(life, "killed", detail, None)
        elif event == "exited":
            self._exited(life.host, detail)

    def _exited(self, host: Host, code: int) -> None:
        lives = [self._nodes[spec.label] for spec in host.specs]
        culprit = next((life for life in lives if life.state in ("raised", "hung", "killed")), None)
        for life in lives:
            if life.state in ("raised", "hung", "killed"):
                life.exit_code = code
            elif self._stopping and life.state not in ("finished", "stopped"):
                life.state, life.exit_code = "stopped", code
            elif culprit is not None and life.state not in ("finished", "stopped", "restarting"):
                life.state, life.exit_code = "stopped", code
                life.error = f"Its process ended because {culprit.spec.label} did."
            elif culprit is None and life.state not in ("finished", "stopped"):
                culprit = life
                self._down(life, "killed", f"The process of {life.spec.label!r} {exit_text(code)}.", code)

    def _down(self, life: NodeLife, state: NodeStateName, error: str, code: int | None) -> None:
        if self._restarting(life.host) and life.state in ("raised", "killed", "hung"):
            return
        life.state, life.error, life.exit_code = state, error, code
        if self._stopping:
            return
        policy = life.spec.restart
        if state in policy.causes and life.restarts < policy.limit:
            life.restarts += 1
            _LOG.warning(
                "%s: node %s %s; restart %d of at most %d in %.1f s",
                self.program.name,
                life.spec.label,
                "was killed" if state == "killed" else state,
                life.restarts,
                policy.limit,
                policy.delay_seconds,
            )
            self._due.append((time.monotonic() + policy.delay_seconds, life.host))
            return
        reason = f"it {'was killed' if state == 'killed' else state}: {error.strip().splitlines()[-1] if error else ''}"
        _LOG.error("%s: node %s is lost: %s", self.program.name, life.spec.label, reason)
        life.host.close(reason)
        if hasattr(life.host, "failed"):
            life.host.failed(reason)  # pyright: ignore[reportAttributeAccessIssue]
        for host in self._hosts:
            if host is not life.host:
                host.report_failed(life.spec.label, reason)
        if self._on_failure == "stop":
            threading.Thread(target=self.stop, name=f"stop {self.program.name}", daemon=True).start()

    def _look_for_hung(self) -> None:
        for host in self._hosts if not self._stopping else ():
            if host.ended() or self._restarting(host):
                continue
            for label, seconds, stack in host.hung():
                life = self._nodes[label]
                if life.state in ("starting", "running", "serving"):
                    error = f"No heartbeat for {seconds:.1f} s (hang_seconds={life.spec.hang_seconds}). Its stack:\n"
                    self._down(life, "hung", error + with_source_lines(stack), None)
                    host.kill()

    def _restart_due(self) -> None:
        now = time.monotonic()
        ready = [entry for entry in self._due if entry[0] <= now and entry[1].ended()]
        # Receive the end of this attempt before the next attempt starts, so that the two are not confused.
        while ready and not self._events.empty():
            self._take(*self._events.get_nowait())
        for entry in ready:
            self._due.remove(entry)
            attempt = max(self._nodes[spec.label].restarts for spec in entry[1].specs)
            self._start(entry[1], attempt)

    def _note_rates(self) -> None:
        now = time.monotonic()
        if now - self._rated_at < 2 * _TICK_SECONDS:
            return
        self._rated_at = now
        for life in self._nodes.values():
            life.note(now)

    def _stop(self, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        for host in self._hosts:
            host.request_stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._at_work(), grace_seconds)
        for host in self._hosts:
            host.close("the program has stopped")
        with self._changed:
            self._changed.wait_for(self._all_ended, max(deadline - time.monotonic(), 0.5))
        hosts = [host for host in self._hosts if not host.ended()]
        for host in hosts:
            host.kill()
        with self._changed:
            if hosts and self._engine.kills:  # abandoned nodes send no events
                self._changed.wait_for(self._all_ended, 5.0)
            for life in self._nodes.values():
                if life.exit_code is None and life.state not in ("hung", "killed", "waiting"):
                    life.state, life.error = "hung", f"The node did not end within {grace_seconds} s after `stop`."
            for line in self._lines.values():
                line.close()
            self._engine.close()
            self._stopped, self._ended_at = True, time.monotonic()
            self._over.set()
            self._changed.notify_all()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._events.put(("", "", None))  # wakes it
            self._watcher.join(1.0)

    def _at_work(self) -> bool:
        return any(life.spec.runs and life.state in ("starting", "running") for life in self._nodes.values())

    def _all_ended(self) -> bool:
        # If the engine cannot kill nodes, a node on a lost worker has no exit code.
        codeless = {"hung"} if self._engine.kills else {"hung", "killed"}
        return all(
            life.host.ended() and (life.exit_code is not None or life.state in codeless)
            for life in self._nodes.values()
        )

    def _state_of(self, label: str, life: NodeLife) -> NodeStateRecord:
        snapshot = life.host.snapshot(label)
        cpu_seconds = snapshot.pop("cpu_seconds", None)
        with self._changed:
            calls_per_second, cpu_cores = life.rates(cpu_seconds is not None)
            line = self._lines.get(label)
            snapshot["queue_length"] = snapshot.get("queue_length", 0) + (line.queued() if line is not None else 0)
            return NodeStateRecord(
                label=label,
                state="restarting" if self._restarting(life.host) else life.state,
                calls_per_second=calls_per_second,
                cpu_cores=cpu_cores,
                restarts=life.restarts,
                exit_code=life.exit_code,
                error=life.error,
                **snapshot,
            )


def _teller(reference: "list[weakref.ref[Launched]]", events: "queue.SimpleQueue[Any]") -> Emit:
    def report(label: str, event: str, detail: str | int | None) -> None:
        launched = reference[0]()
        if launched is None:
            events.put((label, event, detail))
        else:
            launched._notify(label, event, detail)

    return report


def _watch(reference: "list[weakref.ref[Launched]]", events: "queue.SimpleQueue[Any]", over: threading.Event) -> None:
    while not over.is_set():
        event = None
        with contextlib.suppress(queue.Empty):
            event = events.get(timeout=_TICK_SECONDS)
        launched = reference[0]()
        if launched is None:  # dropped; another thread stops it
            time.sleep(0.01)
            if event is not None:
                events.put(event)
            continue
        if over.is_set():
            return
        launched._look_after(event)
        del launched


def _end_dropped() -> None:
    while True:
        launched = _DROPPED.get()
        _RUNNING.add(launched)
        if launched.alive:
            _LOG.warning(
                "%s: the launched program and its clients are no longer referenced, so it is stopped. Keep the "
                "result of `launch`, or use `with launch(...)`.",
                launched.program.name,
            )
        launched._stopping = False  # a running `stop` would hold a reference, so none is running
        threading.Thread(target=launched.stop, name=f"stop {launched.program.name}", daemon=True).start()
        del launched


def _kill_all() -> None:
    # multiprocessing would send SIGTERM and wait, and JAX's preemption notifier catches SIGTERM.
    for launched in list(_RUNNING):
        with contextlib.suppress(Exception):  # at exit nobody reads errors, and the other programs must still end
            launched.kill_now()


atexit.register(_kill_all)
