"""Every view looks as it did: compared with a picture that somebody has looked at.

`pytest tests/browser/test_pictures.py --new-pictures` takes new ones; look at them before you commit them.
"""

import io
import re
from pathlib import Path

import pytest
from accessibility import cut_texts
from every_view import VIEWS, act_on
from harness import Harness
from PIL import Image, ImageChops
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 900
# Fonts differ between machines, so words may be a little wider and wrap elsewhere: what is compared is the
# arrangement, in squares of 12 pixels.
SQUARE, MOST_DIFFERENCE, MOST_SQUARES, MOST_HEIGHT = 12, 28, 0.06, 0.08


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_view_looks_as_it_did(harness: Harness, name: str, theme: str, request: pytest.FixtureRequest):
    harness.page.set_viewport_size({"width": WIDTH, "height": 900})
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(VIEWS[name]())
    if name in ("hlo", "program"):
        act_on(view, name)
    if name == "hlo-graph":  # its boxes come from a worker
        expect(view.locator(".wb-graph")).to_have_attribute("data-boxes", re.compile(r"\d"))
    harness.page.mouse.move(0, 0)
    harness.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert cut_texts(view) == []
    taken = Image.open(io.BytesIO(view.screenshot(animations="disabled", caret="hide"))).convert("RGB")
    file = PICTURES / f"{name}-{theme}.png"
    if request.config.getoption("--new-pictures"):
        PICTURES.mkdir(exist_ok=True)
        taken.quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)
        return
    known = Image.open(file).convert("RGB")
    assert abs(taken.height / known.height - 1) <= MOST_HEIGHT
    assert different_squares(taken, known) <= MOST_SQUARES


def different_squares(a: Image.Image, b: Image.Image) -> float:
    """The share of squares whose mean colours differ by more than can be seen at a glance."""
    size = (a.width // SQUARE, min(a.height, b.height) // SQUARE)
    whole = (0, 0, size[0] * SQUARE, size[1] * SQUARE)
    one, other = (each.crop(whole).resize(size, Image.Resampling.BOX) for each in (a, b))
    gaps = ImageChops.difference(one, other).tobytes()
    return sum(max(gaps[i : i + 3]) > MOST_DIFFERENCE for i in range(0, len(gaps), 3)) / (len(gaps) // 3)


def test_a_view_in_the_wrong_colours_is_noticed():
    light, dark = (Image.open(PICTURES / f"hlo-{theme}.png").convert("RGB") for theme in ("light", "dark"))
    assert different_squares(light, dark) > 10 * MOST_SQUARES


def test_a_view_with_its_lower_half_missing_is_noticed():
    whole = Image.open(PICTURES / "program-light.png").convert("RGB")
    half = whole.copy()
    half.paste((255, 255, 255), (0, whole.height // 2, whole.width, whole.height))
    assert different_squares(half, whole) > MOST_SQUARES


def test_pictures_are_few_and_small():
    files = list(PICTURES.glob("*.png"))
    assert {file.stem for file in files} == {f"{name}-{theme}" for name in VIEWS for theme in ("light", "dark")}
    assert sum(file.stat().st_size for file in files) < 3 * 2**20
