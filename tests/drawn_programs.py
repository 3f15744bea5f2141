"""Programs of twelve clients, drawn by chance, for tests that disturb engines."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb

CLIENTS = 12
DATA = np.arange(CLIENTS * 3, dtype=np.float32).reshape(CLIENTS, 3)

CLIENT_FUNCTIONS = [
    lambda w, row: row * w,
    lambda w, row: jnp.tanh(row - w),
    lambda w, row: jnp.where(row > 1, w, row / 8),
    lambda w, row: jax.lax.fori_loop(0, 3, lambda _, v: jnp.cos(v + w), row / 8),
]
REDUCTIONS = [
    wb.reduce_sum,
    wb.reduce_mean,
    wb.reduce_max,
    lambda rows: wb.reduce_weighted_mean(rows, jnp.arange(CLIENTS, dtype=jnp.float32)),
    lambda rows: wb.reduce_mean(rows, where=jnp.arange(CLIENTS) % 3 > 0),
    lambda rows: wb.reduce_by_key(rows, jnp.arange(CLIENTS, dtype=jnp.int32) % 4, 4)[1],
]


def drawn_program(seed: int) -> Callable:
    """A program of one to three rounds, in a loop or not, or its derivative."""
    random = np.random.default_rng(seed)
    parts = [
        (CLIENT_FUNCTIONS[random.integers(4)], REDUCTIONS[random.integers(6)]) for _ in range(random.integers(1, 4))
    ]
    form = random.integers(3)

    def turn(w: Any, x: Any, part: Any) -> Any:
        client, reduce = part
        rows = wb.map_fn(client, (wb.broadcast(w), x))
        return 0.5 * w + 0.1 * reduce(rows)

    @wb.program(clients=CLIENTS)
    def program(w: Any, x: Any) -> Any:
        if form == 1:
            return jax.lax.scan(lambda w, _: (turn(w, x, parts[0]), w), w, None, length=2)
        for part in parts:
            w = turn(w, x, part)
        return w

    return jax.grad(lambda w, x: program(w, x).sum()) if form == 2 else program
