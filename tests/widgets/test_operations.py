"""The call tree as the operations view draws it, and the headline."""

import numpy as np
import pytest
import records_examples as examples
import records_parts as parts
from workbench_widgets._cost_state import cost_state
from workbench_widgets._headline import group_collectives, headline
from workbench_widgets._hlo import hlo_state
from workbench_widgets._operations import figures_of, operations_state, shown_nodes, with_measured
from workbench_widgets._scaling_state import stage_rows

from workbench.records.call_tree import CallCollectiveRecord, CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.compiled import CollectiveRecord, CostRecord, StageCostRecord
from workbench.records.program import SourceLine
from workbench.records.run import RunRecord


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


def test_column_of_measured_seconds_says_that_collectives_include_waiting():
    timed = tree().with_own({4: figures(8, 64).replace(measured_seconds={"cpu:0": 1.0})})
    state, _ = operations_state(timed)
    assert state["columns"][0]["title"] == "measured, with waits"
    profiled, _ = operations_state(timed, measured=True)
    assert any("include the wait" in note for note in profiled["notes"])


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


def layered(*names: str, flops: tuple[float, ...] = (), inside: tuple[str, ...] = ()) -> CallTreeRecord:
    """A root with one module for each name, each with one function inside."""
    nodes = [CallNodeRecord(id=0, parent=None, kind="root", name="step")]
    for i, name in enumerate(names):
        work = CallFiguresRecord(flops_matmul=flops[i] if flops else 8.0)
        nodes.append(CallNodeRecord(id=len(nodes), parent=0, kind="scope", name=name, total=work))
        function = inside[i] if inside else "call"
        nodes.append(
            CallNodeRecord(id=len(nodes), parent=len(nodes) - 1, kind="function", name=function, own=work, total=work)
        )
    total = CallFiguresRecord(flops_matmul=sum(node.own.flops for node in nodes))
    return CallTreeRecord(made_from="compiled", nodes=(nodes[0].replace(total=total), *nodes[1:]))


@pytest.mark.parametrize(
    ("sent", "columns"),
    [
        ({"data": 3.0, "model": 4.0}, {"sent": 7.0, "sent/model": 4.0, "sent/data": 3.0}),
        ({"data": 3.0}, {"sent/data": 3.0}),  # a total would say the same twice
    ],
)
def test_bytes_sent_have_a_total_and_a_column_per_axis(sent: dict[str, float], columns: dict[str, float]):
    root = CallNodeRecord(id=0, parent=None, kind="root", name="step", total=CallFiguresRecord(sent_bytes=sent))
    state, arrays = operations_state(CallTreeRecord(made_from="compiled", nodes=(root,)))
    keys = [column["key"] for column in state["columns"]]
    assert {key: np.frombuffer(arrays[f"tree.{key}"], "<f4").item() for key in keys} == columns


def test_equal_layers_are_one_row_with_the_sum_of_their_figures():
    state, arrays = operations_state(layered("blocks_0", "blocks_2", "blocks_1", flops=(1.0, 4.0, 2.0)))
    group = state["names"].index("3 × blocks_0…2")
    parents = np.frombuffer(arrays["tree.parent"], "<f4").astype(int).tolist()
    assert parents[group] == 0
    assert state["layers"] == {str(group): [1, 5, 3]}
    assert [parents[at] for at in (1, 3, 5)] == [group] * 3
    flops = np.frombuffer(arrays["tree.flops"], "<f4").tolist()
    assert flops[group] == 7.0
    assert sum(value for value, parent in zip(flops, parents, strict=True) if parent == 0) == flops[0]


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (layered("blocks_0", "blocks_1"), "two are read faster side by side"),
        (layered("embed", "mlp", "head"), "no numbers"),
        (layered("a_0", "b_1", "c_2"), "other names"),
        (layered("blocks_0", "blocks_1", "blocks_2", inside=("attend", "mix", "scan")), "other functions inside"),
    ],
)
def test_unlike_modules_are_not_folded(tree: CallTreeRecord, why: str):
    assert operations_state(tree)[0]["layers"] == {}, why


