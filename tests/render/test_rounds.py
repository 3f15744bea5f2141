"""Rounds of a run as figures and words; the values of a tapped client."""

import math
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from workbench import render
from workbench.records.live import (
    RoundRecord,
    TappedValueRecord,
    TapRecord,
)
from workbench.records.program import SourceLine
from workbench.render import (
    render_clients_svg,
    render_tap_html,
)
from workbench.render._rounds import curves

HISTORY = [
    RoundRecord(round=0, seconds=0.5, metrics={"loss": ((4.0, 2.0), (8.0, 6.0)), "accuracy": 0.25}),
    RoundRecord(round=1, seconds=0.5, metrics={"loss": ((2.0, 1.0), (math.nan, 3.0)), "accuracy": 0.5}),
]


def test_curves_are_mean_least_and_most_over_clients_and_steps_without_what_is_not_finite():
    assert curves(HISTORY)["loss"] == [(0, 5.0, 2.0, 8.0), (1, 2.0, 1.0, 3.0)]
    assert curves(HISTORY)["accuracy"] == [(0, 0.25, 0.25, 0.25), (1, 0.5, 0.5, 0.5)]


def test_rounds_are_a_line_per_metric_with_a_band_over_clients():
    loss, accuracy = render.plot(HISTORY).axes
    assert [axes.lines[0].get_ydata().tolist() for axes in (loss, accuracy)] == [[5.0, 2.0], [0.25, 0.5]]
    assert sorted({y for _, y in loss.collections[0].get_paths()[0].vertices.tolist()}) == [1.0, 2.0, 3.0, 8.0]


def test_a_metric_that_was_never_finite_says_so():
    history = [RoundRecord(round=0, seconds=1.0, metrics={"loss": math.inf})]
    assert "loss: not finite" in render.describe(history)
    (panel,) = render.plot(history).axes
    assert [text.get_text() for text in panel.texts] == ["not finite in any round"]
    assert render.rounds_png(history) is not None


def test_a_finite_round_between_others_is_marked():
    values = (1.0, 2.0, math.nan, 3.0, math.inf, 4.0, 5.0)
    history = [RoundRecord(round=r, seconds=1.0, metrics={"loss": value}) for r, value in enumerate(values)]
    (curve,) = render.plot(history).axes[0].lines
    assert curve.get_marker() == "o"
    assert curve.get_markevery() == [3]


@pytest.mark.parametrize("rounds", [1, 2, 30])
def test_panels_have_titles_units_and_whole_rounds(rounds: int):
    metrics = {"flops_per_second": 2e12, "peak_bytes": 2.0**30, "cost in $_{": 0.5}
    history = [RoundRecord(round=r, seconds=1.0, metrics=metrics | {"peak_bytes": 2.0**30 * r}) for r in range(rounds)]
    figure = render.plot(history)
    rate, peak, cost = figure.axes
    assert render.rounds_png(history) is not None  # a name is text, not a formula
    assert (rate.get_title("left"), cost.get_title("left")) == ("FLOPs per second", "cost in $_{")
    figure.draw_without_rendering()
    assert "0 B" in {label.get_text() for label in peak.get_yticklabels()}
    assert all(float(label.get_text().replace("−", "-")).is_integer() for label in peak.get_xticklabels())


def test_rounds_without_scripts_are_a_png_of_the_figure(monkeypatch):
    assert (render.rounds_png(HISTORY) or b"").startswith(b"\x89PNG")
    assert render.rounds_png([]) is None
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "workbench.render._figures")
    assert render.rounds_png(HISTORY) is None


@pytest.mark.parametrize(("clients", "class_"), [(8, "wb-fill-clients"), (4096, "")], ids=["bars", "heat map"])
def test_clients_are_bars_or_beyond_what_fits_a_heat_map(clients, class_):
    values = [float(client) for client in range(clients)]
    drawn = str(render_clients_svg("examples", values))
    cells = [each for each in ElementTree.fromstring(drawn).iter() if each.tag.endswith("rect")]
    assert len(cells) == clients + 1  # and the ground
    assert all(each.get("class", "") == class_ for each in cells[1:])
    assert f"client {clients - 1}, the most" in drawn


def test_rounds_as_a_figure_have_a_panel_per_metric():
    figure = render.plot(HISTORY)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "accuracy"]
    assert figure.axes[0].lines[0].get_ydata().tolist() == [5.0, 2.0]
    assert figure.png().startswith(b"\x89PNG")
    assert "no round has finished yet" in render.plot([]).axes[0].texts[0].get_text()


def tapped(**changes) -> TapRecord:
    line = SourceLine(file="train.py", line=7)
    base = {"stage": "1", "operation": "mul", "shape": (2,), "dtype": "float32", "source": line}
    values = (
        TappedValueRecord(name="x", steps=(0,), value=np.array([1.0, 2.0]), least=1.0, mean=1.5, most=2.0, **base),
        TappedValueRecord(name="x", steps=(1,), value=np.array([1.0, np.nan]), least=1.0, mean=1.0, most=1.0,
                          nonfinite=1, **base),
    )  # fmt: skip
    return TapRecord(name="round", client=(3,), stages={"1": "train"}, values=values, **changes)


def test_values_of_a_client_in_words_name_the_first_that_is_not_finite():
    assert render.text(tapped()).splitlines() == [
        "Values of client 3 in round: 2, the first that is not finite is x at train.py:7.",
        "stage 1: train, step 0",
        "  x: float32[2] from 1 to 2, mean 1.5",
        "stage 1: train, step 1",
        "  x: float32[2] from 1 to 1, mean 1, 1 not finite",
    ]
    assert render.text(tapped()) == render.text(tapped())


def test_values_of_a_client_are_drawn_by_treescope():
    page = render_tap_html(tapped())
    assert "treescope" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_treescope_shows_a_tap_as_its_values():
    import treescope

    shown = treescope.render_to_text(tapped())
    assert "'stage 1: train'" in shown
    assert "'step 1'" in shown
