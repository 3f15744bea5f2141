"""As much of Ray as `RayEngine` uses, with actors as threads of this process: our half of it is tested without Ray."""

import threading
import time
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

from workbench.launch._pool import DaemonPool


class RayError(Exception):
    """What Ray raises."""


class RayActorError(RayError):
    """The actor cannot be reached."""


class ActorDiedError(RayActorError):
    """The actor is dead."""


class _Reference:
    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.answer


class _Method:
    def __init__(self, actor: "_Actor", name: str, group: str = "") -> None:
        self._actor, self._name, self._group = actor, name, group

    def options(self, *, concurrency_group: str) -> "_Method":
        return _Method(self._actor, self._name, concurrency_group)

    def remote(self, *args: Any) -> _Reference:
        reference = _Reference()
        future = reference.answer
        self._actor.under_way.append(future)

        def work() -> None:
            try:
                self._actor.ready.wait()
                if self._actor.dead:
                    raise ActorDiedError
                result = getattr(self._actor.instance, self._name)(*args)
                if not future.done():
                    future.set_result(result)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)

        self._actor.pools[self._group].submit(work)
        return reference


class _Actor:
    def __init__(self, cls: type, args: tuple[Any, ...], threads: dict[str, int]) -> None:
        self.pools = {group: DaemonPool(size, f"{group} of an actor") for group, size in threads.items()}
        self.under_way: list[Future[Any]] = []
        self.dead = self.forgotten = False
        self.ready = threading.Event()
        self.instance: Any = None

        def make() -> None:
            self.instance = cls(*args)
            self.ready.set()

        threading.Thread(target=make, daemon=True).start()

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)


class _Maker:
    def __init__(self, ray: "SimulatedRay", cls: type, threads: dict[str, int], name: str = "") -> None:
        self._ray, self._cls, self._threads, self._name = ray, cls, threads, name

    def options(self, *, name: str, namespace: str) -> "_Maker":
        return _Maker(self._ray, self._cls, self._threads, f"{namespace}/{name}")

    def remote(self, *args: Any) -> _Actor:
        held = self._ray.named.get(self._name)
        if held is not None and not held.forgotten:
            message = f"{self._name} is taken"
            raise ValueError(message)
        made = self._ray.named[self._name] = _Actor(self._cls, args, self._threads)
        return made


class SimulatedRay(ModuleType):
    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError, ActorDiedError=ActorDiedError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.named: dict[str, _Actor] = {}
        self.shut_down = False

    def is_initialized(self) -> bool:
        return not self.shut_down

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0, "SLOT": 1.0}}]

    def remote(self, **options: Any) -> Any:
        assert options["max_restarts"] == 0
        assert options["allow_out_of_order_execution"] is False
        return lambda cls: _Maker(self, cls, options["concurrency_groups"])

    def get(self, asked: _Reference | list[_Reference]) -> Any:
        return [each.answer.result() for each in asked] if isinstance(asked, list) else asked.answer.result()

    def wait(
        self, references: list[_Reference], *, num_returns: int, timeout: float
    ) -> tuple[list[_Reference], list[_Reference]]:
        deadline = time.monotonic() + timeout
        while True:
            done = [each for each in references if each.answer.done()][:num_returns]
            if len(done) == num_returns or time.monotonic() > deadline:
                return done, [each for each in references if each not in done]
            time.sleep(0.0005)

    def get_actor(self, name: str, namespace: str) -> _Actor:
        held = self.named.get(f"{namespace}/{name}")
        if held is None or held.forgotten:
            raise ValueError(name)
        return held

    def lose(self, actor: _Actor) -> None:
        """The actor's process dies; its name stays taken while its owner holds a handle, as in Ray 2.55."""
        actor.dead = True
        for runner in actor.instance._actor._runners.values():
            runner.abandon()
        actor.instance._actor.end_output()
        for future in actor.under_way:
            if not future.done():
                future.set_exception(ActorDiedError())

    def kill(self, actor: _Actor) -> None:
        self.lose(actor)
        actor.forgotten = True
