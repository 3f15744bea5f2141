"""Every public program through `inspect`, `why` and JSON, compared with HLO text and JAX's memory analysis."""

import contextlib
import math
import re
from typing import Any

import jax
import pytest

import workbench as wb
from tests.public_programs.programs import PROGRAMS
from workbench.records.compiled import ProgramRecord

pytestmark = pytest.mark.slow

_COLLECTIVE = re.compile(
    r"^.*? = .*? (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", re.MULTILINE
)


@pytest.fixture(scope="module", params=PROGRAMS)
def inspected(request):
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        mesh, fn, args = PROGRAMS[request.param]()
        with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
            record = wb.inspect(fn)(*args)
            stage: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
            lowered = stage.lower(*args)
            return record, getattr(lowered, "lowered", lowered).compile()


@pytest.fixture(scope="module")
def reasons(inspected):
    return wb.why(inspected[0])


def test_collectives_are_those_of_the_compiled_text(inspected):
    record, compiled = inspected
    counted = sorted(each.kind for each in record.module.collectives)
    written = sorted(_COLLECTIVE.findall(compiled.as_text()))
    # The text has no reduce-scatter of its own on CPUs: an all-reduce of which every device keeps its part.
    assert [kind.replace("reduce-scatter", "all-reduce") for kind in counted] == written


def test_no_cost_is_lost_where_layers_are_folded(inspected):
    tree = inspected[0].call_tree
    whole, folded = tree.root.total, tree.fold(layers=True)
    assert folded.root.total.flops == pytest.approx(whole.flops)
    assert folded.root.total.sent == pytest.approx(whole.sent)
    assert sum(node.own.traffic_bytes for node in folded.nodes) == pytest.approx(whole.traffic_bytes)


def test_memory_is_that_of_the_compiler(inspected):
    record, compiled = inspected
    known, memory = compiled.memory_analysis(), record.module.memory
    assert memory.argument_bytes == known.argument_size_in_bytes
    assert memory.output_bytes == known.output_size_in_bytes
    assert memory.temporary_bytes == known.temp_size_in_bytes
    assert memory.alias_bytes == known.alias_size_in_bytes


def test_why_explains_every_collective_at_a_line_that_inspect_names(inspected, reasons):
    record, _ = inspected
    found, waiting = reasons.collectives, list(record.module.collectives)
    assert len(found) == len(waiting)
    for why in found:
        alike = [
            each
            for each in waiting
            if (each.kind, each.payload_bytes, each.executions) == (why.kind, why.payload_bytes, why.executions)
            and (why.source in each.sources or not each.sources)
        ]
        assert alike, (why.kind, why.payload_bytes, why.source)
        waiting.remove(alike[0])


def test_no_reason_is_unknown_and_no_gather_adds(reasons):
    for why in reasons.collectives:
        assert why.reason != "unknown", why.sentence
        if why.kind in ("all-gather", "all-to-all", "collective-permute"):
            assert "adds the parts" not in why.sentence
        if why.kind == "all-reduce":
            assert "the compiler gathers" not in why.sentence


def test_a_sum_is_joined_by_the_words_of_its_operation(inspected, reasons):
    record, _ = inspected
    words = {"maximum": "the largest", "minimum": "the smallest", "add": "adds"}
    for found in record.module.collectives:
        if found.kind == "all-reduce" and found.reduction in words:
            same = [
                each for each in _explained(reasons, found) if words[found.reduction] in each or "one device" in each
            ]
            wanted = "itself requests this exchange", "it sums the gradients"
            asked = [each for each in _explained(reasons, found) if any(text in each for text in wanted)]
            assert same or asked, (found.op_names, _explained(reasons, found))


def _explained(reasons, found):
    """The sentences of the collectives that are like one."""
    figures = found.kind, found.payload_bytes, found.executions
    return [
        each.sentence for each in reasons.collectives if (each.kind, each.payload_bytes, each.executions) == figures
    ]


def test_combined_exchanges_are_as_many_as_operands(inspected, reasons):
    record, _ = inspected
    operands = {each.name: len(each.operands) for each in record.module.instructions}
    for found in record.module.collectives:
        told = [re.findall(r"combined (\d+) exchanges", each) for each in _explained(reasons, found)]
        if found.kind == "all-reduce" and len(told) == 1 and operands[found.name] > 1:
            assert told[0] == [str(operands[found.name])]


def test_what_is_gathered_has_the_type_of_the_instruction(inspected, reasons):
    record, _ = inspected
    shapes = {each.name: each.shape for each in record.module.instructions}
    types = {"f32": "f32", "s32": "i32", "u32": "u32", "pred": "bool"}
    for found in record.module.collectives:
        if found.kind != "all-gather":
            continue
        (dtype,) = {types.get(each) for each in re.findall(r"(\w+)\[", shapes[found.name])}
        named = [re.findall(r"compiler gathers [^(]*\((\w+)\[", each) for each in _explained(reasons, found)]
        assert all(not each for each in named) or any(set(each) == {dtype} for each in named), (dtype, named)


def test_a_sentence_is_about_a_line_of_its_collective(inspected, reasons):
    record, _ = inspected
    lines = {
        f"{source.file.rpartition('/')[2]}:{source.line}" for c in record.module.collectives for source in c.sources
    }
    for why in reasons.collectives:
        place = re.search(r"`[\w-]+` at ([\w.]+:\d+)", why.sentence.replace("`pure_callback`", ""))
        assert place is None or place[1] in lines, why.sentence


def test_a_large_array_is_in_the_memory_of_a_device(inspected, reasons):
    record, _ = inspected
    held = [each.shape for each in record.module.instructions if not each.fused]
    sizes = {math.prod(map(int, d.split(","))) for shape in held for d in re.findall(r"\[([\d,]+)\]", shape)}
    devices = math.prod(axis.size for axis in record.mesh.axes) if record.mesh is not None else 1
    for found in reasons.arrays:
        assert math.prod(found.shape) * found.copies // devices in sizes, found.name


def test_an_array_is_told_once(reasons):
    names = [found.name for found in reasons.arrays]
    assert not [name for name in names if "carried by a loop" in name]


def test_the_text_fits_on_a_screen(reasons):
    assert len(str(reasons).splitlines()) < 70


def test_record_is_the_same_after_json(inspected):
    record, _ = inspected
    assert ProgramRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize("name", ["gaussian_process", "host_callbacks"])
def test_no_finding_asks_to_split_what_cannot_be_split(name):
    """A matrix is no batch of a factorisation, and a callback has no operand that is gathered."""
    mesh, fn, args = PROGRAMS[name]()
    with jax.numpy_rank_promotion("allow"), jax.set_mesh(mesh):
        advice = wb.advise(fn)(*args)
    assert "operation that is not split" not in [finding.rule for finding in advice.findings]


def test_advice_says_that_a_loop_of_unknown_length_counts_once():
    mesh, fn, args = PROGRAMS["adaptive_steps"]()
    with jax.numpy_rank_promotion("allow"), jax.set_mesh(mesh):
        advice, reasons = wb.advise(fn)(*args), wb.why(fn)(*args)
    assert any("lower bounds" in note for note in advice.notes)
    assert "all-reduce over data, once per iteration of a loop of unknown length" in str(reasons)
