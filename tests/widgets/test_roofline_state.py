import pytest
from workbench_widgets._roofline_state import roofline_state

from workbench.cost import known_chip
from workbench.records import InstructionRecord, SourceLine


def instruction(name: str, opcode: str, line: int | None, **figures: float) -> InstructionRecord:
    source = None if line is None else SourceLine(file="model.py", line=line)
    return InstructionRecord(
        name=name, opcode=opcode, computation="main", shape="bf16[8,8]", size_bytes=128, source=source, **figures
    )  # pyright: ignore[reportArgumentType]


class Module:
    instructions = (
        instruction("dot.1", "dot", 3, flops=1e9, accessed_bytes=1000, executions=2.0),
        instruction("dot.2", "dot", 3, flops=1e9, accessed_bytes=3000, executions=1.0),
        instruction("add.1", "add", 4, flops=0.0, accessed_bytes=8190, executions=1.0),
        instruction("dot.3", "dot", 9, flops=5e9, accessed_bytes=1, executions=1.0, fused=True),
    )


def test_a_dot_is_a_line_with_all_its_executions():
    made = roofline_state(Module(), known_chip("v5e"))  # pyright: ignore[reportArgumentType]
    assert made is not None
    (dot,) = made["dots"]
    assert (dot["line"], dot["flops"], dot["bytes"]) == ("model.py:3", 3e9, 5000)
    assert dot["seconds"] == pytest.approx(3e9 / 197e12 / 0.8, rel=1e-6)  # 0.8 of the peak is what products reach
    assert made["without_products"][0] == 1
    assert not made["assumed"]


def test_a_program_without_a_chip_says_which_one_is_assumed():
    made = roofline_state(Module(), None)  # pyright: ignore[reportArgumentType]
    assert made is not None
    assert (made["assumed"], made["chip"]["name"]) == (True, "v5e")


def test_nothing_is_drawn_where_nothing_multiplies_matrices():
    Module.instructions, kept = Module.instructions[2:3], Module.instructions
    try:
        assert roofline_state(Module(), None) is None  # pyright: ignore[reportArgumentType]
    finally:
        Module.instructions = kept
