"""The rounds of a run as a picture and in words: curves with bands over clients."""

import math
from collections.abc import Sequence

from workbench.records.live import RoundRecord
from workbench.render._svg import Markup, group, line, path, rect, svg, text
from workbench.render._theme import picture, sequential
from workbench.render.units import FORMATS, METRIC_TITLES, count_text, metric_text, seconds_text

Point = tuple[int, float, float, float]  # round, mean, minimum and maximum over clients and steps
_WIDE, _HIGH, _LEFT, _FOOT, _HEAD = 280.0, 170.0, 78.0, 24.0, 30.0
_MOST_POINTS = 400
_SHOWN = 9  # maximum number of curves in a picture


def curves(history: Sequence[RoundRecord]) -> dict[str, list[Point]]:
    """Every metric over the rounds: mean, minimum and maximum over clients and local steps.

    Example:
        >>> curves([RoundRecord(round=0, seconds=0.5, metrics={"loss": (3.0, 1.0)})])
        {'loss': [(0, 2.0, 1.0, 3.0)]}
    """
    points: dict[str, list[Point]] = {}
    for record in history:
        for name, value in record.metrics.items():
            finite = [number for number in _numbers(value) if math.isfinite(number)]
            mean, least, most = (sum(finite) / len(finite), min(finite), max(finite)) if finite else (math.nan,) * 3
            points.setdefault(name, []).append((record.round, mean, least, most))
    return points


def describe_rounds(history: Sequence[RoundRecord], rounds: int | None = None, *, unit: str = "round") -> str:
    """The number of finished rounds, and the last value of every metric.

    Example:
        >>> print(describe_rounds([RoundRecord(round=0, seconds=0.5, metrics={"loss": (3.0, 1.0)})], 4))
        1 of 4 rounds, 500 ms
          loss: 2 (1 to 3)
    """
    of = f" of {count_text(rounds)}" if rounds is not None else ""
    seconds = sum(record.seconds for record in history)
    lines = [f"{count_text(len(history))}{of} {unit}s" + (f", {seconds_text(seconds)}" if history else "")]
    for name, points in curves(history[-1:]).items():
        _, mean, least, most = points[-1]
        spread = f" ({metric_text(name, least)} to {metric_text(name, most)})" if most > least else ""
        lines.append(f"  {name}: {metric_text(name, mean) if math.isfinite(mean) else 'not finite'}{spread}")
    return "\n".join(lines)


