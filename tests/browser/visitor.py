"""Somebody who only looks at the page, and whose clicks are counted."""

from playwright.sync_api import Locator


class Visitor:
    """Clicks, and counts it; moving a slider by a key, or choosing from a menu, counts as well."""

    def __init__(self) -> None:
        self.clicks = 0

    def click(self, place: Locator) -> None:
        self.clicks += 1
        place.click()

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
