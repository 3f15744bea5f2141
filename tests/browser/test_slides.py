"""Slides of a notebook, as a lecture hall without a network sees them."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

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
    expect(shown.get_by_text("SCAFFOLD, written down")).to_be_visible()
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
