import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import copy_until, local_page, open_notebook, run_all, run_instead, set_theme, write_notebook
from playwright.sync_api import Browser, Page, expect
from visitor import open_tab

pytestmark = [pytest.mark.browser, pytest.mark.lab]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
IMPORTS = "import records_examples as examples, workbench_widgets"


@pytest.fixture(scope="module")
def notebook(browser: Browser, lab: str, lab_root: Path) -> Iterator[Page]:
    """One notebook with one kernel, whose cells each test replaces."""
    with local_page(browser) as page:
        open_notebook(page, lab, write_notebook(lab_root, "views.ipynb", IMPORTS))
        assert run_all(page) == []
        yield page


def test_program_view_in_jupyterlab_is_clicked_driven_by_keyboard_and_follows_the_theme(notebook: Page):
    assert run_instead(notebook, "workbench_widgets.ProgramView(examples.fedavg_record())") == []
    view = notebook.locator("section.wb")
    expect(view.locator("[data-stage]")).to_have_count(5)
    view.locator('[data-stage="1"]').click(position={"x": 40, "y": 12})
    expect(view.locator(".wb-panel h2")).to_have_text("train_locally")
    expect(view.locator(".wb-panel")).to_contain_text("all-gather")
    notebook.keyboard.press("ArrowRight")
    notebook.keyboard.press("Enter")
    expect(view.locator(".wb-panel h2")).to_have_text("Client 0")
    grounds = []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(notebook, theme)
        grounds.append(view.evaluate("node => getComputedStyle(node).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_selection_reaches_the_kernel_and_a_kernel_error_reaches_the_view(notebook: Page):
    code = """
view = workbench_widgets.ProgramView(examples.fedavg_record())
def follow(change):
    view.guarded(lambda: 1 / 0 if change["new"].get("stage") == "2" else view.select(client=3, stage="1"))()
view.observe(follow, "selection")
view"""
    assert run_instead(notebook, code) == []
    view = notebook.locator("section.wb")
    view.locator('[data-stage="0"]').click()
    expect(view.locator(".wb-panel h2")).to_have_text("Client 3")
    view.locator('[data-stage="2"]').click()
    expect(view.locator(".wb-error")).to_contain_text("ZeroDivisionError: division by zero")


def test_explorer_in_jupyterlab_links_every_view(notebook: Page):
    code = "workbench_widgets.Explorer(examples.fedavg_record(4096), gradient=examples.gradient_record(4096))"
    assert run_instead(notebook, code) == []
    view = notebook.locator("section.wb")
    open_tab(view, "HLO")
    view.get_by_role("button", name="Instructions", exact=True).click()
    view.get_by_label("Only collectives over axis").select_option("clients")
    view.locator("[data-instruction]").first.click()
    open_tab(view, "Program")
    expect(view.get_by_role("tabpanel").locator(".wb-panel h2")).to_have_text("reduce_mean")
    open_tab(view, "Clients")
    view.get_by_role("tabpanel").get_by_role("img").click()
    expect(view.get_by_role("tabpanel").locator(".wb-panel h2")).to_contain_text("Client ")
    open_tab(view, "Mesh")
    expect(view.locator(".wb-devicecard.wb-holds")).to_have_count(2)


def test_listings_in_jupyterlab_scroll_to_the_chosen_line(notebook: Page):
    code = "explorer = workbench_widgets.Explorer(examples.fedavg_record(instruction_count=400))\nexplorer"
    assert run_instead(notebook, code) == []
    view = notebook.locator("section.wb")
    open_tab(view, "HLO")
    view.get_by_role("button", name="Source and listings", exact=True).click()
    listing = view.get_by_role("region", name="Compiled HLO")
    expect(listing.locator(".cm-line").first).to_be_visible()
    ask_kernel(notebook, "explorer.select(instruction='all-reduce.1')")
    expect(listing.locator(".wb-cm-chosen")).to_be_in_viewport()
    scroller = listing.locator(".cm-scroller")
    assert scroller.evaluate("e => e.scrollTop > 0 && e.clientHeight < 700 && e.scrollHeight > e.clientHeight")
    if folder := os.environ.get("WORKBENCH_PICTURES"):
        notebook.screenshot(path=f"{folder}/listings.png")


def test_keys_in_a_view_do_not_edit_the_notebook(notebook: Page):
    assert run_instead(notebook, "1 + 1", "workbench_widgets.Explorer(examples.fedavg_record())") == []
    count = "() => window.jupyterapp.shell.currentWidget.content.model.cells.length"
    before = notebook.evaluate(count)
    view = notebook.locator("section.wb")
    for focused in (
        view.locator('[data-stage="1"]'),
        view.get_by_role("tab", name="Mesh"),
        view.locator('[data-device="0"]'),
        view.get_by_role("separator", name="Height of the view"),
    ):
        focused.click(position={"x": 4, "y": 3})
        for key in ("d", "d", "b", "a", "m"):
            notebook.keyboard.press(key)
    assert notebook.evaluate(count) == before
    types = "() => [...window.jupyterapp.shell.currentWidget.content.model.cells].map(cell => cell.type)"
    assert set(notebook.evaluate(types)) == {"code"}


def test_stop_under_a_cell_that_traces_interrupts_it(lab_page: Page, lab: str, lab_root: Path):
    cell = """
import time
import workbench as wb
def slow_step(x):
    time.sleep(120)
    return x
wb.show(slow_step)(1.0)"""
    open_notebook(lab_page, lab, write_notebook(lab_root, "stop.ipynb", cell))
    lab_page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    expect(lab_page.locator(".jp-OutputArea")).to_contain_text("slow_step: tracing", timeout=90_000)
    stop = lab_page.locator(".jp-OutputArea").get_by_role("button", name="Stop")
    stop.click()
    expect(lab_page.locator(".jp-OutputArea")).to_contain_text("KeyboardInterrupt")
    expect(stop).to_have_count(0)


def test_two_views_share_one_copy_of_the_bundle(notebook: Page):
    show = "workbench_widgets.Explorer(examples.fedavg_record())"
    loaded = "() => globalThis.__workbenchLoaded.size"
    assert run_instead(notebook, show) == []
    expect(notebook.locator("section.wb")).to_have_count(1)
    count = notebook.evaluate(loaded)
    assert run_instead(notebook, show, show) == []
    expect(notebook.locator("section.wb")).to_have_count(2)
    assert notebook.evaluate(loaded) == count
    assert notebook.locator("style[data-workbench]").count() == 1


def test_closing_the_output_ends_the_view(notebook: Page):
    assert run_instead(notebook, "view = workbench_widgets.ProgramView(examples.fedavg_record())", "view") == []
    expect(notebook.locator("section.wb")).to_have_count(1)
    notebook.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    expect(notebook.locator("section.wb")).to_have_count(0)
    assert ask_kernel(notebook, "view._open_views") == "0"


def ask_kernel(page: Page, expression: str) -> str:
    """The value of an expression in the notebook's kernel, as text."""
    script = """async expression => {
      const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
      const future = kernel.requestExecute({ code: "", user_expressions: { asked: expression } });
      const reply = await future.done;
      return reply.content.user_expressions.asked.data["text/plain"];
    }"""
    return page.evaluate(script, expression)


@pytest.mark.slow
@pytest.mark.notebook
def test_program_of_the_first_notebook_can_be_clicked_through(lab_page: Page, lab: str, lab_root: Path):
    path = NOTEBOOKS / "01-start-here.ipynb"  # tests/notebooks runs all of it
    open_notebook(lab_page, lab, copy_until(lab_root, path, "wb.show(record)"))
    lab_page.set_default_timeout(240_000)
    assert run_all(lab_page) == []
    view = lab_page.locator("section.wb").first
    expect(view.locator('[data-stage="1"]').first).to_be_visible()
    view.locator('[data-stage="1"]').first.click(position={"x": 30, "y": 10})
    panel = view.get_by_role("tabpanel").locator(".wb-panel")
    expect(panel.locator("h2")).to_have_text("train_locally")
    expect(panel.locator(".wb-marked").first).to_contain_text("wb.map_fn(train_locally")
    view.locator('[data-client="17"]').first.click()
    expect(panel.locator("h2")).to_have_text("Client 17")
    expect(panel).to_contain_text("cpu:")
    view.locator('[data-label^="reduce stage"]').first.click()
    expect(panel).to_contain_text("all-reduce")


def test_4096_clients_at_ten_rounds_a_second_arrive_to_the_last(notebook: Page):
    code = """
import threading, time
from live_examples import FakeRun
run = FakeRun(rounds=40)
def drive():
    for number in range(40):
        run.finish(loss=tuple(float(number + client % 7) for client in range(4096)))
        time.sleep(0.1)
view = workbench_widgets.RunView(run)
threading.Thread(target=drive, daemon=True).start()
view"""
    assert run_instead(notebook, code) == []
    view = notebook.locator("section.wb")
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("running · 40 of 40 rounds", timeout=60_000)
    latest = view.get_by_role("img", name="loss of all 4096 clients after the last round, from 39 to 45")
    expect(latest).to_have_attribute("data-round", "39")
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("stopped · 40 of 40 rounds")
