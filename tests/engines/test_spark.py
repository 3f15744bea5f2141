import contextlib
import dataclasses
import json
import shutil
import socket
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faults
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from engine_contract import CLIENTS, EngineContract, by_key, client_data, fedavg, rounds, start
from stragglers import check_rounds_go_on

import workbench as wb
from workbench.engines import Engine, Spark
from workbench.engines.spark import _session
from workbench.errors import EngineError, MissingDependencyError, ProgramError

try:
    import pyarrow as pa
    import pyspark

    from workbench.engines.spark import _jobs, _worker
except ImportError:
    pyspark = None
_MISSING = "the extra `spark` is not installed" if pyspark is None else "no Java" if not shutil.which("java") else ""
needs_spark = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)
# Short jobs: a JVM that compiles little starts in half the time.
CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.driver.memory": "512m"}
CLUSTER = "local-cluster[2,1,1024]"


@wb.program(clients=8)
def sines(steps: Any, x: Any) -> Any:
    def one(steps: Any, row: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, v: jnp.sin(v) + row, row)

    return wb.reduce_sum(wb.map_fn(one, (wb.broadcast(steps), x)))


def processes(words: str) -> list[psutil.Process]:
    """The processes below this one with some words in their command lines."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if words in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.fixture(scope="module")
def local() -> Iterator[Spark]:
    with Spark("local[2]", conf=CONF, clients_per_batch=2, check_nan=True) as engine:
        yield engine


@needs_spark
class TestSpark(EngineContract):
    @pytest.fixture
    def engine(self, local: Spark) -> Engine:
        return local

    def test_only_the_loopback_interface_is_listened_on(self, local: Spark) -> None:
        local.run(fedavg, start(), client_data())
        kinds = [c for p in processes("") for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip.removeprefix("::ffff:") for c in kinds} == {"127.0.0.1"}

    def test_no_secret_is_on_a_command_line(self, local: Spark) -> None:
        local.run(fedavg, start(), client_data())
        assert not processes("authenticate.secret")

    def test_stage_is_compiled_once_per_python_worker(self, local: Spark) -> None:
        @wb.program(clients=8)
        def total(x: Any) -> Any:
            return wb.reduce_sum(wb.map_fn(lambda row: row**3, x))

        first = local.run(total, np.ones(8, np.float32))
        assert 1 <= sum("was compiled" in note for note in first.notes) <= 2
        assert not local.run(total, np.ones(8, np.float32)).notes

    @pytest.mark.filterwarnings("ignore::FutureWarning")  # PySpark 4.3 warns about pandas 3
    def test_workers_leave_imported_modules_out_of_garbage_collection(self, local: Spark) -> None:
        """PySpark collects garbage after every task, which takes 0.1 s with the objects of JAX's modules."""

        def frozen(batches: Any) -> Any:
            import gc

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

        local.run(fedavg, start(), client_data())
        counts = local._opened().range(0, 2, 1, 2).mapInArrow(frozen, "objects bigint").collect()
        assert max(row["objects"] for row in counts) > 10_000

    def test_large_arrays_have_few_partitions(self, local: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
        """Above this threshold, Spark creates a partition from every batch of a table."""

        @wb.program(clients=64)
        def total(x: Any) -> Any:
            return wb.reduce_sum(wb.map_fn(lambda row: row**3, x))

        sizes = []
        send = _jobs.Jobs._frame

        def counted(jobs: Any, records: list[Any]) -> Any:
            frame = send(jobs, records)
            sizes.append((len(records), frame.rdd.getNumPartitions()))
            return frame

        monkeypatch.setattr(_jobs.Jobs, "_frame", counted)
        threshold = "spark.sql.execution.arrow.localRelationThreshold"
        session = local._opened()
        session.conf.set(threshold, "0B")
        try:
            result = local.run(total, np.full(64, 2.0, np.float32)).results
        finally:
            session.conf.unset(threshold)
        assert result == 512.0
        assert sizes[0][0] == 32
        assert sizes[0][1] <= 8

    def test_failure_names_the_clients_of_the_batch(self, local: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
        def cut(batch: Any) -> Any:
            short = batch.index == 1
            return whole(dataclasses.replace(batch, rows=[x[:1] if short else x for x in batch.rows]))

        whole = _jobs._record
        monkeypatch.setattr(_jobs, "_record", cut)
        with pytest.raises(
            EngineError, match=r"one of the clients 2, 3 on spark \(local\[2\]\): RuntimeError: Value"
        ) as e:
            local.run(fedavg, start(), client_data())
        assert e.value.client == "2, 3"

    @pytest.mark.parametrize("client", [2, 3, 4])  # a batch's first client, its last, and the last batch's only one
    def test_nan_is_traced_to_its_client(self, local: Spark, client: int) -> None:
        @wb.program(clients=5)
        def logarithms(x: Any) -> Any:
            return wb.reduce_sum(wb.map_fn(jnp.log, x))

        data = np.ones(5, np.float32)
        data[client] = -1
        with pytest.raises(EngineError, match=rf"produced a NaN for client {client}, in the partial result") as caught:
            local.run(logarithms, data)
        assert caught.value.client == client

    def test_state_of_clients_stays_in_spark_between_rounds(
        self, local: Spark, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_jobs, "_MOST_INLINE_BYTES", 0)  # by broadcast variables, as large values travel

        @wb.program(clients=CLIENTS)
        def stateful(state: Any, x: Any) -> Any:
            return wb.map_fn(lambda s, row: 0.5 * s + row, (state, x))

        def many(state: Any, x: Any) -> Any:
            return wb.reduce_sum(jax.lax.fori_loop(0, 3, lambda _, s: stateful(s, x), state))

        many = wb.program(clients=CLIENTS)(many)
        state, x = np.ones((CLIENTS, 4), np.float32), np.arange(CLIENTS * 4, dtype=np.float32).reshape(CLIENTS, 4)
        run = local.run(many, state, x)
        np.testing.assert_allclose(run.results, wb.jit(many)(state, x), rtol=1e-6)
        assert {what.kind for what in run.disclosed} == {"partial result"}

    def test_sums_are_in_the_dtype_that_the_reduction_states(self, local: Spark) -> None:
        @wb.program(clients=6)
        def total(x: Any) -> Any:
            return wb.reduce_sum(wb.map_fn(lambda row: row * 1, x))

        # In bfloat16, 256 + 1 is 256; in float32 the sum of 256 and five ones is 261, which rounds to 260 or 262.
        assert float(local.run(total, jnp.array([256, 1, 1, 1, 1, 1], jnp.bfloat16)).results) in (260.0, 262.0)

    def test_clients_are_read_from_a_table_and_results_written_to_one(self, local: Spark, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        x, y = client_data()
        order = [3, 0, 4, 2, 1]
        rows = {
            "client": [f"c{i}" for i in order],
            "x": [x[i].tolist() for i in order],
            "y": [y[i].tobytes() for i in order],
        }
        pq.write_table(pa.table(rows), tmp_path / "clients.parquet")

        @wb.program(clients=CLIENTS)
        def errors(w: Any, data: Any) -> Any:
            return wb.map_fn(lambda w, d: d["x"] @ w - d["y"], (wb.broadcast(w), data))

        engine = Spark(
            local._opened(), clients_per_batch=2, read_from=tmp_path / "clients.parquet", write_to=tmp_path / "out"
        )
        reported = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype), "y": jax.ShapeDtypeStruct(y.shape, y.dtype)}
        run = engine.run(errors, start(), reported)
        expected = x @ start() - y
        np.testing.assert_allclose(run.results, expected, rtol=1e-5, atol=1e-6)
        written = pq.read_table(tmp_path / "out").to_pydict()
        assert sorted(written["client"]) == [f"c{i}" for i in range(CLIENTS)]
        np.testing.assert_allclose(written["out"][written["client"].index("c3")], expected[3], rtol=1e-5, atol=1e-6)

    def test_table_without_the_column_says_which(self, local: Spark, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"client": [0], "z": [1.0]}), tmp_path / "clients.parquet")
        engine = Spark(local._opened(), read_from=tmp_path / "clients.parquet")
        with pytest.raises(EngineError, match=r"no column 'c0', 'c1' among \['client', 'z'\]"):
            engine.run(fedavg, start(), (jax.ShapeDtypeStruct((1,), "float32"),) * 2)

    def test_delta_table_is_not_read_as_parquet(self, local: Spark, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        for version in ("old", "new"):  # as a client's row that was updated: one of the files is in the table
            pq.write_table(pa.table({"client": [0], "c0": [1.0]}), tmp_path / f"{version}.parquet")
        (tmp_path / "_delta_log").mkdir()
        engine = Spark(local._opened(), read_from=tmp_path)
        with pytest.raises(EngineError, match=r"is a Delta table.*`spark.read.format\(\"delta\"\)"):
            engine.run(fedavg, start(), (jax.ShapeDtypeStruct((1,), "float32"),) * 2)

    def test_second_session_is_refused_and_the_same_one_shared(self, local: Spark) -> None:
        local.run(fedavg, start(), client_data())
        with pytest.raises(
            EngineError, match=r"start a session for 'local\[1\]', but a session for 'local\[2\]' is already running"
        ):
            Spark("local[1]").run(fedavg, start(), client_data())
        with Spark("local[2]", conf=CONF) as second:
            second.run(fedavg, start(), client_data())
        local.run(fedavg, start(), client_data())  # the session of the first goes on


@needs_spark
@pytest.mark.slow
def test_executors_in_processes_of_their_own_survive_and_leave_nothing_behind(local: Spark, tmp_path: Path):
    """One cluster for all of it, since its start takes longest: the same numbers, a killed executor, the end."""
    local.close()  # a process has one Spark context

    x = np.arange(8, dtype=np.float32)
    with zipfile.ZipFile(tmp_path / "a.jar", "w") as jar:  # as of a table's format
        jar.writestr("found.txt", "")
    with Spark(CLUSTER, conf=CONF | {"spark.jars": str(tmp_path / "a.jar")}, clients_per_batch=1) as engine:
        keyed = engine.run(by_key, start(), client_data()).results
        np.testing.assert_allclose(keyed, by_key(start(), client_data()), rtol=1e-5, atol=1e-6)
        thread = engine._opened()._jvm.java.lang.Thread.currentThread()
        assert thread.getContextClassLoader().getResource("found.txt") is not None
        calm = engine.run(sines, jnp.int32(10_000_000), x).results
        workers = processes("pyspark.daemon")
        work = _session._work_folder(engine._started)
        spent = {worker.pid: worker.cpu_times().user for worker in workers}

        def kill() -> None:
            while all(worker.cpu_times().user < spent[worker.pid] + 0.3 for worker in workers):
                time.sleep(0.02)
            killed.append(processes("CoarseGrainedExecutorBackend")[0])
            killed[0].kill()

        killed: list[psutil.Process] = []
        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        again = engine.run(sines, jnp.int32(10_000_000), x).results
        thread.join(60)
        assert len(killed) == 1
        assert not killed[0].is_running()
        assert again.tobytes() == calm.tobytes()
    assert not processes("java")
    assert not processes("pyspark")
    assert not work.exists()


@needs_spark
@pytest.mark.slow
def test_a_copy_of_a_slow_task_gives_the_same_bytes(local: Spark, tmp_path: Path):
    """A Python worker is stopped in its task: Spark starts a copy, on the other host, and ends the first."""
    local.close()

    speculation = {"interval": "100ms", "multiplier": "1.5", "quantile": "0.5", "minTaskRuntime": "100ms"}
    (events := tmp_path / "events").mkdir()
    conf = {
        **CONF,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.authenticate": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.speculation": "true",
        **{f"spark.speculation.{name}": value for name, value in speculation.items()},
    }
    stopped: list[psutil.Process] = []

    def stop() -> None:
        workers = processes("pyspark.daemon")
        spent = {worker.pid: worker.cpu_times().user for worker in workers}
        while not stopped:
            slow = [worker for worker in workers if worker.cpu_times().user > spent[worker.pid] + 0.1]
            stopped.extend(slow[:1])
            time.sleep(0.01)
        stopped[0].suspend()

    x, steps = np.arange(8, dtype=np.float32), jnp.int32(5_000_000)
    from spark_cluster import standalone

    with standalone(tmp_path) as master, Spark(master, conf=conf, clients_per_batch=1) as engine:
        calm = engine.run(sines, steps, x).results
        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        again = engine.run(sines, steps, x).results
        thread.join(60)
        assert stopped
    lines = [line for file in events.glob("*/events_*") for line in file.read_text().splitlines()]
    ends = [event for event in map(json.loads, lines) if event["Event"] == "SparkListenerTaskEnd"]
    assert "Success" in [event["Task End Reason"]["Reason"] for event in ends if event["Task Info"]["Speculative"]]
    assert again.tobytes() == calm.tobytes()
    assert not psutil.wait_procs(stopped, timeout=60)[1]


_RUNS = f"""
import jax, jax.numpy as jnp, numpy as np, workbench as wb
from workbench.engines import Spark
@wb.program(clients=2)
def endless(x):
    return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.fori_loop(0, 2**31 - 1, lambda _, v: jnp.sin(v) + row, row), x))
Spark({CLUSTER!r}, conf={CONF!r}, clients_per_batch=1).run(endless, np.ones(2, np.float32))
"""


@needs_spark
@pytest.mark.slow
def test_rounds_go_on_without_tasks_that_are_late(local: Spark):
    engine = Spark(local._opened(), clients_per_batch=1, quorum=4)
    check_rounds_go_on(engine, steps=3 * 10**8)


@needs_spark
@pytest.mark.slow
def test_killed_process_takes_its_jvm_and_executors_with_it(tmp_path: Path):
    process = faults.python(_RUNS, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen: list[psutil.Process] = []

    def working() -> bool:
        seen[:] = psutil.Process(process.pid).children(recursive=True)
        for child in seen:
            with contextlib.suppress(psutil.Error):
                if "pyspark.daemon" in " ".join(child.cmdline()):
                    return True
        return False

    faults.kill_when(process, working, seconds=300)
    _, left = psutil.wait_procs(seen, timeout=60)
    assert left == []


@needs_spark
@pytest.mark.slow
def test_killed_jvm_is_an_error_and_the_next_run_starts_another(local: Spark):
    local.run(fedavg, start(), client_data())

    def progress(stage: str, done: float) -> None:
        if done == 1.0:
            for java in processes("java"):
                java.kill()

    with pytest.raises(EngineError, match="failed in its Spark job") as caught:
        local.run(rounds, start(), client_data(), progress=progress)
    assert caught.value.run.rounds == 1
    run = local.run(fedavg, start(), client_data())
    np.testing.assert_allclose(run.results[0], fedavg(start(), client_data())[0], rtol=1e-5, atol=1e-6)


@needs_spark
def test_a_task_that_is_computed_twice_gives_the_same_bytes():
    from workbench.engines.spark._worker import Compute

    class Caught(Engine):
        def _compute(self, work: Any) -> None:
            made.append(work)
            raise InterruptedError

    made: list[Any] = []
    with pytest.raises(InterruptedError):
        Caught().run(fedavg, start(), client_data())
    (work,) = made
    jobs = object.__new__(_jobs.Jobs)  # of which only the settings are asked
    jobs.engine, jobs.tasks = SimpleNamespace(check_nan=False), 2
    digest, stage = work.exported(2, None)
    server = _worker.encode(work.shared)
    spec = jobs._spec(work, 2, digest, ["a0", "a1"], [], [("acrc", ("a0", "a1"))])
    compute = Compute(spec, SimpleNamespace(value=stage), SimpleNamespace(value=server))
    records = [_jobs._record(batch) for batch in work.batches(2)]
    results = [[cell.as_py() for table in compute(iter(records)) for cell in table.column("payload")] for _ in range(2)]
    assert any(results[0])
    assert results[0] == results[1]


@wb.program(clients=12)
def total_and_count(data: Any) -> Any:
    ones = wb.map_fn(lambda client: client["x"] * 0 + 1, data)
    table = wb.reduce_by_key(data["x"], jnp.arange(12, dtype=jnp.int32) % 3, 3)
    return wb.reduce_sum(data["x"]), wb.reduce_sum(ones), table


@needs_spark
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # PySpark warns of pandas
def test_a_frame_that_gives_other_clients_when_it_is_read_again_is_refused(local: Spark) -> None:
    from pyspark.sql import functions

    local.run(fedavg, start(), client_data())  # so that there is a session
    session = local._opened()

    @functions.udf("string")
    def changing(number):
        return f"c{number}" if number < 6 else f"c{number}-{time.time_ns()}"

    client = changing.asNondeterministic()("id").alias("client")
    frame = session.range(12).select(client, functions.expr("cast(id as float) as x"))
    shapes = {"x": jax.ShapeDtypeStruct((12,), "float32")}
    for size in (1, 4, 12):
        engine = Spark(local._started.session, read_from=frame, clients_per_batch=size)
        with pytest.raises(
            EngineError, match=r"12 clients when their ids were read, but different.*missing.*write.parquet"
        ):
            engine.run(total_and_count, shapes)
    kept = Spark(local._started.session, read_from=frame.sort("client").localCheckpoint(), clients_per_batch=5)
    total, count, table = kept.run(total_and_count, shapes).results
    assert (float(total), float(count), float(table.sum())) == (66, 12, 66)


def drop(rows: Any, i: int) -> Any:
    return pa.concat_tables([rows.slice(0, i), rows.slice(i + 1)])


FAULTS = {
    "a row is lost": lambda rows, i: drop(rows, i),
    "a row is double": lambda rows, i: pa.concat_tables([rows, rows.slice(i, 1)]),
    "a row takes the place of another": lambda rows, i: pa.concat_tables(
        [drop(rows, i), rows.slice((i + 1) % len(rows), 1)]
    ),
}


@needs_spark
@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_are_lost_or_double_on_the_way_back_end_the_run(
    fault: str, local: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"x": np.arange(12, dtype=np.float32)}
    taken = _jobs.Jobs._take
    number = -1

    def damaged(*args: Any) -> None:
        taken(*args[:-1], FAULTS[fault](args[-1], number) if number >= 0 else args[-1])

    rows: list[int] = []
    monkeypatch.setattr(_jobs.Jobs, "_take", lambda *args: (rows.append(len(args[-1])), damaged(*args)))
    good = local.run(total_and_count, data).results
    assert [float(x) for x in good[:2]] == [66, 12]
    for number in range(rows[0]):  # noqa: B007 - read by `damaged`
        with pytest.raises(EngineError, match="did not get exactly one answer for each of its 12 clients"):
            local.run(total_and_count, data)


@needs_spark
def test_a_table_that_changes_between_writer_and_reader_ends_the_run(
    local: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _jobs._record

    def changed(batch: Any) -> Any:
        record = whole(batch)
        if batch.index != 1:
            return record
        place = record.schema.get_field_index("a0")
        cell = bytearray(record.column("a0")[0].as_py())
        cell[0] ^= 1
        return record.set_column(place, "a0", pa.array([bytes(cell)], pa.binary()))

    monkeypatch.setattr(_jobs, "_record", changed)
    with pytest.raises(EngineError, match=r"clients 2, 3 .*changed between the writing and the reading"):
        local.run(fedavg, start(), client_data())


@needs_spark
def test_a_folder_that_executors_do_not_see_is_refused_before_anything_runs(
    local: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jobs, "_ON_THIS_MACHINE", "nowhere")  # local mode as if it were a cluster
    data = {"x": np.arange(12, dtype=np.float32)}

    def stateful(data: Any) -> Any:
        with wb.program(clients=12):
            kept = wb.map_fn(lambda x: 2 * x, data["x"])
            return wb.reduce_sum(wb.map_fn(lambda x, total: x - total, (kept, wb.broadcast(wb.reduce_sum(kept)))))

    assert float(local.run(stateful, data).results) == 132 - 12 * 132
    see = _worker.see
    monkeypatch.setattr(_worker, "see", lambda path, text, batches: see(f"{path}-not", text, batches))
    fact = rf"{socket.gethostname()} \(FileNotFoundError for user \d+\) cannot see that folder"
    with pytest.raises(EngineError, match=fact):
        local.run(stateful, data)


@needs_spark
@pytest.mark.parametrize(
    ("partitions", "groups"), [(1, 0), (2, 0), (4, 0), (9, 3), (100, 10), (1000, 32)], ids=lambda n: str(n)
)
def test_second_level_has_the_square_root_of_the_partitions(partitions: int, groups: int):
    assert _jobs._second_level(partitions) == groups


def test_missing_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "mapreduce-workbench\[spark\]"'):
        Spark()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (None, "needs Java 17, which was not found: there is no `java` in JAVA_HOME.*cannot install. Install it .`apt"),
        ("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n", "is Java 8. Spark 4 runs on Java 17 or later"),
    ],
    ids=["none", "old"],
)
def test_java_that_cannot_run_spark_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, expected: str
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin" / "java").write_text(script)
        (tmp_path / "bin" / "java").chmod(0o755)
    with pytest.raises(MissingDependencyError, match=expected):
        Spark()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"session": 3}, "was given 3 .type int. as its session.*pass a session, or the master"),
        ({"clients_per_batch": 0}, "clients_per_batch=0.*positive int"),
    ],
    ids=["session", "batch"],
)
def test_impossible_settings_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: Any, expected: str):
    monkeypatch.setattr(_session, "check_libraries", lambda: None)
    with pytest.raises(ProgramError, match=expected):
        Spark(**arguments)


