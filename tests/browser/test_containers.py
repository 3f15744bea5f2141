"""Views inside the containers of ipywidgets: each has a box that a reader can use, and progress lines end."""

from pathlib import Path

import pytest
from lab import open_notebook, run_all, write_notebook
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.lab]

START = """import ipywidgets as W, jax.numpy as jnp, workbench as wb, records_examples as examples
from records_parts import mesh_record
def view(**options): return wb.explore(mesh_record(), **options)"""
CONTAINERS = {
    "HBox": "W.HBox([W.HTML('left'), view()])",
    "HBox of two": "W.HBox([view(), view()])",
    "VBox": "W.VBox([W.HTML('above'), view()])",
    "Tab": "W.Tab([view()], titles=['mesh'])",
    "Accordion": "W.Accordion([view()], titles=['mesh'], selected_index=0)",
    "GridBox": "W.GridBox([view(), view()], layout=W.Layout(grid_template_columns='1fr 1fr'))",
    "AppLayout": "W.AppLayout(left_sidebar=W.HTML('left'), center=view())",
    "layout": "view(layout=W.Layout(width='500px', height='320px'))",
    "Output": "out = W.Output()\nwith out:\n    display(view())\nout",
    "interact": "W.interact(lambda n: display(view()), n=W.IntSlider(3, 1, 5));",
}
LEAST = {"HBox of two": 400, "GridBox": 400, "AppLayout": 320, "layout": 500}


def test_views_have_a_usable_box_in_every_container(lab_page: Page, lab: str, lab_root: Path):
    name = write_notebook(lab_root, "containers.ipynb", START, *CONTAINERS.values())
    open_notebook(lab_page, lab, name)
    assert run_all(lab_page) == []
    sizes = {}
    for number, container in enumerate(CONTAINERS, start=1):
        views = lab_page.locator(".jp-Cell").nth(number).locator("section.wb")
        expect(views.first).to_be_visible()
        for view in views.all():
            view.scroll_into_view_if_needed()
            box = view.bounding_box()
            assert box is not None
            sizes[container] = (round(box["width"]), round(box["height"]))
            expect(view.locator("[data-device]").first).to_be_in_viewport()
    assert {name: size for name, size in sizes.items() if size[0] < LEAST.get(name, 700)} == {}
    assert sizes.pop("layout") == (500, 320)
    assert {size[1] for size in sizes.values()} == {660}


def test_progress_line_is_taken_away_in_cells_outputs_and_interact(lab_page: Page, lab: str, lab_root: Path):
    waits = """import time
from workbench.api._waiting import waiting
def work(n=0):
    with waiting("step", "compiling", shown=True):
        time.sleep(1.5)  # longer than the line takes to appear
    print("over", n)"""
    output = "out = W.Output()\nwith out:\n    work(2)\nout"
    cells = (START, waits, "work(1)", output, "W.interact(work, n=W.IntSlider(3, 1, 5));")
    open_notebook(lab_page, lab, write_notebook(lab_root, "waiting.ipynb", *cells))
    run = "() => { window.ran = window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
    lab_page.evaluate(run)
    expect(lab_page.get_by_text("step: compiling").first).to_be_visible()
    expect(lab_page.get_by_role("button", name="Stop").first).to_be_visible()
    lab_page.evaluate("() => window.ran")
    for number in (1, 2, 3):
        expect(lab_page.get_by_text(f"over {number}", exact=True)).to_be_visible()
    expect(lab_page.get_by_text("step: compiling")).to_have_count(0)
    expect(lab_page.get_by_role("button", name="Stop")).to_have_count(0)
