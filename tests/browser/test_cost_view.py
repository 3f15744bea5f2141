"""The cost view: compiling in the background, stopping that, targets side by side."""

import threading

import pytest
import records_examples as examples
import workbench_widgets
from harness import Harness
from playwright.sync_api import expect
from records_parts import cost_record
from visitor import open_tab
from workbench_widgets._cost import CostView

from workbench.cost import estimate_scaled
from workbench.errors import EngineError
from workbench.records.compiled import MemoryRecord

pytestmark = pytest.mark.browser


class Compiler:
    """Says what it does, and comes back when it is told to, or stops when it is told that."""

    def __init__(self, record):
        self.record, self.may_end, self.at_work = record, threading.Event(), threading.Event()
        self.asked = []

    def __call__(self, target, *, order, progress, cancel):
        self.asked.append((target, order))
        progress("compiling", 7.0)
        self.at_work.set()
        while not self.may_end.wait(0.01):
            if cancel.is_set():
                message = f"Compiling for target {target!r} was stopped after 7.0 s while compiling."
                raise EngineError(message, stage="compiling")
        return self.record.replace(target=target)


@pytest.fixture
def installed(monkeypatch):
    """As if libtpu were here: the offer of machines is read from installed packages."""
    from workbench.aot import _availability

    monkeypatch.setattr(_availability, "installed_compiler", lambda platform: {"tpu": "libtpu 1"}.get(platform, ""))


@pytest.fixture
def arrive(monkeypatch):
    """Brings to the page what the compiling thread has sent: Playwright can be used by this thread alone."""
    sent: dict[str, object] = {}
    monkeypatch.setattr(workbench_widgets.WorkbenchWidget, "update_live", lambda self, **values: sent.update(values))

    def arrive(view):
        view.live = {**view.live, **sent}

    return arrive


def compiled_record(**memory):
    record = examples.fedavg_record()
    module = record.module.replace(memory=MemoryRecord(**memory))
    return record.replace(module=module, cost=cost_record(64))


@pytest.mark.parametrize("kind", [CostView, workbench_widgets.Explorer], ids=["alone", "in-the-explorer"])
def test_compiles_for_a_chosen_machine_in_the_background_and_puts_it_next_to_the_first(
    harness: Harness, installed, arrive, kind
):
    record = examples.fedavg_record()
    compiler = Compiler(compiled_record(peak_bytes=3 * 2**30, available_bytes=2**30, fits=False))
    made = kind(record, compile_for=compiler)
    view = harness.mount(made)
    if kind is workbench_widgets.Explorer:
        open_tab(view, "Cost")
    view.get_by_label("Chip", exact=True).select_option("v5e")
    view.get_by_label("Machine", exact=True).select_option("v5e:4x4")
    view.get_by_label("Order of devices").select_option("naive")
    view.get_by_role("button", name="Compile", exact=True).click()
    assert compiler.at_work.wait(20)
    arrive(made)
    assert compiler.asked == [("v5e:4x4", "naive")]
    expect(view.get_by_role("button", name="Compile", exact=True)).to_be_disabled()
    expect(view.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    made.select(stage="1")  # the kernel is free
    compiler.may_end.set()
    assert made.answers.wait(20)
    arrive(made)
    sides = view.locator("table.wb-sides")
    expect(sides.locator("thead")).to_contain_text("v5e:4x4")
    expect(sides).to_contain_text("NO: 2 GiB too much")
    expect(view.locator(".wb-misfit")).to_contain_text("needs 3 GiB of 1 GiB")
    expect(view.locator('.wb-target tr[data-stage="1"].wb-selected')).to_have_count(2)
    assert made.answers.compiled["v5e:4x4"].target == "v5e:4x4"
    view.get_by_role("button", name="Remove v5e:4x4").click()
    arrive(made)
    expect(view.locator(".wb-target")).to_have_count(1)
    assert made.answers.compiled == {}


def test_stop_button_ends_the_compilation_and_says_so(harness: Harness, installed, arrive):
    compiler = Compiler(examples.fedavg_record())
    made = CostView(examples.fedavg_record(), compile_for=compiler)
    view = harness.mount(made)
    view.get_by_role("button", name="Compile", exact=True).click()
    assert compiler.at_work.wait(20)
    arrive(made)
    expect(view.get_by_role("progressbar", name="Compilation")).to_be_visible()
    expect(view.locator(".wb-compile")).to_contain_text(": compiling, 7 s")
    view.get_by_role("button", name="Stop", exact=True).click()
    assert made.answers.wait(20)
    arrive(made)
    expect(view.locator(".wb-compile")).to_contain_text("Stopped: ")
    expect(view.locator(".wb-compile")).to_contain_text("was stopped after 7.0 s while compiling")
    expect(view.get_by_role("button", name="Compile", exact=True)).to_be_enabled()
    expect(view.locator(".wb-target")).to_have_count(1)


def test_failing_compilation_shows_its_error_and_the_next_one_may_start(harness: Harness, installed, arrive):
    def compile_for(target, **_):
        message = f"Compiling for target {target!r} failed: the worker was ended by SIGFPE."
        raise EngineError(message, stage="compiling")

    made = CostView(examples.fedavg_record(), compile_for=compile_for)
    view = harness.mount(made)
    view.get_by_role("button", name="Compile", exact=True).click()
    assert made.answers.wait(20)
    arrive(made)
    expect(view.locator(".wb-wrong")).to_contain_text("ended by SIGFPE")
    expect(view.locator(".wb-wrong")).to_be_in_viewport()
    expect(view.get_by_role("button", name="Compile", exact=True)).to_be_enabled()


def test_chip_without_its_compiler_shows_the_line_that_installs_it_and_whose_terms_it_has(harness: Harness, installed):
    view = harness.mount(CostView(examples.fedavg_record(), compile_for=Compiler(None)))
    view.get_by_label("Chip", exact=True).select_option("h100")
    expect(view.locator(".wb-compile code")).to_have_text('pip install "mapreduce-workbench[gpu-aot]"')
    expect(view.locator(".wb-compile")).to_contain_text("Apache-2.0")
    expect(view.get_by_role("button", name="Compile", exact=True)).to_be_disabled()


def test_machines_are_those_that_the_mesh_fits(harness: Harness, installed):
    # the model axis takes 2 devices, so a single chip is none of them
    view = harness.mount(CostView(examples.fedavg_record(), compile_for=Compiler(None)))
    view.get_by_label("Chip", exact=True).select_option("v5e")
    machine = view.get_by_label("Machine", exact=True)
    expect(machine).to_have_value("v5e:2x4")  # as many devices as the mesh has
    offered = machine.locator("option").all_text_contents()
    assert offered == ["v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:8x8", "v5e:8x16", "v5e:16x16"]


def test_second_compilation_is_refused_while_one_is_running(installed):
    compiler = Compiler(examples.fedavg_record())
    made = CostView(examples.fedavg_record(), compile_for=compiler)
    made.answers.start_compiling("v5e:4x4")
    try:
        busy = r"given target='v6e:4x4' while v5e:4x4 is being compiled.*stop"
        with pytest.raises(RuntimeError, match=busy):
            made.answers.start_compiling("v6e:4x4")
    finally:
        made.close()  # which ends what it started
    assert made.answers.wait(20)


def test_record_without_its_program_offers_no_compiler_and_says_why():
    made = CostView(examples.fedavg_record())
    assert made.data["elsewhere"] == []
    with pytest.raises(RuntimeError, match=r"given target='v5e:4x4'.*a record without its program.*`workbench.explore"):
        made.answers.start_compiling("v5e:4x4")


def test_forgotten_view_ends_its_compilation():
    compiler = Compiler(examples.fedavg_record())
    made = CostView(examples.fedavg_record(), compile_for=compiler)
    made.answers.start_compiling("v5e:4x4")
    assert compiler.at_work.wait(20)
    thread = made.answers._jobs["compile"]._thread
    made.close()
    thread.join(20)
    assert not thread.is_alive()


def move(slider, value):
    slider.evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input', { bubbles: true })); }", value
    )


