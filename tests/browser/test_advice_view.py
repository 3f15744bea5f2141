"""The advice tab: asked for, ranked, linked with the other views."""

import re

import pytest
import records_examples as examples
import workbench_widgets
from harness import Harness
from playwright.sync_api import Locator, expect
from visitor import open_tab

from workbench.advice import rule_sentences
from workbench.records.advice import (
    AdviceRecord,
    FindingRecord,
    GainRecord,
    SearchRecord,
    ShardingChoiceRecord,
    SpecGroupRecord,
)
from workbench.records.program import SourceLine

pytestmark = pytest.mark.browser

GAIN = GainRecord(quantity="peak bytes", before=2048.0, after=1024.0, verified=True, how="compiled")
DONATE = FindingRecord(
    rule="missing donation",
    what="1 KiB could be donated.",
    why="The state is kept beside its successor.",
    change="Pass `donate_argnums=0`.",
    evidence=("2 arguments match results",),
    weight=0.5,
    code="jax.jit(step, donate_argnums=0)",
    sources=(SourceLine(file="fedavg.py", line=12, function="step"),),
    instructions=("all-reduce.1",),
    axes=("clients",),
    gain=GAIN,
    compared=(GAIN,),
)
SMALL = FindingRecord(
    rule="precision",
    what="A product runs in float32.",
    why="It need not.",
    change="Use bfloat16.",
    evidence=("one dot",),
    weight=0.1,
)


def advises(*, found, progress, cancel):
    return AdviceRecord(name="step", target="here", findings=(DONATE, SMALL), checked=("donation", "precision"))


def open_advice(harness: Harness) -> tuple[workbench_widgets.Explorer, Locator]:
    made = workbench_widgets.Explorer(examples.fedavg_record(), advise=advises, view="advice")
    # Before it is mounted: the page of a synchronous Playwright hears nothing from other threads.
    made.answers.start_advice()
    assert made.answers.wait(20)
    view = harness.mount(made)
    expect(view.get_by_role("option")).to_have_count(2)
    return made, view


def test_tab_says_what_advice_is_before_it_is_asked_for(harness: Harness):
    made = workbench_widgets.Explorer(examples.fedavg_record(), advise=advises, rules=rule_sentences(), view="advice")
    view = harness.mount(made)
    expect(view.get_by_text("changes are compiled to verify their gains")).to_be_visible()
    expect(view.get_by_text("No advice has been requested yet.")).to_be_visible()
    expect(view.get_by_role("listitem")).to_have_text([rule.replace("`", "") for rule in rule_sentences()])


