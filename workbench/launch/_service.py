"""The server side of calls on every engine: queueing, running and counting."""

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workbench.errors import NodeError, ProgramError
from workbench.launch._context import CURRENT, NodeContext
from workbench.launch._nodes import NodeSpec
from workbench.launch._values import Value

F = TypeVar("F", bound=Callable[..., Any])
_BATCHING = "_workbench_batching"


def batched(*, max_size: int, wait_seconds: float = 0.01) -> Callable[[F], F]:
    """Makes a service's method process many calls together.

    Each caller passes single values and receives a single result. The method receives a list per argument, with one
    entry per call, and returns one result per call in the same order. Batches form only if calls are concurrent, from
    several nodes or through `client.futures`.

    Args:
        max_size: Number of calls at which the batch runs immediately.
        wait_seconds: Time from the first call until a smaller batch runs anyway.

    Raises:
        ProgramError: if `max_size` is below 1 or `wait_seconds` is negative.

    Example:
        >>> class Doubler:
        ...     @batched(max_size=8)
        ...     def double(self, xs): return [2 * x for x in xs]
    """
    if max_size < 1 or wait_seconds < 0:
        message = (
            f"`batched` was given max_size={max_size} and wait_seconds={wait_seconds}. A batch contains at least one "
            "call: `max_size` must be at least 1 and `wait_seconds` at least 0."
        )
        raise ProgramError(message)

    def mark(method: F) -> F:
        setattr(method, _BATCHING, (max_size, wait_seconds))
        return method

    return mark


@functools.lru_cache(256)
def batchings(target: type) -> Mapping[str, tuple[int, float]]:
    """Returns the batch size and waiting time of each `batched` method."""
    members = {name: member for base in reversed(target.__mro__) for name, member in vars(base).items()}
    return {name: getattr(member, _BATCHING) for name, member in members.items() if hasattr(member, _BATCHING)}


def parallel_calls(spec: NodeSpec) -> int:
    """Returns the number of concurrent calls per client, enough for the largest batch."""
    batches = batchings(spec.target) if isinstance(spec.target, type) else {}
    return max([spec.concurrency, *(size for size, _ in batches.values())]) if batches else spec.concurrency


@dataclass(slots=True)
class _Batch:
    calls: list[tuple[tuple[Any, ...], Mapping[str, Any], Future[Any]]] = field(default_factory=list)
    full: threading.Event = field(default_factory=threading.Event)


