"""The rounds of a run, its clients, and simulated rounds as matplotlib figures."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.records.live import RoundRecord, TimelineRecord
from workbench.records.run import RunRecord
from workbench.render._rounds import curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CURVES = 9
_MOST_ROWS = 48


def plot_rounds(history: Sequence[RoundRecord], *, ax: "Axes | None" = None, dark: bool | None = None) -> "Figure":
    """Every metric over the rounds: the mean, and a band from the least to the most over clients and local steps.

    Args:
        history: Finished rounds, such as `run.history`; at most nine metrics are drawn.
        ax: Where to draw, in a figure of yours; None makes a figure.
        dark: Colours for a dark or a light page; None: ink that reads on both.

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


def plot_clients_over_rounds(
    history: Sequence[RoundRecord], metric: str, *, ax: "Axes | None" = None, dark: bool | None = None
) -> "Figure":
    """One metric of every client as a heat map: clients down, rounds across; of local steps their mean.

    Args:
        history: Finished rounds.
        metric: One with a value per client.
        ax: Where to draw, in a figure of yours; None makes a figure.
        dark: Colours for a dark or a light page; None: ink that reads on both.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: no round has a metric of that name with a value per client.
    """
    from workbench.render._figures import ink, new_figure, title

    found = [(record.round, _per_client(record.metrics.get(metric))) for record in history]
    columns = [(round, column) for round, column in found if column]
    if not columns:
        known = sorted({name for record in history for name, value in record.metrics.items() if _per_client(value)})
        message = (
            f"`plot_clients_over_rounds` was given metric={metric!r}, but the metrics with a value per client are "
            f"{', '.join(known) or 'none'}. A heat map has one row per client: pass one of these."
        )
        raise ValueError(message)
    rows = max(len(column) for _, column in columns)
    grid = [[column[row] if row < len(column) else math.nan for _, column in columns] for row in range(rows)]
    figure, axes = new_figure(7.2, 3.2, dark=dark, ax=ax)
    first, last = columns[0][0], columns[-1][0]
    shown = axes.imshow(
        grid, aspect="auto", cmap="cividis", interpolation="nearest", extent=(first - 0.5, last + 0.5, rows - 0.5, -0.5)
    )
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    title(axes, metric, dark)
    bar = figure.colorbar(shown, ax=axes)
    bar.ax.tick_params(colors=ink(dark), labelsize=9)
    return figure


def plot_gantt(timeline: TimelineRecord, *, ax: "Axes | None" = None, dark: bool | None = None) -> "Figure":
    """A simulated round: what every client did when, and where the round ended; of many clients the slowest.

    Args:
        timeline: From `simulate_round`.
        ax: Where to draw, in a figure of yours; None makes a figure.
        dark: Colours for a dark or a light page; None: ink that reads on both.

    Returns:
        A matplotlib figure.
    """
    from workbench.render._figures import HATCHES, colour, grid, ink, legend, new_figure, second_axis, title

    slowest = sorted(timeline.outcomes, key=lambda each: -(each.needed_seconds or 0.0))[:_MOST_ROWS]
    rows = {each.client: row for row, each in enumerate(sorted(slowest, key=lambda each: each.client))}
    figure, axes = new_figure(7.2, 1.4 + 0.22 * max(len(rows), 3), dark=dark, ax=ax)
    seen: set[str] = set()
    for span in timeline.spans:
        if span.client in rows:
            index = ("download", "compute", "upload").index(span.kind)
            look = {
                "color": colour((0, 2, 5)[index]),
                "hatch": HATCHES[index],
                "edgecolor": "#ffffff",
                "linewidth": 0.3,
            }
            label = None if span.kind in seen else span.kind
            seen.add(span.kind)
            axes.barh(rows[span.client], span.seconds, left=span.start_seconds, height=0.7, label=label, **look)
    axes.axvline(timeline.seconds, color=ink(dark), linewidth=1.2, linestyle="--")
    status = {each.client: each.status for each in slowest}
    axes.set_yticks(list(rows.values()), [f"{client} {status[client]}" for client in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("simulated time from the start of the round")
    second_axis(axes.xaxis)
    title(axes, f"Simulated {timeline.name}: {len(timeline.finished)} of {len(timeline.outcomes)} clients count", dark)
    grid(axes, dark, "x")
    if seen:
        legend(axes, dark, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def plot_run(run: RunRecord, *, ax: "Axes | None" = None, dark: bool | None = None) -> "Figure":
    """Measured seconds of every device per call, by what they went into: compute, collectives, waiting for others.

    Args:
        run: A measured run.
        ax: Where to draw, in a figure of yours; None makes a figure.
        dark: Colours for a dark or a light page; None: ink that reads on both.

    Returns:
        A matplotlib figure.
    """
    from workbench.render._figures import legend, new_figure, say_nothing, second_axis, stacked_bars, title
    from workbench.render._live import natural

    places = sorted({stage.where for stage in run.stages}, key=natural)
    figure, axes = new_figure(7.2, 1.4 + 0.3 * max(len(places), 2), dark=dark, ax=ax)
    if not places:
        say_nothing(axes, dark, "this run has no measured stages")
        return figure
    kinds = {"compute": "compute_seconds", "collective": "collective_seconds", "waiting for others": "wait_seconds"}
    if any(stage.copy_seconds for stage in run.stages):
        kinds["copies"] = "copy_seconds"
    parts = {
        name: [sum(getattr(stage, field) for stage in run.stages if stage.where == where) for where in places]
        for name, field in kinds.items()
    }
    stacked_bars(axes, places, parts, dark)
    second_axis(axes.xaxis)
    axes.set_xlabel("measured time per call")
    title(axes, f"{run.name} on {run.engine}", dark)
    legend(axes, dark, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _per_client(value: float | tuple | None) -> list[float]:
    if not isinstance(value, tuple):
        return []
    rows = [list(_flat(row)) for row in value]
    return [sum(row) / len(row) if row else math.nan for row in rows]


def _flat(value: float | tuple) -> list[float]:
    return [number for item in value for number in _flat(item)] if isinstance(value, tuple) else [float(value)]
