"""Coded shuffling: one message to all that several workers can each use, thanks to what they have already."""

import itertools
import math
from collections import defaultdict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from workbench.errors import ProgramError
from workbench.primitives import broadcast, map_fn, program


class ShufflePlan(NamedTuple):
    """Rows that each worker has and wants, and the rows that share a message.

    Attributes:
        caches: Rows that each worker holds before, `[workers, cached]`.
        batches: Rows that each worker is to have after, `[workers, rows / workers]`.
        messages: For each message the row that it brings to each worker, or −1, `[messages, workers]`.
        uncoded: How many rows would have to be sent one by one.
    """

    caches: np.ndarray
    batches: np.ndarray
    messages: np.ndarray
    uncoded: int


def plan_shuffle(rows: int, workers: int, cached: int, *, balanced: bool = False, seed: int = 0) -> ShufflePlan:
    """Draws a shuffle of rows among workers, and finds the messages that serve several of them at once.

    Rows that each of a group of workers wants, and that all others of the group hold, go into one message: their sum.

    Args:
        rows: q, a multiple of `workers`.
        workers: n.
        cached: s, rows that each worker can hold: those of its batch, and others at random.
        balanced: Whether every row is held by equally many workers (s n / q, a whole number), every group of this many
            holding equally many rows. Then every message serves one worker more than that.
        seed: Decides what is cached and the new order.

    Raises:
        ProgramError: if the rows do not divide, or a cache holds less than a batch or more than everything.

    Example:
        >>> plan = plan_shuffle(400, 4, 200)
        >>> plan.uncoded, len(plan.messages) < plan.uncoded
        (184, True)

    References:
        Lee et al., arXiv 1512.02673, section IV, Algorithm 2 (coded shuffling).
    """
    if workers < 2 or rows % workers or not rows // workers <= cached <= rows:
        message = (
            f"`plan_shuffle` was given {rows} rows, workers={workers} and cached={cached}. Every worker holds a batch "
            f"of rows / workers and room for others: pass a multiple of {workers} rows among 2 or more workers, and "
            f"{max(rows // max(workers, 1), 1)} to {rows} of them cached."
        )
        raise ProgramError(message)
    random = np.random.default_rng(seed)
    before, after = (random.permutation(rows).reshape(workers, -1) for _ in range(2))
    if balanced:
        caches = _balanced_caches(before, cached, rows)
    else:
        caches = np.stack([_fill(own, rows, cached, random) for own in before])
    holds = np.zeros((workers, rows), bool)
    np.put_along_axis(holds, caches, True, axis=1)
    queues: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    uncoded = 0
    for worker, batch in enumerate(after):
        for row in batch[~holds[worker, batch]]:
            group = tuple(sorted({worker, *np.flatnonzero(holds[:, row]).tolist()}))
            queues[group][worker].append(int(row))
            uncoded += 1
    messages = [column for queue in queues.values() for column in _columns(queue, workers)]
    return ShufflePlan(caches, after, np.array(messages, np.int32).reshape(-1, workers), uncoded)


def _fill(own: np.ndarray, rows: int, cached: int, random: np.random.Generator) -> np.ndarray:
    others = np.setdiff1d(np.arange(rows), own)
    return np.concatenate([own, random.choice(others, cached - len(own), replace=False)])


def _balanced_caches(before: np.ndarray, cached: int, rows: int) -> np.ndarray:
    """Gives the rows of each batch, one after the other, to every group of as many other workers as have room."""
    workers, batch = before.shape
    copies = cached * workers // rows
    if cached * workers % rows or batch % math.comb(workers - 1, copies - 1):
        message = (
            f"`plan_shuffle` was given cached={cached} and balanced=True for {rows} rows among {workers} workers. "
            "Every row is held by `cached * workers / rows` workers, a whole number t, and every batch is dealt "
            "evenly to the groups of t − 1 others: pass a multiple of rows / workers, and batches that C(workers − 1, "
            "t − 1) divides."
        )
        raise ProgramError(message)
    held: list[list[int]] = [batch_.tolist() for batch_ in before]
    for owner, own in enumerate(before.tolist()):
        groups = itertools.combinations([w for w in range(workers) if w != owner], copies - 1)
        for row, group in zip(own, itertools.cycle(groups), strict=False):
            for worker in group:
                held[worker].append(row)
    return np.array(held)


def _columns(queue: dict[int, list[int]], workers: int) -> list[list[int]]:
    """The messages of one group: its workers' wishes side by side, as long as the longest list."""
    longest = max(map(len, queue.values()))
    wishes = [queue.get(worker, []) for worker in range(workers)]
    return [[wish[i] if i < len(wish) else -1 for wish in wishes] for i in range(longest)]


