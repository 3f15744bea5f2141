"""Reads a mesh: its devices, their positions on the torus, hops along axes, and each device's clients."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from workbench._types import Device
from workbench.errors import InspectionError, MeshError
from workbench.records.hardware import AxisRecord, ClientRange, DeviceRecord, MeshRecord
from workbench.records.program import PlacementRecord

# Length from which a torus dimension has wraparound links, per generation (Google Cloud's TPU system pages).
_WRAP_EVERY_4 = ("v4", "v5", "v5p", "7x", "v7x")
_WRAP_AT = {"v2": 16, "v3": 32, "v5 lite": 16, "v5e": 16, "v6 lite": 16, "v6e": 16}


def inspect_mesh(mesh: Mesh | AbstractMesh) -> MeshRecord:
    """Reads a mesh of attached devices, of an ahead-of-time topology, or of abstract devices.

    Hops are counted along every mesh axis on the physical torus. The counts include the hop that closes the ring, and
    use wraparound links if the TPU generation has them. Hops are None if the devices have no coordinates (CPU, GPU,
    abstract) or if the axis crosses slices. The compiler may reorder a ring inside a group, so hops are distances
    between mesh neighbours rather than the compiler's route.

    Args:
        mesh: A `jax.sharding.Mesh` (also one with `topologies.get_topology_desc(...)` devices) or an `AbstractMesh`.

    Returns:
        The axes in order and the devices in row-major order; for an empty mesh, no axes and no devices.

    Raises:
        InspectionError: if `mesh` is neither a `Mesh` nor an `AbstractMesh`.

    Example:
        >>> record = inspect_mesh(AbstractMesh((4, 2), ("clients", "model")))
        >>> record.shape, record.abstract, record.devices[3].position
        ((4, 2), True, (1, 1))
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        message = (
            f"`inspect_mesh` was given {_described(mesh)}. Only a mesh has axes and devices: pass a "
            "`jax.sharding.Mesh` (`wb.make_mesh(clients=4)`) or a `jax.sharding.AbstractMesh`; for an array, use "
            "`inspect_sharding`."
        )
        raise InspectionError(message)
    shape = tuple(mesh.axis_sizes)
    if isinstance(mesh, AbstractMesh):
        devices = _abstract_devices(mesh, shape)
        hops: list[tuple[float | None, int | None]] = [(None, None)] * len(shape)
    else:
        devices = tuple(
            _device_record(device, position)
            for position, device in zip(np.ndindex(shape), mesh.devices.flat, strict=True)
        )
        hops = _hops(devices, shape)
    axes = tuple(
        AxisRecord(name=str(name), size=size, type=_axis_type(kind), mean_hops=mean, max_hops=most)
        for name, size, kind, (mean, most) in zip(mesh.axis_names, shape, mesh.axis_types, hops, strict=True)
    )
    torus = _torus(devices) if shape else None
    return MeshRecord(
        axes=axes,
        devices=devices if shape else (),
        abstract=isinstance(mesh, AbstractMesh),
        wraps=None if torus is None else tuple(map(bool, torus.wraps)),
    )


def order_of_jax(mesh: MeshRecord) -> MeshRecord | None:
    """The same devices in the order that `jax.make_mesh` chooses for a mesh of this shape.

    Args:
        mesh: A mesh from `inspect_mesh`, or the mesh of a target.

    Returns:
        The mesh in that order, with its hops counted again. None if JAX does not reorder the devices, because they have
        no coordinates, span several slices, or form a shape that `jax.make_mesh` rejects.

    Example:
        >>> order_of_jax(inspect_mesh(AbstractMesh((4, 2), ("clients", "model")))) is None
        True
    """
    if _torus(mesh.devices) is None or len({device.slice_index for device in mesh.devices}) > 1:
        return None
    device_of = {device.id: device for device in mesh.devices}
    stand_ins = [
        _StandIn(**{name: getattr(device_of[id_], field) for name, field in _FIELDS.items()})
        for id_ in sorted(device_of)
    ]
    try:
        ordered = mesh_utils.create_device_mesh(mesh.shape, stand_ins)
    except (ValueError, NotImplementedError, AssertionError, LookupError):
        return None
    devices = tuple(
        device_of[device.id].replace(position=position)
        for position, device in zip(np.ndindex(mesh.shape), ordered.flat, strict=True)
    )
    hops = _hops(devices, mesh.shape)
    axes = tuple(
        axis.replace(mean_hops=mean, max_hops=most) for axis, (mean, most) in zip(mesh.axes, hops, strict=True)
    )
    return mesh.replace(devices=devices, axes=axes, clients=())


@dataclasses.dataclass(frozen=True)
class _StandIn:
    """A device in the form that `mesh_utils` expects."""

    id: int
    platform: str
    device_kind: str
    coords: tuple[int, ...]
    process_index: int
    core_on_chip: int | None
    slice_index: int | None


_FIELDS = {
    "id": "id", "platform": "platform", "device_kind": "kind", "coords": "coords", "process_index": "host",
    "core_on_chip": "core_on_chip", "slice_index": "slice_index",
}  # fmt: skip
_MOST_DEVICES = 2048


def link_distances(mesh: MeshRecord) -> np.ndarray | None:
    """Number of torus links between every pair of devices in a mesh.

    Returns:
        Shape (devices, devices), in mesh order; None if the devices have no coordinates, span several slices, or number
        more than 2,048.
    """
    torus = _torus(mesh.devices)
    if torus is None or len(mesh.devices) > _MOST_DEVICES or len({device.slice_index for device in mesh.devices}) > 1:
        return None
    return torus.links(torus.coords[:, None], torus.coords[None])


