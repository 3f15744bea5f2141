"""Several programs side by side, as text."""

from workbench.records.advice import ComparedRecord, ComparisonRecord
from workbench.render._svg import bytes_text, count_text, flops_text, seconds_text

_SIGNS = {"same": "=", "changed": "≠", "added": "+", "removed": "−", "unknown": "?"}


def render_comparison_text(comparison: ComparisonRecord) -> str:
    """Every difference, one per line and grouped; what is the same is only counted."""
    programs = " | ".join(f"{n} on {t}" for n, t in zip(comparison.names, comparison.targets, strict=True))
    lines = [f"{programs}: {len(comparison.differences)} of {len(comparison.rows)} quantities differ."]
    group = None
    for row in comparison.differences:
        if row.group != group:
            group = row.group
            lines.append(f"  {group}")
        times = f"  (×{row.ratio:.3g})" if row.ratio is not None else ""
        values = " → ".join(amount_text(value, row.unit) for value in row.values)
        lines.append(f"    {_SIGNS[row.status]} {row.name}: {values}{times}")
    lines += [f"Note: {note}" for note in comparison.notes]
    return "\n".join(lines)


def amount_text(value: float | str | None, unit: str) -> str:
    """A compared value with its unit; a dash for what is not there or not known.

    Example:
        >>> amount_text(2048.0, "bytes"), amount_text(None, "flops"), amount_text("v5e", "")
        ('2 KiB', '–', 'v5e')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    write = {"bytes": bytes_text, "flops": flops_text, "seconds": seconds_text}.get(unit, count_text)
    return write(value)


def _measured(row: ComparedRecord) -> bool:
    """Returns whether a row differs and all its values are numbers of which the first is not zero."""
    return row.status != "same" and bool(row.values[0]) and not any(v is None or isinstance(v, str) for v in row.values)
