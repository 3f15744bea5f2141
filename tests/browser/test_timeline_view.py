"""The timeline of a measured run: every device, keys, areas, links to other views, a wheel that is not caught."""

import json
from pathlib import Path

import pytest
import records_examples as examples
import workbench_widgets
from accessibility import nameless, weak_contrasts
from harness import Harness
from playwright.sync_api import Locator, expect
from test_axe import violations

from workbench.records.run import EventRecord, RunRecord

pytestmark = pytest.mark.browser


def a_run(spans: int = 60, devices: int = 4) -> RunRecord:
    events = [
        EventRecord(where=f"cpu:{device}", name=f"dot.{i % 3}", start_seconds=0.01 * i, seconds=0.008, stage=str(i % 2))
        for device in range(devices)
        for i in range(spans)
    ]
    late = EventRecord(where="cpu:0", name="all-reduce", start_seconds=0.7, seconds=0.2, kind="wait")
    events += [
        late,
        late.replace(start_seconds=0.9, seconds=0.1, kind="collective"),
        late.replace(where="cpu:1", start_seconds=0.9, seconds=0.1, kind="collective"),
    ]
    return RunRecord(
        name="fedavg", engine=f"cpu x {devices}", seconds=1.0, events=tuple(events), notes=("Only simulated.",)
    )


@pytest.fixture
def view(harness: Harness) -> Locator:
    made = harness.mount(workbench_widgets.TimelineView(a_run()))
    expect(made.locator(".wb-tl-canvas")).to_be_visible()
    return made


def test_every_device_and_the_notes_are_shown(view: Locator) -> None:
    rows = view.get_by_role("table", name="Seconds per device").locator("tbody tr")
    assert rows.locator("td:first-child").all_inner_texts() == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    view.get_by_text("note on the measurement").click()
    expect(view.get_by_role("list", name="Notes on the measurement")).to_contain_text("Only simulated.")
    assert weak_contrasts(view) == []
    assert nameless(view) == []
    assert violations(view) == []


def test_keys_move_from_span_to_span_and_select_everywhere(harness: Harness) -> None:
    made = workbench_widgets.TimelineView(a_run())
    view = harness.mount(made)
    canvas = view.locator(".wb-tl-canvas")
    canvas.focus()
    canvas.press("ArrowRight")
    canvas.press("ArrowRight")
    assert made.selection["device"] == 0
    assert made.selection["instruction"].startswith("dot.")
    expect(view.locator("aside h2")).to_have_text(made.selection["instruction"])
    canvas.press("ArrowDown")
    assert made.selection["device"] == 1
    canvas.press("Escape")
    assert made.selection == {}


def test_what_is_waited_for_is_named(view: Locator) -> None:
    canvas = view.locator(".wb-tl-canvas")
    canvas.focus()
    canvas.press("ArrowRight")
    for _ in range(40):
        canvas.press("ArrowRight")
        if view.locator("aside h2").inner_text().startswith("Waiting"):
            break
    expect(view.locator("aside dl")).to_contain_text("waits for")
    expect(view.locator("aside dl")).to_contain_text("cpu:1")


def test_an_area_is_added_up(view: Locator) -> None:
    canvas = view.locator(".wb-tl-canvas")
    canvas.focus()
    canvas.press("m")
    expect(view.locator("aside h2")).to_have_text("1 s on 4 devices")
    table = view.get_by_role("table", name="Operations in the area")
    expect(table.locator("tbody tr", has_text="dot.0").locator("td").nth(1)).to_have_text("80")
    expect(table.locator("tbody tr", has_text="waiting in all-reduce")).to_contain_text("200 ms")


def test_a_mouse_drag_with_shift_selects_an_area(harness: Harness) -> None:
    view = harness.mount(workbench_widgets.TimelineView(a_run()))
    box = view.locator(".wb-tl-canvas").bounding_box()
    assert box is not None
    mouse, keyboard = harness.page.mouse, harness.page.keyboard
    keyboard.down("Shift")
    mouse.move(box["x"] + 200, box["y"] + 60)
    mouse.down()
    mouse.move(box["x"] + 400, box["y"] + 100, steps=4)
    mouse.up()
    keyboard.up("Shift")
    expect(view.locator("aside header p")).to_contain_text("Selected area")


def test_the_wheel_scrolls_the_page_and_zooms_only_with_control(harness: Harness) -> None:
    view = harness.mount(workbench_widgets.TimelineView(a_run()))
    page = harness.page
    page.evaluate("document.body.style.paddingBottom = '3000px'")
    box = view.locator(".wb-tl-canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.mouse.wheel(0, 200)
    page.wait_for_function("window.scrollY > 0")
    page.evaluate("window.scrollTo(0, 0)")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    assert page.evaluate("window.scrollY") == 0


def test_a_name_is_found_and_counted(view: Locator) -> None:
    view.get_by_label("Find an operation").fill("dot.1")
    expect(view.get_by_role("status").filter(has_text="spans")).to_contain_text("1 of 4 operations, 80 spans, 640 ms")


def test_the_trace_is_saved_with_every_span(harness: Harness, tmp_path: Path) -> None:
    view = harness.mount(workbench_widgets.TimelineView(a_run()))
    with harness.page.expect_download() as download:
        view.get_by_role("button", name="Save as Perfetto trace").click()
    download.value.save_as(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 243


def test_the_time_line_is_a_tab_of_the_explorer_and_shares_its_selection(harness: Harness) -> None:
    made = workbench_widgets.Explorer(examples.fedavg_record(), run=a_run(), view="timeline")
    view = harness.mount(made)
    canvas = view.locator(".wb-tl-canvas")
    canvas.focus()
    canvas.press("ArrowRight")
    expect(view.get_by_role("button", name="Clear device 0")).to_be_visible()
    made.select(instruction="dot.2")
    expect(view.locator("aside:visible h2")).to_be_visible()
