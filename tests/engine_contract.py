"""What every engine must do alike: programs with their inputs, and the tests that an engine's own class inherits."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.engines import ClientReader, Engine
from workbench.errors import EngineError

CLIENTS = 5
FEATURES = 3


def client_data() -> tuple[np.ndarray, np.ndarray]:
    """Examples of five clients: `x` is `[clients, examples, features]` and `y` is `[clients, examples]`."""
    random = np.random.default_rng(0)
    x = random.normal(size=(CLIENTS, 4, FEATURES)).astype(np.float32)
    return x, np.tanh(x.sum(-1)).astype(np.float32)


def start() -> np.ndarray:
    return np.full(FEATURES, 0.1, np.float32)


def _train(w: Any, x: Any, y: Any) -> Any:
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
    return -0.1 * slope, loss


@wb.program(clients=CLIENTS)
def fedavg(w: Any, data: Any) -> Any:
    delta, loss = wb.map_fn(_train, (wb.broadcast(w), *data))
    return w + wb.reduce_mean(delta), wb.reduce_mean(loss)


@wb.program(clients=CLIENTS)
def weighted(w: Any, data: Any) -> Any:
    delta, loss = wb.map_fn(_train, (wb.broadcast(w), *data))
    return w + wb.reduce_weighted_mean(delta, jnp.arange(CLIENTS, dtype=jnp.float32)), wb.reduce_max(loss)


def rounds(w: Any, data: Any) -> Any:
    return jax.lax.scan(lambda w, _: fedavg(w, data), w, None, length=3)


def until_good(w: Any, data: Any) -> Any:
    """Rounds in a `while_loop` with a `cond` inside: at most 4, every second one weighted."""

    def body(carry: Any) -> Any:
        w, turn = carry
        return jax.lax.cond(turn % 2 == 0, lambda w: fedavg(w, data)[0], lambda w: weighted(w, data)[0], w), turn + 1

    return jax.lax.while_loop(lambda carry: carry[1] < 4, body, (w, jnp.int32(0)))


@wb.program(placements={"pods": 2, "clients": 3})
def hierarchical(w: Any, data: Any) -> Any:
    def pod(w: Any, x: Any) -> Any:
        rows = wb.map_fn(lambda v, row: jnp.tanh(v * row), (wb.broadcast(w, to="clients"), x), over="clients")
        return wb.reduce_max(rows, over="clients")

    (x,) = data
    return wb.reduce_mean(wb.map_fn(pod, (wb.broadcast(w, to="pods"), x), over="pods"), over="pods")


@wb.program(clients=CLIENTS)
def by_key(w: Any, data: Any) -> Any:
    x, _ = data
    rows = wb.map_fn(lambda v, row: row @ v, (wb.broadcast(w), x))
    keys = wb.map_fn(lambda row: (row[:, 0] > 0).astype(jnp.int32) + 2 * (row[:, 1] > 0).astype(jnp.int32), x)
    return wb.reduce_by_key(rows, keys, 4, op="mean")


@wb.program(clients=CLIENTS)
def per_client(w: Any, data: Any) -> Any:
    return wb.map_fn(_train, (wb.broadcast(w), *data))


@wb.program(clients=CLIENTS)
def nobody(w: Any, data: Any) -> Any:
    """A cohort that nobody is in."""
    delta, _ = wb.map_fn(_train, (wb.broadcast(w), *data))
    return w + wb.reduce_mean(delta, where=jnp.zeros(CLIENTS, bool))


@wb.program(clients=CLIENTS)
def cohort(w: Any, data: Any) -> Any:
    """A round with three drawn clients and noise from each one's own key."""
    key = jax.random.key(1)
    drawn = wb.sample(key, 3)
    rows = wb.select(data[0], drawn)
    with wb.program(clients=3):
        noise = wb.map_fn(lambda k: jax.random.normal(k, (FEATURES,)), jax.random.split(key, 3))
        return wb.reduce_sum(wb.map_fn(lambda v, row, n: row.mean(0) * v + n, (wb.broadcast(w), rows, noise)))


@wb.program(clients=CLIENTS)
def together(w: Any, data: Any) -> Any:
    """Clients that talk to each other in their function."""
    x, _ = data
    return wb.reduce_mean(
        wb.map_fn(lambda v, row: row * v[None] / (1 + jax.lax.psum(row, "clients") ** 2), (wb.broadcast(w), x))
    )


def printing(x: Any) -> Any:
    """A program whose clients call back to Python."""

    def one(row: Any) -> Any:
        jax.debug.print("{}", row)
        return row

    return wb.reduce_sum(wb.map_fn(one, x))


def failing(x: Any) -> Any:
    """A program whose server calls back to Python, which raises."""

    def refuse(_: Any) -> Any:
        message = "server down"
        raise OSError(message)

    total = wb.reduce_sum(x)
    return jax.pure_callback(refuse, jax.typeof(total), total)


def _pods() -> tuple[np.ndarray]:
    return (np.random.default_rng(1).normal(size=(2, 3, FEATURES)).astype(np.float32),)


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable
    data: Callable[[], Any] = client_data


