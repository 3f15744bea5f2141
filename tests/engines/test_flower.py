"""The Flower engine; what needs flwr is skipped without the extra, and the rest of it is not."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from engine_contract import (
    CLIENTS,
    EngineContract,
    client_data,
    fedavg,
    per_client,
    rounds,
    start,
)
from flower_tests import family, flower_warnings, have_an_identity, needs_flower, none_left
from stragglers import LATE, check_rounds_go_on, present_of

import workbench as wb
from workbench.engines import Engine, Flower
from workbench.engines.flower._app.asks import Ask, NodeFailure, NodeReply
from workbench.errors import EngineError

pytestmark = flower_warnings


@pytest.fixture(scope="module")
def flower() -> Iterator[Flower]:
    """One simulation for all tests: Ray takes up to a minute to start."""
    with Flower(nodes=CLIENTS, workers=2, start_seconds=500) as engine:
        yield engine


@needs_flower
@pytest.mark.slow
class TestFlowerSimulation(EngineContract):
    @pytest.fixture
    def engine(self, flower: Flower) -> Engine:
        return flower


class Here(Flower):
    """The engine with nodes that are functions of this process: everything but flwr's own message passing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[list[Ask]] = []
        self.changed: Any = lambda _, reply: reply

    def _new_runtime(self, nodes: int) -> Any:
        return _NodesHere(self, nodes)


class _NodesHere:
    def __init__(self, engine: Here, nodes: int) -> None:
        import tempfile

        self.engine, self.nodes = engine, nodes
        self._folder = tempfile.TemporaryDirectory()
        self.data = Path(self._folder.name)
        self.contexts = []
        self.processes = SimpleNamespace(ended={})
        for i in range(nodes):
            (self.data / str(i)).mkdir()
            config = {"partition-id": i, "data": str(self.data / str(i))}
            self.contexts.append(SimpleNamespace(node_config=config, run_config={}, state={}))

    def start(self, check: Any) -> None:
        check()

    def ask(self, asks: Any, seconds: float, check: Any, enough: Any = None) -> list[NodeReply]:
        check()
        self.engine.asked.append(list(asks))
        replies = []
        for ask in asks:
            try:
                replies.append(_answer(ask, self.contexts[ask.slot]))
            except Exception as error:
                raise NodeFailure(ask.slot, f"{type(error).__name__}: {error}") from error
        return [self.engine.changed(ask.slot, reply) for ask, reply in zip(asks, replies, strict=True)]

    def close(self) -> None:
        self._folder.cleanup()


def _answer(ask: Ask, context: Any) -> NodeReply:
    from workbench.engines.flower._app import client, nodes

    return NodeReply(*client._answer(nodes.as_contents([ask])[0], context))


@needs_flower
class TestNodesOfThisProcess(EngineContract):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        with Here() as engine:
            yield engine


@needs_flower
class TestTwoClientsPerNode(EngineContract):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        with Here(clients_per_node=2) as engine:
            yield engine


@needs_flower
def test_rounds_go_on_without_nodes_that_are_late():
    forward = iter(LATE)

    class Late(Here):
        def _ask(self, asks: Any, check: Any, enough: Any = None) -> list[NodeReply]:
            late = next(forward) if enough else np.zeros(CLIENTS, bool)
            assert not enough or enough == (4, None)
            replies = iter(super()._ask([ask for ask in asks if not late[ask.slot]], check))
            return [NodeReply([], {"error": "late"}) if late[ask.slot] else next(replies) for ask in asks]

    with Late(quorum=4) as engine:
        run = check_rounds_go_on(engine)
    assert (present_of(run) == ~LATE).all()


