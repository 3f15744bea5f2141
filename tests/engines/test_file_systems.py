"""Rows and clients in other file systems, on a server of S3's protocol on the loopback."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from engine_contract import CLIENTS, client_data, fedavg, rounds, start
from stragglers import check_rounds_go_on

import workbench as wb
from workbench.engines import Beam, ClientReader, ParquetReader, Sequential, Spark
from workbench.engines._places import place, scratch_folder
from workbench.engines._table_engine import check_folder
from workbench.errors import DataError, EngineError, ProgramError


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The address of a bucket of a server that ends with the tests."""
    server = pytest.importorskip("moto.server", reason="needs moto[server], s3fs and universal-pathlib")
    for package in ("s3fs", "upath", "pyarrow"):
        pytest.importorskip(package)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "tests")
        place("s3://bucket").mkdir()
        yield "s3://bucket"
    running.stop()


def files(bucket: str) -> list[str]:
    return place(bucket).fs.find("bucket")  # pyright: ignore[reportAttributeAccessIssue]


@wb.program(clients=CLIENTS)
def stateful(state: Any, x: Any) -> Any:
    return wb.map_fn(lambda s, row: 0.5 * s + row, (state, x))


def many(state: Any, x: Any) -> Any:
    return jax.lax.scan(lambda s, _: (stateful(s, x), s), state, None, length=3)


def test_a_file_appears_when_it_is_whole(bucket: str, tmp_path: Path):
    for parent in (bucket, tmp_path, f"file://{tmp_path}"):
        with scratch_folder("pass-", parent) as folder:
            from workbench.engines._places import load_arrays, save_arrays

            save_arrays(folder / "x.npz", [np.arange(3), np.float32(1)])
            assert [path.name for path in folder.iterdir()] == ["x.npz"]
            np.testing.assert_array_equal(load_arrays(str(folder / "x.npz"))[0], [0, 1, 2])
    assert not files(bucket)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("folder", "fact"),
    [
        ("s3://nobody/tmp", "FileNotFoundError: The specified bucket does not exist"),
        ("gs://bucket/tmp", "ImportError: Please install gcsfs"),
        ("zzz://bucket", "Unsupported filesystem: 'zzz'"),
        ("/no/such/folder", "FileNotFoundError"),
    ],
)
def test_where_nothing_can_be_written_is_refused_in_a_sentence(bucket: str, folder: str, fact: str):
    with pytest.raises(ProgramError, match=f"given folder='{folder}', but no file can be written there: .*{fact}"):
        check_folder("Spark", folder)


def test_clients_are_read_from_there(bucket: str):
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = client_data()
    with place(f"{bucket}/clients.parquet").open("wb") as file:
        pq.write_table(pa.table({"x": x.tolist(), "y": y.tolist()}), file)
    reader = ParquetReader(f"{bucket}/clients.parquet", columns=["x", "y"])
    program = lambda w, data: fedavg(w, (data["x"], data["y"]))  # noqa: E731
    found = Sequential().run(program, start(), reader).results
    np.testing.assert_allclose(found[0], fedavg(start(), (x, y))[0], rtol=1e-5)
    place(f"{bucket}/clients.parquet").unlink()
    with pytest.raises(DataError, match=r"cannot be read \(FileNotFoundError: bucket/clients.parquet"):
        ParquetReader(f"{bucket}/clients.parquet")


@pytest.mark.skipif(not shutil.which("java"), reason="no Java")
@pytest.mark.filterwarnings("ignore")
def test_spark_keeps_rows_and_reads_and_writes_clients_there(bucket: str):
    pytest.importorskip("pyspark")
    import pyarrow.parquet as pq

    x = np.arange(CLIENTS * 3, dtype=np.float32).reshape(CLIENTS, 3)
    last, states = wb.jit(many)(np.zeros_like(x), x)
    reader = ClientReader([(f"c{i}", row) for i, row in enumerate(x)])
    with Spark("local[2]", clients_per_batch=2, folder=f"{bucket}/tmp") as engine:
        found = engine.run(many, np.zeros_like(x), reader).results
        np.testing.assert_allclose(found[0], last, rtol=1e-6)
        np.testing.assert_allclose(found[1], states, rtol=1e-6)
        engine.write_to = f"{bucket}/rows"
        engine.run(stateful, np.zeros_like(x), reader)
        engine.read_from, engine.write_to = f"{bucket}/rows", None
        struct = {"out": jax.ShapeDtypeStruct(x.shape, np.float32)}
        again = engine.run(lambda d: many(np.zeros_like(x), d["out"]), struct).results
        np.testing.assert_allclose(again[0], last, rtol=1e-6)
        engine.read_from, engine.write_to = None, f"{bucket}/rows"
        with pytest.raises(EngineError, match=r"`write_to` failed .*FileExistsError: s3://bucket/rows"):
            engine.run(stateful, np.zeros_like(x), reader)
        table = pq.read_table("bucket/rows", filesystem=place(bucket).fs)  # pyright: ignore[reportAttributeAccessIssue]
        assert sorted(table.column("client").to_pylist()) == [f"c{i}" for i in range(CLIENTS)]
    with Spark("local[2]", clients_per_batch=1, folder=f"{bucket}/tmp", quorum=4) as engine:
        check_rounds_go_on(engine, 3_000_000)
    assert all(name.startswith("bucket/rows/") for name in files(bucket))
    place(f"{bucket}/rows").rmdir(recursive=True)  # pyright: ignore[reportCallIssue]


def test_beam_keeps_rows_there(bucket: str):
    beam = pytest.importorskip("apache_beam")
    x, y = client_data()
    pairs = [(f"c{i}", (x[i], y[i])) for i in range(CLIENTS)]
    rows: list[Any] = []
    engine = Beam(
        clients_per_batch=2,
        folder=f"{bucket}/tmp",
        read_from=beam.Create(pairs),
        write_to=beam.Map(lambda row: rows.append(row)),
    )
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, y))

    @wb.program(clients=CLIENTS)
    def program(w: Any, data: Any) -> Any:
        return rounds(w, data), wb.map_fn(lambda x, y: x.sum(), data)

    found, _ = engine.run(program, start(), shapes).results
    np.testing.assert_allclose(found[0], wb.jit(rounds)(start(), (x, y))[0], rtol=1e-5)
    assert not files(bucket)
