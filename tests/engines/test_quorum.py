"""Rounds that go on with the clients that answered; the oracle is the same program with `where=` those clients."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_contract import CLIENTS, client_data, start

import workbench as wb
from workbench.engines import Executor
from workbench.engines._cohorts import of_present, placements_of
from workbench.errors import EngineError, ProgramError
from workbench.plan import trace

pytestmark = pytest.mark.usefixtures("little_optimized")


class Stragglers(concurrent.futures.Executor):
    """Threads that look like a cluster; tasks for which `late(task number, batch)` holds never answer, or raise."""

    _max_workers = CLIENTS

    def __init__(self, late: Callable[[int, int], bool], error: Exception | None = None) -> None:
        self.late, self.error, self.count = late, error, 0
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.silent: list[concurrent.futures.Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        number, self.count = self.count, self.count + 1
        if not self.late(number, int(args[0].operands[0])):
            return self.pool.submit(fn, *args)
        self.silent.append(concurrent.futures.Future())
        if self.error is not None:
            self.silent[-1].set_exception(self.error)
        return self.silent[-1]


def local(w: Any, x: Any, y: Any) -> Any:
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
    return -0.1 * slope, loss


@wb.program(clients=CLIENTS)
def averaged(w: Any, data: Any) -> Any:
    delta, loss = wb.map_fn(local, (wb.broadcast(w), *data))
    return w + wb.reduce_mean(delta), wb.reduce_sum(loss)


@wb.program(clients=CLIENTS)
def averaged_where(w: Any, data: Any, present: Any) -> Any:
    delta, loss = wb.map_fn(local, (wb.broadcast(w), *data))
    return w + wb.reduce_mean(delta, where=present), wb.reduce_sum(loss, where=present)


@wb.program(clients=CLIENTS)
def all_reductions(w: Any, data: Any) -> Any:
    x, y = data
    rows = wb.map_fn(lambda w, x: x @ w, (wb.broadcast(w), x))
    keys = wb.map_fn(lambda y: (y > 0).astype(jnp.int32), y)
    chosen = wb.map_fn(lambda y: y[0] < 0.9, y)
    return (
        wb.reduce_weighted_mean(rows, jnp.arange(1.0, CLIENTS + 1)),
        wb.reduce_max(rows),
        wb.reduce_min(rows, where=chosen),
        wb.reduce_by_key(rows, keys, 2, op="mean"),
        wb.reduce_mean(rows, where=chosen),
    )


def rounds(w: Any, data: Any) -> Any:
    return jax.lax.scan(lambda w, _: averaged(w, data), w, None, length=3)


def rounds_where(w: Any, data: Any, present: Any) -> Any:
    return jax.lax.scan(lambda w, mask: averaged_where(w, data, mask), w, present)


def two_passes(w: Any, data: Any) -> Any:
    once, _ = averaged(w, data)
    return averaged(once, data)


ABSENT = (1, 3)
PRESENT = np.array([i not in ABSENT for i in range(CLIENTS)])


def _close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def _engine(late: Callable[[int, int], bool], **options: Any) -> Executor:
    return Executor(Stragglers(late), clients_per_task=1, **{"quorum": 3, **options})


@pytest.mark.parametrize(
    "fn", [averaged, jax.grad(lambda w, data: averaged(w, data)[1]), rounds], ids=["values", "gradient", "rounds"]
)
def test_absent_clients_are_as_if_left_out_by_where(fn: Any):
    where = {averaged: averaged_where, rounds: lambda *a: rounds_where(*a[:2], np.tile(PRESENT, (3, 1)))}.get(
        fn, jax.grad(lambda w, data, present: averaged_where(w, data, present)[1])
    )
    run = _engine(lambda _, batch: batch in ABSENT).run(fn, start(), client_data())
    _close(run.results, wb.jit(where)(start(), client_data(), PRESENT))
    assert {client.client for client in run.clients} == {0, 2, 4}
    (note, *_) = [note for note in run.notes if "continued with" in note]
    assert "with 3 of 5 clients, without clients 1, 3: not among the first 3 clients that answered" in note


@pytest.mark.parametrize(
    "fn", [all_reductions, two_passes, jax.jacobian(all_reductions)], ids=["reductions", "two passes", "jacobian"]
)
def test_every_reduction_and_derivative_is_of_those_who_answered(fn: Any):
    masked = of_present(fn, placements_of(trace(fn, (start(), client_data()), listening=True).plan))
    run = _engine(lambda _, batch: batch in ABSENT).run(fn, start(), client_data())
    _close(run.results, jax.jit(masked)([PRESENT], start(), client_data()))


def test_gradient_of_rounds_is_that_of_the_clients_of_each_round():
    """In each round others are late; the backward pass needs the clients of the forward pass of the same round."""
    masks = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], bool)

    def late(number: int, batch: int) -> bool:  # each of the three forward passes sends to everyone
        turn = number // CLIENTS
        return turn < 3 and not masks[turn, batch]

    gradient = jax.grad(lambda w, data: rounds(w, data)[1].sum())
    oracle = jax.grad(lambda w, data: rounds_where(w, data, masks)[1].sum())
    run = _engine(late).run(gradient, start(), client_data())
    _close(run.results, wb.jit(oracle)(start(), client_data()))
    assert sum("continued with 3 of 5" in note for note in run.notes) == 3


def test_a_deadline_waits_for_all_that_come_in_time():
    everyone = _engine(lambda *_: False, deadline_seconds=60).run(averaged, start(), client_data())
    _close(everyone.results, wb.jit(averaged)(start(), client_data()))
    run = _engine(lambda _, batch: batch == 1, quorum=4, deadline_seconds=1.0).run(averaged, start(), client_data())
    _close(run.results, wb.jit(averaged_where)(start(), client_data(), np.arange(CLIENTS) != 1))
    assert any("without client 1: no answer within " in note for note in run.notes)


def test_clients_that_raise_are_absent_with_their_reason():
    pool = Stragglers(lambda _, batch: batch in ABSENT, OSError("disk gone"))
    run = Executor(pool, clients_per_task=1, quorum=0.6).run(averaged, start(), client_data())
    _close(run.results, wb.jit(averaged_where)(start(), client_data(), PRESENT))
    assert any("without clients 1, 3: OSError: disk gone" in note for note in run.notes)
    with pytest.raises(EngineError, match="cannot reach its quorum: 4 of 5 clients must answer, and 2 failed: OSError"):
        Executor(pool, clients_per_task=1, quorum=4).run(averaged, start(), client_data())


def test_what_is_late_is_called_off():
    pool = Stragglers(lambda _, batch: batch in ABSENT)
    Executor(pool, clients_per_task=1, quorum=3).run(averaged, start(), client_data())
    assert [future.cancelled() for future in pool.silent] == [True, True]


def test_rows_of_absent_clients_are_nan():
    @wb.program(clients=CLIENTS)
    def both(w: Any, data: Any) -> Any:
        _, loss = wb.map_fn(local, (wb.broadcast(w), *data))
        return loss, wb.reduce_mean(loss)

    loss, mean = _engine(lambda _, batch: batch in ABSENT).run(both, start(), client_data()).results
    assert np.isnan(loss).tolist() == (~PRESENT).tolist()
    np.testing.assert_allclose(mean, np.nanmean(loss), rtol=1e-6)


def _carried(w: Any, data: Any) -> Any:
    x, _ = data

    def turn(state: Any, _: Any) -> Any:
        state = wb.map_fn(lambda s, row: s + row.sum(), (state, x))
        return state, wb.reduce_sum(state)

    with wb.program(clients=CLIENTS):
        return jax.lax.scan(turn, jnp.zeros(CLIENTS), None, length=2)[1]


def _sorted(w: Any, data: Any) -> Any:
    with wb.program(clients=CLIENTS):
        return jnp.sort(wb.map_fn(lambda row: row.sum(), data[0]))[0] + wb.reduce_sum(data[1]).sum()


def _words(w: Any, data: Any) -> Any:
    with wb.program(clients=CLIENTS):
        return wb.reduce_sum(wb.map_fn(lambda row: row.sum().astype(jnp.uint32), data[0]))


@pytest.mark.parametrize(
    ("fn", "fact"),
    [
        (_carried, "`scan` carries rows of clients, such as their state"),
        (_sorted, "its server reads the rows of all clients"),
        (_words, "a secure sum, whose masks cancel only over all clients"),
    ],
)
def test_programs_that_need_every_client_are_refused(fn: Any, fact: str):
    with pytest.raises(ProgramError, match=fact):
        _engine(lambda *_: False).run(fn, start(), client_data())


@pytest.mark.parametrize(
    "options", [{"quorum": 0}, {"quorum": 1.5}, {"quorum": True}, {"deadline_seconds": 2.0}], ids=str
)
def test_quorum_is_checked(options: Any):
    with pytest.raises(ProgramError, match="Pass `quorum` as a number of clients"):
        Executor(concurrent.futures.ThreadPoolExecutor(1), **options)


@pytest.mark.parametrize("error", [None, OSError("disk gone")], ids=["silent", "failed"])
def test_late_batches_are_sent_a_second_time(error: Any):
    sent: list[int] = []

    def late(_: int, batch: int) -> bool:
        sent.append(batch)
        return batch in ABSENT and sent.count(batch) == 1

    pool = Stragglers(late, error)
    pool._max_workers = CLIENTS if error is None else 1  # with one worker nothing is idle
    engine = Executor(pool, clients_per_task=1, backups=True)
    if error is not None:
        with pytest.raises(EngineError, match="disk gone"):
            engine.run(averaged, start(), client_data())
        return
    run = engine.run(averaged, start(), client_data())
    _close(run.results, wb.jit(averaged)(start(), client_data()))
    assert {batch: sent.count(batch) for batch in ABSENT} == dict.fromkeys(ABSENT, 2)
    assert max(sent.count(batch) for batch in range(CLIENTS)) == 2
    assert all(future.cancelled() for future in pool.silent)


def test_privacy_of_a_round_with_a_quorum_has_the_fixed_denominator():
    """The mean is divided by the expected clients and not by those that came, so that its noise stays what it was."""
    aggregator = wb.algorithms.gaussian_mean(clip=1.0, noise_multiplier=0.5)

    @wb.program(clients=CLIENTS)
    def private(x: Any) -> Any:
        return aggregator.combine(x, jnp.ones(CLIENTS), aggregator.init(None))[0]

    x = client_data()[0][:, 0]
    found = _engine(lambda _, batch: batch in ABSENT).run(private, x).results
    scale = np.minimum(1, 1 / np.linalg.norm(x, axis=1, keepdims=True))
    noise = wb.jit(private)(np.zeros_like(x))
    np.testing.assert_allclose(found - noise, (x * scale)[PRESENT].sum(0) / CLIENTS, rtol=1e-4, atol=1e-6)


def test_answers_are_taken_as_they_come():
    """The first batch waits until all others have answered: nothing waits for it to be sent."""

    @wb.program(clients=12)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, x))

    class HeadLast(Stragglers):
        _max_workers = 2

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
            batch = int(args[0].operands[0])
            if batch == 11:
                threading.Timer(0.2, self.first.set_result, [fn(*self.task)]).start()
            if batch > 0:
                return self.pool.submit(fn, *args)
            self.first: concurrent.futures.Future[Any] = concurrent.futures.Future()
            self.task = args
            return self.first

    run = Executor(HeadLast(lambda *_: False), clients_per_task=1).run(total, np.arange(12, dtype=np.float32))
    assert float(run.results) == 132.0
    assert [client.client for client in run.clients] == list(range(12))
