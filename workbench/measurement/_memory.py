"""Current memory use of the devices."""

import contextlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from workbench._jax_compat.profiler import user_frame_of
from workbench._types import Device
from workbench.mesh import is_here
from workbench.plan import is_user_file
from workbench.records.live import ArrayRecord
from workbench.records.program import SourceLine


class DeviceMemory(NamedTuple):
    """Memory of one device in bytes; None if the backend does not report it.

    `source` names the source of the values.
    """

    in_use: int | None
    peak: int | None
    limit: int | None
    source: str  # "memory_stats", "live_arrays"


def device_label(device: Device) -> str:
    """A short name such as "cpu:3"."""
    return f"{device.platform}:{device.id}"


def read_memory(device: Device, live: dict[int, int] | None = None) -> DeviceMemory:
    """Reads a device's memory use from the backend, or otherwise from its live arrays."""
    if not is_here(device):
        return DeviceMemory(None, None, None, "another host")
    stats = device.memory_stats()
    if stats:
        peak = stats.get("peak_bytes_in_use")
        if device.platform == "tpu":
            peak = _with_programs(peak, stats)
        return DeviceMemory(stats.get("bytes_in_use"), peak, stats.get("bytes_limit"), "memory_stats")
    live = live_bytes() if live is None else live
    return DeviceMemory(live.get(device.id, 0), None, None, "live_arrays")


def free_bytes(devices: Sequence[Device]) -> int | None:
    """Free bytes on the fullest device; None if neither backend nor host reports memory.

    Devices without memory statistics are CPU devices, which share the host's memory.
    """
    readings = [read_memory(device, {}) for device in devices]
    free = [r.limit - r.in_use for r in readings if r.limit is not None and r.in_use is not None]
    if free:
        return min(free)
    try:
        with pathlib.Path("/proc/meminfo").open(encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024 // max(1, len(devices))
    except (OSError, KeyError, ValueError):
        return None


def _with_programs(peak: int | None, stats: Mapping[str, int]) -> int | None:
    """Adds program memory to a TPU's peak, which counts only arrays.

    Program reservations reduce the largest free block.
    """
    limit, free = stats.get("bytes_limit"), stats.get("largest_free_block_bytes")
    if peak is None or limit is None or free is None:
        return peak
    return max(peak, limit - free)


def live_bytes(arrays: Iterable[Any] | None = None) -> dict[int, int]:
    """Sums the bytes of live arrays per device id.

    Example:
        >>> live_bytes([jnp.ones((4, 2))])
        {0: 32}
    """
    total: dict[int, int] = {}
    for array in own_arrays(jax.live_arrays() if arrays is None else arrays):
        for device, size in bytes_per_device(array):
            total[device.id] = total.get(device.id, 0) + size
    return total


def own_arrays(arrays: Iterable[Any]) -> list[Any]:
    """Selects arrays that own memory; views of another array's shard are left out."""
    all_arrays = list(arrays)
    shared = _shard_views(all_arrays)
    return [array for array in all_arrays if id(array) not in shared]


def _shard_views(arrays: Sequence[Any]) -> set[int]:
    """Finds the ids of arrays that are views of a shard, created by `x.addressable_shards`.

    Reading an array's shards creates such views. Arrays without any view are therefore not read.
    """
    alone: dict[Any, list[Any]] = {}
    spread = []
    for array in arrays:
        with contextlib.suppress(RuntimeError, ValueError):
            if array.is_deleted() or not array.is_fully_addressable:
                continue
            if len(array.sharding.device_set) == 1:
                alone.setdefault((array.shape, array.dtype), []).append(array)
            else:
                spread.append((array, (array.sharding.shard_shape(array.shape), array.dtype)))
    views: set[int] = set()
    for array, form in spread:
        if form in alone:
            with contextlib.suppress(Exception):  # deleted in the meantime, or memory without an address
                addresses = {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
                views.update(id(view) for view in alone[form] if view.unsafe_buffer_pointer() in addresses)
    return views


def largest_arrays(count: int, arrays: Sequence[Any] | None = None) -> tuple[ArrayRecord, ...]:
    """Lists the live arrays that use the most memory over all devices, largest first.

    Example:
        >>> import jax.numpy as jnp
        >>> big = jnp.zeros((1000, 1000))
        >>> largest_arrays(1)[0].size_bytes >= 4_000_000
        True
    """
    sizes = []
    for array in jax.live_arrays() if arrays is None else arrays:
        shards = bytes_per_device(array)
        if shards:
            sizes.append((sum(size for _, size in shards), len(sizes), array, shards))
    sizes.sort(key=lambda item: (-item[0], item[1]))
    return tuple(_array_record(array, shards) for _, _, array, shards in sizes[:count])


def bytes_per_device(array: jax.Array) -> list[tuple[Any, int]]:
    """Lists this host's devices that store a part of an array, with the part's bytes; empty for a deleted array.

    Uses only the sharding, because reading the shards would create new arrays.
    """
    try:
        if array.is_deleted():
            return []
        size = array.dtype.itemsize
        for dimension in array.sharding.shard_shape(array.shape):
            size *= dimension
        return [(device, size) for device in array.sharding.addressable_devices]
    except (RuntimeError, ValueError):  # deleted in the meantime, or a sharding that does not fit the shape
        return []


def _array_record(array: jax.Array, shards: list[tuple[Any, int]]) -> ArrayRecord:
    frame = user_frame_of(array, is_user_file)
    spec = getattr(array.sharding, "spec", None)
    return ArrayRecord(
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        size_bytes=sum(size for _, size in shards),
        bytes_per_device={
            device_label(device): size
            for device, size in sorted(shards, key=lambda item: (item[0].platform, item[0].id))
        },
        sharding=str(spec) if spec is not None else type(array.sharding).__name__,
        made_at=SourceLine(file=frame[0], line=frame[1], function=frame[2]) if frame else None,
    )
