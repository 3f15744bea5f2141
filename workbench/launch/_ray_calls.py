"""Calls of services in Ray actors: one at a time, or many sent ahead of their answers."""

import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from workbench.launch._client import Line, not_sent
from workbench.launch._pickling import pickled
from workbench.launch._remote import CONNECT_SECONDS, unpacked, unreachable

_AHEAD_SECONDS = 0.02  # a call is sent ahead if it will probably begin within so long
_AHEAD_CALLS = 64
_SOON_SECONDS = 0.005  # how long answers are waited for together, before each is waited for by itself


class _Place:
    """An actor, and the ways to ask it: Ray makes a new class at each `options`."""

    def __init__(self, actor: Any, label: str) -> None:
        self.identity = hash(actor)
        self.ask: Callable[[str, bytes], Any] = actor.ask.options(concurrency_group="direct").remote
        # This group has as many threads as the service lets in, so that calls begin in the order sent.
        self.ask_in_order: Callable[[str, bytes], Any] = actor.ask.options(concurrency_group=label).remote


class RayEndpoint:
    """Calls a service in an actor, wherever it lives now."""

    def __init__(self, launch: str, actor: str, label: str, methods: tuple[str, ...]) -> None:
        self.label = label
        self.methods = methods
        self.gone: str | None = None
        self._launch, self._name = launch, actor
        self._place: _Place | None = None
        self._dead: int | None = None  # whose name Ray may not have forgotten yet

    def call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls `method` and waits for its answer."""
        payload = pickled((method, args, kwargs))
        place = self._found(method)
        answer = place.ask(self.label, payload)
        return self.opened(method, place, lambda: import_module("ray").get(answer))

    def send(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[_Place, Any]:
        """Calls `method`, and returns who was asked and Ray's reference of the answer."""
        payload = pickled((method, args, kwargs))
        place = self._found(method)
        return place, place.ask_in_order(self.label, payload)

    def opened(self, method: str, place: _Place, answer: Callable[[], bytes]) -> Any:
        """Gives the result in an answer, or raises what was raised."""
        ray = import_module("ray")

        try:
            return unpacked(answer())
        except ray.exceptions.RayActorError as error:
            if self._place is place:
                self._place = None
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._dead = place.identity
            fact = self.gone or f"its actor ended while it worked on the call, which may have had an effect ({error})"
            raise unreachable(self.label, method, fact) from error

    def known(self) -> bool:
        """Whether a call can be sent at once."""
        return self._place is not None

    def forget(self) -> None:
        """Looks for the actor anew at the next call."""
        self._place = None

    def _found(self, method: str) -> _Place:
        ray = import_module("ray")

        deadline = time.monotonic() + CONNECT_SECONDS
        while time.monotonic() < deadline:
            if self.gone is not None:
                raise unreachable(self.label, method, self.gone)
            place = self._place
            if place is not None:
                return place
            try:
                actor = ray.get_actor(self._name, namespace=self._launch)
            except ValueError:  # not there yet, or not there again
                actor = None
            if actor is not None and hash(actor) != self._dead:
                self._place = place = _Place(actor, self.label)
                return place
            time.sleep(0.02)
        raise unreachable(self.label, method, f"it did not start within {CONNECT_SECONDS:.0f} s")


@dataclass(slots=True, eq=False)
class _Call:
    future: Future[Any]
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: Any = None
    reference: Any = None  # Ray's, once it is sent
    sent_at: float = 0.0
    announced: bool = False  # whether it comes back into the inbox when it is answered


class RayLine(Line):
    """A line that sends calls before earlier ones were answered, where answers come fast.

    As many calls are under way as the service lets in at once, and beyond those as many as it worked off lately in
    20 ms, which hides the way there and back. So a fast service never waits for its callers, and a slow one holds few
    calls that could be cancelled otherwise, or would be lost with it. Answers that come fast are collected together:
    on one machine, waking a thread for each costs as much as Ray does.
    """

    def __init__(self, endpoint: RayEndpoint, parallel: int) -> None:
        self.endpoint: RayEndpoint = endpoint
        self._parallel = parallel
        self._ahead = 0
        self._answered_at = 0.0
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # new calls, answered ones; None: look up
        self._unsent: deque[_Call] = deque()
        self._under_way: dict[Any, _Call] = {}  # by reference
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
        """How many calls the service does not work on yet, as far as this end knows."""
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
                while self._may_send():
                    self._send(self._unsent.popleft())
                if self._under_way:
                    self._collect()
        except Exception as error:  # Ray was shut down: nobody will answer
            self.close()
            for call in self._under_way.values():
                call.future.set_exception(unreachable(self.endpoint.label, call.method, f"Ray is gone ({error})"))
        while not self._inbox.empty():
            self._take(self._inbox.get())
        for call in self._unsent:
            call.future.cancel()

    def _listen(self) -> None:
        """Takes what came; waits for it where nothing else is to be done."""
        if not self._may_send() and all(call.announced for call in self._under_way.values()):
            self._take(self._inbox.get())
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, call: _Call | None) -> None:
        if call is not None and call.reference is None:
            self._unsent.append(call)
        elif call is not None and call.reference in self._under_way:
            self._settle([call.reference])

    def _may_send(self) -> bool:
        room = len(self._under_way) < self._parallel + self._ahead
        # To look for an actor that is restarted takes long: first settle what the last one left.
        return bool(self._unsent) and room and not self._closed and (self.endpoint.known() or not self._under_way)

    def _send(self, call: _Call) -> None:
        if not call.future.set_running_or_notify_cancel():
            return
        call.sent_at = time.monotonic()
        try:
            call.place, call.reference = self.endpoint.send(call.method, call.args, call.kwargs)
        except Exception as error:  # whatever pickling raises, or the node cannot be reached
            call.future.set_exception(error)
        else:
            self._under_way[call.reference] = call

    def _collect(self) -> None:
        """Settles calls that were answered; waits a little for half of those that were sent ahead."""
        ray = import_module("ray")

        wanted = 1 + max(0, len(self._under_way) - self._parallel) // 2
        answered, late = ray.wait(list(self._under_way), num_returns=wanted, timeout=_SOON_SECONDS)
        if answered:
            self._settle(answered)
            return
        for call in (self._under_way[reference] for reference in late):
            if not call.announced:
                call.announced = True
                call.reference.future().add_done_callback(functools.partial(self._announce, call))

    def _announce(self, call: _Call, _: Any) -> None:
        self._inbox.put(call)

    def _settle(self, references: list[Any]) -> None:
        calls = [self._under_way.pop(reference) for reference in references]
        now = time.monotonic()
        began = max(self._answered_at, min(call.sent_at for call in calls))
        self._ahead = min(_AHEAD_CALLS, int(_AHEAD_SECONDS * len(calls) / max(now - began, 1e-6)))
        self._answered_at = now
        for call, answer in zip(calls, _answers(references), strict=True):
            try:
                result = self.endpoint.opened(call.method, call.place, answer)
            except BaseException as error:  # handed to whoever waits, as in concurrent.futures
                call.future.set_exception(error)
            else:
                call.future.set_result(result)


def _answers(references: list[Any]) -> list[Callable[[], bytes]]:
    """Functions that give the answer of each, or raise; asking Ray for all at once is cheaper."""
    ray = import_module("ray")

    try:
        return [lambda answer=answer: answer for answer in ray.get(references)]
    except ray.exceptions.RayError:  # of one of them
        return [functools.partial(ray.get, reference) for reference in references]
