"""A call queue that sends calls before earlier calls are answered."""

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

_AHEAD_SECONDS = 0.02  # calls that will probably begin within this time are sent in advance
_AHEAD_CALLS = 64
_SOON_SECONDS = 0.01  # time to wait for a group of answers, before waiting for each answer separately
_LOOK_SECONDS = 1.0  # interval of the connection checks


class SendingEndpoint(Endpoint, Protocol):
    """Interface that an engine provides for a pipelined connection."""

    def connected(self) -> bool:
        """Returns whether answers can still arrive."""
        ...

    def known(self) -> bool:
        """Returns whether the service's location is known; if not, `send` looks for it first."""
        ...

    def send(self, method: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """Sends a call and returns its identifier; the service begins it after earlier calls."""
        ...

    def answered(self, calls: Collection[Any], count: int, seconds: float) -> Collection[Any]:
        """Returns answered calls; waits for `count` answers, but at most `seconds`."""
        ...

    def announce(self, call: Value, notify: Callable[[], None]) -> None:
        """Calls `notify` when the call is answered."""
        ...

    def results(self, calls: Sequence[Any]) -> list[Callable[[], Any]]:
        """Returns, for each answered call, a function that returns its result or raises its exception."""
        ...


@dataclass(slots=True, eq=False)
class _Call:
    future: Future[Any]
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sent: object = None  # identifier from the endpoint
    sent_at: float = 0.0
    announced: bool = False  # whether the call returns to the inbox when it is answered


class PipelinedLine(CallQueue):
    """A call queue that pipelines calls to fast services.

    The number of calls in flight is the service's concurrency plus the number of calls that it recently completed in 20
    ms. Sending calls in advance hides the round trip. A fast service therefore never waits for its callers. A slow
    service receives few calls in advance, so most calls can still be cancelled and few are lost in a failure. Fast
    answers are collected in groups, because waking a thread for each answer costs as much as the engine's work.
    """

    def __init__(self, endpoint: SendingEndpoint, parallel: int) -> None:
        self.endpoint: SendingEndpoint = endpoint
        self._parallel = parallel
        self._ahead = 0
        self._answered_at: deque[float] = deque(maxlen=parallel)  # times of the last answers
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # new and answered calls; None: wake up
        self._unsent: deque[_Call] = deque()
        self._under_way: dict[Any, _Call] = {}  # keyed by the endpoint's identifiers
        self._opening = threading.Lock()
        self._open = self._closed = False

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Future[Any]:
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
        """Estimated number of calls that the service has not started."""
        return self._inbox.qsize() + len(self._unsent) + max(0, len(self._under_way) - self._parallel)

    def close(self) -> None:
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
        except Exception as error:  # an error in the engine's library or in `_listen`: no more answers
            self.close()
            for call in self._under_way.values():
                fact = f"the connection to its engine was lost ({error})"
                call.future.set_exception(unreachable(self.endpoint.label, call.method, fact))
            self._under_way.clear()
        while not self._inbox.empty():
            self._take(self._inbox.get())
        self._drop()

    def _drop(self) -> None:
        while self._unsent:
            self._unsent.popleft().future.cancel()

    def _listen(self) -> None:
        """Processes new calls and answers; waits for them if there is no other work."""
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
            message = "the client library of its engine was shut down"
            raise ConnectionError(message)

    def _take(self, call: _Call | None) -> None:
        if call is not None and call.sent is None:
            self._unsent.append(call)
        elif call is not None and call.sent in self._under_way:
            self._settle([call.sent])

    def _may_send(self) -> bool:
        room = len(self._under_way) < self._parallel + self._ahead
        # Finding a restarted service takes time: first settle the calls of the previous instance.
        return bool(self._unsent) and room and not self._closed and (self.endpoint.known() or not self._under_way)

    def _send(self, call: _Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        call.sent_at = time.monotonic()
        try:
            call.sent = self.endpoint.send(call.method, call.args, call.kwargs)
        except Exception as error:  # pickling failed, or the node cannot be reached
            call.future.set_exception(error)
        else:
            self._under_way[call.sent] = call
        finally:
            del call  # an error kept by its caller keeps this frame alive

    def _collect(self) -> None:
        """Settles answered calls; waits briefly for half of the calls that were sent in advance."""
        self._check()
        ahead = len(self._under_way) - self._parallel
        if ahead >= 0:  # otherwise the next call can be sent at any moment
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
        answered = [call for call in answered if call in self._under_way]
        results = self.endpoint.results(answered)
        calls = [self._under_way.pop(call) for call in answered]
        del answered  # an error kept by its caller keeps all these frames alive
        if calls:
            self._note_rate(calls)
        while calls:
            _finish(calls.pop(0), results.pop(0))
        if not self.endpoint.known():  # lost: quick failures do not predict the speed of the next instance
            self._ahead = 0

    def _note_rate(self, calls: list[_Call]) -> None:
        """Estimates the number of calls answered in 20 ms, from calls that began together."""
        now = time.monotonic()
        began = min(call.sent_at for call in calls)
        if len(self._answered_at) == self._parallel:
            began = max(began, self._answered_at[0])
        worked_off = len(calls) + sum(answered_at > began for answered_at in self._answered_at)
        self._ahead = min(_AHEAD_CALLS, int(_AHEAD_SECONDS * worked_off / max(now - began, 1e-6)))
        self._answered_at.extend([now] * len(calls))


def _finish(call: _Call, result: Callable[[], Any]) -> None:
    call.sent, call.args, call.kwargs = (), (), {}  # the callbacks of an announced call refer to it
    try:
        value = result()
    except BaseException as error:  # raised to the waiting caller, as in concurrent.futures
        call.future.set_exception(error)
    else:
        call.future.set_result(value)
    finally:
        del call, result
