"""`why` against programs whose collectives have one reason each by construction, and against `inspect`."""

import jax
import numpy as np
import pytest

import workbench as wb
from tests.oracles.reasons import PARTS, Program, draw, faults, mesh_of


@pytest.mark.parametrize("seed", range(6))
def test_every_collective_has_the_reason_it_was_made_for(seed: int) -> None:
    random = np.random.default_rng(seed)
    for axes in (1, 2):
        mesh = mesh_of(axes)
        for _ in range(2):
            program = draw(random, mesh)
            assert [(kind, each.sentence) for kind, each in faults(program, mesh)] == [], program.name


@pytest.mark.parametrize("name", PARTS)
def test_lines_of_reasons_are_those_of_inspect(name: str) -> None:
    mesh, part = mesh_of(2), PARTS[name]
    args = tuple(
        jax.ShapeDtypeStruct(shape, "int32" if len(shape) == 1 else "float32", sharding=jax.NamedSharding(mesh, spec))
        for shape, spec in part.args
    )
    program = Program(name, part.fn, args, (part,))
    assert [(kind, each.sentence) for kind, each in faults(program, mesh)] == []
    with jax.set_mesh(mesh):
        record = wb.inspect(program.fn)(*args)
    assert record.module is not None
    compiled = {(each.kind, each.payload_bytes, each.sources) for each in record.module.collectives}
    for each in wb.why(record).collectives:
        assert any(
            each.source in sources and (each.kind, each.payload_bytes) == (kind, payload)
            for kind, payload, sources in compiled
        )


def fsdp(x, w1, w2):
    hidden = jax.nn.relu(x @ w1)
    return hidden @ w2


def test_weights_and_batch_over_one_axis_gather_each_weight_at_its_own_line() -> None:
    mesh = mesh_of(1)
    shape = lambda dims, spec: jax.ShapeDtypeStruct(  # noqa: E731
        dims, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )
    found = wb.why(fsdp)(shape((64, 256), ("a",)), shape((256, 512), ("a",)), shape((512, 256), ("a",)))
    first = fsdp.__code__.co_firstlineno + 1
    assert [(each.kind, each.source.line, each.reason) for each in found.collectives] == [
        ("all-gather", first, "disagreement"),
        ("all-gather", first + 1, "disagreement"),
    ]
    for number, each in enumerate(found.collectives, 1):
        assert each.sentence.endswith(
            f"so the compiler gathers argument `w{number}` (f32[{(256, 512)[number - 1]},{(512, 256)[number - 1]}])."
        )
        assert "adds" not in each.sentence


def test_tensor_parallel_layers_sum_in_the_second_layer_alone() -> None:
    mesh = mesh_of(2)
    shape = lambda dims, *spec: jax.ShapeDtypeStruct(  # noqa: E731
        dims, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )
    found = wb.why(fsdp)(shape((64, 256), "b"), shape((256, 512), None, "a"), shape((512, 256), "a"))
    (each,) = found.collectives
    assert (each.kind, each.axes, each.reason) == ("all-reduce", ("a",), "sum")
    assert each.source.line == fsdp.__code__.co_firstlineno + 2
    assert "dimension 0 of argument `w2`" in each.sentence


def test_names_with_digits_are_not_equal_layers() -> None:
    def two(x, w1, w2):
        return x @ w1, x @ w2

    mesh = mesh_of(1)
    shape = lambda dims: jax.ShapeDtypeStruct(  # noqa: E731
        dims, "float32", sharding=jax.NamedSharding(mesh, jax.P("a"))
    )
    text = str(wb.why(two)(shape((64, 256)), shape((256, 512)), shape((256, 512))))
    assert "`w1`" in text
    assert "`w2`" in text
    assert "`w*`" not in text
