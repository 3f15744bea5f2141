"""HLO text as statements, instructions, lines and stages; every expected value is read off the text by hand."""

from typing import Any

import pytest

from workbench.errors import InspectionError
from workbench.inspection.hlo._frames import Frames
from workbench.inspection.hlo._statements import statements
from workbench.inspection.hlo._text import parse_hlo


def parts(text):
    return [(s.kind, s.number, s.text) for s in statements(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("\n\nHloModule m", [("module", 3, "HloModule m")], id="blank lines count"),
        pytest.param("HloModule m, a={\n 1,\n 2}\n", [("module", 1, "HloModule m, a={ 1, 2}")], id="header in braces"),
        pytest.param("HloModule m,\n  a=1\n", [("module", 1, "HloModule m, a=1")], id="header after a comma"),
        pytest.param(
            'HloModule m\n\nFileNames\n1 "a.py"\n2 "b {.py"\n\nStackFrames\n1 {file_location_id=1}\n',
            [("module", 1, "HloModule m"), ("table", 3, "FileNames"), ("row", 4, '1 "a.py"'), ("row", 5, '2 "b {.py"'),
             ("table", 7, "StackFrames"), ("row", 8, "1 {file_location_id=1}")], id="tables"),
        pytest.param(
            "f {\n  ROOT %a = f32[] parameter(0)\n}\n",
            [("computation", 1, "f {"), ("instruction", 2, "ROOT %a = f32[] parameter(0)"), ("end", 3, "}")],
            id="computation"),
        pytest.param(
            "f (x: f32[],\n   y: f32[])\n  -> f32[] {\n  a = f32[] add(\n    x,\n    y)\n  b = f32[] negate(a)\n}\n",
            [("computation", 1, "f (x: f32[], y: f32[]) -> f32[] {"), ("instruction", 4, "a = f32[] add( x, y)"),
             ("instruction", 7, "b = f32[] negate(a)"), ("end", 8, "}")], id="continued lines"),
        pytest.param(
            "f {\n  a = f32[] add(x, y),\n    metadata={}\n  b = f32[] negate(a)\n}\n",
            [("computation", 1, "f {"), ("instruction", 2, "a = f32[] add(x, y), metadata={}"),
             ("instruction", 4, "b = f32[] negate(a)"), ("end", 5, "}")], id="attributes on the next line"),
        pytest.param(
            "f { // the {first\n  a = f32[] /*{*/ add(x, y) // (\n}\n",
            [("computation", 1, "f {"), ("instruction", 2, "a = f32[]  add(x, y)"), ("end", 3, "}")], id="comments"),
        pytest.param(
            "f {\n  /* a (\n } */ a = f32[] negate(x)\n}\n",
            [("computation", 1, "f {"), ("instruction", 3, "a = f32[] negate(x)"), ("end", 4, "}")],
            id="comment over two lines"),
        pytest.param(
            "f {\n  %a = (f32[], /*index=1*/f32[]) tuple(%x, /*index=1*/%y)\n}\n",
            [("computation", 1, "f {"),
             ("instruction", 2, "%a = (f32[], /*index=1*/f32[]) tuple(%x, /*index=1*/%y)"), ("end", 3, "}")],
            id="indices of operands with percent signs stay"),
        pytest.param(
            "f {\n  a = (f32[], /*index=1*/f32[]) tuple(x, /*index=1*/y)\n}\n",
            [("computation", 1, "f {"), ("instruction", 2, "a = (f32[], f32[]) tuple(x, y)"), ("end", 3, "}")],
            id="indices of operands without percent signs"),
        pytest.param(
            "f {\n  %a = f32[] /*kept?*/ negate(%x)\n}\n",
            [("computation", 1, "f {"), ("instruction", 2, "%a = f32[]  negate(%x)"), ("end", 3, "}")],
            id="another comment with percent signs"),
        pytest.param(
            'f {\n  a = f32[] custom-call(x), config="{ // ( \\" /* \n  }"\n}\n',
            [("computation", 1, "f {"), ("instruction", 2, 'a = f32[] custom-call(x), config="{ // ( \\" /* }"'),
             ("end", 4, "}")], id="quotation over two lines"),
        pytest.param("f {\n  a = f32[] negate(x)", [("computation", 1, "f {"),
                     ("instruction", 2, "a = f32[] negate(x)")], id="no end"),
        pytest.param("f {\n  a = f32[] negate(x", [("computation", 1, "f {"), ("unknown", 2, "a = f32[] negate(x")],
                     id="an open parenthesis"),
        pytest.param("f {\n  a = f32[] negate(x))\n}\n", [("computation", 1, "f {"),
                     ("unknown", 2, "a = f32[] negate(x))")], id="a parenthesis too many"),
        pytest.param("\n}\n", [("unknown", 2, "}")], id="an end without a beginning"),
        pytest.param("\na = f32[] negate(x)\n", [("unknown", 2, "a = f32[] negate(x)")], id="outside"),
        pytest.param("ENTRY f\n%a = f32[] negate(x)\n%b = f32[] negate(a)\n",
                     [("unknown", 1, "ENTRY f %a = f32[] negate(x)")], id="no brace before the first instruction"),
    ],
)  # fmt: skip
def test_statements_of_a_text(text, expected):
    assert parts(text) == expected


