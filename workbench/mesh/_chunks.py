"""Chunks of the clients of one device: one rule for execution, display and prices."""

import math


def chunk_shard(per_shard: int, chunk_size: int) -> tuple[int, int]:
    """The chunk size that is really used on a device, and the slots that its chunks take.

    Args:
        per_shard: Clients of the fullest device.
        chunk_size: How many were asked to be computed together.

    Returns:
        The largest divisor of `per_shard` from half of `chunk_size` on, so that nothing is padded, or else
        `chunk_size`; and the number of slots, a multiple of it: slots beyond `per_shard` are computed and masked.

    Example:
        >>> chunk_shard(9, 5), chunk_shard(5, 4)
        ((3, 9), (4, 8))
    """
    chunk_size = max(1, min(chunk_size, per_shard))
    even = (k for k in range(chunk_size, (chunk_size + 1) // 2 - 1, -1) if k and per_shard % k == 0)
    chunk_size = next(even, chunk_size)
    return chunk_size, math.ceil(per_shard / chunk_size) * chunk_size
