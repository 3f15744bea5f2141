"""Draws the tables of docs/performance.md as pictures: `python -m benchmarks.performance_pictures`.

Each picture answers the question above it on the page, in a light and a dark version in docs/images. The pictures have
no numbers of their own: they contain the text of their table, and a test compares it with the page.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "performance.md"
IMAGES = DOCS / "images"
THEMES = (("light", "default", "#ffffff"), ("dark", "dark_background", "#121212"))
Row = Sequence[str]


def table(first_cells: str) -> list[list[str]]:
    """The rows of the table of the page whose heading begins with these cells."""
    found = re.search(rf"^\| {re.escape(first_cells)}.*\n\|[-:| ]+\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    assert found is not None, f"no table of {PAGE.name} begins with: {first_cells}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def number(cell: str) -> float:
    """The number at the beginning of a cell; NaN without one."""
    found = re.match(r"[\d.,]+", cell)
    return float(found[0].replace(",", "")) if found else math.nan


def save(name: str, text: str, draw: Callable[[Any], None], rows: int) -> None:
    """Saves one picture in both themes, with the text of its table."""
    import matplotlib.pyplot as plt

    for theme, style, ground in THEMES:
        with plt.style.context(style):
            figure, ax = plt.subplots(figsize=(8, 0.9 + 0.23 * rows), layout="constrained", facecolor=ground)
            ax.set_facecolor(ground)
            ax.spines[["top", "right"]].set_visible(False)
            draw(ax)
            figure.savefig(IMAGES / f"{name}-{theme}.png", dpi=130, metadata={"Description": text})
            plt.close(figure)


def dots(
    ax: Any, labels: Sequence[str], series: Mapping[str, Sequence[float]], what: str, *, log: bool = False
) -> None:
    """One line of dots per label; on a linear axis, which begins at 0, with a line at 1."""
    for place, (name, values) in enumerate(series.items()):
        ax.plot(values, range(len(labels)), "os^"[place], color=f"C{place}", label=name, markersize=6, alpha=0.9)
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    if log:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_xlim(left=0)
        ax.axvline(1, color="gray", linewidth=1)
    ax.set_xlabel(what)
    ax.grid(visible=True, axis="x", alpha=0.25)
    ax.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)


def pictures() -> Iterator[tuple[str, list[list[str]], Callable[[Any], None]]]:
    """Name, rows of the table, and drawing function of each picture."""
    rounds = table("model | clients × devices | run time")
    run = [row for row in rounds if number(row[4]) > 0]

    def against_peers(ax: Any) -> None:
        labels = [f"{row[0]}, {row[1]}" for row in run]
        others = {"relative to drjax": [number(row[4]) for row in run]}
        others["relative to the fastest of drjax, jit(vmap) and shard_map"] = [number(row[3]) for row in run]
        dots(ax, labels, others, "time of wb.jit, relative (below 1: wb.jit is faster)")

    yield "performance-rounds", run, against_peers

    def memory(ax: Any) -> None:
        labels = [f"{row[0]}, {row[1]}" for row in rounds]
        series = {name: [number(row[column]) for row in rounds] for name, column in (("wb.jit", 5), ("drjax", 6))}
        dots(ax, labels, series, "temporary memory of one device in MiB", log=True)

    yield "performance-memory", rounds, memory
    by_hand = table('program | clients × devices | `"auto"`')

    def against_hand(ax: Any) -> None:
        labels = [f"{row[0].rstrip('†‡ ')}, {row[1]}" for row in by_hand]
        series = {'"auto"': [number(row[2]) for row in by_hand], '"tune"': [number(row[3]) for row in by_hand]}
        dots(ax, labels, series, "time relative to the fastest handwritten version (* not used for the fit)")

    yield "performance-by-hand", by_hand, against_hand
    waits = [[row[0], row[3]] for row in table("task | Workbench | plain JAX")]
    waits += [[row[0].replace("`", ""), row[2]] for row in table("statement | median seconds")[1:]]

    def against_jax(ax: Any) -> None:
        dots(ax, [row[0] for row in waits], {"Workbench": [number(row[1]) for row in waits]}, "time relative to JAX")

    yield "performance-waits", waits, against_jax


def text_of(rows: Sequence[Row]) -> str:
    return "\n".join(" | ".join(row) for row in rows)


def main() -> None:
    for name, rows, draw in pictures():
        save(name, text_of(rows), draw, len(rows))


if __name__ == "__main__":
    main()
