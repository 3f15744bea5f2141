"""Call trees of a few hand-written items; every node and figure is derived by hand."""

from typing import Any

import pytest
from records_parts import toy_module

from workbench.cost import InstructionTime, known_chip
from workbench.inspection import measured_tree
from workbench.inspection._call_tree import _seconds
from workbench.inspection._call_tree._build import build_tree
from workbench.inspection._call_tree._frames import (
    Frame,
    below_outer,
    home_of,
    is_named,
    layer_of,
    outer_frames,
    split_stack,
    trim,
)
from workbench.inspection._call_tree._items import Amounts, Item, Scope
from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.compiled import InstructionRecord

CHIP: Any = known_chip("v5e")
STEP, LAYER = Frame("a.py", "step", 3, 7), Frame("b.py", "Net.<locals>.layer", 5, 9)
NNX = Frame("/venv/lib/python3.11/site-packages/flax/nnx/nn/linear.py", "Linear.__call__", 431)


def item(frames: Any, operation: str, flops: float = 0.0, **options: Any) -> Item:
    defaults: Any = {"inside": (), "scopes": (), "pass_name": "forward", "amounts": Amounts(flops_matmul=flops)}
    return Item(frames=tuple(frames), operation=operation, **{**defaults, **options})


def tree_of(*items: Item) -> CallTreeRecord:
    return build_tree(items, name="step", made_from="compiled")


def drawn(tree: CallTreeRecord) -> list[str]:
    """A line per node: its depth, kind, name, pass and FLOPs with all nodes below."""
    return [
        f"{'. ' * (len(tree.path(node)) - 1)}{node.kind} {node.name} {node.pass_name} {node.total.flops_matmul:g}"
        for node in tree.nodes
    ]


def test_functions_lines_and_operations():
    tree = tree_of(
        item((STEP, LAYER), "dot", 4), item((STEP, LAYER._replace(column=2)), "dot", 3), item((STEP,), "sin", 2),
        item((STEP._replace(line=4), LAYER), "dot", 1),
    )  # fmt: skip
    assert drawn(tree) == [
        "root step forward 10",
        ". function step forward 10",
        ". . call a.py:3 forward 9",
        ". . . line a.py:3 forward 2",
        ". . . . operation sin forward 2",
        ". . . function Net.layer forward 7",
        ". . . . line b.py:5 forward 7",
        ". . . . . operation dot forward 7",
        ". . call a.py:4 forward 1",
        ". . . function Net.layer forward 1",
        ". . . . line b.py:5 forward 1",
        ". . . . . operation dot forward 1",
    ]
    line = tree.nodes[6]
    assert (line.file, line.line, line.column, line.parent) == ("b.py", 5, 9, 5)


def test_passes_of_one_line_are_apart_and_the_line_is_mixed():
    tree = tree_of(item((STEP,), "dot", 4), item((STEP,), "dot", 2, pass_name="transpose"))
    assert drawn(tree) == [
        "root step mixed 6",
        ". function step mixed 6",
        ". . line a.py:3 mixed 6",
        ". . . line a.py:3 forward 4",
        ". . . . operation dot forward 4",
        ". . . line a.py:3 transpose 2",
        ". . . . operation dot transpose 2",
    ]


def test_one_pass_is_that_of_all_nodes_above():
    tree = tree_of(item((STEP,), "dot", 4, pass_name="remat"))
    assert {node.pass_name for node in tree.nodes} == {"remat"}
    assert tree_of().root.pass_name == "forward"


def test_loop_at_its_depth_and_scope_below_its_line():
    loop, scope = Scope("loop", "loop", 1, 5.0), Scope("mlp", "scope")
    tree = tree_of(item((STEP, LAYER), "dot", 4, scopes=(loop, scope)))
    assert drawn(tree) == [
        "root step forward 4",
        ". function step forward 4",
        ". . call a.py:3 forward 4",
        ". . . loop loop forward 4",
        ". . . . function Net.layer forward 4",
        ". . . . . call b.py:5 forward 4",
        ". . . . . . scope mlp forward 4",
        ". . . . . . . operation dot forward 4",
    ]
    names = {node.name: (node.trip_count, node.scope) for node in tree.nodes}
    assert (names["loop"], names["mlp"], names["dot"]) == ((5.0, ""), (None, "mlp"), (None, "mlp"))


def test_frames_of_a_library_are_hidden_below_their_layer():
    tree = tree_of(item((STEP,), "dot", 4, inside=(NNX,)))
    assert [(n.kind, n.name, n.hidden) for n in tree.nodes[2:]] == [
        ("call", "a.py:3", False), ("scope", "nnx.Linear", False), ("function", "Linear.__call__", True),
        ("operation", "dot", False),
    ]  # fmt: skip
    assert tree.nodes[-1].scope == "nnx.Linear"


