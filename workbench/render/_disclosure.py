"""Values that a client discloses, as tables, text and marks."""

from collections.abc import Iterable, Sequence

from workbench.records.program import DisclosedRecord, PlanRecord, ValueRecord
from workbench.records.run import RunRecord
from workbench.render._blocks import Block, table
from workbench.render._program_layout import Box, ProgramLayout
from workbench.render._svg import Markup, element, group, line, path, text, text_width
from workbench.render.units import bytes_text, count_text, number, shape_text

ROW, TITLE, RADIUS = 22.0, 24.0, 7.5
_SOONER = 4  # maximum number of types named in one line


def describe_disclosed(plan: PlanRecord) -> str:
    r"""Describes the values that the server receives from each client; empty if there are none.

    Example:
        >>> share = DisclosedRecord(
        ...     stage="2", name="reduce_mean", shape=(784, 128), dtype="float32", size_bytes=401_408,
        ...     kind="partial result",
        ... )
        >>> stays = ValueRecord(name="x", shape=(20, 784), dtype="float32", size_bytes=62_720)
        >>> plan = PlanRecord(name="fedavg", placements=(), stages=(), disclosed=(share,), kept_local=(stays,))
        >>> print(describe_disclosed(plan).replace(". ", ".\n"))
        Each client discloses: its share of reduce_mean, f32[784,128] (392 KiB).
        Kept on the client: x f32[20,784] (61.2 KiB).
    """
    if not plan.disclosed:
        return ""
    reported = [f"{name}, {types} ({size})" for _, name, types, size in disclosed_rows(plan)]
    stays = [f"{v.name} {shape_text(v.dtype, v.shape)} ({bytes_text(v.size_bytes)})" for v in plan.kept_local]
    suffix = f" Kept on the client: {'; '.join(stays)}." if stays else ""
    return f"Each client discloses: {'; '.join(reported)}.{suffix}"


def disclosed_rows(plan: PlanRecord) -> list[tuple[str, str, str, str]]:
    """One row per disclosure: "share" or "row", name, types and bytes."""
    rows = []
    for values in _together(plan.disclosed):
        first, iterations = values[0], _iterations(plan, values[0].stage)
        size = bytes_text(sum(v.size_bytes for v in values))
        form, over = "row" if first.kind == "row" else "share", _over(plan, first.stage)
        name = f"its own {_plain(first.name)}" if form == "row" else f"its share of {first.name}"
        name += " for listeners" if first.name.startswith("emit(") else over + _alone(first)
        rows.append((form, name, types_text(values), f"{count_text(iterations)} × {size}" if iterations > 1 else size))
    return rows


def disclosed_blocks(plan: PlanRecord) -> list[Block]:
    """Display blocks for an entire program: a table of disclosed values and a table of private values."""
    if not plan.disclosed:
        return []
    note = (
        "An engine with one machine per client sends nothing else to the server, except what the notes name. Values of "
        "`emit` are sent only to listeners. A machine shared by several clients holds the data of all of them."
    )
    columns = ("what", "type", "bytes")
    leaves = [[name.removeprefix("its "), *row] for _, name, *row in disclosed_rows(plan)]
    private = [[v.name, shape_text(v.dtype, v.shape), bytes_text(v.size_bytes)] for v in plan.kept_local]
    disclosed = table("Disclosed to the server by each client", columns, leaves)
    if disclosed is not None:
        disclosed["note"] = note
    return [block for block in (disclosed, table("Kept on the client", columns, private)) if block is not None]


def disclosed_fact(plan: PlanRecord, stage: str) -> list[tuple[str, str]]:
    """The disclosure at one stage, as a term and a value; empty if nothing is disclosed there."""
    values = [v for v in plan.disclosed if v.stage == stage]
    suffix = " — its own value" if any(v.kind == "row" for v in values) else ""
    suffix += "".join(_alone(v) for v in values[:1])
    size = bytes_text(sum(v.size_bytes for v in values))
    return [("each client discloses", f"{types_text(values)}, {size}{suffix}")] if values else []


def run_disclosed_lines(run: RunRecord) -> list[str]:
    """Values that clients disclosed in a run, as lines; empty if the engine reported none."""
    if not run.disclosed:
        return []
    lines = ["Disclosed by the clients:"]
    for values in _together(run.disclosed):
        first, times = values[0], sum(v.count for v in values)
        several = f", each of up to {count_text(first.clients)} clients" if first.clients > 1 else ""
        total = bytes_text(sum(v.size_bytes * v.count for v in values))
        kind = "rows" if first.kind == "row" else f"partial results{several}"
        named = f"{_plain(first.name)}, " if first.kind == "row" else ""
        lines.append(f"  stage {first.stage}: {named}{types_text(values)}; {count_text(times)} {kind}, {total} in all")
    return lines


def types_text(values: Sequence[DisclosedRecord | ValueRecord]) -> str:
    """The types of values; a type that occurs several times is written once, with its count.

    Example:
        >>> value = ValueRecord(name="", shape=(3,), dtype="float32", size_bytes=12)
        >>> types_text([value, value])
        '2 × f32[3]'
    """
    counts: dict[str, int] = {}
    for value in values:
        kind = shape_text(value.dtype, value.shape)
        counts[kind] = counts.get(kind, 0) + 1
    named = [kind if count == 1 else f"{count} × {kind}" for kind, count in counts.items()]
    more = f" and {len(named) - _SOONER} more" if len(named) > _SOONER else ""
    return ", ".join(named[:_SOONER]) + more