@needs_spark
@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ([[1, 2], [3, 4]], "list<list<int16>>", [[1, 2], [3, 4]]),
        ([1.5, 2.5], "large_list<float64>", [1.5, 2.5]),
        (3, "int32", 3),
        ([True, False], "list<bool>", [1, 0]),
        ([[1, 2], [3]], "list<list<int64>>", None),
        ([1.0, None], "list<float32>", None),
        (None, "list<float32>", None),
        ("a", "string", None),
    ],
)
def test_cells_are_read_from_the_buffers_of_arrow(value: Any, kind: str, expected: Any):
    import pyarrow as pa

    from workbench.engines._columns import read_column

    *outer, name = kind.replace(">", "").split("<")
    type_ = {"bool": pa.bool_}.get(name, getattr(pa, name, None))()
    for inner in reversed(outer):
        type_ = {"list": pa.list_, "large_list": pa.large_list}[inner](type_)
    cells, clients = pa.array([None, value, value], type_)[1:], pa.array(["ann", "bob"])
    if expected is None:
        with pytest.raises(ValueError, match=r"client 'ann' with \d values in column 'x'.*float32\[2, 2\] is needed"):
            read_column(cells, "x", ("float32", (2, 2)), clients)
    else:
        found = read_column(cells, "x", ("float32", np.shape(expected)), clients)
        np.testing.assert_array_equal(found, [expected, expected])