def test_the_odd_layer_out_stays_beside_the_equal_ones():
    names = tuple(f"layers[{i}]" for i in range(6))
    tree = layered(*names, inside=("dense", "dense", "experts", "dense", "dense", "dense"))
    state, _ = operations_state(tree)
    assert "5 × layers[0…1, 3…5]" in state["names"]
    assert "layers[2]" in state["names"]


def test_headline_names_the_line_that_sends_most_and_whether_the_program_fits():
    texts = [each["text"] for each in headline(examples.fedavg_record(), ["hlo", "memory"])]
    assert texts[0] == "1 all-reduce of 2.54 KiB over clients: 3.81 KiB of 6.31 KiB sent, fedavg.py:12 +1"
    assert "4.86 MiB per device · fits TPU v5e" in texts


def test_headline_begins_with_the_measured_seconds_of_a_call():
    run = RunRecord(name="fedavg", engine="mesh", seconds=0.06, rounds=3)
    first = headline(examples.fedavg_record(), ["timeline"], run)[0]
    assert (first["text"], first["view"]) == ("20 ms per call, measured", "timeline")


def test_headline_leads_only_to_views_that_exist():
    assert {each["view"] for each in headline(examples.fedavg_record(), ["hlo"])} == {"hlo", None}


def test_collectives_of_one_line_are_counted_together():
    record = examples.fedavg_record()
    assert record.module is not None
    one = record.module.collectives[0]
    groups = group_collectives([one, one.replace(name="all-reduce.7"), one.replace(name="x", axes=("model",))])
    assert [(len(group.members), group.axes) for group in groups] == [(2, one.axes), (1, ("model",))]
    assert groups[0].sent_bytes == 2 * groups[1].sent_bytes


def test_combined_collective_is_counted_with_the_others_of_its_first_line():
    record = examples.fedavg_record()
    one = record.module.collectives[0]
    (first, *_) = one.sources
    small = first.replace(line=first.line - 1)  # an earlier line, with a smaller part of the combined collective
    combined = one.replace(name="x", sources=(first, small))
    for collectives in ([one.replace(sources=(first,)), combined], [combined, one.replace(sources=(first,))]):
        (group,) = group_collectives(collectives)
        assert (len(group.members), [source.line for source in group.sources]) == (2, [first.line, small.line])
        assert group.places.endswith(f":{first.line} +1")


def test_headline_selects_the_largest_of_the_collectives_that_it_counts():
    record = examples.fedavg_record()
    one = record.module.collectives[0].replace(wire_bytes=1 << 10)
    both = record.replace(module=record.module.replace(collectives=(one, one.replace(name="x", wire_bytes=1 << 20))))
    assert headline(both, ["hlo"])[0]["select"]["instruction"] == "x"


def test_headline_says_of_which_total_the_largest_collectives_are():
    record = examples.fedavg_record()
    one = record.module.collectives[0].replace(payload_bytes=1 << 20, wire_bytes=1 << 20)
    other = one.replace(name="x", axes=("model",), wire_bytes=2 << 20)
    both = record.replace(module=record.module.replace(collectives=(one, other)))
    assert "2 MiB of 3 MiB sent" in headline(both, ["hlo"])[0]["text"]


