"""A program of nodes as a picture: a card per group, callers to the left of callees, a mark per node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.records.launch import NodeRecord, NodeStateRecord, ProgramGraphRecord
from workbench.render._svg import Markup, element, group, join, path, rect, text
from workbench.render._theme import picture
from workbench.render.launch import (
    NODE_KINDS,
    STATE_HUES,
    calls_between,
    count_states,
    describe_graph,
    group_details,
    groups_of,
    load_text,
    state_map,
    worst_hue,
)
from workbench.render.units import number

_WIDTH = 248.0
_LINE = 17.0
_GAP = (84.0, 26.0)
_MARGIN = 18.0
_HEAD = 58.0
_INNER = _WIDTH - 28.0
_FEW, _MOST = 30, 300  # maximum numbers of nodes with large marks, and with any marks
_HUES = {"function": "clients", "class": "clients", "service": "server"}
_GLYPHS = {  # in a square from 0 to 12
    "waiting": "", "starting": "M3 6H9", "running": "M4 3L10 6L4 9Z", "serving": "M6 3A3 3 0 1 0 6 9A3 3 0 1 0 6 3Z",
    "finished": "M3 6.5L5.2 9L9.5 3.5", "stopped": "M4 4H8V8H4Z",
    "restarting": "M9 6A3 3 0 1 1 7.5 3.4M7.3 1.6V3.8H9.5",
    "raised": "M3.5 3.5L8.5 8.5M8.5 3.5L3.5 8.5", "killed": "M3.5 3.5L8.5 8.5M8.5 3.5L3.5 8.5",
    "hung": "M3.5 3.5L8.5 8.5M8.5 3.5L3.5 8.5",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Card:
    label: str
    nodes: tuple[NodeRecord, ...]
    words: tuple[str, ...]  # methods and resources of the group's nodes
    states: tuple[NodeStateRecord, ...]
    reported: bool  # whether the picture shows the states of its nodes
    x: float = 0.0
    y: float = 0.0

    @property
    def marks(self) -> tuple[float, int]:
        """The distance between node marks, and the number of marks per row."""
        pitch = 20.0 if len(self.nodes) <= _FEW else 10.0
        return pitch, int((_INNER + 4.0) // pitch)

    @property
    def marks_at(self) -> float:
        """The height above the marks."""
        return _HEAD + _LINE * len(self.words)

    @property
    def reported_at(self) -> float:
        """The height above the lines that list the nodes' states."""
        pitch, row = self.marks
        return self.marks_at + pitch * -(-min(len(self.nodes), _MOST) // row) + 3.0

    @property
    def height(self) -> float:
        return self.reported_at + (2 * _LINE if self.reported else 0.0) + 9.0


def render_graph_svg(
    graph: ProgramGraphRecord, *, states: Sequence[NodeStateRecord] = (), dark: bool | None = None, live: bool = False
) -> Markup:
    """The program's groups with their methods and call edges, and a mark for every node.

    Example:
        >>> from workbench.records.launch import NodeRecord, ProgramGraphRecord
        >>> node = NodeRecord(label="main/0", group="main", kind="function", target="train")
        >>> "main" in render_graph_svg(ProgramGraphRecord(name="p", nodes=(node,)))
        True
    """
    cards = _placed(graph, state_map(states), reported=bool(states))
    calls = calls_between(graph)
    low = max((card.y + card.height for card in cards), default=_MARGIN)
    around = any(a == b or _x_of(cards, b) <= _x_of(cards, a) for a, b in calls)
    width = max((card.x + _WIDTH for card in cards), default=_WIDTH) + _MARGIN
    height = low + _MARGIN + (14.0 if around else 0.0)
    by_label = {card.label: card for card in cards}
    wires = [_wire(by_label[a], by_label[b], count, cards) for (a, b), count in calls.items()]
    drawn = map(_drawn, cards)
    return picture(width, height, *wires, *drawn, label=describe_graph(graph), dark=dark, live=live)


def _x_of(cards: Sequence[_Card], label: str) -> float:
    """Horizontal position of a group's card."""
    return next(card.x for card in cards if card.label == label)


def node_glyph(state: str) -> str:
    """The symbol for a state, as SVG path commands in a 12 × 12 square."""
    return _GLYPHS[state]


def _columns(graph: ProgramGraphRecord) -> dict[str, int]:
    column = dict.fromkeys(groups_of(graph), 0)
    for _ in column:  # groups may call each other in a cycle, so the search for the longest path is bounded
        for source, target in calls_between(graph):
            if source != target and column[target] <= column[source] < len(column) - 1:
                column[target] = column[source] + 1
    used = sorted(set(column.values()))
    return {label: used.index(place) for label, place in column.items()}


def _placed(graph: ProgramGraphRecord, states: Mapping[str, NodeStateRecord], *, reported: bool) -> list[_Card]:
    columns = _columns(graph)
    crossing = any(columns[target] - columns[source] > 1 for source, target in calls_between(graph))
    top = _MARGIN + (14.0 if crossing else 0.0)  # room for wires that pass over a column
    cards: list[_Card] = []
    bottoms: dict[int, float] = {}
    for label, nodes in groups_of(graph).items():
        group_states = tuple(states[node.label] for node in nodes if node.label in states)
        x = _MARGIN + columns[label] * (_WIDTH + _GAP[0])
        y = bottoms.get(columns[label], top)
        card = _Card(label, nodes, tuple(group_details(nodes, graph)), group_states, reported, x, y)
        bottoms[columns[label]] = y + card.height + _GAP[1]
        cards.append(card)
    tallest = max(bottoms.values(), default=0.0)
    return [replace(card, y=card.y + (tallest - bottoms[columns[card.label]]) / 2) for card in cards]


def _drawn(card: _Card) -> Markup:
    hue, first = _HUES[card.nodes[0].kind], card.nodes[0]
    count = len(card.nodes)
    back = [
        rect(card.x + shift, card.y + shift, _WIDTH, card.height, rx=7, class_=f"wb-fill-bg wb-stroke-{hue}")
        for shift in ((8.0, 4.0) if count > 2 else (4.0,) if count > 1 else ())
    ]
    title = f"{card.label} × {count}" if count > 1 else card.label
    targets = " / ".join(dict.fromkeys(node.target.rpartition("<locals>.")[2] for node in card.nodes))
    kind = f"{NODE_KINDS[first.kind]} {targets}"
    left = card.x + 14
    return group(
        *back,
        rect(card.x, card.y, _WIDTH, card.height, rx=7, class_=f"wb-card wb-fill-{hue}-soft wb-stroke-{hue}"),
        rect(card.x, card.y, 5, card.height, rx=2.5, class_=f"wb-fill-{hue}"),
        text(left, card.y + 24, title, fit=_INNER, size=14, class_="wb-fill-fg wb-strong"),
        text(left, card.y + 43, kind, fit=_INNER, size=11.5, class_=f"wb-fill-{hue}"),
        *[
            text(left, card.y + _HEAD + 6 + i * _LINE, words, fit=_INNER, size=11, class_="wb-fill-fg")
            for i, words in enumerate(card.words)
        ],
        _marks(card),
        _status(card),
        class_="wb-graph-group",
        data_group=card.label,
    )


def _marks(card: _Card) -> Markup:
    pitch, row = card.marks
    size, states = pitch - (4.0 if pitch > 10 else 2.0), state_map(card.states)
    drawn = []
    for place, node in enumerate(card.nodes[:_MOST]):
        state = states[node.label].state if node.label in states else "waiting"
        x, y = card.x + 14 + place % row * pitch, card.y + card.marks_at + place // row * pitch
        hue = STATE_HUES[state]
        drawn.append(
            element(
                "g",
                element("title", f"{node.label}: {state}" if card.states else node.label),
                rect(0, 0, 12, 12, rx=2.5, class_=f"wb-fill-bg wb-stroke-{hue}"),
                path(_GLYPHS[state], class_=f"wb-stroke-{hue}", fill="none", stroke_width=2)
                if _GLYPHS[state]
                else None,
                transform=f"translate({number(x)} {number(y)}) scale({number(size / 12, 3)})",
                class_="wb-node",
                data_node=node.label,
                data_state=state,
            )
        )
    return join(drawn)


def _status(card: _Card) -> Markup | None:
    if not card.reported:
        return None
    y = card.y + card.reported_at + 11
    more = f" (+ {len(card.nodes) - _MOST} without a mark)" if len(card.nodes) > _MOST else ""
    hue = worst_hue(card.states)
    return join([
        text(card.x + 14, y, count_states(card.states) + more, fit=_INNER, size=11, class_=f"wb-told wb-fill-{hue}"),
        text(card.x + 14, y + _LINE, load_text(card.states), fit=_INNER, size=11, class_="wb-load wb-fill-muted"),
    ])  # fmt: skip


def _wire(source: _Card, target: _Card, count: int, cards: Sequence[_Card]) -> Markup:
    commands, middle, head = _course(source, target, cards)
    label = text(*middle, f"× {count}", size=10.5, class_="wb-fill-muted") if count > 1 else None
    wire = path(
        commands,
        fill="none",
        class_="wb-stroke-muted wb-graph-edge",
        stroke_width=1.4,
        data_edge=f"{source.label} → {target.label}",
        data_source=source.label,
        data_target=target.label,
    )
    return join([wire, path(head, class_="wb-fill-muted"), label])


def _course(source: _Card, target: _Card, cards: Sequence[_Card]) -> tuple[str, tuple[float, float], str]:
    """The path of a wire, the position of its label, and its arrowhead."""
    y0, y1 = source.y + source.height / 2, target.y + target.height / 2
    if source.label == target.label or target.x <= source.x:  # backwards, or within the group, so route below the cards
        low = max(source.y + source.height, target.y + target.height) + 14
        x0, x1 = source.x + _WIDTH * 0.6, target.x + _WIDTH * 0.4
        ends = (source.y + source.height, target.y + target.height + 7)
        head = f"M{number(x1 - 4)} {number(ends[1])}h8l-4 -7Z"
        return _curve((x0, ends[0]), (x0, low), (x1, low), (x1, ends[1])), ((x0 + x1) / 2 - 8, low + 4), head
    shadow = 8.0 if len(source.nodes) > 2 else 4.0 * (len(source.nodes) > 1)
    x0, x1 = source.x + _WIDTH + shadow, target.x - 8
    head = f"M{number(x1)} {number(y1 - 4)}v8l7 -4Z"
    between = [card for card in cards if source.x < card.x < target.x]
    if not between:
        bend = (x1 - x0) / 2
        course = _curve((x0, y0), (x0 + bend, y0), (x1 - bend, y1), (x1, y1))
        return course, (x0 + 6, y0 - 6), head
    lane = min(card.y for card in between) - 12  # above the cards in between
    xa, xb = min(card.x for card in between), max(card.x for card in between) + _WIDTH
    up = _curve((x0, y0), ((x0 + xa) / 2, y0), ((x0 + xa) / 2, lane), (xa, lane))
    down = _curve((xb, lane), ((xb + x1) / 2, lane), ((xb + x1) / 2, y1), (x1, y1))
    return f"{up}L{number(xb)} {number(lane)}{down[down.index('C') :]}", ((xa + xb) / 2 - 8, lane - 5), head


def _curve(*points: tuple[float, float]) -> str:
    (x, y), *rest = points
    return f"M{number(x)} {number(y)}C" + " ".join(f"{number(a)} {number(b)}" for a, b in rest)