def instruction(line, before=""):
    """The instruction that a line defines, in a computation with two parameters."""
    text = (
        f"HloModule m\n\n{before}\nENTRY main {{\n  x = f32[4] parameter(0)\n  y = f32[4] parameter(1)\n  {line}\n}}\n"
    )
    return parse_hlo(text).entry.by_name["o"]


CALLEES = "".join(
    f"{name} {{\n  {name}.p = f32[4] parameter(0)\n  ROOT {name}.r = f32[4] negate({name}.p)\n}}\n"
    for name in ("f", "g")
)


@pytest.mark.parametrize(
    ("line", "shape", "opcode", "operands"),
    [
        ("ROOT %o = f32[4] add(%x, %y)", "f32[4]", "add", ("x", "y")),
        ("ROOT o = f32[4]{0} add(x, y)", "f32[4]{0}", "add", ("x", "y")),
        ("ROOT o = f32[4] add(f32[4]{0} x, (f32[4], f32[2]) y)", "f32[4]", "add", ("x", "y")),
        ("ROOT %o = (f32[4], (f32[2], u8[3]{0:T(8)})) custom-call(%x)", "(f32[4], (f32[2], u8[3]{0:T(8)}))",
         "custom-call", ("x",)),
        ("ROOT %o = f32[4]{0:T(128)S(1)} add(f32[4]{0:T(128)} %x, f32[4]{0} %y)", "f32[4]{0:T(128)S(1)}", "add",
         ("x", "y")),
        ("ROOT %o = () after-all()", "()", "after-all", ()),
        ("ROOT o = f32[4] add(x,y)", "f32[4]", "add", ("x", "y")),
    ],
)  # fmt: skip
def test_shape_opcode_and_operands_of_a_line(line, shape, opcode, operands):
    found = instruction(line)
    assert (found.shape_text, found.opcode, found.operands, found.arguments) == (shape, opcode, operands, "")


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("ROOT %o = f32[2,2] constant({ { 1, 2 }, { 3, (4) } })", "{ { 1, 2 }, { 3, (4) } }"),
        ("ROOT o = (f32[], s32[]) constant((1, 2))", "(1, 2)"),
        ("ROOT o = f32[4] parameter(2)", "2"),
    ],
)
def test_arguments_that_are_no_operands_are_kept(line, arguments):
    found = instruction(line)
    assert (found.arguments, found.operands) == (arguments, ())


