"""Calls of compiled programs: JAX runs them without Python code, and asks the workbench about all other calls."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench import _jax_compat
from workbench.errors import ProgramError
from workbench.plan import holds_clients


def python_calls(fn: Callable[[], object]) -> int:
    """The number of Python functions that run during a call."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is not fn.__code__

    sys.setprofile(profile)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return count


@wb.program(clients=8)
def total(w: Any, x: Any) -> Any:
    return w + wb.reduce_sum(wb.map_fn(lambda row: row**2, x))


def sharded() -> jax.Array:
    mesh = jax.make_mesh((8,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("clients")))


ROWS = {"one device": lambda: jnp.arange(8.0), "a mesh": sharded, "numpy": lambda: np.arange(8, dtype=np.float32)}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_a_compiled_call_runs_no_python_beyond_that_of_jax(rows: Callable[[], Any]) -> None:
    run, plain, w, x = wb.jit(total), jax.jit(total), jnp.float32(1), rows()
    assert [float(call(w, x)) for call in (plain, run)] == [1 + 140] * 2
    assert python_calls(lambda: run(w, x)) == python_calls(lambda: plain(w, x))  # for w on the mesh, JAX runs Python


def test_a_call_that_donates_runs_no_python() -> None:
    run = wb.jit(total, donate_argnums=0)
    x: Any = sharded()
    w0, w1, w = (jax.device_put(jnp.float32(i), NamedSharding(x.sharding.mesh, P())) for i in range(3))
    values = [run(w0, x), run(w1, x)]
    assert python_calls(lambda: values.append(run(w, x))) == 0
    assert [float(value) for value in values] == [140, 141, 142]


def test_new_shapes_and_leaves_are_answered_again() -> None:
    run = wb.jit(lambda x, name="": x.sum() if name else {"sum": x.sum(), "name": "none"})
    assert [run(jnp.ones(3))["name"] for _ in range(3)] == ["none"] * 3
    assert [float(run(jnp.ones(size), "a")) for size in (3, 4, 3)] == [3, 4, 3]


@pytest.mark.parametrize("rows", [ROWS["one device"], ROWS["a mesh"]], ids=["one device", "a mesh"])
@pytest.mark.parametrize("is_first", [False, True])
def test_deleted_array_is_refused_and_does_not_slow_later_calls(rows: Callable[[], Any], is_first: bool) -> None:
    run, x, deleted = wb.jit(total), rows(), rows()
    w = jax.device_put(jnp.float32(0), x.sharding.update(spec=P()) if rows is sharded else None)
    deleted.delete()
    if not is_first:
        assert [float(run(w, x)) for _ in range(2)] == [140, 140]
    with pytest.raises(ProgramError, match=r"`jit` received 1 array\(s\) whose memory has been freed: \[0\]\[1\]"):
        run(w, deleted)
    assert float(run(w, x)) == 140
    assert python_calls(lambda: run(w, x)) == 0


def test_transformations_see_the_primitives_of_a_compiled_program() -> None:
    run, w, x = wb.jit(total), jnp.float32(0), jnp.arange(8.0)
    assert [float(run(w, x)) for _ in range(2)] == [140, 140]
    assert holds_clients(jax.make_jaxpr(run)(w, x))
    assert holds_clients(jax.make_jaxpr(lambda: run(w, x))())
    assert jax.grad(run, argnums=1)(w, x).tolist() == (2 * x).tolist()
    assert jax.vmap(run, (0, None))(jnp.arange(2.0), x).tolist() == [140, 141]


def test_disabled_jit_calls_the_function() -> None:
    values: list[Any] = []
    run = wb.jit(lambda x: values.append(x) or 2 * x)
    assert [float(run(jnp.float32(1))) for _ in range(2)] == [2, 2]
    with jax.disable_jit():
        assert float(run(jnp.float32(3))) == 6
    assert [float(x) for x in values if not isinstance(x, Tracer)] == [3]


def test_listeners_hear_compiled_programs() -> None:
    def client(row: Any) -> Any:
        wb.emit("row", row)
        return row

    @wb.program(clients=2)
    def emitting(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(client, x))

    run, x = wb.jit(emitting), jnp.arange(2.0)
    assert [float(run(x)) for _ in range(2)] == [1, 1]
    with wb.listen() as captured:
        assert [float(run(x)) for _ in range(2)] == [1, 1]
    assert captured.series("row").tolist() == [[0, 1]] * 2
    assert float(run(x)) == 1
    assert len(captured) == 2


def test_listening_does_not_slow_later_calls() -> None:
    run, w, x = wb.jit(total), jnp.float32(0), jnp.arange(8.0)
    with wb.listen():
        assert [float(run(w, x)) for _ in range(2)] == [140, 140]
    assert float(run(w, x)) == 140
    assert python_calls(lambda: run(w, x)) == 0


def test_a_program_with_callbacks_found_later_is_guarded() -> None:
    def host(x: Any) -> Any:
        values.append(x.size)
        return x

    def fn(x: Any) -> Any:
        return x if x.size == 2 else jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    values: list[int] = []
    run = wb.jit(fn)
    assert [run(jnp.ones(size)).size for size in (2, 2, 3, 3, 2)] == [2, 2, 3, 3, 2]
    assert values == [3, 3]


def test_cleared_programs_are_traced_again() -> None:
    shapes: list[Any] = []
    run = wb.jit(lambda x: shapes.append(x.shape) or x)
    assert [run(jnp.ones(2)).size for _ in range(3)] == [2] * 3
    run.clear_cache()
    assert run(jnp.ones(2)).size == 2
    assert shapes == [(2,)] * 2


def asked(jitted: Callable, keeps: list[bool]) -> tuple[Callable, list[tuple[Any, ...]]]:
    """A direct call, and the calls about which JAX asked; the entry of a call is kept as `keeps` says."""
    asked_calls: list[tuple[Any, ...]] = []

    def answer(run: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        asked_calls.append(args)
        results, entry = run(*args, **kwargs)
        if keeps[len(asked_calls) - 1]:
            return results, entry
        _jax_compat.forget_direct_calls()
        return results, None

    return _jax_compat.call_directly(jitted, answer), asked_calls


def test_jax_asks_again_after_entries_were_forgotten_during_a_call() -> None:
    direct, asked_calls = asked(jax.jit(lambda x: x + 1), keeps=[False, True, True])
    assert [float(direct(jnp.float32(1))) for _ in range(4)] == [2] * 4
    assert len(asked_calls) == 2
    _jax_compat.forget_direct_calls()
    assert [float(direct(jnp.float32(1))) for _ in range(2)] == [2] * 2
    assert len(asked_calls) == 3


def test_functions_of_an_unknown_jax_are_asked_about_every_call() -> None:
    direct, asked_calls = asked(lambda x: x + 1, keeps=[True, True])
    assert [direct(1), direct(2)] == [2, 3]
    assert asked_calls == [(1,), (2,)]


def test_the_class_calls_its_instances() -> None:
    run = wb.jit(total)
    values = [float(type(run).__call__(run, jnp.float32(1), jnp.arange(8.0))) for _ in range(2)]
    assert values == [141, 141]


def test_threads_that_call_and_listen_get_their_own_results() -> None:
    run, x, wrong = wb.jit(total), jnp.arange(8.0), []

    def work(w: int) -> None:
        for turn in range(60):
            if turn % 20 == 10:
                with wb.listen():
                    pass
            if (value := float(run(jnp.float32(w), x))) != 140 + w:
                wrong.append((w, value))

    threads = [threading.Thread(target=work, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
