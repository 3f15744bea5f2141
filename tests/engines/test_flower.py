"""The Flower engine; what needs flwr is skipped without the extra, and the rest of it is not."""

import importlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
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
    CASES,
    CLIENTS,
    Case,
    EngineContract,
    client_data,
    fedavg,
    per_client,
    rounds,
    start,
    together,
)

import workbench as wb
from workbench._errors import EngineError, MissingDependencyError, ProgramError
from workbench.engines import Engine, Flower, _keeper
from workbench.engines._flower_app.asks import Ask, NodeFailure, Reply
from workbench.engines._flower_runtime import Deployment, Processes, check_port, free_port

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None,
    reason="the extra `flower` is not installed",
)
needs_deployment = pytest.mark.skipif(
    not os.environ.get("WORKBENCH_TEST_FLOWER_DEPLOYMENT"),
    reason="takes minutes: set WORKBENCH_TEST_FLOWER_DEPLOYMENT=1 to start a SuperLink and SuperNodes",
)
# flwr 1.41 and ray 2.55 use what Python and protobuf deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


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

    def ask(self, asks: Any, seconds: float, check: Any) -> list[Reply]:
        check()
        self.engine.asked.append(list(asks))
        replies = []
        for seat, ask in enumerate(asks):
            try:
                replies.append(_answer(ask, self.contexts[seat]))
            except Exception as error:
                raise NodeFailure(seat, f"{type(error).__name__}: {error}") from error
        return [self.engine.changed(seat, reply) for seat, reply in enumerate(replies)]

    def close(self) -> None:
        self._folder.cleanup()


def _answer(ask: Ask, context: Any) -> Reply:
    from workbench.engines._flower_app import client, nodes

    return Reply(*client._answer(nodes.as_content(ask), context))


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
    assert [(left.shape, left.dtype, left.size_bytes, left.kind, left.times) for left in run.leaves] == [
        ((3,), "float32", 12, "partial result", 15),
        ((), "float32", 4, "partial result", 15),
    ]
    assert sum(left.size_bytes * left.times for left in run.leaves) == sum(client.sent_bytes for client in run.clients)


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
    assert [left.times for left in run.leaves if left.kind == "row"] == [CLIENTS]


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
    assert not [left for left in run.leaves if left.kind == "row"]


@needs_flower
def test_rows_that_the_server_made_are_sent_and_said():
    @wb.program(clients=3)
    def noisy(key: Any, x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda k, row: row + jax.random.normal(k), (jax.random.split(key, 3), x)))

    with Here() as engine:
        run = engine.run(noisy, jax.random.key(0), np.ones(3, np.float32))
    assert any("rows that the server made and sent" in note and "uint32[3, 2]" in note for note in run.notes)
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

    with Here(check_nan=True) as engine, pytest.raises(EngineError, match=r"made a NaN for client 1, in the sum") as e:
        engine.run(logarithms, np.array([1, -1, 2], np.float32))
    assert e.value.client == 1


@needs_flower
def test_reply_of_another_shape_names_the_client():
    def cut(seat: int, reply: Reply) -> Reply:
        return Reply([reply.values[0][:2], *reply.values[1:]], reply.told) if seat == 3 else reply

    with Here() as engine:
        engine.changed = cut
        with pytest.raises(EngineError, match=r"got float32\[2\] from client 3 on node 3.*expects float32\[3\]") as e:
            engine.run(fedavg, start(), client_data())
    assert e.value.client == "3"


@needs_flower
def test_client_that_raises_is_named(monkeypatch: pytest.MonkeyPatch):
    from workbench.engines._flower_app import client

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
    from workbench.engines._flower_app import client

    column = client.column
    monkeypatch.setattr(client, "column", lambda context, name: column(context, name)[:, :2])
    with (
        Here() as engine,
        pytest.raises(EngineError, match=r"float32\[1, 2, 3\], and the stage takes float32\[1, 4, 3\]"),
    ):
        engine.run(fedavg, start(), client_data())


