"""Rounds of runs, and costs of populations, as matplotlib figures."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.errors import MissingDependencyError
from workbench.records.live import RoundRecord
from workbench.render._rounds import curves
from workbench.render.units import METRIC_TITLES, metric_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COSTS = ("hours", "moved (GB)", "energy (kWh)")


def plot_costs(
    frames: "Mapping[str, pd.DataFrame]",
    metric: str = "accuracy",
    *,
    against: Sequence[str] = _COSTS,
    ax: "Axes | None" = None,
    dark: bool | None = None,
) -> "Figure":
    """One metric of several schedules against their costs, with one panel per cost.

    Args:
        frames: Tables by name, from `population.train` (or from `Simulation.frame`, for a metric of the rounds).
        metric: The column to draw; rows without a value are left out.
        against: The cost columns, from left to right.
        ax: The matplotlib axes to draw in; None creates a figure.
        dark: Colours for a dark or a light page; None uses ink that is readable on both.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if a table lacks a column.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"hours": [1.0, 2.0], "accuracy": [0.5, 0.7]})
        >>> plot_costs({"FedAvg": frame}, against=["hours"]).axes[0].get_xlabel()
        'hours'
    """
    from workbench.render._figures import canvas, colour, grid, legend, style

    for name, frame in frames.items():
        missing = [column for column in (metric, *against) if column not in frame]
        if missing:
            message = (
                f"`plot` received the table {name!r} without {', '.join(missing)}. `plot` draws columns of the "
                f"table: choose from {', '.join(map(str, frame.columns))}."
            )
            raise ValueError(message)
    figure, place = canvas(3.4 * len(against), 3.0, ax)
    panels = place.subplots(1, len(against), squeeze=False, sharey=True)[0]
    for axes, cost in zip(panels, against, strict=True):
        style(axes, dark)
        for index, (name, frame) in enumerate(frames.items()):
            rows = frame.dropna(subset=[metric])
            axes.plot(
                rows[cost], rows[metric], color=colour(index), linestyle=("-", "--", ":", "-.")[index % 4], label=name
            )
        axes.set_xlabel(cost)
        grid(axes, dark, "both")
    panels[0].set_ylabel(metric)
    legend(panels[-1], dark)
    return figure


_MOST_CURVES = 9


def rounds_png(history: Sequence[RoundRecord], *, unit: str = "round") -> bytes | None:
    """The curves of finished rounds for cells without scripts; None without rounds or without matplotlib."""
    if not history:
        return None
    try:
        from workbench.render._figures import NotebookFigure
    except MissingDependencyError:
        return None
    figure = plot_rounds(history, unit=unit)
    return figure.png() if isinstance(figure, NotebookFigure) else None


def plot_rounds(
    history: Sequence[RoundRecord], *, ax: "Axes | None" = None, dark: bool | None = None, unit: str = "round"
) -> "Figure":
    """Every metric over the rounds: the mean, and a minimum-to-maximum band over clients and steps.

    Args:
        history: Finished rounds, such as `run.history`; at most nine metrics are drawn.
        ax: The matplotlib axes to draw in; None creates a figure.
        dark: Colours for a dark or a light page; None uses ink that is readable on both.
        unit: The word for a round.

    Returns:
        A matplotlib figure.

    Example:
        >>> run = wb.Run(lambda state, round: (state + 1, {"loss": 1 / (1 + state)}), 0, 3, progress=False)
        >>> _ = run.start()
        >>> len(plot_rounds(run.history).axes)  # one metric
        1
    """
    from workbench.render._figures import canvas, colour, grid, new_figure, say_nothing, style, title

    drawn = list(curves(history).items())[:_MOST_CURVES]
    if not drawn:
        figure, axes = new_figure(5.0, 1.6, dark=dark, ax=ax)
        say_nothing(axes, dark, f"no {unit} has finished yet")
        return figure
    across = min(len(drawn), 3)
    rows = math.ceil(len(drawn) / across)
    figure, place = canvas(3.4 * across, 2.4 * rows, ax)
    panels = list(place.subplots(rows, across, squeeze=False).ravel())
    for axes, (name, points) in zip(panels, drawn, strict=False):
        style(axes, dark)
        title(axes, METRIC_TITLES.get(name, name), dark)
        rounds, mean, least, most = zip(*points, strict=True)
        finite = [False, *map(math.isfinite, mean), False]
        if not any(finite):
            say_nothing(axes, dark, f"not finite in any {unit}")
            continue
        alone = [i for i in range(len(mean)) if finite[i : i + 3] == [False, True, False]]  # no line leads to them
        axes.fill_between(rounds, least, most, color=colour(2), alpha=0.22, linewidth=0)
        axes.plot(rounds, mean, color=colour(2), linewidth=1.8, marker="o", markevery=alone)
        axes.set_xlabel(unit)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        if metric_text(name, 1.0) != "1":  # the metric has a unit
            axes.yaxis.set_major_formatter(lambda value, _, name=name: metric_text(name, value))
        grid(axes, dark)
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    return figure
