"""The mesh view: devices, their places and their clients."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from workbench import render
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CollectiveRecord, CostRecord
from workbench.records.hardware import AxisRecord, DeviceRecord, MeshRecord
from workbench.records.sharding import LeafShardingRecord, ShardingRecord
from workbench.render import FEW, GLOSSARY
from workbench.render.units import axes_text, shape_text, spec_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._headline import group_collectives
from workbench_widgets.states import DeviceFigure, MeshAxis, MeshCollective, MeshLayout, MeshLeaf, MeshState

LAYOUTS = {"mesh": "mesh axes", "torus": "torus coordinates", "hosts": "hosts"}
WIDTH = 480  # pixels of the picture; its text has the size of the page's text in a narrow view
MOST_COLLECTIVES = 40  # number of groups of collectives whose links can be drawn, largest first
MOST_CORNERS = 1_000_000  # maximum number of shard indices


class MeshView(WorkbenchWidget):
    """Live view of a mesh's devices (up to thousands) and their contents, by mesh axis, torus or host.

    Args:
        record: The mesh.
        cost: A prediction, whose clients determine the work of each device.
        sharding: The arrays on the mesh.
        names: Names for these arrays; by default their paths in the tree.
        collectives: Collectives between devices, drawn on their links.
    """

    view_name = "mesh"

    def __init__(
        self,
        record: MeshRecord,
        cost: CostRecord | None = None,
        *,
        sharding: ShardingRecord | None = None,
        names: Sequence[str] = (),
        collectives: Sequence[CollectiveRecord] = (),
        **values: object,
    ) -> None:
        self.record = self._subject = record
        data, arrays = mesh_state(record, cost, sharding, names=names, collectives=collectives)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=render.describe(record), **values)


def mesh_state(
    record: MeshRecord,
    cost: CostRecord | None = None,
    sharding: ShardingRecord | None = None,
    *,
    names: Sequence[str] = (),
    collectives: Sequence[CollectiveRecord] = (),
    tree: CallTreeRecord | None = None,
) -> tuple[MeshState, Arrays]:
    """State of the mesh view: place, name, figures and contents of every device."""
    devices = record.devices
    holdings = _held(record)
    choices: list[DeviceFigure] = []
    arrays: Arrays = {"mesh.id": floats([device.id for device in devices])}

    def choice(
        key: str, label: str, unit: str, values: Sequence[float], kind: Literal["number", "group"] = "number"
    ) -> None:
        choices.append({"key": key, "label": label, "unit": unit, "kind": kind})
        arrays[f"mesh.{key}"] = floats(values)

    for index, axis in enumerate(record.axes):
        choice(f"axis{index}", f"place along {axis.name}", "count", [d.position[index] for d in devices], "group")
    if len({device.host for device in devices}) > 1:
        choice("host", "host", "count", [device.host for device in devices], "group")
    if len({device.slice_index for device in devices}) > 1:
        choice("slice", "slice", "count", [device.slice_index or 0 for device in devices], "group")
    if holdings:
        choice("clients", "clients held", "count", [_count(holdings.get(d.id, ())) for d in devices])
    for key, label in (("flops", "matrix FLOPs"), ("elementwise_flops", "elementwise FLOPs")):
        load = _load(record, cost, key)
        if any(load.values()) or (load and key == "flops"):
            name = "load" if key == "flops" else "elementwise"
            choice(name, f"{label} of its clients (predicted)", "flops", [load.get(d.id, 0.0) for d in devices])
    sendings = _collectives(record, collectives, tree)
    layouts: list[MeshLayout] = []
    for key, layout in render.arrange_mesh(record).items():
        arrays[f"mesh.places.{key}"] = floats(layout.places.ravel())
        links = bool(sendings) or key == "torus"
        drawn = str(render.svg(record, layout=key, width=WIDTH, links=links, live=True))
        layouts.append(
            {"key": key, "label": LAYOUTS[key], "columns": layout.columns, "rows": layout.rows,
             "reading": layout.reading, "svg": drawn}
        )  # fmt: skip
    leaves, corners = _leaves(record, sharding, names)
    arrays |= corners
    coords = len(devices[0].coords or ()) if devices and all(d.coords is not None for d in devices) else 0
    if coords:
        arrays["mesh.coords"] = floats([at for device in devices for at in device.coords or ()])
        arrays["mesh.core"] = floats([device.core_on_chip or 0 for device in devices])
    state: MeshState = {
        "layouts": layouts,
        "count": len(devices),
        "few": len(devices) <= FEW,
        "axes": [_axis(axis) for axis in record.axes],
        "abstract": record.abstract,
        "choices": choices,
        "names": _names(devices),
        "kinds": sorted({device.kind for device in devices if device.kind}),
        "hosts": len({device.host for device in devices}),
        "coords": coords,
        "wraps": list(record.wraps or ()),
        "collectives": sendings,
        "held": {str(device): ranges for device, ranges in holdings.items()},
        "leaves": leaves,
        "sentence": render.describe(record),
    }  # fmt: skip
    return state, arrays


def _axis(axis: AxisRecord) -> MeshAxis:
    hops = None if axis.mean_hops is None else f"{axis.mean_hops:.3g} on average, {axis.max_hops} at most"
    return {"name": axis.name, "size": axis.size, "type": axis.type, "hops": hops}


def _collectives(
    record: MeshRecord, collectives: Sequence[CollectiveRecord], tree: CallTreeRecord | None
) -> list[MeshCollective]:
    """Collectives across entire mesh axes, grouped as in the headline, with the bytes that one device sends."""
    axes = {axis.name for axis in record.axes}
    by_pairs: dict[tuple[tuple[int, int], ...], list[CollectiveRecord]] = {}
    for collective in collectives:
        if collective.wire_bytes and collective.axes and axes.issuperset(collective.axes):
            by_pairs.setdefault(tuple(collective.pairs), []).append(collective)
    rows: list[MeshCollective] = [
        {
            "names": [member.name for member in group.members],
            "label": f"{group.count} over {axes_text(group.axes)}, {group.places}",
            "kind": group.kind,
            "axes": list(group.axes),
            "sent": group.sent_bytes,
            "pairs": list(pairs),
        }
        for pairs, some in by_pairs.items()
        for group in group_collectives(some, tree)
    ]
    return sorted(rows, key=lambda row: -row["sent"])[:MOST_COLLECTIVES]


def _names(devices: Sequence[DeviceRecord]) -> dict[str, str | list[str]]:
    """Platform names of the devices: one name if all are the same, otherwise one name per device."""
    words = [device.platform or "device" for device in devices]
    if len(set(words)) == 1:
        return {"all": words[0]}
    return {"each": words}


def _leaves(record: MeshRecord, sharding: ShardingRecord | None, names: Sequence[str]) -> tuple[list[MeshLeaf], Arrays]:
    """The arrays on the mesh, and where each array's shard starts on every device (-1: no shard)."""
    if sharding is None:
        return [], {}
    place = {device.id: number for number, device in enumerate(record.devices)}
    labels = names if len(names) == len(sharding.leaves) else [leaf.path for leaf in sharding.leaves]
    leaves: list[MeshLeaf] = []
    arrays, room = {}, MOST_CORNERS
    for name, leaf in zip(labels, sharding.leaves, strict=True):
        room -= (len(leaf.shape) or 1) * len(place)
        if not leaf.shards or room < 0:
            continue
        arrays[f"mesh.shards.{len(leaves)}"] = floats(_corners(leaf, place))
        leaves.append(
            {
                "name": name or "array",
                "type": shape_text(leaf.dtype, leaf.shape),
                "spec": spec_text(leaf.spec),
                "shape": list(leaf.shape),
                "shard_shape": list(leaf.shard_shape),
                "bytes": leaf.bytes_per_device,
            }
        )
    return leaves, arrays