def draw_marks(layout: ProgramLayout, plan: PlanRecord) -> list[Markup]:
    """A round mark at every disclosure: partly filled for a client's share, filled for a client's own value."""
    shares = {v.stage: v for v in plan.disclosed if v.kind != "row"}
    rows = {v.stage: v for v in plan.disclosed if v.kind == "row"}
    marks = []
    for box in layout.boxes:
        if box.form == "pill" and box.path in shares:
            starts = [w.points[0][0] for w in layout.wires if w.source == w.target == box.path]
            is_left = bool(starts) and starts[0] < box.x
            x = box.x if is_left else box.x + box.width
            marks.append(_marked("share", x, box.y + box.height / 2, _those(plan, box.path)))
        elif box.form == "card" and box.path in rows:
            marks.append(_marked("row", _way_out(layout, box), box.y + box.height, _those(plan, box.path)))
    return marks


def draw_summary(layout: ProgramLayout, plan: PlanRecord) -> Markup | None:
    """The legend under a picture; increases `layout.height` by the height of the legend. None without marks."""
    if not plan.disclosed:
        return None
    reported = disclosed_rows(plan)
    if plan.kept_local:
        names = ", ".join(f"{v.name} {shape_text(v.dtype, v.shape)}" for v in plan.kept_local)
        reported.append(("stays", "kept on the client", names, bytes_text(sum(v.size_bytes for v in plan.kept_local))))
    top, left, right = layout.height + 2, 26.0, layout.width - 26.0
    drawn: list[object] = [
        line(14, top, layout.width - 14, top, class_="wb-stroke-line"),
        text(left - 7, top + 20, "Disclosed to the server by each client", size=11.5, class_="wb-fill-fg wb-strong"),
    ]
    column = left + 14 + max(_width(name) for _, name, _, _ in reported)
    y = top + TITLE
    for form, name, types, size in reported:
        y += ROW
        drawn += [
            draw_mark(form, left, y - 4),
            text(left + 14, y, name, size=11, fit=column - left - 14, class_="wb-fill-fg"),
            text(column + 12, y, types, size=11, fit=right - column - 24 - _width(size), class_="wb-fill-muted"),
            text(right + 7, y, size, size=11, class_="wb-fill-fg wb-end"),
        ]
    layout.height = y + 14
    return group(*drawn, class_="wb-disclosed")


def draw_mark(form: str, x: float, y: float) -> Markup:
    """The mark for a form of disclosure ("share", "row" or "stays"), centred at a point."""
    r = RADIUS
    if form == "stays":  # a house
        roof = f"M{number(x - r)} {number(y)}L{number(x)} {number(y - r)}L{number(x + r)} {number(y)}"
        walls = f"M{number(x - 5)} {number(y - 2)}V{number(y + 6)}H{number(x + 5)}V{number(y - 2)}"
        return path(roof + walls, fill="none", stroke_width=1.5, stroke_linejoin="round", class_="wb-stroke-clients")
    hue = "reduce" if form == "share" else "bad"
    ring = element("circle", cx=x, cy=y, r=r, stroke_width=1.6, class_=f"wb-fill-bg wb-stroke-{hue}")
    if form == "share":
        inner = r - 2
        wedge = (
            f"M{number(x)} {number(y)}V{number(y - inner)}A{inner} {inner} 0 0 1 {number(x + inner * 0.866)} "
            f"{number(y + inner * 0.5)}Z"
        )
        return group(ring, path(wedge, class_=f"wb-fill-{hue}"))
    return group(ring, element("circle", cx=x, cy=y, r=r - 2.6, class_=f"wb-fill-{hue}"))


def _marked(form: str, x: float, y: float, values: Sequence[DisclosedRecord]) -> Markup:
    size = bytes_text(sum(v.size_bytes for v in values))
    title = f"each client discloses: {'its own value, ' if form == 'row' else 'a share, '}{types_text(values)}, {size}"
    return group(element("title", title), draw_mark(form, x, y), class_="wb-leaves", data_disclosed=values[0].stage)


def _way_out(layout: ProgramLayout, box: Box) -> float:
    """Horizontal position where the wire leaves a card."""
    starts = [wire.points[0][0] for wire in layout.wires if wire.source == box.path]
    return starts[0] if starts else box.x + box.width / 2


def _those(plan: PlanRecord, stage: str) -> list[DisclosedRecord]:
    return [v for v in plan.disclosed if v.stage == stage]


def _together(disclosed: Iterable[DisclosedRecord]) -> list[list[DisclosedRecord]]:
    """Groups the values that are disclosed at the same stage in the same way."""
    groups: dict[tuple[str, str, str, str], list[DisclosedRecord]] = {}
    for value in disclosed:
        groups.setdefault((value.stage, value.kind, _plain(value.name), value.single_client), []).append(value)
    return list(groups.values())


def _alone(value: DisclosedRecord) -> str:
    return f" (a mask leaves only the value of {value.single_client})" if value.single_client else ""


def _over(plan: PlanRecord, stage: str) -> str:
    """The placement whose members disclose a value; "" in a program with one placement."""
    placements = {inner.path: inner.placement for top in plan.stages for inner in top.walk() if inner.placement}
    return f" over {placements[stage]}" if stage in placements and len(set(placements.values())) > 1 else ""


def _plain(name: str) -> str:
    """The name of a stage without the number of its output."""
    return name.partition("[")[0] or name


def _iterations(plan: PlanRecord, stage: str) -> int:
    """Number of times that the enclosing loops execute a stage; a loop of unknown length counts as one iteration."""
    iterations, stages = 1, plan.stages
    while inside := next((s for s in stages if stage.startswith((f"{s.path}.", f"{s.path}["))), None):
        iterations *= inside.trip_count or 1
        stages = inside.body
    return iterations


def _width(content: str) -> float:
    return text_width(content, 11)
