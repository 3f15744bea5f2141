from pathlib import Path

import pytest
import records_examples as examples
import workbench_widgets
from accessibility import nameless, weak_contrasts
from harness import Harness
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast_and_every_control_a_name(harness: Harness, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(workbench_widgets.ProgramView(examples.fedavg_record()))
    view.locator('[data-stage="1"]').click()
    for folded in view.locator("details").all():
        folded.evaluate("node => node.open = true")
    assert weak_contrasts(view) == []
    assert nameless(view) == []


def test_theme_of_the_notebook_wins_and_can_change_while_open(harness: Harness):
    view = harness.mount(workbench_widgets.ProgramView(examples.fedavg_record()))
    lane = view.locator(".wb-lane").first
    fill = "node => getComputedStyle(node).fill"
    harness.page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    day = lane.evaluate(fill)
    harness.page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    assert lane.evaluate(fill) != day


class Asking(workbench_widgets.ProgramView):
    requests = {"double": "double", "fail": "fail"}  # noqa: RUF012

    def double(self, value: int) -> int:
        return 2 * value

    def fail(self) -> None:
        raise ZeroDivisionError("nothing to divide by")


ASK = """export default { render({ model, el }) {
  const ask = (name, args) => model.send({ kind: "request", id: name, name, args });
  const text = (content) => JSON.stringify(content.value ?? content.error.message);
  model.on("msg:custom", (content) => { el.dataset[content.id] = text(content); });
  ask("double", { value: 21 }); ask("fail", {});
} }"""


def test_request_comes_back_with_its_answer_or_the_error(harness: Harness):
    view = harness.mount(Asking(examples.fedavg_record(), _esm=ASK))
    expect(view).to_have_attribute("data-double", "42")
    expect(view).to_have_attribute("data-fail", '"ZeroDivisionError: nothing to divide by"')


def test_error_shows_in_the_view_with_its_traceback_and_can_be_dismissed(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record())
    view = harness.mount(made)
    alert = view.locator(".wb-error")
    expect(alert).to_be_hidden()
    made.guarded(lambda: [][3])()
    expect(alert).to_contain_text("IndexError: list index out of range")
    expect(alert.get_by_role("button", name="Copy traceback")).to_be_visible()
    expect(alert.locator("pre")).to_contain_text("Traceback (most recent call last)")
    alert.get_by_role("button", name="Dismiss").click()
    expect(alert).to_be_hidden()


def test_view_taken_off_the_page_leaves_no_listener_and_reports_the_kernel(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record())
    harness.mount(made)
    assert made._open_views == 1
    harness.unmount(made)
    harness.page.wait_for_function("i => window.wbListeners(i) === 0", arg=made.comm.comm_id)
    assert made._open_views == 0


@pytest.mark.parametrize("size", [420, 700, 1100], ids=str)
def test_view_never_needs_sideways_scrolling(harness: Harness, size: int):
    harness.page.set_viewport_size({"width": size, "height": 800})
    view = harness.mount(workbench_widgets.ProgramView(examples.fedavg_record(), examples.gradient_record()))
    view.locator('[data-stage="1"]').first.click()
    assert view.evaluate("node => node.scrollWidth <= node.clientWidth + 1")


def test_exported_page_works_from_a_file_without_a_kernel(browser: Browser, tmp_path: Path):
    file = tmp_path / "view.html"
    workbench_widgets.ProgramView(examples.fedavg_record(4096)).to_html(file)
    page = browser.new_page()
    wrong, outside = [], []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: outside.append(request.url))
    page.goto(file.as_uri())
    page.locator('[data-stage="1"]').click(position={"x": 30, "y": 10})
    expect(page.locator(".wb-panel h2")).to_have_text("train_locally")
    page.locator("canvas").first.click(position={"x": 1, "y": 1})
    expect(page.locator(".wb-panel h2")).to_have_text("Client 0")
    assert not wrong
    assert not [url for url in outside if not url.startswith(("file:", "blob:", "data:"))]
    page.close()
