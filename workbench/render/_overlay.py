"""Comparison of several runs as text."""

from workbench.records.run import OverlaidMetricRecord, OverlaidResultRecord, RunOverlayRecord
from workbench.render.units import count_text, counted_text


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
