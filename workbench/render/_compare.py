"""Comparison of several programs as text."""

from workbench.records.advice import ComparedRecord, ComparisonRecord
from workbench.render.units import amount_texts

_SIGNS = {"same": "=", "changed": "≠", "added": "+", "removed": "−", "unknown": "?"}


def render_comparison_text(comparison: ComparisonRecord) -> str:
    """All differences, grouped, one per line; identical quantities are only counted."""
    programs = " | ".join(f"{n} on {t}" for n, t in zip(comparison.names, comparison.targets, strict=True))
    lines = [f"{programs}: {len(comparison.differences)} of {len(comparison.rows)} quantities differ."]
    group, rows = None, visible_differences(comparison)
    for row in rows:
        if row.group != group:
            group = row.group
            lines.append(f"  {group}")
        values = " → ".join(amount_texts(row.values, row.unit))
        ratio = "1" if row.ratio is None else f"{row.ratio:.3g}"
        times = "" if ratio == "1" else f"  (×{ratio})"
        lines.append(f"    {_SIGNS[row.status]} {row.name}: {values}{times}")
    if unseen := len(comparison.differences) - len(rows):
        lines.append(f"  and {unseen} whose difference is too small for the digits shown")
    lines += [f"Note: {note}" for note in comparison.notes]
    return "\n".join(lines)


def visible_differences(comparison: ComparisonRecord) -> list[ComparedRecord]:
    """The rows whose displayed values differ."""

    def is_seen(row: ComparedRecord) -> bool:
        return row.status != "changed" or len({*amount_texts(row.values, row.unit)}) > 1

    return [row for row in comparison.differences if is_seen(row)]


def _measured(row: ComparedRecord) -> bool:
    """Returns whether a row differs and consists of numbers, the first of which is not zero."""
    return row.status != "same" and bool(row.values[0]) and not any(v is None or isinstance(v, str) for v in row.values)
