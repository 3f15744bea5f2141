"""Several runs over one another: what is drawn, ranked, left out and tested, by mouse and by keys."""

import re
from pathlib import Path

import numpy as np
import pytest
import workbench_widgets
from every_view import overlaid
from harness import Harness
from playwright.sync_api import Locator, expect

from workbench.measurement import History, overlay_runs
from workbench.records.live import RoundRecord

pytestmark = pytest.mark.browser


def names(view: Locator) -> list[str]:
    return view.locator("[data-result] button").all_text_contents()


def test_results_are_ranked_by_the_chosen_metric(harness: Harness):
    view = harness.mount(workbench_widgets.RunsView(overlaid()))
    expect(view.get_by_role("img", name="loss over the rounds of lr=0.3; lr=0.1; lr=9")).to_be_visible()
    assert names(view) == ["lr=0.3", "lr=0.1", "lr=9"]
    view.get_by_label("Metric").select_option("accuracy")
    view.get_by_label("Best is").select_option("most")
    expect(view.get_by_role("img", name="accuracy over the rounds of lr=0.3; lr=0.1")).to_be_visible()
    expect(view.get_by_role("status").filter(has_text="drawn")).to_have_text("2 of 2 results drawn")


def test_a_result_reports_its_interval_its_tests_and_why_it_is_left_out(harness: Harness):
    made = workbench_widgets.RunsView(overlaid())
    view = harness.mount(made)
    expect(view.locator('[data-result="lr=0.3"]')).to_contain_text(re.compile(r"1\.25.*1 to 1\.5"))
    details = view.get_by_role("complementary")
    expect(details).to_contain_text("loss is not finite in round 2")
    view.get_by_role("button", name="lr=0.3").press("Enter")
    expect(details).to_contain_text(re.compile("Difference in loss from.*lr=0.1.*-1.*0.5", re.DOTALL))
    assert made.settings["result"] == "lr=0.3"
    expect(view.get_by_role("button", name="lr=0.3")).to_be_focused()


def test_keys_choose_what_is_drawn_and_move_the_crosshair(harness: Harness):
    view = harness.mount(workbench_widgets.RunsView(overlaid()))
    view.get_by_label("Draw lr=9").press("Space")
    chart = view.get_by_role("img", name="loss over the rounds of lr=0.3; lr=0.1")
    expect(chart).to_be_visible()
    expect(view.get_by_label("Draw lr=9")).to_be_focused()
    chart.press("Home")
    expect(view.locator(".wb-plotread")).to_have_text(
        "round 0 · lr=0.1 3.25 · lr=0.3 3.25 · band 3 to 3.5 · band 3 to 3.5"
    )
    view.get_by_role("button", name="None").press("Enter")
    expect(view.get_by_role("img", name="loss: nothing is drawn")).to_be_visible()


def test_a_view_of_running_runs_follows_them(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workbench_widgets._overlay.poll", lambda *arguments: None)  # no other thread in a page
    monkeypatch.setattr(
        workbench_widgets.RunsView, "update_live", lambda self, **new: setattr(self, "live", {**self.live, **new})
    )
    history = History([RoundRecord(round=0, seconds=1.0, metrics={"loss": 3.0})])
    made = workbench_widgets.RunsView(
        overlay_runs({"a": history}).replace(running=True), again=lambda: overlay_runs({"a": history})
    )
    view = harness.mount(made)
    expect(view.get_by_role("status").filter(has_text="drawn")).to_have_text("1 of 1 result drawn; still running")
    history = History([*history, RoundRecord(round=1, seconds=1.0, metrics={"loss": 1.0, "accuracy": 0.5})])
    made.refresh()
    expect(view.locator('[data-result="a"]')).to_contain_text("1")
    expect(view.get_by_role("status").filter(has_text="drawn")).to_have_text("1 of 1 result drawn")
    expect(view.get_by_label("Metric").locator("option")).to_have_text(["loss", "accuracy"])


def test_an_exported_page_of_many_trials_still_chooses(harness: Harness, tmp_path: Path):
    random = np.random.default_rng(0)

    def run(scale: float) -> History:
        values = scale * np.exp(-np.arange(20) / 5) + 0.01 * random.normal(size=20)
        return History([RoundRecord(round=r, seconds=1.0, metrics={"loss": float(v)}) for r, v in enumerate(values)])

    made = workbench_widgets.RunsView(overlay_runs({f"trial {i}": [run(i + 1.0), run(i + 1.1)] for i in range(20)}))
    file = tmp_path / "runs.html"
    made.to_html(file, author="")
    harness.page.set_content(file.read_text(encoding="utf-8"))
    view = harness.page.locator(".wb-shell")
    expect(view.get_by_role("status").filter(has_text="drawn")).to_have_text("6 of 20 results drawn")
    view.get_by_role("button", name="All").click()
    expect(view.get_by_role("status").filter(has_text="drawn")).to_have_text("20 of 20 results drawn")