def test_headline_counts_collectives_and_does_not_add_them_up_to_one():
    record = examples.fedavg_record()
    one = record.module.collectives[0].replace(axes=("data",), payload_bytes=8 << 20, wire_bytes=14 << 20)
    twelve = tuple(one.replace(name=f"all-reduce.{n}") for n in range(12))

    def first(*collectives) -> str:
        module = record.module.replace(collectives=collectives)
        return headline(record.replace(module=module), ["hlo"])[0]["text"].partition(",")[0]

    assert first(*twelve) == "12 all-reduces of 8 MiB each over data: 168 MiB sent"
    assert first(one.replace(executions=12)) == "12 all-reduces of 8 MiB each over data: 168 MiB sent"
    assert first(one, one.replace(payload_bytes=1 << 20, wire_bytes=1 << 20)) == (
        "2 all-reduces of ≤ 8 MiB over data: 15 MiB sent"
    )
    assert first(one.replace(executions=None)) == (
        "all-reduce of 8 MiB in a loop of unknown length over data: at least 14 MiB sent"
    )


def test_collectives_of_a_shared_helper_are_told_apart_by_their_callers():
    def node(at: int, parent: int | None, kind: str, name: str, line: int | None = None, **more) -> CallNodeRecord:
        file = None if line is None else "model.py"
        return CallNodeRecord(id=at, parent=parent, kind=kind, name=name, file=file, line=line, **more)  # type: ignore

    def below(at: int, function: str, line: int, instruction: str) -> list[CallNodeRecord]:
        return [
            node(at, 1, "call", f"model.py:{line + 20}", line + 20),
            node(at + 1, at, "function", function, line),
            node(at + 2, at + 1, "call", f"model.py:{line + 1}", line + 1),
            node(at + 3, at + 2, "function", "einsum", 5),
            node(at + 4, at + 3, "line", "model.py:6", 6),
            node(at + 5, at + 4, "operation", "dot", instructions={instruction: 1.0}),
        ]

    start = [node(0, None, "root", "step"), node(1, 0, "function", "step", 30)]
    nodes = (*start, *below(2, "attention", 10, "all-reduce.0"), *below(8, "mlp", 20, "all-reduce.1"))
    tree = CallTreeRecord(made_from="compiled", nodes=nodes)
    one = examples.fedavg_record().module.collectives[0].replace(sources=(SourceLine(file="model.py", line=6),))
    both = [one.replace(name=f"all-reduce.{n}") for n in range(2)]
    groups = group_collectives(both, tree)
    assert [group.places for group in groups] == ["model.py:11 › einsum", "model.py:21 › einsum"]
    assert [group.lines[0].line for group in groups] == [11, 21]
    (alone,) = group_collectives(both[:1], tree)  # one call leads to the line: nothing has to be told apart
    assert alone.places == "model.py:6"


def test_cell_is_named_by_its_number_and_chosen_by_its_file():
    file = "<ipython-input-3-8f1c>"
    node = CallNodeRecord(id=0, parent=None, kind="line", name="In [3]:5", file="In [3]", line=5, total=figures(8))
    state, _ = operations_state(CallTreeRecord(made_from="compiled", nodes=(node,)), [file])
    assert (state["keys"], state["places"]) == ([f"{file}:5"], ["In [3]:5"])


def timed_tree(*nodes: tuple[int | None, str, str], seconds: dict[int, float] | None = None) -> CallTreeRecord:
    amounts = seconds or {}
    made = tuple(
        CallNodeRecord(
            id=at, parent=parent, kind=kind, name=name,  # pyright: ignore[reportArgumentType]
            own=CallFiguresRecord(measured_seconds={"cpu:0": amounts[at]} if at in amounts else {}),
        )
        for at, (parent, kind, name) in enumerate(nodes)
    )  # fmt: skip
    return CallTreeRecord(made_from="compiled", nodes=made).with_own({})


def test_measured_seconds_of_a_run_are_on_the_same_lines_and_none_is_lost():
    shape = ((None, "root", "f"), (0, "function", "f"), (1, "line", "a.py:1"), (2, "operation", "dot"))
    run = timed_tree(*shape, (2, "operation", "copy"), seconds={3: 2.0, 4: 0.5})
    joined = with_measured(timed_tree(*shape), run)
    assert [node.total.measured_seconds.get("cpu:0") for node in joined.nodes] == [2.5, 2.5, 2.5, 2.0]
    assert joined.nodes[2].own.measured_seconds == {"cpu:0": 0.5}  # of an operation that only the run has
    state, _ = operations_state(joined)
    assert (state["columns"][0]["key"], state["columns"][0]["title"]) == ("measured", "measured")
    assert with_measured(joined, None) is joined


