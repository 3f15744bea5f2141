"""Records as text for terminals, file-hosting pages and screen readers."""

import dataclasses
import functools
from collections.abc import Mapping

from workbench._open_types import Option
from workbench.records import Record, shorten_paths
from workbench.records.advice import AdviceRecord, ComparisonRecord, SearchRecord
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import (
    CostRecord,
    MemoryRecord,
    ModuleRecord,
    ProgramRecord,
    ScaledCostRecord,
    WhatIfRecord,
)
from workbench.records.hardware import MeshRecord
from workbench.records.launch import LaunchedRecord, ProgramGraphRecord
from workbench.records.live import ExplanationRecord, TapRecord, WatchRecord
from workbench.records.profile import ProfileRecord
from workbench.records.program import PlanRecord
from workbench.records.run import RunOverlayRecord, RunRecord
from workbench.records.sharding import LeafShardingRecord, PropagationRecord, ShardingRecord, WhyRecord
from workbench.render._advice import render_advice_text
from workbench.render._call_tree import render_call_tree_text
from workbench.render._compare import render_comparison_text
from workbench.render._cost import collective_bytes, render_cost_text, render_scaled_text
from workbench.render._live import render_run_text
from workbench.render._memory import render_memory_text
from workbench.render._mesh import render_mesh_text
from workbench.render._overlay import render_overlay_text
from workbench.render._profile import render_profile_text
from workbench.render._program import render_program_text
from workbench.render._propagation import Playback, render_propagation_steps
from workbench.render._search import render_search_text
from workbench.render._sharding import render_propagation_text, render_sharding_text
from workbench.render._treescope import render_tap_text
from workbench.render._watch import render_explanation_text, render_watch_text
from workbench.render._what_if import render_what_if_text
from workbench.render._why import render_why_text
from workbench.render.launch import render_graph_text, render_launched_text
from workbench.render.units import (
    axes_text,
    bytes_text,
    count_text,
    flops_text,
    line_text,
    seconds_text,
    share_text,
    work_text,
)

_SHOWN = 12


def text(record: object, **options: Option) -> str:
    """A record as a few lines with units; other records list their fields.

    Args:
        record: Any record, or the playback of a propagation.
        options: `details=True` writes every step in the answers from `why`.

    Example:
        >>> print(text(MeshRecord(axes=(), devices=())))
        Mesh without axes: 0 devices.
    """
    return shorten_paths(_written(record, **options))


@functools.singledispatch
def _written(record: object, **options: Option) -> str:
    return "\n".join(_lines(record, 0))


def render_plan_text(plan: PlanRecord) -> str:
    """The stages of a plan that has no target."""
    return render_program_text(ProgramRecord(name=plan.name, target="", plan=plan))


def render_module_text(module: ModuleRecord) -> str:
    """A compiled module: totals, collectives, costliest instructions, memory and notes."""
    lines = [
        f"Module {module.name} for {module.platform}, {count_text(module.devices)} devices: "
        f"{count_text(len(module.instructions))} instructions, {work_text(module.flops, module.elementwise_flops)}, "
        f"{bytes_text(module.accessed_bytes)} of memory traffic per device per call.",
        f"  attributed to a stage: {share_text(module.attributed_instructions)} of instructions, "
        f"{share_text(module.attributed_flops)} of matrix FLOPs, {share_text(module.attributed_bytes)} of bytes",
    ]
    for collective in module.collectives:
        times = (
            "an unknown number of times" if collective.executions is None else f"{count_text(collective.executions)} ×"
        )
        where = f" at {collective.sources[0]}" if collective.sources else ""
        lines.append(
            f"  {times} {collective.kind} over {axes_text(collective.axes)}, {bytes_text(collective.payload_bytes)} "
            f"per device, stage {', '.join(collective.stages) or 'not known'}{where}"
        )
    total = sum(collective_bytes(module).values())
    if module.collectives:
        unknown = any(collective.executions is None and collective.wire_bytes != 0 for collective in module.collectives)
        amount = "an unknown number of bytes" if unknown else bytes_text(total)
        lines.append(f"  one device sends {amount} per call")
    costly = sorted(module.instructions, key=lambda i: (-i.flops * (i.executions or 1), -i.elementwise_flops))[:5]
    for instruction in costly:
        if instruction.flops or instruction.elementwise_flops:
            work = work_text(instruction.flops, instruction.elementwise_flops)
            where = f" at {line_text(instruction.source)}" if instruction.source else ""
            times = "? ×" if instruction.executions is None else f"{count_text(instruction.executions)} ×"
            lines.append(f"  {times} {instruction.name} ({instruction.opcode}): {work}{where}")
    lines.append(render_memory_text(module.memory.replace(largest=module.memory.largest[:5])))
    lines += [f"Note: {note}" for note in module.notes]
    return "\n".join(lines)


