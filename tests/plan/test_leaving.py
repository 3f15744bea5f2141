from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from engine_contract import client_data, fedavg, per_client, rounds, start

import workbench as wb


def _told(fn: Any, *args: Any) -> list[tuple[str, tuple[int, ...], int]]:
    return [(left.kind, left.shape, left.size_bytes) for left in wb.plan(fn, *args).leaves]


def test_reductions_let_shares_leave_and_no_rows():
    assert _told(fedavg, start(), client_data()) == [("partial result", (3,), 12), ("partial result", (), 4)]


def test_same_values_leave_in_every_turn_of_a_loop():
    leaves = wb.plan(rounds, start(), client_data()).leaves
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