@needs_flower
def test_rows_that_a_node_lost_are_an_error_that_names_the_client():
    def forget(seat: int, reply: Reply) -> Reply:
        runtime: Any = engine._running
        runtime.contexts[1].state.clear()
        return reply

    with Here() as engine:
        engine.changed = forget
        with pytest.raises(EngineError, match=r"client 1 on node 1 could not give the rows that stayed there") as e:
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
        family = psutil.Process().children(recursive=True)
        assert any("_flower_simulation" in " ".join(process.cmdline()) for process in family)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
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
@needs_deployment
def test_deployment_has_a_process_for_every_party_and_the_same_numbers():
    with Flower("deployment", clients_per_node=3, start_seconds=500) as engine:
        run = engine.run(fedavg, start(), client_data())
        runtime: Any = engine._running
        assert set(runtime.processes.pids) == {"superlink", "supernode 0", "supernode 1", "flwr run"}
        family = psutil.Process().children(recursive=True)
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
    assert len({client.where for client in run.clients}) == 2  # SuperNodes, each with processes of its own
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


@needs_flower
@needs_deployment
def test_supernode_that_leaves_is_an_error_that_names_the_client():
    def progress(stage: str, done: float) -> None:
        if done == 1.0 and not killed:  # the first round has finished
            runtime: Any = engine._running
            killed.append(runtime.processes.pids["supernode 1"])
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    with Flower("deployment", clients_per_node=3, timeout_seconds=300, start_seconds=500) as engine:
        with pytest.raises(
            EngineError, match=r"one of the clients 3, 4 on supernode 1.*ended with exit status -9"
        ) as e:
            engine.run(rounds, start(), client_data(), progress=progress)
        family = psutil.Process().children(recursive=True)
    assert e.value.run.rounds == 1
    np.testing.assert_allclose(e.value.run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


def _two_rounds_of_two(w: Any, x: Any) -> Any:
    with wb.program(clients=2):
        mean = lambda w: wb.reduce_mean(wb.map_fn(lambda v, row: v * row, (wb.broadcast(w), x)))  # noqa: E731
        return jax.lax.fori_loop(0, 2, lambda _, w: mean(w), w)


@needs_flower
@needs_deployment
def test_exported_app_runs_on_superlink_and_supernodes(tmp_path: Path):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    Flower.export(_two_rounds_of_two, tmp_path / "app", np.ones(4, np.float32), x)
    deployment = Deployment(2, port=0, start_seconds=500)
    try:
        for node in range(2):  # each SuperNode finds the data of one client
            (deployment.data / str(node)).rmdir()
            (tmp_path / "app" / "data" / str(node)).rename(deployment.data / str(node))
        deployment.start_nodes(lambda: None)
        deployment.submit(tmp_path / "app")
        told = tmp_path / "app" / "results" / "run.json"
        deployment.processes.ended.clear()
        deployment.processes.wait(lambda: told.exists() or None, "the results", lambda: None, 500)
    finally:
        deployment.close()
    assert json.loads(told.read_text())["finished_rounds"] == 2
    # The mean row is [2, 3, 4, 5]; each round multiplies by it.
    assert np.load(told.parent / "result.npy").tolist() == [4, 9, 16, 25]


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Any]:
    """Runs an exported project with nodes of this process; its modules are imported under its own package name."""

    def walk(folder: Path) -> Any:
        sys.path.insert(0, str(folder))
        client, nodes, program, asks = (
            importlib.import_module(f"workbench_app.{name}") for name in ("client", "nodes", "program", "asks")
        )
        described = json.loads((folder / "workbench_app" / "program.json").read_text())
        contexts = [
            SimpleNamespace(node_config={"partition-id": i}, run_config={"data": str(folder / "data")}, state={})
            for i in range(described["nodes"])
        ]

        def ask(wanted: Any) -> list[Any]:
            pairs = zip(wanted, contexts, strict=False)
            return [asks.Reply(*client._answer(nodes.as_content(one), context)) for one, context in pairs]

        inputs = {path.stem: np.load(path) for path in (folder / "inputs").glob("*.npy")}
        return program.Program(folder / "workbench_app", inputs, ask)

    before = list(sys.path)
    yield walk
    sys.path[:] = before
    for name in [name for name in sys.modules if name.split(".")[0] == "workbench_app"]:
        del sys.modules[name]


