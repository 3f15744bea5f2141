"""Coded shuffling: with cached rows, one message serves several workers."""

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
        caches: Rows that each worker caches before the shuffle, `[workers, cached]`.
        batches: Rows of each worker's batch after the shuffle, `[workers, rows / workers]`.
        messages: The row that each message delivers to each worker, or −1, `[messages, workers]`.
        uncoded: Number of rows that an uncoded shuffle sends.
    """

    caches: np.ndarray
    batches: np.ndarray
    messages: np.ndarray
    uncoded: int


def plan_shuffle(rows: int, workers: int, cached: int, *, balanced: bool = False, seed: int = 0) -> ShufflePlan:
    """Draws a shuffle of rows among workers, and plans its coded messages.

    A message to a group of workers is the sum of one wanted row per worker. All other workers in the group have that
    row in their caches.

    Args:
        rows: q, a multiple of `workers`.
        workers: n.
        cached: s, the number of rows in each worker's cache, which contains the rows of its batch and other random
            rows.
        balanced: Whether every row is in exactly t = s n / q caches, and every group of t workers shares the same
            number of rows. Each message then serves t + 1 workers. t must be a whole number.
        seed: Seed for the caches and the new order.

    Raises:
        ProgramError: if the rows do not divide evenly, or a cache is smaller than a batch or larger than the data.

    Example:
        >>> plan = plan_shuffle(400, 4, 200)
        >>> plan.uncoded, len(plan.messages) < plan.uncoded
        (184, True)

    References:
        Lee et al., arXiv 1512.02673, section IV, Algorithm 2 (coded shuffling).
    """
    if workers < 2 or rows % workers or not rows // workers <= cached <= rows:
        message = (
            f"`plan_shuffle` was given {rows} rows, workers={workers} and cached={cached}. Every worker caches a batch "
            f"of `rows / workers` rows, and possibly further rows: pass 2 or more workers, a multiple of {workers} "
            f"rows, and a `cached` from {max(rows // max(workers, 1), 1)} to {rows}."
        )
        raise ProgramError(message)
    random = np.random.default_rng(seed)
    before, after = (random.permutation(rows).reshape(workers, -1) for _ in range(2))
    if balanced:
        caches = _balanced_caches(before, cached, rows)
    else:
        caches = np.stack([_fill(batch_rows, rows, cached, random) for batch_rows in before])
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


def _fill(batch: np.ndarray, rows: int, cached: int, random: np.random.Generator) -> np.ndarray:
    candidates = np.setdiff1d(np.arange(rows), batch)
    return np.concatenate([batch, random.choice(candidates, cached - len(batch), replace=False)])


def _balanced_caches(before: np.ndarray, cached: int, rows: int) -> np.ndarray:
    """Fills caches by assigning the rows of each batch to groups of other workers in rotation."""
    workers, batch = before.shape
    copies = cached * workers // rows
    if cached * workers % rows or batch % math.comb(workers - 1, copies - 1):
        message = (
            f"`plan_shuffle` was given cached={cached} and balanced=True for {rows} rows among {workers} workers. In a "
            "balanced plan, t = `cached * workers / rows` workers cache every row, and every batch is spread evenly "
            "over the groups of t − 1 other workers, so t must be a whole number: pass a `cached` that is a multiple "
            "of rows / workers, and batches whose size is a multiple of C(workers − 1, t − 1)."
        )
        raise ProgramError(message)
    caches: list[list[int]] = [batch_.tolist() for batch_ in before]
    for owner, batch_rows in enumerate(before.tolist()):
        groups = itertools.combinations([w for w in range(workers) if w != owner], copies - 1)
        for row, group in zip(batch_rows, itertools.cycle(groups), strict=False):
            for worker in group:
                caches[worker].append(row)
    return np.array(caches)


def _columns(queue: dict[int, list[int]], workers: int) -> list[list[int]]:
    """Aligns the row queues of a group's workers into messages, padded with −1."""
    longest = max(map(len, queue.values()))
    wishes = [queue.get(worker, []) for worker in range(workers)]
    return [[wish[i] if i < len(wish) else -1 for wish in wishes] for i in range(longest)]


