"""Rounds with clients that are late, for every engine with a `quorum`; the oracle is `where=` on the mesh."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb
from workbench.engines import Engine
from workbench.records.run import RunRecord

CLIENTS = 5
LATE = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]], bool)  # in each round another


def loss_of(w: Any, x: Any, steps: Any) -> Any:
    slow = jax.lax.fori_loop(0, steps, lambda _, v: jnp.sin(v) + 1e-3, jax.lax.stop_gradient(x.sum()))
    return jnp.sum(jnp.tanh(w * x)) + 0.0 * slow


def rounds(w: Any, x: Any, steps: Any, present: Any = None) -> Any:
    def turn(w: Any, number: Any) -> Any:
        with wb.program(clients=CLIENTS):
            losses = wb.map_fn(loss_of, (wb.broadcast(w), x, steps[number]))
            loss = wb.reduce_mean(losses, where=None if present is None else present[number])
        return w - 0.1 * loss, (loss, losses)

    w, (loss, losses) = jax.lax.scan(turn, w, jnp.arange(len(LATE)))
    return loss.sum(), losses


def present_of(run: RunRecord) -> np.ndarray:
    """The clients of each round, by the notes of the record."""
    present = np.ones(LATE.shape, bool)
    for note in run.notes:
        if found := re.match(r"round (\d): stage \S+ continued with 4 of 5 clients, without client (\d): ", note):
            present[int(found[1]), int(found[2])] = False
    return present


def check_rounds_go_on(engine: Engine, steps: int = 0) -> RunRecord:
    """Two rounds with those four of five clients that came, rows of each and the gradient; `steps` make some late."""
    x = np.random.default_rng(0).normal(size=(CLIENTS, 3)).astype(np.float32)
    arguments = np.ones(3, np.float32), x, np.where(LATE, steps, 0).astype(np.int32)
    run = engine.run(jax.value_and_grad(rounds, has_aux=True), *arguments)
    present = present_of(run)
    assert present.sum(1).tolist() == [4, 4]
    (loss, losses), gradient = run.results
    (wanted, rows), slope = jax.jit(jax.value_and_grad(rounds, has_aux=True))(*arguments[:2], 0 * arguments[2], present)
    for found, expected in ((loss, wanted), (losses, np.where(present, rows, np.nan)), (gradient, slope)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return run
