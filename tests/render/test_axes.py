"""Every figure goes into a reader's own panel."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from records_parts import cost_record

from workbench import render
from workbench.records.live import RoundRecord

HISTORY = [RoundRecord(round=n, seconds=0.5, metrics={"loss": (3.0, 1.0), "accuracy": 0.5}) for n in range(3)]

COSTS = pd.DataFrame(
    {"hours": [1.0, 2.0], "moved (GB)": [1.0, 2.0], "energy (kWh)": [1.0, 2.0], "accuracy": [0.5, 0.7]}
)
PLOTS = {
    "roofline": lambda **ax: render.plot(cost_record(), **ax),
    "rounds": lambda **ax: render.plot(HISTORY, **ax),
    "no rounds": lambda **ax: render.plot([], **ax),
    "costs": lambda **ax: render.plot({"FedAvg": COSTS}, **ax),
}


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS)
def test_a_figure_is_drawn_in_the_place_of_a_panel(plot):
    figure = Figure(figsize=(10, 4), facecolor="white")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1])
    assert plot(ax=right) is figure
    figure.draw_without_rendering()
    drawn = [axes for axes in figure.axes if axes is not left and axes.get_visible()]
    assert drawn
    assert all(axes.get_window_extent().x0 > left.get_window_extent().x1 for axes in drawn)
    assert any(axes.has_data() or axes.texts for axes in drawn)
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)  # the reader's ground stays


def test_several_panels_need_a_grid():
    free = Figure().add_axes((0.1, 0.1, 0.8, 0.8))
    with pytest.raises(ValueError, match="not part of a grid"):
        PLOTS["rounds"](ax=free)
