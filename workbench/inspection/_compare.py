"""Compares the records of several programs: changes in stages, collectives, bytes, FLOPs and memory."""

import collections
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workbench.errors import InspectionError
from workbench.inspection._compare_lines import line_rows
from workbench.inspection._compare_measured import compare_measured
from workbench.inspection._compare_profiles import compare_profiles
from workbench.records.advice import ComparedRecord, ComparisonRecord, Group, Status, Unit
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import MemoryRecord, ModuleRecord, ProgramRecord
from workbench.records.live import WatchRecord
from workbench.records.profile import ProfileRecord
from workbench.records.program import PlanRecord, StageRecord, ValueRecord
from workbench.records.run import RunRecord

Values = tuple[float | str | None, ...]


def compare(*records: ProgramRecord | ProfileRecord | RunRecord | WatchRecord) -> ComparisonRecord:
    """Compares programs, for example before and after an edit, on two meshes, or a function and its gradient.

    Recorded profiles are compared by measured seconds per device for each call path, category and program. Measured
    runs and watched loops are compared per call, stage and line.

    Stages are matched by kind and name, in order (the second `broadcast` in one program with the second `broadcast` in
    the other). Collectives are counted per call by kind and mesh axes, including all iterations of loops. Collectives
    that Shardy requests are never compared with compiled collectives.

    Args:
        *records: Two or more programs from `inspect`, two or more profiles from `open_profile`, or two or more records
            from `measure` or `watch`.

    Returns:
        One row per quantity, with one value per program; `differences` omits rows whose values are identical.

    Raises:
        InspectionError: if fewer than two records were given, or an argument is not a record.

    Example:
        >>> from workbench.records.program import PlanRecord
        >>> plan = PlanRecord(name="f", placements=(), stages=())
        >>> compare(*[ProgramRecord(name="f", target=t, plan=plan) for t in ("here", "v5e:2x4")]).differences[0].values
        ('here', 'v5e:2x4')
    """
    if len(records) > 1 and all(isinstance(record, ProfileRecord) for record in records):
        return compare_profiles([record for record in records if isinstance(record, ProfileRecord)])
    if len(records) > 1 and all(isinstance(record, RunRecord | WatchRecord) for record in records):
        return compare_measured([record for record in records if isinstance(record, RunRecord | WatchRecord)])
    wrong = [f"argument {number}: `{type(x).__name__}`" for number, x in enumerate(records) if not _is_program(x)]
    if wrong or len(records) < 2:
        message = (
            f"`compare` was given {len(records)} argument{'s' if len(records) != 1 else ''}"
            f"{', but these are not program records: ' + ', '.join(wrong) if wrong else ''}. `compare` needs at "
            "least two `ProgramRecord`s: pass `inspect(before, ...)` and `inspect(after, ...)`."
        )
        raise InspectionError(message)
    programs = [record for record in records if isinstance(record, ProgramRecord)]
    trees = _trees(programs)
    rows = [*_device_rows(programs), *_sent_rows(programs), *line_rows(trees), *_collective_rows(programs)]
    rows += [*_stage_rows(programs), *_program_rows(programs)]
    return ComparisonRecord(
        names=tuple(record.name for record in programs),
        targets=tuple(record.target for record in programs),
        rows=tuple(rows),
        notes=tuple(_notes(programs)),
        trees=trees,
    )


def _trees(programs: Sequence[ProgramRecord]) -> tuple[CallTreeRecord, ...]:
    """The call trees, if every program has one and all trees have the same source (compiled modules or jaxprs)."""
    trees = tuple(record.call_tree for record in programs if record.call_tree is not None)
    return trees if len(trees) == len(programs) and len({tree.made_from for tree in trees}) == 1 else ()


def _is_program(value: object) -> bool:
    return isinstance(value, ProgramRecord)


def _row(group: Group, name: str, values: Iterable[Any], unit: Unit = "") -> ComparedRecord:
    values = tuple(values)
    return ComparedRecord(group=group, name=name, values=values, unit=unit, status=_status(values))


def _status(values: Values) -> Status:
    if all(_alike(value, values[0]) for value in values):
        return "same"
    return "unknown" if None in values else "changed"


def _presence(values: Values) -> Status:
    """Returns the status of an entry; None means that a program lacks the entry, not that its value is unknown."""
    if values[0] is None and values[-1] is not None:
        return "added"
    if values[0] is not None and values[-1] is None:
        return "removed"
    return "same" if all(value == values[0] for value in values) else "changed"