@pytest.mark.parametrize(
    ("metadata", "op_name", "frame", "rest"),
    [
        ('metadata={op_name="jit(f)/add"}', "jit(f)/add", 0, ""),
        ('metadata={op_name="jit(f)/add" stack_frame_id=7}, sharding={replicated}', "jit(f)/add", 7,
         ", sharding={replicated}"),
        (r'''metadata={op_name="p[\'w\']" stack_frame_id=12}''', "p['w']", 12, ""),
        ('metadata={op_type="add" op_name="a/b" stack_frame_id=3}', "a/b", 3,
         ', metadata={op_type="add" op_name="a/b" stack_frame_id=3}'),
        ('metadata={op_type="add"}', "", 0, ', metadata={op_type="add"}'),
        ("channel_id=1", "", 0, ", channel_id=1"),
    ],
)  # fmt: skip
def test_name_and_frame_of_a_line(metadata, op_name, frame, rest):
    found = instruction(f"ROOT %o = f32[4] add(%x, %y), {metadata}")
    assert (found.op_name, found.frame, found.attributes) == (op_name, frame, rest)


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("f32[4] call(x), to_apply=f", [("to_apply", "f")]),
        ("f32[4] call(%x), to_apply=%f", [("to_apply", "f")]),
        ("f32[4] custom-call(x), called_computations={f, g}",
         [("called_computations", "f"), ("called_computations", "g")]),
        ("f32[4] while(x), condition=%f, body=%g", [("condition", "f"), ("body", "g")]),
        ("f32[4] conditional(x, y, y), branch_computations={%f, %g}",
         [("branch_computations", "f"), ("branch_computations", "g")]),
        ("f32[4] conditional(x, y, y), true_computation=f, false_computation=g",
         [("true_computation", "f"), ("false_computation", "g")]),
        ("f32[4] select-and-scatter(x, y, y), select=f, scatter=g", [("select", "f"), ("scatter", "g")]),
        ("f32[4] custom-call(x), select=f", []),  # another attribute of this name is no computation
        ("f32[4] add(x, y)", []),
    ],
)  # fmt: skip
def test_computations_that_a_line_calls(line, called):
    found = instruction(f"ROOT o = {line}", CALLEES)
    assert list(found.called) == called
    assert found.calls() == tuple(callee for _, callee in called)
    assert found.calls("to_apply", "select") == tuple(c for a, c in called if a in ("to_apply", "select"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("index", "3"), ("dims", "0,1"), ("empty", ""), ("last", "z"), ("ndex", None), ("missing", None)],
)
def test_attribute_of_a_line(name, value):
    assert instruction("ROOT o = f32[4] add(x, y), index=3, dims={0,1}, empty={}, last=z").attribute(name) == value


