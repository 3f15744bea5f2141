"""The explorer in a marimo app, where cells hear of a selection through traits."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import TOKEN, free_port, serve
from playwright.sync_api import Browser, Page, Route, expect
from visitor import open_every_tab, open_tab

pytestmark = [pytest.mark.browser, pytest.mark.lab]

LOCAL = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:")
APP = """
import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import marimo as mo
    import records_examples as examples
    import workbench_widgets

    explorer = workbench_widgets.Explorer(examples.fedavg_record())
    view = mo.ui.anywidget(explorer)
    view
    return mo, view


@app.cell
def _(mo, view):
    mo.md(f"Python heard: stage {view.value['selection'].get('stage')}, client {view.value['selection'].get('client')}")
    return
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A marimo app of its own on loopback, which asks for a token."""
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-m", "marimo", "--log-level", "error", "run", "app.py", "--headless",
               "--host", "127.0.0.1", "--port", str(port), "--token", "--token-password", TOKEN]  # fmt: skip
    search = os.pathsep.join(
        [str(Path(__file__).parents[2]), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    environment = os.environ | {"PYTHONPATH": search, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with serve(command, environment, tmp_path / "marimo.log", f"http://127.0.0.1:{port}/health", tmp_path):
        yield f"http://127.0.0.1:{port}/?access_token={TOKEN}"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page from which nothing leaves this machine, and in which none of our modules may fail."""
    made = browser.new_page(viewport={"width": 1300, "height": 1400})
    wrong: list[str] = []
    made.on("pageerror", lambda error: wrong.append(str(error)) if "wb" in (error.stack or "") else None)

    def keep_inside(route: Route) -> None:
        route.continue_() if route.request.url.startswith(LOCAL) else route.abort()

    made.route("**/*", keep_inside)
    yield made
    made.close()
    assert not wrong


def test_explorer_in_marimo_links_its_views_and_the_cells_that_read_it(page: Page, address: str):
    page.goto(address)
    view = page.locator("section.wb")
    received = page.get_by_text("Python heard:")
    expect(received).to_have_text("Python heard: stage None, client None", timeout=60_000)
    view.locator('[data-stage="1"]').first.click()
    expect(view.get_by_role("tabpanel").locator(".wb-panel h2")).to_contain_text("train")
    expect(received).to_contain_text("stage 1")
    open_tab(view, "Clients")
    view.get_by_label("Show clients as").select_option("table")
    view.locator('[role=row][data-client="3"]').click()
    expect(received).to_have_text("Python heard: stage 1, client 3")
    for _ in open_every_tab(view):
        expect(view.locator("[role=tabpanel]:visible")).to_have_count(1)
        expect(view.locator(".wb-error:visible")).to_have_count(0)
        expect(view.locator(".wb-chosen")).to_contain_text("client 3")
    view.get_by_role("tab", selected=True).focus()
    page.keyboard.press("ArrowLeft")
    expect(view.get_by_role("tab", selected=True)).to_be_focused()
    expect(view.get_by_role("tab", selected=True)).not_to_have_text("Play")  # on into the place before
