"""An executor whose threads never outlive the process."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Self

from workbench.launch._values import Value


class DaemonPool(Executor):
    """A thread pool that never keeps the interpreter alive.

    `ThreadPoolExecutor` joins its threads at exit, so one hung call would prevent a script or kernel from ending.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        self._max_workers = max_workers
        self._name = name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None]
        self._work = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Value, **kwargs: Value) -> Future[Any]:
        """Queues one call; the future can be cancelled until a thread starts the call."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                message = f"the pool {self._name!r} is shut down and accepts no more calls"
                raise RuntimeError(message)
            self._work.put((future, fn, args, kwargs))
            if self._idle > 0:
                self._idle -= 1
            elif self._threads < self._max_workers:
                self._threads += 1
                threading.Thread(target=self._loop, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def queued(self) -> int:
        """Number of calls that have not started."""
        return self._work.qsize()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Accepts no more calls and stops idle threads, without waiting for running calls."""
        del wait
        with self._lock:
            self._closed = True
            threads = self._threads
        while cancel_futures:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in range(threads):
            self._work.put(None)

    def __enter__(self) -> Self:
        return self

    def _loop(self) -> None:
        while (item := self._next()) is not None:
            future, fn, args, kwargs = item
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:  # raised to the waiting caller, as in concurrent.futures
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del item, future, fn, args, kwargs  # an idle thread must not keep arrays alive

    def _next(self) -> tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
        try:
            return self._work.get_nowait()
        except queue.Empty:
            pass
        with self._lock:  # `submit` takes the same lock, so no call can be added in between
            try:
                return self._work.get_nowait()
            except queue.Empty:
                self._idle += 1
        return self._work.get()
