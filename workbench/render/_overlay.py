"""Comparison of several runs as text, table and picture."""

import math
from collections.abc import Callable, Sequence

from workbench.records.run import OverlaidMetricRecord, OverlaidResultRecord, RunOverlayRecord
from workbench.render._svg import Markup, group, path, rect, text
from workbench.render._theme import picture, series
from workbench.render.units import count_text, counted_text

_LEFT, _TOP, _HIGH, _ROW = 62, 30, 230, 18
_SHOWN = 8  # maximum number of results in the picture


def ranked(overlay: RunOverlayRecord, metric: str | None = None) -> list[OverlaidResultRecord]:
    """The results, best first; results without a final value come last, in their original order."""
    name = metric or overlay.metric

    def key(result: OverlaidResultRecord) -> tuple[bool, float]:
        curve = curve_of(result, name)
        final = None if curve is None else curve.final
        return final is None, 0.0 if final is None else final if overlay.minimize else -final

    return sorted(overlay.results, key=key)


def curve_of(result: OverlaidResultRecord, metric: str) -> OverlaidMetricRecord | None:
    return next((curve for curve in result.metrics if curve.metric == metric), None)


def final_text(curve: OverlaidMetricRecord | None) -> str:
    """The final value with its interval.

    Example:
        >>> final_text(OverlaidMetricRecord(metric="loss", rounds=(0,), mean=(1.0,), low=(0.5,), high=(2.0,), final=1.0,
        ...                                 final_low=0.5, final_high=2.0))
        '1 (0.5 to 2)'
    """
    if curve is None or curve.final is None:
        return "–"
    if curve.final_low is None or curve.final_high is None:
        return count_text(curve.final)
    return f"{count_text(curve.final)} ({count_text(curve.final_low)} to {count_text(curve.final_high)})"


def describe_overlay(overlay: RunOverlayRecord) -> str:
    """Summarizes the runs in one sentence: how many results there are, and which is best."""
    best = ranked(overlay)[0] if overlay.results else None
    curve = None if best is None else curve_of(best, overlay.metric)
    many = counted_text(len(overlay.results), "result")
    if best is None or curve is None or curve.final is None:
        return f"{many}, compared by {overlay.metric}"
    extreme = "least" if overlay.minimize else "largest"
    return f"{many}; {extreme} {overlay.metric} at the end: {best.name} with {final_text(curve)}"


def render_overlay_text(overlay: RunOverlayRecord) -> str:
    """One line per result, best first, with reasons for omitted runs; then the differences between pairs."""
    lines = [f"{describe_overlay(overlay)}."]
    for result in ranked(overlay):
        seeds = counted_text(result.compared, "seed")
        status = f", {result.status}" if result.status else ""
        lines.append(
            f"  {result.name}: {overlay.metric} {final_text(curve_of(result, overlay.metric))}, {seeds}{status}"
        )
        lines += [f"    left out: {why}" for why in result.left_out]
    for pair in overlay.pairs:
        if pair.difference is not None:
            p = "" if pair.p_corrected is None else f", corrected p = {pair.p_corrected:.3g}"
            lines.append(f"  {pair.a} − {pair.b}: {count_text(pair.difference)} over {pair.pairs} pairs{p}")
    return "\n".join(lines)


def render_overlay_svg(overlay: RunOverlayRecord, *, width: float = 880, dark: bool | None = None) -> Markup:
    """Curves of the first metric for the best results, with bands that show intervals.

    Example:
        >>> "Nothing" in render_overlay_svg(
        ...     RunOverlayRecord(name="none", metric="loss", minimize=True, confidence=0.95, results=()))
        True
    """
    drawn = [(r, c) for r in ranked(overlay) if (c := curve_of(r, overlay.metric)) is not None][:_SHOWN]
    height = _TOP + _HIGH + 30 + _ROW * len(drawn)
    label = describe_overlay(overlay)
    values = [v for _, c in drawn for part in (c.mean, c.low, c.high) for v in part if v is not None]
    if not values:
        nothing = text(width / 2, height / 2, "Nothing to draw yet.", class_="wb-fill-muted wb-middle")
        return picture(width, height, nothing, label=label, dark=dark)
    low, high = min(values), max(values)
    last = max(max(c.rounds[-1] for _, c in drawn), 1)

    def place(round: int, value: float) -> str:
        x = _LEFT + (width - _LEFT - 16) * round / last
        y = _TOP + _HIGH * (1 - (value - low) / ((high - low) or 1.0))
        return f"{x:.1f} {y:.1f}"

    names = [result.name for result in overlay.results]
    curves = [_drawn(curve, names.index(result.name), place) for result, curve in drawn]
    labels = [
        text(_LEFT - 6, _TOP + 5, count_text(high), class_="wb-fill-muted wb-end"),
        text(_LEFT - 6, _TOP + _HIGH, count_text(low), class_="wb-fill-muted wb-end"),
        text(_LEFT, _TOP + _HIGH + 18, "round 0", class_="wb-fill-muted"),
        text(width - 16, _TOP + _HIGH + 18, f"round {last}", class_="wb-fill-muted wb-end"),
        text(_LEFT, 18, overlay.metric, class_="wb-fill-fg wb-strong"),
    ]
    key = [
        group(
            rect(_LEFT, -9, 12, 9, class_=f"wb-fill-{series(names.index(result.name))}"),
            text(_LEFT + 18, 0, f"{result.name}: {final_text(curve)}", fit=width - _LEFT - 40, class_="wb-fill-fg"),
            transform=f"translate(0 {_TOP + _HIGH + 40 + _ROW * i})",
        )
        for i, (result, curve) in enumerate(drawn)
    ]
    return picture(width, height, *curves, *labels, *key, label=label, dark=dark)


def _drawn(curve: OverlaidMetricRecord, index: int, place: Callable[[int, float], str]) -> Markup:
    hue = series(index)
    points = [place(r, v) for r, v in zip(curve.rounds, curve.mean, strict=True) if v is not None]
    band = _band(curve, place)
    return group(
        path(f"M{'L'.join(band)}Z", class_=f"wb-fill-{hue}", opacity=0.18) if band else None,
        path(f"M{'L'.join(points)}", fill="none", class_=f"wb-stroke-{hue}", stroke_width=1.8) if points else None,
    )


def _band(curve: OverlaidMetricRecord, place: Callable[[int, float], str]) -> Sequence[str]:
    points = [
        (r, lo, hi)
        for r, lo, hi in zip(curve.rounds, curve.low, curve.high, strict=True)
        if lo is not None and hi is not None and math.isfinite(lo + hi)
    ]
    return [place(r, hi) for r, _, hi in points] + [place(r, lo) for r, lo, _ in reversed(points)]
