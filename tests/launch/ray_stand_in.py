"""As much of Ray as `RayEngine` uses, with actors as threads of this process: our half of it is tested without Ray."""

import threading
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any


class RayActorError(Exception):
    """The actor cannot be reached."""


class ActorDiedError(RayActorError):
    """The actor is dead."""


class _Method:
    def __init__(self, actor: "_Actor", name: str) -> None:
        self._actor, self._name = actor, name

    def options(self, **options: Any) -> "_Method":
        assert options == {"concurrency_group": "control"}
        return self

    def remote(self, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
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

        threading.Thread(target=work, daemon=True).start()
        return future


class _Actor:
    def __init__(self, cls: type, args: tuple[Any, ...]) -> None:
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
    def __init__(self, ray: "StandInRay", cls: type, name: str | None = None) -> None:
        self._ray, self._cls, self._name = ray, cls, name

    def options(self, *, name: str, namespace: str) -> "_Maker":
        return _Maker(self._ray, self._cls, f"{namespace}/{name}")

    def remote(self, *args: Any) -> _Actor:
        held = self._ray.named.get(str(self._name))
        if held is not None and not held.forgotten:
            message = f"{self._name} is taken"
            raise ValueError(message)
        made = self._ray.named[str(self._name)] = _Actor(self._cls, args)
        return made


class StandInRay(ModuleType):
    exceptions = SimpleNamespace(RayActorError=RayActorError, ActorDiedError=ActorDiedError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.named: dict[str, _Actor] = {}

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0, "SEAT": 1.0}}]

    def remote(self, **options: Any) -> Any:
        assert options["max_restarts"] == 0
        return lambda cls: _Maker(self, cls)

    def get(self, future: Future[Any]) -> Any:
        return future.result()

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
        for future in actor.under_way:
            if not future.done():
                future.set_exception(ActorDiedError())

    def kill(self, actor: _Actor) -> None:
        self.lose(actor)
        actor.forgotten = True
