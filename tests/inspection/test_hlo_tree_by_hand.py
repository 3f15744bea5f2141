"""Call trees of small HLO texts: the place, the loops, the share and the figures of every operation, by hand."""

import math
from typing import Any

import pytest

from workbench.inspection import inspect_module
from workbench.inspection._call_tree._frames import Frame
from workbench.inspection._call_tree._items import Scope
from workbench.inspection.hlo._call_tree import _common, _interleaved
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import PlanRecord, SourceLine, StageRecord, ValueRecord

LIBRARY = "/venv/lib/python3.11/site-packages/flax/linear.py"
LOST = "a loop of unknown length is counted as one iteration"
DIVIDED = "fused instructions and combined collectives are divided among the lines of their parts"
ADD = """add {
  l = f32[] parameter(0)
  r = f32[] parameter(1)
  ROOT sum = f32[] add(l, r)
}

"""


class Stacks:
    """The tables of stack frames of a module; `at` adds a stack and returns the metadata of an instruction."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._functions: dict[str, int] = {}
        self._places: list[str] = []
        self._frames: list[str] = []

    def at(self, stack: str, op_name: str = "") -> str:
        """A stack such as `step:3 lib!call:4`, outermost first; `lib!` marks a frame of a library."""
        parent = 0
        for part in stack.split():
            name, line = part.removeprefix("lib!").split(":")
            file = self._files.setdefault(LIBRARY if part.startswith("lib!") else "/me/a.py", len(self._files) + 1)
            function = self._functions.setdefault(name, len(self._functions) + 1)
            number = len(self._frames) + 1
            self._places.append(f"{number} {{file_name_id={file} function_name_id={function} line={line}}}")
            # a frame's parent is written one larger than its number
            self._frames.append(f"{number} {{file_location_id={number} parent_frame_id={parent + 1}}}")
            parent = number
        return f'metadata={{op_name="{op_name}" stack_frame_id={parent}}}'

    def head(self, name: str = "jit_step") -> str:
        def numbered(names: dict[str, int]) -> str:
            return "\n".join(f'{number} "{text}"' for text, number in names.items())

        tables = {"FileNames": numbered(self._files), "FunctionNames": numbered(self._functions),
                  "FileLocations": "\n".join(self._places), "StackFrames": "\n".join(self._frames)}  # fmt: skip
        return f"HloModule {name}, is_scheduled=true\n\n" + "".join(f"{k}\n{v}\n\n" for k, v in tables.items())


def tree_of(stacks: Stacks, body: str, *, name: str = "jit_step", **options: Any) -> CallTreeRecord:
    module: Any = inspect_module(stacks.head(name) + body, platform="cpu", **options)
    return module.call_tree


def paths(tree: CallTreeRecord, figure: str = "flops_elementwise") -> dict[str, float]:
    """The figure of every operation that has one, by the functions, loops, scopes and lines around the operation."""
    return {
        " ".join(node.name for node in tree.path(own)[1:]): getattr(own.own, figure)
        for own in tree.nodes if getattr(own.own, figure)
    }  # fmt: skip


def entry(lines: str) -> str:
    return "ENTRY main {\n" + "\n".join(f"  {line.strip()}" for line in lines.split(";")) + "\n}\n"


def test_functions_and_lines_of_instructions():
    s = Stacks()
    text = entry(
        f"x = f32[8] parameter(0); a = f32[8] tanh(x), {s.at('main:9 step:3', 'jit(step)/tanh')}; "
        f"b = f32[8] negate(a), {s.at('main:9 step:4 layer:7', 'jit(step)/neg')}; "
        f"c = f32[8] abs(b), {s.at('main:9 step:4 lib!call:5', 'jit(step)/abs')}; ROOT d = f32[8] exponential(c)"
    )
    tree = tree_of(s, text)
    assert paths(tree) == {
        "step a.py:3 tanh": 8, "step a.py:4 layer a.py:7 neg": 8, "step a.py:4 a.py:4 call abs": 8,
        "step a.py:4 a.py:4 call exponential": 8,  # without metadata: at the line of its operand
    }  # fmt: skip
    assert tree.attributed_to_line["flops_elementwise"] == 1
    assert tree.inferred["flops_elementwise"] == 8 / 32
    assert [note for note in tree.notes if note in (LOST, DIVIDED)] == []
    assert not any(node.at_least or node.split for node in tree.nodes)


@pytest.mark.parametrize(
    ("name", "root"),
    [("jit_step", "step"), ("pjit_step", "step"), ("step", "step"), ("jit__lambda_", "<lambda>"),
     ("jit__unknown_", "<unknown>"), ("jit__other_", "_other_"), ("my_jit_step", "my_jit_step")],
)  # fmt: skip
def test_name_of_the_root_is_that_of_the_function(name, root):
    assert tree_of(Stacks(), entry("ROOT x = f32[8] parameter(0)"), name=name).root.name == root


FUSED = """fused {{
  p = f32[4,8] parameter(0)
  q = f32[8,2] parameter(1)
  t = f32[4,8] tanh(p), {0}
  {1}
}}