def _alike(a: object, b: object) -> bool:
    if isinstance(a, float | int) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=1e-12)
    return a == b


def _program_rows(records: Sequence[ProgramRecord]) -> list[ComparedRecord]:
    meshes = [_mesh_text(record) for record in records]
    return [
        _row("program", "target", (record.target for record in records)),
        _row("program", "mesh", meshes),
        _row("program", "stages", (sum(1 for _ in record.plan.walk()) for record in records), "count"),
        _row("program", "bytes between server and clients", map(_moved_bytes, records), "bytes"),
    ]


def _mesh_text(record: ProgramRecord) -> str:
    if record.mesh is None:
        return "none"
    return " × ".join(f"{axis.name}={axis.size} {axis.type}" for axis in record.mesh.axes) or "none"


def _moved_bytes(record: ProgramRecord) -> float | None:
    return record.plan.moved_bytes


def _stage_rows(records: Sequence[ProgramRecord]) -> list[ComparedRecord]:
    tables = [_keyed_stages(record.plan) for record in records]
    tables = [tables[0], *(_named_like(tables[0], table) for table in tables[1:])]
    rows = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = tuple(table.get(key) for table in tables)
        rows.append(ComparedRecord(group="stages", name=key, values=values, status=_presence(values)))
    return rows


def _named_like(first: dict[str, str], table: dict[str, str]) -> dict[str, str]:
    """The table, with stages named as in `first` where kind and order match."""
    kind = operator.itemgetter(0)
    spare: dict[str, list[str]] = {}
    for key in first:
        if key not in table:
            spare.setdefault(kind(key.split()), []).append(key)
    new = [key for key in table if key not in first]
    counts = collections.Counter(kind(key.split()) for key in new)
    matched = {k: keys for k, keys in spare.items() if len(keys) == counts[k]}
    return {
        (matched[kind(key.split())].pop(0) if key not in first and matched.get(kind(key.split())) else key): text
        for key, text in table.items()
    }


def _keyed_stages(plan: PlanRecord) -> dict[str, str]:
    counts: collections.Counter[str] = collections.Counter()
    table = {}
    for stage in plan.walk():
        label = stage.kind if stage.kind == stage.name else f"{stage.kind} {stage.name}".strip()
        counts[label] += 1
        table[label if counts[label] == 1 else f"{label} ({counts[label]})"] = _stage_text(stage)
    return table


def _stage_text(stage: StageRecord) -> str:
    parts = [f"{_types(stage.inputs)} → {_types(stage.outputs)}"] if stage.inputs or stage.outputs else []
    if stage.clients > 1:
        parts.append(f"{stage.clients} clients")
    if stage.trip_count is not None:
        parts.append(f"{stage.trip_count} iterations")
    if stage.flops_per_client is not None:
        unit = {"loop": " per iteration", "program": ""}.get(stage.kind, " per client")
        elementwise = stage.elementwise_flops_per_client
        more = f" and {elementwise:,.0f} elementwise" if elementwise else ""
        parts.append(f"{stage.flops_per_client:,.0f} FLOP{more}{unit}")
    if stage.moved_bytes:
        parts.append(f"{stage.moved_bytes:,} bytes moved")
    return ", ".join(parts) or "present"


def _types(values: Sequence[ValueRecord]) -> str:
    counts = collections.Counter(f"{value.dtype}[{','.join(map(str, value.shape))}]" for value in values)
    return " ".join(f"{count}×{kind}" if count > 1 else kind for kind, count in counts.items()) or "nothing"


def _sent_rows(records: Sequence[ProgramRecord]) -> list[ComparedRecord]:
    tables = [_by_axes(record.module.collectives) if record.module else None for record in records]
    rows = []
    for key in _keys(tables):
        last = [table[key] for table in tables if table and key in table][-1]
        lines = dict.fromkeys(line for c in sorted(last, key=lambda c: -c.sent_bytes) for line in c.sources)
        row = _collective_row("bytes sent per collective", key, tables, _sent_bytes, "bytes")
        rows.append(row.replace(lines=tuple(lines)))
    return rows


def _collective_rows(records: Sequence[ProgramRecord]) -> list[ComparedRecord]:
    rows = []
    compiled = [_by_axes(record.module.collectives) if record.module else None for record in records]
    for key in _keys(compiled):
        rows.append(_collective_row("collectives", key, compiled, lambda c: _times(c, lambda _: 1), "count"))
    for key in _keys(compiled):
        reported = [None if table is None else _strategies(table.get(key, ())) for table in compiled]
        if any(reported):
            rows.append(_row("collective strategy", key, reported))
    planned = [_by_axes(record.propagation.collectives) if record.propagation else None for record in records]
    for key in _keys(planned):
        rows.append(_collective_row("planned collectives", key, planned, lambda c: float(len(c)), "count"))
    return rows


