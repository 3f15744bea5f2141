"""Distances between mesh neighbours on the torus of a target."""

import math
from collections.abc import Sequence

from workbench.records.compiled import TargetRecord
from workbench.records.hardware import AxisRecord, DeviceRecord

# Length from which a torus dimension has wraparound links (Google Cloud's TPU system pages).
_WRAP_AT = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 16}
_CUBE = 4


def torus_wraps(target: TargetRecord) -> tuple[bool, ...]:
    """Returns which dimensions of a slice have wraparound links.

    3-D tori consist of cubes of 4x4x4 chips. A slice made of whole cubes has wraparound links in every dimension; a
    smaller slice has none.

    Example:
        >>> from workbench.aot import parse_target
        >>> torus_wraps(parse_target("v5e:8x16")), torus_wraps(parse_target("v5p:4x4x8"))
        ((False, True), (True, True, True))
    """
    sizes = tuple(map(int, target.topology.split("x")))
    if len(sizes) == 3:
        return (all(size % _CUBE == 0 for size in sizes),) * 3
    return tuple(size == _WRAP_AT.get(target.chip, 0) for size in sizes)


def mesh_axes(target: TargetRecord, axes: dict[str, int], devices: Sequence[DeviceRecord]) -> tuple[AxisRecord, ...]:
    """The axes with the mean and maximum hops between neighbours, including the hop that closes the ring.

    Hops are None if the devices have no coordinates (GPUs) or if an axis crosses slices.
    """
    sizes = tuple(axes.values())
    records = []
    for number, (name, size) in enumerate(axes.items()):
        hops = [] if size == 1 else _hops(target, devices, size, math.prod(sizes[number + 1 :]))
        if hops is None:
            records.append(AxisRecord(name=name, size=size))
        else:
            mean = sum(hops) / len(hops) if hops else 0.0
            records.append(AxisRecord(name=name, size=size, mean_hops=mean, max_hops=max(hops, default=0)))
    return tuple(records)


def _hops(target: TargetRecord, devices: Sequence[DeviceRecord], size: int, stride: int) -> list[int] | None:
    extents = tuple(map(int, target.topology.split("x")))
    wraps = torus_wraps(target)
    hops = []
    for place, device in enumerate(devices):
        step = place + stride if (place // stride) % size < size - 1 else place - (size - 1) * stride
        neighbour = devices[step]
        if device.coords is None or neighbour.coords is None or device.slice_index != neighbour.slice_index:
            return None
        away = 0
        for here, there, extent, wrap in zip(device.coords, neighbour.coords, extents, wraps, strict=False):
            straight = abs(here - there)
            away += min(straight, extent - straight) if wrap else straight
        hops.append(away)
    return hops
