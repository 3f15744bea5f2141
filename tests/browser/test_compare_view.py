"""Two programs side by side on one call tree, and the buffers at the peak as areas."""

import pytest
import records_examples as examples
from every_view import compared_trees
from harness import Harness
from playwright.sync_api import expect
from workbench_widgets._compare import CompareView
from workbench_widgets._memory import MemoryView

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
