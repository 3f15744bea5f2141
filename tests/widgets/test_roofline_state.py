import pytest
import records_parts as parts
from workbench_widgets._roofline_state import roofline_state

from workbench.cost import known_chip
from workbench.records.compiled import InstructionRecord, ModuleRecord
from workbench.records.program import SourceLine

PLACE = SourceLine(file="model.py", line=3)
DOT = InstructionRecord(
    name="dot.1", opcode="dot", computation="main", shape="bf16[8,8]", size_bytes=128, executions=2.0, flops=1e9,
    accessed_bytes=1000, source=PLACE,
)  # fmt: skip
OTHER = DOT.replace(name="dot.2", executions=1.0, accessed_bytes=3000)
ADD = DOT.replace(name="add.1", opcode="add", executions=1.0, flops=0.0, accessed_bytes=8190, source=None)
FUSED = DOT.replace(name="dot.3", fused=True)


def module(*instructions: InstructionRecord) -> ModuleRecord:
    known = parts.module_record()
    return known.replace(instructions=instructions)


def test_a_dot_is_a_line_with_all_its_executions():
    compiled_for_cpu = module(DOT, OTHER, ADD, FUSED)
    made = roofline_state(compiled_for_cpu.replace(platform="tpu"), known_chip("v5e"))
    assert made is not None
    (dot,) = made["dots"]
    assert (dot["line"], dot["flops"], dot["bytes"]) == ("model.py:3", 3e9, 5000)
    # Products reach 93 % of the peak, and each of the three executions costs 1.5 µs where the chip's compiler made them
    products = 3e9 / 197e12 / 0.93
    assert dot["seconds"] == pytest.approx(products + 3 * 1.5e-6, rel=1e-6)
    assert (without := roofline_state(compiled_for_cpu, known_chip("v5e"))) is not None
    assert without["dots"][0]["seconds"] == pytest.approx(products, rel=1e-6)
    assert made["without_products"][0] == 1
    assert not made["assumed"]


def test_a_program_without_a_chip_says_which_one_is_assumed():
    made = roofline_state(module(DOT), None)
    assert made is not None
    assert (made["assumed"], made["chip"]["name"]) == (True, "v5e")


def test_nothing_is_drawn_where_nothing_multiplies_matrices():
    assert roofline_state(module(ADD), None) is None