def place_clients(mesh: MeshRecord, placement: PlacementRecord) -> MeshRecord:
    """Returns a mesh with the clients that each device holds for a placement.

    Clients are assigned in order along the placement's mesh axes (the first axis outermost). Each device receives
    `slots_per_device` clients, or otherwise `ceil(clients / devices along these axes)`; the last devices may have empty
    slots (`padding`). Devices that differ only along other axes hold the same clients.

    Returns:
        A copy of `mesh` whose `clients` has one more `ClientRange` per device.

    Example:
        >>> mesh = inspect_mesh(AbstractMesh((4,), ("clients",)))
        >>> placed = place_clients(mesh, PlacementRecord(name="clients", size=10, mesh_axes=("clients",)))
        >>> [(held.start, held.stop, held.padding) for held in placed.clients]
        [(0, 3, 0), (3, 6, 0), (6, 9, 0), (9, 10, 2)]
    """
    names = [axis.name for axis in mesh.axes]
    missing = [name for name in placement.mesh_axes if name not in names]
    if missing:
        message = (
            f"`place_clients` was given placement {placement.name!r} over mesh axes {placement.mesh_axes}, but the "
            f"mesh lacks {', '.join(map(repr, missing))}: it has {tuple(names)}. A placement is spread over axes of "
            "its mesh: name existing axes, add them to the mesh, or leave `mesh_axes` empty to replicate the clients."
        )
        raise MeshError(message)
    where = [names.index(name) for name in placement.mesh_axes]
    shape = mesh.shape
    parts = math.prod(shape[axis] for axis in where)
    share = placement.slots_per_device or -(-placement.size // parts)
    ranges = []
    for device in mesh.devices:
        part = 0
        for axis in where:
            part = part * shape[axis] + device.position[axis]
        start, stop = min(part * share, placement.size), min((part + 1) * share, placement.size)
        ranges.append(
            ClientRange(
                placement=placement.name, device_id=device.id, start=start, stop=stop, padding=share - (stop - start)
            )
        )
    other_ranges = tuple(range_ for range_ in mesh.clients if range_.placement != placement.name)
    return mesh.replace(clients=other_ranges + tuple(ranges))


def _described(value: object) -> str:
    text = repr(value)
    return f"an object of type {type(value).__name__}: {text if len(text) <= 80 else text[:77] + '...'}"


def _axis_type(kind: AxisType) -> Literal["auto", "explicit", "manual"]:
    name = kind.name.lower()
    return name if name in ("explicit", "manual") else "auto"


def _abstract_devices(mesh: AbstractMesh, shape: Sequence[int]) -> tuple[DeviceRecord, ...]:
    device = mesh.abstract_device
    platform, kind = (getattr(device, "platform", None) or "", getattr(device, "device_kind", None) or "")
    return tuple(
        DeviceRecord(id=number, position=position, platform=platform, kind=kind)
        for number, position in enumerate(np.ndindex(*shape))
    )


def _device_record(device: Device, position: tuple[int, ...]) -> DeviceRecord:
    coords = getattr(device, "coords", None)
    return DeviceRecord(
        id=int(device.id),
        position=position,
        platform=str(device.platform),
        kind=str(device.device_kind),
        host=int(device.process_index),
        coords=None if coords is None else tuple(int(coordinate) for coordinate in coords),
        core_on_chip=getattr(device, "core_on_chip", None),
        slice_index=getattr(device, "slice_index", None),
    )


def _hops(devices: Sequence[DeviceRecord], shape: tuple[int, ...]) -> list[tuple[float | None, int | None]]:
    """Mean and largest number of hops between neighbours along every axis, including the hop that closes the ring."""
    torus = _torus(devices)
    if torus is None:
        return [(None, None)] * len(shape)
    coords = torus.coords.reshape(*shape, -1)
    slices = np.array([device.slice_index for device in devices]).reshape(shape)
    hops: list[tuple[float | None, int | None]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            hops.append((0.0, 0))
        elif (slices != slices.take([0], axis=axis)).any():
            hops.append((None, None))  # data-centre network between slices, so there are no hops to count
        else:
            away = torus.links(coords, np.roll(coords, 1, axis=axis))
            hops.append((float(away.mean()), int(away.max())))
    return hops


class _Torus(NamedTuple):
    """The box that devices fill on a torus."""

    coords: np.ndarray  # (devices, dimensions)
    extent: np.ndarray
    wraps: np.ndarray  # dimensions with wraparound links

    def links(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Number of links between coordinates."""
        away = np.abs(a - b)
        return np.where(self.wraps, np.minimum(away, self.extent - away), away).sum(axis=-1)


def _torus(devices: Sequence[DeviceRecord]) -> _Torus | None:
    if not devices or any(device.coords is None for device in devices):
        return None
    coords = np.array([device.coords for device in devices])
    extent = coords.max(axis=0) - coords.min(axis=0) + 1
    return _Torus(coords, extent, _wraps(devices[0].kind, extent))


def _wraps(kind: str, extent: np.ndarray) -> np.ndarray:
    """Torus dimensions with wraparound links."""
    generation = kind.lower().removeprefix("tpu").strip()
    if generation in _WRAP_EVERY_4:
        return extent % 4 == 0
    return extent == _WRAP_AT.get(generation, -1)