def tiles(view):
    return view.locator(".wb-whatif .wb-tile")


@pytest.mark.parametrize("kind", [CostView, workbench_widgets.Explorer], ids=["alone", "in-the-explorer"])
def test_sliders_ask_the_kernel_for_the_cost_at_another_size(harness: Harness, kind):
    record = examples.fedavg_record()
    made = kind(record)
    view = harness.mount(made)
    if kind is workbench_widgets.Explorer:
        open_tab(view, "Cost")
    view.locator(".wb-whatif summary").first.click()
    expect(tiles(view)).to_have_count(4)
    expect(tiles(view).nth(2)).to_contain_text("as on cpu x 8")
    clients = view.get_by_role("slider", name="clients", exact=True)
    expect(clients).to_have_attribute("aria-valuetext", "64")
    clients.press("ArrowRight")
    expect(clients).to_have_attribute("aria-valuetext", "128")
    wanted = estimate_scaled(record, clients=128)
    assert wanted.cost.stages[1].flops == 2 * estimate_scaled(record).cost.stages[1].flops
    expect(tiles(view).nth(2)).to_contain_text("32 clients on the fullest device")  # 128 over the 4 shares of the mesh
    move(view.get_by_role("slider", name="devices, along clients"), 20)
    expect(tiles(view).nth(3)).to_contain_text("devices are idle")
    expect(view.locator(".wb-whatif")).to_contain_text("estimated, not compiled")
    view.get_by_role("button", name="Reset").click()
    expect(tiles(view).nth(2)).to_contain_text("16 clients on the fullest device")


def test_larger_model_that_does_not_fit_any_more_says_by_how_much(harness: Harness):
    record = compiled_record(
        argument_bytes=2**29, output_bytes=0, temporary_bytes=0, peak_bytes=2**29, available_bytes=2**30, fits=True
    )
    view = harness.mount(CostView(record.replace(target="v5e:4x4")))
    view.locator(".wb-whatif summary").first.click()
    expect(tiles(view).nth(1)).to_contain_text("of 1 GiB: fits")
    model = view.get_by_role("slider", name="model size")
    move(model, 5)
    expect(model).to_have_attribute("aria-valuetext", "× 8")
    expect(tiles(view).nth(1)).to_contain_text("DOES NOT FIT")
    expect(tiles(view).nth(1).locator(".wb-wrong")).to_be_visible()
    view.get_by_label("Chip of the estimate").select_option("v5p")
    expect(tiles(view).nth(1)).to_contain_text("of 95 GiB: fits")


def test_bytes_sent_over_many_axes_are_listed_in_one_column_without_being_cut(harness: Harness):
    record = compiled_record()
    axes = {"fsdp": 3e6, "tensor": 2e6, "data": 1e6, "data+fsdp": 1e5, "data+fsdp+tensor": 1e4}
    stages = tuple(stage.replace(collective_bytes=axes) for stage in record.cost.stages)
    harness.page.set_viewport_size({"width": 640, "height": 900})
    view = harness.mount(CostView(record.replace(cost=record.cost.replace(stages=stages))))
    cell = view.locator(".wb-wirecell").first
    for axis in axes:
        expect(cell.get_by_text(f"over {axis}", exact=False).first).to_be_visible()
    assert view.locator(".wb-scroll").first.evaluate("node => node.scrollWidth <= node.clientWidth")
