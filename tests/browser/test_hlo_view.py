"""The HLO view: the graph of groups, the memory timeline, the largest collectives."""

import pytest
import records_examples as examples
import workbench_widgets
from harness import Harness
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser


def graph_of(harness: Harness, made: workbench_widgets.HloView) -> tuple[Locator, Locator]:
    view = harness.mount(made)
    view.get_by_role("button", name="Graph", exact=True).click()
    return view, view.locator("canvas.wb-graph")


def test_groups_open_and_close_by_keyboard_and_say_so(harness: Harness):
    view, canvas = graph_of(harness, workbench_widgets.HloView(examples.fedavg_record(instruction_count=10_000)))
    expect(canvas).to_have_attribute("data-nodes", "5")  # the five stages, closed
    canvas.focus()
    said = view.locator(".wb-graphtip")
    expect(said).to_contain_text("group stage 0 · broadcast, closed: 2,000 instructions")
    harness.page.keyboard.press("Enter")
    expect(canvas).to_have_attribute("data-nodes", "2005")
    expect(said).to_contain_text("open")
    harness.page.keyboard.press("ArrowDown")
    expect(said).to_contain_text(": add")  # an instruction inside
    harness.page.keyboard.press("Escape")
    expect(canvas).to_have_attribute("data-open", "0")
    view.get_by_role("button", name="Open all groups").click()
    expect(canvas).to_have_attribute("data-nodes", "10007")  # 10,002 instructions and five groups
    view.get_by_role("button", name="Close all groups").click()
    expect(canvas).to_have_attribute("data-nodes", "5")


def test_a_click_opens_a_group_and_chooses_an_instruction(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record(instruction_count=60))
    _, canvas = graph_of(harness, made)
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] / 2, "y": 40})  # the first stage stands on top, in the middle
    expect(canvas).to_have_attribute("data-open", "1")
    canvas.focus()
    harness.page.keyboard.press("ArrowDown")
    harness.page.keyboard.press("Enter")
    assert made.selection["stage"] == "0"
    assert made.selection["instruction"] in {each.name for each in made.record.module.instructions[:12]}


def test_what_is_chosen_elsewhere_is_opened_in_the_graph(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record(instruction_count=60))
    _, canvas = graph_of(harness, made)
    made.select(instruction="all-reduce.1")
    expect(canvas).to_have_attribute("data-open", "1")


def test_collectives_are_ranked_by_what_they_send_and_lead_to_their_line(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record())
    view = harness.mount(made)
    rows = view.get_by_role("treegrid", name="Collectives, largest first").locator("[data-collective]")
    # 3,906 B once, and 1,280 B twice.
    expect(rows.first).to_contain_text("all-reduce.1")
    expect(rows.nth(1)).to_contain_text("2.5 KiB")
    rows.first.click()
    assert made.selection == {"instruction": "all-reduce.1", "line": "fedavg.py:12", "stage": "2"}


def test_collectives_of_one_line_are_one_row_with_their_sum(harness: Harness):
    record = examples.fedavg_record()
    assert record.module is not None
    one = record.module.collectives[0]
    same = tuple(one.replace(name=f"all-reduce.{number}") for number in range(4))
    other = one.replace(name="all-gather.9", kind="all-gather", wire_bytes=3 * (one.wire_bytes or 0))
    made = workbench_widgets.HloView(record.replace(module=record.module.replace(collectives=(other, *same))))
    view = harness.mount(made)
    rows = view.get_by_role("treegrid", name="Collectives, largest first").locator("[data-row]")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("4 × all-reduce")  # 4 × 3,906 B are more than 3 × 3,906 B
    rows.first.locator(".wb-twist").click()
    expect(rows).to_have_count(6)


def test_wheel_scrolls_the_page_and_zooms_the_graph_only_with_control(harness: Harness):
    _, canvas = graph_of(harness, workbench_widgets.HloView(examples.fedavg_record(instruction_count=60)))
    prevented = """node => { const seen = []; for (const ctrlKey of [false, true]) {
      const event = new WheelEvent("wheel", {deltaY: 30, ctrlKey, bubbles: true, cancelable: true});
      node.dispatchEvent(event); seen.push(event.defaultPrevented); } return seen; }"""
    assert canvas.evaluate(prevented) == [False, True]


def test_memory_is_read_by_keyboard_and_leads_to_the_instruction(harness: Harness):
    made = workbench_widgets.MemoryView(examples.fedavg_record())
    view = harness.mount(made)
    line = view.get_by_role("slider", name="Memory over the schedule")
    # 4.2 MB + k mod 6 · 150 kB: the first peak is the sixth instruction, fusion.5.
    expect(line).to_have_attribute("aria-valuenow", "6")
    expect(line).to_have_attribute(
        "aria-valuetext", "6 of 26: 4.72 MiB alive while fusion.5 runs, from fedavg.py:11 · this is the peak"
    )
    expect(view.get_by_role("treegrid", name="Buffers alive at the peak")).to_contain_text("param.data.x")
    line.focus()
    harness.page.keyboard.press("ArrowRight")
    expect(line).to_have_attribute("aria-valuenow", "7")
    harness.page.keyboard.press("Enter")
    assert made.selection["instruction"] == "add.6"


def test_two_peaks_of_memory_are_both_named(harness: Harness):
    view = harness.mount(workbench_widgets.MemoryView(examples.fedavg_record()))
    expect(view.locator(".wb-panel")).to_contain_text("Two peaks: the compiler reports 4.86 MiB")
    expect(view.locator(".wb-panel")).to_contain_text("at most 4.72 MiB")


def test_python_opens_a_face_of_the_view(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record())
    view = harness.mount(made)
    made.settings = {"face": "graph"}
    expect(view.locator("canvas.wb-graph")).to_be_visible()
    expect(view.get_by_role("treegrid")).to_have_count(0)
