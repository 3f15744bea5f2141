"""Lines between stages: straight down a lane, side by side, and around cards that are in the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from workbench.records.program import StageRecord, ValueRecord
from workbench.render.units import bytes_text, number

STEP = 12.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A line through `points` with an arrow at its end; `source` and `target` are stage paths ("" outside)."""

    points: tuple[tuple[float, float], ...]
    kind: str  # hue: server, clients, broadcast, reduce
    source: str
    target: str
    label: str = ""
    arrow: bool = True


class _Lane(Protocol):
    @property
    def x0(self) -> float: ...
    @property
    def x1(self) -> float: ...
    @property
    def centre(self) -> float: ...


class Level(Protocol):
    """Properties of a layout level that `route` needs."""

    @property
    def stages(self) -> Sequence[StageRecord]: ...
    @property
    def lanes(self) -> Sequence[_Lane]: ...

    start: dict[tuple[int, int], float]
    end: dict[int, float]
    tops: dict[int, float]
    bottoms: dict[int, float]

    def input_lane(self, index: int) -> int | None:
        """The lane from which a stage receives its inputs."""
        ...

    def output_lane(self, index: int) -> int | None:
        """The lane of a stage's outputs."""
        ...


@dataclass(slots=True)
class _Net:
    maker: int
    lane: int
    ends: list[tuple[int, int, float]]  # (consumer, its lane, y)
    offset: float = 0.0
    side: bool = False

    def span(self, level: Level) -> tuple[float, float]:
        return level.start[self.maker, self.lane], max(y for _, _, y in self.ends)


def route(level: Level, leaving: Mapping[int, Sequence[ValueRecord]]) -> list[Wire]:
    """All wires of one level, including crossings."""
    nets = list(_nets(level, leaving).values())
    _spread(level, nets)
    ends = [(net, end) for net in nets for end in net.ends]
    wires = [_wire(level, net, end) for net, end in ends]
    arrivals: dict[int, list[float]] = {}
    for (_, (consumer, _, _)), wire in zip(ends, wires, strict=True):
        arrivals.setdefault(consumer, []).append(wire.points[-1][0])
    return [*wires, *_crossings(level, nets, arrivals), *_captured(level, nets)]


def _nets(level: Level, leaving: Mapping[int, Sequence[ValueRecord]]) -> dict[tuple[int, int], _Net]:
    nets: dict[tuple[int, int], _Net] = {}

    def connect(maker: int, consumer: int, lane: int | None) -> None:
        start_lane = level.output_lane(maker) if maker >= 0 else lane
        first = start_lane if start_lane is not None else (lane or 0)
        if (maker, first) not in level.start:
            first = next((at for m, at in level.start if m == maker), 0)
        if (maker, first) in level.start:
            net = nets.setdefault((maker, first), _Net(maker, first, []))
            net.ends.append((consumer, first if lane is None else lane, level.end[consumer]))

    for index, stage in enumerate(level.stages):
        for maker in dict.fromkeys(stage.consumes):
            lane = level.input_lane(index)
            entries = [at for m, at in level.start if m == maker]
            if maker < 0 and lane not in (None, *entries):
                continue  # a constant, which is not an input: see `_captured`
            if maker < len(level.stages):
                connect(maker, index, _entry_lane(level, index, maker) if maker < 0 else lane)
    last = len(level.stages)
    for lane, values in leaving.items():
        for index in _makers(level, values):
            connect(index, last, lane)
    return nets


def _makers(level: Level, values: Sequence[ValueRecord]) -> list[int]:
    """For each value, the last stage with an output of this name or, if there is none, of this shape and dtype."""
    makers: set[int] = set()
    for value in values:
        named = [i for i, stage in enumerate(level.stages) if value.name in {output.name for output in stage.outputs}]
        kind = (value.shape, value.dtype)
        alike = [i for i, stage in enumerate(level.stages) if kind in {(o.shape, o.dtype) for o in stage.outputs}]
        makers.update(named[-1:] or alike[-1:])
    return sorted(makers)


def _captured(level: Level, nets: Sequence["_Net"]) -> list[Wire]:
    """A short arrow into every stage that reads constants, that is, values that the program closes over."""
    fed = {(net.maker, consumer) for net in nets for consumer, _, _ in net.ends}
    wires = []
    for index, stage in enumerate(level.stages):
        lane = level.input_lane(index)
        if -1 in stage.consumes and (-1, index) not in fed and lane is not None and stage.kind != "broadcast":
            x, y = level.lanes[lane].x0 + 84, level.end[index]
            wires.append(Wire(((x, y - 18), (x, y)), "server" if lane == 0 else "clients", "", stage.path, "constants"))
    return wires


def _entry_lane(level: Level, index: int, maker: int) -> int:
    lane = level.input_lane(index)
    entries = [at for m, at in level.start if m == maker]
    return lane if lane in entries else (entries[0] if entries and lane is None else lane or 0)