def test_shares_of_what_has_a_line_and_what_has_a_scope():
    tree = tree_of(
        item((STEP,), "dot", 4), item((STEP,), "sin", 2, inferred=True),
        item((), "add", 1, scopes=(Scope("s", "scope"),)), item((), "copy", 3),
    )  # fmt: skip
    assert tree.attributed_to_line == {"flops_matmul": 6 / 10}
    assert tree.attributed_to_module == {"flops_matmul": 7 / 10}
    assert tree.inferred == {"flops_matmul": 2 / 10}
    assert [n.name for n in tree.nodes if n.kind == "unattributed"] == ["not attributed to a line"]


@pytest.mark.parametrize(
    ("shares", "split"),
    [((1.0,), False), ((0.5, 0.5), True), ((0.0,), False), ((0.0, 0.25), True), ((0.25, 1.0), True)],
)
def test_an_operation_with_a_part_of_an_instruction_is_split(shares, split):
    items = [item((STEP,), "dot", 1, instruction=f"i{n}", share=share) for n, share in enumerate(shares)]
    leaf = tree_of(*items).nodes[-1]
    assert (leaf.split, leaf.instructions) == (split, {f"i{n}": share for n, share in enumerate(shares)})


def test_collectives_of_one_kind_add_up():
    def sent(count, executions, payload, wire, largest):
        return Amounts(
            sent_bytes={"x": wire}, collectives={("all-reduce", ("x",)): [count, executions, payload, wire, largest]}
        )

    parts = sent(1, 3, 30, 45, 10), sent(1, 2, 8, 12, 4)
    tree = tree_of(item((STEP,), "all-reduce", amounts=parts[0]), item((STEP,), "all-reduce", amounts=parts[1]),
                   item((), "all-reduce", amounts=sent(1, 5, 1, 1, 0)))  # fmt: skip
    (one,) = tree.nodes[2].total.collectives
    assert (one.count, one.executions, one.payload_bytes, one.sent_bytes, one.largest_bytes) == (2, 5, 38, 57, 10)
    assert tree.root.total.sent_bytes == {"x": 58}
    assert tree.attributed_to_line == {"sent_bytes": 57 / 58, "collectives": 5 / 10}  # by executions


def test_a_collective_of_no_bytes_has_a_largest_payload_of_0():
    amounts = Amounts(collectives={("all-reduce", ("x",)): [1, 1, 0, 0, 0.0]})
    (one,) = tree_of(item((STEP,), "all-reduce", amounts=amounts)).root.total.collectives
    assert one.largest_bytes == 0


def test_lower_bounds_reach_the_root():
    tree = tree_of(item((STEP, LAYER), "dot", 1, at_least=True), item((STEP._replace(line=4),), "sin", 1))
    assert [node.name for node in tree.nodes if not node.at_least] == ["a.py:4", "sin"]


def test_measured_seconds_are_divided_by_share_and_the_rest_is_a_node():
    root = CallNodeRecord(id=0, parent=None, kind="root", name="step")
    nodes = [CallNodeRecord(id=n, parent=0, kind="operation", name=f"n{n}", instructions=parts)
             for n, parts in ((1, {"a": 0.25, "b": 1.0}), (2, {"a": 0.25}))]  # fmt: skip
    seconds = {"a": {"d0": 4.0, "d1": 2.0}, "b": {"d0": 1.0}, "lost": {"d1": 0.5}, "gone": {"d1": 0.25}}
    tree = measured_tree(CallTreeRecord(made_from="compiled", nodes=(root, *nodes)), seconds)
    measured = {node.name: node.own.measured_seconds for node in tree.nodes}
    assert measured == {
        "step": {}, "n1": {"d0": 3.0, "d1": 1.0}, "n2": {"d0": 2.0, "d1": 1.0},
        "time of unknown operations": {"d1": 0.75},
    }  # fmt: skip
    assert tree.root.total.measured_seconds == {"d0": 5.0, "d1": 2.75}