@needs_flower
def test_nodes_that_are_late_are_not_asked_again_before_they_answer(monkeypatch: pytest.MonkeyPatch):
    from workbench.engines.flower._app.nodes import ask_nodes

    have_an_identity(monkeypatch)

    class Grid:
        silent, answers, pushed = {11}, [], []

        def push_messages(self, messages: Any) -> list[str]:
            messages = list(messages)
            for number, message in enumerate(messages):
                message.metadata.__dict__["_message_id"] = f"{len(self.pushed)}-{number}"
            self.pushed.append([x.metadata.dst_node_id for x in messages])
            self.answers += messages
            return [x.metadata.message_id for x in messages]

        def pull_messages(self, ids: Any) -> list[Any]:
            wanted = set(ids)
            found = [x for x in self.answers if x.metadata.message_id in wanted]
            return [_replied(x) for x in found if x.metadata.dst_node_id not in self.silent]

    def ask(enough: Any) -> list[str]:
        asks = [Ask(digest="d", slot=slot) for slot in range(3)]
        replies = ask_nodes(grid, [10, 11, 12], asks, 5.0, enough=enough, late=late)  # pyright: ignore
        return [str(reply.reported["error"])[:19] for reply in replies]

    grid, late = Grid(), {}
    assert ask((2, None)) == ["", "did not answer with", ""]
    assert ask((2, 0.1)) == ["", "is still computing ", ""]
    grid.silent.clear()
    assert ask((2, 0.1)) == ["", "", ""]
    assert grid.pushed == [[10, 11, 12], [10, 12], [10, 11, 12]]


def _replied(message: Any) -> Any:
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    content = RecordDict({"values": ArrayRecord(), "reported": ConfigRecord({"error": ""})})
    metadata = SimpleNamespace(reply_to_message_id=message.metadata.message_id)
    return SimpleNamespace(metadata=metadata, content=content, has_error=lambda: False)


@needs_flower
@pytest.mark.slow
def test_rounds_of_the_simulation_go_on_without_late_nodes(flower: Flower, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flower, "quorum", 4)
    monkeypatch.setattr(flower, "_known", {})
    check_rounds_go_on(flower, steps=3 * 10**8)


@needs_flower
def test_no_message_holds_a_clients_data():
    x, y = client_data()
    with Here() as engine:
        engine.run(rounds, start(), (x, y))
    sent = {np.asarray(value).tobytes() for asks in engine.asked for ask in asks for value in ask.sent}
    rows = {part[i].tobytes() for part in (x, y) for i in range(CLIENTS)}
    assert not sent & rows
    assert {source.split(":")[0] for asks in engine.asked for ask in asks for source in ask.rows} == {"own"}


@needs_flower
def test_record_lists_what_left_the_clients():
    with Here() as engine:
        run = engine.run(rounds, start(), client_data())
    # 3 rounds of 5 clients, each with a share of the mean of 3 float32 and one of a scalar.
    assert [(left.shape, left.dtype, left.size_bytes, left.kind, left.count) for left in run.disclosed] == [
        ((3,), "float32", 12, "partial result", 15),
        ((), "float32", 4, "partial result", 15),
    ]
    assert sum(left.size_bytes * left.count for left in run.disclosed) == sum(
        client.sent_bytes for client in run.clients
    )


@needs_flower
def test_rows_leave_only_when_somebody_reads_them():
    @wb.program(clients=CLIENTS)
    def twice(x: Any) -> Any:
        mean = wb.reduce_mean(wb.map_fn(lambda row: row * 2, x))
        return wb.reduce_sum(wb.map_fn(lambda m, row: (row - m) ** 2, (wb.broadcast(mean), x)))

    x = np.arange(CLIENTS, dtype=np.float32)
    with Here() as engine:
        run = engine.run(jax.grad(twice), x)
        held = [ask.kept for asks in engine.asked for ask in asks if ask.kept]
        fetched = [ask.fetch for asks in engine.asked for ask in asks if ask.fetch]
    np.testing.assert_allclose(run.results, jax.grad(twice)(x), rtol=1e-5)
    assert held  # residuals of the first pass wait at the clients
    assert len(fetched) == CLIENTS  # the gradient for the clients' data is a result, so it is fetched, once
    assert [left.count for left in run.disclosed if left.kind == "row"] == [CLIENTS]


