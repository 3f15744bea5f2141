"""A program of nodes as a picture: one card per group, callers on the left of what they call."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.records import EdgeRecord, NodeRecord, NodeStateRecord, ProgramGraphRecord
from workbench.views._svg import Markup, element, group, join, number, path, rect, svg, text
from workbench.views._theme import svg_style

_WIDTH = 224.0
_LINE = 17.0
_GAP = (84.0, 26.0)
_MARGIN = 18.0
_HEAD = 58.0
_SHOWN = 4  # nodes of a group that are named; the rest are counted
_HUES = {"function": "clients", "class": "clients", "service": "server"}
_KINDS = {"function": "function", "class": "run loop", "service": "service"}
_STATE_HUES = {
    "running": "good", "serving": "good", "finished": "accent", "stopped": "muted", "waiting": "muted",
    "starting": "muted", "restarting": "reduce", "raised": "bad", "killed": "bad", "hung": "bad",
}  # fmt: skip
_STATE_SIGNS = {"running": "▶", "serving": "●", "finished": "✓", "raised": "✗", "killed": "✗", "hung": "✗"}


@dataclass(frozen=True, slots=True)
class _Card:
    label: str
    nodes: tuple[NodeRecord, ...]
    lines: tuple[tuple[str, str], ...]  # text and hue
    x: float
    y: float

    @property
    def height(self) -> float:
        return _HEAD + _LINE * len(self.lines) + 8.0


def render_graph_svg(
    graph: ProgramGraphRecord, *, states: Sequence[NodeStateRecord] = (), dark: bool | None = None
) -> Markup:
    """The program's groups, what they offer, and who may call whom.

    Args:
        graph: The program.
        states: What its nodes do now, if it runs; each named node then shows its state by sign, word and colour.
        dark: For a dark page; None follows the reader's system.

    Example:
        >>> from workbench.records import NodeRecord, ProgramGraphRecord
        >>> node = NodeRecord(label="main/0", group="main", kind="function", target="train")
        >>> "main" in render_graph_svg(ProgramGraphRecord(name="p", nodes=(node,)))
        True
    """
    cards = _placed(graph, {state.label: state for state in states})
    width = max((card.x + _WIDTH for card in cards), default=_WIDTH) + _MARGIN
    height = max((card.y + card.height for card in cards), default=_MARGIN) + _MARGIN
    by_label = {card.label: card for card in cards}
    wires = [_wire(by_label[a], by_label[b], count, cards) for (a, b), count in _calls(graph).items()]
    head = element("path", d="M0 0L8 4L0 8Z", class_="wb-fill-muted")
    marker = element("marker", head, id="wb-graph-arrow", markerWidth=8, markerHeight=8, refX=7, refY=4, orient="auto")
    return svg(
        width,
        height,
        element("defs", marker),
        rect(0, 0, width, height, class_="wb-fill-bg"),
        join(wires),
        join(_drawn(card) for card in cards),
        label=describe_graph(graph),
        style=svg_style(dark),
    )


def describe_graph(graph: ProgramGraphRecord) -> str:
    """The graph in one sentence per group, for screen readers and plain text.

    Example:
        >>> describe_graph(ProgramGraphRecord(name="p", nodes=()))
        'Program p: no nodes.'
    """
    groups = _groups(graph)
    if not groups:
        return f"Program {graph.name}: no nodes."
    calls: dict[str, list[str]] = {}
    for source, target in _calls(graph):
        calls.setdefault(source, []).append(target)
    said = [
        f"{label}: {len(nodes)} × {nodes[0].target} ({_KINDS[nodes[0].kind]})"
        + (f", calls {', '.join(calls[label])}" if label in calls else "")
        for label, nodes in groups.items()
    ]
    return f"Program {graph.name}. {'. '.join(said)}."


def _groups(graph: ProgramGraphRecord) -> dict[str, tuple[NodeRecord, ...]]:
    return {
        label: tuple(node for node in graph.nodes if node.group == label)
        for label in dict.fromkeys(node.group for node in graph.nodes)
    }


def _calls(graph: ProgramGraphRecord) -> Counter[tuple[str, str]]:
    group_of = {node.label: node.group for node in graph.nodes}
    return Counter((group_of[edge.source], group_of[edge.target]) for edge in graph.edges if _known(edge, group_of))


def _known(edge: EdgeRecord, group_of: Mapping[str, str]) -> bool:
    return edge.source in group_of and edge.target in group_of


def _columns(graph: ProgramGraphRecord) -> dict[str, int]:
    column = dict.fromkeys(_groups(graph), 0)
    for _ in column:  # groups may call each other in a ring, so the longest path is only sought so far
        for source, target in _calls(graph):
            if source != target and column[target] <= column[source] < len(column) - 1:
                column[target] = column[source] + 1
    used = sorted(set(column.values()))
    return {label: used.index(place) for label, place in column.items()}


def _placed(graph: ProgramGraphRecord, states: Mapping[str, NodeStateRecord]) -> list[_Card]:
    columns, groups = _columns(graph), _groups(graph)
    sizes = Counter(node.host for node in graph.nodes)
    crossing = any(columns[target] - columns[source] > 1 for source, target in _calls(graph))
    top = _MARGIN + (14.0 if crossing else 0.0)  # room for wires that pass over a column
    cards: list[_Card] = []
    bottoms: dict[int, float] = {}
    for label, nodes in groups.items():
        x = _MARGIN + columns[label] * (_WIDTH + _GAP[0])
        y = bottoms.get(columns[label], top)
        card = _Card(label, nodes, tuple(_lines(nodes, states, sizes)), x, y)
        bottoms[columns[label]] = y + card.height + _GAP[1]
        cards.append(card)
    tallest = max(bottoms.values(), default=0.0)
    return [
        _Card(card.label, card.nodes, card.lines, card.x, card.y + (tallest - bottoms[columns[card.label]]) / 2)
        for card in cards
    ]


def _lines(
    nodes: tuple[NodeRecord, ...], states: Mapping[str, NodeStateRecord], sizes: Counter[int]
) -> list[tuple[str, str]]:
    first, found = nodes[0], []
    methods = dict.fromkeys(name for node in nodes for name in node.methods)
    if methods:
        found.append((", ".join(f".{name}()" for name in methods), "fg"))
    notes = [f"{name} {number(need)}" for name, need in first.resources.items()]
    notes += [f"{first.concurrency} calls at once"] if first.concurrency > 1 else []
    notes += [f"restarts ≤ {first.restart_limit}"] if first.restart_limit else []
    notes += ["shares its process"] if any(sizes[node.host] > 1 for node in nodes) else []
    if notes:
        found.append((" · ".join(notes), "muted"))
    if states:
        counted = Counter(states[node.label].state for node in nodes if node.label in states)
        found += [
            (f"{_STATE_SIGNS.get(state, '○')} {count} {state}" + _rate(nodes, states, state), _STATE_HUES[state])
            for state, count in counted.items()
        ]
    elif len(nodes) > 1:
        shown = ", ".join(node.label.rpartition("/")[2] for node in nodes[:_SHOWN])
        found.append((f"nodes {shown}{f' … {len(nodes) - 1}' if len(nodes) > _SHOWN else ''}", "muted"))
    return found


def _rate(nodes: tuple[NodeRecord, ...], states: Mapping[str, NodeStateRecord], state: str) -> str:
    rates = [
        found.calls_per_second
        for node in nodes
        if (found := states.get(node.label)) and found.state == state and found.calls_per_second is not None
    ]
    return f" · {sum(rates):.0f} calls/s" if rates and sum(rates) >= 0.5 else ""


def _drawn(card: _Card) -> Markup:
    hue, first = _HUES[card.nodes[0].kind], card.nodes[0]
    count = len(card.nodes)
    back = [
        rect(card.x + shift, card.y + shift, _WIDTH, card.height, rx=7, class_=f"wb-fill-bg wb-stroke-{hue}")
        for shift in ((8.0, 4.0) if count > 2 else (4.0,) if count > 1 else ())
    ]
    title = f"{card.label} × {count}" if count > 1 else card.label
    targets = " / ".join(dict.fromkeys(node.target.rpartition("<locals>.")[2] for node in card.nodes))
    lines = [
        text(card.x + 14, card.y + _HEAD + 8 + i * _LINE, words, fit=_WIDTH - 24, size=11, class_=f"wb-fill-{colour}")
        for i, (words, colour) in enumerate(card.lines)
    ]
    return group(
        *back,
        rect(card.x, card.y, _WIDTH, card.height, rx=7, class_=f"wb-fill-{hue}-soft wb-stroke-{hue}"),
        rect(card.x, card.y, 5, card.height, rx=2.5, class_=f"wb-fill-{hue}"),
        text(card.x + 14, card.y + 24, title, fit=_WIDTH - 24, size=14, class_="wb-fill-fg wb-strong"),
        text(
            card.x + 14,
            card.y + 43,
            f"{_KINDS[first.kind]} {targets}",
            fit=_WIDTH - 24,
            size=11.5,
            class_=f"wb-fill-{hue}",
        ),
        *lines,
        class_="wb-graph-group",
        data_group=card.label,
    )


def _wire(source: _Card, target: _Card, count: int, cards: Sequence[_Card]) -> Markup:
    commands, middle = _course(source, target, cards)
    label = text(*middle, f"× {count}", size=10.5, class_="wb-fill-muted wb-middle") if count > 1 else None
    wire = path(
        commands,
        fill="none",
        class_="wb-stroke-muted wb-graph-edge",
        stroke_width=1.4,
        marker_end="url(#wb-graph-arrow)",
        data_edge=f"{source.label} → {target.label}",
    )
    return join([wire, label])


def _course(source: _Card, target: _Card, cards: Sequence[_Card]) -> tuple[str, tuple[float, float]]:
    """The path of a wire and the place of its label."""
    y0, y1 = source.y + source.height / 2, target.y + target.height / 2
    if source.label == target.label or target.x <= source.x:  # back, or within the group: around below
        low = max(source.y + source.height, target.y + target.height) + 14
        x0, x1 = source.x + _WIDTH * 0.6, target.x + _WIDTH * 0.4
        ends = (source.y + source.height, target.y + target.height + 1)
        return _curve((x0, ends[0]), (x0, low), (x1, low), (x1, ends[1])), ((x0 + x1) / 2, low + 4)
    shadow = 8.0 if len(source.nodes) > 2 else 4.0 * (len(source.nodes) > 1)
    x0, x1 = source.x + _WIDTH + shadow, target.x - 2
    between = [card for card in cards if source.x < card.x < target.x]
    if not between:
        bend = (x1 - x0) / 2
        course = _curve((x0, y0), (x0 + bend, y0), (x1 - bend, y1), (x1, y1))
        return course, ((x0 + x1) / 2, (y0 + y1) / 2 - 7)
    lane = min(card.y for card in between) - 12  # over the cards in between
    xa, xb = min(card.x for card in between), max(card.x for card in between) + _WIDTH
    up = _curve((x0, y0), ((x0 + xa) / 2, y0), ((x0 + xa) / 2, lane), (xa, lane))
    down = _curve((xb, lane), ((xb + x1) / 2, lane), ((xb + x1) / 2, y1), (x1, y1))
    return f"{up}L{number(xb)} {number(lane)}{down[down.index('C') :]}", ((xa + xb) / 2, lane - 5)


def _curve(*points: tuple[float, float]) -> str:
    (x, y), *rest = points
    return f"M{number(x)} {number(y)}C" + " ".join(f"{number(a)} {number(b)}" for a, b in rest)