def coded_shuffle(plan: ShufflePlan, data: UInt32[Array, " rows width"]) -> UInt32[Array, " workers batch width"]:
    """Sends the messages of a plan and decodes every worker's new batch.

    A message is the XOR of its rows. A worker removes its cached rows with a second XOR. Broadcasts every message once
    to all workers.

    Args:
        plan: From `plan_shuffle`.
        data: All rows, at the server, as 32-bit words (use `jax.lax.bitcast_convert_type` for floats).

    Returns:
        The new batch of each worker, decoded.

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
    table = jnp.concatenate([data, empty])  # row −1 is the empty row
    coded = jax.lax.reduce(table[plan.messages], jnp.uint32(0), jax.lax.bitwise_xor, (1,))
    caches = data[plan.caches]  # rows cached in earlier rounds

    def decode(messages: Array, cache: Array, sources: Array, parts: Array) -> Array:
        with_empty = jnp.concatenate([cache, jnp.zeros_like(cache[:1])])
        mixed = jnp.concatenate([messages, jnp.zeros_like(messages[:1])])[sources]
        return jax.lax.reduce(with_empty[parts], jnp.uint32(0), jax.lax.bitwise_xor, (1,)) ^ mixed

    with program(clients=workers):
        return map_fn(decode, (broadcast(coded), caches, *map(jnp.asarray, _reading_tables(plan))))


def _reading_tables(plan: ShufflePlan) -> tuple[np.ndarray, np.ndarray]:
    """Finds each wanted row's message and the cached rows to remove from it (−1 if there are none).

    A row that is already cached has no message; removing it from an empty message yields the row itself.
    """
    workers, batch = plan.batches.shape
    sources = np.full((workers, batch), -1, np.int32)
    parts = np.full((workers, batch, workers), -1, np.int32)
    for worker in range(workers):
        place = {int(row): at for at, row in enumerate(plan.caches[worker])}
        message_of = {int(row): number for number, row in enumerate(plan.messages[:, worker]) if row >= 0}
        for at, row in enumerate(plan.batches[worker].tolist()):
            if row in place:
                parts[worker, at, 0] = place[row]
                continue
            sources[worker, at] = message_of[row]
            removals = [int(r) for r in plan.messages[message_of[row]] if r >= 0 and r != row]
            parts[worker, at, : len(removals)] = [place[r] for r in removals]
    return sources, parts


def shuffle_messages(
    rows: int, workers: int, share: float, *, gamma: float | None = None, balanced: bool = False
) -> tuple[float, float]:
    """Computes the mean cost of uncoded and coded shuffles, in unicast messages.

    Args:
        rows: q.
        workers: n.
        share: α, the share of the rows in each worker's cache.
        gamma: γ(n), the cost of n messages to single workers divided by the cost of one message to all workers.
            Default: n; a message to all workers then costs as much as a message to one worker.
        balanced: As in `plan_shuffle`.

    Returns:
        `(uncoded, coded)`; the ratio is the gain. The uncoded cost is q (1 − α). With balanced caches, the coded cost
        is (α + 1/n) γ(n) times smaller than the uncoded cost. With random caches, the cost is q / (n p)² ((1 − p)ⁿ⁺¹ +
        (n − 1) p (1 − p) − (1 − p)²) messages to all workers, where p = (α − 1/n) / (1 − 1/n) is the probability that a
        worker caches a row outside its batch. For many workers, the coded cost is then α γ(n) times smaller than the
        uncoded cost.

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
    uncoded, fraction = rows * (1 - share), (share - 1 / workers) / (1 - 1 / workers)
    if balanced:
        return uncoded, uncoded / (share * workers + 1) * to_all
    if fraction == 0:  # caches contain only the batch: each row is at one worker, so a message serves two workers
        return uncoded, uncoded / 2 * to_all
    missing = 1 - fraction
    factor = missing ** (workers + 1) + (workers - 1) * fraction * missing - missing**2
    return uncoded, rows / (workers * fraction) ** 2 * factor * to_all
