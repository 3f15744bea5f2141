"""Finds out how the arrays of a pytree are placed on devices, without reading their data."""

import collections
import dataclasses
import math
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from workbench._types import Argument
from workbench.errors import InspectionError
from workbench.inspection.sharding._mesh import inspect_mesh
from workbench.records.hardware import MeshRecord
from workbench.records.sharding import LeafShardingRecord, ShardingKind, ShardingRecord, ShardRecord

SHARDS_LISTED = 20_000


def inspect_sharding(tree: object, *, shards_at_most: int = SHARDS_LISTED) -> ShardingRecord:
    """Reads how each array in a pytree is sharded and which slice each device holds; moves no data.

    Leaves may be concrete arrays with any sharding, PRNG keys, `ShapeDtypeStruct`s (on a concrete or abstract mesh),
    NumPy arrays, Python numbers and tracers. A deleted (donated) array keeps its record, with a note.

    Args:
        tree: The pytree, or a single array.
        shards_at_most: Number of slices to list over all leaves, starting with the largest leaves. Other leaves are
            only summarised (shard shape, bytes and replication, but no `shards`); a note in `notes` says so.

    Returns:
        One `LeafShardingRecord` per array, in the order of the tree. `bytes_per_device` is the number of bytes on the
        fullest device. Host arrays are not on any device and count as 0; arrays with unknown sharding are counted in
        full.

    Raises:
        InspectionError: if leaves are not arrays; the message names all of them.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((4, 2), ("clients", "model"))
        >>> spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
        >>> leaf = inspect_sharding(jax.ShapeDtypeStruct((8, 3), "float32", sharding=spec)).leaves[0]
        >>> leaf.shard_shape, leaf.bytes_per_device, leaf.replication
        ((2, 3), 24, 2)
    """
    entries = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    strange = [(path, leaf) for path, leaf in entries if not _is_array(leaf)]
    if strange:
        raise InspectionError(_strange_message(strange))
    layouts = _Layouts()
    leaves = [_leaf(path, leaf, layouts) for path, leaf in entries]
    listed = _with_shards([leaf for leaf, _ in leaves], [layout for _, layout in leaves], shards_at_most)
    notes = list(_tree_notes(listed, layouts))
    if any(leaf.kind == "unknown" for leaf in listed):
        notes.append("arrays without a known sharding count in full: `bytes_per_device` is an upper bound")
    return ShardingRecord(
        leaves=tuple(listed),
        mesh=layouts.common_mesh(),
        total_bytes=sum(leaf.size_bytes for leaf in listed),
        bytes_per_device=_fullest(leaves),
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Partition of one shape by one sharding; leaves with the same shape and sharding share it."""

    spec: tuple[tuple[str, ...], ...]
    shard_shape: tuple[int, ...]
    replication: int
    kind: ShardingKind
    device_ids: tuple[int, ...] = ()
    mesh: Mesh | AbstractMesh | None = None
    counts: tuple[int, ...] = ()  # parts per dimension
    placed: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...] | None = None  # if only an index map is known
    memory_kind: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[int, ...]:
        return self.counts or (1,) * len(self.shard_shape)


class _Layouts:
    """Layouts by (sharding, shape), computed only once, because trees repeat them hundreds of times."""

    def __init__(self) -> None:
        self._layouts: dict[Any, _Layout] = {}
        self._meshes: collections.Counter[Any] = collections.Counter()
        self._ids: dict[Any, tuple[int, ...]] = {}

    def __call__(self, sharding: Sharding, shape: tuple[int, ...]) -> _Layout:
        key = (sharding, shape)
        if key not in self._layouts:
            self._layouts[key] = self._read(sharding, shape)
        layout = self._layouts[key]
        if layout.mesh is not None:
            self._meshes[layout.mesh] += 1
        return layout

    def _read(self, sharding: Sharding, shape: tuple[int, ...]) -> _Layout:
        if isinstance(sharding, NamedSharding):
            if sharding.mesh not in self._ids:
                self._ids[sharding.mesh] = _device_ids(sharding.mesh)
            return _named(sharding, shape, self._ids[sharding.mesh])
        if isinstance(sharding, SingleDeviceSharding):
            return _single(sharding, shape)
        return _positional(sharding, shape)

    def common_mesh(self) -> MeshRecord | None:
        """The mesh that most leaves use."""
        return inspect_mesh(self._meshes.most_common(1)[0][0]) if self._meshes else None

    @property
    def meshes(self) -> int:
        return len(self._meshes)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, bool | int | float | complex) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def _strange_message(strange: list[tuple[str, Any]]) -> str:
    shown = ", ".join(f"`{path or 'tree'}`: {type(leaf).__name__} {str(leaf)[:40]!r}" for path, leaf in strange[:5])
    suffix = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
    fact = "1 leaf that is not an array" if len(strange) == 1 else f"{len(strange)} leaves that are not arrays"
    return (
        f"`inspect_sharding` was given {fact}: {shown}{suffix}. Only values with a `shape` and a `dtype` are on "
        "devices: remove the other leaves, pass `jax.ShapeDtypeStruct(shape, dtype, sharding=...)` in place of a bare "
        "sharding, or use `inspect_mesh` for a mesh."
    )


def _leaf(path: str, leaf: object, layouts: _Layouts) -> tuple[LeafShardingRecord, _Layout]:
    shape, dtype, item_bytes, notes = _array_facts(leaf)
    deleted = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted()
    if deleted:
        notes.append("deleted: its buffers were donated or freed; this was their placement")
    sharding, kind_if_none, more = _sharding_of(leaf)
    layout = layouts(sharding, shape) if sharding is not None else _whole(shape, kind_if_none)
    on_device = not deleted and (layout.replication > 0 or layout.kind == "unknown")
    record = LeafShardingRecord(
        path=path,
        shape=shape,
        dtype=dtype,
        spec=layout.spec,
        shard_shape=layout.shard_shape,
        size_bytes=math.prod(shape) * item_bytes,
        bytes_per_device=math.prod(layout.shard_shape) * item_bytes if on_device else 0,
        replication=layout.replication,
        padding_bytes=(math.prod(map(int.__mul__, layout.shard_shape, layout.parts)) - math.prod(shape)) * item_bytes,
        kind=layout.kind,
        memory_kind=layout.memory_kind,
        notes=(*notes, *more, *layout.notes),
    )
    return record, layout


def _array_facts(leaf: Argument) -> tuple[tuple[int, ...], str, int, list[str]]:
    """Shape, dtype name, bytes per element and notes."""
    notes: list[str] = []
    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        aval = jax.typeof(leaf)
        return (), str(aval.dtype), aval.dtype.itemsize, notes
    dtype = leaf.dtype
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype)
    if name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        notes.append(f"{name} counted as one byte per element; accelerators may pack it")
    return tuple(int(size) for size in leaf.shape), name, int(dtype.itemsize), notes


def _sharding_of(leaf: object) -> tuple[Any, ShardingKind, tuple[str, ...]]:
    """The sharding object if it is known; otherwise the kind to report and the reason."""
    if isinstance(leaf, Tracer):
        sharding = getattr(jax.typeof(leaf), "sharding", None)
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        if mesh is not None and mesh.manual_axes:
            return sharding, "auto", (f"one device's part, inside a shard_map over {', '.join(mesh.manual_axes)}",)
        if mesh is not None and mesh.explicit_axes:
            return sharding, "auto", ("traced value: this is the sharding in its type",)
        return None, "unknown", ("traced value: its sharding is decided when the program is compiled",)
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        return None, "host", ("in host memory: not on a device until a program uses it",)
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or (isinstance(sharding, NamedSharding) and sharding.mesh.empty):
        return None, "unknown", ("no sharding given",)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        here, everywhere = len(sharding.addressable_devices), sharding.num_devices
        return sharding, "auto", (f"this process addresses {here} of its {everywhere} devices",)
    return sharding, "auto", ()


def _whole(shape: tuple[int, ...], kind: ShardingKind) -> _Layout:
    return _Layout(spec=((),) * len(shape), shard_shape=shape, replication=0, kind=kind)


def _single(sharding: SingleDeviceSharding, shape: tuple[int, ...]) -> _Layout:
    (device,) = sharding.device_set
    return _Layout(
        spec=((),) * len(shape),
        shard_shape=shape,
        replication=1,
        kind="single",
        device_ids=(int(device.id),),
        memory_kind=sharding.memory_kind,
    )


def _named(sharding: NamedSharding, shape: tuple[int, ...], device_ids: tuple[int, ...]) -> _Layout:
    mesh, spec, notes = sharding.mesh, [], []
    for entry in sharding.spec.partitions:
        if entry is PartitionSpec.UNCONSTRAINED:
            notes.append(f"dimension {len(spec)} is unconstrained: the compiler may shard it")
            entry = None
        spec.append(() if entry is None else tuple(map(str, entry)) if isinstance(entry, tuple) else (str(entry),))
    spec += [()] * (len(shape) - len(spec))
    counts = tuple(math.prod(mesh.shape[name] for name in names) for names in spec)
    unreduced = getattr(sharding.spec, "unreduced", None)
    if unreduced:
        notes.append(f"unreduced over {', '.join(sorted(map(str, unreduced)))}: every device there holds a partial sum")
    shard_shape = tuple(-(-size // count) for size, count in zip(shape, counts, strict=True))
    uneven = [str(dim) for dim, (size, count) in enumerate(zip(shape, counts, strict=True)) if size % count]
    if uneven:
        notes.append(f"dimension {', '.join(uneven)} is not evenly divisible, so the last shards are padded")
    kinds = {kind.name.lower() for kind in mesh.axis_types}
    manual = tuple(mesh.manual_axes)
    used = math.prod(counts) * math.prod(mesh.shape[name] for name in manual)
    return _Layout(
        spec=tuple(spec),
        shard_shape=shard_shape,
        replication=mesh.size // used,
        kind=cast(ShardingKind, kinds.pop()) if len(kinds) == 1 else "mixed" if kinds else "auto",
        device_ids=device_ids,
        mesh=mesh,
        counts=counts,
        placed=() if manual else None,
        memory_kind=sharding.memory_kind,
        notes=tuple(notes),
    )


def _device_ids(mesh: Mesh | AbstractMesh) -> tuple[int, ...]:
    return tuple(range(mesh.size)) if isinstance(mesh, AbstractMesh) else tuple(int(d.id) for d in mesh.devices.flat)


def _positional(sharding: Sharding, shape: tuple[int, ...]) -> _Layout:
    """A sharding known only by its index map, without axis names."""
    try:
        index_map = sharding.devices_indices_map(shape)
        shard_shape = tuple(sharding.shard_shape(shape))
    except (ValueError, NotImplementedError, IndexError, TypeError) as error:
        layout = _whole(shape, "unknown")
        return dataclasses.replace(layout, notes=(f"`{type(sharding).__name__}` has no device slices: {error}",))
    placed = tuple(
        (
            int(device.id),
            tuple(index.indices(size)[0] for index, size in zip(indices, shape, strict=True)),
            tuple(index.indices(size)[1] for index, size in zip(indices, shape, strict=True)),
        )
        for device, indices in index_map.items()
    )
    slices = {(start, stop) for _, start, stop in placed}
    return _Layout(
        spec=((),) * len(shape),
        shard_shape=shard_shape,
        replication=len(placed) // max(len(slices), 1),
        kind="positional",
        device_ids=tuple(number for number, _, _ in placed),
        placed=placed,
        memory_kind=getattr(sharding, "memory_kind", None),
        notes=(f"`{type(sharding).__name__}`: cut into {len(slices)} parts, without names of mesh axes",),
    )


def _with_shards(
    leaves: list[LeafShardingRecord], layouts: list[_Layout], shards_at_most: int
) -> list[LeafShardingRecord]:
    """Lists the slices of the largest leaves, within the budget."""
    budget, listed = shards_at_most, list(leaves)
    cache: dict[Any, tuple[ShardRecord, ...]] = {}
    for number in sorted(range(len(leaves)), key=lambda number: -leaves[number].size_bytes):
        leaf, layout = leaves[number], layouts[number]
        if not layout.device_ids:
            continue
        if len(layout.device_ids) > budget:
            note = f"{len(layout.device_ids)} slices not listed (more than `shards_at_most` of this record)"
            listed[number] = leaf.replace(notes=(*leaf.notes, note))
            continue
        budget -= len(layout.device_ids)
        if id(layout) not in cache:
            cache[id(layout)] = _shards(layout, leaf.shape)
        listed[number] = leaf.replace(shards=cache[id(layout)])
    return listed


def _shards(layout: _Layout, shape: tuple[int, ...]) -> tuple[ShardRecord, ...]:
    """The slice on each device, in mesh order."""
    placed = layout.placed
    if placed is None and layout.mesh is None:
        placed = tuple((number, (0,) * len(shape), shape) for number in layout.device_ids)
    elif placed is None:
        assert layout.mesh is not None
        placed = _placed_by_mesh(layout, layout.mesh, shape)
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    shards = []
    for number, start, stop in placed:
        shards.append(ShardRecord(device_id=number, start=start, stop=stop, replica=counts[start]))
        counts[start] += 1
    return tuple(shards)


def _placed_by_mesh(layout: _Layout, mesh: Mesh | AbstractMesh, shape: tuple[int, ...]) -> tuple[Any, ...]:
    names, sizes = list(mesh.axis_names), tuple(mesh.axis_sizes)
    position = np.indices(sizes).reshape(len(sizes), -1)
    starts = np.zeros((len(shape), mesh.size), dtype=np.int64)
    for dim, axes in enumerate(layout.spec):
        for axis in axes:
            starts[dim] = starts[dim] * mesh.shape[axis] + position[names.index(axis)]
        starts[dim] = np.minimum(starts[dim] * layout.shard_shape[dim], shape[dim])
    shard_shape, bounds = (
        np.array(layout.shard_shape, dtype=np.int64)[:, None],
        np.array(shape, dtype=np.int64)[:, None],
    )
    stops = np.minimum(starts + shard_shape, bounds)
    pairs = zip(starts.T.tolist(), stops.T.tolist(), strict=True)
    return tuple((number, tuple(a), tuple(b)) for number, (a, b) in zip(layout.device_ids, pairs, strict=True))


def _fullest(leaves: list[tuple[LeafShardingRecord, _Layout]]) -> int:
    """Bytes on the fullest device; leaves stored on the same devices are added up first."""
    by_devices: collections.Counter[int] = collections.Counter()
    devices: dict[int, tuple[int, ...]] = {}
    anywhere = 0
    for leaf, layout in leaves:
        if layout.kind == "unknown":
            anywhere += leaf.bytes_per_device
        else:
            devices[id(layout.device_ids)] = layout.device_ids
            by_devices[id(layout.device_ids)] += leaf.bytes_per_device
    per_device: collections.Counter[int] = collections.Counter()
    for group, held_bytes in by_devices.items():
        for number in devices[group]:
            per_device[number] += held_bytes
    return anywhere + max(per_device.values(), default=0)


def _tree_notes(leaves: list[LeafShardingRecord], layouts: _Layouts) -> list[str]:
    notes = []
    if not leaves:
        notes.append("the tree contains no arrays")
    if layouts.meshes > 1:
        notes.append(f"the arrays are on {layouts.meshes} different meshes; `mesh` is the mesh of most arrays")
    summarised = sum(1 for leaf in leaves if any("slices not listed" in note for note in leaf.notes))
    if summarised:
        notes.append(
            f"{summarised} of {len(leaves)} arrays are summarised: raise `shards_at_most` to list their slices"
        )
    return notes
