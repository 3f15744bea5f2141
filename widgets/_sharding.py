"""The sharding view: how every array of a tree is cut, and what another PartitionSpec would make of it."""

import math
from typing import Any

from widgets._base import WorkbenchWidget
from widgets._clients_state import Arrays, floats
from workbench.records import LeafShardingRecord, ShardingRecord
from workbench.views import (
    GLOSSARY,
    Markup,
    bytes_text,
    count_text,
    describe_leaf,
    describe_sharding,
    render_sharding_svg,
    render_sharding_text,
    shape_text,
    spec_text,
)

MOST_SHARDS = 65_536  # shards of one leaf that are sent to the browser


class ShardingView(WorkbenchWidget):
    """Arrays cut over devices, live: any rank by slices, each shard with its devices, other specs tried from menus.

    Args:
        record: The shardings of a tree.
    """

    module_name = "sharding.js"

    def __init__(self, record: ShardingRecord, **values: Any) -> None:
        self.record = record
        data, arrays = sharding_state(record)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=describe_sharding(record), **values)

    def static_svg(self) -> Markup:
        """The shards as small pictures."""
        return render_sharding_svg(self.record)

    def text(self) -> str:
        """One line per array."""
        return render_sharding_text(self.record)


def sharding_state(record: ShardingRecord) -> tuple[dict[str, Any], Arrays]:
    """What the sharding view draws: per leaf its facts, and the corner of every shard."""
    leaves, arrays = [], {}
    for index, leaf in enumerate(record.leaves):
        shards = leaf.shards[:MOST_SHARDS]
        blocks = [math.ceil(size / max(part, 1)) for size, part in zip(leaf.shape, leaf.shard_shape, strict=True)]
        leaves.append(
            {
                "path": leaf.path or "array",
                "shape": list(leaf.shape),
                "shard_shape": list(leaf.shard_shape),
                "blocks": blocks,
                "spec": [list(axes) for axes in leaf.spec],
                "itemsize": leaf.size_bytes / max(math.prod(leaf.shape), 1),
                "type": shape_text(leaf.dtype, leaf.shape),
                "spec_text": spec_text(leaf.spec),
                "devices": [shard.device_id for shard in shards],
                "rows": _facts(leaf),
                "notes": list(leaf.notes),
                "left_out": len(leaf.shards) - len(shards),
                "sentence": describe_leaf(leaf),
            }
        )
        corners = [
            start // max(part, 1) for shard in shards for start, part in zip(shard.start, leaf.shard_shape, strict=True)
        ]
        arrays[f"sharding.{index}"] = floats(corners)
    mesh = record.mesh
    state = {
        "leaves": leaves,
        "axes": [] if mesh is None else [[axis.name, axis.size] for axis in mesh.axes],
        "names": {} if mesh is None else {str(d.id): f"{d.platform or 'device'}:{d.id}" for d in mesh.devices},
        "device_count": 0 if mesh is None else len(mesh.devices),
        "total": bytes_text(record.total_bytes),
        "fullest": bytes_text(record.bytes_per_device),
        "notes": list(record.notes),
        "sentence": describe_sharding(record),
    }
    return state, arrays


def _facts(leaf: LeafShardingRecord) -> list[list[str]]:
    rows = [
        ["spec", spec_text(leaf.spec)],
        ["shard", shape_text(leaf.dtype, leaf.shard_shape)],
        ["bytes in all", bytes_text(leaf.size_bytes)],
        ["bytes per device", bytes_text(leaf.bytes_per_device)],
        ["replication", f"{count_text(leaf.replication)} device{'s' if leaf.replication != 1 else ''} per shard"],
        ["kind", leaf.kind],
    ]
    if leaf.padding_bytes:
        rows.append(["padding", bytes_text(leaf.padding_bytes)])
    if leaf.memory_kind:
        rows.append(["memory", leaf.memory_kind])
    return rows
