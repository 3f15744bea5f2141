"""Two programs side by side on one call tree, and the buffers at the peak as areas."""

import pytest
import records_examples as examples
from every_view import compared_trees
from harness import Harness
from playwright.sync_api import expect
from workbench_widgets._compare import CompareView
from workbench_widgets._memory import MemoryView

from workbench.records.advice import ComparedRecord
from workbench.records.compiled import BufferRecord
from workbench.records.program import SourceLine

pytestmark = pytest.mark.browser


def test_a_tree_shows_both_programs_and_what_changed_most(harness: Harness):
    record = compared_trees()
    view = harness.mount(CompareView(record))
    view.get_by_role("button", name="Call tree, A next to B").click()
    rows = view.get_by_role("treegrid", name="Both programs by function, module and line").locator("[data-side]")
    expect(rows.first).to_contain_text("+2 MFLOP (+67 %)")
    expect(view.locator('[data-side="only last"]')).to_contain_text("new")
    expect(view.locator('[data-side="only first"]')).to_contain_text("gone")
    view.get_by_label("Only nodes").select_option("changed")
    expect(rows.filter(has_text="update")).to_have_count(0)
    rows.filter(has_text="Attention").click()
    expect(view.get_by_role("complementary")).to_contain_text("only in the last")


@pytest.mark.parametrize("width", [1270, 690])
def test_what_a_collective_sends_is_named_with_its_line_before_the_parts(harness: Harness, width: int):
    harness.page.set_viewport_size({"width": width, "height": 900})
    line = SourceLine(file="model.py", line=42)
    rows = (
        ComparedRecord(group="per device", name="peak memory", values=(8e6, 4e6), unit="bytes", status="changed"),
        ComparedRecord(group="per device", name="temporaries", values=(8.0, 4e6), unit="bytes", status="changed"),
        ComparedRecord(
            group="bytes sent per collective", name="all-gather over fsdp", values=(0.0, 5e6), unit="bytes",
            status="added", lines=(line, line.replace(line=43)),
        ),
        *(
            ComparedRecord(group="bytes sent per line", name=name, values=values, unit="bytes", status="changed")
            for name, values in (("model.py:7", (64, 128)), ("model.py:9", (4e6, 9e6)))
        ),
    )  # fmt: skip
    view = harness.mount(CompareView(compared_trees().replace(rows=rows, trees=())))
    shown = view.get_by_role("treegrid").locator("[data-row]")
    order = ["per device", "peak memory", "temporaries", "bytes sent per collective", "all-gather over fsdp"]
    for row, name in zip(shown.all(), [*order, "bytes sent per line", "model.py:9", "model.py:7"], strict=True):
        expect(row).to_contain_text(name)
    assert shown.nth(7).locator(".wb-compared-minor").count() == 1  # 64 bytes of 9 MB
    assert shown.nth(4).locator(".wb-compared-more").count() == 1
    name = shown.nth(4).get_by_text("all-gather over fsdp")
    assert name.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    expect(view.get_by_role("complementary")).to_contain_text("model.py:42 +1")


def test_an_area_of_the_treemap_selects_its_line(harness: Harness):
    record = examples.fedavg_record()
    assert record.module is not None
    buffer = BufferRecord(
        name="dot.1", size_bytes=1 << 20, shape="f32[512,512]", source=SourceLine(file="model.py", line=7)
    )
    memory = record.module.memory.replace(largest=(buffer,))
    made = MemoryView(record.replace(module=record.module.replace(memory=memory)))
    view = harness.mount(made)
    view.get_by_role("button", name="Treemap").click()
    areas = view.get_by_role("group", name="Buffers alive at the peak, by group")
    expect(areas).to_contain_text("smaller buffers")
    expect(areas.get_by_text("temporaries and results ›")).to_have_count(0)  # that leaves no room for the line
    areas.get_by_role("button", name="dot.1").click()
    assert made.selection["line"] == "model.py:7"
