"""The picture and the text for a program: data flowing between a server and its clients."""

from collections.abc import Sequence

from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CostRecord, ProgramRecord
from workbench.records.program import StageRecord
from workbench.render._call_tree import collective_lines, describe_call_tree, tree_lines
from workbench.render._disclosure import describe_disclosed, draw_marks, draw_summary
from workbench.render._memory import describe_memory, memory_parts
from workbench.render._mesh import describe_mesh
from workbench.render._program_layout import Box, ClientBlock, Lane, ProgramLayout, lay_out
from workbench.render._sharding import describe_sharding, sharding_tree_lines
from workbench.render._svg import Markup, element, fit_text, group, join, path, rect, text, text_width
from workbench.render._theme import picture
from workbench.render._wires import Wire, rounded
from workbench.render.units import (
    axes_text,
    bytes_text,
    count_text,
    counted_text,
    flops_text,
    number,
    seconds_text,
    shape_text,
    source_text,
    work_text,
)

_UNKNOWN = "predicted seconds are unknown: "  # first words of call tree notes


def render_program_svg(
    record: ProgramRecord, *, width: float = 620.0, dark: bool | None = None, live: bool = False
) -> Markup:
    """The stages of a program as one picture.

    Every stage is a group with `data-stage` and every drawn client a rectangle with `data-client`. A round mark with
    `data-disclosed` shows where a client discloses a value; the legend below names these values.
    """
    layout = lay_out(record.plan, record.mesh, width)
    body = [draw_layout(layout), *draw_marks(layout, record.plan), draw_summary(layout, record.plan)]
    return picture(layout.width, layout.height, *body, label=describe_program(record), dark=dark, live=live)


def describe_program(record: ProgramRecord) -> str:
    """Summarizes a program in one sentence: name, target, and either its cost or its stages and communication."""
    if is_ordinary(record):
        return _describe_ordinary(record)
    count = counted_text(len(list(record.plan.walk())), "stage")
    where = f" on {record.target}" if record.target else ""
    if not _has_clients(record):
        return f"Program {record.name}{where}: no clients, {count}"
    moved = record.plan.moved_bytes
    amount = "an unknown number of bytes" if moved is None else bytes_text(moved)
    return (
        f"Program {record.name}{where}: {count}, {_client_counts(record)}, {amount} between server and clients per call"
    )


def render_program_text(record: ProgramRecord) -> str:
    """The program as indented lines, for terminals and screen readers."""
    lines = [describe_program(record) + ".", *_answers(record)]
    if is_ordinary(record):
        return "\n".join([*lines, *_ordinary_lines(record)])
    lines += _stage_lines(record.plan.stages, record, 1)
    lines += [sentence] if (sentence := describe_disclosed(record.plan)) else []
    if record.module is not None:
        lines.append(f"Compiled: {counted_text(len(record.module.collectives), 'collective')}.")
        lines += _collective_lines(record)
    lines += [f"Note: {note}" for note in (*record.plan.notes, *record.notes)]
    return "\n".join(lines)


def is_ordinary(record: ProgramRecord) -> bool:
    """Returns whether a program has no clients; such a program is shown by function and line, not by stage."""
    return not _has_clients(record) and record.call_tree is not None


def _client_counts(record: ProgramRecord) -> str:
    """The clients as text: `64 clients` or, for nested placements, `8 pods × 32 clients`."""

    def nested(stages: Sequence[StageRecord]) -> dict[str, int]:
        chains = [
            ({stage.placement: stage.clients} if stage.placement else {}) | nested(stage.body) for stage in stages
        ]
        return max(chains, key=len, default={})

    chain = nested(record.plan.stages)
    if len(chain) > 1:
        return " × ".join(f"{count_text(size)} {name}" for name, size in chain.items())
    return f"{count_text(max((stage.clients for stage in record.plan.walk()), default=1))} clients"


def _has_clients(record: ProgramRecord) -> bool:
    return bool(record.plan.placements) or any(stage.placement for stage in record.plan.walk())


def _describe_ordinary(record: ProgramRecord) -> str:
    subject = f"Program {record.name} on {record.target}"
    module, tree = record.module, record.call_tree
    if module is not None:
        flops, traffic, least, loop = module.flops, module.accessed_bytes, "", ""
        if tree is not None and tree.root.at_least:
            flops, traffic, least = tree.root.total.flops_matmul, tree.root.total.traffic_bytes, "at least "
            loop = f"; a loop of unknown length counts as one iteration ({_unknown_loop(tree)})"
        elementwise = f" and {flops_text(tree.root.total.flops_elementwise)} elementwise" if tree else ""
        return (
            f"{subject}: {least}{flops_text(flops)} in matrix products{elementwise}, {least}{bytes_text(traffic)} "
            f"of memory traffic, per device and call{loop}"
        )
    return f"{subject}: {describe_call_tree(tree)}" if tree is not None else subject