@needs_flower
def test_rows_that_nobody_can_read_any_more_are_dropped_by_the_nodes():
    def counts(w: Any, data: Any) -> Any:
        """Ten rounds that carry a value of each client on."""

        @wb.program(clients=CLIENTS)
        def one(carry: Any) -> Any:
            w, state = carry
            state = wb.map_fn(lambda v, s, x, y: s + x.mean() * v.sum() + y.mean(), (wb.broadcast(w), state, *data))
            return w + wb.reduce_mean(state), state

        return jax.lax.fori_loop(0, 10, lambda _, carry: one(carry), (w, jnp.zeros(CLIENTS)))[0]

    with Here() as engine:
        run = engine.run(counts, start(), client_data())
        runtime: Any = engine._running
        kept = [len(context.state["held"]) for context in runtime.contexts]
    np.testing.assert_allclose(run.results, wb.jit(counts)(start(), client_data()), rtol=1e-4)
    assert max(kept) <= 2  # of ten
    assert not [left for left in run.disclosed if left.kind == "row"]


@needs_flower
def test_rows_that_the_server_made_are_sent_and_reported():
    @wb.program(clients=3)
    def noisy(key: Any, x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda k, row: row + jax.random.normal(k), (jax.random.split(key, 3), x)))

    with Here() as engine:
        run = engine.run(noisy, jax.random.key(0), np.ones(3, np.float32))
    assert any("rows that the server computed and sent" in note and "uint32[3, 2]" in note for note in run.notes)
    np.testing.assert_allclose(run.results, noisy(jax.random.key(0), jnp.ones(3)), rtol=1e-6)


@needs_flower
def test_bfloat16_reaches_the_nodes_and_comes_back():
    @wb.program(clients=3)
    def both(w: Any, x: Any) -> Any:
        rows = wb.map_fn(lambda w, row: w * row, (wb.broadcast(w), x))
        return wb.reduce_max(rows), rows

    x = jnp.arange(3, dtype=jnp.bfloat16)
    with Here() as engine:
        run = engine.run(both, jnp.bfloat16(2), x)
    assert [leaf.dtype for leaf in run.results] == [jnp.bfloat16, jnp.bfloat16]
    assert run.results[1].tolist() == [0, 2, 4]


@needs_flower
def test_nan_names_the_client():
    @wb.program(clients=3)
    def logarithms(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(jnp.log, x))

    with (
        Here(check_nan=True) as engine,
        pytest.raises(EngineError, match=r"produced a NaN for client 1, in the partial result") as e,
    ):
        engine.run(logarithms, np.array([1, -1, 2], np.float32))
    assert e.value.client == 1


@needs_flower
def test_reply_of_another_shape_names_the_client():
    def cut(slot: int, reply: NodeReply) -> NodeReply:
        return NodeReply([reply.values[0][:2], *reply.values[1:]], reply.reported) if slot == 3 else reply

    with Here() as engine:
        engine.changed = cut
        with pytest.raises(EngineError, match=r"got float32\[2\] from client 3 on node 3.*expects float32\[3\]") as e:
            engine.run(fedavg, start(), client_data())
    assert e.value.client == "3"


@needs_flower
def test_client_that_raises_is_named(monkeypatch: pytest.MonkeyPatch):
    from workbench.engines.flower._app import client

    def gone(context: Any, name: str) -> Any:
        if context.node_config["partition-id"] == 2:
            message = "the disk of client 2"
            raise OSError(message)
        return column(context, name)

    column = client.column
    monkeypatch.setattr(client, "column", gone)
    with Here() as engine, pytest.raises(EngineError, match=r"failed for client 2 on node 2.*OSError: the disk") as e:
        engine.run(fedavg, start(), client_data())
    assert (e.value.stage, e.value.client) == ("1", 2)


@needs_flower
def test_data_of_another_shape_at_a_node_are_refused_there(monkeypatch: pytest.MonkeyPatch):
    from workbench.engines.flower._app import client

    column = client.column
    monkeypatch.setattr(client, "column", lambda context, name: column(context, name)[:, :2])
    with (
        Here() as engine,
        pytest.raises(EngineError, match=r"float32\[1, 2, 3\], but the stage takes float32\[1, 4, 3\]"),
    ):
        engine.run(fedavg, start(), client_data())