"""


def test_a_fusion_is_divided_by_products_where_it_has_any_and_else_by_bytes():
    s = Stacks()
    first, second = s.at("step:3", "jit(step)/tanh"), s.at("step:4", "jit(step)/last")
    product = f"ROOT d = f32[4,2] dot(t, q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {second}"
    sums = f"ROOT d = f32[4,8] negate(t), {second}"
    head = "p0 = f32[4,8] parameter(0); q0 = f32[8,2] parameter(1); "
    with_product, without = (
        tree_of(s, FUSED.format(first, last) + entry(f"{head}ROOT o = {shape} fusion(p0, q0), kind=kLoop, calls=fused"))
        for last, shape in ((product, "f32[4,2]"), (sums, "f32[4,8]"))
    )  # fmt: skip
    shares = {node.name: node.instructions for node in with_product.nodes if node.instructions}
    assert {name: share["o"] for name, share in shares.items() if "o" in share} == {
        "tanh": 0, "last": 1, "fusion": 0,  # the memory of its result has no part of its seconds
    }  # fmt: skip
    assert paths(with_product, "flops_matmul") == {"step a.py:4 last": 2 * 4 * 8 * 2}
    assert DIVIDED not in with_product.notes
    # `tanh` reads 128 bytes, and the last operation writes 128 bytes; nothing reads `q`
    shares = {node.name: node.instructions for node in without.nodes if node.instructions}
    assert {name: share["o"] for name, share in shares.items() if "o" in share} == {
        "tanh": 1 / 2, "last": 1 / 2, "fusion": 0,
    }  # fmt: skip
    assert DIVIDED in without.notes
    assert {node.name for node in without.nodes if node.split} == {"tanh", "last"}


LOOP = """body {{
  c = (f32[8], s32[]) parameter(0)
  v = f32[8] get-tuple-element(c), index=0
  n = s32[] get-tuple-element(c), index=1
  w = f32[8] {work}, {line}
  ROOT t = (f32[8], s32[]) tuple(w, n)
}}

condition {{
  d = (f32[8], s32[]) parameter(0)
  ROOT more = pred[] custom-call(d), custom_call_target="k"
}}

outer {{
  oc = (f32[8], s32[]) parameter(0)
  il = (f32[8], s32[]) while(oc), condition=condition, body=body, {around}{trips}
  ov = f32[8] get-tuple-element(il), index=0
  on = s32[] get-tuple-element(il), index=1
  ROOT ot = (f32[8], s32[]) tuple(ov, on)
}}

oc2 {{
  od = (f32[8], s32[]) parameter(0)
  ROOT om = pred[] custom-call(od), custom_call_target="k"
}}

