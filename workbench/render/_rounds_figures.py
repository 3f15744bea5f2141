"""The rounds of a run, its clients, and simulated rounds as matplotlib figures."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.records.live import RoundRecord
from workbench.render._rounds import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CURVES = 9


def plot_rounds(history: Sequence[RoundRecord], *, ax: "Axes | None" = None, dark: bool | None = None) -> "Figure":
    """Every metric over the rounds: the mean, and a minimum-to-maximum band over clients and steps.

    Args:
        history: Finished rounds, such as `run.history`; at most nine metrics are drawn.
        ax: The matplotlib axes to draw in; None creates a figure.
        dark: Colours for a dark or a light page; None uses ink that is readable on both.

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
        say_nothing(axes, dark, "no round has finished yet")
        return figure
    across = min(len(drawn), 3)
    rows = math.ceil(len(drawn) / across)
    figure, place = canvas(3.4 * across, 2.4 * rows, ax)
    panels = list(place.subplots(rows, across, squeeze=False).ravel())
    for axes, (name, points) in zip(panels, drawn, strict=False):
        style(axes, dark)
        rounds, mean, least, most = zip(*points, strict=True)
        axes.fill_between(rounds, least, most, color=colour(2), alpha=0.22, linewidth=0)
        axes.plot(rounds, mean, color=colour(2), linewidth=1.8, marker="o" if len(points) == 1 else None)
        axes.set_xlabel("round")
        title(axes, name, dark)
        grid(axes, dark)
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    return figure
