"""Two programs side by side on one call tree, and the buffers at the peak as areas."""

import pytest
import records_examples as examples
import workbench_widgets
from harness import Harness
from playwright.sync_api import expect

from workbench.records import (
    BufferRecord,
    CallFiguresRecord,
    CallNodeRecord,
    CallTreeRecord,
    ComparedRecord,
    ComparisonRecord,
    SourceLine,
)

pytestmark = pytest.mark.browser


def tree(flops: float, module: str) -> CallTreeRecord:
    def node(at: int, parent: int | None, kind: str, name: str, count: float) -> CallNodeRecord:
        figures = CallFiguresRecord(flops_matmul=count)
        return CallNodeRecord(id=at, parent=parent, kind=kind, name=name, total=figures)  # pyright: ignore[reportArgumentType]

    nodes = (node(0, None, "root", "step", flops + 1e6), node(1, 0, "function", "loss", flops),
             node(2, 1, "scope", module, flops), node(3, 0, "scope", "update", 1e6))  # fmt: skip
    return CallTreeRecord(made_from="compiled", nodes=nodes)


def test_a_tree_shows_both_programs_and_what_changed_most(harness: Harness):
    record = ComparisonRecord(
        names=("before", "after"),
        targets=("cpu x 8", "cpu x 8"),
        rows=(ComparedRecord(group="per device", name="FLOPs", values=(3e6, 5e6), unit="flops", status="changed"),),
        trees=(tree(2e6, "Linear"), tree(4e6, "Attention")),
    )
    view = harness.mount(workbench_widgets.CompareView(record))
    view.get_by_role("button", name="Call tree, A beside B").click()
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
    made = workbench_widgets.MemoryView(record.replace(module=record.module.replace(memory=memory)))
    view = harness.mount(made)
    view.get_by_role("button", name="Treemap").click()
    areas = view.get_by_role("group", name="Buffers alive at the peak, by line")
    expect(areas).to_contain_text("smaller buffers")
    areas.get_by_role("button", name="dot.1").click()
    assert made.selection["line"] == "model.py:7"