def test_advice_is_sought_when_it_is_asked_for(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    asked = []
    made = workbench_widgets.Explorer(examples.fedavg_record(), advise=advises, view="advice")
    monkeypatch.setattr(made.answers, "start_advice", lambda: asked.append(True))
    view = harness.mount(made)
    view.get_by_role("button", name="Find advice").click()
    assert asked == [True]


def test_findings_are_ranked_and_explained(harness: Harness):
    _, view = open_advice(harness)
    expect(view.get_by_role("tab", name=re.compile("^Advice"))).to_contain_text("2")
    expect(view.get_by_role("option").first).to_have_attribute("aria-selected", "true")
    detail = view.get_by_role("complementary", name="Details of the finding")
    expect(detail).to_contain_text("The state is kept beside its successor.")
    expect(detail).to_contain_text("2 KiB")
    expect(detail.get_by_role("button", name="Insert as cell")).to_be_visible()


def test_findings_are_chosen_by_keyboard_and_selected_everywhere(harness: Harness):
    made, view = open_advice(harness)
    view.get_by_role("option").first.focus()
    harness.page.keyboard.press("Enter")
    assert made.selection["instruction"] == "all-reduce.1"
    assert made.selection["line"] == "fedavg.py:12"
    harness.page.keyboard.press("ArrowDown")
    harness.page.keyboard.press("Enter")
    expect(view.get_by_role("complementary", name="Details of the finding")).to_contain_text("Use bfloat16.")


def test_badge_next_to_a_collective_leads_back_to_its_finding(harness: Harness):
    made, view = open_advice(harness)
    view.get_by_role("option").nth(1).click()
    open_tab(view, "Source and HLO")
    view.locator('[data-collective="all-reduce.1"] .wb-finding').click()
    expect(view.get_by_role("complementary", name="Details of the finding")).to_contain_text("1 KiB could be donated.")
    assert made.settings["view"] == "advice"
    open_tab(view, "Mesh")
    expect(view.locator("[data-axis=clients] + .wb-finding")).to_be_visible()


def group(pattern, *shape):
    return SpecGroupRecord(pattern=pattern, shape=shape, dtype="float32", leaves=(pattern,), size_bytes=4096)


def choice(name, seconds, specs, **more):
    return ShardingChoiceRecord(
        name=name, mesh={"data": 4}, specs=specs, seconds=seconds, peak_bytes=2**20, argument_bytes=2**19, **more
    )


FOUND = SearchRecord(
    name="step",
    chip="v5e",
    target="v5e:2x2",
    choices=(
        choice("found 1", 0.001, {"x": (("data",), ())}, how="compiled", pareto=True, sent_bytes={"data": 2048.0}),
        choice("found 2", 0.002, {"w": (("data",),)}, fits=False, chunk_size=4),
    ),
    groups=(group("x", 64, 8), group("w", 8)),
    planned_count=12,
    compiled_count=1,
    seconds_spent=1.0,
    ended="complete",
    arguments=("w", "x"),
)


@pytest.fixture
def searched(harness: Harness):
    """The view of a search that has ended, what was asked of it, and its place in the page."""
    asked = []

    def searches(*, lock, compiled, found, progress, cancel):
        asked.append((lock, compiled))
        found(FOUND)
        return FOUND

    made = workbench_widgets.Explorer(examples.fedavg_record(), advise=advises, search=searches, view="advice")
    made.answers.start_search()
    assert made.answers.wait(20)
    view = harness.mount(made)
    view.get_by_role("button", name="Search for shardings").click()
    return made, asked, view


def test_search_says_what_it_does_before_it_has_run(harness: Harness):
    made = workbench_widgets.Explorer(examples.fedavg_record(), search=lambda **asked: FOUND, view="advice")
    view = harness.mount(made)
    view.get_by_role("button", name="Search for shardings").click()
    expect(view.get_by_role("heading", name="How the search works")).to_be_visible()
    expect(view.get_by_role("button", name="Search shardings")).to_be_enabled()


def test_search_shows_what_each_choice_costs_and_its_specs(searched):
    _, _, view = searched
    rows = view.get_by_role("table", name="Shardings").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("2 KiB over data")
    expect(rows.nth(2)).to_contain_text("does not fit")
    expect(view.get_by_text("★ no other compiled choice is both faster and smaller")).to_be_visible()
    detail = view.get_by_role("complementary", name="Details of the shardings")
    expect(detail).to_contain_text("P('data')")
    rows.nth(2).click()
    expect(detail.get_by_role("heading", name="found 2")).to_be_visible()
    expect(detail.locator("pre")).to_contain_text("wb.jit(step, chunk_size=4)")
    expect(detail.get_by_role("button", name="Insert as cell")).to_be_visible()


def test_locked_specs_are_sent_with_the_next_search(searched):
    made, asked, view = searched
    view.get_by_role("checkbox", name="Lock x").check()
    view.get_by_role("checkbox", name="Lock w").check()
    view.get_by_role("checkbox", name="compile the best").uncheck()
    view.get_by_role("button", name="Search with 2 locked").click()
    assert made.answers.wait(20)
    expect(view.get_by_role("status").filter(has_text="running")).to_have_count(0)
    assert asked[-1] == ({"x": [["data"], []], "w": []}, False)


def test_lock_is_taken_away_where_it_was_set(searched):
    made, _, view = searched
    view.get_by_role("checkbox", name="Lock x").check()
    view.get_by_role("checkbox", name="Lock x").uncheck()
    expect(view.get_by_role("button", name="Lock a spec to search the rest")).to_be_disabled()
    assert made.settings["advice/locked"] == {}
