"""The launch view in a page, and in a real JupyterLab with real processes."""

import os
from pathlib import Path

import psutil
import pytest
import workbench_widgets
from accessibility import nameless, weak_contrasts
from faults import living
from harness import Harness
from lab import open_notebook, run_all, set_theme, write_notebook
from launch_examples import FakeLaunched, graph
from playwright.sync_api import Locator, Page, expect
from workbench_widgets._launch import LaunchView

pytestmark = pytest.mark.browser


@pytest.fixture
def _send_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # A page of the synchronous Playwright may be used from the test's own thread only: no timers, no threads.
    monkeypatch.setattr(
        workbench_widgets.WorkbenchWidget, "update_live", lambda self, **values: _set_live(self, values)
    )
    monkeypatch.setattr("workbench_widgets._launch.poll", lambda *arguments: None)


def _set_live(widget: workbench_widgets.WorkbenchWidget, values: dict[str, object]) -> None:
    widget.live = {**widget.live, **values}


def mark(view: Locator, label: str) -> Locator:
    return view.locator(f'g[data-node="{label}"]')


@pytest.mark.usefixtures("_send_at_once")
def test_a_program_before_launch_can_be_looked_through(harness: Harness):
    view = harness.mount(LaunchView(graph()))
    expect(view.locator(".wb-big")).to_have_text("not launched")
    expect(view.get_by_role("button", name="Stop")).to_be_hidden()
    mark(view, "store/0").click()
    expect(view.locator(".wb-panel")).to_contain_text(".get(), .put()")
    expect(view.locator(".wb-panel")).to_contain_text("workers/0, workers/1")
    assert weak_contrasts(view) == []
    assert nameless(view) == []


@pytest.mark.usefixtures("_send_at_once")
def test_marks_rows_and_words_follow_the_nodes(harness: Harness):
    launched = FakeLaunched()
    made = LaunchView(launched)
    view = harness.mount(made)
    expect(view.locator(".wb-big")).to_have_text("running · 3 s")
    expect(mark(view, "workers/1")).to_have_attribute("aria-label", "workers/1: finished")
    row = view.locator('tr[data-node="store/0"]')
    expect(row.locator("td")).to_have_text(["store/0", "● serving", "now", "12", "3", "0.50", "–", "0", "last"])
    launched._error, launched.calls = "Traceback\nValueError: no data\n", 5
    made.refresh()
    expect(mark(view, "store/0")).to_have_attribute("aria-label", "store/0: raised")
    expect(row.locator("td").nth(1)).to_have_text("✗ raised")
    expect(row.locator("td").last).to_have_text("ValueError: no data")
    expect(view.locator('[data-group="store"] .wb-told')).to_have_text("✗ 1 raised")
    assert weak_contrasts(view) == []
    assert nameless(view) == []


@pytest.mark.usefixtures("_send_at_once")
def test_a_chosen_node_shows_its_log_and_a_group_narrows_the_table(harness: Harness):
    made = LaunchView(FakeLaunched())
    view = harness.mount(made)
    view.locator('tr[data-node="store/0"]').click()
    assert made.selection == {"node": "store/0"}
    made.refresh()
    expect(view.get_by_role("log")).to_have_text("line 0line 1line 2")
    expect(view.get_by_role("img", name="calls per second: 12 to 12, now 12")).to_be_visible()
    view.locator('[data-group="workers"] text').first.click()
    expect(view.locator("tr[data-node]")).to_have_count(2)
    view.get_by_label("Show nodes of").select_option("failed")
    expect(view.locator("tr[data-node]")).to_have_count(0)
    view.get_by_label("Show nodes of").select_option("")
    view.get_by_role("button", name="CPU").click()
    expect(view.locator("th[aria-sort=descending]")).to_have_text("CPU")


@pytest.mark.usefixtures("_send_at_once")
def test_nodes_are_reached_by_keyboard(harness: Harness):
    made = LaunchView(FakeLaunched())
    view = harness.mount(made)
    mark(view, "store/0").focus()
    harness.page.keyboard.press("ArrowRight")
    harness.page.keyboard.press("Enter")
    expect(view.locator(".wb-panel h2")).to_have_text("workers/0")
    harness.page.keyboard.press("Escape")
    assert made.selection == {}


