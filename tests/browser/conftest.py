"""A browser for the whole session, and a page with a fake comm for each test."""

from collections.abc import Iterator
from pathlib import Path

import comm
import pytest
from chromium import MISSING, find_browser, open_browser
from harness import Harness, PageComm
from lab import end_kernels, local_page, run_lab
from playwright.sync_api import Browser, Page, expect

expect.set_options(timeout=30_000)  # for a machine that is busy; what holds at once is not waited for


# Of a module, not of the session: while Playwright is open its event loop runs, and no other test could start one.
@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    if find_browser() is None:
        (pytest.fail if request.config.getoption("--require-browser") else pytest.skip)(MISSING)
    with open_browser() as opened:
        yield opened


@pytest.fixture
def harness(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr(comm, "create_comm", lambda *args, **keys: PageComm(*args, **keys))
    # A page of the synchronous Playwright may be used from the test's own thread only.
    monkeypatch.setattr("workbench_widgets._base._in_background", lambda work: work())
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    made = Harness(page)
    yield made
    made.close()
    assert not made.errors
    assert not [url for url in made.requests if not url.startswith(("about:", "blob:", "data:"))]


@pytest.fixture(scope="session")
def lab_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that JupyterLab serves; a test puts its notebook there."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="session")
def server(lab_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the one JupyterLab, and its home."""
    home = tmp_path_factory.mktemp("home")
    with run_lab(lab_root, home) as address:
        yield address, home


@pytest.fixture(scope="module")
def lab(browser: Browser, server: tuple[str, Path]) -> Iterator[str]:
    """The address of JupyterLab, without kernels and with its first theme."""
    address, home = server
    yield address
    end_kernels(address)
    for theme in home.rglob("themes.jupyterlab-settings"):
        theme.unlink()


@pytest.fixture
def lab_page(browser: Browser, lab: str) -> Iterator[Page]:
    with local_page(browser) as page:
        yield page
