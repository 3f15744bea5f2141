"""Every client is counted exactly once: answers are dropped, doubled, reordered, delayed, changed and swapped."""

import concurrent.futures
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.engines import Engine, Executor
from workbench.engines._client_loop import Pass
from workbench.engines._remote import run_task
from workbench.errors import EngineError

CLIENTS = 12
DATA = np.arange(CLIENTS * 3, dtype=np.float32).reshape(CLIENTS, 3)


@wb.program(clients=CLIENTS)
def sums(x: Any) -> Any:
    return wb.reduce_sum(x), wb.reduce_max(wb.map_fn(lambda row: row.sum(), x))


@wb.program(clients=CLIENTS)
def rows(x: Any) -> Any:
    return wb.map_fn(lambda row: row * 2, x), wb.reduce_mean(x)


@wb.program(clients=CLIENTS)
def by_key(x: Any) -> Any:
    return wb.reduce_by_key(x, jnp.arange(CLIENTS, dtype=jnp.int32) % 4, 4)


@wb.program(clients=CLIENTS)
def two_passes(x: Any) -> Any:
    mean = wb.reduce_mean(x)
    return wb.reduce_sum(wb.map_fn(lambda row, mean: (row - mean) ** 2, (x, wb.broadcast(mean))))


PROGRAMS = {"sums": sums, "rows": rows, "by key": by_key, "two passes": two_passes}
Answers = list[tuple[Any, list[Any]]]


def _swap(answers: Answers, i: int, j: int) -> Answers:
    changed = list(answers)
    changed[i], changed[j] = changed[j], changed[i]
    return changed


def _replace(answers: Answers, i: int, j: int) -> Answers:
    return [answers[j] if at == i else each for at, each in enumerate(answers)]


def _cut(answers: Answers, i: int, j: int) -> Answers:
    batch, outputs = answers[i]
    return [(batch, [np.asarray(x)[..., None] for x in outputs]) if at == i else a for at, a in enumerate(answers)]


def _retyped(answers: Answers, i: int, j: int) -> Answers:
    batch, outputs = answers[i]
    return [(batch, [np.asarray(x, np.float64) for x in outputs]) if at == i else a for at, a in enumerate(answers)]


FAULTS: dict[str, Callable[[Answers, int, int], Answers]] = {
    "dropped": lambda answers, i, j: [a for at, a in enumerate(answers) if at != i],
    "doubled": lambda answers, i, j: [*answers[: i + 1], *answers[i:]],
    "in another order": _swap,
    "of another batch": _replace,
    "of other shapes": _cut,
    "of another dtype": _retyped,
    "none": lambda answers, i, j: [],
}


class Chaos(Engine):
    """Computes all batches here, and damages the list of their answers."""

    name = "chaos"

    def __init__(self, size: int) -> None:
        self.size = size
        self.fault: Callable[[Answers, int, int], Answers] = lambda answers, i, j: answers
        self.places = (0, 1)

    def _compute(self, work: Pass) -> None:
        compiled = work.compiled(self.size)
        answers = [(batch, compiled(*work.operands(batch))) for batch in work.batches(self.size)]
        for batch, outputs in self.fault(answers, *self.places):
            work.add(batch, outputs, seconds=0.0, where="here")


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pass_with_lost_double_or_foreign_answers_gives_no_result(name: str, size: int) -> None:
    engine, program = Chaos(size), PROGRAMS[name]
    expected = program(DATA)
    count = -(-CLIENTS // size)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), engine.run(program, DATA).results, expected)
    random = np.random.default_rng(0)
    for fault in FAULTS.values():
        for _ in range(20):
            engine.fault = fault
            engine.places = tuple(int(i) for i in random.choice(count, 2, replace=False))
            with pytest.raises(EngineError, match=f"did not get exactly one answer for each of its {CLIENTS} clients"):
                engine.run(program, DATA)


class Proxy(concurrent.futures.Executor):
    """A pool of threads that looks like a cluster, and damages what travels."""

    _max_workers = 2

    def __init__(self) -> None:
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.random = np.random.default_rng(1)
        self.rate = 0.0
        self.last: Any = None
        self.damaged = 0

    def submit(self, fn: Any, /, task: Any) -> concurrent.futures.Future:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert fn is run_task
        return self.pool.submit(self._run, task)

    def _run(self, task: Any) -> Any:
        fault = self.random.choice(["arguments", "outputs", "foreign"]) if self.random.random() < self.rate else ""
        self.damaged += bool(fault)
        if fault == "arguments":
            return run_task(dataclasses.replace(task, operands=[*task.operands[:-1], task.operands[-1] + 1]))
        reply = run_task(task)
        foreign, self.last = self.last or reply, reply
        if fault == "outputs":
            return dataclasses.replace(reply, outputs=[np.asarray(x) + 1 for x in reply.outputs])
        return foreign if fault == "foreign" else reply


@pytest.mark.parametrize("name", ["sums", "rows", "two passes"])
def test_changed_and_foreign_answers_of_workers_are_computed_again_or_end_the_run(name: str) -> None:
    pool, program = Proxy(), PROGRAMS[name]
    engine, expected = Executor(pool, clients_per_task=2), program(DATA)
    ended = 0
    for rate in [0.0, *[0.3] * 60]:
        pool.rate = rate
        try:
            results = engine.run(program, DATA).results
        except EngineError as error:
            ended += 1
            assert "changed" in str(error) or "foreign" in str(error)  # noqa: PT017
        else:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results, expected)
    assert pool.damaged > 50
    assert 0 < ended < 60
