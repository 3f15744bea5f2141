"""Arrays of several hosts: what of them this process can read."""

import jax
import numpy as np

from workbench._types import Device


def read_here(x: object) -> np.ndarray:
    """An array on the host, as far as this process addresses it.

    Args:
        x: Any array. One that is spread over the devices of several hosts is read shard by shard.

    Returns:
        The values. Where other hosts hold them the result is a `np.ma.MaskedArray` that leaves them out (underneath
        they are NaN, or 0 where the dtype has none).
    """
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return np.asarray(x)
    if x.is_fully_replicated:
        return np.asarray(x.addressable_data(0))
    missing = np.nan if np.dtype(x.dtype).kind in "fc" else 0
    values = np.ma.array(np.full(x.shape, missing, x.dtype), mask=True)
    for shard in x.addressable_shards:
        values[shard.index] = np.asarray(shard.data)
    return values


def is_here(device: Device) -> bool:
    """Returns whether a device belongs to this process."""
    return device.process_index == jax.process_index()
