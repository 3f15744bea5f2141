import pytest
import records_examples as examples
from records_parts import instructions
from workbench_widgets._graph_layout import lay_out_graph
from workbench_widgets._scopes import LEFT_OUT, OUTSIDE, ROOT, read_scopes

from workbench.records import InstructionRecord


def made(name: str, op_name: str = "", **fields: object) -> InstructionRecord:
    fields = {"opcode": "add", "computation": "main", "shape": "f32[]", "size_bytes": 4, "executions": 1.0} | fields
    return InstructionRecord(name=name, op_name=op_name, **fields)  # type: ignore[arg-type]


def test_groups_are_stages_with_the_names_of_the_plan():
    tree = read_scopes(instructions(24), examples.fedavg_record().plan)
    titles = [group.title for group in tree.groups]
    assert titles[:2] == ["stage 0 · broadcast", "stage 1 · train_locally"]
    assert [group.kind for group in tree.groups] == ["broadcast", "clients", "reduce", "reduce", "server"]


def test_scopes_inside_a_stage_are_groups_and_those_that_hold_one_thing_are_joined():
    found = [
        made("a", "jit(f)/wb:1:clients/layer/attention/dot", stage="1"),
        made("b", "jit(f)/wb:1:clients/layer/attention/add", stage="1"),
        made("c", "jit(f)/wb:1:clients/loss/add", stage="1"),
    ]
    tree = read_scopes(found)
    assert [group.title for group in tree.groups] == ["stage 1", "layer / attention", "loss"]
    assert tree.parent.tolist() == [ROOT, 0, 0, 1, 1, 2]


def test_an_instruction_without_a_stage_is_outside_of_every_stage():
    assert read_scopes([made("p")]).groups[0].title == OUTSIDE


def test_a_fusion_is_the_group_of_what_is_fused_and_the_inside_of_a_reduction_is_left_out():
    found = [
        made("p0", computation="fused", fused=True, opcode="parameter"),
        made("sum", computation="fused", fused=True, operands=("p0",)),
        made("region_add", computation="region", fused=True),
        made("x"),
        made("fusion.1", opcode="fusion", calls=("fused",), operands=("x",)),
        made("reduce.1", opcode="reduce", calls=("region",), operands=("fusion.1",)),
    ]
    tree = read_scopes(found)
    _, fusion = tree.groups
    assert (fusion.title, fusion.instruction, fusion.parent) == ("fusion.1", 4, 0)
    parents = dict(zip([each.name for each in found], tree.parent[2:].tolist(), strict=True))
    assert parents == {"p0": 1, "sum": 1, "region_add": LEFT_OUT, "x": 0, "fusion.1": LEFT_OUT, "reduce.1": 0}
    # Node 1 is the fusion's group, instructions follow from 2 on: x (5) -> fusion (1) -> reduce (7), and p0 -> sum.
    assert sorted(map(tuple, tree.edges.tolist())) == [(1, 7), (2, 3), (5, 1)]


def test_what_depends_on_something_stands_below_it():
    rows = lay_out_graph(5, [(0, 2), (1, 2), (2, 3), (2, 4)])[:, 1].tolist()
    assert rows == [0, 0, 1, 2, 2]


def test_an_input_stands_just_above_its_first_use():
    # 0 -> 1 -> 2 -> 3, and 4 is only used by 3, so it stands in the row above it.
    assert lay_out_graph(5, [(0, 1), (1, 2), (2, 3), (4, 3)])[4, 1] == 2


def test_groups_that_need_each_other_still_get_places():
    assert lay_out_graph(2, [(0, 1), (1, 0)])[:, 1].tolist() == [0, 1]


@pytest.mark.parametrize("count", [1, 40, 500], ids=str)
def test_no_two_nodes_share_a_place(count: int):
    chain = [(i, i + 1) for i in range(count - 1)]
    places = {tuple(place) for place in lay_out_graph(count, chain).tolist()}
    assert len(places) == count
    assert len({tuple(place) for place in lay_out_graph(count, []).tolist()}) == count
