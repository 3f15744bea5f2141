"""Finds a Chromium-like browser for the browser tests and the README's screenshots."""

import itertools
import os
import shutil
from pathlib import Path

from workbench.errors import CommandError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
PLAYWRIGHT = (  # install location of `playwright install chromium`, below the home folder
    ".cache/ms-playwright/chromium-*/chrome-linux*/chrome",
    "Library/Caches/ms-playwright/chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
    "AppData/Local/ms-playwright/chromium-*/chrome-win*/chrome.exe",
)
FIX = "sudo apt-get install --no-install-recommends chromium   (or: playwright install chromium)"


def find_browser() -> Path | None:
    """Finds a browser: the one named by `CHROMIUM`, or on the search path, in the usual places or from Playwright."""
    if named := os.environ.get("CHROMIUM"):
        if executable := shutil.which(named):
            return Path(executable)
        msg = (
            f"The environment variable CHROMIUM is set to {named!r}, but there is no program of that name. CHROMIUM "
            "must name a working Chromium, Chrome or Edge: correct the variable, or unset it to search the usual "
            "places."
        )
        raise CommandError(msg)
    on_path = (Path(executable) for executable in map(shutil.which, NAMES) if executable)
    in_place = (Path(place) for place in PLACES if Path(place).is_file())
    of_playwright = (path for pattern in PLAYWRIGHT for path in sorted(Path.home().glob(pattern)))
    return next(itertools.chain(on_path, in_place, of_playwright), None)
