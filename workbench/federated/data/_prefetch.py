"""Prefetching of the next rounds' data to the devices."""

import collections
import contextvars
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Self

from workbench._types import Argument
from workbench.errors import DataError
from workbench.federated.data._padding import Padded


class Prefetch(Iterator[Any]):
    """An iterator whose next items are prepared in a thread; see `prefetch`.

    The thread ends when the iterator is exhausted, closed or garbage-collected, or when its `with` block ends.
    """

    def __init__(self, items: Iterable[Any], size: int, sharding: object) -> None:
        self._line = _Line(size)
        self._thread = threading.Thread(
            # A copied context keeps the caller's mesh and placements, as far as they are context variables.
            target=contextvars.copy_context().run,
            args=(_work, self._line, iter(items), sharding),
            name="workbench-prefetch",
            daemon=True,
        )
        # The thread refers only to the queue, so that an unused iterator is collected, which then stops the thread.
        self._finalizer = weakref.finalize(self, self._line.close)
        self._thread.start()

    def __next__(self) -> Argument:
        kind, item = self._line.take()
        if kind == "item":
            return item
        self.close()
        if kind == "error":
            raise item
        raise StopIteration

    def close(self) -> None:
        """Drops prepared items and stops the thread after its current item; can be called more than once."""
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prefetch(items: Iterable[Any], size: int = 2, sharding: object = None) -> Prefetch:
    """Prepares items in a thread and puts them on the devices before they are used.

    Device memory holds up to `size` ready items, the item in use and the item being prepared.

    Args:
        items: Trees of arrays, or `Padded` objects such as those that `cohorts(...)` yields.
        size: Number of items to keep ready.
        sharding: Sharding for every array, for example `NamedSharding(mesh, PartitionSpec("clients"))`; None for the
            default device.

    Returns:
        An iterator over the same items, in the same order, as JAX arrays. An exception raised while preparing an item
        is re-raised in place of that item. If you do not read the iterator to its end, close it or use it in a `with`
        block.

    Raises:
        DataError: if `size` is not positive.

    Example:
        >>> with prefetch([{"x": 1.0}, {"x": 2.0}]) as ready:
        ...     [float(item["x"]) for item in ready]
        [1.0, 2.0]
    """
    if size < 1:
        message = (
            f"`prefetch` was given size={size}. `size` is the number of items that are kept ready: use 1 or more, "
            "usually 2."
        )
        raise DataError(message)
    return Prefetch(items, size, sharding)


class _Line:
    """A bounded queue of ready items between two threads; either thread may close it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ready: collections.deque[tuple[str, Any]] = collections.deque()
        self._closed = False
        # Reentrant: a garbage collection inside the lock may close the queue of an unused iterator.
        self._changed = threading.Condition(threading.RLock())

    def offer(self, kind: str, item: object) -> bool:
        """Waits for room; returns False if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._size)
            if not self._closed:
                self._ready.append((kind, item))
            self._changed.notify_all()
            return not self._closed

    def take(self) -> tuple[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ready)
            item = ("end", None) if self._closed else self._ready.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()


def _work(line: _Line, items: Iterator[Any], sharding: object) -> None:
    import jax

    try:
        for item in items:
            placed = item.put(sharding) if isinstance(item, Padded) else jax.device_put(item, sharding)
            if not line.offer("item", placed):
                break
            # Otherwise the last item stays in device memory while the thread waits for the next one.
            del item, placed
        else:
            line.offer("end", None)
    except BaseException as error:  # any exception is raised to the caller of `next`
        line.offer("error", error)
    finally:
        if hasattr(items, "close"):
            items.close()  # type: ignore[attr-defined]
