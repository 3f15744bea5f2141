"""Where placements are active: threads, tasks, generators, nested programs."""

import asyncio
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.errors import PlacementError


def _total(n: int) -> float:
    return float(wb.reduce_sum(jnp.ones(n)))


def test_each_thread_has_its_own_clients() -> None:
    start, found = threading.Barrier(4), {}

    def work(n: int) -> None:
        fn = jax.jit(wb.program(clients=n)(lambda x: wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x))))
        start.wait()
        found[n] = [float(fn(jnp.ones(n))) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [2.0 * n] * 3 for n in (2, 3, 4, 5)}


def test_interleaved_tasks_keep_their_clients() -> None:
    def of(n: int) -> Any:
        @wb.program(clients=n)
        async def task() -> float:
            await asyncio.sleep(0)
            first = _total(n)
            await asyncio.sleep(0)
            return first + _total(n)

        return task()

    async def together() -> list[float]:
        return await asyncio.gather(of(3), of(4))

    assert asyncio.run(together()) == [6, 8]


def test_async_generator_has_its_clients_only_while_it_runs() -> None:
    @wb.program(clients=3)
    async def rounds() -> Any:
        for _ in range(2):
            yield _total(3)
            await asyncio.sleep(0)

    async def consume() -> list[float]:
        found = []
        async for value in rounds():
            with pytest.raises(PlacementError, match="outside a program"):
                _total(3)
            found.append(value)
        return found

    assert asyncio.run(consume()) == [3, 3]


def test_generator_has_its_clients_only_while_it_runs() -> None:
    closed = []

    @wb.program(clients=3)
    def rounds() -> Any:
        try:
            sent = yield _total(3)
            yield sent + _total(3)
        finally:
            closed.append(_total(3))

    steps = rounds()
    assert next(steps) == 3
    with wb.program(clients=5):
        assert _total(5) == 5
        assert steps.send(10) == 13
        assert _total(5) == 5
    with pytest.raises(PlacementError, match="outside a program"):
        _total(3)
    steps.close()
    assert closed == [3]


def test_program_inside_a_program_replaces_its_clients() -> None:
    inner = wb.program(clients=2)(lambda x: wb.reduce_sum(wb.broadcast(x)))
    outer = wb.program(clients=3)(lambda x: inner(x) + wb.reduce_sum(wb.broadcast(x)))
    assert float(outer(jnp.float32(1))) == 5
    assert float(jax.grad(outer)(1.0)) == 5


def test_program_inside_a_client_has_its_own_clients() -> None:
    inner = wb.program(clients=2)(lambda row: wb.reduce_mean(wb.broadcast(row)))
    outer = wb.program(clients=3)(lambda x: wb.reduce_sum(wb.map_fn(inner, x)))
    for how in (lambda fn: fn, jax.jit, wb.jit):
        assert float(how(outer)(jnp.array([1.0, 2.0, 4.0]))) == 7


def test_jitted_function_is_traced_once_for_each_program() -> None:
    sent = jax.jit(wb.broadcast)
    assert [wb.program(clients=n)(sent)(jnp.float32(1)).shape for n in (2, 3)] == [(2,), (3,)]


def test_program_keeps_what_the_function_is() -> None:
    @wb.program(clients=3)
    def fed(x: Any) -> Any:
        """Its docstring."""
        return wb.reduce_sum(x)

    class Model:
        @wb.program(clients=3)
        def total(self, x: Any) -> Any:
            return wb.reduce_sum(x)

    assert (fed.__name__, fed.__doc__) == ("fed", "Its docstring.")
    assert [(p.name, p.size) for p in fed.placements] == [("clients", 3)]
    assert float(Model().total(jnp.ones(3))) == 3


def test_scope_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), wb.program(clients=3):
        _ = 1 / 0
    with pytest.raises(PlacementError, match="outside a program"):
        _total(3)
