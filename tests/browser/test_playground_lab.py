"""The playground in a real JupyterLab: an experiment without code, a second one beside it, and its code in a cell."""

import json
import os
from pathlib import Path

import pytest
from lab import open_notebook, run_all, set_theme, write_notebook
from playwright.sync_api import Page, expect
from test_axe import violations
from test_lab import ask_kernel

pytestmark = [pytest.mark.browser, pytest.mark.lab]

OPEN = """
import workbench as wb
play = wb.playground(clients=8, rounds=10, local_steps=4)
play"""


def test_an_experiment_is_chosen_run_compared_and_taken_along(lab_page: Page, lab: str, lab_root: Path) -> None:
    open_notebook(lab_page, lab, write_notebook(lab_root, "play.ipynb", OPEN))
    assert run_all(lab_page) == []
    view = lab_page.locator("section.wb")
    begin = view.get_by_role("button", name="Run", exact=True)
    begin.click()
    rows = view.get_by_role("table", name="Experiments").locator("tbody tr")
    expect(rows).to_have_count(1, timeout=180_000)
    expect(begin).to_be_enabled(timeout=180_000)

    skew = view.get_by_label("label skew (α)")
    held = view.get_by_role("img", name="Labels per client: 8 clients")
    before = held.get_attribute("aria-label")
    skew.focus()
    for _ in range(8):
        lab_page.keyboard.press("ArrowRight")
    expect(skew).to_have_attribute("aria-valuetext", "none")
    expect(held).not_to_have_attribute("aria-label", before or "")
    view.get_by_text("More settings").click()
    view.get_by_label("compression").select_option("top 10 %")
    begin.click()
    expect(rows).to_have_count(2, timeout=180_000)
    expect(begin).to_be_enabled(timeout=180_000)
    expect(rows.nth(1)).to_contain_text("top 10 %")
    ran = json.loads(
        ask_kernel(
            lab_page,
            "__import__('json').dumps([play.experiment.settings.compression, "
            "play.experiment.settings.alpha, play.experiment.run.finished])",
        ).strip("'")
    )
    assert ran == ["top 10 %", float("inf"), 10]
    shown = float(rows.nth(1).locator("td").nth(2).inner_text().removesuffix(" %"))
    assert shown == pytest.approx(
        100 * float(ask_kernel(lab_page, "play.experiment.run.history[-1].metrics['test accuracy']")), abs=0.06
    )

    cell = view.get_by_label("The notebook cell that does the same")
    expect(cell).to_contain_text('data.digits(8, alpha=float("inf"), seed=0)')
    expect(cell).to_contain_text("aggregator=algorithms.top_k_mean(0.1)")
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(lab_page, theme)
        assert violations(view) == []
        if folder := os.environ.get("WORKBENCH_PICTURES"):
            view.screenshot(path=f"{folder}/playground-{theme.split()[1].lower()}.png")
    rows.nth(0).get_by_role("button").click()
    expect(rows).to_have_count(1)
    view.get_by_role("button", name="Insert as cell").click()
    last = lab_page.locator(".jp-Notebook .jp-CodeCell").last
    expect(last).to_contain_text("aggregator=algorithms.top_k_mean(0.1)")


def test_settings_that_do_not_go_together_are_reported_and_nothing_is_lost(
    lab_page: Page, lab: str, lab_root: Path
) -> None:
    open_notebook(lab_page, lab, write_notebook(lab_root, "refused.ipynb", OPEN))
    assert run_all(lab_page) == []
    view = lab_page.locator("section.wb")
    view.get_by_label("algorithm").select_option("SCAFFOLD")
    view.get_by_text("More settings").click()
    view.get_by_label("compression").select_option("8 bits")
    view.get_by_role("button", name="Run", exact=True).click()
    reported = view.get_by_role("alert").filter(has_text="SCAFFOLD sends two values")
    expect(reported.first).to_be_visible()
    expect(view.get_by_label("compression")).to_have_value("8 bits")
    expect(view.get_by_role("button", name="Run", exact=True)).to_be_enabled()
