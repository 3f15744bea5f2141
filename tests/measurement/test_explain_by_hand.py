"""Reasons of retraces from messages of JAX, seconds of compilations and live arrays, written by hand."""

import logging
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from workbench.measurement import _explain, watch_compilations
from workbench.measurement._explain import (
    Heard,
    _argument_name,
    _change,
    _long_change,
    _retraces,
    _user_line,
    _variables,
    added_compilations,
    added_retraces,
)
from workbench.records.live import ExplanationRecord

HERE = __file__


def missed(reason: str, name: str = "f", line: str = "") -> tuple[str, str]:
    text = (
        f"TRACING CACHE MISS at {HERE}:9:4 (test) costing 1.0 ms because:\n  for {name} defined at {HERE}:3\n{reason}"
    )
    return text, line


def test_reasons_are_counted_by_function_most_frequent_first():
    shape = "  * at x, now f32[4] and before f32[3]https://docs.jax.dev"
    records = _retraces([
        missed("  seen f, but not with these types", "g", "a.py:7"), missed(shape), missed(shape, line="a.py:5"),
        missed(f"{shape}\n  * at y, now i32[] and before f32[]"), ("TRACING CACHE MISS of nothing", ""),
        (f"for f defined at {sys.prefix}/x.py:3", ""),
    ])  # fmt: skip
    assert [(r.function, r.count, r.called) for r in records] == [
        ("f", 3, "test_explain_by_hand.py:9"),
        ("g", 1, "a.py:7"),
    ]
    changed = "argument `x`: its shape changed (now [4], before [3])"
    assert records[0].reasons == (
        (changed, 2), (f"{changed}; argument `y`: its dtype changed (now i32, before f32)", 1),
    )  # fmt: skip
    assert records[1].reasons == (("seen f, but not with these types", 1),)  # the last line
    assert records[0].defined == "test_explain_by_hand.py:3"


def test_the_first_new_function_is_no_retrace():
    new = missed("  never seen function:\n    f id=123 defined at x.py:3")
    assert _retraces([new]) == ()
    (record,) = _retraces([new, new, new])
    assert (record.count, record.reasons[0][1]) == (2, 2)
    assert record.reasons[0][0].startswith("it is a new function object each time")


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [
        ("f32[4]", "f32[3]", "its shape changed (now [4], before [3])"),
        ("i32[4]", "f32[3]", "its shape changed (now [4], before [3])"),
        ("i32[4]", "f32[4]", "its dtype changed (now i32, before f32)"),
        ("f32[]{weak_type=True}", "f32[]", "its weak type changed (now weak, as for a Python number)"),
        ("f32[]", "f32[]{weak_type=True}", "its weak type changed (now not weak)"),
        ("f32[]@x", "f32[]@y", "now f32[]@x, before f32[]@y"),
        ("3", "4", "3, before 4"),
        ("<class 'dict'> with pytree metadata ('a',)", "<class 'dict'> with pytree metadata ('b',)",
         "its keys changed (now ('a',), before ('b',))"),
        ("<class 'm.Model'> with pytree metadata 1, so the x", "<class 'm.Model'> with pytree metadata 2, so the x",
         "its static part changed (`Model`, now 1, before 2)"),
        ("<class 'm.A'> with pytree metadata 1", "<class 'm.B'> with pytree metadata 1",
         "<class 'm.A'> with pytree metadata 1, before <class 'm.B'> with pytree metadata 1"),
    ],
)  # fmt: skip
def test_change_of_an_argument(now, before, text):
    assert _change("x", now, before) == f"argument `x`: {text}"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("x.y", "argument `x.y`"), ("input path [0]", "positional arguments"), ("input path [1]", "keyword arguments"),
        ("input path [0][0]", "positional argument 1"), ("input path [0][1].w", "positional argument 2, `w`"),
        ("input path [1]['scale']", "argument `scale`"), ("input path [1]['scale'][0]", "argument `scale`, `[0]`"),
    ],
)  # fmt: skip
def test_name_of_an_argument(path, name):
    assert _argument_name(path) == name


def test_first_line_of_a_long_change():
    text = "at input path [0][1], now <class 'a.GraphDef'> with pytree metadata ("
    assert _long_change(text) == "positional argument 2: its static part changed (`GraphDef`)"
    assert _long_change("at x, now something") == "at x, now something"


