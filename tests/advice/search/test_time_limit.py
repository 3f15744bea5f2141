"""The time limit and the Stop control of a search whose trials compile for longer than the search may take."""

import threading
import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import workbench as wb
from workbench.advice._search._program import SearchProgram
from workbench.errors import EngineError

MESH = AbstractMesh((2,), ("data",))
W, X = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32")


def predict(w, x):
    return jnp.tanh(x @ w)


@pytest.fixture
def slow_trials(monkeypatch):
    """Every trial after the first takes as long as it may, on a clock that only trials advance; the trials' limits."""
    wb.search(predict, on=(MESH, "v5e"), compiler="cpu", seconds=0.1)(W, X)  # starts the compiler's process
    limits = []
    rehearse = SearchProgram.rehearse
    clock = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr("workbench.advice._search._search.time", types.SimpleNamespace(monotonic=lambda: clock.now))

    def rehearse_slowly(program, specs, *, cancel=None, timeout_seconds=None, **options):
        limits.append(timeout_seconds)
        if len(limits) == 1:
            clock.now += 1.0
            return rehearse(program, specs, cancel=cancel, timeout_seconds=timeout_seconds, **options)
        if timeout_seconds < 10.0:
            clock.now += timeout_seconds
            raise EngineError("the compilation took longer than `timeout_seconds`")
        assert cancel is not None
        assert cancel.wait(60)
        raise EngineError("the compilation was stopped")

    monkeypatch.setattr(SearchProgram, "rehearse", rehearse_slowly)
    return limits


def test_trial_receives_the_remaining_time_and_the_search_ends_with_it(slow_trials):
    record = wb.search(predict, on=(MESH, "v5e"), compiler="cpu", seconds=3)(W, X)
    # one choice is always compiled; then two of the three seconds are left; a trial that begins in time has a second
    assert slow_trials == [None, 2.0, 1.0]
    assert record.ended == "time"
    assert record.best.how == "compiled"
    assert "the time ran out" in str(record)


def test_stop_ends_a_trial_that_is_compiling_and_keeps_the_compiled_choice(slow_trials):
    cancel = threading.Event()

    def progress(phase, seconds):
        if "choice 2" in phase:
            threading.Timer(0.2, cancel.set).start()

    record = wb.search(predict, on=(MESH, "v5e"), compiler="cpu", seconds=1e6, cancel=cancel, progress=progress)(W, X)
    assert len(slow_trials) == 2
    assert record.ended == "stopped"
    assert record.best.how == "compiled"
    assert "stopped." in str(record)


def test_limit_and_stop_end_a_compilation_that_takes_seconds():
    def sorts(w, x):
        for at in range(60):
            x = jnp.sort(jnp.sin(x @ w + at), axis=at % 2)
        return x

    program = SearchProgram(wb.trace(sorts)(W, X)._call, MESH, "v5e", compiler="cpu")  # pyright: ignore
    specs = program.plan((((), ()), ((), ()))).specs
    with pytest.raises(EngineError, match="took longer"):
        program.rehearse(specs, timeout_seconds=0.3)
    cancel = threading.Event()
    with pytest.raises(EngineError, match="was stopped"):
        program.rehearse(specs, cancel=cancel, progress=lambda phase, seconds: cancel.set())
