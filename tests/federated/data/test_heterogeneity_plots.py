import numpy as np
import pytest
from matplotlib.colors import to_hex

from workbench import render
from workbench.federated import data as wd
from workbench.records.program import ClientDataRecord
from workbench.render import palette

RECORD = ClientDataRecord(
    name="toy",
    clients=("ann", "bob", "eve"),
    examples=(3, 1, 6),
    bytes=(30, 10, 60),
    label="digit",
    classes=("zero", "one"),
    label_counts=((2, 1), (0, 1), (6, 0)),
    total_variation=(0.1, 0.8, 0.2),
    mean_total_variation=0.367,
)


def tick_labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def test_bars_stack_the_classes_of_each_client():
    (axes,) = render.plot(RECORD).axes
    zero, one = axes.containers
    assert [bar.get_height() for bar in zero] == [2, 0, 6]
    assert [bar.get_height() for bar in one] == [1, 1, 0]
    assert [bar.get_y() for bar in one] == [2, 0, 6]
    assert tick_labels(axes.xaxis) == ["ann", "bob", "eve"]


def test_axes_legend_and_title_say_what_is_shown():
    (axes,) = render.plot(RECORD).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "examples held")
    legend = axes.get_legend()
    assert legend.get_title().get_text() == "digit"
    assert [text.get_text() for text in legend.get_texts()] == ["one", "zero"]  # as stacked, from the top
    assert "10 examples at 3 clients" in axes.get_title("left")
    assert "label skew 0.37" in axes.get_title("left")


def test_sorting_puts_the_largest_client_first():
    (axes,) = render.plot(RECORD, sort=True).axes
    assert tick_labels(axes.xaxis) == ["eve", "ann", "bob"]
    assert axes.get_xlabel() == "client, largest first"


def test_the_heat_map_has_a_cell_per_client_and_class_and_blanks_for_none():
    axes, bar = render.plot(RECORD, kind="heatmap").axes
    cells = axes.collections[0].get_array()
    assert cells.shape == (2, 3)
    assert cells.mask.tolist() == [[False, True, False], [False, False, True]]
    assert tick_labels(axes.yaxis) == ["zero", "one"]
    assert bar.get_ylabel() == "examples held (blank: none)"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", ["bars", "heatmap"])
def test_figures_take_the_colours_of_the_page(kind, dark):
    figure = render.plot(RECORD, kind=kind, dark=dark)
    colours = palette(dark)
    assert to_hex(figure.get_facecolor()) == colours["bg"].lower()
    assert to_hex(figure.axes[0].yaxis.label.get_color()) == colours["fg"].lower()


def test_more_than_eight_classes_are_distinguished_by_pattern():
    train = wd.digits(clients=6).train
    (axes,) = render.plot(wd.describe(train)).axes
    looks = {(to_hex(bars[0].get_facecolor()), bars[0].get_hatch()) for bars in axes.containers}
    assert len(looks) == 10


def test_many_clients_are_numbered_not_named():
    (axes,) = render.plot(wd.describe(wd.digits(clients=64).train)).axes
    assert axes.get_xlabel() == "client (position)"
    assert tick_labels(axes.xaxis)[:3] == ["0", "5", "10"]


@pytest.mark.parametrize("kind", ["bars", "heatmap"])
def test_without_labels_there_are_plain_bars(kind):
    record = wd.describe(wd.ClientData(arrays={"a": {"x": np.zeros(4)}, "b": {"x": np.zeros(1)}}))
    (axes,) = render.plot(record, kind=kind).axes
    assert [bar.get_height() for bar in axes.patches] == [4, 1]
    assert axes.get_legend() is None


def test_an_unknown_kind_is_explained():
    with pytest.raises(ValueError, match=r"kind='pie'\. `plot` draws 'bars' or 'heatmap'"):
        render.plot(RECORD, kind="pie")
