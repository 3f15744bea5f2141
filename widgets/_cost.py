"""The cost view: a roofline, time per stage, bytes per mesh axis, memory; several targets side by side."""

from collections.abc import Sequence
from typing import Any

from widgets._base import WorkbenchWidget
from workbench.records import CostRecord, ProgramRecord
from workbench.views import (
    GLOSSARY,
    Markup,
    bytes_text,
    flops_text,
    render_roofline_svg,
    render_schedule_memory_svg,
    seconds_text,
    source_text,
)


class CostView(WorkbenchWidget):
    """What a program costs, predicted, live: choose a stage in the roofline or in the bars.

    Args:
        record: The program with its cost.
        others: The same program for other targets, to stand beside it.
    """

    module_name = "cost.js"

    def __init__(self, record: ProgramRecord, others: Sequence[ProgramRecord] = (), **values: Any) -> None:
        self.records = (record, *others)
        data = cost_state(record, others)
        super().__init__(data={**data, "glossary": GLOSSARY}, label=data["sentence"], **values)

    def static_svg(self) -> Markup | None:
        """The roofline, where the cost is for a chip."""
        cost = self.records[0].cost
        return None if cost is None else render_roofline_svg(cost)

    def text(self) -> str:
        """One line per stage and target."""
        lines = [self.label + "."]
        for target in self.data["targets"]:
            lines.append(f"{target['target']} ({target['chip']}), predicted:")
            for stage in target["stages"]:
                times = (
                    f", {seconds_text(stage['seconds'])}, bound by {stage['bound']}"
                    if stage["seconds"] is not None
                    else ""
                )
                flops, moved = flops_text(stage["flops"]), bytes_text(stage["accessed"])
                lines.append(f"  {stage['stage']}. {stage['name']}: {flops}, {moved} of memory traffic{times}")
        return "\n".join(lines)


def cost_state(record: ProgramRecord, others: Sequence[ProgramRecord] = ()) -> dict[str, Any]:
    """What the cost view draws."""
    priced = [(each, each.cost) for each in (record, *others) if each.cost is not None]
    memory = record.module.memory if record.module is not None else None
    picture = render_schedule_memory_svg(memory, live=True) if memory is not None else None
    return {
        "targets": [_target(each, cost) for each, cost in priced],
        "memory": None if memory is None else _memory_rows(record),
        "memory_svg": None if picture is None else str(picture),
        "buffers": []
        if memory is None
        else [
            [
                b.name,
                bytes_text(b.size_bytes),
                b.shape,
                "" if b.source is None else source_text(b.source.file, b.source.line),
            ]
            for b in memory.largest
        ],
        "sentence": _sentence(record),
    }


def _target(record: ProgramRecord, cost: CostRecord) -> dict[str, Any]:
    picture = render_roofline_svg(cost, live=True)
    return {
        "target": record.target,
        "chip": cost.chip.name if cost.chip is not None else "no chip",
        "seconds": cost.seconds,
        "roofline": None if picture is None else str(picture),
        "assumptions": list(cost.assumptions),
        "stages": [
            {
                "stage": each.stage,
                "kind": each.kind,
                "name": each.name,
                "flops": each.flops,
                "accessed": each.accessed_bytes,
                "wire": dict(each.collective_bytes),
                "compute": each.compute_seconds,
                "memory": each.memory_seconds,
                "collective": each.collective_seconds,
                "seconds": each.seconds,
                "bound": each.bound,
            }
            for each in cost.stages
        ],
    }


def _memory_rows(record: ProgramRecord) -> list[list[str]]:
    memory = record.module.memory if record.module is not None else None
    if memory is None:
        return []
    rows = [
        ["peak memory", memory.peak_bytes],
        ["arguments", memory.argument_bytes],
        ["outputs", memory.output_bytes],
        ["temporaries", memory.temporary_bytes],
        ["available", memory.available_bytes],
    ]
    shown = [[name, bytes_text(value)] for name, value in rows if isinstance(value, int)]
    if memory.fits is not None:
        shown.append(["fits", "yes" if memory.fits else "NO: the program needs more than a device has"])
    return shown


def _sentence(record: ProgramRecord) -> str:
    if record.cost is None:
        return f"No cost was predicted for {record.name}"
    chip = f" on {record.cost.chip.name}" if record.cost.chip is not None else ""
    time = f": {seconds_text(record.cost.seconds)} per call" if record.cost.seconds is not None else ""
    return f"Predicted cost of {record.name}{chip}{time}"
