"""Calls between processes of one launched program, built on the standard library's `multiprocessing.managers`.

Each process serves one object, the request handler, at an address that is known before the process starts. The handler
forwards calls to the services of its process. Each calling thread opens its own connection, authenticated with the
launch's random key. Processes therefore unpickle data only from other processes of the launch.
"""

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import managers
from pathlib import Path
from typing import cast

from workbench.errors import NodeError
from workbench.launch._failures import with_source_lines
from workbench.launch._pickling import pickled
from workbench.launch._service import Service
from workbench.launch._values import Value

CONNECT_SECONDS = 60.0  # time that a call waits for a starting or restarting node


class RemoteTraceback(Exception):
    """The traceback of an exception in the process that raised it."""

    def __str__(self) -> str:
        return f"in the process of node {self.args[0]!r}:\n{with_source_lines(self.args[1])}"


class NotSentError(Exception):
    """Raised if the request did not reach the other process and can therefore be sent again."""


class Connection(managers.BaseProxy):
    """The client side of a connection to another process."""

    _exposed_ = ("ask",)

    def ask(self, label: str, payload: bytes) -> bytes:
        """Sends one call and waits for its answer."""
        try:
            if not hasattr(self._tls, "connection"):  # pyright: ignore[reportAttributeAccessIssue]
                self._connect()  # pyright: ignore[reportAttributeAccessIssue]
        except (OSError, EOFError, managers.RemoteError) as error:
            raise NotSentError from error
        try:
            return cast(bytes, self._callmethod("ask", (label, payload)))
        except (BrokenPipeError, managers.RemoteError) as error:
            # RemoteError: a restarted process does not know the handler by its old name.
            self._hang_up()
            raise NotSentError from error
        except (EOFError, OSError):
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        connection = self._tls.__dict__.pop("connection", None)  # pyright: ignore[reportAttributeAccessIssue]
        if connection is not None:
            connection.close()

    def _incref(self) -> None:
        # As in BaseProxy, but without its finalizer: for a garbage-collected proxy, the finalizer would connect to a
        # process that may be gone or hung.
        connection = self._Client(self._token.address, authkey=self._authkey)  # pyright: ignore[reportAttributeAccessIssue]
        managers.dispatch(connection, None, "incref", (self._id,))  # pyright: ignore[reportAttributeAccessIssue]
        connection.close()


class RequestHandler:
    """The server side: unpacks calls, runs them, and packs results and exceptions."""

    def __init__(self, services: Mapping[str, Service], folder: Path | None = None) -> None:
        self._services = services
        self._folder = folder

    def ask(self, label: str, payload: bytes) -> bytes:
        """Calls a method and packs its result or exception."""
        method, args, kwargs = pickle.loads(payload)
        try:
            answer = (True, self._services[label].call(method, args, kwargs), None)
        except Exception as error:  # raised in the caller
            return _packed_error(label, method, error)
        try:
            return pickled(answer, self._folder)
        except Exception as error:  # pickling a user's result may raise anything
            return _packed_error(label, method, error)


def serve(services: Mapping[str, Service], address: str, authkey: bytes) -> None:
    """Serves calls from other processes at `address` in threads, until this process exits."""
    handler = RequestHandler(services, _folder_of(address))
    server = _manager_class(lambda: handler)(address=address, authkey=authkey).get_server()
    threading.Thread(target=server.serve_forever, name=f"connection {address}", daemon=True).start()


class RemoteHost:
    """Connections to another process, shared by all callers in this process."""

    def __init__(self, address: str, authkey: bytes) -> None:
        self.folder: Path | None = _folder_of(address)
        self._manager = _manager_class(None)(address=address, authkey=authkey)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self.gone: str | None = None

    def ask(self, label: str, method: str, payload: bytes) -> bytes:
        """Sends one call; waits, if necessary, until the process has started."""
        deadline = time.monotonic() + CONNECT_SECONDS
        pause = 0.001
        while True:
            if self.gone is not None:
                raise unreachable(label, method, self.gone)
            connection = self._connection
            try:
                connection = connection or self._open()
                return connection.ask(label, payload)
            except NotSentError as error:
                with self._lock:
                    if self._connection is connection:
                        self._connection = None
                if time.monotonic() > deadline:
                    raise unreachable(label, method, f"no connection within {CONNECT_SECONDS:.0f} s") from error
            except (EOFError, OSError) as error:
                fact = "its process ended during the call; the call may have taken effect"
                raise unreachable(label, method, fact) from error
            time.sleep(pause)
            pause = min(1.3 * pause, 0.03)

    def _open(self) -> Connection:
        with self._lock:
            if self._connection is None:
                try:
                    self._manager.connect()
                    self._connection = self._manager.connection()  # pyright: ignore[reportAttributeAccessIssue]
                except (OSError, EOFError, managers.RemoteError) as error:
                    raise NotSentError from error
            return self._connection  # pyright: ignore[reportReturnType]


class RemoteService:
    """An endpoint in another process."""

    def __init__(self, host: RemoteHost, label: str, methods: tuple[str, ...]) -> None:
        self.label = label
        self.methods = methods
        self._host = host

    def call(self, method: str, args: tuple[Value, ...], kwargs: Mapping[str, Value]) -> Value:
        """Calls `method` remotely; cloudpickle handles notebook definitions."""
        answer = self._host.ask(self.label, method, pickled((method, args, kwargs), self._host.folder))
        return unpacked(answer)


def _folder_of(address: str) -> Path | None:
    """Returns a launch's folder for sockets and arrays, or None if it has no folder."""
    return Path(address).parent if os.name == "posix" else None


def unpacked(answer: bytes) -> Value:
    """Returns the result of a `RequestHandler`'s answer, or raises its exception."""
    succeeded, value, where = pickle.loads(answer)
    if succeeded:
        return value
    raise value from RemoteTraceback(*where)


def _manager_class(connection: Callable[[], object] | None) -> type[managers.BaseManager]:
    # A separate class, because `register` changes the class.
    manager = type("DoorManager", (managers.BaseManager,), {})
    manager.register("connection", callable=connection, proxytype=Connection, exposed=("ask",))
    return manager


def _packed_error(label: str, method: str, error: Exception) -> bytes:
    where = (label, "".join(traceback.format_exception(error)))
    try:
        packed = pickled((False, error, where))
        pickle.loads(packed)  # some exceptions can be pickled but not unpickled
    except Exception:  # a user's exception may raise anything here
        message = (
            f"The call `{method}` of node {label!r} raised {type(error).__name__}: {error}. The exception cannot be "
            "pickled, so this error replaces it: give every argument of the exception's constructor a default."
        )
        packed = pickled((False, NodeError(message, stage=label), where))
    return packed


def unreachable(label: str, method: str, fact: str) -> NodeError:
    message = (
        f"The call `{method}` did not get an answer from node {label!r}: {fact}. A node answers only while it runs: "
        "see `Launched.state()` for what happened, or give the node a `Restart` and call again."
    )
    return NodeError(message, stage=label)
