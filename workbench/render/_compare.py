"""Several programs side by side, as figure, text and HTML."""

from typing import Any

from workbench.records import ComparedRecord, ComparisonRecord
from workbench.render._svg import Markup, bytes_text, count_text, element, flops_text, seconds_text

_SIGNS = {"same": "=", "changed": "≠", "added": "+", "removed": "−", "unknown": "?"}


def plot_comparison(comparison: ComparisonRecord, *, dark: bool | None = None) -> Any:
    """How many times the first program's amount each other program needs, for every quantity that differs."""
    from workbench.render._figures import HATCHES, colour, grid, ink, legend, new_figure, say_nothing, title

    rows = [row for row in comparison.rows if _measured(row)]
    figure, axes = new_figure(7.2, 1.4 + 0.38 * max(len(rows), 2), dark=dark)
    if not rows:
        say_nothing(axes, dark, "no amount that is known of all these programs differs")
        return figure
    others = len(comparison.names) - 1
    height = 0.7 / others
    for index in range(others):
        ratios = [_ratio(row, index + 1) for row in rows]
        where = [at + (index - (others - 1) / 2) * height for at in range(len(rows))]
        label = f"{comparison.names[index + 1]} ({comparison.targets[index + 1]})"
        axes.barh(
            where, ratios, height=height * 0.92, color=colour(index), hatch=HATCHES[index % len(HATCHES)],
            edgecolor="#ffffff", linewidth=0.4, label=label,
        )  # fmt: skip
        for y, ratio, row in zip(where, ratios, rows, strict=True):
            words = f" {amount_text(row.values[index + 1], row.unit)}"
            axes.text(ratio, y, words, va="center", fontsize=8, color=ink(dark))
    axes.axvline(1.0, color=ink(dark), linewidth=1.0)
    axes.set_yticks(range(len(rows)), [f"{row.group}: {row.name}" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlabel(f"times the amount of {comparison.names[0]} ({comparison.targets[0]})")
    title(axes, "What differs", dark)
    grid(axes, dark, "x")
    legend(axes, dark, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


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


def render_comparison_html(comparison: ComparisonRecord, *, all_rows: bool = False) -> Markup:
    """The comparison as a table; only what differs, unless `all_rows`."""
    head = [element("th", word, scope="col") for word in ("", "", *comparison.names, "last / first")]
    body = []
    for row in comparison.rows if all_rows else comparison.differences:
        times = f"×{row.ratio:.3g}" if row.ratio is not None else _SIGNS[row.status]
        cells = [element("td", amount_text(value, row.unit)) for value in row.values]
        name = element("th", row.name, scope="row")
        body.append(element("tr", element("td", row.group), name, *cells, element("td", times, title=row.status)))
    caption = element("caption", f"{len(comparison.differences)} of {len(comparison.rows)} quantities differ")
    table = element("table", caption, element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", table, *[element("p", f"Note: {note}") for note in comparison.notes], class_="wb")


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
    """Whether a row differs and all its values are numbers of which the first is not zero."""
    return row.status != "same" and bool(row.values[0]) and not any(v is None or isinstance(v, str) for v in row.values)


def _ratio(row: ComparedRecord, index: int) -> float:
    first, value = row.values[0], row.values[index]
    assert isinstance(first, int | float)
    assert isinstance(value, int | float)
    return value / first
