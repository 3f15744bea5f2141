import re

import numpy as np
import pytest
import records_examples as examples
import records_parts as parts
import workbench_widgets
from accessibility import nameless, weak_contrasts
from harness import Harness
from playwright.sync_api import expect
from visitor import open_tab
from workbench_widgets._clients import ClientsView
from workbench_widgets._cost import CostView
from workbench_widgets._picture import PictureView

from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.live import ClientOutcomeRecord, SpanRecord, TimelineRecord
from workbench.records.run import ClientRunRecord, RunRecord

pytestmark = pytest.mark.browser

SIMULATED = TimelineRecord(
    name="round",
    seconds=1.0,
    spans=tuple(
        SpanRecord(client=c, kind=kind, start_seconds=0.2 * c, seconds=0.5)
        for c, kind in enumerate(("download", "compute", "upload"))
    ),
    outcomes=tuple(ClientOutcomeRecord(client=c, status="finished") for c in range(3)),
)


def measured(clients: int) -> RunRecord:
    runs = tuple(ClientRunRecord(stage="1", client=c, seconds=0.001 * (1 + c * 7 % 13)) for c in range(clients))
    return RunRecord(name="round", engine="mesh", seconds=1.0, clients=runs)


VIEWS = {
    "clients": lambda: ClientsView(examples.fedavg_record(), measured(64)),
    "mesh": lambda: workbench_widgets.MeshView(parts.mesh_record(), parts.cost_record()),
    "large mesh": lambda: workbench_widgets.MeshView(parts.mesh_record(clients=640, axes=(("x", 64), ("y", 10)))),
    "sharding": lambda: workbench_widgets.ShardingView(parts.sharding_record()),
    "hlo": lambda: workbench_widgets.HloView(examples.fedavg_record()),
    "cost": lambda: CostView(examples.fedavg_record(), [examples.fedavg_record().replace(target="v5e:4x4")]),
    "run": lambda: PictureView(SIMULATED),
    "explorer": lambda: workbench_widgets.Explorer(examples.fedavg_record()),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_every_view_is_readable_and_named(harness: Harness, make, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    view = harness.mount(make())
    assert weak_contrasts(view) == []
    assert nameless(view) == []


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_every_view_fits_a_narrow_page(harness: Harness, make):
    harness.page.set_viewport_size({"width": 460, "height": 800})
    view = harness.mount(make())
    assert view.evaluate("node => node.scrollWidth <= node.clientWidth + 1")


def test_figure_of_the_headline_opens_its_view(harness: Harness):
    view = harness.mount(workbench_widgets.Explorer(examples.fedavg_record()))
    view.get_by_role("group", name="In short").get_by_role("button").first.click()
    expect(view.get_by_role("tab", name="Source and HLO")).to_have_attribute("aria-selected", "true")


def test_bar_names_the_part_of_the_tree_whose_details_are_shown(harness: Harness):
    made = workbench_widgets.Explorer(examples.fedavg_record(), view="sharding")
    view = harness.mount(made)
    bar, title = view.get_by_role("group", name="Selected"), view.locator(".wb-detail h2")
    expect(bar).to_contain_text("Nothing selected")
    expect(title.filter(visible=True)).to_have_text("All arrays")
    view.locator('[role="row"]', has_text="params").filter(visible=True).click()
    expect(bar).to_contain_text("arrays in ['params']")
    expect(title.filter(visible=True)).to_have_text("['params']")
    view.locator("[data-leaf]").filter(visible=True).first.click()
    expect(bar).to_contain_text("array ['params']['w']")
    bar.get_by_role("button", name="Clear array").click()
    expect(title.filter(visible=True)).to_have_text("All arrays")


def test_clients_are_sorted_filtered_and_pinned(harness: Harness):
    made = ClientsView(examples.fedavg_record(4096), measured(4096))
    view = harness.mount(made)
    expect(view.get_by_role("img")).to_be_visible()
    view.get_by_label("Show clients as").select_option("table")
    view.get_by_role("treegrid").get_by_role("button", name="time (measured)", exact=True).click()
    rows = view.locator("[role=row][data-client]")
    # 1 + 7c mod 13 is largest, 13, where 7c mod 13 = 12: c = 11 first.
    expect(rows.first).to_have_attribute("data-client", "11")
    assert rows.count() < 60
    view.get_by_label("Filter by").select_option(label="time (measured)")
    view.get_by_label("Filter comparison").select_option("≤")
    view.get_by_label("Filter bound").fill("0.0011")
    # One of thirteen clients takes 1 ms: 316 of 4,096 (0, 13, 26, …, 4,095).
    expect(view.locator(".wb-summary")).to_contain_text("316 of 4,096 clients")
    rows.first.click()
    view.get_by_role("button", name="Pin to compare").click()
    expect(view.get_by_label("Pinned clients").locator("tbody tr")).to_have_count(1)
    assert made.settings == {"pinned": [0]}


def test_client_is_chosen_by_keyboard_in_the_heat_map(harness: Harness):
    made = ClientsView(examples.fedavg_record(4096))
    view = harness.mount(made)
    view.get_by_role("img").focus()
    for _ in range(4):  # the first press goes to the first client
        harness.page.keyboard.press("ArrowRight")
    harness.page.keyboard.press("Enter")
    expect(view.locator(".wb-panel h2")).to_have_text("Client 3")
    assert made.selection["client"] == 3


def test_instruction_line_and_stage_are_linked(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "instructions"})
    view = harness.mount(made)
    view.get_by_label("Only collectives over axis").select_option("clients")
    items = view.locator("[data-instruction]")
    expect(items).to_have_count(1)
    items.first.click()
    assert made.selection == {"instruction": "all-reduce.1", "line": "fedavg.py:12", "stage": "2"}
    expect(view.locator(".wb-panel")).to_contain_text("2.54 KiB per device")
    view.get_by_role("button", name="Source and listings").click()
    view.get_by_label("Listing", exact=True).select_option("stable")
    marked = view.get_by_role("region", name="StableHLO").locator(".wb-cm-linked")
    expect(marked).to_contain_text("stablehlo.reduce")


def test_line_shows_everything_that_it_became(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record())
    view = harness.mount(made)
    made.select(line="fedavg.py:12")
    expect(view.locator(".wb-panel h2")).to_have_text("fedavg.py:12")
    expect(view.get_by_role("table", name="Collectives")).to_contain_text("all-reduce")


def test_ten_thousand_instructions_are_searched_folded_and_drawn(harness: Harness):
    made = workbench_widgets.HloView(examples.fedavg_record(instruction_count=10_000))
    view = harness.mount(made)
    view.get_by_role("button", name="Instructions", exact=True).click()
    listing = view.get_by_label("Instructions of the compiled module")
    assert listing.locator("[data-row]").count() < 80
    view.get_by_label("Search instructions").fill("dot.9992")
    expect(listing.locator("[data-instruction]")).to_have_count(1)
    expect(listing.locator("[data-row]", has_text="(1)")).to_have_count(1)  # its group counts what passes, not all
    view.get_by_label("Search instructions").fill("")
    expect(listing.locator("[data-row]")).to_have_count(5)  # one for each stage, closed
    listing.focus()
    harness.page.keyboard.press("ArrowRight")
    expect(listing.locator("[data-instruction]").first).to_contain_text("dot")  # what computes most is first
    view.get_by_role("button", name="Graph", exact=True).click()
    graph = view.get_by_role("group", name="Data flow of the module")
    world = graph.locator(":scope > g").first
    expect(world).to_have_attribute("transform", re.compile("scale"))
    before = world.get_attribute("transform") or ""
    view.get_by_role("button", name="Zoom in").click()
    expect(world).not_to_have_attribute("transform", before)


def test_cost_of_targets_is_side_by_side(harness: Harness):
    base = examples.fedavg_record()
    made = CostView(base, [base.replace(target="v5e:4x4")])
    view = harness.mount(made)
    expect(view.locator(".wb-target")).to_have_count(2)
    view.locator('.wb-target tr[data-stage="2"]').first.get_by_role("button").click()
    assert made.selection == {"stage": "2"}
    expect(view.locator('tr[data-stage="2"].wb-selected')).to_have_count(2)
    expect(view.locator('tr[data-stage="2"]').first).to_contain_text("collective")


def test_selection_is_linked_between_all_tabs_of_the_explorer(harness: Harness):
    made = workbench_widgets.Explorer(examples.fedavg_record())
    view = harness.mount(made)
    view.locator('[data-client="17"]').click()
    open_tab(view, "Mesh")
    expect(view.locator(".wb-devicecard.wb-holds")).to_have_count(2)
    view.locator('[data-device="4"]').click()
    open_tab(view, "Clients")
    expect(view.get_by_role("tabpanel").locator(".wb-panel h2")).to_have_text("Client 17")
    open_tab(view, "Cost")
    expect(view.locator('tr[data-stage="1"].wb-selected')).to_have_count(1)
    assert made.selection == {"stage": "1", "client": 17, "device": 4}
    view.get_by_role("button", name="Clear client 17").click()
    assert made.selection == {"stage": "1", "device": 4}
    assert made.settings == {"view": "cost"}


def test_tabs_are_walked_by_keyboard_and_opened_from_python(harness: Harness):
    made = workbench_widgets.Explorer(examples.fedavg_record(), view="mesh")
    view = harness.mount(made)
    tab = view.get_by_role("tab", name="Mesh")
    expect(tab).to_have_attribute("aria-selected", "true")
    tab.focus()
    harness.page.keyboard.press("ArrowRight")
    expect(view.get_by_role("tab", name="Clients")).to_have_attribute("aria-selected", "true")
    made.settings = {"view": "hlo"}
    expect(view.get_by_role("tab", name="HLO")).to_have_attribute("aria-selected", "true")


def test_places_hold_the_tabs_and_remember_which_was_open(harness: Harness):
    view = harness.mount(workbench_widgets.Explorer(examples.fedavg_record()))
    places = view.get_by_role("group", name="Places").get_by_role("button")
    assert places.all_inner_texts() == ["Where", "When", "What if", "Learn"]
    expect(places.first).to_have_attribute("aria-pressed", "true")
    assert view.get_by_role("tab").all_inner_texts() == ["Program", "Source and HLO", "Memory", "Mesh"]
    view.get_by_role("tab", name="Mesh").click()
    places.nth(2).click()
    assert view.get_by_role("tab").all_inner_texts() == ["Sharding", "Advice", "Cost"]
    expect(view.locator("[role=tabpanel]:visible")).to_have_attribute("data-view", "sharding")
    places.nth(2).press("ArrowLeft")
    harness.page.keyboard.press("ArrowLeft")
    harness.page.keyboard.press("Enter")
    expect(view.locator("[role=tabpanel]:visible")).to_have_attribute("data-view", "mesh")
    boxes = [each.bounding_box() for each in (places.last, view.get_by_role("tab").first)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]  # beside each other in one row
    assert abs(boxes[0]["y"] + boxes[0]["height"] / 2 - boxes[1]["y"] - boxes[1]["height"] / 2) < 4


def test_places_without_content_are_not_shown(harness: Harness):
    record = examples.fedavg_record()
    alone = record.replace(mesh=None, module=None, cost=None, inputs=None)
    view = harness.mount(workbench_widgets.Explorer(alone))
    places = view.get_by_role("group", name="Places", include_hidden=True).get_by_role("button", include_hidden=True)
    shown = {tab.get_attribute("data-place") for tab in view.locator("[role=tab]").all()}
    assert {place.get_attribute("data-place") for place in places.all()} == shown


def test_a_view_is_built_only_when_its_tab_is_opened(harness: Harness):
    view = harness.mount(workbench_widgets.Explorer(examples.fedavg_record()))
    assert view.locator("[role=tabpanel]").evaluate_all("all => all.filter(n => n.childElementCount).length") == 1


def test_values_arrive_as_binary_numbers(harness: Harness):
    made = ClientsView(examples.fedavg_record())
    assert isinstance(made.arrays["clients.examples"], bytes)
    assert np.frombuffer(made.arrays["clients.examples"], "<f4")[:3].tolist() == [40.0, 77.0, 114.0]
    harness.mount(made)


def test_tables_of_clients_that_were_left_are_collected(harness: Harness) -> None:
    view = harness.mount(ClientsView(examples.fedavg_record(4096), measured(4096)))
    mode = view.get_by_label("Show clients as")
    meter = harness.page.context.new_cdp_session(harness.page)
    meter.send("Performance.enable")

    def nodes_after(iterations: int) -> int:
        for _ in range(iterations):
            mode.select_option("table")
            expect(view.locator("tr[data-client], [role=row][data-client]").first).to_be_visible()
            mode.select_option("heat")
        harness.page.evaluate("() => new Promise(done => setTimeout(done, 200))")
        meter.send("HeapProfiler.collectGarbage")
        found = {each["name"]: each["value"] for each in meter.send("Performance.getMetrics")["metrics"]}
        return int(found["Nodes"])

    before = nodes_after(2)
    assert nodes_after(4) - before < 100  # a table that stays behind has about 600


def test_tabs_that_do_not_fit_are_in_a_menu_and_the_present_one_is_in_view(harness: Harness):
    harness.page.set_viewport_size({"width": 670, "height": 1100})
    made = workbench_widgets.Explorer(examples.fedavg_record())
    made.settings = {"height": 1000}
    view = harness.mount(made)
    more = view.get_by_role("combobox", name="All views")
    expect(more).to_be_visible()
    more.select_option(label="Mesh")
    expect(view.locator("[data-device]").first).to_be_in_viewport()
    tab, bar = view.get_by_role("tab", name="Mesh").bounding_box(), view.get_by_role("tablist").bounding_box()
    assert tab is not None
    assert bar is not None
    assert bar["x"] <= tab["x"]
    assert tab["x"] + tab["width"] <= bar["x"] + bar["width"] + 1
    harness.page.set_viewport_size({"width": 360, "height": 1100})
    expect(view.get_by_role("tab", name="Mesh")).to_be_hidden()  # the menu takes the place of the tabs
    expect(more).to_have_value("mesh")
    head = view.locator(".wb-head").bounding_box()
    assert head is not None
    assert head["height"] < 180
    harness.page.set_viewport_size({"width": 1400, "height": 800})
    expect(more).to_be_hidden()


def test_search_adds_a_module_that_stands_below_several_lines(harness: Harness):
    work = [CallFiguresRecord(flops_matmul=flops) for flops in (7e6, 5e6, 2e6)]
    module = {"kind": "scope", "name": "block_0", "scope": "block_0"}
    nodes = (
        CallNodeRecord(id=0, parent=None, kind="root", name="step", total=work[0]),
        CallNodeRecord(id=1, parent=0, kind="line", name="model.py:3", total=work[1]),
        CallNodeRecord(id=2, parent=1, own=work[1], total=work[1], **module),
        CallNodeRecord(id=3, parent=0, kind="line", name="model.py:8", total=work[2]),
        CallNodeRecord(id=4, parent=3, own=work[2], total=work[2], **module),
    )
    record = examples.fedavg_record()
    tree = CallTreeRecord(made_from="compiled", nodes=nodes)
    record = record.replace(module=record.module.replace(call_tree=tree))
    view = harness.mount(workbench_widgets.Explorer(record, view="operations"))
    view.get_by_role("searchbox", name="Search operations").fill("block_0")
    expect(view.get_by_text("2 of 5, together 7 MFLOP; the rows above a match count everything inside")).to_be_visible()
