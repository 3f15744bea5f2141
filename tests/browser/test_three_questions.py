"""The path that the notebook of three questions writes down, clicked by somebody who only looks at the page."""

import re
from pathlib import Path

import pytest
from lab import copy_until, open_notebook, run_all
from playwright.sync_api import Page, expect
from visitor import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.lab, pytest.mark.notebook, pytest.mark.slow]

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07-three-questions.ipynb"
MOST_CLICKS = 5


def test_three_questions_are_answered_within_five_clicks_each(lab_page: Page, lab: str, lab_root: Path):
    open_notebook(lab_page, lab, copy_until(lab_root, NOTEBOOK, "explorer"))  # tests/notebooks runs all of it
    lab_page.set_default_timeout(240_000)
    assert run_all(lab_page) == []
    lab_page.set_default_timeout(30_000)
    view = lab_page.locator("section.wb").first

    which_line = Visitor()
    which_line.open(view, "Source and HLO")
    first = view.get_by_role("treegrid", name="Collectives, largest first").locator("[data-row]").first
    expect(first).to_contain_text("clients")
    expect(first).to_contain_text("wb.reduce_mean(update)")
    which_line.click(first)
    details = view.get_by_role("complementary", name="Details of the selected instruction or line")
    expect(details).to_contain_text("2 groups of 4")
    which_line.click(view.get_by_role("button", name="Source and listings"))
    expect(view.get_by_label("Your source, In [3]").locator(".wb-cm-chosen")).to_contain_text("wb.reduce_mean(update)")
    assert which_line.clicks <= MOST_CLICKS

    straggler = Visitor()
    straggler.open(view, "Clients")
    panel = view.get_by_role("tabpanel")
    straggler.click(panel.get_by_role("button", name="client 11"))
    said = panel.locator(".wb-panel")
    expect(said).to_contain_text("The slowest of 32: 2.05 × the mean time (simulated).")
    expect(said).to_contain_text("of its excess over the mean is computing")
    assert straggler.clicks <= MOST_CLICKS

    fits = Visitor()
    fits.open(view, "Cost")
    fits.click(view.locator(".wb-whatif summary").first)
    fits.slide(view.get_by_role("slider", name="model size"), "× 2")
    fits.slide(view.get_by_role("slider", name="devices, along clients"), "16")
    answer = view.locator(".wb-whatif .wb-tile", has_text="peak memory")
    expect(answer).to_contain_text("estimated")
    expect(answer).to_contain_text("of 16 GiB: fits")
    expect(answer).to_contain_text(re.compile(r"× (1\.9\d|2(\.0\d)?) of cpu x 8"))  # all but the data doubles
    assert fits.clicks <= MOST_CLICKS
