"""Publication figures that compare runs; text stays text in vector files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.measurement._run_tables import RunTables
from workbench.render import notebook_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("curves", "finals", "profile", "fairness")
# Okabe and Ito's colours, which most readers can distinguish; line styles distinguish curves in grayscale.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # TrueType fonts, as publishers require
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "workbench",
}


def plot_comparison(
    comparison: RunTables,
    kind: str = "curves",
    path: str | Path | None = None,
    *,
    width_inches: float = 3.3,
    height_inches: float = 2.3,
    log: bool = False,
    target: float | None = None,
    metric: str | None = None,
) -> "Figure":
    """Draws a figure for a paper, and writes it to a file.

    Args:
        comparison: From `workbench.compare`.
        kind: "curves" (mean and interval over rounds), "finals" (means with intervals and one dot per seed),
            "profile" (performance profile) or "fairness" (deciles of the clients).
        path: File to write; the suffix sets the format: .pdf, .svg, .eps, .png.
        width_inches: Width of the figure. In most proceedings, one column is 3.3 inches wide, and two are 6.75 inches.
        height_inches: Height of the figure.
        log: Whether the value axis is logarithmic.
        target: Target for the profile; see `RunComparison.profile`.
        metric: Metric for the fairness figure; see `RunComparison.fairness`.

    Returns:
        A matplotlib figure, which is displayed as the result of a notebook cell.

    Raises:
        DataError: if the kind is unknown.
    """
    if kind not in KINDS:
        kinds = ", ".join(map(repr, KINDS))
        message = f"`figure` received kind={kind!r}. `figure` draws {kinds}: pass one of these kinds."
        raise DataError(message)
    with needs_library("matplotlib", needed_for="`RunComparison.figure`"):
        import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure = notebook_figure(width_inches, height_inches)
        axes: Axes = figure.subplots()
        table = comparison.profile(target) if kind == "profile" else None
        table = comparison.fairness(metric) if kind == "fairness" else table
        for number, name in enumerate(comparison.results):
            look = {"color": _COLOURS[number % len(_COLOURS)], "label": name}
            line: dict[str, Any] = {**look, "linestyle": _LINES[number % len(_LINES)]}
            if kind == "curves":
                _curve(axes, comparison.curves().query("result == @name"), line)
            elif kind == "finals":
                _final(axes, number, comparison, name, look)
            elif kind == "profile" and table is not None:
                of = table[table["result"] == name]
                axes.step(of["tau"], of["share"], where="post", **line)
            elif table is not None:
                of = table[(table["result"] == name) & table["statistic"].str.startswith("decile")]
                axes.plot(np.arange(10, 100, 10)[: len(of)], of["mean"], marker="o", markersize=2.5, **line)
                axes.fill_between(
                    np.arange(10, 100, 10)[: len(of)], of["low"], of["high"], color=look["color"], alpha=0.2, lw=0
                )
        _label_axes(axes, comparison, kind, metric, target)
        if log and kind != "profile":
            axes.set_yscale("log")
        if kind != "finals" and len(comparison.results) > 1:
            axes.legend(frameon=False)
        if path is not None:
            figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    return figure


def _curve(axes: "Axes", curve: "pd.DataFrame", line: dict[str, Any]) -> None:
    axes.plot(curve["round"] + 1, curve["mean"], **line)
    axes.fill_between(curve["round"] + 1, curve["low"], curve["high"], color=line["color"], alpha=0.2, linewidth=0)


def _final(axes: "Axes", number: int, comparison: RunTables, name: str, look: dict[str, Any]) -> None:
    row = comparison.table().set_index("result").loc[name]
    values = list(comparison.finals()[name].values())
    axes.scatter([number] * len(values), values, s=5, color=look["color"], alpha=0.5, linewidths=0)
    if np.isfinite(row["low"]):
        axes.vlines(number, row["low"], row["high"], color=look["color"], linewidth=1.2)
    axes.plot([number], [row["mean"]], marker="_", markersize=10, color=look["color"])


def _label_axes(axes: "Axes", comparison: RunTables, kind: str, metric: str | None, target: float | None) -> None:
    if kind == "finals":
        names = list(comparison.results)
        slanted = max(map(len, names)) > 10
        axes.set_xticks(range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center")
        axes.set_ylabel(comparison.metric)
    elif kind == "profile":
        axes.set_xlabel(f"τ: times the best {'final value' if target is None else 'rounds'}")
        axes.set_ylabel("share of seeds")
        axes.set_ylim(0, 1.02)
    elif kind == "fairness":
        axes.set_xlabel("percentile of the clients")
        axes.set_ylabel(metric or comparison.metric)
    else:
        axes.set_xlabel("round")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(comparison.metric)
