"""Pictures of a `ClientDataRecord`: the labels of each client."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from workbench.errors import needs_library
from workbench.records.program import ClientDataRecord
from workbench.render._theme import palette, sequential

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LARGEST_NAMED = 24  # maximum number of clients named on an axis; if there are more, they are numbered
_HATCHES = ("", "//", "\\\\", "..", "xx", "--", "++", "oo")


def render_label_skew(
    record: ClientDataRecord, *, kind: Literal["bars", "heatmap"] = "bars", dark: bool = False, sort: bool = False
) -> "Figure":
    """Draws the number of examples of each class for every client.

    Args:
        record: From `workbench.federated.data.describe`. Without labels, plain bars show the number of examples.
        kind: `bars` stacks the classes of each client; `heatmap` draws a matrix of clients and classes, for more than
            about ten classes.
        dark: Colours for a dark page.
        sort: Whether to order the clients from largest to smallest.

    Returns:
        A matplotlib figure, which opens no window; a notebook displays it, and `figure.savefig(path)` saves it.

    Raises:
        ValueError: if `kind` is unknown.

    Example:
        >>> record = ClientDataRecord(clients=("a", "b"), examples=(2, 1), classes=("no", "yes"),
        ...                           label="y", label_counts=((1, 1), (0, 1)))
        >>> render_label_skew(record).axes[0].get_ylabel()
        'examples held'
    """
    with needs_library("matplotlib", needed_for="`plot`"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

    from workbench.render._figures import NotebookFigure

    if kind not in ("bars", "heatmap"):
        message = f"`plot` was given kind={kind!r}. `plot` draws 'bars' or 'heatmap': use one of these kinds."
        raise ValueError(message)
    colours = palette(dark)
    order = np.argsort([-n for n in record.examples], kind="stable") if sort else np.arange(len(record.clients))
    counts = np.array(record.label_counts or [[n] for n in record.examples]).reshape(len(record.clients), -1)[order]
    classes = record.classes if record.label_counts else ()
    rows = 0.16 * len(classes) if kind == "heatmap" else 0.0
    figure = NotebookFigure(figsize=(8.4, max(3.4, 1.6 + rows)), dpi=120, layout="constrained", facecolor=colours["bg"])
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if kind == "heatmap" and classes:
        _draw_heatmap(axes, counts, classes, colours, record.label or "label")
    else:
        _draw_bars(axes, counts, classes, colours, record.label or "label")
    _name_clients(axes, [record.clients[i] for i in order], sort)
    _dress(axes, colours, _title(record))
    return figure


def _draw_bars(axes: "Axes", counts: np.ndarray, classes: tuple[str, ...], colours: dict[str, str], label: str) -> None:
    place = np.arange(len(counts))
    floor = np.zeros(len(counts))
    for index in range(counts.shape[1]):
        axes.bar(
            place,
            counts[:, index],
            bottom=floor,
            width=0.86,
            color=colours[f"series-{index % 8}"],
            # From the ninth class on, hues repeat with a different pattern.
            hatch=_HATCHES[index // 8 % len(_HATCHES)] * 2,
            edgecolor=colours["bg"],
            linewidth=0.4,
            label=classes[index] if classes else None,
        )
        floor += counts[:, index]
    axes.set_ylabel("examples held")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=colours["line"], linewidth=0.6)
    axes.margins(x=0.01)
    if classes:
        legend = axes.legend(
            title=label, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, labelcolor=colours["fg"],
            fontsize=8, ncols=1 + (len(classes) - 1) // 16, reverse=len(classes) <= 16,
        )  # fmt: skip
        legend.get_title().set_color(colours["fg"])


def _draw_heatmap(
    axes: "Axes", counts: np.ndarray, classes: tuple[str, ...], colours: dict[str, str], label: str
) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    # The darkest blues would be invisible on a dark page.
    low = 0.25 if colours == palette(True) else 0.0
    cividis = LinearSegmentedColormap.from_list("wb", [sequential(low + (1 - low) * i / 32) for i in range(33)])
    # Cells without examples show the page background, to distinguish 0 from a few examples.
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.pcolormesh(
        shown, cmap=cividis, vmin=0, vmax=max(1, counts.max()), edgecolors=colours["bg"], linewidth=0.3
    )
    axes.set_xlim(0, len(counts))
    axes.set_ylim(0, len(classes))
    axes.invert_yaxis()
    axes.set_facecolor(colours["bg"])
    step = -(-len(classes) // 40)
    axes.set_yticks(np.arange(0, len(classes), step) + 0.5, classes[::step])
    axes.set_ylabel(label)
    figure = axes.get_figure()
    assert figure is not None  # `add_subplot` created the axes
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label("examples held (blank: none)", color=colours["fg"])
    bar.ax.tick_params(colors=colours["muted"], labelsize=8)
    bar.outline.set_visible(False)  # type: ignore[operator]


def _name_clients(axes: "Axes", clients: list[str], sort: bool) -> None:
    offset = 0.5 if axes.yaxis_inverted() else 0.0
    if len(clients) <= _LARGEST_NAMED:
        long = max((len(client) for client in clients), default=0) > 4
        axes.set_xticks(
            np.arange(len(clients)) + offset, clients, rotation=45 if long else 0, ha="right" if long else "center"
        )
        axes.set_xlabel("client, largest first" if sort else "client")
        return
    step = next(s for s in (5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10**6) if len(clients) / s <= 16)
    places = np.arange(0, len(clients), step)
    axes.set_xticks(places + offset, [str(place) for place in places])
    axes.set_xlabel("client (rank, largest first)" if sort else "client (position)")


def _dress(axes: "Axes", colours: dict[str, str], title: str) -> None:
    axes.set_title(title, color=colours["fg"], fontsize=10, loc="left")
    axes.set_facecolor(colours["bg"])
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(colours["fg"])
    axes.tick_params(colors=colours["muted"], labelsize=8)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(colours["line"])


def _title(record: ClientDataRecord) -> str:
    parts = [f"{record.name or 'client data'}: {record.total_examples} examples at {len(record.clients)} clients"]
    if record.mean_total_variation is not None:
        parts.append(f"label skew {record.mean_total_variation:.2f} (mean total variation)")
    parts.append(f"size variation {record.size_variation:.2f}")
    return " · ".join(parts)
