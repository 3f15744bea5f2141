"""Clients from tables of examples, with pandas as the oracle."""

import dataclasses
import gc
import os
import shutil
import signal
import uuid
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from example_tables import BY_HAND, FRAME, expected, fitted, in_buckets

import workbench as wb
from workbench.engines import Executor, MeshEngine, Ray, Sequential, Spark, clients_from
from workbench.engines._table_engine import table_of_clients
from workbench.errors import EngineError, ProgramError


def test_examples_of_pandas_are_grouped_ordered_and_padded():
    clients = clients_from(FRAME, order="at", columns=["x", "y"])
    assert clients.struct["x"].shape == (3, 3, 2)
    for name, data in clients:
        y, count = BY_HAND[str(name)]
        assert data["y"].tolist() == y + [0.0] * (3 - count)
        assert data["n"] == count
    w = np.array([1.0, -2.0], np.float32)
    for engine in (Sequential(), MeshEngine()):
        mean, rows = engine.run(fitted, w, clients).results
        np.testing.assert_allclose(mean, expected(w)[0], rtol=1e-5)
        np.testing.assert_allclose(rows, expected(w)[1], rtol=1e-5)


def test_rows_of_rounds_have_a_row_for_each_client():
    """Of nested loops the clients come first, and of what a loop carries only the last rows."""

    def rounds(w: Any, data: Any) -> Any:
        def turn(rows: Any, _: Any) -> Any:
            with wb.program(clients=3):
                rows = wb.map_fn(lambda r, d: r + d["n"].astype(r.dtype), (rows, data))
            return rows, 10 * rows

        inner = lambda rows: jax.lax.scan(turn, rows, None, length=2)  # noqa: E731
        last, stacked = jax.lax.scan(lambda rows, _: inner(rows), jnp.zeros(3), None, length=4)
        return last, stacked, w

    record, walk = Sequential()._ran(rounds, (np.float32(0), clients_from(FRAME, columns=["y"])), None, None)
    ids, rows = table_of_clients("Spark", record, walk)
    assert ids == ["a", "b", "c"]
    assert {name: x.shape for name, x in rows.items()} == {"out[0]": (3,), "out[1]": (3, 4, 2)}
    assert rows["out[0]"].tolist() == [16.0, 24.0, 8.0]
    assert rows["out[1]"][1].ravel().tolist() == [30.0 * i for i in range(1, 9)]


def test_longer_clients_are_cut():
    clients = dict(clients_from(FRAME, order="at", columns=["y"], length=2))
    assert clients["b"]["y"].tolist() == [2.0, 4.0]
    assert [int(data["n"]) for data in clients.values()] == [2, 2, 1]


def test_integers_that_jax_would_wrap_are_refused():
    frame = FRAME.assign(y=2**32 + 5)
    with pytest.raises(ProgramError, match="numbers that int32 cannot represent in column 'y' of client 'a'"):
        clients_from(frame, columns=["y"])
    assert dict(clients_from(frame.astype({"y": float}), columns=["y"]))["c"]["y"][0] == 2.0**32


def test_buckets_pad_each_client_to_the_next_length():
    buckets = clients_from(FRAME, order="at", columns=["x", "y"], buckets=[1, 2, 8])
    assert [[name for name, _ in reader] for reader in buckets] == [["c"], ["a"], ["b"]]
    assert [reader.struct["y"].shape for reader in buckets] == [(1, 1), (1, 2), (1, 8)]
    w = np.array([1.0, -2.0], np.float32)
    for engine in (Sequential(), MeshEngine()):
        np.testing.assert_allclose(engine.run(in_buckets, w, *buckets).results, expected(w)[0], rtol=1e-5)
    assert len(clients_from(FRAME, columns=["y"], buckets=[4, 9])) == 1
    with pytest.raises(ProgramError, match=r"buckets=\[2, 1\]"):
        clients_from(FRAME, columns=["y"], buckets=[2, 1])


@pytest.mark.parametrize(
    ("options", "fact"),
    [({"by": "user"}, "by='user'"), ({"columns": ["z"]}, r"columns=\['z'\]"), ({"order": "t"}, "order='t'")],
)
def test_columns_are_checked(options: Any, fact: str):
    with pytest.raises(ProgramError, match=fact):
        clients_from(FRAME, **options)
    with pytest.raises(ProgramError, match="without rows"):
        clients_from(FRAME[:0])


