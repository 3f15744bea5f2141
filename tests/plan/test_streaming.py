"""`workbench.jit` as a compiler: exact numbers, flat memory, `jax.jit`'s options, export."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec as P
from mapreduce_cases import inputs
from mapreduce_meshes import under

import workbench as wb
from workbench.errors import ProgramError


@wb.program(clients=10)
def fed(w: Any, x: Any) -> Any:
    rows = wb.map_fn(lambda row: jnp.tanh(row * w), x)
    grouped = wb.reduce_by_key(rows, np.arange(10, dtype=np.int32) % 3, 3)
    return wb.reduce_mean(rows), grouped, rows


def _temporaries(clients: int, chunk_size: Any) -> int:
    step = wb.program(clients=clients)(
        lambda w, x: wb.reduce_mean(wb.map_fn(lambda row: jax.grad(lambda w: jnp.sum(jnp.tanh(row @ w) ** 2))(w), x))
    )
    shapes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((clients, 4, 64), jnp.float32)
    compiled = wb.jit(step, chunk_size=chunk_size).lower(*shapes).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("chunk_size", [2, "auto"], ids=["2 at once", "auto"])
def test_memory_does_not_grow_with_the_clients(chunk_size: Any) -> None:
    assert _temporaries(4096, chunk_size) <= 1.3 * _temporaries(64, chunk_size)


def test_all_chunk_size_take_memory_each() -> None:
    # Every client's gradient, 64 × 64 float32 = 16 KiB, is live at once.
    assert _temporaries(256, None) >= 256 * 16 * 1024


def test_stages_of_two_rounds_are_in_order_with_the_stages_that_they_read() -> None:
    @wb.program(clients=4)
    def two_rounds(w: Any, x: Any) -> Any:
        for _ in range(2):
            w = wb.reduce_mean(wb.map_fn(lambda v, row: jnp.sin(v * row), (wb.broadcast(w), x)))
        return w

    stages = wb.trace(two_rounds)(jnp.float32(1), jnp.ones(4)).plan.stages
    arguments = -1
    assert [(stage.kind, stage.consumes) for stage in stages] == [
        ("broadcast", (arguments,)),
        ("clients", (arguments, 0)),
        ("reduce", (1,)),
        ("broadcast", (2,)),
        ("clients", (arguments, 3)),
        ("reduce", (4,)),
    ]


def test_gradient_of_a_maximum_counts_who_holds_it_although_rows_are_made_again() -> None:
    def loss(w: Any, x: Any) -> Any:
        program = wb.program(clients=10)
        return jnp.sum(jnp.sin(program(lambda w, x: wb.reduce_max(wb.map_fn(lambda r: jnp.tanh(r * w) + r, x)))(w, x)))

    w, x = inputs(10)
    got = wb.jit(jax.vmap(jax.grad(loss), in_axes=(0, None)), chunk_size=3)(jnp.stack([w, 2 * w]), x)
    plain = lambda w, x: jnp.sum(jnp.sin((jnp.tanh(x * w[None]) + x).max(0)))  # noqa: E731
    expected = jax.vmap(jax.grad(plain), in_axes=(0, None))(jnp.stack([w, 2 * w]), x)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("platforms", [None, ("cpu", "cuda", "tpu")], ids=["here", "three platforms"])
@pytest.mark.parametrize("how", [jax.jit, wb.jit(chunk_size=2)], ids=["jax.jit", "wb.jit"])
def test_exported_program_computes_the_same(how: Any, platforms: Any) -> None:
    data = export.export(how(fed), platforms=platforms)(*inputs(10)).serialize()
    for ours, expected in zip(export.deserialize(data).call(*inputs(10)), fed(*inputs(10)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_export_of_a_streamed_program_holds_the_loop_over_clients() -> None:
    module = export.export(wb.jit(fed, chunk_size=2))(*inputs(10)).mlir_module()
    assert "stablehlo.while" in module
    assert "stablehlo.while" not in export.export(wb.jit(fed, chunk_size=None))(*inputs(10)).mlir_module()


def test_jit_decorates_methods_and_forgets_what_it_compiled() -> None:
    traced = []

    class Model:
        @wb.jit(static_argnums=0, chunk_size=2)
        @wb.program(clients=10)
        def mean(self, x: Any) -> Any:
            traced.append(x)
            return wb.reduce_mean(x)

    model, x = Model(), inputs(10)[1]
    for iterations in (1, 2):
        for _ in range(2):
            np.testing.assert_allclose(model.mean(x), x.mean(0), rtol=1e-5)
        assert len(traced) == iterations
        Model.mean.clear_cache()


def test_program_exported_with_its_gradient() -> None:
    w, x = inputs(10)
    again = export.deserialize(export.export(jax.jit(fed))(w, x).serialize(vjp_order=1))
    slope = jax.grad(lambda w: again.call(w, x)[0].sum())(w)
    np.testing.assert_allclose(slope, jax.grad(lambda w: fed(w, x)[0].sum())(w), rtol=1e-5)


def test_program_exported_under_a_mesh() -> None:
    program = wb.program(clients=16)(lambda w, x: wb.reduce_mean(wb.map_fn(lambda row: row * w, x)))
    w, x = jnp.arange(3.0), jnp.arange(48.0).reshape(16, 3)
    with under("Auto"):
        at = jax.sharding.get_mesh()
        placed = jax.device_put(w, NamedSharding(at, P())), jax.device_put(x, NamedSharding(at, P("clients")))
        again = export.deserialize(export.export(jax.jit(program))(*placed).serialize())
        np.testing.assert_allclose(again.call(*placed), w * x.mean(0), rtol=1e-6)
    assert again.nr_devices == 8


@pytest.mark.parametrize("chunk_size", [None, 2, "auto"], ids=str)
def test_donated_buffers_are_used(chunk_size: Any) -> None:
    step = wb.program(clients=10)(lambda w, x: (w + wb.reduce_mean(x), wb.map_fn(lambda row: row + 1, x)))
    w, x = inputs(10)
    expected = step(w, x)
    given = jnp.array(w), jnp.array(x)
    got = wb.jit(step, chunk_size=chunk_size, donate_argnums=(0, 1))(*given)
    assert all(array.is_deleted() for array in given)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_static_and_keyword_arguments() -> None:
    @wb.program(clients=10)
    def step(x: Any, times: int, *, offset: Any, mode: str) -> Any:
        assert type(times) is int
        return wb.reduce_mean(wb.map_fn(lambda row: row * times if mode == "scale" else row, x)) + offset

    jitted = wb.jit(step, static_argnums=(1,), static_argnames=("mode",))
    x = inputs(10)[1]
    np.testing.assert_allclose(jitted(x, 3, offset=jnp.ones(3), mode="scale"), 3 * x.mean(0) + 1, rtol=1e-5)
    np.testing.assert_allclose(jitted(x, 3, offset=jnp.ones(3), mode="keep"), x.mean(0) + 1, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", [0, -1, 1.5, True, "all"], ids=str)
def test_jit_rejects_what_is_no_number_of_clients(chunk_size: Any) -> None:
    with pytest.raises(ProgramError, match=r"`jit` was given chunk_size=.*pass a positive int"):
        wb.jit(fed, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("clients", "examples", "twice"),
    [(8, 32768, False), (16, 4, False), (16, 32768, True)],
    ids=["one per device", "two with small rows", "two with large rows"],
)
def test_gradient_makes_rows_again_only_where_keeping_them_takes_much(clients: int, examples: int, twice: bool) -> None:
    def loss(w: Any, x: Any) -> Any:
        train = lambda row: jnp.tanh(jnp.tanh(row @ w) @ w) @ w  # noqa: E731
        return jnp.sum(wb.reduce_mean(wb.map_fn(train, x)) ** 2)

    shapes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((clients, examples, 64), jnp.float32)
    with under("Auto"):
        gradient = jax.grad(wb.program(clients=clients)(loss))
        ours, plain = (how(gradient).lower(*shapes).compile() for how in (wb.jit(chunk_size=1), jax.jit))
    flops = [program.cost_analysis()["flops"] for program in (ours, plain)]
    assert (flops[0] > 1.2 * flops[1] / (clients // 8)) is twice, flops
