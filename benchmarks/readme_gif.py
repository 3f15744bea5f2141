"""Makes the README's animation: a round of federated averaging in the explorer.

Run `python benchmarks/readme_gif.py`; it writes `docs/images/explorer.gif`. It needs Chromium or Chrome.
"""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import workbench_widgets
from PIL import Image
from playwright.sync_api import Page
from screenshots import choose_collective, inspect_program, open_browser, open_tab

SIZE = (1080, 700)
SHOWN_MILLISECONDS = 1800
MOST_BYTES = 1_500_000
TARGET = Path(__file__).parents[1] / "docs" / "images" / "explorer.gif"


def click(selector: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.locator(selector).first.click()

    return act


STEPS: tuple[Callable[[Page], None], ...] = (
    open_tab("Program"),
    click('[data-client="17"]'),
    open_tab("Clients"),
    choose_collective,
    open_tab("Memory"),
    open_tab("Cost"),
    open_tab("Mesh"),
)


def frames(page: Page) -> list[Image.Image]:
    """One picture after every step, with few colours, because flat areas compress well."""
    made = []
    for step in STEPS:
        step(page)
        page.mouse.move(0, 0)
        page.wait_for_timeout(700)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        made.append(picture.quantize(96, dither=Image.Dither.NONE))
    return made


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        file = Path(folder) / "round.html"
        explorer = workbench_widgets.Explorer(inspect_program())
        explorer.settings = {"height": SIZE[1]}
        explorer.to_html(file)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        page.goto(file.as_uri())
        page.wait_for_selector("section.wb")
        page.add_style_tag(
            content=".wb-pagehead, .wb-heighthandle { display: none } .wb-page { padding: 0 } "
            ".wb-shell { height: 100vh !important; border: 0; border-radius: 0 }"
        )
        first, *others = frames(page)
    first.save(TARGET, save_all=True, append_images=others, duration=SHOWN_MILLISECONDS, loop=0, optimize=True)
    size = TARGET.stat().st_size
    print(f"{TARGET}: {size / 1000:.0f} kB, {1 + len(others)} pictures")
    if size > MOST_BYTES:
        message = f"{TARGET.name} has {size} bytes, but at most {MOST_BYTES} fit in a README: omit a step."
        raise SystemExit(message)


if __name__ == "__main__":
    main()
