"""Every view at four widths, in JupyterLab and as an exported page: drawn, whole, and reachable."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import open_notebook, run_all, write_notebook
from pixels import faults
from playwright.sync_api import Browser, Locator, Page
from visitor import open_every_tab, open_tab

from workbench.render import display_object

pytestmark = [pytest.mark.browser, pytest.mark.lab]

WIDTHS = (1400, 1000, 800, 540)  # the last leaves as much as 800 beside a sidebar
CELL = """from every_view import VIEWS, EVENTS, finished_run
import records_examples as examples, workbench_widgets
from live_examples import FakeMonitor, sample
from workbench.records.run import RunRecord
explorer = workbench_widgets.Explorer(
    examples.fedavg_record(), monitor=FakeMonitor(sample(0, 1024, 2048), sample(1, 2048, 4096)), rounds=finished_run(),
    run=RunRecord(name="round", engine="mesh", seconds=1.0, events=EVENTS))
runs, compare = VIEWS["runs"](), VIEWS["compare"]()
_ = [each.to_html(f"{name}.html") for name, each in {"explorer": explorer, "runs": runs, "compare": compare}.items()]
display(explorer, runs, compare)"""

# The gradient of a step: one collective for several lines, below two functions.
COMBINED = """import jax, jax.numpy as jnp
import workbench as wb

def encoder_of_the_model(weights, x):
    x = jnp.tanh(x @ weights[0])
    return jnp.tanh(x @ weights[1])

@jax.jit
def train_step(weights, x):
    return jax.grad(lambda w: jnp.mean(encoder_of_the_model(w, x) ** 2))(weights)

