"""A page that `jupyter nbconvert --to html --execute` makes with its default options, opened without a network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import write_notebook
from playwright.sync_api import Browser, expect
from visitor import open_tab

import workbench as wb

pytestmark = [pytest.mark.browser, pytest.mark.notebook]

ROOT = Path(__file__).parents[2]
CODE = """
import records_examples as examples, workbench_widgets
workbench_widgets.Explorer(examples.fedavg_record())"""


def test_page_of_an_executed_notebook_is_interactive_offline(browser: Browser, tmp_path: Path) -> None:
    write_notebook(tmp_path, "lecture.ipynb", CODE)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "widgets", ROOT / "tests")))
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "lecture.ipynb"]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": paths}, capture_output=True)

    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.context.set_offline(True)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    # nbconvert's own template asks networks for require.js and MathJax; none of it is ours, and nothing may wait for it
    page.route("**/*", lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort())
    page.goto((tmp_path / "lecture.html").as_uri(), wait_until="domcontentloaded")
    view = page.locator("section.wb")
    expect(view).to_be_visible()
    open_tab(view, "Mesh")
    expect(view.locator("[data-device]").first).to_be_visible()
    if folder := os.environ.get("WORKBENCH_PICTURES"):
        page.screenshot(path=f"{folder}/nbconvert.png")
    page.close()
    assert [each for each in wrong if "require" not in each and "MathJax" not in each] == []


def test_an_exported_playground_says_where_its_experiment_can_run(browser: Browser, tmp_path: Path) -> None:
    wb.playground(clients=4, rounds=2).to_html(tmp_path / "play.html")
    page = browser.new_page()
    page.goto((tmp_path / "play.html").as_uri())
    view = page.locator("section.wb")
    expect(view.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    expect(view.get_by_text("This page has no kernel")).to_be_visible()
    page.close()
