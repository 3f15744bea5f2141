"""A run is held and ended from its view while a cell of the notebook is at work."""

from pathlib import Path

import pytest
from lab import open_notebook, write_notebook
from playwright.sync_api import Page, expect
from test_lab import ask_kernel

pytestmark = [pytest.mark.browser, pytest.mark.lab]

RUN = """
import time, workbench_widgets
import workbench as wb
def step(state, round):
    time.sleep(0.05)
    return state + 1, {"loss": 1 / (1 + state)}
run = wb.Run(step, 0, 10**6, progress=False)
workbench_widgets.RunView(run)"""
AWAITED = "(await run).status"


def test_buttons_of_a_run_work_while_a_cell_runs(lab_page: Page, lab: str, lab_root: Path):
    open_notebook(lab_page, lab, write_notebook(lab_root, "busy.ipynb", RUN, AWAITED))
    lab_page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    view = lab_page.locator("section.wb")
    status = view.locator(".wb-runhead .wb-big")
    expect(status).to_contain_text("running", timeout=60_000)
    expect(lab_page.locator(".jp-InputPrompt").nth(1)).to_have_text("[*]:")  # the cell is at work all the while
    view.get_by_role("button", name="Pause", exact=True).click()
    expect(status).to_contain_text("paused")
    view.get_by_role("button", name="Resume", exact=True).click()
    expect(status).to_contain_text("running")
    view.get_by_role("button", name="Stop", exact=True).click()
    expect(status).to_contain_text("stopped")
    expect(lab_page.locator(".jp-OutputArea-output pre").last).to_have_text("'stopped'")
    assert ask_kernel(lab_page, "run.finished == run.state") == "True"