for _kind, _writer in (
    (CallTreeRecord, render_call_tree_text),
    (AdviceRecord, render_advice_text),
    (SearchRecord, render_search_text),
    (ComparisonRecord, render_comparison_text),
    (CostRecord, render_cost_text),
    (ScaledCostRecord, render_scaled_text),
    (LaunchedRecord, render_launched_text),
    (LeafShardingRecord, render_sharding_text),
    (MemoryRecord, render_memory_text),
    (MeshRecord, render_mesh_text),
    (ModuleRecord, render_module_text),
    (PlanRecord, render_plan_text),
    (ProfileRecord, render_profile_text),
    (RunOverlayRecord, render_overlay_text),
    (RunRecord, render_run_text),
    (ProgramGraphRecord, render_graph_text),
    (ProgramRecord, render_program_text),
    (Playback, render_propagation_steps),
    (PropagationRecord, render_propagation_text),
    (ShardingRecord, render_sharding_text),
    (TapRecord, render_tap_text),
    (WhatIfRecord, render_what_if_text),
    (WhyRecord, render_why_text),
    (ExplanationRecord, render_explanation_text),
    (WatchRecord, render_watch_text),
):
    _written.register(_kind, _writer)


def _lines(value: object, depth: int) -> list[str]:
    """Fields of a record, one below another; short values take one line each, and long lists are truncated."""
    pad = "  " * depth
    if not isinstance(value, Record):
        return [pad + str(value)]
    lines = [pad + type(value).__name__.removesuffix("Record")]
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if content is None or (isinstance(content, tuple | str) and not content):
            continue
        lines += _field_lines(field.name, content, depth + 1)
    return lines


def _field_lines(name: str, content: object, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(content, Record):
        return [f"{pad}{name}:", *_lines(content, depth + 1)]
    if isinstance(content, tuple) and any(isinstance(item, Record) for item in content):
        shown = [line for item in content[:_SHOWN] for line in _lines(item, depth + 1)]
        footer = [f"{pad}  … and {count_text(len(content) - _SHOWN)} more"] if len(content) > _SHOWN else []
        return [f"{pad}{name}:", *shown, *footer]
    if isinstance(content, Mapping):
        return [f"{pad}{name}: " + ", ".join(f"{key} {field_text(name, item)}" for key, item in content.items())]
    return [f"{pad}{name}: {field_text(name, content)}"]


def field_text(name: str, value: object) -> str:
    """A value with the unit that its field name states."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        words = str(value)
        return words if len(words) <= 200 else words[:199] + "…"
    if name.endswith("bytes_per_second"):
        return f"{value / 1e9:,.4g} GB/s"
    if name.endswith("flops_per_second"):
        return f"{flops_text(value)}/s"
    for unit, write in (("_bytes", bytes_text), ("_flops", flops_text), ("_seconds", seconds_text)):
        if name.endswith(unit) or name == unit[1:]:
            return write(value)
    return str(value)
