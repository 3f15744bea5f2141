"""Details of a stage as titled blocks of facts, tables and code, for HTML, text or a live view."""

from collections.abc import Callable, Sequence

from workbench.records.compiled import CollectiveRecord, CostRecord, ProgramRecord
from workbench.records.program import SourceLine, StageRecord, ValueRecord
from workbench.render._blocks import Block, StageDetails, code, facts, note, table
from workbench.render._disclosure import disclosed_blocks, disclosed_fact
from workbench.render.units import axes_text, bytes_text, count_text, flops_text, seconds_text, shape_text, source_text

ReadSource = Callable[[SourceLine], Sequence[tuple[int, str]]]


def stage_details(record: ProgramRecord, read_source: ReadSource | None = None) -> dict[str, StageDetails]:
    """Details by stage path: `title`, `kind`, `subtitle`, `blocks`.

    Args:
        record: The program.
        read_source: Returns the numbered lines around a place in the user's code, if they can be read.

    Returns:
        One mapping per stage, including stages inside loops and nested placements.
    """
    return {stage.path: _details(stage, record, read_source) for stage in record.plan.walk()}


def _details(stage: StageRecord, record: ProgramRecord, read_source: ReadSource | None) -> StageDetails:
    collectives = record.module.collectives if record.module is not None else ()
    stage_collectives = [collective for collective in collectives if stage.path in collective.stages]
    blocks: list[Block | None] = [
        facts([*_facts(stage), *disclosed_fact(record.plan, stage.path)]),
        _values("Inputs", stage.inputs),
        _values("Outputs", stage.outputs),
        collectives_block(stage_collectives) if record.module is not None else None,
        _cost(stage.path, record.cost),
        _source(stage.source, read_source),
        code("jaxpr of one client" if stage.kind == "clients" else "jaxpr", stage.jaxpr),
    ]
    is_program = stage.kind == "program"
    subtitle = "the whole program" if is_program else f"{stage.kind} stage {stage.path}"
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
    suffix = " per client" if stage.kind == "clients" else ""
    if stage.flops_per_client:
        rows.append((f"matrix FLOPs{suffix}", f"{flops_text(stage.flops_per_client)} (predicted)"))
        if stage.flops != stage.flops_per_client:
            rows.append(("matrix FLOPs in all", f"{flops_text(stage.flops)} (predicted)"))
    if stage.elementwise_flops_per_client:
        rows.append((f"elementwise FLOPs{suffix}", f"{flops_text(stage.elementwise_flops_per_client)} (predicted)"))
        if stage.elementwise_flops != stage.elementwise_flops_per_client:
            rows.append(("elementwise FLOPs in all", f"{flops_text(stage.elementwise_flops)} (predicted)"))
    if stage.bytes_per_client:
        rows.append((f"memory traffic{suffix}", f"{bytes_text(stage.bytes_per_client)} (predicted)"))
    return rows


def program_blocks(record: ProgramRecord, rows: Sequence[tuple[str, str]]) -> list[Block]:
    """Text blocks for a program: facts, disclosed and private values, collectives."""
    module = record.module
    return [
        facts(rows),
        *disclosed_blocks(record.plan),
        *([collectives_block(module.collectives)] if module is not None else []),
    ]


def _values(title: str, values: Sequence[ValueRecord]) -> Block | None:
    rows = [[_name(v), shape_text(v.dtype, v.shape), bytes_text(v.size_bytes), v.sharding or ""] for v in values]
    if rows and not any(row[3] for row in rows):
        return table(title, ("name", "type", "bytes"), [row[:3] for row in rows])
    return table(title, ("name", "type", "bytes", "sharding"), rows)


def _name(value: ValueRecord) -> str:
    return f"{value.argument} = {value.name}" if value.argument not in ("", value.name) else value.name


def collectives_block(collectives: Sequence[CollectiveRecord]) -> Block:
    """The collectives of a stage with their mesh axes, or a statement that there are none."""
    largest_first = sorted(collectives, key=lambda c: -(c.wire_bytes or 0) * (c.executions or 1))
    equal: dict[tuple[str, ...], list[CollectiveRecord]] = {}
    for collective in largest_first:
        key = (
            collective.kind + (f" ({collective.reduction})" if collective.reduction else ""),
            axes_text(collective.axes),
            bytes_text(collective.payload_bytes),
            "unknown" if collective.executions is None else count_text(collective.executions),
        )
        equal.setdefault(key, []).append(collective)
    columns = ("collective", "count", "mesh axis", "payload", "executions", "sent")
    rows = [
        (kind, count_text(len(members)), axes, payload, times, _sent_text(members))
        for (kind, axes, payload, times), members in equal.items()
    ]
    says = [i for i in range(len(columns)) if i not in (1, 4) or any(row[i] != "1" for row in rows)]
    block = table("Collectives", [columns[i] for i in says], [[row[i] for i in says] for row in rows])
    if block is None:
        return note("Collectives", "None: the devices do not communicate here.")
    shared = [collective for collective in collectives if len(collective.stages) > 1]
    if shared:
        names = ", ".join(f"{collective.name} serves stages {' and '.join(collective.stages)}" for collective in shared)
        block["note"] = f"The compiler combined several: {names}."
    return block


def _sent_text(members: Sequence[CollectiveRecord]) -> str:
    """Bytes that one device sends for all collectives; a lower bound if any number of executions is unknown."""
    least = "≥ " if any(member.executions is None for member in members) else ""
    return least + bytes_text(sum(member.sent_bytes for member in members))


def _cost(path: str, cost: CostRecord | None) -> Block | None:
    stage_cost = next((stage for stage in cost.stages if stage.stage == path), None) if cost is not None else None
    if stage_cost is None or cost is None:
        return None
    rows = [
        ("matrix FLOPs per device", flops_text(stage_cost.flops)),
        ("elementwise FLOPs", flops_text(stage_cost.elementwise_flops)),
    ]
    rows += [("memory traffic", bytes_text(stage_cost.accessed_bytes))]
    rows += [(f"sent over {axis}", bytes_text(amount)) for axis, amount in stage_cost.collective_bytes.items()]
    if cost.chip is not None:
        rows += [
            ("compute time", seconds_text(stage_cost.compute_seconds)),
            ("memory time", seconds_text(stage_cost.memory_seconds)),
            ("collective time", seconds_text(stage_cost.collective_seconds)),
            ("bound", stage_cost.bound),
        ]
    chip = f" on {cost.chip.name}" if cost.chip is not None else ""
    return facts(rows, f"Cost of one device{chip}, predicted")


def _source(line: SourceLine | None, read_source: ReadSource | None) -> Block | None:
    if line is None:
        return None
    excerpt = list(read_source(line)) if read_source is not None else []
    title = source_text(line.file, line.line).replace(":", ", line ") + (
        f", in {line.function}" if line.function else ""
    )
    last = line.end_line or line.line
    lines: list[tuple[int | None, str, bool]] = [
        (number, text, line.line <= number <= last) for number, text in excerpt
    ]
    if not lines:
        return note("Source", title)
    return {"form": "code", "title": title, "lines": lines, "folded": False, "source": str(line)}