class _Batcher:
    """Collects calls of one method; the first caller waits for more calls and runs the batch."""

    def __init__(self, label: str, method: str, max_size: int, wait_seconds: float) -> None:
        self._label, self._method = label, method
        self._max_size, self._wait_seconds = max_size, wait_seconds
        self._lock = threading.Lock()
        self._gathering: _Batch | None = None
        self._open: list[_Batch] = []

    def call(self, execute: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        future: Future[Any] = Future()
        with self._lock:
            leads = self._gathering is None
            if self._gathering is None:
                self._gathering = _Batch()
                self._open.append(self._gathering)
            batch = self._gathering
            batch.calls.append((args, kwargs, future))
            if len(batch.calls) == self._max_size:
                self._gathering = None
                batch.full.set()
        if leads:
            self._lead(batch, execute)
        return future.result()

    def close(self, error: Exception) -> None:
        """Fails all waiting calls."""
        with self._lock:
            waiting, self._gathering = list(self._open), None
        for batch in waiting:
            batch.full.set()
            _settle(batch, error=error)

    def waiting(self) -> int:
        with self._lock:
            return len(self._gathering.calls) if self._gathering else 0

    def _lead(self, batch: _Batch, execute: Callable[..., Any]) -> None:
        batch.full.wait(self._wait_seconds)
        with self._lock:
            if self._gathering is batch:
                self._gathering = None
        try:
            columns = self._columns(batch)
            results = execute(self._method, columns[0], columns[1], calls=len(batch.calls))
            _settle(batch, results=self._checked(results, len(batch.calls)))
        except Exception as error:  # raised in every caller of the batch
            _settle(batch, error=error)
        finally:
            with self._lock:
                self._open.remove(batch)

    def _columns(self, batch: _Batch) -> tuple[tuple[list[Any], ...], dict[str, list[Any]]]:
        shapes = {(len(args), tuple(sorted(kwargs))) for args, kwargs, _ in batch.calls}
        if len(shapes) > 1:
            forms = ", ".join(f"{count} positional and keywords {list(names)}" for count, names in sorted(shapes))
            message = (
                f"The batched method `{self._method}` of {self._label!r} received calls with different arguments in "
                f"one batch: {forms}. A batch has one list per argument, so all callers must pass the same arguments."
            )
            raise NodeError(message, stage=self._label)
        first_args, first_kwargs, _ = batch.calls[0]
        args = tuple([call[0][i] for call in batch.calls] for i in range(len(first_args)))
        return args, {name: [call[1][name] for call in batch.calls] for name in first_kwargs}

    def _checked(self, results: Value, calls: int) -> Sequence[Any]:
        if hasattr(results, "__len__") and len(results) == calls:
            return results
        kind = f"an object of type {type(results).__name__}"
        returned = f"{len(results)} results" if hasattr(results, "__len__") else kind
        message = (
            f"The batched method `{self._method}` of {self._label!r} returned {returned} for a batch of {calls} calls. "
            "Each caller gets its own result: return a list with one entry per call, in the order of the arguments."
        )
        raise NodeError(message, stage=self._label)


class Service:
    """Limits concurrent calls to `concurrency`, and counts calls."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.label = spec.label
        self.methods = spec.methods
        self._lock = threading.RLock()
        self._may_start = threading.Condition(self._lock)  # for waiting callers
        self._gate = threading.Lock()  # held until the service is closed: for the node's own thread
        self._gate.acquire()
        self._instance: object = None
        self._context: NodeContext | None = None
        self._closed: str | None = None
        self._waiting = 0
        self._active: dict[int, tuple[str, float]] = {}  # thread → method and start time
        self._calls = self._errors = 0
        self._batchers = {
            name: _Batcher(spec.label, name, size, patience)
            for name, (size, patience) in batchings(spec.target).items()
        }

    def open(self, instance: object, context: NodeContext) -> None:
        """Starts answering with `instance`; resets the counters after a restart."""
        with self._lock:
            self._instance, self._context = None if self._closed else instance, context
            self._calls = self._errors = 0
            self._active.clear()
            self._may_start.notify_all()

    def pause(self) -> None:
        """Makes callers wait until the next `open`, during a restart of the node."""
        with self._lock:
            self._instance = None

    def close(self, reason: str) -> None:
        """Rejects waiting and new calls."""
        with self._lock:
            if self._closed is None:
                self._gate.release()
            self._instance, self._closed = None, reason
            self._may_start.notify_all()
        for batcher in self._batchers.values():
            batcher.close(self._gone("?"))

    def wait_until_closed(self) -> None:
        """Returns after `close`."""
        with self._gate:
            pass

    def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Runs one method after earlier calls; its exception goes to the caller, not the node."""
        batcher = self._batchers.get(method)
        if batcher is not None:
            return batcher.call(self._execute, args, kwargs)
        return self._execute(method, args, kwargs)

    def tally(self) -> dict[str, Any]:
        """Counts answered, failed, running and waiting calls, and the age of the oldest call."""
        now = time.monotonic()
        with self._lock:
            oldest = min((began for _, began in self._active.values()), default=now)
            return {
                "calls": self._calls,
                "call_errors": self._errors,
                "active_calls": len(self._active),
                "queue_length": self._waiting + sum(batcher.waiting() for batcher in self._batchers.values()),
                "oldest_call_seconds": now - oldest,
            }

    def threads(self) -> list[int]:
        """Returns the threads that currently run calls."""
        with self._lock:
            return list(self._active)

    def _execute(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, calls: int = 1) -> object:
        me = threading.get_ident()
        with self._lock:
            outer = self._active.get(me)  # a service that calls itself keeps its slot instead of waiting for another
            if outer is None and not self._free():
                self._wait()
            instance, context = self._instance, self._context
            if instance is None or context is None:
                raise self._gone(method)
            self._active[me] = (method, time.monotonic())
        token = CURRENT.set(context)
        failed = 1
        try:
            result = getattr(instance, method)(*args, **kwargs)
            failed = 0
        finally:
            CURRENT.reset(token)
            context.last_beat = time.monotonic()
            with self._lock:
                if context is self._context:  # otherwise the node has restarted, with new counters
                    self._leave(me, outer, calls, failed)
        return result

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._may_start.wait_for(self._free)
        finally:
            self._waiting -= 1

    def _free(self) -> bool:
        ready = self._instance is not None and len(self._active) < self.spec.concurrency
        return ready or self._closed is not None

    def _leave(self, me: int, outer: tuple[str, float] | None, calls: int, failed: int) -> None:
        if outer is None:
            self._active.pop(me, None)
        else:
            self._active[me] = outer
        self._calls += calls
        self._errors += failed
        if self._waiting:
            self._may_start.notify()

    def _gone(self, method: str) -> NodeError:
        message = (
            f"The call `{method}` could not reach node {self.label!r} of program {self.spec.program!r}: "
            f"{self._closed or 'it has not started'}. A node answers only while it runs: see `Launched.state()` for "
            "what happened, or give the node a `Restart`."
        )
        return NodeError(message, stage=self.label)


def _settle(batch: _Batch, *, results: Sequence[Any] = (), error: Exception | None = None) -> None:
    for position, (_, _, future) in enumerate(batch.calls):
        try:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(results[position])
        except InvalidStateError:  # closed while the batch was running
            continue
