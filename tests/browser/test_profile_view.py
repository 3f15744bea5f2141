"""A recorded profile in the browser."""

import pytest
import workbench_widgets
from harness import Harness
from playwright.sync_api import expect
from records_parts import TOY_CHIP
from visitor import open_tab

from workbench.records.profile import (
    ProfiledDeviceRecord,
    ProfiledMemoryRecord,
    ProfiledOperationRecord,
    ProfiledProgramRecord,
    ProfileRecord,
)
from workbench.records.run import EventRecord

pytestmark = pytest.mark.browser

CHIP = TOY_CHIP.replace(
    name="chip",
    peak_flops_per_second={"bfloat16": 1e14},
    hbm_bytes=2**34,
    hbm_bytes_per_second=1e12,
    link_bytes_per_second=1e11,
    links=4,
    topology="torus2d",
)
DOT = ProfiledOperationRecord(
    name="dot.1", program="jit_step", category="convolution", executions=2.0, seconds=2e-3,
    seconds_by_device={"tpu:0": 2e-3}, flops=2e10, accessed_bytes=1e8, dtype="bfloat16", predicted_seconds=2e-4,
)  # fmt: skip
ADD = DOT.replace(name="add.1", category="loop fusion", seconds=1e-3, flops=1e6, accessed_bytes=1e7)
PROFILE = ProfileRecord(
    name="step",
    files=(),
    chip=CHIP,
    devices=(ProfiledDeviceRecord(where="tpu:0", platform="tpu", span_seconds=4e-3, compute_seconds=3e-3),),
    programs=(ProfiledProgramRecord(name="jit_step", module="jit_step", seconds=3e-3, operations=2),),
    operations=(DOT, ADD),
    events=(EventRecord(where="tpu:0", name="dot.1", start_seconds=0.0, seconds=1e-3),),
    memory=(
        ProfiledMemoryRecord(
            where="tpu:0", allocator="HBM", peak_bytes=2**20, events=2, timeline=((0.0, 0), (1e-3, 2**20))
        ),
    ),
    joined_seconds=1.0,
)


def test_dot_of_the_roofline_selects_its_operation(harness: Harness):
    made = workbench_widgets.ProfileView(PROFILE, view="measured")
    view = harness.mount(made)
    dot = view.get_by_role("button", name="dot.1: 200 matrix FLOPs per byte")
    expect(dot).to_have_attribute(
        "aria-label", "dot.1: 200 matrix FLOPs per byte, 20 TFLOP/s measured, 20 % of the roof, 2 ms in all"
    )
    dot.focus()
    harness.page.keyboard.press("Enter")
    assert made.selection["instruction"] == "dot.1"
    expect(view.get_by_role("row", selected=True)).to_contain_text("5.00 ×")  # 1 ms against 0.2 ms


def test_operations_of_one_program_are_chosen(harness: Harness):
    other = ADD.replace(program="jit_eval", seconds=5e-4)
    view = harness.mount(workbench_widgets.ProfileView(PROFILE.replace(operations=(DOT, ADD, other)), view="measured"))
    chooser = view.get_by_role("combobox", name="Program")
    expect(chooser.get_by_role("option")).to_have_text(["all 2 programs", "jit_step: 3 ms", "jit_eval: 500 µs"])
    chooser.select_option("jit_eval")
    expect(view.get_by_text("1 of 3 operations")).to_be_visible()
    expect(view.get_by_role("group", name="Roofline, 1 measured operations")).to_be_visible()


def test_every_tab_of_a_profile_opens(harness: Harness):
    view = harness.mount(workbench_widgets.ProfileView(PROFILE))
    open_tab(view, "Devices")
    expect(view.get_by_role("img", name="tpu:0: computing 3 ms, idle 1 ms")).to_be_visible()
    open_tab(view, "Memory")
    expect(view.get_by_role("img", name="HBM on tpu:0: at most 1 MiB")).to_be_visible()
    open_tab(view, "Timeline")
    expect(view.locator("canvas").first).to_be_visible()