def _sent_bytes(collectives: Sequence[Any]) -> float | None:
    return _times(collectives, lambda collective: collective.wire_bytes)


def _strategies(collectives: Sequence[Any]) -> str | None:
    """Implementation that the compiler chose for the collectives, if it is recorded."""
    return ", ".join(sorted({collective.algorithm for collective in collectives if collective.algorithm})) or None


def _by_axes(collectives: Iterable[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for collective in collectives:
        axes = " × ".join(collective.axes) or "not a product of axes"
        groups.setdefault(f"{collective.kind} over {axes}", []).append(collective)
    return groups


def _keys(tables: Sequence[dict[str, list[Any]] | None]) -> list[str]:
    return sorted({key for table in tables if table for key in table})


def _times(collectives: Sequence[Any], amount: Callable[[Any], float | None]) -> float | None:
    """Sum over one call; None if a collective's iterations or bytes are unknown."""
    amounts = [(collective.executions, amount(collective)) for collective in collectives]
    totals = [times * size for times, size in amounts if times is not None and size is not None]
    return float(sum(totals)) if len(totals) == len(amounts) else None


def _collective_row(
    group: Group, key: str, tables: Sequence[dict[str, list[Any]] | None], measure: Callable[[Any], Any], unit: Unit
) -> ComparedRecord:
    values = tuple(None if table is None else measure(table[key]) if key in table else 0.0 for table in tables)
    status = _status(values)
    if status == "changed" and (values[0] == 0 or values[-1] == 0):
        status = "added" if values[0] == 0 else "removed"
    return _row(group, key, values, unit).replace(status=status)


def _device_rows(records: Sequence[ProgramRecord]) -> list[ComparedRecord]:
    modules, costs = [record.module for record in records], [record.cost for record in records]
    memories = [module.memory if module else None for module in modules]
    return [
        _row("per device", "peak memory", (m.peak_bytes if m else None for m in memories), "bytes"),
        _row("per device", "bytes sent in collectives", map(_wire_bytes, modules), "bytes"),
        _row("per device", "predicted seconds", (cost.seconds if cost else None for cost in costs), "seconds"),
        _row("per device", "FLOPs", map(_all_flops, modules), "flops"),
        _row("per device", "elementwise FLOPs", (m.elementwise_flops if m else None for m in modules), "flops"),
        _row(
            "per device", "bytes accessed", (module.accessed_bytes if module else None for module in modules), "bytes"
        ),
        _row("per device", "arguments", (m.argument_bytes if m else None for m in memories), "bytes"),
        _row("per device", "temporaries", (m.temporary_bytes if m else None for m in memories), "bytes"),
        _row("per device", "memory available", (m.available_bytes if m else None for m in memories), "bytes"),
        _row("per device", "fits", (_fits(m) for m in memories)),
        _row("per device", "layout padding at the peak", (m.padding_bytes if m else None for m in memories), "bytes"),
    ]


def _all_flops(module: ModuleRecord | None) -> float | None:
    if module is None or module.flops is None or module.elementwise_flops is None:
        return None
    return module.flops + module.elementwise_flops


def _fits(memory: MemoryRecord | None) -> str | None:
    if memory is None or memory.fits is None:
        return None
    if memory.fits:
        return "yes"
    if memory.peak_bytes is None or memory.available_bytes is None:
        return "no"
    return f"no: {(memory.peak_bytes - memory.available_bytes) / 2**30:.2f} GiB too much"


def _wire_bytes(module: ModuleRecord | None) -> float | None:
    return None if module is None else _sent_bytes(module.collectives)


def _notes(records: Sequence[ProgramRecord]) -> Iterable[str]:
    for record in records:
        if record.module is None:
            yield f"{record.name} on {record.target} is not compiled: its collectives, bytes and memory are unknown"
            continue
        unknown = [collective.name for collective in record.module.collectives if collective.executions is None]
        if unknown:
            around = ", ".join(unknown)
            yield f"{record.name} on {record.target}: the number of iterations of the loops around {around} is unknown"
    platforms = {record.module.platform for record in records if record.module}
    if len(platforms) > 1:
        names = ", ".join(sorted(platforms))
        yield f"compiled for different platforms ({names}): differences in fusion alone can change the bytes accessed"
