"""`watch_compilations`: what a block did besides its results, and that it never ends the block differently."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from workbench.measurement import watch_compilations
from workbench.measurement._explain import added_compilations, added_retraces
from workbench.records.live import CompilationRecord, ExplanationRecord, RetraceRecord


def test_retraces_are_counted_with_what_changed():
    scaled = jax.jit(lambda x, factor: x * factor)
    ones = [jnp.ones(n) for n in (3, 4, 5)]
    two = jnp.float32(2.0)
    with watch_compilations(quiet=True) as seen:
        for x in ones:
            scaled(x, 2.0)
        scaled(ones[0], two)
    (retrace,) = seen.record.retraces
    assert retrace.count == 3
    assert retrace.defined.startswith("test_explain.py:")
    assert dict(retrace.reasons) == {
        "argument `x`: its shape changed (now [4], before [3])": 1,
        "argument `x`: its shape changed (now [5], before [3])": 1,
        "argument `factor`: its weak type changed (now not weak)": 1,
    }


def test_changed_dtype_is_named():
    doubled = jax.jit(lambda x: x + x)
    floats, ints = jnp.ones(3), jnp.ones(3, jnp.int32)
    with watch_compilations(quiet=True) as seen:
        doubled(floats)
        doubled(ints)
    (retrace,) = seen.record.retraces
    assert retrace.reasons == (("argument `x`: its dtype changed (now i32, before f32)", 1),)


def test_function_that_is_new_each_time_is_named_so():
    x = jnp.ones(3)
    with watch_compilations(quiet=True) as seen:
        for _ in range(4):
            jax.jit(lambda x: x * 3)(x)
    (retrace,) = seen.record.retraces
    assert retrace.count == 3
    assert "new function object each time" in retrace.reasons[0][0]


def test_calls_that_hit_the_cache_are_no_retraces():
    doubled = jax.jit(lambda x: x + x)
    x = jnp.ones(3)
    with watch_compilations(quiet=True) as seen:
        for _ in range(5):
            doubled(x)
    assert seen.record.retraces == ()
    assert [compilation.count for compilation in seen.record.compilations if compilation.function == "<lambda>"] == [1]


def test_slow_compilation_has_its_line_and_phases(capsys):
    @jax.jit
    def to_compile(x):
        return jnp.tanh(x @ x)

    with watch_compilations(slow_seconds=0.0) as seen:
        to_compile(jnp.ones((4, 4)))
    found = next(c for c in seen.record.compilations if c.function == "to_compile")
    assert found.called.startswith("test_explain.py:")
    assert found.seconds == found.trace_seconds + found.lower_seconds + found.compile_seconds
    assert found.compile_seconds > 0
    assert "compilation of to_compile at test_explain.py:" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed on Linux alone")
def test_descriptors_of_the_process_are_left_alone():
    before = descriptors()
    with watch_compilations(quiet=True):
        assert descriptors() == before


def descriptors():
    """What the descriptors of this process point to."""
    links = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            links[each.name] = str(each.readlink())
    return links


def retraced(times):
    """A function that is retraced so many times in a block."""
    scaled = jax.jit(lambda x: x * times)
    with watch_compilations(quiet=True) as seen:
        for n in range(times + 1):
            scaled(np.ones(n + 1, np.float32))
    return [retrace.count for retrace in seen.record.retraces], len(seen.record.compilations)


def test_blocks_in_two_threads_see_what_their_own_thread_did():
    alone = [retraced(times) for times in (2, 4)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(retraced, (2, 4))) == alone


def test_retraces_of_two_blocks_are_added_by_function_most_frequent_first():
    rare, often, first, second = (
        RetraceRecord(
            function=name,
            defined=f"{name}.py:1",
            called="",
            count=sum(reasons.values()),
            reasons=tuple(reasons.items()),
        )
        for name, reasons in [("a", {"x": 2}), ("b", {"x": 3}), ("c", {"x": 1, "y": 1}), ("c", {"y": 3, "z": 1})]
    )
    both = added_retraces((rare, first), (often, second))
    assert [(each.function, each.count) for each in both] == [("c", 6), ("b", 3), ("a", 2)]
    assert dict(both[0].reasons) == {"x": 1, "y": 4, "z": 1}


def test_function_that_was_retraced_most_often_is_first():
    rare = jax.jit(lambda x: x + 1)
    often = jax.jit(lambda x: x + 2)
    with watch_compilations(quiet=True) as seen:
        for fn, sizes in ((rare, 2), (often, 3)):
            for n in range(sizes):
                fn(np.ones(n + 1, np.float32))
    assert [retrace.count for retrace in seen.record.retraces] == [2, 1]


def test_compilations_of_two_blocks_are_added_by_function_slowest_first():
    quick, slow, first, second = (
        CompilationRecord(function=name, count=count, trace_seconds=1, lower_seconds=2, compile_seconds=seconds)
        for name, count, seconds in [("a", 1, 3), ("b", 1, 7), ("c", 2, 4), ("c", 3, 5)]
    )
    both = added_compilations((quick, first), (slow, second))
    assert [(each.function, each.count, each.seconds) for each in both] == [("c", 5, 15), ("b", 1, 10), ("a", 1, 6)]


def test_inner_and_outer_blocks_both_see_what_happens():
    scaled = jax.jit(lambda x: x * 5)
    with watch_compilations(quiet=True) as outer:
        scaled(jnp.ones(2))
        with watch_compilations(quiet=True) as inner:
            scaled(jnp.ones(3))
        scaled(jnp.ones(4))
    assert [each.record.retraces[0].count for each in (outer, inner)] == [2, 1]


def test_tasks_that_overlap_without_being_nested_leave_nothing_behind():
    first, second = asyncio.Event(), asyncio.Event()
    found = {}

    async def watched(name, entered, leave, n):
        scaled = jax.jit(lambda x: x * n)
        with watch_compilations(quiet=True) as seen:
            entered.set()
            await leave.wait()
            scaled(np.ones(n, np.float32))
            scaled(np.ones(n + 1, np.float32))
        found[name] = [retrace.count for retrace in seen.record.retraces]

    async def both():
        done = asyncio.Event()

        async def early():
            await watched("early", first, second, 2)
            done.set()

        async def late():
            await first.wait()
            await watched("late", second, done, 3)

        await asyncio.gather(early(), late())

    asyncio.run(both())
    assert found == {"early": [1], "late": [1]}
    assert jax.config.jax_explain_cache_misses is False
    assert not any(logger.filters for name, logger in jax_loggers())


def jax_loggers():
    loggers = logging.root.manager.loggerDict.items()
    return [(name, each) for name, each in loggers if name.startswith("jax") and isinstance(each, logging.Logger)]


def test_messages_that_the_user_asked_for_stay_in_the_log(caplog):
    scaled = jax.jit(lambda x: x * 7)
    with (
        jax.explain_cache_misses(True),
        watch_compilations(quiet=True) as seen,
        caplog.at_level(logging.WARNING, "jax"),
    ):
        scaled(jnp.ones(2))
        scaled(jnp.ones(3))
    assert len(seen.record.retraces) == 1
    assert any("TRACING CACHE MISS" in each.message for each in caplog.records)


def out_of_memory():
    weights = {"w": jnp.ones((512, 256))}
    message = f"RESOURCE_EXHAUSTED: Out of memory allocating {weights['w'].nbytes} bytes."
    raise jax.errors.JaxRuntimeError(message)


def test_memory_that_runs_out_shows_the_largest_arrays_and_who_holds_them(capsys):
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"), watch_compilations() as seen:
        out_of_memory()
    found = seen.record.out_of_memory
    mine = next(array for array in found.arrays if array.shape == (512, 256))
    assert mine.device_bytes == 4 * 512 * 256
    assert mine.names[0].startswith("weights['w'] in out_of_memory (test_explain.py:")
    assert found.line.startswith("test_explain.py:")
    assert "Memory ran out at test_explain.py:" in capsys.readouterr().out


def make_activations():
    return [jnp.full((640, 128), value) for value in (1.0, 2.0)]


def make_state():
    return jnp.zeros((900, 128))


def test_memory_that_runs_out_names_the_lines_that_made_the_largest_arrays(capsys):
    """The failing call is a step that gets what other functions made: only their lines say where the bytes are from."""
    state, activations = make_state(), make_activations()

    def run(*args):
        message = "RESOURCE_EXHAUSTED: Failed to allocate request for 8.0GiB on device ordinal 0"
        raise jax.errors.JaxRuntimeError(message)

    with pytest.raises(jax.errors.JaxRuntimeError), watch_compilations() as seen:
        run(state, activations)
    found = {array.shape: array for array in seen.record.out_of_memory.arrays}
    first = make_activations.__code__.co_firstlineno + 1
    assert found[640, 128].made_at.startswith(f"test_explain.py:{first} in make_activations")
    assert (found[640, 128].count, found[640, 128].device_bytes) == (2, 2 * 4 * 640 * 128)
    assert found[900, 128].made_at == f"test_explain.py:{make_state.__code__.co_firstlineno + 1} in make_state"
    sizes = [array.device_bytes for array in seen.record.out_of_memory.arrays]
    assert sizes == sorted(sizes, reverse=True)
    assert f"made at test_explain.py:{first} in " in capsys.readouterr().out


def test_arrays_of_one_shape_made_on_two_lines_are_two_rows():
    first = jnp.full((333, 77), 1.0)
    second = jnp.full((333, 77), 2.0)
    with pytest.raises(jax.errors.JaxRuntimeError), watch_compilations(quiet=True) as seen:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    mine = [array for array in seen.record.out_of_memory.arrays if array.shape == first.shape == second.shape]
    assert len({array.made_at for array in mine}) == 2


def test_exceptions_of_the_block_go_on_as_they_are(capsys):
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, watch_compilations():
        raise error
    assert caught.value is error
    assert "no retraces" in capsys.readouterr().out


def test_failure_of_the_report_never_ends_the_block(monkeypatch, capsys):
    def fail(record):
        raise RuntimeError("no text")

    monkeypatch.setattr("workbench.render.text", fail)
    with watch_compilations():
        pass
    assert "cannot be shown" in capsys.readouterr().out


def test_record_is_read_back():
    with watch_compilations(quiet=True) as seen:
        jax.jit(lambda x: x * 5)(jnp.ones(3))
    assert ExplanationRecord.from_json(seen.record.to_json()) == seen.record


def test_settings_of_jax_are_as_before():
    before = jax.config.jax_explain_cache_misses
    with watch_compilations(quiet=True):
        pass
    assert jax.config.jax_explain_cache_misses == before


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["layers"])
@dataclasses.dataclass
class Model:
    w: jax.Array
    layers: tuple[str, ...]


def test_changed_static_parts_are_named_by_their_argument():
    total = jax.jit(lambda scale, model, other=None: scale * model.w.sum())
    w = jnp.ones(3)
    total(2.0, Model(w, ("a",)))
    with watch_compilations(quiet=True) as seen:
        total(2.0, Model(w, ("b",)))
    (retrace,) = seen.record.retraces
    assert dict(retrace.reasons) == {
        "positional argument 2: its static part changed (`Model`, now (('b',),), before (('a',),))": 1
    }


def test_changed_metadata_of_many_lines_is_shortened():
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    loss = nnx.jit(lambda model, optimizer: model(jnp.ones(2)).sum())
    optimizers = [nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param) for rate in (0.1, 0.2)]
    loss(model, optimizers[0])
    with watch_compilations(quiet=True) as seen:
        loss(model, optimizers[1])
    (retrace,) = seen.record.retraces
    assert dict(retrace.reasons) == {"positional argument 2, `_graphdef`: its static part changed (`GraphDef`)": 1}
