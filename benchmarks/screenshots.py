"""Makes the documentation's pictures: views of real programs and of a recorded profile, light and dark.

Run `python benchmarks/screenshots.py` for the pictures in `docs/images`, or
`python benchmarks/screenshots.py --all FOLDER` for every view. It needs Chromium or Chrome.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import digits_round
import nnx_transformer
import workbench_widgets
from chromium import open_browser
from PIL import Image
from playwright.sync_api import Browser, Page

import workbench as wb
from workbench.records.compiled import ProgramRecord

WIDTH, HEIGHT = 1000, 600  # wide enough for two panes, small enough to be read in a column of text
WIDER = {"operations": 1240}
PAGES = ("operations", "client", "collective", "memory", "sharding", "timeline")  # the pictures that pages show
PROFILE = Path(__file__).parents[1] / "tests" / "recorded" / "tpu_v6e_4chips_host_offload.xplane.pb"


def inspect_program() -> ProgramRecord:
    """A round of federated averaging on real digits."""
    wb.simulate_devices(8)
    mesh = wb.make_mesh(clients=4, model=2)
    arguments, counts = digits_round.call()
    with jax.set_mesh(mesh):
        return wb.inspect(digits_round.fedavg, on="v5e", examples_per_client=counts)(*arguments)


def inspect_transformer() -> ProgramRecord:
    """A train step of a Flax NNX transformer that does not use the workbench."""
    mesh, arguments = nnx_transformer.call()
    with jax.set_mesh(mesh):
        return wb.inspect(nnx_transformer.train_step, on="v5e")(*arguments)


def choose_client(page: Page) -> None:
    page.locator('[data-client="17"]').first.click()


def open_tab(*names: str) -> Callable[[Page], None]:
    """Opens a tab, and the named items in the tab."""

    def act(page: Page) -> None:
        page.get_by_role("tab", name=names[0], include_hidden=True).dispatch_event("click")  # of any place
        for name in names[1:]:
            page.get_by_text(name, exact=True).first.click()

    return act


def choose_collective(page: Page) -> None:
    open_tab("Source and HLO")(page)
    page.locator("[data-collective]").first.click()


def choose_kernel(page: Page) -> None:
    open_tab("Sharding")(page)
    page.get_by_placeholder("name, type, axis").fill("model.blocks up")
    page.get_by_text("kernel", exact=True).first.click()


def take(
    browser: Browser, page_file: Path, picture: Path, act: Callable[[Page], None], width: int, *, dark: bool
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": HEIGHT + 60},
        device_scale_factor=1.5,
        color_scheme="dark" if dark else "light",
    )
    page.goto(page_file.as_uri())
    page.wait_for_selector("section.wb")
    act(page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(900)
    taken = Image.open(io.BytesIO(page.locator("section.wb").screenshot())).convert("RGB")
    taken.quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)  # flat areas: a third of the bytes
    page.close()
    print(picture)


def main(folder: Path, *, everything: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wb.simulate_devices(8)
    programs = {
        "round": workbench_widgets.Explorer(inspect_program()),
        "transformer": workbench_widgets.Explorer(inspect_transformer()),
        "profile": workbench_widgets.ProfileView(wb.open_profile(PROFILE)),
    }
    tabs = ("Operations", "Source and HLO", "Sharding", "Memory", "Cost", "Mesh")
    pictures = {name.lower().replace(" ", "-"): ("transformer", open_tab(name)) for name in tabs}
    pictures |= {
        "client": ("round", choose_client),
        "clients": ("round", open_tab("Clients")),
        "collective": ("transformer", choose_collective),
        "sharding": ("transformer", choose_kernel),
        "timeline": ("profile", open_tab("Timeline")),
    }
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(open_browser())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, view in programs.items():
            view.settings = {"height": HEIGHT}
            view.to_html(place / f"{name}.html")
        for name, (program, act) in pictures.items():
            if name not in PAGES and not everything:
                continue
            for dark in (False, True):
                file = folder / f"{name}-{'dark' if dark else 'light'}.png"
                take(browser, place / f"{program}.html", file, act, WIDER.get(name, WIDTH), dark=dark)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--all", action="store_true", help="every view, not only the pages' views")
    arguments = parser.parse_args()
    main(arguments.folder, everything=arguments.all)
