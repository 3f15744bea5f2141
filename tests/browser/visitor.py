"""Somebody who only looks at the page, and whose clicks are counted."""

import re
from collections.abc import Callable, Iterator

from playwright.sync_api import Locator


def open_tab(view: Locator, name: str, click: Callable[[Locator], None] = Locator.click) -> Locator:
    """Opens a tab of an explorer, after its place where another place is open; returns the tab."""
    tab = view.locator("[role=tab]", has_text=re.compile(rf"\b{name}\b"))
    tab.wait_for(state="attached")
    if not tab.is_visible():
        click(view.locator(f'.wb-places [data-place="{tab.get_attribute("data-place")}"]'))
        if tab.get_attribute("aria-selected") == "true":
            return tab
    click(tab)
    return tab


def open_every_tab(view: Locator) -> Iterator[str]:
    """Opens one tab of an explorer after the other, in all places; yields their names."""
    for name in view.locator("[role=tab] [data-text]").evaluate_all("all => all.map(each => each.dataset.text)"):
        open_tab(view, name)
        yield name


class Visitor:
    """Clicks, and counts it; moving a slider by a key, or choosing from a menu, counts as well."""

    def __init__(self) -> None:
        self.clicks = 0

    def click(self, place: Locator) -> None:
        self.clicks += 1
        place.click()

    def open(self, view: Locator, name: str) -> None:
        """Opens a tab of an explorer; a place that has to be opened first is a second click."""
        open_tab(view, name, self.click)

    def type(self, place: Locator, text: str) -> None:
        """Fills in a field and presses Enter."""
        self.clicks += 1
        place.fill(text)
        place.press("Enter")

    def slide(self, slider: Locator, wanted: str) -> None:
        """Drags a slider to the right until it says `wanted`: one movement of the hand."""
        self.clicks += 1
        for _ in range(40):
            if slider.get_attribute("aria-valuetext") == wanted:
                return
            slider.press("ArrowRight")
        message = f"the slider never says {wanted}"
        raise AssertionError(message)
