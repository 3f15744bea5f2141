"""The reader against jaxlib's own parser: names, opcodes and operands of every instruction."""

from pathlib import Path

import pytest

from workbench.inspection.hlo._text import parse_hlo

HERE = Path(__file__).parent
TEXTS = sorted([*(HERE / "hlo_samples").glob("*.hlo.txt"), *(HERE.parent / "recorded").glob("tpu_*.hlo.txt")])
_hlo = pytest.importorskip("jaxlib._hlo", reason="this jaxlib has no parser of its own")


def seen_by_jaxlib(text):
    return {
        computation.name: [
            (instruction.name, opcode_of(instruction), tuple(operand.name for operand in instruction.operands()))
            for instruction in computation.instructions()
        ]
        for computation in _hlo.hlo_module_from_text(text).computations()
    }


def opcode_of(instruction):
    """As the text writes it: jaxlib's enumeration has one value for all asynchronous operations."""
    return instruction.to_string().split(" = ", 1)[1]


def assert_agrees(text):
    ours = parse_hlo(text)
    theirs = seen_by_jaxlib(text)
    # jaxlib gives an asynchronous operation that is written in short a computation of its own.
    written = {name: seen for name, seen in theirs.items() if not name.startswith("async_wrapped")}
    assert set(ours.computations) == set(written)
    for name, instructions in written.items():
        mine = {i.name: i for i in ours.computations[name].instructions}
        assert set(mine) == {instruction for instruction, _, _ in instructions}
        for instruction, printed, operands in instructions:
            assert mine[instruction].operands == operands, instruction
            assert f" {mine[instruction].opcode}(" in f" {printed}", instruction


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name.removesuffix(".hlo.txt"))
def test_instructions_agree_with_jaxlib(path):
    assert_agrees(path.read_text())


SMALL = """HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%ge (c: f32[], d: f32[]) -> pred[] {
  %c = f32[] parameter(0)
  %d = f32[] parameter(1)
  ROOT %greater = pred[] compare(%c, %d), direction=GE
}

ENTRY %main (x: f32[8,4], y: f32[4,2]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[4,2]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %all = f32[8,4]{1,0} all-reduce(%x), replica_groups={}, to_apply=%add
  ROOT %out = f32[8,4]{1,0} select-and-scatter(%all, %y, %zero), window={size=2x2 stride=2x2}, select=%ge, scatter=%add
}
"""

WRITINGS = {
    "as printed": lambda text: text,
    "indented": lambda text: "\n".join("    " + line for line in text.splitlines()),
    "without percent": lambda text: text.replace("%", ""),
    "typed operands": lambda text: text.replace("(%a, %b)", "(f32[] %a, f32[] %b)"),
    "typed without percent": lambda text: text.replace("%", "").replace("(x), replica", "(f32[8,4]{1,0} x), replica"),
    "numbered operands": lambda text: text.replace("%", "").replace("(a, b)", "(a, /*index=1*/b)"),
    "attribute on the next line": lambda text: text.replace(", to_apply", ",\n      to_apply"),
    "attribute over lines": lambda text: text.replace(
        "to_apply=%add\n", 'to_apply=%add, frontend_attributes={meta={\n"k":"{\\"a\\": 1}"\n}}\n'
    ),
    "wrapped header": lambda text: text.replace("(x: f32[8,4], y", "(x: f32[8,4],\n   y"),
    "short headers": lambda text: text.replace("%add (a: f32[], b: f32[]) -> f32[] {", "%add {"),
    "comments": lambda text: "// a comment {\n" + text.replace("add(%a, %b)", "add(%a, %b)  // sum ("),
}


@pytest.mark.parametrize("writing", WRITINGS)
def test_other_writings_agree_with_jaxlib(writing):
    text = WRITINGS[writing](SMALL)
    assert writing == "as printed" or text != SMALL
    assert_agrees(text)
    assert parse_hlo(text).entry.root.calls("select", "scatter") == ("ge", "add")
