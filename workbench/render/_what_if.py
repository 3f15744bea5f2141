"""A program with different shardings, described in words."""

from collections.abc import Callable

from workbench.records.compiled import ModuleRecord, ProgramRecord, TrafficRecord, WhatIfRecord
from workbench.render.units import axes_text, bytes_text, count_text, flops_text, seconds_text, spec_text

_NAMED = 3  # maximum number of arrays named in a sentence
_SIGNS = {"added": "+", "removed": "−", "more": "▲", "less": "▼", "same": "="}


def describe_what_if(record: WhatIfRecord) -> str:
    """Summarizes a trial in one sentence: its specs, and how the collectives differ.

    Example:
        >>> from workbench.records.program import PlanRecord
        >>> plan = PlanRecord(name="f", placements=(), stages=())
        >>> same = ProgramRecord(name="f", target="here", plan=plan)
        >>> describe_what_if(WhatIfRecord(specs={"w": (("model",), ())}, before=same, after=same))
        "What if w were P('model')? No collective would differ (planned)"
    """
    named = " and ".join(f"{leaf} were {spec_text(spec)}" for leaf, spec in record.specs.items()) or "nothing changed"
    question = (
        named if len(record.specs) <= _NAMED else f"{count_text(len(record.specs))} arrays were sharded differently"
    )
    words = {"added": "added", "removed": "removed", "more": "with more bytes", "less": "with fewer bytes"}
    counts = {word: sum(row.change == change for row in record.traffic) for change, word in words.items()}
    changes = ", ".join(f"{count_text(count)} {word}" for word, count in counts.items() if count)
    how = "planned" if record.compiled is None else "compiled"
    return (
        f"What if {question}? " + (f"Collectives: {changes}" if changes else "No collective would differ") + f" ({how})"
    )


def render_what_if_text(record: WhatIfRecord) -> str:
    """Bytes, memory and every kind of collective, before and after."""
    lines = [describe_what_if(record) + "."]
    lines += [f"  {name}: {before} -> {after}" for name, before, after in what_if_amounts(record)]
    lines += [f"  {_traffic_line(row)}" for row in record.traffic] or ["  no collectives, before or after"]
    if record.compiled is None:
        lines.append(
            "Planned by Shardy. Each place in the program counts once, even in a loop; the compiler may combine "
            "several collectives."
        )
    lines += [f"Note: {note}" for note in record.notes]
    return "\n".join(lines)


def what_if_amounts(record: WhatIfRecord) -> list[tuple[str, str, str]]:
    """Figures for one device before and after, if both are known."""
    sizes = (_argument_bytes(record.before), _argument_bytes(record.after))
    rows: list[tuple[str, float | None, float | None, Callable[[float], str]]] = [
        ("arguments per device", *sizes, bytes_text)
    ]
    before, after = record.before.module, record.after.module
    if record.compiled is not None and before is not None and after is not None:
        rows.append(("sent per device", _sent_bytes(before), _sent_bytes(after), bytes_text))
        rows.append(("peak memory per device", before.memory.peak_bytes, after.memory.peak_bytes, bytes_text))
        rows.append(("matrix FLOPs per device", before.flops, after.flops, flops_text))
        rows.append(("elementwise FLOPs per device", before.elementwise_flops, after.elementwise_flops, flops_text))
        rows.append(("predicted per call", _seconds(record.before), _seconds(record.after), seconds_text))
    return [(name, write(a), write(b)) for name, a, b, write in rows if a is not None and b is not None]


def change_sign(row: TrafficRecord) -> str:
    """The symbol for the change of a collective, shown next to the word."""
    return _SIGNS[row.change]


def _argument_bytes(record: ProgramRecord) -> int | None:
    return None if record.inputs is None else record.inputs.bytes_per_device


def _seconds(record: ProgramRecord) -> float | None:
    return None if record.cost is None else record.cost.seconds


def _sent_bytes(module: ModuleRecord) -> float | None:
    """Bytes that a device sends in one call; None if a collective is in a loop of unknown length."""
    unknown = any(collective.executions is None for collective in module.collectives)
    return None if unknown else sum(collective.sent_bytes for collective in module.collectives)


def _traffic_line(row: TrafficRecord) -> str:
    stage = f"stage {row.stage} {row.stage_name}".strip() if row.stage else "no stage of the plan"
    runs = f"{_runs(row.runs_before)} -> {_runs(row.runs_after)} runs"
    return (
        f"{change_sign(row)} {row.change}: {row.kind} over {axes_text(row.axes)}, {stage}: {runs}, "
        f"{bytes_text(row.before_bytes)} -> {bytes_text(row.after_bytes)} per device per call"
    )


def _runs(count: float | None) -> str:
    return "?" if count is None else count_text(count)