def _answers(record: ProgramRecord) -> list[str]:
    """The mesh, the predicted time and the peak memory."""
    lines, cost = [], record.cost
    if record.mesh is not None and record.mesh.axes:
        lines.append(describe_mesh(record.mesh) + ".")
    if cost is not None and cost.chip is not None:
        lines.append(_predicted(cost, record.call_tree, cost.chip.name))
    if record.module is not None:
        memory = record.module.memory
        within = memory.within(None if cost is None else cost.chip)
        of = f" on {cost.chip.name}" if within is not memory and cost is not None and cost.chip is not None else ""
        lines += [f"{describe_memory(within)}{of}.", *memory_parts(memory)]
    return lines


def _predicted(cost: CostRecord, tree: CallTreeRecord | None, chip: str) -> str:
    """The predicted time with its error, or the reason why the time is unknown."""
    if cost.seconds is not None:
        longest = max(cost.stages, key=lambda stage: stage.seconds or 0.0, default=None)
        bound = "" if longest is None or longest.bound == "unknown" else f", {longest.bound}-bound"
        return f"Predicted {seconds_text(cost.seconds)} per call on {chip}{bound} ({cost.error_bar})."
    reason = next((note for note in (tree.notes if tree is not None else ()) if note.startswith(_UNKNOWN)), "")
    least = tree.root.total.predicted_seconds if tree is not None and tree.root.at_least and not reason else None
    if tree is not None and least:
        return (
            f"Predicted at least {seconds_text(least)} per call on {chip}, with one iteration of the loop at "
            f"{_unknown_loop(tree)} ({cost.error_bar})."
        )
    return f"Predicted seconds on {chip}: unknown{reason.replace(_UNKNOWN, ', as ')}."


def _unknown_loop(tree: CallTreeRecord) -> str:
    """The source line of the first loop whose length is unknown."""
    loop = next((node for node in tree.nodes if node.kind == "loop" and node.trip_count is None), None)
    above = [] if loop is None else [a for a in tree.path(loop) if a.file and a.line is not None]
    return source_text(above[-1].file or "", above[-1].line or 0) if above else "at no known line"


def _ordinary_lines(record: ProgramRecord) -> list[str]:
    """The tree, collectives and large unsharded arrays of a program without clients."""
    lines, module, tree = [], record.module, record.call_tree
    if tree is not None:
        lines += ["Fraction of each total, by function and line:", *tree_lines(tree)]
    if module is not None:
        count = len(module.collectives)
        traffic = 0.0 if tree is None else tree.root.total.sent
        least = "at least " if any(collective.executions is None for collective in module.collectives) else ""
        lines.append(
            f"Collectives: {count_text(count)}"
            + (f", one device sends {least}{bytes_text(traffic)}:" if count else ".")
        )
        lines += _collective_lines(record)
    for title, arrays in (("Inputs", record.inputs), ("Outputs", record.outputs)):
        if arrays is not None and arrays.leaves:
            lines.append(f"{title}: {describe_sharding(arrays)}.")
            lines += sharding_tree_lines(arrays, depth=3, most=8)
    notes = [*record.notes, *(module.notes if module is not None else ()), *(tree.notes if tree is not None else ())]
    return lines + [f"Note: {note}" for note in dict.fromkeys(notes)]


def _collective_lines(record: ProgramRecord) -> list[str]:
    assert record.module is not None
    tree = record.call_tree
    if tree is not None and tree.made_from == "compiled":
        return collective_lines(tree)
    return [f"  {c.kind} over {axes_text(c.axes)}: {bytes_text(c.payload_bytes)} per device, "
            f"stage {', '.join(c.stages) or 'unknown'}" for c in record.module.collectives]  # fmt: skip


def _per(stage: StageRecord) -> str:
    return {"clients": " per client", "loop": " per iteration"}.get(stage.kind, "")


