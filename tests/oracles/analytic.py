"""What a program costs, from its shapes alone: products, rings, slots, rounds. Written without the library's code."""

import heapq
import math
from collections.abc import Sequence


def product_flops(*shapes: Sequence[int], complex_numbers: bool = False) -> float:
    """FLOPs of a chain of matrix products, left to right: `(m, k)`, `(k, n)`, ….

    Example:
        >>> product_flops((2, 3), (3, 4))
        48.0
    """
    total, (rows, columns) = 0.0, shapes[0]
    for inner, width in shapes[1:]:
        assert inner == columns
        total += 2.0 * rows * columns * width * (4 if complex_numbers else 1)
        columns = width
    return total


def ring_bytes(kind: str, whole_bytes: float, devices: int) -> float:
    """Bytes that one device of a ring sends: counted step by step, one part to the next neighbour in each.

    Example:
        >>> ring_bytes("all-reduce", 800.0, 4)
        1200.0
    """
    part = whole_bytes / devices
    steps = {"all-reduce": 2 * (devices - 1), "all-gather": devices - 1, "reduce-scatter": devices - 1}[kind]
    return sum(part for _ in range(steps))


def slots(clients: int, devices: int, chunk_size: int) -> list[list[int]]:
    """The clients of each device, in order, as many as its chunks have room for; -1 is an empty slot.

    A chunk size that leaves no slot empty is preferred from half of what was asked for on.
    """
    share = -(-clients // devices)
    wanted = min(chunk_size, share)
    fitting = [size for size in range(wanted, 0, -1) if share % size == 0 and 2 * size >= wanted]
    size = fitting[0] if fitting else wanted
    width = -(-share // size) * size
    numbers = [client if client < clients else -1 for client in range(devices * width)]
    return [numbers[device * width : (device + 1) * width] for device in range(devices)]


def synchronous_round(seconds: Sequence[float], leaves_after: Sequence[float], wanted: int | None) -> float:
    """When a round ends, by playing its events in order: a client finishes, or leaves before that."""
    pairs = enumerate(zip(seconds, leaves_after, strict=True))
    events = [(min(needed, leaves), needed <= leaves, client) for client, (needed, leaves) in pairs]
    heapq.heapify(events)
    now, finished = 0.0, 0
    while events:
        now, done, _ = heapq.heappop(events)
        finished += done
        if wanted is not None and finished == wanted:
            break
    return now


def iterations(start: int, bound: int, step: int) -> int:
    """How often `while start < bound: start += step` runs, by running it."""
    count = 0
    while start < bound:
        start, count = start + step, count + 1
    return count


def padding_share(examples: Sequence[int], held: int, empty_slots: int = 0) -> float:
    """The share of the computed examples that are padding, where the arrays hold `held` for every client."""
    computed = held * (len(examples) + empty_slots)
    return 1 - math.fsum(examples) / computed
