"""The call tree as the operations view draws it, and the headline."""

import numpy as np
import records_examples as examples
from workbench_widgets._headline import group_collectives, headline
from workbench_widgets._operations import operations_state

from workbench.records import CallCollectiveRecord, CallFiguresRecord, CallNodeRecord, CallTreeRecord


def figures(flops: float, sent: float = 0.0) -> CallFiguresRecord:
    joint = CallCollectiveRecord(
        kind="all-reduce", axes=("model",), count=1, executions=2, payload_bytes=sent, sent_bytes=sent
    )
    return CallFiguresRecord(
        flops_matmul=flops, sent_bytes={"model": sent} if sent else {}, collectives=(joint,) if sent else ()
    )


def tree() -> CallTreeRecord:
    """`step` calls `loss` on line 5, which a library frame leads to a line with a product."""
    return CallTreeRecord(
        made_from="compiled",
        nodes=(
            CallNodeRecord(id=0, parent=None, kind="root", name="step", total=figures(8, 64)),
            CallNodeRecord(id=1, parent=0, kind="call", name="f.py:5", file="f.py", line=5, total=figures(8, 64)),
            CallNodeRecord(id=2, parent=1, kind="function", name="loss", file="f.py", total=figures(8, 64)),
            CallNodeRecord(id=3, parent=2, kind="function", name="jnp.dot", hidden=True, total=figures(8, 64)),
            CallNodeRecord(
                id=4, parent=3, kind="operation", name="dot", file="f.py", line=9, total=figures(8, 64),
                own=figures(8, 64), instructions=("dot.1",),
            ),
        ),
    )  # fmt: skip


def test_library_frames_are_folded_and_a_call_is_one_row_with_its_function():
    state, arrays = operations_state(tree())
    assert state["names"] == ["step", "loss", "dot"]
    assert np.frombuffer(arrays["tree.parent"], "<f4").tolist() == [-1, 0, 1]
    assert state["keys"] == ["", "f.py:5", "f.py:9"]  # a function is at the line that calls it
    assert state["instructions"] == {"2": ["dot.1"]}


def test_operation_in_a_library_is_from_the_line_that_calls_it():
    made = tree()
    library = made.nodes[3].replace(file="lax.py", line=70)
    inside = made.nodes[4].replace(file="lax.py", line=71)
    state, _ = operations_state(made.replace(nodes=(*made.nodes[:3], library, inside)))
    assert state["keys"] == ["", "f.py:5", "f.py:5"]


def test_only_figures_that_are_counted_are_columns():
    state, arrays = operations_state(tree())
    assert [column["key"] for column in state["columns"]] == ["flops", "matmul", "sent/model"]
    assert np.frombuffer(arrays["tree.sent/model"], "<f4").tolist() == [64, 64, 64]
    assert state["collectives"]["2"] == [["all-reduce", "model", "1", "2", "64 B", "64 B"]]


def test_headline_names_the_line_that_sends_most_and_whether_the_program_fits():
    texts = [each["text"] for each in headline(examples.fedavg_record(), ["hlo", "memory"])]
    assert texts[0] == "1 all-reduce of 2.54 KiB over clients, fedavg.py:12 +1"
    assert "4.86 MiB per device · fits TPU v5e" in texts


def test_headline_leads_only_to_views_that_exist():
    assert {each["view"] for each in headline(examples.fedavg_record(), ["hlo"])} == {"hlo", None}


def test_collectives_of_one_line_are_counted_together():
    record = examples.fedavg_record()
    assert record.module is not None
    one = record.module.collectives[0]
    groups = group_collectives([one, one.replace(name="all-reduce.7"), one.replace(name="x", axes=("model",))])
    assert [(len(group.members), group.axes) for group in groups] == [(2, one.axes), (1, ("model",))]
    assert groups[0].payload_bytes == 2 * groups[1].payload_bytes


def test_cell_is_named_by_its_number_and_chosen_by_its_file():
    file = "<ipython-input-3-8f1c>"
    node = CallNodeRecord(id=0, parent=None, kind="line", name="In [3]:5", file="In [3]", line=5, total=figures(8))
    state, _ = operations_state(CallTreeRecord(made_from="compiled", nodes=(node,)), [file])
    assert (state["keys"], state["places"]) == ([f"{file}:5"], ["In [3]:5"])
