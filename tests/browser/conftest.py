"""A browser for the whole session, and a page with a fake comm for each test."""

from collections.abc import Iterator

import comm
import pytest
from chromium import MISSING, find_browser, open_browser
from harness import Harness, PageComm
from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    if find_browser() is None:
        (pytest.fail if request.config.getoption("--require-browser") else pytest.skip)(MISSING)
    with open_browser() as opened:
        yield opened


@pytest.fixture
def harness(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr(comm, "create_comm", lambda *args, **keys: PageComm(*args, **keys))
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    made = Harness(page)
    yield made
    page.close()
    PageComm.harness = None
    assert not made.errors
    assert not [url for url in made.requests if not url.startswith(("about:", "blob:", "data:"))]