def test_seconds_of_compilations_by_function():
    heard = Heard()
    assert not heard
    phases = {"trace": "jaxpr_trace", "lower": "jaxpr_to_mlir_module", "compile": "backend_compile"}
    for phase, name, seconds in [
        ("trace", "jit(f)", 1.0), ("lower", "f", 2.0), ("compile", "f", 4.0), ("compile", "f", 8.0),
        ("compile", "g", 20.0), ("trace", "only traced", 99.0), ("lower", "?", 1.0),
    ]:  # fmt: skip
        heard.note_duration(f"/jax/core/compile/{phases[phase]}_duration", seconds, fun_name=name)
    heard.note_duration("/jax/other", 5.0, fun_name="f")
    rows = [(c.function, c.count, c.trace_seconds, c.lower_seconds, c.compile_seconds) for c in heard.compilations()]
    assert rows == [("g", 1, 0.0, 0.0, 20.0), ("f", 2, 1.0, 2.0, 12.0)]
    assert {c.called.partition(":")[0] for c in heard.compilations()} == {"test_explain_by_hand.py"}
    assert heard
    heard.misses = [missed("  reason", "f"), missed("  reason", "only traced")]
    assert [retrace.function for retrace in heard.retraces()] == ["f", "only traced"]
    assert [retrace.function for retrace in heard.retraces(compiled_only=True)] == ["f"]


def test_nothing_is_added_to_nothing():
    assert added_compilations((), ()) == added_retraces((), ()) == ()


def test_memory_of_the_first_device_and_eight_groups_of_arrays(monkeypatch):
    def device(in_use: int) -> Any:
        return types.SimpleNamespace(memory_stats=lambda: {"bytes_in_use": in_use, "bytes_limit": 10 * in_use})

    mine = [jnp.zeros((length, 1000)) for length in range(1, 11)]
    a = b = c = d = e = mine[9]  # one array has five more names
    monkeypatch.setattr(_explain.jax, "local_devices", lambda: [device(7), device(8)])
    monkeypatch.setattr(_explain.jax, "live_arrays", lambda: mine)

    def fail() -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED:\n  " + "x" * 500)

    try:
        fail()
    except jax.errors.JaxRuntimeError as error:
        record: Any = _explain._out_of_memory(error, error.__traceback__)
    assert (record.in_use_bytes, record.limit_bytes) == (7, 70)
    assert record.line == f"test_explain_by_hand.py:{fail.__code__.co_firstlineno + 1}"
    assert record.message == "RESOURCE_EXHAUSTED: " + "x" * 380
    assert [array.device_bytes for array in record.arrays] == [4000 * length for length in range(10, 2, -1)]
    assert len(record.arrays[0].names) == 4
    assert {array.count for array in record.arrays} == {1}
    assert a is b is c is d is e


@pytest.mark.parametrize(
    ("error", "message"),
    [(MemoryError(), "MemoryError"), (MemoryError("no"), "no"), (RuntimeError("Out of memory x"), "Out of memory x"),
     (RuntimeError("out of memory"), "out of memory"), (RuntimeError("out of time"), None)],
)  # fmt: skip
def test_errors_that_are_about_memory(monkeypatch, error, message):
    monkeypatch.setattr(_explain.jax, "live_arrays", lambda: [])
    record = _explain._out_of_memory(error, None)
    assert (record and record.message) == message
    assert record is None or (record.line, record.arrays) == ("", ())


def test_variables_of_the_innermost_function_are_first():
    array = jnp.ones(2)

    def outer(value: Any) -> Any:
        _hidden = value
        return inner({"w": value})

    def inner(tree: Any) -> Any:
        frame = sys._getframe()
        assert frame.f_back is not None
        return [name.partition(" (")[0] for name in _variables([frame.f_back, frame])[id(tree["w"])]]

    assert outer(array) == ["tree['w'] in inner", "value in outer"]


def test_line_of_the_user_is_the_innermost():
    assert _user_line(None) == ""
    frame = sys._getframe()
    assert _user_line(frame) == f"test_explain_by_hand.py:{frame.f_lineno}"


@pytest.mark.parametrize("wanted", [True, False])
def test_only_messages_about_retraces_leave_the_log(monkeypatch, wanted):
    def kept(text: str, *blocks: Heard) -> bool:
        monkeypatch.setattr(_explain, "_BLOCKS", types.SimpleNamespace(get=lambda: blocks))
        monkeypatch.setattr(_explain, "_CACHE_MISSES_OF_THREAD", types.SimpleNamespace(wanted=wanted))
        return _explain._keep(logging.LogRecord("jax", 30, "x.py", 1, text, (), None))

    heard, other = Heard(), Heard()
    assert (kept("TRACING CACHE MISS"), kept("a warning", heard)) == (True, True)
    assert heard.misses == []
    assert kept("TRACING CACHE MISS at", heard, other) is wanted
    assert [text for block in (heard, other) for text, _ in block.misses] == ["TRACING CACHE MISS at"] * 2


def test_a_block_that_was_not_entered_has_an_empty_record():
    assert watch_compilations().record.to_dict() == ExplanationRecord(seconds=0.0).to_dict()
    assert watch_compilations().slow_seconds == 1.0
