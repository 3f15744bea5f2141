"""Sends at most twenty updates a second: the newest update of each kind, and always the last update."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

MOST_PER_SECOND = 20.0


class Outbox:
    """Collects named values and passes the newest of each to `send`; callable from any thread.

    Notebook servers silently drop messages above a certain rate, so the last state could be lost. A value that arrives
    too soon therefore replaces the pending value, and is sent when the interval ends.

    Args:
        send: Receives all pending values at once; called by one thread at a time.
        interval_seconds: Minimum time between two calls to `send`.
        is_open: Returns whether a page shows the view. If no page shows it, the newest values wait for `flush`.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, Any]], None],
        *,
        interval_seconds: float = 1 / MOST_PER_SECOND,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._send, self._is_open = send, is_open
        self._interval = interval_seconds
        self._pending: dict[str, Any] = {}
        self._timer: threading.Timer | None = None
        self._next = 0.0
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    def put(self, **values: object) -> None:
        """Adds new values, which are sent now or when the interval has passed."""
        with self._lock:
            self._pending.update(values)
            wait = self._next - time.monotonic()
            if wait > 0:
                self._schedule(wait)
                return
        self.flush()

    def flush(self) -> None:
        """Sends pending values, if a page shows the view."""
        with self._sending:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                if not self._pending or not self._is_open():
                    return
                values, self._pending = self._pending, {}
                self._next = time.monotonic() + self._interval
            self._send(values)

    def close(self) -> None:
        """Drops pending values."""
        with self._lock:
            self._pending = {}
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _schedule(self, wait: float) -> None:
        if self._timer is None:
            self._timer = threading.Timer(wait, self.flush)
            self._timer.daemon = True
            self._timer.start()
