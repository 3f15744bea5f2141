"""What tests read of compiled programs is the same however hard LLVM optimizes: tests/conftest.py builds on this."""

import contextlib

import jax
import pytest

from tests.public_programs.programs import PROGRAMS


@pytest.mark.parametrize("name", ["fsdp_grad", "linen_dp", "pipeline", "replay_buffer", "llama_like"])
def test_hlo_memory_and_costs_do_not_depend_on_the_level_of_llvm(name):
    found = []
    for quickly in (True, False):  # one line, as the text names it
        mesh, fn, args = PROGRAMS[name]()
        with (
            jax.numpy_rank_promotion("allow"),
            jax.numpy_dtype_promotion("standard"),
            jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext(),
        ):
            lowered = jax.jit(fn).lower(*args)
            before = jax.config.read("jax_disable_most_optimizations")
            jax.config.update("jax_disable_most_optimizations", quickly)
            try:
                program = lowered.compile()
            finally:
                jax.config.update("jax_disable_most_optimizations", before)
        found.append((program.as_text(), str(program.memory_analysis()), program.cost_analysis()))
    assert found[0] == found[1]