"""
KNOWN = ', backend_config={"known_trip_count":{"n":"%s"}}'


@pytest.mark.parametrize(
    ("outer", "inner", "flops", "trips"),
    [("5", "3", 8 * 15, [5, 3]), ("5", None, 8 * 5, [5, None]), (None, "3", 8 * 3, [None, 3]),
     (None, None, 8, [None, None])],
)  # fmt: skip
def test_loops_multiply_and_loops_of_unknown_length_count_once(outer, inner, flops, trips):
    s = Stacks()
    loops = LOOP.format(
        work="tanh(v)", line=s.at("step:3 layer:6", "jit(step)/while/body/while/body/tanh"),
        around=s.at("step:3", "jit(step)/while/body/while"), trips=KNOWN % inner if inner else "",
    )  # fmt: skip
    text = loops + entry(
        "x = f32[8] parameter(0); z = s32[] constant(0); t0 = (f32[8], s32[]) tuple(x, z); ROOT l = (f32[8], s32[]) "
        f"while(t0), condition=oc2, body=outer, {s.at('step:3', 'jit(step)/while')}{KNOWN % outer if outer else ''}"
    )
    tree = tree_of(s, text)
    assert paths(tree) == {"step a.py:3 loop loop layer a.py:6 tanh": flops}
    loop_nodes = [node for node in tree.nodes if node.kind == "loop"]
    assert [node.trip_count for node in loop_nodes[:2]] == trips
    (work,) = (node for node in tree.nodes if node.name == "tanh")
    assert work.at_least == (None in trips)
    assert (LOST in tree.notes) == (None in trips)


def test_a_branch_is_a_node_without_iterations():
    s = Stacks()
    text = (
        "less {\n  j = f32[8] parameter(0)\n  ROOT jc = f32[8] copy(j)\n}\n\n"
        f"more {{\n  k = f32[8] parameter(0)\n  kt = f32[8] tanh(k), {s.at('step:4', 'jit(step)/cond/tanh')}\n"
        "  ROOT ku = f32[8] copy(kt)\n}\n\n"
        + entry('x = f32[8] parameter(0); p = pred[] custom-call(x), custom_call_target="k"; ROOT o = f32[8] '
                f"conditional(p, x, x), branch_computations={{less, more}}, {s.at('step:3', 'jit(step)/cond')}")
    )  # fmt: skip
    tree = tree_of(s, text)
    (cond,) = (node for node in tree.nodes if node.kind == "loop")
    assert (cond.name, cond.trip_count, tree.root.at_least) == ("cond", None, False)
    assert LOST not in tree.notes
    assert [node.own.flops_elementwise for node in tree.nodes if node.name == "tanh"] == [8]


LOOPS = Scope("loop", "loop", 1, 5.0), Scope("cond", "loop", 2)


@pytest.mark.parametrize(
    ("names", "loops", "expected"),
    [
        (("a", "while", "b"), LOOPS[:1], "a loop b"),
        (("a", "b"), LOOPS[:1], "a b loop"),  # the name does not say where the loop is
        (("while", "a", "while", "b"), LOOPS[:1], "loop a b"),  # XLA moved it out of the inner loop
        (("cond", "a"), LOOPS[:1], "a loop"),  # of another kind
        (("while", "a", "cond", "b"), LOOPS, "loop a cond b"),
        (("cond", "a"), LOOPS[1:], "cond a"),
        (("a",), LOOPS, "a loop cond"),
        (("a", "while", "b", "cond"), (), "a b"),
        ((), LOOPS, "loop cond"),
    ],
)
def test_loops_stand_where_the_name_says(names, loops, expected):
    scopes = _interleaved(names, loops)
    assert " ".join(scope.name for scope in scopes) == expected
    assert [scope for scope in scopes if scope.kind == "loop"] == list(loops)


def numbered(text: str) -> tuple[Frame, ...]:
    return tuple(Frame("a.py", name, 1) for name in text)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [("abc", "abc", "abc"), ("ab", "abc", "ab"), ("abc", "ab", "ab"), ("abc", "axc", "a"), ("abc", "xbc", ""),
     ("", "abc", "")],
)  # fmt: skip
def test_frames_that_two_stacks_share(first, second, shared):
    assert _common(numbered(first), numbered(second)) == numbered(shared)


def test_stacks_that_do_not_name_the_program_begin_below_the_frames_of_libraries_that_all_share():
    s = Stacks()
    text = entry(
        f"x = f32[8] parameter(0); a = f32[8] tanh(x), {s.at('start:1 lib!run:2 mine:3 deep:5', 'jit(step)/tanh')}; "
        f"ROOT b = f32[8] negate(a), {s.at('start:1 lib!run:2 mine:4 lib!call:6', 'jit(step)/neg')}"
    )
    assert paths(tree_of(s, text)) == {"mine a.py:3 deep a.py:5 tanh": 8, "mine a.py:4 call neg": 8}


def line(function: str, number: int) -> SourceLine:
    return SourceLine(file="/me/a.py", line=number, function=function)


def planned(*stages: StageRecord, name: str = "step") -> PlanRecord:
    return PlanRecord(name=name, placements=(), stages=stages)


def client_stage(path: str, stack: tuple[SourceLine, ...], *body: StageRecord) -> StageRecord:
    return StageRecord(index=0, path=path, kind="clients", name="c", stack=stack, body=body)


def test_calls_of_client_functions_come_from_the_plan():
    s = Stacks()
    plan = planned(
        client_stage("0", (line("main", 1), line("step", 3))),
        StageRecord(index=1, path="1", kind="loop", name="scan", body=(client_stage("1.0", (line("step", 5),)),)),
        client_stage("2", (line("step", 8),), client_stage("2.0", ())),  # without calls of its own: those around it
    )
    text = entry(
        f"x = f32[8] parameter(0); a = f32[8] tanh(x), {s.at('train:20', 'jit(step)/wb:0:clients/tanh')}; "
        f"b = f32[8] negate(a), {s.at('train:21', 'jit(step)/wb:1:loop/while/body/wb:1.0:clients/neg')}; "
        f"c = f32[8] abs(b), {s.at('train:22', 'jit(step)/wb:2:clients/wb:2.0:clients/abs')}; "
        f"d = f32[8] cosine(c), {s.at('train:23', 'jit(step)/wb:7:clients/cos')}; "
        f"ROOT e = f32[8] sine(d), {s.at('step:9 train:24', 'jit(step)/wb:0:clients/sin')}"
    )
    assert paths(tree_of(s, text, plan=plan)) == {
        "step a.py:3 train a.py:20 tanh": 8,
        "step a.py:5 train a.py:21 neg": 8,
        "step a.py:8 train a.py:22 abs": 8,
        "train a.py:23 cos": 8,  # of a stage that is not in the plan
        "step a.py:9 train a.py:24 sin": 8,  # its own stack names the program
    }


def test_a_program_that_no_stack_names_has_the_name_of_its_plan():
    s = Stacks()
    text = entry(f"x = f32[8] parameter(0); ROOT a = f32[8] tanh(x), {s.at('mine:3', 'jit(step)/tanh')}")
    assert [tree_of(s, text, plan=planned(name=name)).root.name for name in ("mine", "other")] == ["mine", "step"]


@pytest.mark.parametrize(
    ("inputs", "names"),
    [(("w", "x"), ["argument w", "argument x"]), ((), ["argument p['w']", "argument"]),
     (("w",), ["argument p['w']", "argument"])],
)  # fmt: skip
def test_arguments_have_the_names_of_the_plan_or_of_the_text(inputs, names):
    s = Stacks()
    text = entry(
        r"""a = f32[8] parameter(0), metadata={op_name="p[\'w\']"}; b = f32[8] parameter(1); """
        "ROOT c = f32[8] add(a, b), " + s.at("step:3", "jit(step)/add")
    )
    values = tuple(ValueRecord(name=name, shape=(8,), dtype="float32", size_bytes=32) for name in inputs)
    tree = tree_of(s, text, plan=planned().replace(inputs=values))
    assert [n.name for n in tree.nodes if n.name.startswith("argument")] == names
    # memory takes no part in the seconds of an operation that also works; an argument does not work
    (work,) = (n for n in tree.nodes if n.name == "add")
    assert work.instructions == {"c": 1.0}
    assert work.own.peak_bytes == 32


COMBINED = (
    "a = f32[6] parameter(0); b = f32[2] parameter(1); s = (f32[6], f32[2]) all-reduce(a, b), "
    "replica_groups={{0,1}}, to_apply=add, %s; u = f32[6] get-tuple-element(s), index=0%s; "
    "v = f32[2] get-tuple-element(s), index=1%s; ROOT o = (f32[6], f32[2]) tuple(u, v)"
)


def test_a_combined_collective_is_divided_among_the_lines_that_take_its_elements():
    s = Stacks()
    lines = s.at("step:2", "jit(step)/psum"), s.at("step:3", "jit(step)/psum"), s.at("step:4", "jit(step)/psum")
    head = s.head().replace("is_scheduled=true", "is_scheduled=true, num_partitions=2")
    both: Any = inspect_module(head + ADD + entry(COMBINED % (lines[0], f", {lines[1]}", f", {lines[2]}")))
    shares = {node.parent: node.instructions["s"] for node in both.call_tree.nodes if node.name == "all-reduce"}
    assert {both.call_tree.nodes[parent].name: share for parent, share in shares.items() if share} == {
        "a.py:3": 24 / 32, "a.py:4": 8 / 32,
    }  # fmt: skip
    # an all-reduce of two devices sends its 32 bytes once
    sent = [n.own.sent_bytes for n in both.call_tree.nodes if n.own.sent_bytes]
    assert sent == [{"unnamed": 24.0}, {"unnamed": 8.0}]
    (total,) = both.call_tree.root.total.collectives
    assert (total.count, total.executions, total.payload_bytes, total.largest_bytes) == (1, 1, 32, None)
    whole: Any = inspect_module(head + ADD + entry(COMBINED % (lines[0], "", "")))
    (total,) = whole.call_tree.root.total.collectives
    assert (total.count, total.largest_bytes) == (1, 32)
    assert math.isclose(sum(whole.call_tree.root.total.sent_bytes.values()), 32)
