"""Looking at a program again traces it again and compiles it once."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import workbench as wb


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """One entry for each program that is compiled meanwhile."""
    compiled: list[str] = []
    compile_lowered = jax.stages.Lowered.compile

    def counted(self: jax.stages.Lowered, *args: object, **kwargs: object) -> jax.stages.Compiled:
        compiled.append(self.as_text()[:40])
        return compile_lowered(self, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", counted)
    return compiled


def test_second_inspection_of_a_function_compiles_nothing(compilations: list[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T).sum()

    x = jnp.ones((17, 5))
    first, second = (wb.inspect(step)(x) for _ in range(2))  # as a cell that runs again
    assert len(compilations) == 1
    assert first.module == second.module


def test_library_function_is_found_at_the_line_that_inspects_it() -> None:
    x = jnp.ones((29, 3))
    first = wb.inspect(jax.lax.tanh)(x)
    second = wb.inspect(jax.lax.tanh)(x)
    lines = [{i.source.line for i in r.module.instructions if i.source is not None} for r in (first, second)]
    assert lines[0]
    assert lines[1] == {line + 1 for line in lines[0]}


def test_what_a_function_closes_over_is_read_again(compilations: list[str]) -> None:
    layers = 2

    def step(x: jax.Array) -> jax.Array:
        for _ in range(layers):
            x = x @ x
        return x

    x = jnp.ones((19, 19))
    before = wb.inspect(step)(x)
    layers = 3
    after = wb.inspect(step)(x)
    assert len(compilations) == 2
    assert before.module is not None
    assert after.module is not None
    assert after.module.flops == pytest.approx(1.5 * before.module.flops)


def test_other_devices_are_another_program(compilations: list[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jnp.sin(x).sum()

    devices = np.array(jax.devices()[:4])
    for order in (devices, devices[::-1]):
        x = jax.device_put(jnp.ones((8, 3)), NamedSharding(Mesh(order, ("data",)), P("data")))
        record = wb.inspect(step)(x)
        assert record.mesh is not None
        assert [device.id for device in record.mesh.devices] == [device.id for device in order]
    assert len(compilations) == 2


def test_programs_that_call_back_are_compiled_each_time(compilations: list[str]) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    for _ in range(2):
        wb.inspect(step)(jnp.ones(23))
    assert len(compilations) == 2


_STEP = """import jax, jax.numpy as jnp

def step(w, x):
    return jnp.sum(jnp.tanh(x @ w))
"""
_CACHED = """import json, sys
import jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import cached_step
import workbench as wb
jitted, x = jax.jit(cached_step.step), jnp.ones((8, 8))
if "run" in sys.argv:
    jitted(x, x)
lowered = jitted.lower(x, x)
def lines(record):
    return sorted({i.source.line for i in record.module.instructions if i.source and "cached_step" in i.source.file})
of_lowered = wb.inspect(lowered)
of_compiled = wb.inspect(lowered.compile())
print(json.dumps([lines(wb.inspect(jitted)(x, x)), lines(of_lowered), of_lowered.notes, of_compiled.notes]))
print(jax.config.jax_compilation_cache_include_metadata_in_key, file=sys.stderr)
"""


@pytest.mark.parametrize("runs", [(), ("run",)])
def test_lines_are_those_of_the_file_as_it_is_where_jax_keeps_programs_on_disk(
    tmp_path: pathlib.Path, runs: tuple[str, ...]
) -> None:
    file, cache = tmp_path / "cached_step.py", tmp_path / "cache"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for moved in (0, 7):
        file.write_text("#\n" * moved + _STEP)
        command = [sys.executable, "-c", _CACHED, str(cache), *runs]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        of_function, of_lowered, *notes = json.loads(done.stdout)
        assert of_function == [4 + moved]
        said = [any("earlier version" in note for note in each) for each in notes]
        assert said == [bool(runs), True]  # a `Lowered` that ran keeps what was compiled then
        assert runs or of_lowered == [4 + moved]
        assert done.stderr.strip().endswith("False")  # the user's configuration is as it was
    assert any(cache.iterdir())
