"""A callback that raises on one of several devices is an error; XLA would wait for that device and end the process."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import EngineError, RoundError
from workbench.primitives import CallbackErrors


def host(x: Any) -> Any:
    if np.any(np.asarray(x) > 6.5):
        message = "no client seven"
        raise ValueError(message)
    return np.asarray(x) * 2


def program(call: Any, server: Any = lambda y: y) -> Any:
    @wb.program(clients=8)
    def total(x: Any) -> Any:
        return server(wb.reduce_sum(wb.map_fn(call, x)))

    return total


def rows(count: int, start: float = 0.0) -> Any:
    mesh = jax.make_mesh((count,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.arange(8.0) + start, NamedSharding(mesh, P("clients")))


def pure(x: Any) -> Any:
    return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


def io(x: Any) -> Any:
    return io_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def debug(x: Any) -> Any:
    jax.debug.callback(host, x)
    return x


@pytest.mark.parametrize("call", [pure, io, debug])
@pytest.mark.parametrize("chunk_size", [1, 2])
def test_callback_of_a_client_that_raises_is_an_error(call: Any, chunk_size: int):
    run = wb.jit(program(call), chunk_size=chunk_size)
    with pytest.raises(EngineError, match="`total` failed: its host callback `host` raised ValueError: no"):
        run(rows(4))
    assert float(run(rows(4, start=-3))) == float(np.sum(np.arange(8) - 3)) * (1 if call is debug else 2)


def test_callback_that_raises_on_the_mesh_engine_is_an_error():
    with pytest.raises(EngineError, match="no client seven"):
        wb.engines.MeshEngine().run(program(pure), rows(4))


def test_callback_that_raises_where_the_mesh_engine_streams_is_an_error():
    placed = rows(4)
    with jax.set_mesh(placed.sharding.mesh), pytest.raises(EngineError, match="no client seven"):
        wb.engines.MeshEngine(clients_per_batch=4).run(program(pure), wb.engines.ArrayReader(np.asarray(placed)))


@pytest.mark.parametrize("call", [pure, io, debug])
def test_callback_that_raises_outside_of_jit_is_an_error(call: Any):
    with pytest.raises(EngineError, match=f"`{call.__name__}` failed: its host callback `host` raised ValueError: no"):
        program(call)(rows(4))
    assert float(program(call)(rows(4, start=-3))) == (4 if call is debug else 8)


def test_round_that_is_not_compiled_and_whose_callback_raises_is_an_error():
    run, placed = program(pure), rows(4)
    with pytest.raises(RoundError, match="no client seven"):
        wb.run_rounds(lambda state, _: (state, {"total": run(placed)}), 0.0, 2, progress=False)


def plain(x: Any) -> Any:
    return jnp.sum(jax.vmap(pure)(x))


@pytest.mark.parametrize("fn", [program(pure), plain])
def test_measure_of_a_callback_that_raises_is_an_error(fn: Any):
    with pytest.raises(EngineError, match=f"`{fn.__name__}` failed: its host callback `host` raised ValueError: no"):
        wb.measure(fn, rounds=1)(rows(4))
    assert float(wb.measure(fn, rounds=1)(rows(4, start=-3)).results) == 8


def test_callback_of_the_server_that_raises_is_an_error():
    with pytest.raises(EngineError, match="no client seven") as raised:
        wb.jit(program(lambda x: x, server=pure))(rows(4))
    assert isinstance(raised.value.__cause__, ValueError)


def test_no_callback_is_called_after_one_that_raised():
    calls = []

    def record(x: Any) -> Any:
        calls.append(float(x))
        return host(x)

    def looped(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), x.dtype)
        once = lambda _, y: jax.pure_callback(record, shape, y, vmap_method="sequential")  # noqa: E731
        return jax.lax.fori_loop(0, 3, once, x)

    with pytest.raises(EngineError, match="no client seven"):
        wb.jit(program(looped))(rows(4))
    assert calls.count(7.0) == 1


def test_callback_that_returns_another_shape_is_an_error():
    def wrong(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(lambda x: np.zeros(5, np.float32), shape, x, vmap_method="sequential")

    with pytest.raises(EngineError, match=r"returned float32\[5\] instead of float32\[\]"):
        wb.jit(program(wrong))(rows(4))


def vectorised(x: Any) -> Any:
    return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


def test_vectorised_callback_gets_all_rows_and_its_exception_is_an_error():
    run = wb.jit(program(vectorised), chunk_size=2)
    assert float(run(rows(4, start=-3))) == 2 * float(np.sum(np.arange(8) - 3))
    with pytest.raises(EngineError, match="no client seven"):
        run(rows(4))


def test_program_that_calls_back_can_be_pickled():
    cloudpickle = pytest.importorskip("cloudpickle", reason="not among the core's packages")
    copy = pickle.loads(cloudpickle.dumps(wb.jit(program(pure))))
    assert float(copy(rows(4, start=-3))) == 2 * float(np.sum(np.arange(8) - 3))


def test_calls_at_the_same_time_all_raise():
    errors = CallbackErrors("total")

    def outer() -> int:
        with pytest.raises(EngineError, match="no client seven"):
            errors.call(raising, (jnp.float32(7),), {})
        return 1  # it ran while the other one raised

    raising = jaxpr_as_fun(errors.guarded(jax.make_jaxpr(pure)(jnp.float32(0))))
    with pytest.raises(EngineError, match="no client seven"):
        errors.call(outer, (), {})
    assert errors.call(lambda: 2, (), {}) == 2


def test_callbacks_of_a_linear_solver_are_guarded():
    def solve(b: Any) -> Any:
        return jax.lax.custom_linear_solve(pure, b, lambda matvec, b: matvec(b) / 4, symmetric=True)

    guarded = jaxpr_as_fun(CallbackErrors("solve").guarded(jax.make_jaxpr(solve)(jnp.ones(3))))
    np.testing.assert_array_equal(guarded(jnp.ones(3))[0], 0.5)
