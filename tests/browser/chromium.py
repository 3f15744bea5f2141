"""Finds a Chromium and says loudly when there is none."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from workbench.cli._browser import find_browser as find_browser

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-prefers-reduced-motion",
)  # fmt: skip
MISSING = (
    "NO BROWSER FOUND: the views were NOT tested in a browser. Install one (Debian, Ubuntu: "
    "`apt-get install chromium`; anywhere: `playwright install chromium`) or name one in the environment "
    "variable CHROMIUM."
)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless browser; closed afterwards."""
    path = find_browser()
    if path is None:
        raise RuntimeError(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield browser
        browser.close()
