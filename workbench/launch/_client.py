"""Clients of service nodes: blocking calls, futures and deadlines."""

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn, Protocol

from workbench.errors import NodeError, NodeTimeoutError
from workbench.launch._pool import DaemonPool
from workbench.launch._values import Value


class Endpoint(Protocol):
    """Interface that an engine provides to a client: one blocking call."""

    label: str
    methods: tuple[str, ...]

    def call(self, method: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """Calls `method`; returns its result or raises its exception."""
        ...


class CallQueue:
    """An endpoint and the threads that wait for its answers, shared by a process's clients."""

    def __init__(self, endpoint: Endpoint, parallel: int) -> None:
        self.endpoint = endpoint
        self._pool = DaemonPool(parallel, f"calls of {endpoint.label}")

    def submit(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Future[Any]:
        """Queues a call."""
        try:
            return self._pool.submit(self.endpoint.call, method, args, kwargs)
        except RuntimeError:
            raise not_sent(self.endpoint.label, method) from None

    def queued(self) -> int:
        """Number of calls that are waiting in this process."""
        return self._pool.queued()

    def close(self) -> None:
        """Drops waiting calls."""
        self._pool.shutdown()


def not_sent(label: str, method: str) -> NodeError:
    """Creates the error for a call that is made after its program has ended."""
    message = (
        f"The call `{method}` was not sent to node {label!r}: its program has stopped. Calls are answered while the "
        "program runs: launch it again."
    )
    return NodeError(message, stage=label)


class Client:
    """Calls a service node's methods: `client.method(...)`.

    `client.futures.method(...)` returns a future immediately. `client.within(2.0).method(...)` waits at most 2 seconds.
    An exception of the method is raised in the caller, with the original traceback.

    Example:
        >>> from workbench.launch import Program, ServiceNode, launch
        >>> class Counter:
        ...     def add(self, n): return n + 1
        >>> program = Program("counter")
        >>> counter = program.add_node(ServiceNode(Counter))
        >>> with launch(program) as launched:
        ...     client = launched.client(counter)
        ...     print(client.add(1), client.futures.add(2).result())
        2 3
    """

    def __init__(self, line: CallQueue, timeout_seconds: float | None = None, *, keeps: object = None) -> None:
        self._line = line
        self._timeout_seconds = timeout_seconds
        self._keeps = keeps  # keeps the launched program alive while a client can call it

    @property
    def futures(self) -> "Futures":
        """The same methods, but returning a `concurrent.futures.Future` immediately.

        Calls begin in submission order. The number of calls in flight is at most the service's concurrency. On Dask and
        Ray, up to 64 additional calls are sent early, if they will probably begin within 20 ms. Other calls wait in
        this process, where `cancel` can drop them.
        """
        return Futures(self._line, self._keeps)

    def within(self, seconds: float) -> "Client":
        """Returns a client whose calls raise `NodeTimeoutError` after `seconds`.

        A call that has begun is not interrupted: the service finishes it, and the result is dropped.
        """
        return Client(self._line, seconds, keeps=self._keeps)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        _check_method(self._line.endpoint, method)
        if self._timeout_seconds is None:
            call = functools.partial(_call, self._keeps, self._line.endpoint.call, method)
        else:
            call = functools.partial(_call_within, self._keeps, self._line, self._timeout_seconds, method)
        self.__dict__[method] = call  # the next look-up finds it directly
        return call

    def __dir__(self) -> list[str]:
        return [*self._line.endpoint.methods, "futures", "within"]

    def __repr__(self) -> str:
        return f"<client of {self._line.endpoint.label}: {', '.join(self._line.endpoint.methods)}>"

    def __reduce__(self) -> NoReturn:
        message = (
            f"A client of node {self._line.endpoint.label!r} cannot be pickled. A client is valid only in its process: "
            "pass the node's handle to the other node's constructor instead."
        )
        raise NodeError(message, stage=self._line.endpoint.label)


class Futures:
    """Versions of a client's methods that return futures."""

    def __init__(self, line: CallQueue, keeps: object = None) -> None:
        self._line = line
        self._keeps = keeps

    def __getattr__(self, method: str) -> Callable[..., Future[Any]]:
        _check_method(self._line.endpoint, method)
        line, keeps = self._line, self._keeps

        def submit(*args: object, **kwargs: object) -> Future[Any]:
            future = line.submit(method, args, kwargs)
            if keeps is not None:
                references = [keeps]  # until the answer arrives, even if the client is dropped
                future.add_done_callback(lambda _: references.clear())
            return future

        return submit

    def __dir__(self) -> list[str]:
        return list(self._line.endpoint.methods)


def _call(keeps: object, endpoint_call: Callable[..., Value], method: str, /, *args: object, **kwargs: object) -> Value:
    del keeps
    return endpoint_call(method, args, kwargs)


def _call_within(
    keeps: object, line: CallQueue, seconds: float, method: str, /, *args: object, **kwargs: object
) -> Value:
    del keeps
    future = line.submit(method, args, kwargs)
    try:
        return future.result(seconds)
    except TimeoutError as error:
        if future.done() and not future.cancelled() and future.exception() is error:
            raise  # the method itself raised it
        future.cancel()
        message = (
            f"The call `{method}` to node {line.endpoint.label!r} got no answer within {seconds} s. The node may be "
            "busy with other calls, slow, or hung (see `Launched.state()`): wait longer with `within(seconds)`, "
            "allow it more calls at once with `add_node(..., concurrency=n)`, or start fewer calls."
        )
        raise NodeTimeoutError(message, stage=line.endpoint.label) from None


def _check_method(endpoint: Endpoint, method: str) -> None:
    if method not in endpoint.methods:
        message = (
            f"The client of node {endpoint.label!r} was asked for {method!r}. The node's public methods are "
            f"{', '.join(endpoint.methods)}: private methods and plain attributes are not available to clients."
        )
        raise AttributeError(message)