rows = jax.NamedSharding(wb.make_mesh(data=8), jax.P("data"))
display(wb.explore(train_step)([jnp.ones((32, 64)), jnp.ones((64, 32))], jax.device_put(jnp.ones((16, 32)), rows)))"""


@pytest.fixture(scope="module")
def page(browser: Browser, lab: str, lab_root: Path) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": WIDTHS[0], "height": 900})
    here = f"import sys, workbench; sys.path.append({str(Path(__file__).parent)!r}); workbench.simulate_devices(8)"
    open_notebook(page, lab, write_notebook(lab_root, "pixels.ipynb", here, CELL, COMBINED))
    assert run_all(page) == []
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    yield page
    page.close()


def look(page: Page, view: Locator, widths: tuple[int, ...] = WIDTHS) -> list[str]:
    """The faults of a view with all of its tabs at each width."""
    found = []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        view.scroll_into_view_if_needed()
        for tab in open_every_tab(view) if view.get_by_role("tab").count() else ("",):
            view.get_by_text("Loading the view …").locator("visible=true").wait_for(state="hidden")
            faces = view.locator(".wb-faces button").locator("visible=true")
            for face in (None, *reversed(faces.all())):  # the first one last: as it was found
                if face:
                    face.click()
                found += [f"{width} {tab}: {each}" for each in settled(page, view)]
    return found


def settled(page: Page, view: Locator) -> list[str]:
    """The faults of a view once its boxes have settled."""
    for _ in range(75):
        page.wait_for_timeout(100)
        if not (seen := faults(view)):
            break
    return seen


def test_views_in_jupyterlab_are_drawn_and_reachable(page: Page):
    views = page.locator("section.wb")
    assert [fault for number in range(3) for fault in look(page, views.nth(number))] == []


# Of every name of a line: its text, its number of lines, and whether it or something else is drawn at its ends.
PLACES = r"""panel => {
  const found = [];
  const walker = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode())
    for (const place of node.data.matchAll(/In.\[\d+\]:\d+|encoder_of_the_model|train_step/g)) {
      const range = document.createRange();
      range.setStart(node, place.index);
      range.setEnd(node, place.index + place[0].length);
      if (!node.parentElement.checkVisibility()) continue;
      node.parentElement.scrollIntoView({ block: "center" });
      const boxes = [...range.getClientRects()];
      const ends = [[boxes[0].left + 2, boxes[0]], [boxes.at(-1).right - 2, boxes.at(-1)]];
      const drawn = ends.every(([x, box]) =>
        node.parentElement.contains(document.elementFromPoint(x, box.top + box.height / 2)));
      found.push([place[0].replace("\u00a0", " "), boxes.length, drawn]);
    }
  return found;
}"""


@pytest.mark.parametrize("width", WIDTHS)
def test_call_path_of_a_collective_is_drawn_and_whole(page: Page, width: int):
    page.set_viewport_size({"width": width, "height": 900})
    view = page.locator("section.wb").nth(3)
    view.scroll_into_view_if_needed()
    open_tab(view, "Source and HLO")
    view.get_by_role("treegrid", name="Collectives, largest first").locator("[data-row]").first.click()
    panel = view.locator(".wb-detail").locator("visible=true").filter(has=page.get_by_label("Call path"))
    panel.get_by_text("Why", exact=True).wait_for()
    places = panel.evaluate(PLACES)
    path = panel.get_by_label("Call path").locator("li").all_inner_texts()
    assert any("encoder_of_the_model" in step for step in path)
    assert {name for name, _, _ in places} >= {"In [3]:5", "In [3]:6", "train_step", "encoder_of_the_model"}
    assert [place for place in places if place[1:] != [1, True]] == []
    assert settled(page, view) == []  # with a selection, too


def test_what_stages_send_is_in_sight_in_narrow_views(page: Page):
    page.set_viewport_size({"width": 800, "height": 900})
    view = page.locator("section.wb").first
    open_tab(view, "Cost")
    table = view.get_by_role("table", name="Cost of stages").first
    table.scroll_into_view_if_needed()
    edge = view.bounding_box()
    last = table.get_by_role("columnheader", name="sent").last.bounding_box()
    assert edge
    assert last
    assert last["x"] + last["width"] <= edge["x"] + edge["width"]


def test_exported_views_are_drawn_and_reachable(page: Page, browser: Browser, lab_root: Path):
    alone = browser.new_page()
    for name in ("explorer", "runs", "compare"):
        alone.goto((lab_root / f"{name}.html").as_uri())
        assert look(alone, alone.locator("section.wb"), (WIDTHS[0], WIDTHS[-1])) == [], name
    alone.close()


def test_faults_are_seen(browser: Browser):
    page = browser.new_page()
    page.set_content(
        "<main><svg style='width:2px;height:9px'></svg><canvas></canvas><div style='height:9px;overflow:auto'><p "
        "style='height:8px;overflow:auto'>a<br>b</p></div><p style='height:9px;overflow:hidden'>a<br>b</p>"
        "<p style='width:9px;overflow:auto;scrollbar-width:none'>word</p></main>"
    )
    kinds = [fault.split(":")[0] for fault in faults(page.locator("main"))]
    assert kinds == ["no box", "nothing drawn", "scrolls in what scrolls", "cut off", "scrolls without a sign"]
    page.close()


# Of every word its top and bottom: a word on two lines is twice as high.
WORDS = r"""() => [...document.querySelectorAll("pre")].flatMap((pre) =>
  [...pre.firstChild.data.matchAll(/\S+/g)].map((word) => {
    const range = document.createRange();
    range.setStart(pre.firstChild, word.index);
    range.setEnd(pre.firstChild, word.index + word[0].length);
    const box = range.getBoundingClientRect();
    return [word[0], box.top, box.height];
  }))"""


def test_cards_break_lines_between_words_and_keep_columns(browser: Browser):
    lines = ["Why f communicates", "a sentence of short words that a narrow card has to wrap " * 4]
    lines += ["  " + "  ".join(f"{share} %" for share in range(40)) + "  loop.py:23"]
    page = browser.new_page(viewport={"width": 420, "height": 600})
    card = display_object("Why", "\n".join(lines))["text/html"]
    page.set_content(f"<style>pre {{ word-break: break-all }}</style>{card}")  # the rule of JupyterLab
    words = page.evaluate(WORDS)
    page.close()
    assert len(words) > 100
    assert {round(height) for _, _, height in words} == {round(words[0][2])}
    assert len({round(top) for text, top, _ in words if text in ("%", "loop.py:23")}) == 1
