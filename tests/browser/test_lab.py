from pathlib import Path

import nbformat
import pytest
from lab import open_notebook, run_all, set_theme
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.lab]

TESTS = Path(__file__).parents[1]


def notebook(root: Path, name: str, *cells: str) -> str:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, root / name)
    return name


IMPORTS = f"import sys; sys.path[:0] = {[str(TESTS.parent), str(TESTS)]}\nimport records_examples as examples, widgets"


def test_program_view_in_jupyterlab_is_clicked_driven_by_keyboard_and_follows_the_theme(
    lab_page: Page, lab: str, lab_root: Path
):
    name = notebook(lab_root, "program.ipynb", IMPORTS, "view = widgets.ProgramView(examples.fedavg_record())\nview")
    open_notebook(lab_page, lab, name)
    assert run_all(lab_page) == []
    view = lab_page.locator("section.wb")
    expect(view.locator("[data-stage]")).to_have_count(5)
    view.locator('[data-stage="1"]').click(position={"x": 40, "y": 12})
    expect(view.locator(".wb-panel h3")).to_have_text("train_locally")
    expect(view.locator(".wb-panel")).to_contain_text("all-gather")
    lab_page.keyboard.press("ArrowRight")
    lab_page.keyboard.press("Enter")
    expect(view.locator(".wb-panel h3")).to_have_text("Client 0")
    grounds = []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(lab_page, theme)
        grounds.append(view.evaluate("node => getComputedStyle(node).backgroundColor"))
    assert grounds[0] != grounds[1]
    chosen = "(await_ => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status)()"
    assert lab_page.evaluate(chosen) in ("idle", "busy")


def test_selection_reaches_the_kernel_and_a_kernel_error_reaches_the_view(lab_page: Page, lab: str, lab_root: Path):
    code = """
view = widgets.ProgramView(examples.fedavg_record())
def follow(change):
    view.guarded(lambda: 1 / 0 if change["new"].get("stage") == "2" else view.select(client=3, stage="1"))()
view.observe(follow, "selection")
view"""
    name = notebook(lab_root, "errors.ipynb", IMPORTS, code)
    open_notebook(lab_page, lab, name)
    assert run_all(lab_page) == []
    view = lab_page.locator("section.wb")
    view.locator('[data-stage="0"]').click()
    expect(view.locator(".wb-panel h3")).to_have_text("Client 3")
    view.locator('[data-stage="2"]').click()
    expect(view.locator(".wb-error")).to_contain_text("ZeroDivisionError: division by zero")
