"""Chunks of the clients on one device: one rule for execution, display and costs."""

import math


def chunk_shard(per_shard: int, chunk_size: int) -> tuple[int, int]:
    """The effective chunk size on a device, and the total number of slots in the device's chunks.

    Returns: The chunk size and the number of slots, which is a multiple of the chunk size. The chunk size is the
        largest divisor of `per_shard` between half of `chunk_size` and `chunk_size`, because a divisor needs no
        padding. Without such a divisor, the chunk size is `chunk_size`. Slots beyond `per_shard` are computed, but
        masked.

    Example:
        >>> chunk_shard(9, 5), chunk_shard(5, 4)
        ((3, 9), (4, 8))
    """
    chunk_size = max(1, min(chunk_size, per_shard))
    even = (k for k in range(chunk_size, (chunk_size + 1) // 2 - 1, -1) if k and per_shard % k == 0)
    chunk_size = next(even, chunk_size)
    return chunk_size, math.ceil(per_shard / chunk_size) * chunk_size