def test_predicted_seconds_are_those_of_all_executions_and_unknown_times_are_named(monkeypatch):
    def ran(name: str, executions: float | None) -> InstructionRecord:
        return InstructionRecord(name=name, opcode="add", computation="main", shape="f32[]", size_bytes=4,
                                 executions=executions)  # fmt: skip

    times = {
        "a": InstructionTime(2.0, 2.0), "b": InstructionTime(3.0, 3.0), "c": InstructionTime(None, None, unknown="why"),
        "lost": InstructionTime(5.0, 5.0), "gone": InstructionTime(None, None, unknown="silent"),
    }  # fmt: skip
    monkeypatch.setattr(_seconds, "time_module", lambda *_: times)
    module = toy_module(instructions=(ran("a", 10), ran("b", None), ran("c", 1), ran("lost", 4), ran("gone", 1)))
    root = CallNodeRecord(id=0, parent=None, kind="root", name="step")
    parts = {"a": 0.25, "b": 1.0}, {"a": 0.75}, {"c": 0.5, "a": 0.0}, {"other": 1.0}
    nodes = [
        CallNodeRecord(id=n, parent=0, kind="operation", name=f"n{n}", instructions=shares)
        for n, shares in enumerate(parts, 1)
    ]
    before = CallTreeRecord(made_from="compiled", nodes=(root, *nodes))
    tree = _seconds.predict_seconds(before, module, CHIP, "float32")
    found = {node.name: (node.own.predicted_seconds, node.own.unknown_seconds, node.parent) for node in tree.nodes}
    assert found == {
        "step": (None, False, None), "n1": (0.25 * 10 * 2 + 3, False, 0), "n2": (15.0, False, 0),
        "n3": (None, True, 0), "n4": (None, False, 0), "time of unknown operations": (20.0, False, 0),
    }  # fmt: skip
    assert (tree.root.total.predicted_seconds, tree.root.total.unknown_seconds) == (None, True)
    assert tree.notes == ("predicted seconds are unknown: why",)
    del times["lost"], times["gone"], times["c"]
    known = _seconds.predict_seconds(before, module, CHIP, "float32")
    assert [node.name for node in known.nodes] == ["step", "n1", "n2", "n3", "n4"]
    assert (known.root.total.predicted_seconds, known.notes) == (23.0, ())


def frames(text: str) -> tuple[Frame, ...]:
    return tuple(Frame(file, name, int(line)) for file, name, line in (part.split(":") for part in text.split()))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a:f:1 a:f:1", "f1"),
        ("a:f:1 a:g:2 a:f:1 a:g:2", "f1 g2"),
        ("a:f:1 a:g:2 a:h:3 a:f:1 a:g:2 a:h:3", "f1 g2 h3"),
        ("a:s:9 a:f:1 a:g:2 a:f:1 a:g:2", "s9 f1 g2"),
        ("a:f:1 a:f:2", "f1 f2"),  # a recursion at another line stays
        ("a:f:1 a:f:1 a:f:1 a:g:2", "f1 g2"),
    ],
)
def test_repeated_parts_of_a_stack_appear_once(text, left):
    assert " ".join(f"{f.function}{f.line}" for f in trim(frames(text), "main")) == left


def test_outer_frames_are_those_before_the_program():
    stacks = [frames("t:<module>:1 t:main:2 t:step:3 t:layer:4"), frames("t:run:1 t:Loop.step:3"), frames("t:other:9")]
    assert outer_frames(stacks, "step") == {("t", "<module>"), ("t", "main"), ("t", "run")}


@pytest.mark.parametrize(
    ("function", "name", "named"),
    [("step", "step", True), ("a.b.step", "step", True), ("a.step", "a.step", False), ("steps", "step", False)],
)
def test_name_of_a_frame_is_its_last_part(function, name, named):
    assert is_named(Frame("a.py", function, 1), name) is named


@pytest.mark.parametrize(("function", "left"), [("Outer.Inner.helper", True), ("Outer.other", False)])
def test_methods_of_another_programs_stack_are_kept_by_their_last_name(function, left):
    stack = (*frames("t:main:2 t:step:3 t:main:2"), Frame("t", function, 4))
    kept = trim(stack, "step", frozenset({("t", "main")}), ("helper",))
    assert [f.function for f in kept] == (["step", function] if left else ["step"])


def test_frames_below_the_last_outer_frame():
    outer = frozenset({("t", "plan")})
    assert below_outer(frames("t:plan:1 t:plan:2 t:pod:3 t:plan:4"), outer) == frames("t:pod:3 t:plan:4")
    assert below_outer(frames("t:pod:3"), outer) == frames("t:pod:3")


def test_stack_of_libraries_only_has_no_users_frames():
    assert split_stack((NNX, NNX)) == ((), (NNX, NNX))
    assert split_stack((NNX, STEP, NNX, LAYER, NNX)) == ((STEP, LAYER), (NNX,))


def test_layer_and_home_of_frames():
    assert layer_of(NNX.file, NNX.function) == "nnx.Linear"
    assert [layer_of(NNX.file, "Linear.init"), layer_of("/mine/linear.py", "Linear.__call__")] == [None, None]
    assert home_of([(STEP, NNX)], "__call__") == "flax"
    assert home_of([(STEP, NNX)], "step") is None
