"""Per-program state of the cost view: stages with their times and bytes, the roofline, memory."""

import json
import math
import re
from collections.abc import Sequence

from workbench.aot import parse_target, targets_for
from workbench.records.compiled import CostRecord, MemoryRecord, ProgramRecord
from workbench.render.units import bytes_text, seconds_text, source_text
from workbench_widgets._headline import sum_per_device, work_per_device
from workbench_widgets._roofline_state import roofline_state, stage_roofs
from workbench_widgets._scaling_state import scaling_choices, stage_rows
from workbench_widgets.states import CostState, TargetChoice, TargetCost


def cost_state(record: ProgramRecord, others: Sequence[ProgramRecord] = (), *, can_compile: bool = False) -> CostState:
    """The complete state of the cost view."""
    return {
        "targets": [target_state(program, program.cost) for program in (record, *others) if program.cost is not None],
        "elsewhere": _elsewhere(record) if can_compile else [],
        "other_size": _other_size(record),
        "sentence": _sentence(record),
    }


def _other_size(record: ProgramRecord) -> str:
    """Code for a cell that compares the program with itself on larger arguments, given as shapes."""
    match = re.match(r"[\w]+:", record.target)
    target = record.target if match else "v5e"
    if record.cost is not None and record.cost.chip is not None and not match:
        target = record.cost.chip.name
    where = f"on={json.dumps(target)}"  # valid Python even for records from other sources
    name = record.name if record.name.isidentifier() else "fn"
    # A record contains arrays, not the call, so static arguments and the names of the reader's variables are unknown.
    return (
        "import jax\nimport workbench as wb\n\n\n"
        f"def arguments(size):\n"
        f'    """All arguments of {name}, in the order of your call; `jax.ShapeDtypeStruct`s allocate nothing."""\n'
        "    return (...,)\n\n\n"
        f"now, larger = (wb.inspect({name}, {where})(*arguments(size)) for size in (1, 2))\n"
        "wb.show(wb.compare(now, larger))"
    )


def target_state(record: ProgramRecord, cost: CostRecord) -> TargetCost:
    """One program on one target."""
    memory = record.module.memory if record.module is not None else None
    return {
        "target": record.target,
        "chip": cost.chip.name if cost.chip is not None else "no chip",
        "seconds": cost.seconds,
        "roofs": None if cost.chip is None else stage_roofs(cost.chip),
        "lines": roofline_state(record.module, cost.chip),
        "assumptions": list(cost.assumptions),
        "notes": list(record.notes),
        "total": sum_per_device(record) or "unknown",
        "work": work_per_device(record),
        "at_least": record.call_tree is not None and record.call_tree.root.at_least,
        "flops": None if record.module is None else record.module.flops,
        "elementwise": None if record.module is None else record.module.elementwise_flops,
        "peak": None if memory is None else memory.peak_bytes,
        "available": None if memory is None else memory.available_bytes,
        "fits": None if memory is None else memory.fits,
        "mesh": "" if record.mesh is None else " × ".join(f"{axis.name} {axis.size}" for axis in record.mesh.axes),
        "strategies": _strategies(record),
        "buffers": _buffer_rows(memory)[:5] if memory is not None and memory.fits is False else [],
        "stages": stage_rows(cost, record.module),
        "scaling": scaling_choices(record),
    }


def _strategies(record: ProgramRecord) -> dict[str, str]:
    """The implementation that the compiler chose for the collectives on each axis, if recorded."""
    algorithms: dict[str, set[str]] = {}
    for collective in record.module.collectives if record.module is not None else ():
        if collective.algorithm:
            algorithms.setdefault("+".join(collective.axes) or "not a product of axes", set()).add(collective.algorithm)
    return {axis: ", ".join(sorted(names)) for axis, names in algorithms.items()}


def _elsewhere(record: ProgramRecord) -> list[TargetChoice]:
    """Machines to compile for: chips, each with the topologies that fit the program's mesh."""
    axes = {} if record.mesh is None else {axis.name: axis.size for axis in record.mesh.axes}

    def distance(name: str) -> int:
        return abs(parse_target(name).devices - math.prod(axes.values()))

    return [
        {
            "chip": chip.chip,
            "description": chip.description,
            "targets": list(fitting),
            "default": min(fitting, key=distance, default=None),
            "install": chip.install,
            "terms": chip.terms,
        }
        for chip, fitting in targets_for(axes)
    ]


def _buffer_rows(memory: MemoryRecord) -> list[list[str]]:
    rows = []
    for buffer in memory.largest[:12]:
        padding = f" ({bytes_text(buffer.padding_bytes)} padding)" if buffer.padding_bytes else ""
        source = "" if buffer.source is None else source_text(buffer.source.file, buffer.source.line)
        rows.append([buffer.name, bytes_text(buffer.size_bytes) + padding, buffer.shape, source])
    return rows


def _sentence(record: ProgramRecord) -> str:
    if record.cost is None:
        return f"No cost was predicted for {record.name}"
    chip = f" on {record.cost.chip.name}" if record.cost.chip is not None else ""
    cost = record.cost
    time = f": {seconds_text(cost.seconds)} per call ({cost.error_bar})" if cost.seconds is not None else ""
    return f"Predicted cost of {record.name}{chip}{time}"