def coded_shuffle(plan: ShufflePlan, data: UInt32[Array, " rows width"]) -> UInt32[Array, " workers batch width"]:
    """Sends the messages of a plan and lets every worker read its new batch out of them and out of its cache.

    A message is the exclusive or of its rows; a worker takes those that it holds out of it again. Broadcasts every
    message once to all workers.

    Args:
        plan: From `plan_shuffle`.
        data: All rows, at the server, as 32-bit words (`jax.lax.bitcast_convert_type` makes them of floats).

    Returns:
        The workers' new batches, as they decoded them.

    Example:
        >>> plan = plan_shuffle(40, 4, 20)
        >>> data = jnp.arange(40, dtype=jnp.uint32)[:, None]
        >>> bool(np.array_equal(coded_shuffle(plan, data)[..., 0], plan.batches))
        True

    References:
        Lee et al., arXiv 1512.02673, section IV.
    """
    workers = len(plan.caches)
    empty = jnp.zeros_like(data[:1])
    known = jnp.concatenate([data, empty])  # row −1 is the empty one
    coded = jax.lax.reduce(known[plan.messages], jnp.uint32(0), jax.lax.bitwise_xor, (1,))
    held = data[plan.caches]  # what earlier rounds left at the workers

    def read(messages: Array, cache: Array, sources: Array, parts: Array) -> Array:
        with_empty = jnp.concatenate([cache, jnp.zeros_like(cache[:1])])
        mixed = jnp.concatenate([messages, jnp.zeros_like(messages[:1])])[sources]
        return jax.lax.reduce(with_empty[parts], jnp.uint32(0), jax.lax.bitwise_xor, (1,)) ^ mixed

    with program(clients=workers):
        return map_fn(read, (broadcast(coded), held, *map(jnp.asarray, _reading_tables(plan))))


def _reading_tables(plan: ShufflePlan) -> tuple[np.ndarray, np.ndarray]:
    """For each wanted row the message that holds it (−1: none), and the cached rows to take out (−1: none).

    A row that a worker holds already comes out of no message: "taking it out" of nothing leaves it.
    """
    workers, batch = plan.batches.shape
    sources = np.full((workers, batch), -1, np.int32)
    parts = np.full((workers, batch, workers), -1, np.int32)
    for worker in range(workers):
        place = {int(row): at for at, row in enumerate(plan.caches[worker])}
        brought = {int(row): number for number, row in enumerate(plan.messages[:, worker]) if row >= 0}
        for at, row in enumerate(plan.batches[worker].tolist()):
            if row in place:
                parts[worker, at, 0] = place[row]
                continue
            sources[worker, at] = brought[row]
            others = [int(r) for r in plan.messages[brought[row]] if r >= 0 and r != row]
            parts[worker, at, : len(others)] = [place[r] for r in others]
    return sources, parts


def shuffle_messages(
    rows: int, workers: int, share: float, *, gamma: float | None = None, balanced: bool = False
) -> tuple[float, float]:
    """Average cost of a shuffle, uncoded and coded, for many rows, in messages to one worker.

    Args:
        rows: q.
        workers: n.
        share: α, the share of the rows that each worker holds.
        gamma: γ(n), the cost of n messages to one worker each, in messages to all. Default: n, so that a message to all
            costs as much as one to one worker.
        balanced: As in `plan_shuffle`.

    Returns:
        `(uncoded, coded)`; the ratio is the gain. Uncoded q (1 − α). Coded, with balanced caches, (α + 1/n) γ(n) times
        less; with random ones q / (n p)² ((1 − p)ⁿ⁺¹ + (n − 1) p (1 − p) − (1 − p)²) messages to all, where
        p = (α − 1/n) / (1 − 1/n) is the chance that a worker holds a row beyond its batch. For many workers, that is
        α γ(n) times less.

    Example:
        >>> uncoded, coded = shuffle_messages(10_000, 8, 0.5)
        >>> uncoded, round(uncoded / coded, 2)
        (5000.0, 4.22)
        >>> shuffle_messages(10_000, 8, 0.5, gamma=4, balanced=True)
        (5000.0, 2000.0)

    References:
        Lee et al., arXiv 1512.02673, theorem 3.
    """
    to_all = workers / (workers if gamma is None else gamma)
    uncoded, held = rows * (1 - share), (share - 1 / workers) / (1 - 1 / workers)
    if balanced:
        return uncoded, uncoded / (share * workers + 1) * to_all
    if held == 0:  # nothing beyond the batch: a row is at one worker, so messages serve two at a time
        return uncoded, uncoded / 2 * to_all
    missing = 1 - held
    factor = missing ** (workers + 1) + (workers - 1) * held * missing - missing**2
    return uncoded, rows / (workers * held) ** 2 * factor * to_all