def test_name_of_a_module_ends_at_the_first_comma():
    entry = "\n\nENTRY main {\n  ROOT x = f32[] parameter(0)\n}\n"
    assert [parse_hlo(f"{head}{entry}").name for head in ("HloModule jit_f, a=1", "HloModule jit_f", "HloModule ")] == [
        "jit_f", "jit_f", "unnamed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("HloModule m\n\nENTRY main (x) {\n", ["line 3", "ENTRY main (x) {"]),
        ("HloModule m\n\nENTRY main x -> y {\n", ["line 3"]),
        ("HloModule m\n\nENTRY main {\n  x = parameter(0)\n}\n", ["line 4, 'x = parameter(0)'"]),
        ("HloModule m\n\nENTRY main {\n  x = (f32[], f32[] parameter(0)\n}\n", ["line 4"]),
        ("HloModule m\n\nENTRY main {\n  %x (f32[]) negate(y)\n}\n", ["line 4"]),
        ("HloModule m\n\nENTRY main {\n  ROOT x = f32[] parameter(0)\n", ["1 computation(s)", "`main` has no end"]),
        (
            "HloModule m\n\nf {\n  ROOT x = f32[] parameter(0)\n}\n",
            ["1 computation(s)", "there is no ENTRY computation."],
        ),
        ("", ["0 computation(s)", "there is no text."]),
        ("HloModule m\n\nENTRY main {\n  x = f32[] parameter(0)\n}\n", ["`main` has no ROOT instructions"]),
        ("h" * 100, ["'" + "h" * 80 + "'"]),
    ],
)
def test_facts_of_a_text_that_is_refused(text, facts):
    with pytest.raises(InspectionError) as error:
        parse_hlo(text)
    assert [fact for fact in facts if fact not in str(error.value).replace(", because", ".")] == []


# Frame 3 was called by frame 1, frame 1 by none. Frame 2 has no line. Frame 4 names a caller that is missing.
STACKS = """HloModule m

FileNames
1 "/project/train.py"
2 "/venv/lib/python3.11/site-packages/flax/linear.py"
3 "/venv/lib/python3.11/site-packages/jax/_src/lax.py"

FunctionNames
1 "step"
2 "Layer.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=11 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=20}
3 {file_name_id=3 function_name_id=1 line=30}
4 {file_name_id=9 function_name_id=1 line=40}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=4 parent_frame_id=2}
3 {file_location_id=2 parent_frame_id=2}
4 {file_location_id=2 parent_frame_id=30}
5 {file_location_id=3 parent_frame_id=4}
6 {file_location_id=1}
7 {file_location_id=3 parent_frame_id=8}
8 {file_location_id=1 parent_frame_id=3}

ENTRY main {
  ROOT x = f32[] parameter(0), metadata={op_name="x" stack_frame_id=FRAME}
}
"""


@pytest.mark.parametrize(
    ("frame", "stack", "source"),
    [
        (1, [("step", 10)], "train.py:10"),
        (2, [("step", 10)], "train.py:10"),
        (3, [("step", 10), ("Layer.__call__", 20)], "train.py:10"),
        (4, [("Layer.__call__", 20)], "linear.py:20"),  # of a library, because no user's line is known
        (5, [("step", 10), ("Layer.__call__", 20), ("step", 30)], "train.py:10"),
        (6, [("step", 10)], "train.py:10"),
        (7, [("step", 30)], None),  # its own parent; a line of JAX is no source
        (8, [("step", 10), ("step", 10)], "train.py:10"),
        (9, [], None),
        (0, [], None),
    ],
)
def test_stack_and_source_of_a_frame(frame, stack, source):
    hlo = parse_hlo(STACKS.replace("FRAME", str(frame)))
    frames, (node,) = Frames(hlo), hlo.entry.instructions
    assert [(f.function, f.line) for f in frames.stack(node)] == stack
    line = frames.source(node)
    assert (None if line is None else f"{line.file.rsplit('/', 1)[-1]}:{line.line}") == source


def test_line_of_a_frame_has_its_columns_and_function():
    hlo = parse_hlo(STACKS.replace("FRAME", "1"))
    line: Any = Frames(hlo).source(hlo.entry.instructions[0])
    assert (line.function, line.column, line.end_line) == ("step", 4, 11)


def test_source_of_an_older_compiler_is_in_the_metadata():
    named = 'metadata={op_type="add" source_file="/project/a.py" source_line=5}'
    library = 'metadata={op_type="add" source_file="/venv/lib/python3.11/site-packages/jax/a.py" source_line=5}'
    unnumbered = 'metadata={op_type="add" source_file="/project/a.py"}'
    frames = Frames(parse_hlo("HloModule m\n\nENTRY main {\n  ROOT x = f32[] parameter(0)\n}\n"))
    lines = [frames.source(instruction(f"ROOT o = f32[4] add(x, y), {text}")) for text in (named, library, unnumbered)]
    assert [line and (line.file, line.line) for line in lines] == [("/project/a.py", 5), None, None]
    assert frames.stack(instruction(f"ROOT o = f32[4] add(x, y), {named}")) == (("/project/a.py", "", 5, None),)
