"""Records as text for terminals, file-hosting pages and screen readers."""

import dataclasses
import functools
from collections.abc import Mapping

from workbench._open_types import Option
from workbench.records import Record, shorten_paths
from workbench.records.advice import AdviceRecord, ComparisonRecord, SearchRecord
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CostRecord, MemoryRecord, ModuleRecord, ProgramRecord, WhatIfRecord
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
from workbench.render._cost import collective_bytes, render_cost_text
from workbench.render._explain import render_explanation_text
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
from workbench.render._watch import render_watch_text
from workbench.render._what_if import render_what_if_text
from workbench.render._why import render_why_text
from workbench.render.launch import render_graph_text, render_launched_text
from workbench.render.units import axes_text, bytes_text, count_text, flops_text, line_text, seconds_text, work_text

_SHOWN = 12


def text(record: object, **options: Option) -> str:
    """A record as a few lines with units; other records list their fields.

    Args:
        record: Any record, or the playback of a propagation.
        options: `details=True` writes every step of the answers of `why`.

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
        f"  attributed to a stage: {module.attributed_instructions:.1%} of instructions, {module.attributed_flops:.1%} "
        f"of FLOPs, {module.attributed_bytes:.1%} of bytes",
    ]
    for found in module.collectives:
        times = "an unknown number of times" if found.executions is None else f"{count_text(found.executions)} ×"
        where = f" at {found.sources[0]}" if found.sources else ""
        lines.append(
            f"  {times} {found.kind} over {axes_text(found.axes)}, {bytes_text(found.payload_bytes)} per device, stage "
            f"{', '.join(found.stages) or 'not known'}{where}"
        )
    sent = sum(collective_bytes(module).values())
    if module.collectives:
        unknown = any(found.executions is None and found.wire_bytes != 0 for found in module.collectives)
        amount = "an unknown number of bytes" if unknown else bytes_text(sent)
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
    """Fields of a record, one below the other; short values on one line, long lists truncated."""
    pad = "  " * depth
    if not isinstance(value, Record):
        return [pad + str(value)]
    lines = [pad + type(value).__name__.removesuffix("Record")]
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if held is None or (isinstance(held, tuple | str) and not held):
            continue
        lines += _field_lines(field.name, held, depth + 1)
    return lines


def _field_lines(name: str, held: object, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(held, Record):
        return [f"{pad}{name}:", *_lines(held, depth + 1)]
    if isinstance(held, tuple) and any(isinstance(item, Record) for item in held):
        shown = [line for item in held[:_SHOWN] for line in _lines(item, depth + 1)]
        rest = [f"{pad}  … and {count_text(len(held) - _SHOWN)} more"] if len(held) > _SHOWN else []
        return [f"{pad}{name}:", *shown, *rest]
    if isinstance(held, Mapping):
        return [f"{pad}{name}: " + ", ".join(f"{key} {field_text(name, item)}" for key, item in held.items())]
    return [f"{pad}{name}: {field_text(name, held)}"]


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
