"""The HLO view: the graph of groups, the memory timeline, the largest collectives."""

import re
import sys
import types
from pathlib import Path

import pytest
import records_examples as examples
import workbench_widgets
from harness import Harness
from playwright.sync_api import Locator, expect
from visitor import open_tab
from workbench_widgets._memory import MemoryView

pytestmark = pytest.mark.browser


def graph_of(harness: Harness, made: workbench_widgets.HloView) -> tuple[Locator, Locator]:
    view = harness.mount(made)
    view.get_by_role("button", name="Graph", exact=True).click()
    graph = view.locator(".wb-graph")
    expect(graph).to_have_attribute("data-boxes", re.compile(r"\d"))
    return view, graph


def test_groups_open_and_fold_by_keyboard(harness: Harness):
    view, graph = graph_of(harness, workbench_widgets.HloView(examples.fedavg_record(instruction_count=10_000)))
    view.get_by_role("button", name="Fold all").click()
    expect(graph).to_have_attribute("data-boxes", "5")  # the five stages
    first = graph.get_by_role("button", name=re.compile("group stage 0 · broadcast"))
    expect(first).to_have_attribute("aria-expanded", "false")
    first.focus()
    harness.page.keyboard.press("Space")
    expect(first).to_have_attribute("aria-expanded", "true")
    expect(graph).to_have_attribute("data-boxes", "46")  # forty instructions of the stage, and a box for the rest
    harness.page.keyboard.press("Space")
    expect(graph).to_have_attribute("data-boxes", "5")


def test_an_instruction_in_the_graph_is_selected_everywhere(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record(instruction_count=60))
    _, graph = graph_of(harness, made)
    made.select(instruction="all-reduce.1")
    box = graph.get_by_role("button", name=re.compile("^instruction all-reduce.1:"))
    expect(box).to_have_class(re.compile("wb-selected"))
    made.select(instruction=None)
    box.focus()
    harness.page.keyboard.press("Enter")
    assert made.selection["instruction"] == "all-reduce.1"
    assert made.selection["line"] == "fedavg.py:12"


def test_search_leads_from_match_to_match(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record(instruction_count=60))
    view, graph = graph_of(harness, made)
    search = view.get_by_role("searchbox", name="Search the graph")
    search.fill("all-reduce.1")
    expect(view.locator(".wb-graphtip")).to_contain_text("1 match")
    search.press("Enter")
    assert made.selection["instruction"] == "all-reduce.1"
    expect(graph.locator(".wb-selected")).to_be_visible()


def test_never_more_than_eighty_boxes_show(harness: Harness):
    view, graph = graph_of(harness, workbench_widgets.HloView(examples.fedavg_record(instruction_count=10_000)))
    view.get_by_role("button", name="Fold all").click()
    for stage in range(5):
        graph.get_by_role("button", name=re.compile(f"group stage {stage} ")).focus()
        harness.page.keyboard.press("Space")
    assert int(graph.get_attribute("data-boxes") or 0) <= 80


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
    _, graph = graph_of(harness, workbench_widgets.HloView(examples.fedavg_record(instruction_count=60)))
    prevented = """node => { const seen = []; for (const ctrlKey of [false, true]) {
      const event = new WheelEvent("wheel", {deltaY: 30, ctrlKey, bubbles: true, cancelable: true});
      node.dispatchEvent(event); seen.push(event.defaultPrevented); } return seen; }"""
    assert graph.evaluate(prevented) == [False, True]


def test_memory_is_read_by_keyboard_and_leads_to_the_instruction(harness: Harness):
    made = MemoryView(examples.fedavg_record())
    view = harness.mount(made)
    line = view.get_by_role("slider", name="Memory over the schedule")
    # 4.2 MB + k mod 6 · 150 kB: the first peak is the sixth instruction, fusion.5.
    expect(line).to_have_attribute("aria-valuenow", "6")
    expect(line).to_have_attribute(
        "aria-valuetext",
        "6 of 26: 4.72 MiB alive while fusion.5 runs, from fedavg.py:11 · this is the maximum; "
        "the compiler assigns 4.86 MiB",
    )
    expect(view.get_by_role("treegrid", name="Buffers alive at the peak")).to_contain_text("param.data.x")
    line.focus()
    harness.page.keyboard.press("ArrowRight")
    expect(line).to_have_attribute("aria-valuenow", "7")
    harness.page.keyboard.press("Enter")
    assert made.selection["instruction"] == "add.6"