@needs_flower
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "clients that talk to each other"], ids=lambda case: case.name
)
def test_exported_program_gives_the_same_numbers(exported: Any, tmp_path: Path, case: Case):
    program = exported(Flower.export(case.fn, tmp_path / "app", start(), case.data()))
    results = list(program.run().values())
    expected = jax.tree.leaves(wb.jit(case.fn)(start(), case.data()))
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@needs_flower
def test_exported_app_needs_nothing_of_the_workbench_and_holds_no_pickles(tmp_path: Path):
    folder = Flower.export(rounds, tmp_path / "app", start(), client_data())
    sources = [path.read_text() for path in (folder / "workbench_app").glob("*.py")]
    assert not [
        line for text in sources for line in text.splitlines() if "import workbench" in line or "pickle" in line
    ]
    assert not [line for text in sources for line in text.splitlines() if line.startswith("from workbench")]
    assert {path.suffix for path in (folder / "workbench_app").rglob("*") if path.is_file()} == {".py", ".json"}
    assert (folder / "data" / "4" / "data-1.npy").exists()
    assert "float32[3]" in (folder / "README.md").read_text()


@needs_flower
def test_changed_stage_of_an_app_is_not_run(exported: Any, tmp_path: Path):
    folder = Flower.export(fedavg, tmp_path / "app", start(), client_data())
    for path in (folder / "workbench_app" / "stages").glob("*.json"):
        told = json.loads(path.read_text())
        path.write_text(json.dumps({**told, "base64": told["base64"][:-8] + "AAAAAAA="}))
    with pytest.raises(ValueError, match="was changed after it was exported"):
        exported(folder).run()


@needs_flower
def test_exported_app_keeps_what_the_finished_rounds_carried_on(exported: Any, tmp_path: Path):
    folder = Flower.export(rounds, tmp_path / "app", start(), client_data())
    program = exported(folder)
    whole, calls = program.ask, []

    def ask(wanted: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            message = "left"
            raise ConnectionError(message)
        return whole(wanted)

    program.ask = ask
    with pytest.raises(ConnectionError):
        program.run()
    two = jax.lax.scan(lambda w, _: fedavg(w, client_data()), start(), None, length=2)[0]
    assert program.finished_rounds == 2
    np.testing.assert_allclose(program.carried[0], two, rtol=1e-5, atol=1e-6)


@needs_flower
@pytest.mark.parametrize(
    ("fn", "arguments", "expected"),
    [
        (together, (start(), client_data()), "clients talk to each other in stage"),
        (lambda w, x: fedavg(w, x)[0] + x[0].sum(), (start(), client_data()), r"the argument `x\[0\]`, whose rows"),
        (fedavg, (jax.ShapeDtypeStruct((3,), np.float32), client_data()), "shapes only for the argument `w`"),
    ],
    ids=["talk", "server reads data", "no value"],
)
def test_program_that_cannot_be_an_app_is_refused(tmp_path: Path, fn: Any, arguments: Any, expected: str):
    with pytest.raises(ProgramError, match=expected):
        Flower.export(fn, tmp_path / "app", *arguments)
    assert not (tmp_path / "app").exists()


@needs_flower
def test_callbacks_cannot_be_in_an_app(tmp_path: Path):
    @wb.program(clients=2)
    def loud(x: Any) -> Any:
        def one(row: Any) -> Any:
            jax.debug.print("{}", row)
            return row

        return wb.reduce_sum(wb.map_fn(one, x))

    with pytest.raises(ProgramError, match=r"could not write stage 0 \(`one`\).*holds no Python"):
        Flower.export(loud, tmp_path / "app", np.ones(2, np.float32))


@needs_flower
def test_app_is_not_written_over_files(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ProgramError, match="which is not empty"):
        Flower.export(fedavg, tmp_path, start(), client_data())


def test_export_without_flower_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"`workbench.engines.Flower.export` needs the library `flwr`"):
        Flower.export(fedavg, tmp_path / "app", start(), client_data())


