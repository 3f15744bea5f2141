"""The sharding view: the shards of every array in a tree, and trials of other PartitionSpecs."""

import math
from collections.abc import Sequence

from workbench import render
from workbench.records.sharding import LeafShardingRecord, PropagationRecord, ShardingRecord
from workbench.render import GLOSSARY
from workbench.render.units import bytes_text, counted_text, shape_text, spec_text
from workbench_widgets._answers import Answers, TriesSpecs
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._propagation import propagation_state
from workbench_widgets.states import ShardingLeaf, ShardingState

MOST_SHARDS = 65_536  # maximum number of shards per leaf that are sent to the browser


class ShardingView(WorkbenchWidget):
    """Live view of sharded arrays: shards of any rank and their devices, with menus that try other specs.

    Args:
        record: The shardings of a tree.
        propagation: The propagation of the program's shardings, to be played step by step.
        what_if: An object that tries other specs for the program's arguments, such as a
            `workbench.inspection.what_if.WhatIf`.
        names: Names for the arrays; by default their paths in the tree.

    Attributes:
        answers: The kernel's answers, such as the last trial of other specs.
    """

    view_name = "sharding"

    def __init__(
        self,
        record: ShardingRecord,
        *,
        propagation: PropagationRecord | None = None,
        what_if: TriesSpecs | None = None,
        names: Sequence[str] = (),
        **values: object,
    ) -> None:
        self.record = self._subject = record
        data, arrays = sharding_state(record, propagation, can_try=what_if is not None, names=names)
        data = {**data, "glossary": GLOSSARY}
        super().__init__(data=data, arrays=arrays, label=render.describe(record), **values)
        self.answers = Answers(self, what_if=what_if, propagation=propagation)
        self._answering = (self.answers,)


def sharding_state(
    record: ShardingRecord,
    propagation: PropagationRecord | None = None,
    *,
    can_try: bool = False,
    names: Sequence[str] = (),
) -> tuple[ShardingState, Arrays]:
    """State of the sharding view: facts about each leaf, and where every shard starts."""
    leaves: list[ShardingLeaf] = []
    arrays: Arrays = {}
    labels = names if len(names) == len(record.leaves) else [leaf.path for leaf in record.leaves]
    meshed = record.mesh is not None and math.prod(axis.size for axis in record.mesh.axes) > 1
    for index, (leaf, name) in enumerate(zip(record.leaves, labels, strict=True)):
        shards = leaf.shards[:MOST_SHARDS]
        blocks = [math.ceil(size / max(part, 1)) for size, part in zip(leaf.shape, leaf.shard_shape, strict=True)]
        leaves.append(
            {
                "path": name or "array",
                "shape": list(leaf.shape),
                "shard_shape": list(leaf.shard_shape),
                "blocks": blocks,
                "spec": [list(axes) for axes in leaf.spec],
                "itemsize": leaf.size_bytes / max(math.prod(leaf.shape), 1),
                "type": shape_text(leaf.dtype, leaf.shape),
                "spec_text": spec_text(leaf.spec),
                "devices": [shard.device_id for shard in shards],
                "rows": _facts(leaf, on_mesh=meshed),
                "notes": list(leaf.notes),
                "left_out": len(leaf.shards) - len(shards),
                "sentence": render.describe(leaf),
            }
        )
        corners = [
            start // max(part, 1) for shard in shards for start, part in zip(shard.start, leaf.shard_shape, strict=True)
        ]
        arrays[f"sharding.{index}"] = floats(corners)
    mesh = record.mesh
    state: ShardingState = {
        "leaves": leaves,
        "axes": [] if mesh is None else [(axis.name, axis.size) for axis in mesh.axes],
        "names": {} if mesh is None else {str(d.id): f"{d.platform or 'device'}:{d.id}" for d in mesh.devices},
        "total": bytes_text(record.total_bytes),
        "fullest": bytes_text(record.bytes_per_device),
        "notes": list(record.notes),
        "can_try": can_try,
        "propagation": propagation_state(propagation) if propagation is not None and propagation.values else None,
        "sentence": render.describe(record),
    }
    return state, arrays


def _facts(leaf: LeafShardingRecord, *, on_mesh: bool) -> list[tuple[str, str]]:
    placed = leaf.replication > 0  # otherwise not yet placed, and the mesh may be abstract
    text = f"{counted_text(leaf.replication, 'device')} per shard"
    if leaf.kind == "single" and on_mesh:
        text = "on one device so far, not placed on the mesh"
    rows = [
        ("spec", spec_text(leaf.spec)),
        ("shard", shape_text(leaf.dtype, leaf.shard_shape)),
        ("bytes in all", bytes_text(leaf.size_bytes)),
        ("bytes per device", bytes_text(leaf.bytes_per_device)),
        ("replication", text if placed else "not placed yet"),
        ("kind", leaf.kind),
    ]
    if leaf.padding_bytes:
        rows.append(("padding", bytes_text(leaf.padding_bytes)))
    if leaf.memory_kind:
        rows.append(("memory", leaf.memory_kind))
    return rows
