import pytest
import records_examples as examples
import workbench_widgets
from harness import Harness
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_every_stage_is_drawn_and_named(harness: Harness):
    view = harness.mount(workbench_widgets.ProgramView(examples.fedavg_record()))
    stages = view.locator("[data-stage]")
    expect(stages).to_have_count(5)
    expect(stages.nth(1)).to_have_attribute(
        "aria-label", "clients stage 1, train_locally, 64 × one client of 492 kFLOP"
    )


def test_click_on_a_stage_shows_its_cost_collectives_and_code(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record())
    view = harness.mount(made)
    view.locator('[data-stage="2"]').click()
    panel = view.locator(".wb-panel")
    expect(panel.locator("h2")).to_have_text("reduce_mean")
    expect(panel).to_contain_text("all-reduce (add)")
    expect(panel).to_contain_text("all-reduce.1 serves stages 2 and 3")
    expect(panel).to_contain_text("fedavg.py, line 12")
    assert made.selection == {"stage": "2"}


def test_click_on_a_client_shows_its_data_flops_and_device(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record())
    view = harness.mount(made)
    view.locator('[data-client="17"]').click()
    panel = view.locator(".wb-panel")
    expect(panel.locator("h2")).to_have_text("Client 17")
    expect(panel).to_contain_text("cpu:2, cpu:3")
    expect(panel).to_contain_text("492 kFLOP (predicted)")
    expect(panel).to_contain_text("f32[128,64]")
    assert made.selection == {"stage": "1", "client": 17}
    panel.get_by_role("button", name="Next").click()
    expect(panel.locator("h2")).to_have_text("Client 18")


def test_keyboard_walks_stages_and_clients(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record())
    view = harness.mount(made)
    first = view.locator('[data-stage="0"]')
    first.focus()
    harness.page.keyboard.press("ArrowDown")
    expect(view.locator('[data-stage="1"]')).to_be_focused()
    harness.page.keyboard.press("Enter")
    expect(view.locator(".wb-panel h2")).to_have_text("train_locally")
    harness.page.keyboard.press("ArrowRight")
    harness.page.keyboard.press("ArrowRight")
    expect(view.locator('[data-client="1"]')).to_be_focused()
    harness.page.keyboard.press("Enter")
    expect(view.locator(".wb-panel h2")).to_have_text("Client 1")
    harness.page.keyboard.press("Escape")
    expect(view.locator('[data-stage="1"]')).to_be_focused()
    assert first.get_attribute("tabindex") == "-1"


def test_selection_made_in_python_is_followed(harness: Harness):
    made = workbench_widgets.ProgramView(examples.rounds_record())
    view = harness.mount(made)
    made.select(stage="0.1")
    expect(view.locator(".wb-panel h2")).to_have_text("train_locally")
    expect(view.locator('[data-stage="0.1"]')).to_have_attribute("aria-selected", "true")
    made.select(stage=None)
    expect(view.locator(".wb-panel h2")).to_have_text("train")


def test_thousands_of_clients_are_a_canvas_that_can_be_clicked(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record(4096))
    view = harness.mount(made)
    canvases = view.locator("canvas.wb-heat")
    expect(canvases).to_have_count(4)
    expect(view.locator("[data-client]")).to_have_count(0)
    canvases.nth(3).click(position={"x": 1, "y": 1})
    expect(view.locator(".wb-panel h2")).to_have_text("Client 3072")


def test_gradient_is_next_to_the_program(harness: Harness):
    made = workbench_widgets.ProgramView(examples.fedavg_record(), examples.gradient_record())
    view = harness.mount(made)
    expect(view.locator(".wb-picture")).to_have_count(2)
    view.locator('.wb-picture:nth-child(2) [data-stage="2"]').click()
    expect(view.locator(".wb-panel h2")).to_have_text("transpose(train_locally)")
    assert made.selection == {"stage": "gradient/2"}
    view.locator('.wb-picture:nth-child(2) [data-stage="1"]').click(position={"x": 40, "y": 12})
    # `linearize(train_locally)` comes from the line of `train_locally`: its twin in the program is marked.
    expect(view.locator(".wb-picture:nth-child(1) .wb-kin")).to_have_attribute("data-stage", "1")


def test_marks_and_the_panel_say_what_leaves_a_client(harness: Harness):
    view = harness.mount(workbench_widgets.ProgramView(examples.fedavg_record()))
    marks = view.locator("[data-disclosed]")
    expect(marks).to_have_count(2)
    expect(marks.first.locator("title")).to_have_text("each client discloses: a share, f32[64,10], f32[10], 2.54 KiB")
    panel = view.locator(".wb-panel")
    expect(panel.get_by_role("table").filter(has_text="share of reduce_mean")).to_contain_text("f32[64,10], f32[10]")
    expect(panel.get_by_role("table").filter(has_text="f32[128,64]")).to_contain_text("data.x")
    view.locator('[data-stage="3"]').click()
    expect(panel).to_contain_text("each client discloses")


def test_nested_placement_is_a_frame_with_its_own_stages(harness: Harness):
    view = harness.mount(workbench_widgets.ProgramView(examples.pods_record()))
    inner = view.locator('[data-stage="1.1"]')
    expect(inner).to_have_count(1)
    frame, card = view.locator('[data-stage="1"]').bounding_box(), inner.bounding_box()
    assert frame is not None
    assert card is not None
    assert frame["x"] < card["x"]
    assert card["y"] + card["height"] < frame["y"] + frame["height"]


def test_names_from_the_program_are_never_markup(harness: Harness):
    record = examples.fedavg_record()
    evil = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    stages = tuple(stage.replace(name=evil) for stage in record.plan.stages)
    view = harness.mount(
        workbench_widgets.ProgramView(record.replace(name=evil, plan=record.plan.replace(stages=stages)))
    )
    view.locator('[data-stage="1"]').click()
    expect(view.locator(".wb-panel h2")).to_have_text(evil)
    assert harness.page.title() == ""
    assert view.locator("img, script").count() == 0
