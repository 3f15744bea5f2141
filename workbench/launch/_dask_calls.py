"""Calls to services in Dask actors."""

import asyncio
import functools
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from workbench._open_types import Foreign
from workbench.launch._pickling import pickled
from workbench.launch._pool import DaemonPool
from workbench.launch._remote import CONNECT_SECONDS, unpacked, unreachable
from workbench.launch._values import Value

_LOOK_SECONDS = 0.25
_LOST_SECONDS = 15.0  # longer than the engine needs to detect a lost worker
Place = tuple[str, str]  # a worker's address, and the key of an actor there
Look = Callable[[float], Place | None]


class _Asked:
    """An actor and its calls; the calls are numbered, because Dask may deliver them in any order."""

    def __init__(self, place: Place, actor: Foreign, loop: asyncio.AbstractEventLoop) -> None:
        self.place = place
        self.actor = actor
        self._loop = loop
        self._caller = secrets.token_hex(8)
        self._number = 0
        self._under_way: set[Future[bytes]] = set()

    def send(self, payload: bytes) -> Future[bytes]:
        """Sends a call; the actor begins it after earlier calls."""
        future = asyncio.run_coroutine_threadsafe(self._answer(payload, self._number), self._loop)
        self._number += 1
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def give_up(self) -> None:
        """Stops waiting for answers, because after a lost call, later calls never begin."""
        for future in tuple(self._under_way):
            future.cancel()

    async def _answer(self, payload: bytes, number: int) -> bytes:
        return await self.actor.ask_in_order(payload, self._caller, number)  # raises if the actor is known to be lost


@dataclass(slots=True, eq=False)
class _Sent:
    method: str
    asked: _Asked
    answer: Foreign  # Future[bytes], until it is opened


class DaskEndpoint:
    """Calls a service in an actor, and finds the actor after restarts."""

    def __init__(self, client: Foreign, label: str, methods: tuple[str, ...], look: Look, actor: type) -> None:
        self._class = actor
        self.label = label
        self.methods = methods
        self.gone: str | None = None
        self._client = client
        self._look = look
        self._target: _Asked | None = None
        self._lost: Place | None = None  # the place that lost a call; the next actor has a different key
        self._lost_until = 0.0
        self._changed = threading.Condition()
        self._answered: list[_Sent] = []
        self._count = 1

    def call(self, method: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """Calls `method` and waits for its answer."""
        payload = pickled((method, args, kwargs))
        with self._client.as_current():
            target = self._found(method)
            return self._opened(method, target, lambda: target.actor.ask(payload).result())

    def send(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Sent:
        """Calls `method` without waiting for its answer."""
        payload = pickled((method, args, kwargs))
        with self._client.as_current():
            target = self._found(method)
            call = _Sent(method, target, target.send(payload))
        call.answer.add_done_callback(functools.partial(self._note, call))
        return call

    def answered(self, calls: Collection[_Sent], count: int, seconds: float) -> list[_Sent]:
        """Returns newly answered calls; waits for `count` answers, but at most `seconds`."""
        del calls  # `_answered` contains no other calls
        with self._changed:
            self._count = count
            self._changed.wait_for(lambda: len(self._answered) >= count, seconds)
            answered, self._answered = self._answered, []
        return answered

    def announce(self, call: _Sent, notify: Callable[[], None]) -> None:
        """Calls `notify` when the call is answered."""
        call.answer.add_done_callback(lambda _: notify())

    def results(self, calls: Sequence[_Sent]) -> list[Callable[[], Any]]:
        """Returns, for each call, a function that returns its result or raises its exception."""
        opened = set(calls)
        with self._changed:  # announced calls are never collected by `answered`
            self._answered = [call for call in self._answered if call not in opened]
        readers = [functools.partial(self._opened, call.method, call.asked, call.answer.result) for call in calls]
        for call in calls:
            call.answer = None  # otherwise its callbacks keep the bytes alive until the next garbage collection
        return readers

    def connected(self) -> bool:
        return self._client.status != "closed"

    def known(self) -> bool:
        """Returns whether the actor's location is known."""
        return self._target is not None

    def forget(self) -> None:
        """Looks for the actor again at the next call; calls in flight are lost."""
        target, self._target = self._target, None
        if target is not None:
            target.give_up()

    def _note(self, call: _Sent, _: Future[bytes]) -> None:
        with self._changed:
            self._answered.append(call)
            if len(self._answered) >= self._count:
                self._changed.notify()

    def _opened(self, method: str, target: _Asked, answer: Callable[[], bytes]) -> Value:
        try:
            packed = answer()
        except (OSError, RuntimeError, KeyError, CancelledError) as error:  # no such worker or actor, or abandoned
            if self._target is target:
                self._target = None
            self._lost, self._lost_until = target.place, time.monotonic() + _LOST_SECONDS
            target.give_up()
            raise unreachable(
                self.label,
                method,
                self.gone or f"its worker was lost during the call ({error}); the call may have taken effect",
            ) from error
        return unpacked(packed)

    def _found(self, method: str) -> _Asked:
        distributed = import_module("distributed")

        deadline = time.monotonic() + CONNECT_SECONDS
        while time.monotonic() < deadline:
            if self.gone is not None:
                raise unreachable(self.label, method, self.gone)
            target = self._target
            if target is not None:
                return target
            place = self._look(_LOOK_SECONDS)
            if place is not None and place == self._lost and time.monotonic() < self._lost_until:
                time.sleep(0.02)
            elif place is not None:
                actor = distributed.Actor(self._class, *place)
                self._target = target = _Asked(place, actor, self._client.loop.asyncio_loop)
                return target
        raise unreachable(self.label, method, f"it did not start within {CONNECT_SECONDS:.0f} s")


class InOrder:
    """The calls of one caller at the actor; they begin in the order of their numbers.

    Use this class only in the thread of the actor's event loop.
    """

    def __init__(self, parallel: int, name: str) -> None:
        self._pool = DaemonPool(parallel, name)
        self._next = 0
        self._early: dict[int, asyncio.Future[None]] = {}

    async def run(self, number: int, function: Callable[..., bytes], *args: object) -> bytes:
        """Calls `function` in a thread once earlier calls have started."""
        loop = asyncio.get_running_loop()
        if number != self._next:
            self._early[number] = start = loop.create_future()
            await start
        result = loop.run_in_executor(self._pool, function, *args)
        self._next += 1
        if self._next in self._early:
            self._early.pop(self._next).set_result(None)
        return await result

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=False)
