"""Chunk sizes as part of a search: proposed with the specs, within the memory, and in the code."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import workbench as wb
from workbench.advice._search._program import SearchProgram

MESH = AbstractMesh((2,), ("clients",))


@wb.program(clients=16)
def train(w, x):
    def loss(w, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w.T) ** 2)

    return wb.reduce_mean(wb.map_fn(jax.grad(loss), (wb.broadcast(w), x)))


def arguments(width=64, hidden=1024, examples=16):
    return jax.ShapeDtypeStruct((width, hidden), "float32"), jax.ShapeDtypeStruct((16, examples, width), "float32")


def chunks(search):
    return {each.chunk_size for each in search.choices}


@pytest.fixture(scope="module")
def searched():
    return wb.search(train, on=(MESH, "v5e"), compiled=False)(*arguments())


def test_program_with_clients_is_searched_with_several_chunk_sizes(searched):
    assert {1, 8} <= chunks(searched)
    assert len(chunks(searched)) > 2


def test_other_chunk_sizes_are_listed_with_their_best_choice(searched):
    numbers = Counter(each.chunk_size for each in searched.choices)
    assert sorted(numbers.values())[:-1] == [1] * (len(numbers) - 1)
    assert max(numbers.values()) > 1


def test_smaller_chunks_are_priced_with_a_smaller_peak(searched):
    peak = {each.chunk_size: each.peak_bytes for each in reversed(searched.choices) if each.specs.get("x")}
    assert peak[1] < peak[8]


def test_chunk_size_is_in_the_table_and_in_the_text(searched):
    assert set(searched.to_pandas()["chunk_size"]) == chunks(searched)
    assert "number of clients that a device processes at a time" in str(searched)


def test_memory_limits_the_chunk_size(searched):
    peak = {each.chunk_size: each.peak_bytes for each in searched.choices}
    limit = (peak[1] + peak[8]) // 2
    found = wb.search(train, on=(MESH, "v5e"), compiled=False, memory_bytes=limit)(*arguments())
    assert found.best.peak_bytes <= limit
    assert found.best.chunk_size < 8


def test_chunk_size_that_is_left_to_choose_is_chosen_for_the_chip_and_not_for_this_machine():
    call: Any = wb.trace(train)(*arguments(hidden=4096, examples=64))._call
    assert SearchProgram(call, MESH, "v5e").chunk_size == 8  # clients of a device: all fit in a quarter of its memory
    assert wb.trace(train, on=MESH)(*arguments(hidden=4096, examples=64)).plan.chunk_size < 8


def test_program_without_clients_has_no_chunk_size():
    found = wb.search(lambda w, x: x @ w, on=(MESH, "v5e"), compiled=False)(
        jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((512, 64), "float32")
    )
    assert chunks(found) == {None}
    assert "chunk" not in found.code()


def test_suggested_mesh_has_an_axis_for_the_clients_and_a_chunk_size():
    found = wb.search(train, on="v5e:2x2", compiled=False)(*arguments())
    assert list(found.best.mesh) == ["clients", "model"]
    assert found.best.chunk_size is not None
    assert f"wb.jit(train, chunk_size={found.best.chunk_size})" in found.code()


def test_code_of_a_suggestion_computes_what_the_program_computes(searched):
    w, x = jnp.full((64, 1024), 0.01), jnp.linspace(0, 1, 16 * 16 * 64).reshape(16, 16, 64)
    names = {"train": train, "w": w, "x": x}
    exec(searched.code(), names)
    np.testing.assert_allclose(names["train"](w, x), train(w, x), rtol=1e-4, atol=1e-7)


def test_best_chunk_sizes_are_compiled():
    found = wb.search(train, on=(MESH, "v5e"), compiler="cpu", seconds=2)(*arguments(16, 64, 8))
    assert found.best.how == "compiled"
    assert found.best.chunk_size is not None


def test_smallest_slice_is_found_with_a_chunk_size_that_fits():
    together = wb.jit(train, chunk_size=None)  # four clients of a device: 4 * 8 GiB as planned
    args = arguments(width=64, hidden=65536, examples=8192)
    row = wb.search(together, on=["v5e:2x2"], compiled=False)(*args).slices[0]
    assert row.fits
    assert row.chunk_size == 1
    assert (row.target, row.mesh) == ("v5e:1x1", {"clients": 1})