CASES = [
    Case("one round", fedavg),
    Case("weighted", weighted),
    Case("rounds in a scan", rounds),
    Case("rounds in a while_loop with a cond", until_good),
    Case("pods of clients", hierarchical, _pods),
    Case("reduce_by_key", by_key),
    Case("a row per client", per_client),
    Case("a cohort of nobody", nobody),
    Case("a drawn cohort with keys", cohort),
    Case("clients that talk to each other", together),
    Case("gradient of rounds", jax.grad(lambda w, data: rounds(w, data)[1][-1])),
    Case("gradient of pods", jax.grad(lambda w, data: hierarchical(w, data).sum()), _pods),
    Case("gradient of clients' data", jax.grad(lambda w, data: fedavg(w, data)[1], argnums=1)),
]


class EngineContract:
    """Inherit, and give the fixture `engine` and the name of the place where clients run."""

    remote = False  # whether clients are computed in another process

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_results_are_those_of_the_mesh(self, engine: Engine, case: Case) -> None:
        expected = wb.jit(case.fn)(start(), case.data())
        run = engine.run(case.fn, start(), case.data())
        assert jax.tree.structure(run.results) == jax.tree.structure(expected)
        for ours, theirs in zip(jax.tree.leaves(run.results), jax.tree.leaves(expected), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)

    def test_record_names_every_client_and_its_bytes(self, engine: Engine) -> None:
        run = engine.run(fedavg, start(), client_data())
        assert [client.client for client in run.clients] == list(range(CLIENTS))
        # The server sends 3 float32; what comes back is at least a share of 3 + 1 float32.
        assert {client.received_bytes for client in run.clients} <= {12, round(12 / 5), 6, 4}
        assert all(client.sent_bytes and client.seconds is not None for client in run.clients)
        assert run.moved_bytes
        stage = next(stage for stage in wb.trace(fedavg)(start(), client_data()).plan.stages if stage.kind == "clients")
        assert {client.stage for client in run.clients} == {stage.path}

    def test_rounds_have_their_seconds(self, engine: Engine) -> None:
        run = engine.run(rounds, start(), client_data())
        assert run.rounds == len(run.round_seconds) == 3
        assert {client.stage.split(".")[0] for client in run.clients} == {run.clients[0].stage.split(".")[0]}

    def test_clients_are_read_from_a_reader_round_by_round(self, engine: Engine) -> None:
        x, y = client_data()
        reads: list[str] = []

        def read() -> Any:
            for i in range(CLIENTS):
                reads.append(f"c{i}")
                yield f"c{i}", (x[i], y[i])

        run = engine.run(rounds, start(), ClientReader(read, clients=CLIENTS))
        expected = wb.jit(rounds)(start(), (x, y))
        np.testing.assert_allclose(run.results[0], expected[0], rtol=1e-5, atol=1e-5)
        assert {client.client for client in run.clients} == {f"c{i}" for i in range(CLIENTS)}
        assert reads.count("c4") == 3

    def test_client_of_another_shape_is_named(self, engine: Engine) -> None:
        x, y = client_data()
        pairs = [(f"c{i}", (x[i], y[i])) for i in range(4)] + [("short", (x[4, :2], y[4, :2]))]
        with pytest.raises(EngineError, match=r"read client 'short' with data.*same shapes and dtypes") as caught:
            engine.run(fedavg, start(), ClientReader(pairs))
        assert caught.value.client == "short"

    def test_reader_that_raises_names_the_stage(self, engine: Engine) -> None:
        x, y = client_data()

        def read() -> Any:
            yield "c0", (x[0], y[0])
            message = "disk gone"
            raise OSError(message)

        with pytest.raises(EngineError, match="OSError: disk gone, after client 'c0'") as caught:
            engine.run(fedavg, start(), ClientReader(read, clients=CLIENTS))
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.stage is not None

    def test_failure_in_a_later_round_keeps_the_finished_ones(self, engine: Engine) -> None:
        x, y = client_data()
        passes = []

        def read() -> Any:
            passes.append(0)
            for i in range(CLIENTS):
                if len(passes) == 4:  # the first is the look at the shapes, so this is round 2
                    message = "left"
                    raise ConnectionError(message)
                yield i, (x[i], y[i])

        with pytest.raises(EngineError, match="ConnectionError") as caught:
            engine.run(rounds, start(), ClientReader(read, clients=CLIENTS))
        two = jax.lax.scan(lambda w, _: fedavg(w, (x, y)), start(), None, length=2)[0]
        assert caught.value.run.rounds == 2
        np.testing.assert_allclose(caught.value.run.results[0], two, rtol=1e-5, atol=1e-5)
        assert caught.value.run.errors

    def test_cancelled_run_ends(self, engine: Engine) -> None:
        cancel = threading.Event()
        reported: list[tuple[str, float]] = []

        def progress(stage: str, done: float) -> None:
            reported.append((stage, done))
            cancel.set()

        with pytest.raises(EngineError, match="was cancelled in stage"):
            engine.run(rounds, start(), client_data(), progress=progress, cancel=cancel)
        assert len(reported) == 1