@needs_flower
def test_rows_that_a_node_lost_are_an_error_that_names_the_client():
    def forget(slot: int, reply: NodeReply) -> NodeReply:
        runtime: Any = engine._running
        runtime.contexts[1].state.clear()
        return reply

    with Here() as engine:
        engine.changed = forget
        with pytest.raises(
            EngineError, match=r"client 1 on node 1 could not send the rows that its node had kept"
        ) as e:
            engine.run(per_client, start(), client_data())
    assert e.value.client == 1


@needs_flower
@pytest.mark.slow
def test_simulation_runs_in_other_processes_and_leaves_nothing_behind():
    with Flower(workers=1, start_seconds=500) as engine:
        run = engine.run(fedavg, start(), client_data())
        assert len({client.where.split(", ")[1] for client in run.clients}) == 1
        assert f"process {os.getpid()}" not in run.clients[0].where
        again = engine.run(fedavg, start(), client_data())
        assert not [note for note in again.notes if "started" in note]  # the second run finds it running
        processes = family(engine)
        assert any("flower._simulation" in " ".join(process.cmdline()) for process in processes)
    assert none_left(processes)
    np.testing.assert_allclose(run.results[0], again.results[0])


@needs_flower
@pytest.mark.slow
def test_run_ends_when_cancelled_and_the_runtime_serves_the_next_one(flower: Flower):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(EngineError, match="was cancelled"):
        flower.run(rounds, start(), client_data(), cancel=cancel)
    run = flower.run(fedavg, start(), client_data())
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)


@needs_flower
@pytest.mark.parametrize("fault", ["worker lost", "SuperNode ended", "client raised"])
def test_a_lost_or_hanging_worker_costs_one_run(fault: str):
    lost = fault != "client raised"

    def fail(slot: int, _: NodeReply) -> NodeReply:
        if fault == "SuperNode ended":
            running: Any = engine._running
            running.processes.ended["supernode 0"] = -9
        raise NodeFailure(slot, "ActorDiedError", worker_lost=lost)

    with Here() as engine:
        engine.runtime = "deployment" if fault == "SuperNode ended" else "simulation"
        engine.run(fedavg, start(), client_data())
        before, engine.changed = engine._running, fail
        with pytest.raises(EngineError, match="run the round again" if lost else "Correct that client's data"):
            engine.run(fedavg, start(), client_data())
        engine.changed = lambda _, reply: reply
        run = engine.run(fedavg, start(), client_data())
        assert (engine._running is not before) == lost
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)


_STRANGER = """
import os, sys
from ray._raylet import GcsClient
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
client = GcsClient(address=sys.argv[1])
print(client.internal_kv_keys(b"", namespace=b"fun"), flush=True)
"""


@needs_flower
@pytest.mark.slow
def test_other_users_cannot_read_the_store_of_the_simulation(flower: Flower):
    flower.run(fedavg, start(), client_data())
    raylet = next(p for p in psutil.Process().children(recursive=True) if p.name() == "raylet")
    address = next(part.partition("=")[2] for part in raylet.cmdline() if part.startswith("--gcs-address="))
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asked = subprocess.run([sys.executable, "-c", _STRANGER, address], env=env, capture_output=True, text=True)
    assert asked.returncode != 0
    assert "nauthenticated" in asked.stderr or "AUTH" in asked.stderr.upper()


@needs_flower
@pytest.mark.slow
def test_a_killed_worker_costs_one_run_of_the_simulation(flower: Flower):
    flower.run(fedavg, start(), client_data())
    actors = (p for p in psutil.Process().children(recursive=True) if "ClientAppActor" in " ".join(p.cmdline()))
    next(actors).kill()
    with pytest.raises(EngineError, match="This engine starts new workers for the next run"):
        flower.run(fedavg, start(), client_data())
    run = flower.run(fedavg, start(), client_data())
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
