"""A service that caches another service's answers, such as parameters for many actors."""

import math
import pickle
import threading
import time
from collections import OrderedDict
from typing import Any

from workbench.errors import ProgramError
from workbench.launch._client import Client
from workbench.launch._nodes import Handle, ServiceNode
from workbench.launch._values import Value


class Cache:
    """Caches a service's answers for `seconds`.

    Thread-safe. Identical calls (same method, equal arguments) that arrive during a computation wait for its answer.
    Each distinct call therefore reaches the service at most once per `seconds`, regardless of the number of callers.
    Errors are raised in all waiting callers and are not cached.

    Args (of the constructor):
        service: A client of the service.
        seconds: Time to live for an answer.
        max_size: Number of answers to keep; the oldest answers are dropped first.

    Raises:
        ProgramError: if `seconds` or `max_size` is not positive.

    Example:
        >>> class Service:
        ...     calls = 0
        ...     def weights(self, layer):
        ...         Service.calls += 1
        ...         return [0.0] * layer
        >>> cache = Cache(Service(), seconds=60.0)
        >>> cache.call("weights", 2), cache.call("weights", 2), Service.calls
        ([0.0, 0.0], [0.0, 0.0], 1)
        >>> cache.statistics()
        {'hits': 1, 'misses': 1}

    References:
        Yang et al., "Launchpad: A Programming Model for Distributed Machine Learning Research", arXiv 2106.04516, 2021
        (the cacher node).
    """

    def __init__(self, service: Client | Value, *, seconds: float, max_size: int = 1024) -> None:
        if not seconds > 0 or max_size < 1:
            message = (
                f"`Cache` was given seconds={seconds} and max_size={max_size}. A cache must keep at least one answer "
                "for some time: pass `seconds` above 0, and a `max_size` of at least 1."
            )
            raise ProgramError(message)
        self._service: Any = service
        self._seconds, self._max_size = seconds, max_size
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def call(self, method: str, *args: Value, **kwargs: Value) -> Value:
        """Calls the service's `method`, or returns an answer younger than `seconds`.

        Args:
            method: Name of a method of the service.
            *args: Positional arguments. Calls are equal if their pickled arguments are equal.
            **kwargs: Keyword arguments, in any order.
        """
        key = pickle.dumps((method, args, sorted(kwargs.items())))
        with self._lock:
            answer = self._answers.get(key)
            asks = answer is None or time.monotonic() >= answer.ends
            if asks:
                answer = self._answers[key] = _Answer()
                self._answers.move_to_end(key)
                while len(self._answers) > self._max_size:
                    self._answers.popitem(last=False)
            self._hits, self._misses = self._hits + (not asks), self._misses + asks
        assert answer is not None
        if asks:
            self._ask(key, answer, method, args, kwargs)
        answer.ready.wait()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _ask(self, key: bytes, answer: "_Answer", method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            answer.value = getattr(self._service, method)(*args, **kwargs)
            answer.ends = time.monotonic() + self._seconds
        except BaseException as error:
            answer.error = error
            with self._lock:
                if self._answers.get(key) is answer:
                    del self._answers[key]
        finally:
            answer.ready.set()

    def forget(self) -> None:
        """Drops all cached answers."""
        with self._lock:
            self._answers.clear()

    def statistics(self) -> dict[str, int]:
        """Returns the number of calls answered from the cache (`hits`) and by the service (`misses`)."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses}


class _Answer:
    """An answer that may be pending; it ages only after it has arrived."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.ends = math.inf
        self.value: Value = None
        self.error: BaseException | None = None


class CacheNode(ServiceNode):
    """A `Cache` as a node: `program.add_node(CacheNode(service, seconds=1.0), concurrency=16)`.

    Other nodes call `cache.call("method", *args)`. Set the node's concurrency to the number of its callers, because
    every waiting call occupies one of its threads.

    Example:
        >>> from workbench.launch import Program, ServiceNode
        >>> program = Program("cached")
        >>> service = program.add_node(ServiceNode(dict))
        >>> CacheNode(service, seconds=1.0).methods
        ('call', 'forget', 'statistics')
    """

    concurrency = 16

    def __init__(self, service: Handle, *, seconds: float, max_size: int = 1024) -> None:
        Cache(service, seconds=seconds, max_size=max_size)  # reports mistakes before the launch
        super().__init__(Cache, service, seconds=seconds, max_size=max_size)