def _stage_lines(stages: tuple[StageRecord, ...], record: ProgramRecord, depth: int) -> list[str]:
    lines = []
    for stage in stages:
        parts = [stage.kind if stage.kind == stage.name else f"{stage.kind} {stage.name}"]
        if stage.placement:
            parts.append(f"{count_text(stage.clients)} {stage.placement}")
        if stage.trip_count is not None:
            parts.append(f"{count_text(stage.trip_count)} iterations")
        if stage.moved_bytes:
            parts.append(f"moves {bytes_text(stage.moved_bytes)}")
        if stage.flops_per_client is not None:
            work = work_text(stage.flops_per_client, stage.elementwise_flops_per_client)
            parts.append(f"{work}{_per(stage)} (predicted)")
        if stage.outputs:
            parts.append("-> " + ", ".join(f"{v.name} {shape_text(v.dtype, v.shape)}" for v in stage.outputs))
        if stage.source:
            parts.append(f"at {source_text(stage.source.file, stage.source.line)}")
        lines.append("  " * depth + f"{stage.path}. " + "; ".join(parts))
        lines += _stage_lines(stage.body, record, depth + 1)
    return lines


def draw_layout(layout: ProgramLayout) -> Markup:
    """Draws lanes, frames, wires and boxes, in this order."""
    frames = [box for box in layout.boxes if box.form == "frame"]
    boxes = [box for box in layout.boxes if box.form != "frame"]
    backs = sorted([*((b.depth * 2 + 1, _draw_frame(b)) for b in frames)], key=lambda item: item[0])
    depth_of = _lane_depths(layout)
    layers = [(2 * depth_of[id(lane)], _draw_lane(lane, top, bottom)) for lane, top, bottom in layout.lanes] + backs
    ground = join(markup for _, markup in sorted(layers, key=lambda item: item[0]))
    return join([ground, *map(_draw_wire, layout.wires), *map(_draw_box, boxes), *map(_draw_wire_label, layout.wires)])


def _lane_depths(layout: ProgramLayout) -> dict[int, int]:
    frames = [box for box in layout.boxes if box.form == "frame"]
    return {
        id(lane): sum(f.y < top and bottom <= f.y + f.height + 16 for f in frames) for lane, top, bottom in layout.lanes
    }


def _draw_lane(lane: Lane, top: float, bottom: float) -> Markup:
    hue = "server" if lane.placement is None else "clients"
    width = lane.x1 - lane.x0
    return group(
        rect(lane.x0, top, width, bottom - top, rx=10, class_="wb-fill-panel wb-lane"),
        text(lane.x0 + 12, top + 17, lane.title, size=11, fit=width - 20, class_=f"wb-fill-{hue} wb-strong",
             letter_spacing=0.4),
    )  # fmt: skip


def _draw_frame(box: Box) -> Markup:
    header = group(
        text(box.x + 14, box.y + 20, box.title, size=12.5, class_=f"wb-fill-{box.kind} wb-strong"),
        text(box.x + 22 + text_width(box.title, 12.5), box.y + 20, box.subtitle, size=11.5, class_="wb-fill-muted",
             fit=box.width * 0.4),
        text(box.x + box.width - 14, box.y + 20, box.note, size=11, class_="wb-fill-muted wb-end"),
    )  # fmt: skip
    body = rect(
        box.x, box.y, box.width, box.height, rx=10, stroke_width=1.3, class_=f"wb-fill-bg wb-stroke-{box.kind} wb-card",
        stroke_dasharray="5 3",
    )  # fmt: skip
    return _stage_group(box, body, header)


def _draw_box(box: Box) -> Markup:
    if box.form == "chip":
        room = box.width - text_width(box.note, 11) - 28
        return group(
            rect(box.x, box.y, box.width, box.height, rx=13, class_=f"wb-fill-bg wb-stroke-{box.kind}", stroke_width=1),
            text(box.x + 12, box.y + 17, box.title, size=11, fit=room, class_="wb-fill-fg"),
            text(box.x + box.width - 12, box.y + 17, box.note, size=11, class_="wb-fill-muted wb-end"),
        )
    if box.form == "pill":
        middle = box.x + box.width / 2
        return _stage_group(
            box,
            rect(box.x, box.y, box.width, box.height, rx=box.height / 2, class_="wb-fill-bg"),
            rect(box.x, box.y, box.width, box.height, rx=box.height / 2, stroke_width=1.3,
                 class_=f"wb-fill-{box.kind}-soft wb-stroke-{box.kind} wb-card"),
            text(middle, box.y + 20, box.title, size=12.5, fit=box.width - 28, class_="wb-fill-fg wb-strong wb-middle"),
            text(middle, box.y + 35, box.subtitle, size=11, fit=box.width - 24, class_="wb-fill-muted wb-middle"),
        )  # fmt: skip
    return _stage_group(
        box,
        rect(box.x, box.y, box.width, box.height, rx=8, class_="wb-fill-bg"),
        rect(box.x, box.y, box.width, box.height, rx=8, stroke_width=1.3,
             class_=f"wb-fill-{box.kind}-soft wb-stroke-{box.kind} wb-card"),
        text(box.x + 12, box.y + 20, box.title, size=12.5, fit=box.width - 24, class_="wb-fill-fg wb-strong"),
        text(box.x + 12, box.y + 36, _whole_numbers(box.subtitle, box.width - 24), size=11, fit=box.width - 24,
             class_="wb-fill-muted"),
        *[_draw_block(block, box.more) for block in box.blocks],
    )  # fmt: skip