def test_memory_is_read_by_pointer_at_every_width(harness: Harness):
    view = harness.mount(MemoryView(examples.fedavg_record()))
    for width in (1100, 420):
        harness.page.set_viewport_size({"width": width, "height": 900})
        curve = view.locator(".wb-memory [data-instructions] > path").first.bounding_box()
        assert curve is not None
        harness.page.mouse.move(curve["x"] + 0.4 * curve["width"], curve["y"] + curve["height"] / 2)
        expect(view.get_by_role("slider", name="Memory over")).to_have_attribute("aria-valuenow", "11")  # of 26
        harness.page.mouse.move(0, 0)


def test_two_peaks_of_memory_are_both_named(harness: Harness):
    view = harness.mount(MemoryView(examples.fedavg_record()))
    expect(view.locator(".wb-panel")).to_contain_text("Two peaks: the compiler reports 4.86 MiB")
    expect(view.locator(".wb-panel")).to_contain_text("at most 4.72 MiB")


def test_python_opens_a_face_of_the_view(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record())
    view = harness.mount(made)
    made.settings = {"face": "graph"}
    expect(view.locator(".wb-graph")).to_be_visible()
    expect(view.get_by_role("treegrid")).to_have_count(0)


@pytest.fixture
def fedavg_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source file that the record's lines are of, as an imported module: no other file is shown."""
    file = tmp_path / "fedavg.py"
    file.write_text("".join(f"line_{n} = apply(updates, {n})\n" for n in range(1, 300)))
    module = types.ModuleType("fedavg")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "fedavg", module)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("fedavg_file")
def test_listing_scrolls_to_the_chosen_line_under_the_style_of_jupyterlab(harness: Harness):
    made = workbench_widgets.Explorer(examples.fedavg_record(instruction_count=400))
    view = harness.mount(made)
    harness.page.add_style_tag(content=".cm-editor { height: auto }")  # of JupyterLab 4.6, after our own
    open_tab(view, "Source and HLO")
    view.get_by_role("button", name="Source and listings", exact=True).click()
    made.select(instruction="all-reduce.1")
    line = view.get_by_role("region", name="Compiled HLO").locator(".wb-cm-chosen")
    expect(line).to_be_in_viewport()
    for listing in view.locator(".wb-editor").all():
        box, inside = listing.bounding_box(), listing.locator(".cm-scroller").bounding_box()
        assert box is not None
        assert inside is not None
        assert 80 < inside["height"] <= box["height"]
    # What is drawn at the line's place is the line, not something that covers it.
    hit = line.evaluate("e => { const b = e.getBoundingClientRect();"
                        "return e.contains(document.elementFromPoint(b.x + 20, b.y + b.height / 2)) }")  # fmt: skip
    assert hit


@pytest.mark.usefixtures("fedavg_file")
def test_code_keeps_most_of_its_pane_beside_one_column_of_figures(harness: Harness):
    view = harness.mount(workbench_widgets.Explorer(examples.fedavg_record()))
    open_tab(view, "Source and HLO")
    view.get_by_role("button", name="Source and listings", exact=True).click()
    source = view.get_by_role("region", name=re.compile("^Your source"))
    expect(source.locator(".cm-content")).to_be_visible()
    assert source.locator(".wb-cm-gutter").count() == 1
    whole, gutters = source.bounding_box(), source.locator(".cm-gutters").first.bounding_box()
    assert whole is not None
    assert gutters is not None
    assert gutters["width"] < 0.4 * whole["width"]
    column = source.get_by_role("combobox", name="Column")
    expect(column).to_have_value("flops")
    column.select_option("sent")
    expect(source.locator(".wb-cm-cost").filter(has_text="KiB").first).to_be_visible()
