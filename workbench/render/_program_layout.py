"""Layout of the picture of a program.

Time flows down. Every level of nesting has one lane for its server and one lane per placement. A stage is a card in its
lane. A broadcast or reduction is a line between lanes. A loop, a branch or a nested placement is a frame that contains
a smaller picture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from workbench.records.hardware import ClientRange, MeshRecord
from workbench.records.program import PlanRecord, StageRecord, ValueRecord
from workbench.render._wires import Wire, route
from workbench.render.units import bytes_text, count_text, source_text, work_text

CARD, CROSSING, HEADER, GAP, PAD = 46.0, 46.0, 30.0, 24.0, 14.0
PILL = 196.0
DOT, PITCH, LABEL = 9.0, 12.0, 15.0
MOST_DOTS = 64
MOST_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Lane:
    """A vertical band that belongs to the server (`placement` None) or to one placement."""

    placement: str | None
    title: str
    x0: float
    x1: float

    @property
    def centre(self) -> float:
        """Vertical position of the centre, where the lines run."""
        return (self.x0 + self.x1) / 2


@dataclass(frozen=True, slots=True)
class ClientBlock:
    """The clients `start` to `stop`, which share devices; `dots` are their positions (none for many clients)."""

    x: float
    y: float
    width: float
    height: float
    start: int
    stop: int
    devices: tuple[int, ...]
    dots: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A box in the picture: a stage (`path`), or an input or output value (`path` is empty)."""

    form: str  # card, pill, frame, chip
    kind: str
    path: str
    x: float
    y: float
    width: float
    height: float
    title: str
    subtitle: str = ""
    note: str = ""
    depth: int = 0
    blocks: tuple[ClientBlock, ...] = ()
    more: str = ""  # text about clients that the blocks omit


@dataclass(slots=True)
class ProgramLayout:
    """The whole picture: lanes, wires and boxes."""

    width: float
    height: float = 0.0
    lanes: list[tuple[Lane, float, float]] = field(default_factory=list)  # lane, top, bottom
    boxes: list[Box] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)


def lay_out(plan: PlanRecord, mesh: MeshRecord | None = None, width: float = 620.0) -> ProgramLayout:
    """Lays out every stage of `plan`, including loops and nested placements, at a width of `width` pixels."""
    layout = ProgramLayout(width=width)
    level = _Level(
        layout, plan.stages, 0.0, width, depth=0, mesh=mesh, placements={p.name: p.size for p in plan.placements}
    )
    layout.height = level.place(8.0, plan.inputs, plan.outputs)
    return layout


