"""Ten questions that a researcher comes with, each answered in a real JupyterLab within five clicks."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import open_notebook, run_all, write_notebook
from playwright.sync_api import Browser, Locator, Page, expect
from tasks_notebook import CELLS, VIEWS
from test_lab import ask_kernel
from visitor import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.lab, pytest.mark.slow]

MOST_CLICKS = 5


@pytest.fixture(scope="module")
def page(browser: Browser, lab: str, lab_root: Path) -> Iterator[Page]:
    """One notebook, run once, with every program opened in it."""
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    open_notebook(opened, lab, write_notebook(lab_root, "tasks.ipynb", *(cell.strip() for cell in CELLS)))
    opened.set_default_timeout(240_000)
    assert run_all(opened) == []
    opened.set_default_timeout(30_000)
    yield opened
    opened.close()
    assert not wrong


@pytest.fixture
def visitor() -> Iterator[Visitor]:
    made = Visitor()
    yield made
    assert 0 < made.clicks <= MOST_CLICKS


def view(page: Page, name: str) -> Locator:
    """What the notebook shows of one of its programs."""
    found = page.locator("section.wb").nth(VIEWS.index(name))
    found.scroll_into_view_if_needed()
    return found


@pytest.mark.parametrize(
    ("name", "axis", "line"),
    [
        ("round", "clients", "wb.reduce_mean(update)"),
        ("nested", "clients", 'wb.reduce_mean(update, over="clients")'),
        ("plain", "data", "self.down(jax.nn.gelu(self.up("),
    ],
)
def test_1_line_of_the_biggest_collective(page: Page, visitor: Visitor, name: str, axis: str, line: str):
    shown = view(page, name)
    visitor.open(shown, "Source and HLO")
    first = shown.get_by_role("treegrid", name="Collectives, largest first").locator("[data-row]").first
    expect(first).to_contain_text(axis)
    expect(first).to_contain_text("all-reduce")
    visitor.click(first)
    visitor.click(shown.get_by_role("button", name="Source and listings"))
    expect(shown.locator(".wb-cm-chosen").first).to_contain_text(line)


def test_2_who_straggles_and_why(page: Page, visitor: Visitor):
    shown = view(page, "round")
    visitor.open(shown, "Clients")
    visitor.click(shown.get_by_role("tabpanel").get_by_role("button", name="client 11"))
    said = shown.get_by_role("tabpanel").locator(".wb-panel")
    expect(said).to_contain_text("The slowest of 32")
    expect(said).to_contain_text("100 % of its excess over the mean is computing")


def test_3_twice_the_model_on_sixteen_chips(page: Page, visitor: Visitor):
    shown = view(page, "round")
    visitor.open(shown, "Cost")
    visitor.click(shown.locator(".wb-whatif summary").first)
    visitor.slide(shown.get_by_role("slider", name="model size"), "× 2")
    visitor.slide(shown.get_by_role("slider", name="devices, along clients"), "16")
    answer = shown.locator(".wb-whatif .wb-tile", has_text="peak memory")
    expect(answer).to_contain_text("of 16 GiB: fits")


def test_4_gradient_of_one_client_at_a_local_step(page: Page, visitor: Visitor):
    shown = view(page, "round")
    visitor.open(shown, "Clients")
    visitor.type(shown.get_by_label("Go to client"), "17")
    visitor.click(shown.get_by_role("button", name="Open its values"))
    values = shown.locator("iframe.wb-values").content_frame
    expect(values.get_by_text("step 3").first).to_be_attached(timeout=60_000)
    visitor.click(shown.get_by_text("As text"))
    text = shown.get_by_role("region", name="Values of client 17 as text").inner_text()
    step = text.split("step 3\n")[1].split("stage ")[0]
    mean = float(step.split("gradient['in']")[1].split("mean ")[1].split()[0])
    known = "float(jax.grad(loss_of)(local_17, *(each[17, 3] for each in data))['in'].mean())"
    assert mean == pytest.approx(float(ask_kernel(page, known)), rel=1e-3)


def test_5_why_an_array_is_whole_and_how_to_shard_it(page: Page, visitor: Visitor):
    shown = view(page, "plain")
    visitor.open(shown, "Sharding")
    visitor.type(shown.get_by_label("Search arrays"), "model up.kernel 0")
    visitor.click(shown.locator("[data-leaf]", has_text="kernel").first)
    details = shown.get_by_role("complementary", name="Details of the selected array")
    expect(details).to_contain_text("Each shard is on 8 devices.")
    visitor.click(shown.get_by_role("button", name="Try P(None, 'model')"))
    count = "window.jupyterapp.shell.currentWidget.content.model.cells.length"
    before = page.evaluate(count)
    visitor.click(shown.get_by_role("button", name="Insert as cell"))
    assert page.evaluate(count) == before + 1
    expect(page.locator(".jp-CodeCell.jp-mod-active, .jp-CodeCell", has_text="P(None, 'model')").last).to_be_visible()


def test_6_before_and_after_another_spec(page: Page, visitor: Visitor):
    shown = view(page, "plain")
    visitor.open(shown, "Sharding")
    shown.get_by_label("Search arrays").fill("")
    visitor.click(shown.locator('[role="row"]', has_text="blocks").first)
    visitor.click(shown.get_by_role("button", name="Try all of it over model"))
    visitor.click(shown.get_by_role("button", name="Compile and compare"))
    expect(shown.locator(".wb-desk p[role=status]")).to_contain_text("(compiled)", timeout=120_000)
    table = shown.get_by_role("table", name="Collectives before and after")
    expect(table.locator('[data-change="added"]', has_text="model").first).to_contain_text("In [")


def test_7_rounds_are_paused_resumed_and_stopped(page: Page, visitor: Visitor):
    shown = view(page, "run")
    status = shown.locator(".wb-runhead .wb-big")
    visitor.click(shown.get_by_role("button", name="Pause", exact=True))
    expect(status).to_contain_text("paused")
    visitor.click(shown.get_by_role("button", name="Resume", exact=True))
    expect(status).to_contain_text("running")
    visitor.click(shown.get_by_role("button", name="Stop", exact=True))
    expect(status).to_contain_text("stopped")


def test_8_a_page_to_mail(page: Page, browser: Browser, lab_root: Path, visitor: Visitor):
    ask_kernel(page, "len(round_view.to_html('round.html', author='A. Nonym'))")
    with page.context.browser.new_context(offline=True) as alone:  # type: ignore[union-attr]
        mailed = alone.new_page()
        asked: list[str] = []
        mailed.on("request", lambda request: asked.append(request.url))
        mailed.goto((lab_root / "round.html").as_uri())
        visitor.open(mailed.locator("section.wb"), "Source and HLO")
        expect(mailed.locator("section.wb")).to_contain_text("wb.reduce_mean(update)")
        expect(mailed.locator("body")).to_contain_text("A. Nonym")
        assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []


def test_9_heterogeneity_compared_without_writing_code(page: Page, visitor: Visitor):
    shown = view(page, "playground")
    begin = shown.get_by_role("button", name="Run", exact=True)
    rows = shown.get_by_role("table", name="Experiments").locator("tbody tr")
    visitor.click(begin)
    expect(rows).to_have_count(1, timeout=120_000)
    expect(begin).to_be_enabled(timeout=120_000)
    visitor.slide(shown.get_by_label("label skew (α)"), "none")
    visitor.click(begin)
    expect(rows).to_have_count(2, timeout=120_000)
    expect(begin).to_be_enabled(timeout=120_000)
    expect(shown.get_by_label("The notebook cell that does the same")).to_contain_text('alpha=float("inf")')


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu-aot")
def test_10_module_that_costs_most_and_what_model_would_save(page: Page, visitor: Visitor):
    shown = view(page, "absent")
    names = shown.get_by_role("treegrid", name="Operations by function, module and line").locator("[role=row]")
    expect(names.filter(has_text="Block").first).to_be_visible()  # largest first, open down to it: no click
    visitor.open(shown, "Sharding")
    visitor.click(shown.locator('[role="row"]', has_text="blocks").first)
    offer = shown.locator(".wb-candidates li", has_text='"model"')
    expect(offer).to_contain_text("512 KiB on every device")  # half of two blocks of two 128 × 512 kernels of 4 bytes
    visitor.click(offer.get_by_role("button"))
    visitor.click(shown.get_by_role("button", name="Compile and compare"))
    expect(shown.locator(".wb-desk p[role=status]")).to_contain_text("(compiled)", timeout=180_000)
    expect(shown.locator(".wb-amounts")).to_contain_text("→")