def test_measured_seconds_pass_over_loops_that_one_tree_lacks_and_reach_the_row_of_a_call():
    inside = ((None, "root", "f"), (0, "call", "a.py:9"), (1, "function", "train"))
    plain = (*inside, (2, "line", "a.py:1"))
    looped = (
        (None, "root", "f"),
        (0, "call", "a.py:9"),
        (1, "loop", "loop"),
        (2, "function", "train"),
        (3, "line", "a.py:1"),
    )
    for tree, run in ((plain, looped), (looped, plain)):
        joined = with_measured(timed_tree(*tree), timed_tree(*run, seconds={len(run) - 1: 2.0}))
        assert joined.nodes[-1].own.measured_seconds == {"cpu:0": 2.0}
    strange = (*inside, (2, "scope", "other"), (3, "line", "a.py:1"))
    joined = with_measured(timed_tree(*plain), timed_tree(*strange, (1, "operation", "copy"), seconds={4: 2.0, 5: 1.0}))
    train = next(node for node in shown_nodes(joined)[0] if node.name == "train")
    assert train.total.measured_seconds == {"cpu:0": 3.0}  # its call has no row of its own


def test_work_in_a_loop_of_unknown_length_is_a_lower_bound_everywhere():
    record = examples.fedavg_record()
    root = CallNodeRecord(
        id=0, parent=None, kind="root", name="f", at_least=True, total=CallFiguresRecord(flops_matmul=2e8)
    )
    tree = CallTreeRecord(made_from="compiled", nodes=(root,))
    unknown = record.replace(cost=None, module=record.module.replace(flops=None, collectives=(), call_tree=tree))
    texts = [each["text"] for each in headline(unknown)]
    assert "at least 200 MFLOP per device" in texts
    state, _ = hlo_state(unknown)
    assert state["facts"] in state["sentence"]
    assert state["facts"].startswith("at least 200 MFLOP")
    (target,) = cost_state(unknown.replace(cost=record.cost))["targets"]
    assert target["total"] == "at least 200 MFLOP per device"
    assert target["work"].startswith("at least 200 MFLOP")


def test_the_mesh_axis_over_which_most_is_sent_has_the_first_column():
    """Narrow views show only the first columns; the alphabet would hide `tensor` behind `data`."""
    nodes = [CallFiguresRecord(sent_bytes={"data": 5.0, "fsdp": 32.0, "tensor": 52.0}), CallFiguresRecord()]
    keys = [key for key, *_ in figures_of(nodes) if key.startswith("sent/")]
    assert keys == ["sent/tensor", "sent/fsdp", "sent/data"]


def test_bytes_of_a_stage_are_a_lower_bound_only_where_bytes_are_missing():
    stage = StageCostRecord(
        stage="0",
        kind="loop",
        name="scan",
        flops=None,
        accessed_bytes=None,
        collective_bytes={"data": 8.0, "model": 4.0},
        unknown_because=("no rate",),
    )
    sent = CollectiveRecord(
        name="all-reduce.1", kind="all-reduce", axes=("data",), group_size=2, groups=1, payload_bytes=8,
        wire_bytes=8.0, executions=1.0, stages=("0",),
    )  # fmt: skip
    endless = sent.replace(name="all-reduce.2", axes=("model",), executions=None)
    module = parts.module_record().replace(collectives=(sent, endless))
    (row,) = stage_rows(CostRecord(stages=(stage,)), module)
    assert (row["unknown"], row["wire_least"]) == (["no rate"], ["model"])