class _Level:
    """One level of nesting: its lanes and the stages in the lanes."""

    def __init__(
        self, layout: ProgramLayout, stages: Sequence[StageRecord], x0: float, x1: float, *, depth: int,
        mesh: MeshRecord | None, placements: dict[str, int], outer: StageRecord | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.stages, self.depth, self.mesh, self.placements = layout, stages, depth, mesh, placements
        self.outer = outer
        self.x0, self.x1 = x0, x1
        self.lanes = self._lanes()
        self.start: dict[tuple[int, int], float] = {}  # (stage, lane) -> vertical position where its value starts
        self.end: dict[int, float] = {}  # stage -> vertical position where a value arrives
        self.tops: dict[int, float] = {}
        self.bottoms: dict[int, float] = {}

    def _lanes(self) -> list[Lane]:
        names: list[str] = []
        for stage in self._level():
            if stage.placement is not None and stage.placement not in names:
                names.append(stage.placement)
        order = list(self.placements)
        names.sort(key=lambda name: order.index(name) if name in order else len(order))
        weights = [0.8] + [1.2] * len(names)
        room = self.x1 - self.x0 - 2 * PAD - 10.0 * len(names)
        widths = [room * weight / sum(weights) for weight in weights]
        inside = self.outer.placement if self.outer is not None and self.outer.kind == "clients" else None
        has_program = any(stage.kind == "program" for stage in self.stages)
        here = "all devices" if has_program else "server"
        titles = [f"each of {self.outer.clients:,} {inside}" if self.outer is not None and inside else here]
        titles += [f"{self._size(name):,} {name}" for name in names]
        lanes, x = [], self.x0 + PAD
        for placement, title, lane_width in zip([None, *names], titles, widths, strict=True):
            lanes.append(Lane(placement, title, x, x + lane_width))
            x += lane_width + 10.0
        return lanes

    def _level(self) -> list[StageRecord]:
        # A loop shares the lanes of its level: a loop with clients also needs a lane for clients outside.
        return [inner for stage in self.stages for inner in stage.walk(into=("loop", "branch"))]

    def _size(self, placement: str) -> int:
        sizes = [s.clients for s in self._level() if s.placement == placement]
        return self.placements.get(placement, max(sizes, default=1))

    def lane_of(self, placement: str | None) -> int:
        """Index of a placement's lane; the server's lane has index 0."""
        return next((i for i, lane in enumerate(self.lanes) if lane.placement == placement), 0)

    def output_lane(self, index: int) -> int | None:
        """The lane of a stage's outputs; None for a frame, whose outputs may be in any lane."""
        stage = self.stages[index]
        if stage.kind in ("server", "program"):
            return 0
        if stage.kind == "reduce":
            return self._beyond(stage, downstream=True)
        return self.lane_of(stage.placement) if stage.kind in ("broadcast", "clients") else None

    def input_lane(self, index: int) -> int | None:
        """The lane from which a stage receives its inputs; None for a frame."""
        stage = self.stages[index]
        if stage.kind in ("server", "program"):
            return 0
        if stage.kind == "broadcast":
            return self._beyond(stage, downstream=False)
        return self.lane_of(stage.placement) if stage.kind in ("reduce", "clients") else None

    def _beyond(self, stage: StageRecord, *, downstream: bool) -> int:
        # With several placements side by side, a crossing may connect two placements.
        if len(self.lanes) <= 2:
            return 0
        if downstream:
            near = [s for s in self.stages if stage.index in s.consumes and s.kind in ("clients", "reduce")]
        else:
            near = [
                self.stages[i] for i in stage.consumes if i >= 0 and self.stages[i].kind in ("clients", "broadcast")
            ]
        lanes = {self.lane_of(s.placement) for s in near if s.placement not in (None, stage.placement)}
        return lanes.pop() if len(lanes) == 1 else 0

    def place(self, top: float, inputs: Sequence[ValueRecord] = (), outputs: Sequence[ValueRecord] = ()) -> float:
        """Lays out the level below `top`; returns the bottom."""
        y = top + 24.0
        y = self._chips(y, self._entering(inputs), -1) if inputs else self._enter(y)
        for index, stage in enumerate(self.stages):
            y += GAP
            self.tops[index] = y
            y = self._stage(index, stage, y)
            self.bottoms[index] = y
        leaving = self._leaving(outputs)
        y = self._chips(y + GAP, leaving, len(self.stages)) if leaving else y + 8.0
        self.layout.lanes.extend((lane, top, y + 8.0) for lane in self.lanes)
        self.layout.wires.extend(route(self, leaving))
        return y + 16.0

    def _enter(self, y: float) -> float:
        for lane in range(len(self.lanes)):
            self.start[-1, lane] = y - 4.0
        return y - 8.0

    def _entering(self, inputs: Sequence[ValueRecord]) -> dict[int, list[ValueRecord]]:
        by_lane: dict[int, list[ValueRecord]] = {}
        for value in inputs:
            users = [s for s in self.stages if any(v.name == value.name for v in s.inputs)]
            client_side = bool(users) and all(s.kind in ("clients", "reduce") for s in users)
            lane = self.lane_of(users[0].placement) if client_side else 0
            by_lane.setdefault(lane, []).append(value)
        return by_lane

    def _leaving(self, outputs: Sequence[ValueRecord]) -> dict[int, list[ValueRecord]]:
        by_lane: dict[int, list[ValueRecord]] = {}
        for value in outputs:
            makers = [i for i, s in enumerate(self.stages) if any(v.name == value.name for v in s.outputs)]
            lane = (self.output_lane(makers[-1]) or 0) if makers else 0
            by_lane.setdefault(lane, []).append(value)
        return by_lane

    def _chips(self, y: float, values: dict[int, list[ValueRecord]], index: int) -> float:
        for lane, lane_values in values.items():
            band = self.lanes[lane]
            total = bytes_text(sum(v.size_bytes for v in lane_values))
            names = ", ".join(v.name for v in lane_values)
            title = "in" if index < 0 else "out"
            box = Box("chip", "server" if lane == 0 else "clients", "", band.x0 + 12, y, band.x1 - band.x0 - 24, 26.0,
                      f"{title}: {names}", note=total, depth=self.depth)  # fmt: skip
            self.layout.boxes.append(box)
            if index < 0:
                self.start[index, lane] = y + 26.0
        if index >= 0:
            self.end[index] = y
        return y + 26.0

    def _stage(self, index: int, stage: StageRecord, y: float) -> float:
        if stage.body:
            return self._frame(index, stage, y)
        if stage.kind in ("broadcast", "reduce"):
            return self._crossing(index, stage, y)
        return self._card(index, stage, y)

    def _card(self, index: int, stage: StageRecord, y: float) -> float:
        lane = self.lanes[self.lane_of(stage.placement) if stage.kind == "clients" else 0]
        x, width = lane.x0 + 12, lane.x1 - lane.x0 - 24
        blocks: tuple[ClientBlock, ...] = ()
        more, height = "", CARD
        if stage.kind == "clients":
            blocks, more, height = client_blocks(stage, self.mesh, x + 8, y + CARD, width - 16)
            height += CARD + 8
        # A card is narrow, so "+" replaces "and".
        work = work_text(stage.flops_per_client, stage.elementwise_flops_per_client).replace(" and ", " + ")
        note = work if stage.flops_per_client is not None else ""
        where = "" if stage.source is None else source_text(stage.source.file, stage.source.line)
        subtitle = (stage.operation or where or stage.kind) + (f" · {note}" if note else "")
        if stage.kind == "clients":
            unit = note if "elementwise" in note else "one client" + (f" of {note}" if note else "")
            subtitle = f"{count_text(stage.clients)} × {unit}"
        box = Box("card", stage.kind, stage.path, x, y, width, height, stage.name or stage.kind, subtitle, "",
                  self.depth, blocks, more)  # fmt: skip
        self.layout.boxes.append(box)
        self.end[index] = y
        self.start[index, self.lanes.index(lane)] = y + height
        return y + height

    def _crossing(self, index: int, stage: StageRecord, y: float) -> float:
        a, b = self.input_lane(index) or 0, self.output_lane(index) or 0
        middle = (self.lanes[a].centre + self.lanes[b].centre) / 2
        width = min(PILL, abs(self.lanes[a].centre - self.lanes[b].centre) - 44)
        size = stage.moved_bytes // max(stage.clients, 1)
        subtitle = f"{count_text(stage.clients)} × {bytes_text(size)} = {bytes_text(stage.moved_bytes)}"
        box = Box(
            "pill", stage.kind, stage.path, middle - width / 2, y, width, CROSSING, stage.name, subtitle, "", self.depth
        )
        self.layout.boxes.append(box)
        self.end[index] = y + CROSSING / 2
        self.start[index, b] = y + CROSSING / 2
        return y + CROSSING

    def _frame(self, index: int, stage: StageRecord, y: float) -> float:
        place = len(self.layout.boxes)
        x0, x1 = self.x0 + PAD + 4, self.x1 - PAD - 4
        inner = _Level(self.layout, stage.body, x0 + 2, x1 - 2, depth=self.depth + 1, mesh=self.mesh,
                       placements=self.placements, outer=stage)  # fmt: skip
        # Inputs and outputs of a group of clients are named; those of a loop are named at the loop's own level.
        nested = stage.kind == "clients"
        bottom = inner.place(y + HEADER, *((_named(stage, "inputs"), _named(stage, "outputs")) if nested else ()))
        iterations = f" × {count_text(stage.trip_count)}" if stage.trip_count is not None else ""
        title = (
            f"{stage.kind}{iterations}" if stage.kind != "clients" else f"{count_text(stage.clients)} {stage.placement}"
        )
        note = f"{work_text(stage.flops, stage.elementwise_flops)} in all" if stage.flops is not None else ""
        box = Box("frame", stage.kind, stage.path, x0, y, x1 - x0, bottom - y, title, stage.name, note, self.depth)
        self.layout.boxes.insert(place, box)
        self.end[index] = y
        for lane in range(len(self.lanes)):
            self.start[index, lane] = bottom
        return bottom


def _named(stage: StageRecord, side: Literal["inputs", "outputs"]) -> tuple[ValueRecord, ...]:
    """Inputs or outputs of a body: values produced outside it, or values that no stage inside it consumes."""
    body = stage.body
    if side == "inputs":
        output_names = [
            {value.name for index in i.consumes if index >= 0 for value in body[index].outputs} for i in body
        ]
        values = [
            value
            for inner, inside in zip(body, output_names, strict=True)
            if -1 in inner.consumes
            for value in inner.inputs
            if value.name not in inside
        ]
    else:
        sources = {index for inner in body for index in inner.consumes}
        values = [value for index, inner in enumerate(body) if index not in sources for value in inner.outputs]
    return tuple({value.name: value for value in values}.values())


def client_blocks(
    stage: StageRecord, mesh: MeshRecord | None, x: float, y: float, width: float
) -> tuple[tuple[ClientBlock, ...], str, float]:
    """The clients of a stage by device: their blocks, a note about omitted clients, and the height."""
    groups = device_groups(mesh, stage.placement or "", stage.clients)
    if len(groups) > MOST_BLOCKS:
        block = ClientBlock(x, y, width, 64.0, 0, stage.clients, ())
        devices = len({device for _, _, members in groups for device in members})
        return (block,), f"on {count_text(devices)} devices", 64.0 + LABEL
    columns = min(len(groups), max(1, int(width // 64)))
    columns = next((c for c in range(columns, 0, -1) if len(groups) % c == 0 and c * 2 > columns), columns)
    room = (width - 6 * (columns - 1)) / columns
    most = max(stop - start for start, stop, _ in groups)
    dotted = stage.clients <= MOST_DOTS
    across = max(1, min(most, int((room - 8) // PITCH)))
    across = next((a for a in range(across, across // 2, -1) if most % a == 0), across)
    inner = math.ceil(most / across) * PITCH + 5 if dotted else 30.0
    blocks = []
    for number, (start, stop, devices) in enumerate(groups):
        left = x + number % columns * (room + 6)
        upper = y + number // columns * (inner + LABEL + 4)
        dots = ()
        if dotted:
            inset = (room - across * PITCH + PITCH - DOT) / 2
            dots = tuple(
                (left + inset + k % across * PITCH, upper + 4 + k // across * PITCH) for k in range(stop - start)
            )
        blocks.append(ClientBlock(left, upper, room, inner, start, stop, devices, dots))
    rows = math.ceil(len(groups) / columns)
    return tuple(blocks), "", rows * (inner + LABEL + 4) - 4


def device_groups(mesh: MeshRecord | None, placement: str, clients: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(start, stop, devices) for every range of clients; a single range without devices if there is no mesh."""
    ranges: dict[tuple[int, int], list[int]] = {}
    for range_ in _ranges(mesh, placement, clients):
        ranges.setdefault((range_.start, min(range_.stop, clients)), []).append(range_.device_id)
    if not ranges:
        return [(0, clients, ())]
    return [(start, stop, tuple(devices)) for (start, stop), devices in sorted(ranges.items()) if stop > start]


def _ranges(mesh: MeshRecord | None, placement: str, clients: int) -> list[ClientRange]:
    if mesh is None:
        return []
    return [range_ for range_ in mesh.clients if range_.placement == placement and range_.start < clients]