PROGRAM = """
import workbench as wb
from workbench.launch import Program, PyNode, ServiceNode, current_node, launch
class Store:
    def put(self, value):
        current_node().log(f"stored {value}")
        return value
def work(store):
    node, value = current_node(), 0
    while not node.wait_for_stop(0.05):
        value = store.put(value + 1)
program = Program("sensors")
with program.group("store"):
    store = program.add_node(ServiceNode(Store))
with program.group("workers"):
    for _ in range(2):
        program.add_node(PyNode(work, store))
wb.show(program)"""
LAUNCH = """
launched = launch(program, "processes")
wb.show(launched)
print("pids", *[state.where.split()[1] for state in launched.state()])"""
STATUS = """() => {
  const cells = Array.from(window.jupyterapp.shell.currentWidget.content.model.cells);
  return cells.filter(c => c.type === "code").flatMap(c => c.outputs.toJSON()).map(o => o.text ?? "").join("");
}"""


def printed_pids(page: Page) -> set[int]:
    return {
        int(word) for line in page.evaluate(STATUS).splitlines() if line.startswith("pids") for word in line.split()[1:]
    }


def wait_until_gone(page: Page, pids: set[int]) -> None:
    for _ in range(1_200):
        if not living(pids):
            return
        page.wait_for_timeout(100)
    assert not living(pids)


@pytest.mark.lab
def test_in_jupyterlab_a_program_is_drawn_launched_watched_and_stopped_while_a_cell_awaits_it(
    lab_page: Page, lab: str, lab_root: Path
):
    open_notebook(lab_page, lab, write_notebook(lab_root, "stop.ipynb", PROGRAM, LAUNCH, "codes = await launched"))
    running = "() => void window.jupyterapp.commands.execute('notebook:run-all-cells')"
    lab_page.evaluate(running)
    before, view = lab_page.locator("section.wb").nth(0), lab_page.locator("section.wb").nth(1)
    expect(before.locator(".wb-big")).to_have_text("not launched", timeout=120_000)
    expect(view.locator('[data-group="workers"] .wb-told')).to_have_text("▶ 2 running", timeout=120_000)
    expect(view.locator('tr[data-node="store/0"] td').last).to_contain_text("stored", timeout=120_000)
    expect(view.locator('tr[data-node="store/0"] td').nth(6)).to_contain_text("MiB")
    expect(view.locator('tr[data-node="store/0"] td').nth(3)).not_to_have_text("–")
    mark(view, "store/0").click()
    expect(view.get_by_role("log")).to_contain_text("stored 2", timeout=120_000)
    grounds = []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(lab_page, theme)
        grounds.append(view.evaluate("node => getComputedStyle(node).backgroundColor"))
        assert weak_contrasts(view) == []
    assert grounds[0] != grounds[1]
    pids = printed_pids(lab_page)
    assert living(pids) == pids
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".wb-big")).to_contain_text("stopped", timeout=120_000)
    wait_until_gone(lab_page, pids)


@pytest.mark.lab
@pytest.mark.parametrize("how", ["restarted", "killed"])
def test_nothing_of_a_program_is_left_when_its_kernel_is_gone(lab_page: Page, lab: str, lab_root: Path, how: str):
    cells = (PROGRAM, LAUNCH, "import os; print('kernel', os.getpid())")
    open_notebook(lab_page, lab, write_notebook(lab_root, f"{how}.ipynb", *cells))
    assert run_all(lab_page) == []
    pids = printed_pids(lab_page)
    assert len(pids) == 3
    kernel = int(lab_page.evaluate(STATUS).rpartition("kernel ")[2])
    helpers = {child.pid for child in psutil.Process(kernel).children(recursive=True)}
    assert pids <= helpers
    if how == "killed":
        os.kill(kernel, 9)
    else:
        lab_page.evaluate(
            "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
        )
    wait_until_gone(lab_page, helpers)
