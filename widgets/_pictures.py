"""The sentences and static pictures that stand in for live views."""

from collections.abc import Callable
from typing import Any

import workbench.views as views
from workbench.records import MeshRecord, ShardingRecord
from workbench.views import Markup, bytes_text, count_text


def picture(name: str, record: Any) -> Markup | None:
    """`workbench.views.<name>(record)`, or None where this version has no such picture."""
    render: Callable[[Any], Markup] | None = getattr(views, name, None)
    return None if render is None else render(record)


def mesh_sentence(record: MeshRecord) -> str:
    """A mesh in one sentence."""
    axes = " × ".join(f"{axis.name} {axis.size}" for axis in record.axes) or "no axes"
    hosts = len({device.host for device in record.devices})
    where = f" on {count_text(hosts)} hosts" if hosts > 1 else ""
    return f"Mesh {axes}: {count_text(len(record.devices))} devices{where}{', abstract' if record.abstract else ''}"


def mesh_text(record: MeshRecord) -> str:
    """A mesh as lines: one per device while they are few."""
    held: dict[int, list[str]] = {}
    for each in record.clients:
        held.setdefault(each.device_id, []).append(f"{each.placement} {each.start}–{each.stop - 1}")
    lines = [mesh_sentence(record) + "."]
    for device in record.devices[:64]:
        place = ", ".join(f"{axis.name} {at}" for axis, at in zip(record.axes, device.position, strict=True))
        clients = f": {'; '.join(held[device.id])}" if device.id in held else ""
        lines.append(f"  {device.platform or 'device'}:{device.id} at {place}{clients}")
    if len(record.devices) > 64:
        lines.append(f"  … and {count_text(len(record.devices) - 64)} more")
    return "\n".join(lines)


def sharding_sentence(record: ShardingRecord) -> str:
    """The shardings of a tree in one sentence."""
    count = len(record.leaves)
    return (
        f"{count_text(count)} array{'s' if count != 1 else ''}, {bytes_text(record.total_bytes)} in all, "
        f"{bytes_text(record.bytes_per_device)} on the fullest device"
    )
