"""The rounds of a run in words; one number per client as a picture."""

import math
from collections.abc import Sequence

from workbench.records.live import RoundRecord
from workbench.render._svg import Markup, rect, svg, text
from workbench.render._theme import picture, sequential
from workbench.render.units import FORMATS, count_text, metric_text, seconds_text

Point = tuple[int, float, float, float]  # round, mean, minimum and maximum over clients and steps


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
