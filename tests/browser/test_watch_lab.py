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


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_step_times_are_one_chart_and_compilations_are_events(lab_page: Page, lab: str, lab_root: Path, theme: str):
    open_notebook(lab_page, lab, write_notebook(lab_root, "watch.ipynb", LOOP))
    lab_page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    lab_page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    view = lab_page.locator("section.wb").first
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("finished · 60 steps", timeout=120_000)
    titles = view.locator(".wb-tile:visible h3")
    expect(titles.filter(has_text="seconds of a step")).to_have_count(1)
    expect(titles.filter(has_text="loss")).to_have_count(1)
    expect(titles.filter(has_text="compile_seconds")).to_have_count(0)
    expect(view.get_by_label("Band over clients")).to_have_count(0)
    expect(view.get_by_text("step 40 compiled")).to_be_visible()
