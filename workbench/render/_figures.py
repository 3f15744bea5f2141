"""Shared parts of matplotlib figures: colours readable on light and dark pages, and no global state."""

import io
from typing import Literal

from workbench._open_types import Option
from workbench.errors import needs_library
from workbench.render._theme import OKABE_ITO, palette

with needs_library("matplotlib", needed_for="A figure"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_BETWEEN = "#767676"  # contrast of 4.5:1 on white and 4.6:1 on black: ink that is readable on both


class NotebookFigure(Figure):
    """A figure that displays itself in a notebook even if pyplot is not imported."""

    def _repr_png_(self) -> bytes:
        return self.png()

    def png(self, *, dpi: float = 110) -> bytes:
        """The figure as PNG."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight")
        return buffer.getvalue()


def canvas(width: float, height: float, ax: Axes | None) -> tuple[Figure, Figure | SubFigure]:
    """A figure and the part of it to draw in: the entire figure, or the area of the panel `ax`."""
    if ax is None:
        figure = NotebookFigure(figsize=(width, height), layout="constrained")
        return figure, figure
    place, holder = ax.get_subplotspec(), ax.get_figure()
    if place is None or holder is None:
        message = (
            "`ax` received a panel that is not part of a grid. Several panels are drawn in its place, which requires a "
            "grid. Pass a panel from `plt.subplots(...)`."
        )
        raise ValueError(message)
    root = _root(ax)
    ax.remove()
    return root, holder.add_subfigure(place)


def new_figure(width: float, height: float, *, dark: bool | None, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """A new figure with one panel, or the panel `ax` and its figure."""
    if ax is not None:
        ground = ax.figure.get_facecolor()
        style(ax, dark)
        ax.figure.set_facecolor(ground)  # also behind the other panels of the figure
        return _root(ax), ax
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    style(axes, dark)
    return figure, axes


def _root(ax: Axes) -> Figure:
    figure = ax.figure
    return figure if isinstance(figure, Figure) else figure.figure


def style(axes: Axes, dark: bool | None) -> None:
    """Applies the page's colours to one panel."""
    colour, ground = ink(dark), "none" if dark is None else palette(dark)["bg"]
    axes.figure.set_facecolor(ground)
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colour)
    axes.tick_params(colors=colour, which="both", labelsize=9)
    axes.xaxis.label.set_color(colour)
    axes.yaxis.label.set_color(colour)
    axes.set_axisbelow(True)


def title(axes: Axes, words: str, dark: bool | None) -> None:
    """Adds a heading at the left edge of a panel."""
    axes.set_title(words, loc="left", color=ink(dark), fontsize=10.5, parse_math=False)


def ink(dark: bool | None) -> str:
    """The colour of text and lines."""
    return _BETWEEN if dark is None else palette(dark)["fg"]


def colour(index: int) -> str:
    """The `index`-th of Okabe and Ito's colours, which are readable on light and dark pages."""
    return OKABE_ITO[index % len(OKABE_ITO)]


def legend(axes: Axes, dark: bool | None, **options: Option) -> None:
    """Adds a legend in the page's ink, outside the data."""
    box = axes.legend(frameon=False, fontsize=9, **options)
    for entry in box.get_texts():
        entry.set_color(ink(dark))


def grid(axes: Axes, dark: bool | None, axis: Literal["both", "x", "y"] = "y") -> None:
    """Draws faint grid lines."""
    axes.grid(axis=axis, color=ink(dark), alpha=0.25, linewidth=0.6)


def label_point(
    axes: Axes,
    words: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    dark: bool | None,
    *,
    align: object = "left",
) -> None:
    """Writes text near a point, with `offset` in typographic points."""
    axes.annotate(
        words, at, xytext=offset, textcoords="offset points", fontsize=8.5, color=ink(dark), ha=align, va="bottom"
    )


def say_nothing(axes: Axes, dark: bool | None, why: str) -> None:
    """Replaces empty axes with a sentence that gives the reason."""
    axes.text(0.5, 0.5, why, ha="center", va="center", color=ink(dark), transform=axes.transAxes, fontsize=9, wrap=True)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
