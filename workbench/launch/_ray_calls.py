"""Calls to services in Ray actors."""

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from workbench._open_types import Foreign
from workbench.launch._pickling import pickled
from workbench.launch._remote import CONNECT_SECONDS, unpacked, unreachable
from workbench.launch._values import Value


class _Place:
    """An actor and its call methods, cached because `options` makes a new class each time."""

    def __init__(self, actor: Foreign, label: str) -> None:
        self.identity: int = hash(actor)
        self.ask: Callable[[str, bytes], Any] = actor.ask.options(concurrency_group="direct").remote
        # The size of this group is the concurrency of the service, so that calls begin in order.
        self.ask_in_order: Callable[[str, bytes], Any] = actor.ask.options(concurrency_group=label).remote


@dataclass(slots=True, eq=False)
class _Sent:
    method: str
    place: _Place
    reference: Foreign


class RayEndpoint:
    """Calls a service in an actor, and finds the actor after restarts."""

    def __init__(self, launch: str, actor: str, label: str, methods: tuple[str, ...]) -> None:
        self.label = label
        self.methods = methods
        self.gone: str | None = None
        self._launch, self._name = launch, actor
        self._place: _Place | None = None
        self._dead: int | None = None  # a dead actor whose name Ray may still return

    def call(self, method: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """Calls `method` and waits for its answer."""
        payload = pickled((method, args, kwargs))
        place = self._found(method)
        answer = place.ask(self.label, payload)
        return self._opened(method, place, lambda: import_module("ray").get(answer))

    def send(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Sent:
        """Calls `method` without waiting for its answer."""
        payload = pickled((method, args, kwargs))
        place = self._found(method)
        return _Sent(method, place, place.ask_in_order(self.label, payload))

    def answered(self, calls: Collection[_Sent], count: int, seconds: float) -> list[_Sent]:
        """Returns answered calls; waits for `count` answers, but at most `seconds`."""
        of_reference = {call.reference: call for call in calls}
        answered, _ = import_module("ray").wait(list(of_reference), num_returns=count, timeout=seconds)
        return [of_reference[reference] for reference in answered]

    def announce(self, call: _Sent, notify: Callable[[], None]) -> None:
        """Calls `notify` when the call is answered."""
        call.reference.future().add_done_callback(lambda _: notify())

    def results(self, calls: Sequence[_Sent]) -> list[Callable[[], Any]]:
        """Returns, for each call, a function that returns its result or raises its exception; asks Ray only once."""
        ray = import_module("ray")

        references = [call.reference for call in calls]
        try:
            answers = [lambda answer=answer: answer for answer in ray.get(references)]
        except ray.exceptions.RayError:  # one call failed
            answers = [functools.partial(ray.get, reference) for reference in references]
        return [
            functools.partial(self._opened, call.method, call.place, answer)
            for call, answer in zip(calls, answers, strict=True)
        ]

    def connected(self) -> bool:
        """Returns whether Ray is initialized, without starting a new cluster."""
        return import_module("ray").is_initialized()

    def known(self) -> bool:
        return self._place is not None

    def forget(self) -> None:
        """Looks for the actor again at the next call."""
        self._place = None

    def _opened(self, method: str, place: _Place, answer: Callable[[], bytes]) -> Value:
        ray = import_module("ray")

        try:
            packed = answer()
        except ray.exceptions.RayActorError as error:
            if self._place is place:
                self._place = None
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._dead = place.identity
            fact = self.gone or f"its actor ended during the call ({error}); the call may have taken effect"
            raise unreachable(self.label, method, fact) from error
        return unpacked(packed)

    def _found(self, method: str) -> _Place:
        ray = import_module("ray")

        deadline = time.monotonic() + CONNECT_SECONDS
        while time.monotonic() < deadline:
            if self.gone is not None or not self.connected():
                raise unreachable(self.label, method, self.gone or "Ray was shut down")
            place = self._place
            if place is not None:
                return place
            try:
                actor = ray.get_actor(self._name, namespace=self._launch)
            except ValueError:  # not yet started or restarted
                actor = None
            if actor is not None and hash(actor) != self._dead:
                self._place = place = _Place(actor, self.label)
                return place
            time.sleep(0.02)
        raise unreachable(self.label, method, f"it did not start within {CONNECT_SECONDS:.0f} s")