def render_rounds_svg(
    history: Sequence[RoundRecord], *, width: float = 880, dark: bool | None = None, unit: str = "round"
) -> Markup:
    """Curves of every metric over the rounds, with a band from minimum to maximum over clients.

    Example:
        >>> "No round" in render_rounds_svg([])
        True
    """
    drawn = list(curves(history).items())[:_SHOWN]
    across = max(1, int(width // _WIDE))
    rows = max(1, math.ceil(len(drawn) / across))
    height = rows * _HIGH
    label = describe_rounds(history, unit=unit).replace("\n", ";")
    if not drawn:
        nothing = text(width / 2, height / 2, f"No {unit} has finished yet.", class_="wb-fill-muted wb-middle")
        return picture(width, height, nothing, label=label, dark=dark)
    panels = [
        group(
            _panel(name, points, unit),
            transform=f"translate({(i % across) * width / across:.0f} {(i // across) * _HIGH:.0f})",
        )
        for i, (name, points) in enumerate(drawn)
    ]
    return picture(width, height, *panels, label=label, dark=dark)


def _panel(name: str, points: Sequence[Point], unit: str) -> Markup:
    points = points[:: max(1, len(points) // _MOST_POINTS)]
    finite_points = [point for point in points if math.isfinite(point[1])]
    heading = text(_LEFT, 18, METRIC_TITLES.get(name, name), fit=_WIDE - _LEFT - 10, class_="wb-fill-fg wb-strong")
    if not finite_points:
        return group(heading, text(_LEFT, _HIGH / 2, f"not finite in any {unit}", class_="wb-fill-muted"))
    least, most = min(point[2] for point in finite_points), max(point[3] for point in finite_points)
    span, first = (most - least) or 1.0, points[0][0]
    last = max(points[-1][0], first + 1)

    def at(round: int, value: float) -> str:
        x = _LEFT + (_WIDE - _LEFT - 14) * (round - first) / (last - first)
        return f"{x:.1f} {_HEAD + (_HIGH - _HEAD - _FOOT) * (1 - (value - least) / span):.1f}"

    band = [at(r, high) for r, _, _, high in finite_points] + [at(r, low) for r, _, low, _ in finite_points[::-1]]
    mean = [at(r, value) for r, value, _, _ in finite_points]
    bottom, spread = _HIGH - _FOOT, any(high > low for _, _, low, high in finite_points)
    return group(
        heading,
        line(_LEFT, _HEAD, _WIDE - 14, _HEAD, class_="wb-stroke-line", stroke_width=0.7),
        line(_LEFT, bottom, _WIDE - 14, bottom, class_="wb-stroke-line", stroke_width=0.7),
        text(_LEFT - 6, _HEAD + 4, metric_text(name, most), size=10.5, class_="wb-fill-muted wb-end"),
        text(_LEFT - 6, bottom + 4, metric_text(name, least), size=10.5, class_="wb-fill-muted wb-end"),
        text(_LEFT, _HIGH - 8, f"{unit} {first}", size=10.5, class_="wb-fill-muted"),
        text(_WIDE - 14, _HIGH - 8, str(points[-1][0]), size=10.5, class_="wb-fill-muted wb-end"),
        path(f"M{'L'.join(band)}Z", class_="wb-fill-clients-soft") if spread else None,
        path(f"M{'L'.join(mean)}" + ("h4" if len(mean) == 1 else ""), fill="none", stroke_width=2,
             class_="wb-stroke-clients"),
    )  # fmt: skip


def _numbers(value: float | tuple) -> list[float]:
    if isinstance(value, tuple):
        return [number for item in value for number in _numbers(item)]
    return [float(value)]


def render_clients_svg(
    name: str, values: Sequence[float], *, unit: str = "count", width: float = 880, dark: bool | None = None
) -> Markup:
    """One number per client as bars, or as a heat map if there are many clients.

    Args:
        name: Name of the quantity.
        values: One value per client; values that are not finite are omitted.
        unit: "count", "flops", "bytes", "seconds" or "times".
        width: Pixels.
        dark: Colours for a dark page; None follows the reader's system setting.

    Example:
        >>> "client 1, the most" in render_clients_svg("examples", [3, 7])
        True
    """
    finite = [(value, client) for client, value in enumerate(values) if math.isfinite(value)]
    show = _UNITS.get(unit, count_text)
    if not finite:
        return svg(width, 60, text(16, 34, f"{name}: unknown for every client", class_="wb-fill-fg"), label=name)
    (least, _), (most, index) = min(finite), max(finite)
    mean = sum(value for value, _ in finite) / len(finite)
    summary = f"{name} of {count_text(len(values))} clients: {show(least)} to {show(most)}, mean {show(mean)}"
    across = len(values) if len(values) <= _MOST_BARS else math.ceil(math.sqrt(len(values) * 2.5))
    rows = math.ceil(len(values) / across)
    step = (width - 32) / across
    high = 150.0 if rows == 1 else min(rows * step, 360.0)
    body = []
    for value, client in finite:
        x, row = 16 + (client % across) * step, client // across
        if rows == 1:
            size = high * max(value, 0.0) / most if most > 0 else 0.0
            body.append(rect(x, 44 + high - size, max(step - 1, 0.6), size, class_="wb-fill-clients"))
        else:
            share = (value - least) / ((most - least) or 1.0)
            body.append(rect(x, 44 + row * high / rows, step + 0.3, high / rows + 0.3, fill=sequential(share)))
    head = text(16, 22, f"{summary} (client {index}, the most)", fit=width - 32, class_="wb-fill-fg")
    end = text(width - 16, 62 + high, f"client {len(values) - 1}", size=11, class_="wb-fill-muted wb-end")
    start = text(16, 62 + high, "client 0", size=11, class_="wb-fill-muted")
    return picture(width, high + 74, head, *body, start, end, label=summary, dark=dark)


_MOST_BARS = 160
_UNITS = {**FORMATS, "times": lambda x: f"{x:.2f} ×"}
