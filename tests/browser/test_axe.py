"""axe-core, the usual checker of accessibility, over every view by day and by night."""

import pytest
import records_examples as examples
import records_parts as parts
from axe_playwright_python.base import AXE_SCRIPT
from harness import Harness
from live_examples import FakeMonitor, FakeRun, sample
from playwright.sync_api import Locator

import widgets
from workbench.records import EventRecord, RunRecord

pytestmark = pytest.mark.browser

RULES = """async node => {
  const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(node, { resultTypes: ["violations"], runOnly });
  const said = (rule, each) => `${rule.id}: ${each.html.slice(0, 160)} (${each.failureSummary.split("\\n")[1]})`;
  return found.violations.flatMap(rule => rule.nodes.map(each => said(rule, each)));
}"""
EVENTS = tuple(
    EventRecord(where=f"cpu:{d}", name="dot", start_seconds=0.1 * d, seconds=0.5, kind=kind, stage="1")
    for d, kind in enumerate(("compute", "collective", "wait"))
)


def finished_run() -> FakeRun:
    run = FakeRun(rounds=4)
    run.finish(loss=(3.0, 1.0), accuracy=0.25)
    run.finish(loss=(2.0, 1.0), accuracy=0.5)
    return run


VIEWS = {
    "program": lambda: widgets.ProgramView(examples.fedavg_record(), examples.gradient_record()),
    "clients": lambda: widgets.ClientsView(examples.fedavg_record()),
    "mesh": lambda: widgets.MeshView(parts.mesh_record(), parts.cost_record()),
    "large mesh": lambda: widgets.MeshView(parts.mesh_record(clients=640, axes=(("x", 64), ("y", 10)))),
    "sharding": lambda: widgets.ShardingView(parts.sharding_record()),
    "hlo": lambda: widgets.HloView(examples.fedavg_record()),
    "cost": lambda: widgets.CostView(examples.fedavg_record()),
    "devices": lambda: widgets.DevicesView(FakeMonitor(sample(0, 1024, 2048), sample(1, 2048, 4096))),
    "run": lambda: widgets.RunView(finished_run()),
    "timeline": lambda: widgets.PictureView(RunRecord(name="round", engine="mesh", seconds=1.0, events=EVENTS)),
    "explorer": lambda: widgets.Explorer(examples.fedavg_record()),
}


def violations(view: Locator) -> list[str]:
    view.page.evaluate(f"() => {{ {AXE_SCRIPT} }}")
    return view.evaluate(RULES)


def act_on(view: Locator, name: str) -> None:
    """Brings up what is hidden at first: panels of chosen things, the other faces of a view."""
    if name == "hlo":
        view.get_by_role("button", name="all-reduce.1").click()
    if name == "program":
        view.locator('[data-stage="1"]').first.click()
    for folded in view.locator("details").all():
        folded.evaluate("node => node.open = true")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing_wrong_with(harness: Harness, name: str, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(VIEWS[name]())
    assert violations(view) == []
    act_on(view, name)
    assert violations(view) == []


@pytest.mark.parametrize("face", ["Graph", "Memory"])
def test_axe_finds_nothing_wrong_with_a_face_of_the_hlo_view(harness: Harness, face: str):
    view = harness.mount(widgets.HloView(examples.fedavg_record()))
    view.get_by_role("button", name=face, exact=True).click()
    assert violations(view) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_wrong_with_any_tab_of_the_explorer(harness: Harness, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(widgets.Explorer(examples.fedavg_record(), monitor=FakeMonitor(sample(0, 1024, 2048))))
    found = {}
    for tab in view.get_by_role("tab").all():
        tab.click()
        found[tab.text_content()] = violations(view)
    assert found == {name: [] for name in found}
