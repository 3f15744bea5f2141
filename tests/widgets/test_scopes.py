import records_examples as examples
from records_parts import instructions
from workbench_widgets._scopes import LEFT_OUT, OUTSIDE, ROOT, read_call_groups, read_edges, read_scopes

from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.compiled import InstructionRecord


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


def test_edges_join_operands_and_users():
    found = [made("x"), made("y"), made("z", operands=("x", "y", "elsewhere"))]
    assert read_edges(found).tolist() == [[0, 2], [1, 2]]


def test_groups_of_the_call_tree_hold_the_instructions_of_their_operations():
    root = CallNodeRecord(id=0, parent=None, kind="root", name="step")
    loss = CallNodeRecord(id=1, parent=0, kind="function", name="loss", file="a.py", line=3)
    # Two instructions make a group of the operation; one alone is in the function itself.
    dots = CallNodeRecord(
        id=2, parent=1, kind="operation", name="dot_general", instructions={"dot.1": 1.0, "dot.2": 0.4}
    )
    add = CallNodeRecord(id=3, parent=1, kind="operation", name="add", instructions={"add.1": 1.0, "dot.2": 0.6})
    tree = CallTreeRecord(made_from="compiled", nodes=(root, loss, dots, add))
    found = [made("dot.1"), made("dot.2"), made("add.1"), made("tuple.1", opcode="tuple", operands=("add.1",))]
    made_tree = read_call_groups(found, tree)
    names = [group.title for group in made_tree.groups]
    homes = [names[at] for at in made_tree.parent[len(names) :]]
    # dot.2 belongs to add by its larger share, and the tuple to what it is made of.
    assert homes == ["loss", "add", "add", "add"]
    assert made_tree.groups[names.index("loss")].key == "a.py:3"


def test_scopes_and_fusions_that_nest_without_end_are_groups_and_no_recursion():
    deep = "/".join(["jit(f)", *(f"s{i}" for i in range(3000)), "add"])
    by_scope = read_scopes([made("a", deep), made("b", deep.replace("s7/", "s7/other/"))])
    assert by_scope.parent[len(by_scope.groups)] >= 0
    inside = [made("x0", opcode="fusion", calls=("c0",))]
    inside += [
        made(f"x{i}", opcode="fusion", fused=True, computation=f"c{i - 1}", calls=(f"c{i}",)) for i in range(1, 3000)
    ]
    nested = read_scopes([*inside, made("y", fused=True, computation="c2999")])
    assert len(nested.groups) == 3001  # the fusions, and what is outside of all stages


def test_a_fusion_that_holds_itself_is_in_no_group():
    itself = made("x", opcode="fusion", fused=True, computation="c", calls=("c",))
    assert read_scopes([itself]).parent.tolist() == [LEFT_OUT]