@pytest.mark.parametrize("scheduler", ["threads", "sync", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dask_without_a_client_reads_each_partition_twice_and_gives_the_clients_of_pandas(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    frame, dask = pytest.importorskip("dask.dataframe"), pytest.importorskip("dask")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "files"))
    (tmp_path / "files").mkdir()
    oracle = dict(clients_from(FRAME, order="at"))

    def part(i: int) -> pd.DataFrame:
        (tmp_path / f"read {i} {uuid.uuid4()}").touch()
        return FRAME[2 * i : 2 * i + 2]

    with dask.config.set({"dataframe.convert-string": False, "scheduler": scheduler}):
        table = frame.from_map(part, range(3), meta=FRAME[:0])
        clients = clients_from(table, order="at")
        assert sorted(path.name[:6] for path in tmp_path.glob("read*")) == [f"read {i}" for i in (0, 0, 1, 1, 2, 2)]
        for _ in range(2):
            found = dict(clients)
            assert found.keys() == oracle.keys()
            for name, data in found.items():
                jax.tree.map(np.testing.assert_array_equal, data, oracle[name])
        assert len(list(tmp_path.glob("read*"))) == 6  # passes read the packed clients
        w = np.array([1.0, -2.0], np.float32)
        for engine in (Sequential(), MeshEngine()):
            np.testing.assert_allclose(engine.run(fitted, w, clients).results[0], expected(w)[0], rtol=1e-5)
        buckets = clients_from(table, order="at", buckets=[2, 3])
        np.testing.assert_allclose(Sequential().run(in_buckets, w, *buckets).results, expected(w)[0], rtol=1e-5)
        del clients, buckets
        gc.collect()
        assert not list((tmp_path / "files").glob("workbench-clients-*"))


def test_lists_that_dask_made_text_are_reported_with_the_line_that_prevents_it():
    frame = pytest.importorskip("dask.dataframe")
    with pytest.raises(
        ProgramError, match=r"columns \['x'\].*`dask.config.set\(\{\"dataframe.convert-string\": False\}\)`"
    ):
        clients_from(frame.from_pandas(FRAME, npartitions=2), order="at", columns=["x", "y"])


def check_clients_stay_on_the_workers(engine: Executor, clients: Any, buckets: Any, patch: pytest.MonkeyPatch):
    """Reader and results as those of pandas; no run of the engine reads the clients here."""
    oracle = dict(clients_from(FRAME, order="at", columns=["x", "y"]))
    found = dict(clients)
    assert found.keys() == oracle.keys()
    for name, data in found.items():
        jax.tree.map(np.testing.assert_array_equal, data, oracle[name])
    assert sorted(reader.struct["x"].shape for reader in buckets) == [(1, 3, 2), (2, 2, 2)]
    w = np.array([1.0, -2.0], np.float32)
    with patch.context() as here:
        here.setattr(type(clients), "__iter__", None)
        mean, rows = engine.run(fitted, w, clients).results
        np.testing.assert_allclose(mean, expected(w)[0], rtol=1e-5)
        by_client = dict(zip("abc", expected(w)[1], strict=True))
        np.testing.assert_allclose(rows, [by_client[name] for name in clients.ids], rtol=1e-5)
        np.testing.assert_allclose(engine.run(in_buckets, w, *buckets).results, expected(w)[0], rtol=1e-5)
        beside = np.arange(3, dtype=np.int32)  # an argument that this process sends
        total = wb.program(clients=3)(lambda x, data: wb.reduce_sum(wb.map_fn(lambda x, d: x * d["n"], (x, data))))
        counts = {name: count for name, (_, count) in BY_HAND.items()}
        assert int(engine.run(total, beside, clients).results) == sum(
            i * counts[name] for i, name in enumerate(clients.ids)
        )
        clients.labels[0] = dataclasses.replace(clients.labels[0], mark=0)
        with pytest.raises(EngineError, match="read again and returned different clients"):
            engine.run(fitted, w, clients)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_of_dask_pack_and_hold_clients(monkeypatch: pytest.MonkeyPatch):
    distributed, dask = pytest.importorskip("dask.distributed"), pytest.importorskip("dask")
    frame = pytest.importorskip("dask.dataframe")
    with (
        dask.config.set({"dataframe.convert-string": False}),
        distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client,
    ):
        table = frame.from_pandas(FRAME, npartitions=3)
        clients = clients_from(table, order="at", columns=["x", "y"])
        buckets = clients_from(table, order="at", columns=["x", "y"], buckets=[2, 3])
        engine = Executor(client.get_executor(), clients_per_task=2)
        check_clients_stay_on_the_workers(engine, clients, buckets, monkeypatch)
        w = np.array([1.0, -2.0], np.float32)
        before = engine.run(in_buckets, w, *buckets).results
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)  # its parts are made again
        assert engine.run(in_buckets, w, *buckets).results == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("ray_cluster")