def _corners(leaf: LeafShardingRecord, place: dict[int, int]) -> np.ndarray:
    rank = len(leaf.shape)
    corners = np.full((len(place), max(rank, 1)), -1.0)
    for shard in leaf.shards:
        if shard.device_id in place:
            corners[place[shard.device_id]] = [
                start // max(part, 1) for start, part in zip(shard.start, leaf.shard_shape, strict=True)
            ] or 0.0
    return corners.ravel()


def _held(record: MeshRecord) -> dict[int, list[tuple[str, int, int, int]]]:
    ranges: dict[int, list[tuple[str, int, int, int]]] = {}
    for client in record.clients:
        ranges.setdefault(client.device_id, []).append((client.placement, client.start, client.stop, client.padding))
    return ranges


def _count(ranges: Sequence[tuple[str, int, int, int]]) -> int:
    return sum(stop - start for _, start, stop, _ in ranges)


def _load(record: MeshRecord, cost: CostRecord | None, key: str) -> dict[int, float]:
    if cost is None or not cost.clients:
        return {}
    flops = {client.client: getattr(client, key) for client in cost.clients}
    load = {}
    for block in record.clients:
        work = sum(flops.get(client, 0.0) for client in range(block.start, block.stop))
        load[block.device_id] = load.get(block.device_id, 0.0) + work
    return load
