"""A caller's end that sends calls before earlier ones were answered."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.launch._client import CallQueue, Endpoint, not_sent
from workbench.launch._remote import unreachable
from workbench.launch._values import Value

_AHEAD_SECONDS = 0.02  # a call is sent ahead if it will probably begin within so long
_AHEAD_CALLS = 64
_SOON_SECONDS = 0.01  # how long answers are waited for together, before each is waited for by itself
_LOOK_SECONDS = 1.0  # how often to see whether the engine is still there


class SendingEndpoint(Endpoint, Protocol):
    """Interface of an engine for a pipelined connection."""

    def connected(self) -> bool:
        """Returns whether answers can still come."""
        ...

    def known(self) -> bool:
        """Returns whether a call can be sent at once; else `send` looks for the service first."""
        ...

    def send(self, method: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """Sends a call, which the service begins after those sent before, and returns what stands for its answer."""
        ...

    def answered(self, sent: Collection[Any], count: int, seconds: float) -> Collection[Any]:
        """Those that were answered, as soon as `count` were or `seconds` are over."""
        ...

    def announce(self, sent: Value, notify: Callable[[], None]) -> None:
        """Calls `notify` once this one is answered."""
        ...

    def results(self, sent: Sequence[Any]) -> list[Callable[[], Any]]:
        """For each of those that were answered what returns its result, or raises what it raised."""
        ...


@dataclass(slots=True, eq=False)
class _Call:
    future: Future[Any]
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sent: object = None  # what the endpoint returned
    sent_at: float = 0.0
    announced: bool = False  # whether it comes back into the inbox when it is answered


class PipelinedLine(CallQueue):
    """A line that does not wait for an answer before it sends the next call, where answers come fast.

    As many calls are under way as the service lets in at once, and beyond those as many as it worked off lately in
    20 ms, which hides the way there and back. So a fast service never waits for its callers, and a slow one holds few
    calls that could be cancelled otherwise, or would be lost with it. Answers that come fast are collected together:
    to wake a thread for each costs as much as the engine does.
    """

    def __init__(self, endpoint: SendingEndpoint, parallel: int) -> None:
        self.endpoint: SendingEndpoint = endpoint
        self._parallel = parallel
        self._ahead = 0
        self._answered_at: deque[float] = deque(maxlen=parallel)  # of the last answers
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # new calls, answered ones; None: look up
        self._unsent: deque[_Call] = deque()
        self._under_way: dict[Any, _Call] = {}  # by what the endpoint returned
        self._opening = threading.Lock()
        self._open = self._closed = False

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Future[Any]:
        """Queues a call."""
        call = _Call(Future(), method, args, kwargs)
        with self._opening:
            if self._closed:
                raise not_sent(self.endpoint.label, method)
            self._inbox.put(call)
            if not self._open:
                self._open = True
                threading.Thread(target=self._work, name=f"calls of {self.endpoint.label}", daemon=True).start()
        return call.future

    def queued(self) -> int:
        """Number of calls that the service has not started, as far as this end knows."""
        return self._inbox.qsize() + len(self._unsent) + max(0, len(self._under_way) - self._parallel)

    def close(self) -> None:
        """Drops calls that wait."""
        with self._opening:
            self._closed = True
        self._inbox.put(None)

    def _work(self) -> None:
        try:
            while self._under_way or not self._closed:
                self._listen()
                if self._closed:
                    self._drop()
                while self._may_send():
                    self._send(self._unsent.popleft())
                if self._under_way:
                    self._collect()
        except Exception as error:  # of the engine's library, or `_listen`: nobody will answer
            self.close()
            for call in self._under_way.values():
                fact = f"the connection to its engine is gone ({error})"
                call.future.set_exception(unreachable(self.endpoint.label, call.method, fact))
            self._under_way.clear()
        while not self._inbox.empty():
            self._take(self._inbox.get())
        self._drop()

    def _drop(self) -> None:
        while self._unsent:
            self._unsent.popleft().future.cancel()

    def _listen(self) -> None:
        """Takes what came; waits for it where nothing else is to be done."""
        if not self._may_send() and all(call.announced for call in self._under_way.values()):
            self._wait()
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _wait(self) -> None:
        while True:
            try:
                self._take(self._inbox.get(timeout=_LOOK_SECONDS if self._under_way else None))
            except queue.Empty:
                self._check()
            else:
                return

    def _check(self) -> None:
        if not self.endpoint.connected():
            message = "its library was shut down"
            raise ConnectionError(message)

    def _take(self, call: _Call | None) -> None:
        if call is not None and call.sent is None:
            self._unsent.append(call)
        elif call is not None and call.sent in self._under_way:
            self._settle([call.sent])

    def _may_send(self) -> bool:
        room = len(self._under_way) < self._parallel + self._ahead
        # To look for a service that restarts takes long: first settle what the last one left.
        return bool(self._unsent) and room and not self._closed and (self.endpoint.known() or not self._under_way)

    def _send(self, call: _Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        call.sent_at = time.monotonic()
        try:
            call.sent = self.endpoint.send(call.method, call.args, call.kwargs)
        except Exception as error:  # whatever pickling raises, or the node cannot be reached
            call.future.set_exception(error)
        else:
            self._under_way[call.sent] = call
        finally:
            del call  # an error that its caller keeps, keeps this frame

    def _collect(self) -> None:
        """Settles calls that were answered; waits a little for half of those that were sent ahead."""
        self._check()
        ahead = len(self._under_way) - self._parallel
        if ahead >= 0:  # else the next call can be sent at any moment
            self._settle(self.endpoint.answered(self._under_way.keys(), 1 + ahead // 2, _SOON_SECONDS))
            if len(self._under_way) < ahead + self._parallel:
                return
        for call in self._under_way.values():
            if not call.announced:
                call.announced = True
                self._announce(call)

    def _announce(self, call: _Call) -> None:
        self.endpoint.announce(call.sent, lambda: self._inbox.put(call))

    def _settle(self, answered: Collection[Any]) -> None:
        answered = [sent for sent in answered if sent in self._under_way]
        results = self.endpoint.results(answered)
        calls = [self._under_way.pop(sent) for sent in answered]
        del answered  # an error that its caller keeps, keeps all these frames
        if calls:
            self._note_rate(calls)
        while calls:
            _finish(calls.pop(0), results.pop(0))
        if not self.endpoint.known():  # lost: failures that come fast say nothing of the next one
            self._ahead = 0

    def _note_rate(self, calls: list[_Call]) -> None:
        """Estimates the calls that a service answers in 20 ms, from answers to calls that began together."""
        now = time.monotonic()
        began = min(call.sent_at for call in calls)
        if len(self._answered_at) == self._parallel:
            began = max(began, self._answered_at[0])
        worked_off = len(calls) + sum(answered_at > began for answered_at in self._answered_at)
        self._ahead = min(_AHEAD_CALLS, int(_AHEAD_SECONDS * worked_off / max(now - began, 1e-6)))
        self._answered_at.extend([now] * len(calls))


def _finish(call: _Call, result: Callable[[], Any]) -> None:
    call.sent, call.args, call.kwargs = (), (), {}  # where it was announced, it is known to what was sent
    try:
        value = result()
    except BaseException as error:  # handed to whoever waits, as in concurrent.futures
        call.future.set_exception(error)
    else:
        call.future.set_result(value)
    finally:
        del call, result