def test_workers_of_ray_pack_and_hold_clients(monkeypatch: pytest.MonkeyPatch):
    table = pytest.importorskip("ray.data").from_pandas([FRAME[:3], FRAME[3:]])
    clients = clients_from(table, order="at", columns=["x", "y"])
    buckets = clients_from(table, order="at", columns=["x", "y"], buckets=[2, 3])
    check_clients_stay_on_the_workers(Ray(clients_per_task=2), clients, buckets, monkeypatch)


def check_predictions(engine: Spark, frame: Any, w: Any):
    """Row by row as NumPy computes them, for scalars, lists and several columns."""
    x, y = np.stack(FRAME["x"].tolist()), FRAME["y"].to_numpy()
    found = engine.predict(frame, lambda w, x: x @ w, w, columns="x", rows_per_batch=4).toPandas().sort_values("y")
    np.testing.assert_allclose(found["prediction"], x @ w, rtol=1e-6)
    assert [*found.columns] == ["client", "at", "x", "y", "prediction"]
    both = engine.predict(
        frame.repartition(3), lambda v, d: v["w"] * d["x"] - d["y"], {"w": w}, columns=["x", "y"], out="left"
    )
    np.testing.assert_allclose(np.stack(both.toPandas().sort_values("y")["left"]), x * w - y[:, None], rtol=1e-6)
    for options in ({"columns": "z"}, {"columns": "client"}, {"columns": "x", "out": "y"}, {"columns": []}):
        with pytest.raises(ProgramError, match=r"`Spark.predict` was given columns="):
            engine.predict(frame, lambda x: x, **options)
    with pytest.raises(ProgramError, match="returns"):
        engine.predict(frame, lambda x: (x, x), columns="x")
    uneven = frame.selectExpr("if(at = 3, array(x[0]), x) x", "y").orderBy("y", ascending=False)
    with pytest.raises(Exception, match=r"a row with 1 values in column 'x' of type list.*float32\[2\] is needed"):
        engine.predict(uneven, lambda x: x, columns="x").collect()


@pytest.mark.skipif(not shutil.which("java"), reason="no Java")
@pytest.mark.filterwarnings("ignore")
def test_spark_groups_and_pads_where_the_rows_are(tmp_path: Path):
    pytest.importorskip("pyspark")
    w = np.array([1.0, -2.0], np.float32)

    def two(w: Any, data: Any) -> Any:
        return jax.lax.scan(lambda w, _: (w, fitted(w, data)), w, None, length=2)[1]

    with Spark("local[2]", clients_per_batch=2) as engine:
        session = engine._opened()
        rows = FRAME.assign(x=FRAME["x"].map(list))
        frame = session.createDataFrame(rows).selectExpr(
            "client", "at", "cast(x as array<float>) x", "cast(y as float) y"
        )
        clients = clients_from(frame, order="at", columns=["x", "y"])
        assert clients.struct["x"].shape == (3, 3, 2)
        oracle = dict(clients_from(FRAME, order="at", columns=["x", "y"]))
        for name, data in clients:  # as another engine reads them
            jax.tree.map(np.testing.assert_array_equal, data, oracle[name])
        run = engine.run(fitted, w, clients)
        np.testing.assert_allclose(run.results[0], expected(w)[0], rtol=1e-5)
        buckets = clients_from(frame, order="at", columns=["x", "y"], buckets=[2, 3])
        assert [reader.struct["x"].shape for reader in buckets] == [(2, 2, 2), (1, 3, 2)]
        np.testing.assert_allclose(engine.run(in_buckets, w, *buckets).results, expected(w)[0], rtol=1e-5)
        with engine.read(clients) as packed:
            for target in (None, str(tmp_path / "rows")):
                engine.write_to = target
                mean, _ = engine.run(two, w, packed).results
                np.testing.assert_allclose(mean, [expected(w)[0]] * 2, rtol=1e-5)
        check_predictions(engine, frame, w)
        table = session.read.parquet(str(tmp_path / "rows")).toPandas().set_index("client")["out[1]"]
        assert {name: list(x) for name, x in table.items()} == {
            name: pytest.approx([value] * 2) for name, value in zip("abc", expected(w)[1], strict=True)
        }
