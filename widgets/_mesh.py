"""The mesh view: which device is where, and which clients live on it."""

import math
from collections.abc import Sequence
from typing import Any

from widgets._base import WorkbenchWidget
from widgets._clients_state import Arrays, floats
from workbench.records import CostRecord, DeviceRecord, MeshRecord
from workbench.views import GLOSSARY, Markup, describe_mesh, render_mesh_svg, render_mesh_text

FEW = 128  # devices that are drawn as cards with words on them
WIDEST = 128  # devices in one row


class MeshView(WorkbenchWidget):
    """A mesh of up to thousands of devices, live: hover, arrow keys, colours by host, axis, clients or load.

    Args:
        record: The mesh.
        cost: A prediction whose clients say how much work each device has.
    """

    module_name = "mesh.js"

    def __init__(self, record: MeshRecord, cost: CostRecord | None = None, **values: Any) -> None:
        self.record = record
        data, arrays = mesh_state(record, cost)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=describe_mesh(record), **values)

    def static_svg(self) -> Markup:
        """The devices as a picture."""
        return render_mesh_svg(self.record)

    def text(self) -> str:
        """The devices as lines."""
        return render_mesh_text(self.record)


def mesh_state(record: MeshRecord, cost: CostRecord | None = None) -> tuple[dict[str, Any], Arrays]:
    """What the mesh view draws: one place, one name and a few numbers per device."""
    devices = record.devices
    held = _held(record)
    columns = _columns(record)
    choices: list[dict[str, str]] = []
    arrays: Arrays = {"mesh.id": floats([device.id for device in devices])}

    def choice(key: str, label: str, unit: str, values: Sequence[float], kind: str = "number") -> None:
        choices.append({"key": key, "label": label, "unit": unit, "kind": kind})
        arrays[f"mesh.{key}"] = floats(values)

    for index, axis in enumerate(record.axes):
        choice(f"axis{index}", f"place along {axis.name}", "count", [d.position[index] for d in devices], "group")
    if len({device.host for device in devices}) > 1:
        choice("host", "host", "count", [device.host for device in devices], "group")
    if held:
        choice("clients", "clients held", "count", [_count(held.get(d.id, ())) for d in devices])
    load = _load(record, cost)
    if load:
        choice("load", "FLOPs of its clients (predicted)", "flops", [load.get(device.id, 0.0) for device in devices])
    state = {
        "columns": columns,
        "count": len(devices),
        "few": len(devices) <= FEW,
        "axes": [{"name": axis.name, "size": axis.size, "type": axis.type} for axis in record.axes],
        "abstract": record.abstract,
        "choices": choices,
        "names": [_name(device) for device in devices],
        "facts": [_facts(device, record) for device in devices] if len(devices) <= 4096 else [],
        "held": {str(device): [[r[0], r[1], r[2], r[3]] for r in ranges] for device, ranges in held.items()},
        "sentence": describe_mesh(record),
    }
    return state, arrays


def _columns(record: MeshRecord) -> int:
    """Devices per row: the trailing axes of the mesh, as many as fit."""
    columns = 1
    for axis in reversed(record.axes[1:]):
        if columns * axis.size > WIDEST:
            break
        columns *= axis.size
    count = len(record.devices)
    if columns == 1 or count / columns > 4 * WIDEST:
        columns = min(count, 8 if count <= FEW else 2 ** math.ceil(math.log2(math.sqrt(count)) + 0.5))
    return max(1, columns)


def _name(device: DeviceRecord) -> str:
    return f"{device.platform or 'device'}:{device.id}"


def _facts(device: DeviceRecord, record: MeshRecord) -> list[list[str]]:
    rows = [[f"place along {axis.name}", f"{place} of {axis.size}"]
            for axis, place in zip(record.axes, device.position, strict=True)]  # fmt: skip
    if device.kind:
        rows.append(["kind", device.kind])
    rows.append(["host", str(device.host)])
    if device.coords is not None:
        rows.append(["torus coordinates", " × ".join(map(str, device.coords))])
    if device.core_on_chip is not None:
        rows.append(["core on chip", str(device.core_on_chip)])
    if device.slice_index is not None:
        rows.append(["slice", str(device.slice_index)])
    return rows


def _held(record: MeshRecord) -> dict[int, list[tuple[str, int, int, int]]]:
    held: dict[int, list[tuple[str, int, int, int]]] = {}
    for each in record.clients:
        held.setdefault(each.device_id, []).append((each.placement, each.start, each.stop, each.padding))
    return held


def _count(ranges: Sequence[tuple[str, int, int, int]]) -> int:
    return sum(stop - start for _, start, stop, _ in ranges)


def _load(record: MeshRecord, cost: CostRecord | None) -> dict[int, float]:
    if cost is None or not cost.clients:
        return {}
    flops = {each.client: each.flops for each in cost.clients}
    load = {}
    for each in record.clients:
        work = sum(flops.get(client, 0.0) for client in range(each.start, each.stop))
        load[each.device_id] = load.get(each.device_id, 0.0) + work
    return load