def test_port_in_use_is_said_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            EngineError, match=rf"port={port} for its SuperLink, but .* cannot be listened on.*free one"
        ):
            check_port(port)
    check_port(free_port())


def _processes(folder: Path) -> Processes:
    return Processes(folder, {})


def test_kept_processes_end_with_what_they_started(tmp_path: Path):
    processes = _processes(tmp_path)
    sleep = "import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}]); {sleep}"
    processes.start("one", [sys.executable, "-c", code])
    keeper = psutil.Process(processes._keeper.pid)
    until = time.monotonic() + 20
    while len(family := keeper.children(recursive=True)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(family) == 2
    processes.close()
    _, alive = psutil.wait_procs([keeper, *family], timeout=10)
    assert not alive


def test_kept_processes_end_when_the_engines_process_is_killed(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from workbench.engines._flower_runtime import Processes\n"
        "p = Processes(Path(sys.argv[1]), {}); p.start('one', [sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "while not p.pids: time.sleep(0.05)\n"
        "print(p.pids['one'], flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        kept = psutil.Process(int(engine.stdout.readline()))
        engine.kill()
    _, alive = psutil.wait_procs([kept], timeout=20)
    assert not alive


def test_waiting_for_a_process_that_ended_tells_its_last_words(tmp_path: Path):
    processes = _processes(tmp_path)
    try:
        processes.start("superlink", [sys.executable, "-c", "import sys; sys.exit('no such federation')"])
        with pytest.raises(
            EngineError, match=r"superlink ended with exit status 1 .* for the nodes.*no such federation"
        ):
            processes.wait(lambda: None, "the nodes", lambda: None, 30)
    finally:
        processes.close()


def test_waiting_is_bounded(tmp_path: Path):
    processes = _processes(tmp_path)
    try:
        with pytest.raises(EngineError, match=r"waited 0 s for the nodes.*Raise `start_seconds`"):
            processes.wait(lambda: None, "the nodes", lambda: None, 0.2)
    finally:
        processes.close()


def test_keeper_needs_neither_jax_nor_the_workbench():
    text = Path(_keeper.__file__).read_text()
    assert "jax" not in [line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith("import ")]
    assert "workbench" not in text.replace("the workbench", "")


@pytest.mark.parametrize("library", ["flwr", "ray"])
def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, library: str):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == library else SimpleNamespace())
    with pytest.raises(MissingDependencyError, match=rf"`{library}`.*pip install \"mapreduce-workbench\[flower\]\""):
        Flower()


def test_deployment_does_not_need_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ray" else SimpleNamespace())
    assert Flower("deployment").name == "flower (deployment)"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"runtime": "cloud"}, r"runtime='cloud'.*\"simulation\".*\"deployment\""),
        ({"nodes": 0}, "nodes=0.*positive int"),
        ({"clients_per_node": True}, "clients_per_node=True.*positive int"),
        ({"workers": 1.5}, "workers=1.5.*positive int"),
    ],
    ids=["runtime", "nodes", "clients", "workers"],
)
def test_impossible_settings_are_refused(monkeypatch: pytest.MonkeyPatch, settings: Any, expected: str):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace())
    with pytest.raises(ProgramError, match=expected):
        Flower(**settings)
