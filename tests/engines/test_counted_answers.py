"""Every client is counted exactly once: answers are dropped, doubled, reordered, delayed, changed and swapped."""

import concurrent.futures
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_programs import CLIENTS, DATA, drawn_program

import workbench as wb
from workbench.engines import ClientReader, Engine, Executor
from workbench.engines._client_loop import Pass
from workbench.engines._remote import run_task
from workbench.engines._table_engine import check_folder
from workbench.errors import EngineError, ProgramError

pytestmark = pytest.mark.usefixtures("little_optimized")


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
        self.passes = 0

    def _compute(self, work: Pass) -> None:
        self.passes += 1
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

    def submit(self, fn: Any, /, task: Any, values: Any) -> concurrent.futures.Future:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert fn is run_task
        return self.pool.submit(self._run, task, values)

    def _run(self, task: Any, values: Any) -> Any:
        fault = self.random.choice(["arguments", "outputs", "foreign"]) if self.random.random() < self.rate else ""
        self.damaged += bool(fault)
        if fault == "arguments":
            return run_task(dataclasses.replace(task, operands=[*task.operands[:-1], task.operands[-1] + 1]), values)
        reply = run_task(task, values)
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


class Stale(Proxy):
    """Answers as in the first pass that asked for the batch."""

    def _run(self, task: Any, values: Any) -> Any:
        self.last = self.last or {}
        return self.last.setdefault(int(task.operands[0]), run_task(task, values))


def test_an_answer_to_the_same_batch_of_an_earlier_pass_is_refused():
    @wb.program(clients=CLIENTS)
    def rounds(w: Any, x: Any) -> Any:
        turn = lambda w, _: (w + wb.reduce_mean(wb.map_fn(lambda w, x: x - w, (wb.broadcast(w), x))), None)  # noqa: E731
        return jax.lax.scan(turn, w, None, length=2)[0]

    engine = Executor(Stale(), clients_per_task=3)
    with pytest.raises(EngineError, match="was changed in transit, or belonged to another batch, in each of 3 tries"):
        engine.run(rounds, np.zeros(3, np.float32), DATA)


def run_chaos(seed: int, runs: int) -> tuple[int, int, int]:
    """Runs a drawn program under faults drawn by chance: the passes, the runs that ended in an error, the wrong."""
    random, program = np.random.default_rng(seed), drawn_program(seed)
    w = np.linspace(0.1, 0.4, 3, dtype=np.float32)
    expected = wb.jit(program)(w, DATA)
    engine, ended, wrong = Chaos(int(random.choice([1, 3, 5]))), 0, 0
    count = -(-CLIENTS // engine.size)
    kinds = [*FAULTS.values(), lambda answers, i, j: answers]

    def fault(answers: Answers, *_: int) -> Answers:
        for _ in range(random.poisson(0.5)):
            i, j = (int(i) for i in random.choice(count, 2, replace=False))
            answers = kinds[random.integers(len(kinds))](answers, i, j) if len(answers) == count else answers
        return answers

    orders: list[Any] = []

    def read() -> Any:
        order = list(range(CLIENTS))
        if random.random() < 0.05:
            random.shuffle(order)
        orders.append(order)
        yield from ((i, DATA[i]) for i in order)

    reader = ClientReader(read, clients=CLIENTS)
    engine.fault = fault
    for number in range(runs):
        orders.clear()
        try:
            results = engine.run(program, w, reader if number % 4 == 0 else DATA).results
        except EngineError as error:
            ended += 1
            wrong += "exactly one answer" not in str(error)
            continue
        if number % 4 == 0 and orders[0] != list(range(CLIENTS)):
            continue  # the whole run had one other order, which pairs clients with other weights
        close = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-5), results, expected)
        wrong += not all(jax.tree.leaves(close))
    return engine.passes, ended, wrong


def test_programs_drawn_by_chance_give_the_right_results_or_an_error_under_faults_drawn_by_chance():
    passes, ended, wrong = np.sum([run_chaos(seed, 40) for seed in range(5)], axis=0)
    assert wrong == 0
    assert passes > 200
    assert ended > 20


@pytest.mark.slow
def test_no_result_of_ten_thousand_passes_is_wrong():
    total = np.zeros(3, int)
    seed = 100
    while total[0] < 10_000:
        total += run_chaos(seed, 500)
        seed += 1
    assert total[2] == 0


def test_a_reader_that_gives_another_order_in_a_later_pass_is_refused():
    turns = iter(range(100))

    def read() -> Any:
        order = range(CLIENTS) if next(turns) < 2 else range(CLIENTS - 1, -1, -1)  # the first looks at the shapes
        return ((f"c{i}", DATA[i]) for i in order)

    with pytest.raises(EngineError, match="returned different clients, or a different order, than in an earlier pass"):
        Chaos(3).run(two_passes, ClientReader(read, clients=CLIENTS))


@pytest.mark.parametrize("folder", ["zzz://bucket/tmp", "hdfs://host/tmp", "file:///no/folder", "/no/such/folder"])
def test_folders_that_cannot_be_written_are_refused_before_anything_runs(folder: str):
    with pytest.raises(ProgramError, match=f"`Spark` was given folder='{folder}', but no file can be written there: "):
        check_folder("Spark", folder)


def test_folders_of_this_machine_are_taken(tmp_path: Path):
    check_folder("Spark", tmp_path)
    check_folder("Spark", f"file://{tmp_path}")
    check_folder("Spark", None)
