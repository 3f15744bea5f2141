import jax
import pytest
import records_parts as parts
from jax.sharding import NamedSharding, PartitionSpec as P
from workbench_widgets._roofline_state import roofline_state

import workbench as wb
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


def test_communication_of_a_record_from_cpus_is_counted_as_on_the_assumed_chip():
    mesh = wb.make_mesh(model=8)
    with jax.set_mesh(mesh):
        x = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=NamedSharding(mesh, P(None, "model")))
        w = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=NamedSharding(mesh, P("model")))
        program = wb.trace(lambda x, w: x @ w)(x, w)
        here, there = program.inspect(), program.inspect(on="v5e")  # predicted from the same CPU program
    made = roofline_state(here.module, None)
    assert made is not None
    assert made["communication"] > 0
    assert there.cost is not None
    assert made["seconds"] + made["communication"] == pytest.approx(there.cost.seconds)
    (dot,) = made["dots"]  # the all-reduce is at the line of the product, and its bytes are no traffic of the product
    assert dot["bytes"] <= (1024 * 128 + 128 * 1024 + 1024 * 1024) * 4
    assert dot["flops"] / dot["seconds"] <= made["chip"]["bandwidth"] * dot["flops"] / dot["bytes"]


def test_communication_of_unknown_time_is_not_counted_as_none():
    known = module(DOT)
    (collective, *_) = known.collectives
    started = DOT.replace(name=collective.name, opcode=collective.kind, flops=0.0, executions=1.0)
    unknown = known.replace(
        instructions=(DOT, started), collectives=(collective.replace(wire_bytes=None, group_size=8),)
    )
    made = roofline_state(unknown, None)
    assert made is not None
    assert made["communication"] is None


def test_nothing_is_drawn_where_nothing_multiplies_matrices():
    assert roofline_state(module(ADD), None) is None
