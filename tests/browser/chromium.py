"""Finds a Chromium and says loudly when there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--force-prefers-reduced-motion",
)  # fmt: skip
MISSING = (
    "NO BROWSER FOUND: the views were NOT tested in a browser. Install one (Debian, Ubuntu: "
    "`apt-get install chromium`; anywhere: `playwright install chromium`) or name one in the environment "
    "variable CHROMIUM."
)


def find_browser() -> str | None:
    """The path of a browser: $CHROMIUM, one on the PATH, or playwright's own; None if there is none."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if Path(named).exists() else shutil.which(named)
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is not None:
        return found
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        return str(own) if own.exists() else None


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