def _whole_numbers(subtitle: str, width: float) -> str:
    """The subtitle, without its amount of work if space is short, because a truncated number would be misread."""
    return subtitle if text_width(subtitle, 11) <= width else subtitle.partition(" · ")[0]


def _stage_group(box: Box, *children: object) -> Markup:
    role = "the whole program" if box.kind == "program" else f"{box.kind} stage {box.path}"
    spoken = ", ".join(part for part in (role, box.title, box.subtitle, box.note) if part)
    return group(*children, data_stage=box.path, data_label=spoken, class_="wb-stage")


def _draw_block(block: ClientBlock, more: str) -> Markup:
    label = _devices_text(block.devices) if not more else more
    title = f"clients {block.start}–{block.stop - 1}" + (f" on {label}" if label else "")
    children: list[object] = [
        element("title", title),
        rect(
            block.x, block.y, block.width, block.height, rx=4, class_="wb-fill-bg wb-stroke-clients", stroke_width=0.6
        ),
    ]
    for offset, (x, y) in enumerate(block.dots):
        children.append(rect(x, y, 9, 9, rx=2.5, class_="wb-fill-clients wb-client", data_client=block.start + offset))
    if not block.dots:
        middle = (block.x + block.width / 2, block.y + block.height / 2 + 4)
        children.append(rect(block.x, block.y, block.width, block.height, rx=4, class_="wb-fill-clients-soft"))
        count = count_text(block.stop - block.start)
        children.append(text(*middle, count, size=11, fit=block.width, class_="wb-fill-fg wb-middle"))
    if label:
        shown = fit_text(label, block.width + 2, 11)
        children.append(text(block.x + 1, block.y + block.height + 12, shown, size=11, class_="wb-fill-muted"))
    return group(*children, data_first=block.start, data_count=block.stop - block.start, class_="wb-block")


def _devices_text(devices: tuple[int, ...]) -> str:
    if not devices:
        return ""
    if len(devices) > 2 and devices == tuple(range(devices[0], devices[-1] + 1)):
        return f"dev {devices[0]}–{devices[-1]}"
    shown = ", ".join(map(str, devices[:4])) + (" …" if len(devices) > 4 else "")
    return f"dev {shown}"


def _draw_wire(wire: Wire) -> Markup:
    head = _arrow(wire) if wire.arrow else None
    points = wire.points
    if wire.arrow:
        (x0, y0), (x1, y1) = points[-2], points[-1]
        back = (x1 - (5 if x1 > x0 else -5 if x1 < x0 else 0), y1 - (5 if y1 > y0 else 0))
        points = (*points[:-1], back)
    # `data_source` links the wire to its stages, so that selecting a stage can highlight its wires.
    return group(
        path(rounded(points), class_=f"wb-stroke-{wire.kind}", fill="none", stroke_width=1.6),
        head,
        class_="wb-wire",
        data_source=wire.source or None,
        data_target=wire.target or None,
    )


def _arrow(wire: Wire) -> Markup:
    (x0, y0), (x, y) = wire.points[-2], wire.points[-1]
    if abs(x - x0) > abs(y - y0):
        back = x - 7 if x > x0 else x + 7
        corners = ((x, y), (back, y - 4), (back, y + 4))
    else:
        corners = ((x, y), (x - 4, y - 7), (x + 4, y - 7))
    outline = "M" + "L".join(f"{number(a)} {number(b)}" for a, b in corners) + "Z"
    return path(outline, class_=f"wb-fill-{wire.kind}")


def _draw_wire_label(wire: Wire) -> Markup | None:
    if not wire.label:
        return None
    (x, y0), (_, y1) = wire.points[0], wire.points[1]
    if abs(y1 - y0) < 16:
        return None
    # Lines around a card run on the outer side, so numbers are on the inner side.
    inner, side = (x - 7, " wb-end") if wire.kind == "clients" else (x + 7, "")
    return text(inner, (y0 + y1) / 2 + 3, wire.label, size=11, class_="wb-fill-muted" + side)
