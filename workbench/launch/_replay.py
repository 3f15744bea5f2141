"""Replay tables, sampled uniformly, in order, or by priority."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from workbench.errors import NodeError, check_settings
from workbench.launch._context import CURRENT
from workbench.launch._nodes import ServiceNode

_WAIT_SECONDS = 0.2  # interval at which to check whether the program is stopping


class Replay:
    """Stores at most `max_size` items; the oldest items are removed first.

    Thread-safe. Sampling by priority costs one pass over the priorities of all items.

    Args (of the constructor):
        max_size: Maximum number of items.
        sampling: "uniform" (with replacement), "fifo" (oldest first; sampled items are removed), or "prioritized" (with
            replacement; probability ∝ priority ** `exponent`).
        min_size: `sample` waits until the table has had this many items.
        samples_per_insert: Rate limit; after `min_size` items, `sample` waits so that the number of sampled items never
            exceeds this multiple of the number of inserted items. None for no limit. `insert` never waits, so call
            `wanted` first to stay within the rate limit.
        exponent: Exponent of the priorities; 0 is uniform.
        seed: Seed for sampling.

    Raises:
        ProgramError: if sizes are inconsistent, or the sampling method is unknown.

    Example:
        >>> table = Replay(max_size=2, sampling="fifo")
        >>> _ = [table.insert(item) for item in ("a", "b", "c")]
        >>> table.sample(2)["items"]
        ['b', 'c']

    References:
        Schaul et al., "Prioritized Experience Replay", ICLR 2016; Cassirer et al., "Reverb", arXiv 2102.04736.
    """

    def __init__(
        self,
        max_size: int,
        *,
        sampling: Literal["uniform", "fifo", "prioritized"] = "uniform",
        min_size: int = 1,
        samples_per_insert: float | None = None,
        exponent: float = 1.0,
        seed: int = 0,
    ) -> None:
        strategies = ("uniform", "fifo", "prioritized")
        check_settings(
            "Replay",
            (
                1 <= min_size <= max_size,
                f"max_size={max_size} and min_size={min_size}",
                "A sampler that waits for more items than the table can store waits forever. "
                "Choose 1 <= `min_size` <= `max_size`.",
            ),
            (sampling in strategies, f"sampling={sampling!r}", f"`sampling` is one of {strategies}."),
            (
                samples_per_insert is None or samples_per_insert > 0,
                f"samples_per_insert={samples_per_insert}",
                "A sampler that is never allowed to sample waits forever: pass a number above 0, or None.",
            ),
        )
        import numpy as np

        self._max_size, self._min_size, self._sampling = max_size, min_size, sampling
        self._rate, self._exponent = samples_per_insert, exponent
        self._items: list[Any] = [None] * max_size
        self._keys = np.full(max_size, -1, np.int64)  # number of the insertion; -1 for an empty slot
        self._weights = np.zeros(max_size)
        self._oldest = self._size = self._inserted = self._sampled = 0
        self._began = False
        self._random = np.random.default_rng(seed)
        self._changed = threading.Condition()

    def insert(self, item: object, priority: float = 1.0) -> int:
        """Adds an item (replaces the oldest if the table is full); returns its key."""
        weight = self._weight(priority)
        with self._changed:
            place = (self._oldest + self._size) % self._max_size
            if self._size == self._max_size:
                self._oldest = (self._oldest + 1) % self._max_size
            else:
                self._size += 1
            key = self._inserted
            self._items[place], self._keys[place], self._weights[place] = item, key, weight
            self._inserted += 1
            self._began = self._began or self._size >= self._min_size
            self._changed.notify_all()
            return key

    def insert_all(self, items: Sequence[Any], priorities: Sequence[float]) -> list[int]:
        """Adds several items; returns their keys."""
        return [self.insert(item, priority) for item, priority in zip(items, priorities, strict=True)]

    def wanted(self, count: int, timeout_seconds: float = 0.0) -> bool:
        """Waits until `sample(count)` needs more items; returns False if the time runs out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._allowed(count), timeout_seconds)

    def sample(self, count: int, timeout_seconds: float | None = None) -> dict[str, list[Any]]:
        """Draws `count` items, waiting until the table's size and rate allow it.

        Returns:
            The `items`, their `keys`, and their `probabilities` in one draw.

        Raises:
            TimeoutError: if waiting takes longer than `timeout_seconds`.
            NodeError: if the program stops while waiting.
        """
        with self._changed:
            self._wait(lambda: self._allowed(count), timeout_seconds, count)
            self._sampled += count
            places, chances = self._draw(count)
            batch = {
                "items": [self._items[place] for place in places],
                "keys": [int(self._keys[place]) for place in places],
                "probabilities": chances,
            }
            if self._sampling == "fifo":
                for place in places:
                    self._items[place], self._keys[place], self._weights[place] = None, -1, 0.0
                self._oldest = (self._oldest + count) % self._max_size
                self._size -= count
            self._changed.notify_all()
            return batch

    def update_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> int:
        """Sets new priorities; returns the number of items that still exist."""
        updated = 0
        with self._changed:
            for key, priority in zip(keys, priorities, strict=True):
                place = key % self._max_size
                if self._keys[place] == key:
                    self._weights[place] = self._weight(priority)
                    updated += 1
        return updated

    def ready(self, count: int) -> bool:
        """Returns whether `sample(count)` would return immediately."""
        with self._changed:
            return self._allowed(count)

    def size(self) -> int:
        """Number of items in the table."""
        return self._size

    def counts(self) -> dict[str, int]:
        """Numbers of items in the table, and of items inserted and sampled so far."""
        return {"size": self._size, "inserted": self._inserted, "sampled": self._sampled}

    def _weight(self, priority: float) -> float:
        if not priority >= 0:
            message = (
                f"`Replay` was given the priority {priority}. An item's probability is proportional to its priority, "
                "so priorities are numbers of at least 0: pass the absolute error, for example."
            )
            raise ValueError(message)
        return float(priority) ** self._exponent

    def _allowed(self, count: int) -> bool:
        if not self._began or self._size < (count if self._sampling == "fifo" else 1):
            return False
        if self._sampling == "prioritized" and not self._weights.any():
            return False
        return self._rate is None or self._sampled + count <= self._rate * self._inserted

    def _draw(self, count: int) -> tuple[list[int], list[float]]:
        import numpy as np

        if self._sampling == "fifo":
            return [(self._oldest + i) % self._max_size for i in range(count)], [1.0] * count
        if self._sampling == "uniform":
            places = (self._oldest + self._random.integers(self._size, size=count)) % self._max_size
            return places.tolist(), [1.0 / self._size] * count
        total = np.cumsum(self._weights)
        places = np.searchsorted(total, self._random.random(count) * total[-1], side="right")
        places = np.minimum(places, np.flatnonzero(self._weights)[-1])  # rounding may give an index past the end
        return places.tolist(), (self._weights[places] / total[-1]).tolist()

    def _wait(self, ready: Callable[[], bool], timeout_seconds: float | None, count: int) -> None:
        context = CURRENT.get(None)
        budget = float("inf") if timeout_seconds is None else timeout_seconds
        while not self._changed.wait_for(ready, min(_WAIT_SECONDS, max(budget, 0.0))):
            budget -= _WAIT_SECONDS
            if context is not None and context.stop_requested:
                message = (
                    f"`Replay.sample` of {context.label!r} gave up waiting for {count} items: the program is stopping. "
                    "The program's nodes are shutting down, so the caller's `run` should return as well."
                )
                raise NodeError(message, stage=context.label)
            if budget <= 0:
                message = (
                    f"`Replay.sample` was asked for {count} items within {timeout_seconds} s, but the table has "
                    f"{self._size} (min_size {self._min_size}), after {self._inserted} inserts and {self._sampled} "
                    f"samples (samples_per_insert {self._rate}). Insert more, sample less, or wait longer."
                )
                raise TimeoutError(message)


class ReplayNode(ServiceNode):
    """A service node with a `Replay` table, e.g. `ReplayNode(10_000, sampling="prioritized", min_size=100)`.

    The node serves 256 concurrent calls, so `insert` is not blocked while fewer than 256 callers wait in `sample`.

    Example:
        >>> from workbench.launch import Program, launch
        >>> program = Program("table")
        >>> table = program.add_node(ReplayNode(10))
        >>> with launch(program) as launched:
        ...     launched.client(table).insert("first")
        ...     launched.client(table).counts()
        0
        {'size': 1, 'inserted': 1, 'sampled': 0}
    """

    concurrency = 256

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(cast(Any, Replay), *args, **kwargs)
