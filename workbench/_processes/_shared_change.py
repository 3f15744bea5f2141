"""Temporary changes to process-wide state."""

import contextlib
import threading
import warnings
from collections.abc import Callable


class SharedChange(contextlib.ContextDecorator):
    """A change shared by overlapping uses: the first use makes it, and the last use undoes it.

    Saving and restoring a value is wrong if two threads, tasks or blocks overlap without being nested. The last of two
    overlapping uses would restore the value that the other use had set.

    Args (of the constructor):
        make: Function that makes the change and returns a function that undoes it. Both functions run under the lock of
            this change.

    Example:
        >>> state = []
        >>> def make():
        ...     state.append("changed")
        ...     return state.clear
        >>> change = SharedChange(make)
        >>> with change, change:
        ...     print(state)
        ['changed']
        >>> state
        []
    """

    def __init__(self, make: Callable[[], Callable[[], object]]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._uses = 0
        self._undo: Callable[[], object] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._uses == 0:
                self._undo = self._make()
            self._uses += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._uses -= 1
            if self._uses == 0 and self._undo is not None:
                undo, self._undo = self._undo, None
                undo()


def _ignore_warnings(message: str) -> SharedChange:
    """Ignores warnings that begin with `message`, without changing other filters.

    `warnings.catch_warnings` restores the whole list of filters, and so removes filters that other code has set in the
    meantime (before Python 3.14, in all threads).
    """

    def make() -> Callable[[], None]:
        pattern = f"{message}(?#workbench)"  # no other filter is identical to this one
        warnings.filterwarnings("ignore", pattern)
        entry = next((filter_ for filter_ in warnings.filters if getattr(filter_[1], "pattern", None) == pattern), None)

        def undo() -> None:
            if entry is not None and entry in warnings.filters:
                warnings.filters.remove(entry)  # pyright: ignore[reportAttributeAccessIssue]

        return undo

    return SharedChange(make)


UNUSED_DONATIONS_ARE_FINE = _ignore_warnings("Some donated buffers were not usable")
"""Silences JAX's warning; the compiled module shows which donated buffers are used."""
