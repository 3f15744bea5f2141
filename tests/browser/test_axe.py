"""axe-core, the usual checker of accessibility, over every view by day and by night."""

import pytest
import records_examples as examples
import workbench_widgets
from axe_playwright_python.base import AXE_SCRIPT
from every_view import VIEWS, act_on
from harness import Harness
from live_examples import FakeMonitor, sample
from playwright.sync_api import Locator
from visitor import open_every_tab

pytestmark = pytest.mark.browser

RULES = """async node => {
  const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const found = await axe.run(node, { resultTypes: ["violations"], runOnly });
  const said = (rule, each) => `${rule.id}: ${each.html.slice(0, 160)} (${each.failureSummary.split("\\n")[1]})`;
  return found.violations.flatMap(rule => rule.nodes.map(each => said(rule, each)));
}"""


def violations(view: Locator) -> list[str]:
    view.page.evaluate(f"() => {{ {AXE_SCRIPT} }}")
    return view.evaluate(RULES)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_axe_finds_nothing_wrong_with(harness: Harness, name: str, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(VIEWS[name]())
    assert violations(view) == []
    act_on(view, name)
    assert violations(view) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_wrong_with_any_tab_of_the_explorer(harness: Harness, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(
        workbench_widgets.Explorer(examples.fedavg_record(), monitor=FakeMonitor(sample(0, 1024, 2048)))
    )
    found = {}
    for name in open_every_tab(view):
        found[name] = violations(view)
    assert found == {name: [] for name in found}
