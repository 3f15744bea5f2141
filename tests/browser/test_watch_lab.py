"""A watched loop beside its cell in JupyterLab."""

from pathlib import Path

import pytest
from lab import open_notebook, write_notebook
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.lab]

LOOP = """
import jax, jax.numpy as jnp
import workbench as wb
@jax.jit
def train_step(w, x):
    loss, slope = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
    return w - 0.1 * slope, loss
train_step = wb.watch(train_step)
w = jnp.ones((8, 4))
for number in range(60):
    w, loss = train_step(w, jnp.ones((8 if number < 40 else 16, 8)))
train_step.close()"""


CELLS_ENDED = """() => Array.from(window.jupyterapp.shell.currentWidget.content.model.cells)
    .every(cell => cell.type !== "code" || cell.executionCount)"""


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_step_times_are_one_chart_and_compilations_are_events(lab_page: Page, lab: str, lab_root: Path, theme: str):
    open_notebook(lab_page, lab, write_notebook(lab_root, "watch.ipynb", LOOP))
    lab_page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    lab_page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    view = lab_page.locator("section.wb")
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("finished · 60 steps", timeout=120_000)
    lab_page.wait_for_function(CELLS_ENDED, timeout=60_000)
    lab_page.wait_for_timeout(1000)  # for a second view, which an update of the output would add
    expect(view).to_have_count(1)
    titles = view.locator(".wb-tile:visible h3")
    expect(titles.filter(has_text="seconds of a step")).to_have_count(1)
    expect(titles.filter(has_text="loss")).to_have_count(1)
    expect(titles.filter(has_text="compile_seconds")).to_have_count(0)
    expect(view.get_by_label("Band over clients")).to_have_count(0)
    expect(view.get_by_text("step 40 compiled")).to_be_visible()


def test_a_loop_that_was_not_closed_waits_after_its_cell_and_is_saved_so(lab_page: Page, lab: str, lab_root: Path):
    loop = LOOP.replace("train_step.close()", "")
    again = "for _ in range(5):\n    w, loss = train_step(w, jnp.ones((16, 8)))"
    open_notebook(lab_page, lab, write_notebook(lab_root, "waits.ipynb", loop, again))
    lab_page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    lab_page.wait_for_function(CELLS_ENDED, timeout=180_000)
    view = lab_page.locator("section.wb")
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("waiting · 65 steps", timeout=60_000)
    expect(view).to_have_count(1)
    parts = view.locator(".wb-tile:visible").filter(has_text="seconds of a step")
    assert {"step", "dispatch", "between", "idle"} <= {
        text.split()[0] for text in parts.locator(".wb-linename").all_text_contents()
    }
    expect(parts.locator(".wb-linekey")).to_have_count(parts.locator(".wb-linename").count())
    events, charts = view.locator(".wb-events"), view.locator(".wb-plots")
    expect(events).to_contain_text("step 40 compiled")
    assert events.bounding_box()["y"] < charts.bounding_box()["y"]
    lab_page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    lab_page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    open_notebook(lab_page, lab, "waits.ipynb")
    saved = lab_page.locator("section.wb")
    expect(saved.locator(".wb-runhead .wb-big")).to_have_text("waiting · 65 steps", timeout=60_000)
