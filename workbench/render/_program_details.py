"""Details of a stage as titled blocks of facts, tables and code, for HTML, text or a live view.

A block is a JSON-serializable mapping with a `form`: `facts` (rows of term, value), `table` (columns, rows), `code`
(lines of number, text, marked) or `note` (text).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from workbench.records.compiled import CollectiveRecord, CostRecord, ProgramRecord
from workbench.records.program import SourceLine, StageRecord, ValueRecord
from workbench.render._disclosure import disclosed_fact
from workbench.render._hlo import sent_bytes
from workbench.render.units import axes_text, bytes_text, count_text, flops_text, seconds_text, shape_text, source_text

Block = dict[str, Any]
ReadSource = Callable[[SourceLine], Sequence[tuple[int, str]]]
LONGEST_JAXPR = 20_000  # number of characters that fit in a side panel


def stage_details(record: ProgramRecord, read_source: ReadSource | None = None) -> dict[str, Block]:
    """Details by stage path: `title`, `kind`, `subtitle`, `blocks`.

    Args:
        record: The program.
        read_source: Returns the numbered lines around a place in the user's code, if they can be read.

    Returns:
        One mapping per stage, including stages inside loops and nested placements.
    """
    return {stage.path: _details(stage, record, read_source) for stage in record.plan.walk()}


def _details(stage: StageRecord, record: ProgramRecord, read_source: ReadSource | None) -> Block:
    collectives = record.module.collectives if record.module is not None else ()
    mine = [each for each in collectives if stage.path in each.stages]
    blocks = [
        facts([*_facts(stage), *disclosed_fact(record.plan, stage.path)]),
        _values("Inputs", stage.inputs),
        _values("Outputs", stage.outputs),
        collectives_block(mine) if record.module is not None else None,
        _cost(stage.path, record.cost),
        _source(stage.source, read_source),
        code("jaxpr of one client" if stage.kind == "clients" else "jaxpr", stage.jaxpr),
    ]
    whole = stage.kind == "program"
    subtitle = "the whole program" if whole else f"{stage.kind} stage {stage.path}"
    subtitle += f" · placement {stage.placement}" if stage.placement else ""
    return {
        "title": stage.name or stage.kind,
        "kind": stage.kind,
        "subtitle": subtitle,
        "blocks": [block for block in blocks if block is not None],
    }


def _facts(stage: StageRecord) -> list[tuple[str, str]]:
    rows = [] if stage.kind == "program" else [("placement", stage.placement or "server")]
    if stage.placement:
        rows.append(("clients", count_text(stage.clients)))
    if stage.trip_count is not None:
        rows.append(("iterations", count_text(stage.trip_count)))
    if stage.moved_bytes:
        rows.append(("moves", f"{bytes_text(stage.moved_bytes)} between server and clients"))
    each = " per client" if stage.kind == "clients" else ""
    if stage.flops_per_client:
        rows.append((f"FLOPs{each}", f"{flops_text(stage.flops_per_client)} (predicted)"))
        if stage.flops != stage.flops_per_client:
            rows.append(("FLOPs in all", f"{flops_text(stage.flops)} (predicted)"))
    if stage.elementwise_flops_per_client:
        rows.append((f"elementwise{each}", f"{flops_text(stage.elementwise_flops_per_client)} (predicted)"))
        if stage.elementwise_flops != stage.elementwise_flops_per_client:
            rows.append(("elementwise in all", f"{flops_text(stage.elementwise_flops)} (predicted)"))
    if stage.bytes_per_client:
        rows.append((f"memory traffic{each}", f"{bytes_text(stage.bytes_per_client)} (predicted)"))
    return rows


def facts(rows: Sequence[tuple[str, str]], title: str = "") -> Block:
    """A list of terms and values."""
    return {"form": "facts", "title": title, "rows": [list(row) for row in rows]}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Block | None:
    """A small table; None if there are no rows."""
    if not rows:
        return None
    return {"form": "table", "title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def code(title: str, text: str) -> Block | None:
    """Lines of code, initially collapsed; None if there is no text."""
    if not text:
        return None
    shown = text if len(text) <= LONGEST_JAXPR else text[:LONGEST_JAXPR] + "\n… (cut)"
    # JAX prints source places far to the right, beyond the width of a panel.
    lines = [[None, re.sub(r"\s+# .*$", "", line), False] for line in shown.splitlines()]
    return {"form": "code", "title": title, "lines": lines, "folded": True}


def _values(title: str, values: Sequence[ValueRecord]) -> Block | None:
    rows = [[_name(v), shape_text(v.dtype, v.shape), bytes_text(v.size_bytes), v.sharding or ""] for v in values]
    if rows and not any(row[3] for row in rows):
        return table(title, ("name", "type", "bytes"), [row[:3] for row in rows])
    return table(title, ("name", "type", "bytes", "sharding"), rows)


def _name(value: ValueRecord) -> str:
    return f"{value.argument} = {value.name}" if value.argument not in ("", value.name) else value.name


def collectives_block(collectives: Sequence[CollectiveRecord]) -> Block:
    """The collectives of a stage with their mesh axes, or a statement that there are none."""
    largest_first = sorted(collectives, key=lambda each: -(each.wire_bytes or 0) * (each.executions or 1))
    equal: dict[tuple[str, ...], list[CollectiveRecord]] = {}
    for each in largest_first:
        key = (
            each.kind + (f" ({each.reduction})" if each.reduction else ""),
            axes_text(each.axes),
            bytes_text(each.payload_bytes),
            "unknown" if each.executions is None else count_text(each.executions),
        )
        equal.setdefault(key, []).append(each)
    columns = ("collective", "count", "mesh axis", "payload", "executions", "sent")
    rows = [
        (kind, count_text(len(members)), axes, payload, times, _sent_text(members))
        for (kind, axes, payload, times), members in equal.items()
    ]
    says = [i for i in range(len(columns)) if i not in (1, 4) or any(row[i] != "1" for row in rows)]
    made = table("Collectives", [columns[i] for i in says], [[row[i] for i in says] for row in rows])
    if made is None:
        return {"form": "note", "title": "Collectives", "text": "None: the devices do not communicate here."}
    shared = [each for each in collectives if len(each.stages) > 1]
    if shared:
        names = ", ".join(f"{each.name} serves stages {' and '.join(each.stages)}" for each in shared)
        made["note"] = f"The compiler combined several: {names}."
    return made


def _sent_text(members: Sequence[CollectiveRecord]) -> str:
    """Bytes that one device sends for all collectives; a lower bound if any number of executions is unknown."""
    least = "≥ " if any(each.executions is None for each in members) else ""
    return least + bytes_text(sum(sent_bytes(each) for each in members))


def _cost(path: str, cost: CostRecord | None) -> Block | None:
    found = next((stage for stage in cost.stages if stage.stage == path), None) if cost is not None else None
    if found is None or cost is None:
        return None
    rows = [("FLOPs per device", flops_text(found.flops)), ("elementwise", flops_text(found.elementwise_flops))]
    rows += [("memory traffic", bytes_text(found.accessed_bytes))]
    rows += [(f"sent over {axis}", bytes_text(sent)) for axis, sent in found.collective_bytes.items()]
    if cost.chip is not None:
        rows += [
            ("compute time", seconds_text(found.compute_seconds)),
            ("memory time", seconds_text(found.memory_seconds)),
            ("collective time", seconds_text(found.collective_seconds)),
            ("bound", found.bound),
        ]
    chip = f" on {cost.chip.name}" if cost.chip is not None else ""
    return facts(rows, f"Cost of one device{chip}, predicted")


def _source(line: SourceLine | None, read_source: ReadSource | None) -> Block | None:
    if line is None:
        return None
    read = list(read_source(line)) if read_source is not None else []
    title = source_text(line.file, line.line).replace(":", ", line ") + (
        f", in {line.function}" if line.function else ""
    )
    last = line.end_line or line.line
    lines = [[number, text, line.line <= number <= last] for number, text in read]
    if not lines:
        return {"form": "note", "title": "Source", "text": title}
    return {"form": "code", "title": title, "lines": lines, "folded": False, "source": str(line)}
