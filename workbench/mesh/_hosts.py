"""Reads the parts of multi-host arrays that this process can address."""

import jax
import numpy as np

from workbench._types import Device


def read_here(x: object) -> np.ndarray:
    """Copies the addressable shards of an array to the host.

    Returns:
        The values. If other hosts hold shards, the result is a `np.ma.MaskedArray` in which these shards are masked
        (their data are NaN, or 0 for dtypes without NaN).
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
