from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from engine_contract import client_data, fedavg, per_client, rounds, start

import workbench as wb


def _told(fn: Any, *args: Any) -> list[tuple[str, tuple[int, ...], int]]:
    return [(left.kind, left.shape, left.size_bytes) for left in wb.trace(fn)(*args).plan.disclosed]


def test_reductions_let_shares_leave_and_no_rows():
    assert _told(fedavg, start(), client_data()) == [("partial result", (3,), 12), ("partial result", (), 4)]


def test_same_values_leave_in_every_turn_of_a_loop():
    leaves = wb.trace(rounds)(start(), client_data()).plan.disclosed
    assert [(left.shape, left.kind) for left in leaves] == [((3,), "partial result"), ((), "partial result")]
    assert all(left.stage.startswith("0.") for left in leaves)  # inside of the loop, which is stage 0


def test_rows_leave_that_the_caller_gets():
    assert _told(per_client, start(), client_data()) == [("row", (3,), 12), ("row", (), 4)]


def test_state_that_clients_carry_through_a_loop_stays():
    def counted(x: Any) -> Any:
        @wb.program(clients=4)
        def one(carry: Any) -> Any:
            total, state = carry
            state = wb.map_fn(lambda s, row: s + row, (state, x))
            return total + wb.reduce_sum(state), state

        return jax.lax.fori_loop(0, 3, lambda _, carry: one(carry), (jnp.float32(0), jnp.zeros(4)))[0]

    assert _told(counted, np.ones(4, np.float32)) == [("partial result", (), 4)]


def test_state_that_is_returned_after_a_loop_leaves():
    def counted(x: Any) -> Any:
        @wb.program(clients=4)
        def one(state: Any) -> Any:
            return wb.map_fn(lambda s, row: s + row, (state, x))

        return jax.lax.fori_loop(0, 3, lambda _, state: one(state), jnp.zeros(4))

    assert _told(counted, np.ones(4, np.float32)) == [("row", (), 4)]


def test_data_that_the_server_reads_leave():
    @wb.program(clients=4)
    def peek(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, x)) + jnp.sort(x)[0]

    assert sorted(_told(peek, np.ones(4, np.float32))) == [("partial result", (), 4), ("row", (), 4)]


def _stays(fn: Any, *args: Any) -> list[tuple[str, tuple[int, ...], int]]:
    return [(value.name, value.shape, value.size_bytes) for value in wb.trace(fn)(*args).plan.kept_local]


def test_examples_of_a_client_stay():
    # Of each of 5 clients: 4 examples of 3 features, and their labels, in float32.
    assert [kind[1:] for kind in _stays(fedavg, start(), client_data())] == [((4, 3), 48), ((4,), 16)]


def test_examples_stay_that_only_the_turns_of_a_loop_read():
    assert _stays(rounds, start(), client_data()) == _stays(fedavg, start(), client_data())


def test_data_with_rows_for_every_turn_stay_without_their_axis_of_clients():
    @wb.program(clients=4)
    def one(total: Any, x: Any) -> Any:
        return total + wb.reduce_sum(wb.map_fn(jnp.sum, x)), None

    def over(xs: Any) -> Any:
        return jax.lax.scan(one, jnp.float32(0), xs)[0]

    assert [kind[1:] for kind in _stays(over, np.ones((3, 4, 2), np.float32))] == [((3, 2), 24)]


def test_data_stay_that_a_branch_or_a_while_loop_gives_to_clients():
    @wb.program(clients=4)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(jnp.sum, x))

    def sometimes(flag: Any, x: Any) -> Any:
        return jax.lax.cond(flag, total, lambda _: jnp.float32(0), x)

    def until(limit: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda v: v < limit, lambda v: v + total(x), jnp.float32(0))

    x = np.ones((4, 2), np.float32)
    assert [kind[1:] for kind in _stays(sometimes, np.bool_(True), x)] == [((2,), 8)]
    assert [kind[1:] for kind in _stays(until, np.float32(1), x)] == [((2,), 8)]


def test_data_that_the_server_reads_do_not_stay_and_are_named():
    @wb.program(clients=4)
    def peek(examples: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, examples)) + jnp.sort(examples)[0]

    plan = wb.trace(peek)(np.ones(4, np.float32)).plan
    assert plan.kept_local == ()
    assert [left.name for left in plan.disclosed if left.kind == "row"] == [plan.inputs[0].name]
