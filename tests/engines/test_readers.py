"""Clients that are read from arrays and files while the mesh computes."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_contract import by_key, client_data, fedavg, hierarchical, rounds, start, until_good, weighted

import workbench as wb
from workbench.engines import ArrayReader, ClientReader, MeshEngine, ParquetReader, Sequential
from workbench.errors import DataError, EngineError, ProgramError

pytestmark = pytest.mark.usefixtures("little_optimized")


def mapped(folder: Path, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arrays as read-only memory maps."""
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
    return tuple(np.load(folder / f"{number}.npy", mmap_mode="r") for number in range(len(arrays)))


@pytest.mark.parametrize("clients_per_batch", ["auto", 1, 2, 3])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_batches_give_the_results_of_the_oracle(tmp_path: Path, devices: int, clients_per_batch: Any):
    engine = MeshEngine(wb.make_mesh(clients=devices) if devices > 1 else None, clients_per_batch=clients_per_batch)
    for program in (fedavg, until_good) if devices == 2 else (weighted,):
        run = engine.run(program, start(), ArrayReader(mapped(tmp_path, *client_data())))
        expected = Sequential().run(program, start(), client_data())
        for a, b in zip(jax.tree.leaves(run.results), jax.tree.leaves(expected.results), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("program", [rounds, by_key])
def test_loops_and_keys_read_the_clients_again(program: Any):
    read = []

    def clients() -> Any:
        read.append(1)
        return ((i, (x, y)) for i, (x, y) in enumerate(zip(*client_data(), strict=True)))

    run = MeshEngine(clients_per_batch=2).run(program, start(), ClientReader(clients, clients=5))
    expected = Sequential().run(program, start(), client_data())
    for a, b in zip(jax.tree.leaves(run.results), jax.tree.leaves(expected.results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert len(read) == (4 if program is rounds else 2)  # once more for the shapes of the first client


def test_nested_clients_and_a_mesh_with_another_axis():
    x = np.random.default_rng(1).normal(size=(2, 3, 3)).astype(np.float32)
    engine = MeshEngine(jax.make_mesh((2, 2), ("pods", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2))
    run = engine.run(hierarchical, start(), ArrayReader((x,)))
    np.testing.assert_allclose(run.results, Sequential().run(hierarchical, start(), (x,)).results, rtol=1e-5)


def test_kept_rows_come_back_in_order_and_gradients_read_twice():
    @wb.program(clients=7)
    def rows_and_sum(w: Any, x: Any) -> Any:
        rows = wb.map_fn(lambda w, x: jnp.tanh(w * x), (wb.broadcast(w), x))
        return rows, wb.reduce_sum(rows)

    x = np.arange(7, dtype=np.float32)
    engine = MeshEngine(wb.make_mesh(clients=2), clients_per_batch=2)
    rows, total = engine.run(rows_and_sum, np.float32(0.5), ArrayReader(x)).results
    np.testing.assert_allclose(rows, np.tanh(0.5 * x), rtol=1e-6)
    np.testing.assert_allclose(total, np.tanh(0.5 * x).sum(), rtol=1e-6)
    slope = engine.run(jax.grad(lambda w, x: rows_and_sum(w, x)[1]), np.float32(0.5), ArrayReader(x)).results
    np.testing.assert_allclose(slope, (x / np.cosh(0.5 * x) ** 2).sum(), rtol=1e-5)


def test_random_keys_of_clients_are_those_of_the_resident_program():
    @wb.program(clients=6)
    def noise(key: Any, x: Any) -> Any:
        keys = jax.random.split(key, 6)
        return wb.reduce_sum(wb.map_fn(lambda k, x: x + jax.random.normal(k, x.shape), (keys, x)))

    x = np.ones((6, 4), np.float32)
    read = MeshEngine(clients_per_batch=4).run(noise, jax.random.key(1), ArrayReader(x)).results
    np.testing.assert_allclose(read, wb.jit(noise)(jax.random.key(1), x), rtol=1e-5)


def test_no_more_than_a_few_batches_are_alive():
    alive, most, lock = 0, 0, threading.Lock()

    class Counted(ArrayReader):
        def read_batches(self, size: int, stage: str) -> Any:
            nonlocal alive, most
            for names, leaves in super().read_batches(size, stage):
                with lock:
                    alive += 1
                    most = max(most, alive)
                yield names, leaves

    class Counting(MeshEngine):
        def _compute(self, work: Any) -> None:
            keep = work.keep

            def kept(*args: Any) -> None:
                nonlocal alive
                keep(*args)
                with lock:
                    alive -= 1

            work.keep = kept
            super()._compute(work)

    @wb.program(clients=64)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row**2, x))

    run = Counting(clients_per_batch=2).run(total, Counted(np.ones((64, 3), np.float32)))
    np.testing.assert_allclose(run.results, np.full(3, 64.0))
    assert alive == 0
    assert most <= 5  # read ahead, computed, finishing, and one that waits for memory


def test_failing_reader_ends_the_run_and_its_thread():
    def clients() -> Any:
        yield from ((i, np.float32(i)) for i in range(3))
        message = "the disk is gone"
        raise OSError(message)

    @wb.program(clients=5)
    def total(x: Any) -> Any:
        return wb.reduce_sum(x)

    with pytest.raises(EngineError, match=r"could not read a client.*the disk is gone.*after client 2"):
        MeshEngine(clients_per_batch=1).run(total, ClientReader(clients, clients=5))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("workbench-read")]


def test_run_is_cancelled_between_batches():
    cancel, reported = threading.Event(), []

    def progress(stage: str, done: float) -> None:
        reported.append(done)
        if done:
            cancel.set()

    with pytest.raises(EngineError, match="cancelled"):
        MeshEngine(clients_per_batch=1).run(
            fedavg, start(), ArrayReader(client_data()), progress=progress, cancel=cancel
        )
    assert max(reported) < 1


def test_rounds_on_an_engine_are_those_of_resident_clients(tmp_path: Path):
    @wb.program(clients=5)
    def step(w: Any, data: Any) -> Any:
        w, loss = fedavg(w, data)
        return w, {"loss": loss}

    reader = ArrayReader(mapped(tmp_path, *client_data()))
    engine = MeshEngine(clients_per_batch=2)
    read = wb.run_rounds(step, start(), 3, data=reader, engine=engine, progress=False)
    resident = wb.run_rounds(step, start(), 3, data=client_data(), progress=False)
    np.testing.assert_allclose(read.state, resident.state, rtol=1e-5)
    np.testing.assert_allclose(*(run.history.summary()["loss"] for run in (read, resident)), rtol=1e-5)


def test_parquet_file_is_read_in_batches(tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x, y = client_data()
    table = pa.table({"x": pa.array(x.tolist(), pa.list_(pa.list_(pa.float32()))), "y": list(y), "name": list("abcde")})
    pq.write_table(table, tmp_path / "clients.parquet", row_group_size=2)
    reader = ParquetReader(tmp_path / "clients.parquet", columns=["x", "y"])

    @wb.program(clients=5)
    def step(w: Any, data: Any) -> Any:
        return fedavg(w, (data["x"], data["y"]))

    run = MeshEngine(clients_per_batch=3).run(step, start(), reader)
    np.testing.assert_allclose(run.results[0], Sequential().run(fedavg, start(), (x, y)).results[0], rtol=1e-5)
    with pytest.raises(DataError, match=r"column 'name' of type string.*numbers"):
        ParquetReader(tmp_path / "clients.parquet")
    pq.write_table(pa.table({"x": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    ragged = ParquetReader(tmp_path / "ragged.parquet")
    with pytest.raises((DataError, EngineError), match="2 values in column 'x'"):
        list(ragged)


def test_grain_data_set_is_a_source():
    grain = pytest.importorskip("grain")
    source = grain.MapDataset.source(list(zip(*client_data(), strict=True))).map_with_index(lambda i, pair: (i, pair))
    run = MeshEngine(clients_per_batch=2).run(fedavg, start(), ClientReader(source))
    np.testing.assert_allclose(run.results[0], Sequential().run(fedavg, start(), client_data()).results[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([1.0], "a leaf of type float, which is not an array with a row for each client"),
        ((np.zeros((2, 3)), np.zeros((3, 3))), "arrays with 2, 3 rows"),
        (np.zeros((0, 3)), "arrays with 0 rows"),
        ((), "arrays with no rows"),
    ],
)
def test_array_reader_refuses_what_has_no_rows(arrays: Any, message: str):
    with pytest.raises(ProgramError, match=message):
        ArrayReader(arrays)


@pytest.mark.parametrize("call", [lambda f: wb.jit(f), lambda f: f, lambda f: wb.inspect(f), lambda f: wb.trace(f)])
def test_calls_without_an_engine_name_an_engine_that_reads_clients(call: Any):
    @wb.program(clients=3)
    def total(w, x):
        return wb.reduce_sum(wb.map_fn(lambda w, x: w * x, (wb.broadcast(w), x)))

    with pytest.raises(ProgramError, match=r"of type ClientReader.*MeshEngine\(\)\.run"):
        call(total)(jnp.float32(1), ClientReader([(i, np.float32(i)) for i in range(3)]))


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "all"])
def test_wrong_batch_is_refused(size: Any):
    with pytest.raises(ProgramError, match=r"clients_per_batch.*positive int"):
        MeshEngine(clients_per_batch=size)


def test_what_was_compiled_for_a_forgotten_program_is_forgotten():
    engine, kept = MeshEngine(clients_per_batch=2), []
    for scale in range(10):
        program = wb.program(clients=4)(lambda x, scale=scale: wb.reduce_sum(wb.map_fn(lambda row: row * scale, x)))
        engine.run(program, ArrayReader(np.ones(4, np.float32)))
        (walk,) = [walk for _, walk in list(engine._known.values())[-1:]]
        kept.append(weakref.ref(next(iter(walk._functions.values())).streamed))
    del walk, program
    gc.collect()
    assert [each() is not None for each in kept] == [False] * 2 + [True] * 8


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
def test_casts_of_what_a_reader_reads_are_the_clients_work(dtype: str):
    @wb.program(clients=6)
    def averages(w, data):
        moved = wb.map_fn(lambda w, data: w + data["x"], (wb.broadcast(w), data))
        counted = data["n"].astype(jnp.float32) * 2
        return (
            wb.reduce_weighted_mean(moved, data["n"]),
            wb.reduce_mean(counted),
            wb.reduce_sum(data["x"], where=data["n"] > 1),
        )

    rows = [(i, {"x": np.full(2, i, np.float32), "n": np.asarray(i + 1, dtype)}) for i in range(6)]
    n, x = np.array([row["n"] for _, row in rows], np.float64), np.arange(6.0)
    mean, counted, some = Sequential().run(averages, np.zeros(2, np.float32), ClientReader(rows)).results
    np.testing.assert_allclose(mean, [(n * x).sum() / n.sum()] * 2, rtol=1e-6)
    np.testing.assert_allclose(counted, 2 * n.mean(), rtol=1e-6)
    np.testing.assert_allclose(some, [x[n > 1].sum()] * 2, rtol=1e-6)


def test_compiled_programs_name_the_engine_that_reads_clients():
    @wb.jit
    @wb.program(clients=2)
    def mean(x):
        return wb.reduce_mean(wb.map_fn(lambda row: 2 * row, x))

    reader = wb.engines.ClientReader([("ann", np.float32(1)), ("bob", np.float32(3))])
    with pytest.raises(ProgramError, match=r"received an object of type ClientReader.*MeshEngine\(\)\.run\(fn, …\)"):
        mean(reader)


def test_parquet_columns_without_numbers_are_refused(tmp_path: Path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"x": pa.array([1.0, 2.0]), "hash": pa.array([b"abcd", b"efgh"])}
    parquet.write_table(pa.table(columns), tmp_path / "clients.parquet")
    with pytest.raises(DataError, match=r"it has a column 'hash' of type binary.*leave out other columns"):
        ParquetReader(tmp_path / "clients.parquet")
    assert ParquetReader(tmp_path / "clients.parquet", columns=["x"]).clients == 2