def _spread(level: Level, nets: list[_Net]) -> None:
    occupancy: dict[tuple[int, bool], list[tuple[float, float, int]]] = {}
    for net in sorted(nets, key=lambda n: n.span(level)):
        top, bottom = net.span(level)
        net.side = _blocked(level, net, top, bottom)
        tracks = occupancy.setdefault((net.lane, net.side), [])
        used = {track for low, high, track in tracks if low < bottom - 1 and top < high - 1}
        track = next(t for t in range(len(used) + 1) if t not in used)
        tracks.append((top, bottom, track))
        if net.side:
            net.offset = 5.0 + 4.0 * min(track, 1)
        else:
            net.offset = STEP * ((track + 1) // 2) * (1 if track % 2 else -1)


def _blocked(level: Level, net: _Net, top: float, bottom: float) -> bool:
    for index, stage in enumerate(level.stages):
        inside = level.tops[index] > top - 1 and level.bottoms[index] < bottom + 1
        if inside and stage.kind not in ("broadcast", "reduce"):
            frame = bool(stage.body)
            if frame or level.output_lane(index) == net.lane:
                return True
    return False


def _wire(level: Level, net: _Net, end: tuple[int, int, float]) -> Wire:
    consumer, lane, bottom = end
    top = level.start[net.maker, net.lane]
    band = level.lanes[net.lane]
    x = band.centre + net.offset
    target_x = x if lane == net.lane else level.lanes[lane].centre
    points: list[tuple[float, float]]
    if net.side and _blocked(level, net, top, bottom):
        around = _aside(level, net)
        points = [(around, bottom - 11), (target_x, bottom - 11)]
        if net.maker >= 0 and level.stages[net.maker].kind in ("broadcast", "reduce"):
            points.insert(0, (around, top))
        else:
            points = [(band.centre, top), (band.centre, top + 9), (around, top + 9), *points]
    else:
        x = band.centre if net.side else x
        points = [(x, top)]
        if lane != net.lane:
            points += [(x, bottom - 11), (target_x, bottom - 11)]
        else:
            target_x = x
    points.append((target_x, bottom))
    kind = level.stages[consumer].kind if consumer < len(level.stages) else "server"
    crossing = kind in ("broadcast", "reduce")
    target = level.stages[consumer].path if consumer < len(level.stages) else ""
    source = level.stages[net.maker].path if net.maker >= 0 else ""
    hue = "server" if net.lane == 0 else "clients"
    return Wire(
        tuple(points), hue, source, target, "" if crossing else _label(level, net.maker, consumer), not crossing
    )


def _aside(level: Level, net: _Net) -> float:
    band = level.lanes[net.lane]
    last = net.lane == len(level.lanes) - 1 and net.lane > 0
    return band.x1 - net.offset if last else band.x0 + net.offset


def _crossings(level: Level, nets: list[_Net], arrivals: Mapping[int, Sequence[float]]) -> list[Wire]:
    """One line across each broadcast and reduction, from the farthest incoming wire to the start of the output."""
    departures = {
        net.maker: _aside(level, net) if net.side else level.lanes[net.lane].centre + net.offset for net in nets
    }
    wires = []
    for index, stage in enumerate(level.stages):
        if stage.kind not in ("broadcast", "reduce") or stage.body:
            continue
        y = level.end[index]
        here = level.lanes[level.input_lane(index) or 0].centre
        there = departures.get(index, level.lanes[level.output_lane(index) or 0].centre)
        starts = arrivals.get(index, [here])
        start = min(starts) if there > here else max(starts)
        wires.append(Wire(((start, y), (there, y)), stage.kind, stage.path, stage.path, "", True))
    return wires


def _label(level: Level, maker: int, consumer: int) -> str:
    if maker < 0 or consumer >= len(level.stages):
        return ""
    sizes = {value.name: value.size_bytes for value in level.stages[maker].outputs}
    passed = [sizes[value.name] for value in level.stages[consumer].inputs if value.name in sizes]
    return bytes_text(sum(passed)) if passed and level.stages[maker].kind not in ("broadcast", "reduce") else ""


def rounded(points: Sequence[tuple[float, float]], radius: float = 6.0) -> str:
    """SVG commands for a line through right-angled `points` with rounded corners.

    Example:
        >>> rounded([(0, 0), (0, 20), (20, 20)])
        'M0 0L0 14Q0 20 6 20L20 20'
    """
    corners = [p for i, p in enumerate(points) if i == 0 or p != points[i - 1]]
    commands = [f"M{number(corners[0][0])} {number(corners[0][1])}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        into, out = _towards(corner, before, radius), _towards(corner, after, radius)
        commands.append(f"L{number(into[0])} {number(into[1])}")
        commands.append(f"Q{number(corner[0])} {number(corner[1])} {number(out[0])} {number(out[1])}")
    commands.append(f"L{number(corners[-1][0])} {number(corners[-1][1])}")
    return "".join(commands)


def _towards(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    share = min(distance / length, 0.5) if length else 0.0
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share
