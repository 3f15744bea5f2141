"""Slides of a notebook, as a lecture hall without a network sees them."""

from pathlib import Path

import nbformat
import pytest
import workbench_widgets
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Browser, expect
from records_examples import fedavg_record
from workbench_widgets._saved import saved_page

from workbench import course

pytestmark = pytest.mark.browser

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "09-client-drift.ipynb"


def test_slides_need_no_network(browser: Browser, tmp_path: Path) -> None:
    (made,) = course.write_slides([NOTEBOOK], tmp_path, execute=False)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.context.set_offline(True)
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(made.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("Space")
    shown = page.locator("section.present:not(.stack)")
    expect(shown.get_by_text("SCAFFOLD in formulas")).to_be_visible()
    assert [url for url in asked if not url.startswith("file:")] == []
    assert wrong == []
    formula = shown.locator("math[display=block]").first
    box = formula.bounding_box()
    assert box is not None
    assert box["width"] > 100  # drawn, not only there
    page.close()


def test_text_of_slides_is_readable_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    (made,) = course.write_slides([NOTEBOOK], tmp_path, execute=False)
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(made.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    text = page.locator("section p").first
    expect(text).to_be_visible()
    scale = text.evaluate("p => p.getBoundingClientRect().width / p.offsetWidth")
    size = text.evaluate("p => parseFloat(getComputedStyle(p).fontSize)")
    assert scale * size > 8
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.close()


def notebook_with_view(folder: Path) -> Path:
    """A notebook whose second slide has a figure's long code, and whose third has a saved view."""
    view = workbench_widgets.Explorer(fedavg_record())
    saved = saved_page(view.saved(), "")
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    opening = new_markdown_cell("# What does a view show?\n\n**Time.** About 5 minutes.")
    figure = new_code_cell("\n".join(f"line = {n}" for n in range(40)))
    figure.outputs = [new_output("display_data", {"image/png": dot})]
    shown = new_code_cell("wb.show(record)")
    shown.outputs = [new_output("display_data", {"text/html": saved})]
    below = new_markdown_cell("\n\n".join(f"Paragraph {n} of a long slide." for n in range(30)))
    cells = [opening, new_markdown_cell("## A figure"), figure, new_markdown_cell("## A view"), shown, below]
    for cell, kind in zip(cells, ("slide", "slide", "-", "slide", "-", "slide"), strict=True):
        cell.metadata.slideshow = {"slide_type": kind}
    path = folder / "00-view.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_slides_show_views_fold_the_code_of_figures_and_follow_the_dark_scheme(
    browser: Browser, tmp_path: Path
) -> None:
    (made,) = course.write_slides([notebook_with_view(tmp_path)], tmp_path / "slides", execute=False)
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
    page.goto(made.as_uri())
    expect(page.locator(".reveal.ready")).to_be_visible()
    assert page.title().startswith("00 · What does a view show?")
    page.keyboard.press("PageDown")
    expect(page.locator("section.present details summary")).to_have_text("Code of the figure, 40 lines")
    expect(page.locator("section.present pre")).to_be_hidden()
    figure = page.locator("section.present img")
    assert "invert" in figure.evaluate("image => getComputedStyle(image).filter")
    background, text = page.evaluate(
        "[document.body, document.querySelector('section.present h2')].map((each, i) => "
        "getComputedStyle(each)[i ? 'color' : 'backgroundColor'])"
    )
    assert background == "rgb(22, 24, 28)"
    assert text == "rgb(255, 255, 255)"

    page.keyboard.press("PageDown")
    frame = page.frame_locator("section.present iframe.wb-view")
    tabs = frame.get_by_role("tab")
    expect(tabs.first).to_be_visible()
    tabs.nth(1).click()
    page.keyboard.press("PageDown")  # the focus is in the view: its frame hands on the presenter's key
    long = page.locator("section.present:not(.stack)")
    expect(long.get_by_text("Paragraph 0 of")).to_be_in_viewport()
    expect(long.get_by_text("Paragraph 29 of")).not_to_be_in_viewport()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("PageDown")
    expect(long.get_by_text("Paragraph 0 of")).not_to_be_in_viewport()
    page.keyboard.press("PageDown")
    expect(long.get_by_text("Paragraph 29 of")).to_be_in_viewport()
    page.close()
