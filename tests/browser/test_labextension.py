"""The labextension in JupyterLab: lines, cells, panels next to the notebook, and notebooks read without a kernel."""

import json
import os
from pathlib import Path

import pytest
from lab import open_notebook, run_all, write_notebook
from playwright.sync_api import Page, expect
from test_lab import IMPORTS, ask_kernel
from visitor import open_tab

pytestmark = [pytest.mark.browser, pytest.mark.lab]

# A record whose stages say that they are from the second cell, as a program of the notebook's would.
CODE = """def train(weights, rows):
    return weights - rows

mean = 1"""
EXPLORE = """
record = examples.fedavg_record()
from workbench.records.program import SourceLine
def moved(stage):
    return stage.replace(source=SourceLine(file="In [2]", line=2), body=tuple(map(moved, stage.body)))
plan = record.plan.replace(stages=tuple(map(moved, record.plan.stages)))
explorer = workbench_widgets.Explorer(record.replace(plan=plan), dock=DOCK)
explorer"""


def opened(page: Page, lab: str, root: Path, name: str, *, dock: str | None = None):
    cells = (IMPORTS, CODE, EXPLORE.replace("DOCK", repr(dock)))
    open_notebook(page, lab, write_notebook(root, name, *cells))
    assert run_all(page) == []
    return page.locator("section.wb").last


def test_line_is_shown_in_its_cell_and_the_explorer_next_to_the_notebook(lab_page: Page, lab: str, lab_root: Path):
    view = opened(lab_page, lab, lab_root, "linked.ipynb")
    ask_kernel(lab_page, "explorer.select(line='In [2]:2')")
    view.get_by_role("button", name="Show in notebook").click()
    expect(lab_page.locator(".workbench-mark")).to_be_visible()
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    assert lab_page.evaluate(active) == 1

    view.get_by_role("button", name="Next to the notebook").click()
    docked = lab_page.locator(".workbench-dock section.wb")
    expect(docked).to_be_visible()
    expect(lab_page.get_by_role("button", name="Shown next to the notebook")).to_be_visible()
    open_tab(docked, "Mesh")
    if folder := os.environ.get("WORKBENCH_PICTURES"):
        lab_page.screenshot(path=f"{folder}/docked.png")
    docked.get_by_role("button", name="Show in notebook").click()  # the panel knows its notebook
    expect(lab_page.locator(".workbench-mark").last).to_be_visible()
    lab_page.get_by_role("button", name="Shown next to the notebook").click()
    expect(lab_page.locator(".workbench-dock")).to_have_count(0)


def test_explorer_that_is_docked_from_python_is_replaced_when_its_cell_runs_again(
    lab_page: Page, lab: str, lab_root: Path
):
    opened(lab_page, lab, lab_root, "docked.ipynb", dock="right")
    expect(lab_page.locator(".workbench-dock section.wb")).to_have_count(1)
    assert run_all(lab_page) == []
    expect(lab_page.locator(".workbench-dock section.wb")).to_have_count(1)


def test_function_of_a_cell_is_explored_by_a_command(lab_page: Page, lab: str, lab_root: Path):
    cells = ("import jax, workbench as wb\nx = jax.numpy.ones(3)", "def double(x):\n    return 2 * x", "y = double(x)")
    open_notebook(lab_page, lab, write_notebook(lab_root, "command.ipynb", *cells))
    assert run_all(lab_page) == []
    run = """() => { const app = window.jupyterapp; app.shell.currentWidget.content.activeCellIndex = 1;
      return app.commands.execute("workbench:explore-cell"); }"""
    lab_page.evaluate(run)
    sources = "() => [...window.jupyterapp.shell.currentWidget.content.model.cells].map(c => c.sharedModel.getSource())"
    assert lab_page.evaluate(sources)[2] == "wb.explore(double)(x)"
    expect(lab_page.locator("section.wb")).to_be_visible(timeout=60_000)
    lab_page.evaluate("() => window.jupyterapp.commands.execute('workbench:devices')")
    expect(lab_page.locator(".workbench-dock section.wb")).to_be_visible(timeout=60_000)


def test_saved_notebook_shows_its_views_without_a_kernel(lab_page: Page, lab: str, lab_root: Path):
    opened(lab_page, lab, lab_root, "saved.ipynb")
    lab_page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    read = json.loads((lab_root / "saved.ipynb").read_text())
    for cell in read["cells"]:  # as another reader gets it: nobody has signed it, and the widgets are of another kernel
        cell["source"] += "\n# as I got it"
    del read["metadata"]["kernelspec"]
    (lab_root / "reader.ipynb").write_text(json.dumps(read).replace('"model_id": "', '"model_id": "0'))
    lab_page.goto(f"{lab}/lab/tree/reader.ipynb?token=test&reset")
    view = lab_page.locator("section.wb")
    expect(view).to_be_visible(timeout=60_000)
    dialog = lab_page.get_by_role("button", name="No Kernel")
    if dialog.is_visible():
        dialog.click()
    open_tab(view, "Mesh")
    expect(view.locator("[data-device]").first).to_be_visible()
    if folder := os.environ.get("WORKBENCH_PICTURES"):
        lab_page.screenshot(path=f"{folder}/read-without-kernel.png")
