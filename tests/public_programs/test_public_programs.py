"""Every public program through `inspect`, `why` and JSON, compared with HLO text and JAX's memory analysis."""

import contextlib
import re

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
            stage = fn if hasattr(fn, "lower") else jax.jit(fn)
            lowered = stage.lower(*args)
            return record, getattr(lowered, "lowered", lowered).compile()


def test_collectives_are_those_of_the_compiled_text(inspected):
    record, compiled = inspected
    counted = sorted(each.kind for each in record.module.collectives)
    written = sorted(_COLLECTIVE.findall(compiled.as_text()))
    # The text has no reduce-scatter of its own on CPUs: an all-reduce of which every device keeps its part.
    assert [kind.replace("reduce-scatter", "all-reduce") for kind in counted] == written


def test_memory_is_that_of_the_compiler(inspected):
    record, compiled = inspected
    known, memory = compiled.memory_analysis(), record.module.memory
    assert memory.argument_bytes == known.argument_size_in_bytes
    assert memory.output_bytes == known.output_size_in_bytes
    assert memory.temporary_bytes == known.temp_size_in_bytes
    assert memory.alias_bytes == known.alias_size_in_bytes


def test_why_explains_every_collective_at_a_line_that_inspect_names(inspected):
    record, _ = inspected
    found, waiting = wb.why(record).collectives, list(record.module.collectives)
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


def test_no_reason_is_unknown_and_no_gather_adds(inspected):
    record, _ = inspected
    for why in wb.why(record).collectives:
        assert why.reason != "unknown", why.sentence
        if why.kind in ("all-gather", "all-to-all", "collective-permute"):
            assert "adds the parts" not in why.sentence
        if why.kind == "all-reduce":
            assert "the compiler gathers" not in why.sentence


def test_the_text_fits_on_a_screen(inspected):
    record, _ = inspected
    assert len(str(wb.why(record)).splitlines()) < 70


def test_record_is_the_same_after_json(inspected):
    record, _ = inspected
    assert ProgramRecord.from_json(record.to_json()) == record
