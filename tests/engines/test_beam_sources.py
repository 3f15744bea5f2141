"""Clients read from Beam sources and rows written to Beam sinks: Parquet and TFRecord files."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from engine_contract import CLIENTS, client_data, fedavg, per_client, rounds, start

import workbench as wb
from workbench.engines import Beam
from workbench.errors import EngineError, ProgramError

beam = pytest.importorskip("apache_beam", reason="the extra `beam` is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _reported() -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in client_data())


def _as_client(row: dict[str, Any]) -> Any:
    x = np.asarray(row["x"], np.float32).reshape(4, -1)
    return row["id"], (x, np.asarray(row["y"], np.float32))


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x, y = client_data()
    for part, of in enumerate((range(3, CLIENTS), range(3))):  # neither in order nor in one file
        rows = [{"id": f"c{i}", "x": x[i].ravel().tolist(), "y": y[i].tolist()} for i in of]
        files.write_table(arrow.Table.from_pylist(rows), tmp_path / f"clients-{part}.parquet")
    return str(tmp_path / "clients-*.parquet")


def _from(pattern: str) -> Any:
    return beam.io.ReadFromParquet(pattern) | beam.Map(_as_client)


@pytest.mark.parametrize("own_process", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "child"])
def test_clients_of_parquet_files_give_the_same_rounds(parquet: str, tmp_path: Path, own_process: bool) -> None:
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    engine = Beam(read_from=_from(parquet), clients_per_batch=2, folder=waiting, own_process=own_process)
    run = engine.run(rounds, start(), _reported())
    np.testing.assert_allclose(run.results[0], wb.jit(rounds)(start(), client_data())[0], rtol=1e-5, atol=1e-6)
    assert [client.client for client in run.clients] == [f"c{i}" for i in range(CLIENTS)]
    assert not list(waiting.iterdir())


def test_clients_of_records_go_through_and_their_rows_to_a_sink(tmp_path: Path) -> None:
    x, y = client_data()
    with beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner") as pipeline:
        rows = [np.int32(i).tobytes() + x[i].tobytes() + y[i].tobytes() for i in range(CLIENTS)]
        _ = pipeline | beam.Create(rows) | beam.io.WriteToTFRecord(str(tmp_path / "clients"))

    def as_client(record: bytes) -> Any:
        values = np.frombuffer(record[4:], np.float32)
        return int(np.frombuffer(record[:4], np.int32)[0]), (values[:12].reshape(4, 3), values[12:])

    def as_row(row: dict[str, Any]) -> bytes:
        return np.int32(row["client"]).tobytes() + row["out[0]"].tobytes() + row["out[1]"].tobytes()

    engine = Beam(
        read_from=beam.io.ReadFromTFRecord(str(tmp_path / "clients*")) | beam.Map(as_client),
        write_to=beam.Map(as_row) | beam.io.WriteToTFRecord(str(tmp_path / "trained")),
        clients_per_batch=2,
    )
    run = engine.run(per_client, start(), _reported())
    delta, loss = wb.jit(per_client)(start(), client_data())
    np.testing.assert_allclose(run.results[0], delta, rtol=1e-5, atol=1e-6)
    written: list[bytes] = []
    for path in tmp_path.glob("trained*"):
        written.extend(_records(path.read_bytes()))
    assert len(written) == CLIENTS
    for record in written:
        client = int(np.frombuffer(record[:4], np.int32)[0])
        np.testing.assert_allclose(np.frombuffer(record[4:], np.float32), [*delta[client], loss[client]], rtol=1e-5)


def _records(file: bytes) -> list[bytes]:
    """A TFRecord file by its format: length, its checksum, data, their checksum."""
    found = []
    while file:
        length = int.from_bytes(file[:8], "little")
        found.append(file[12 : 12 + length])
        file = file[12 + length + 4 :]
    return found


def test_program_without_rows_has_nothing_for_a_sink() -> None:
    with pytest.raises(ProgramError, match=r"`fedavg` returned 0 results with a row for each of the 5 clients"):
        Beam(write_to=beam.Map(print)).run(fedavg, start(), client_data())


def test_failing_sink_keeps_the_results() -> None:
    def refuse(row: dict[str, Any]) -> None:
        raise OSError("no room")

    with pytest.raises(EngineError, match=r"`write_to` failed .*no room.*keys \"client\" and 'out\[0\]'") as caught:
        Beam(write_to=beam.Map(refuse)).run(per_client, start(), client_data())
    assert caught.value.run.results[0].shape == (CLIENTS, 3)


def _pairs(*pairs: Any) -> Any:
    return beam.Create(list(pairs))


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        (lambda x, y: _pairs(("a", (x[0], y[0]))), r"returned 1 clients, 1 of them distinct.* has 5"),
        (lambda x, y: _pairs(*[("a", (x[0], y[0]))] * 5), r"returned 5 clients, 1 of them distinct"),
        (lambda x, y: _pairs(("a", (x[0, :2], y[0]))), r"client 'a' with data .*float32\[2, 3\].* reads .*\[4, 3\]"),
        (lambda x, y: _pairs(3), r"an element of type int that is not a pair"),
        (lambda x, y: _pairs(("a", 1)) | beam.Map(lambda pair: 1 / 0), r"an error on beam .*ZeroDivisionError"),
    ],
    ids=["too few", "twice", "shape", "no pair", "raises"],
)
def test_source_that_does_not_fit_is_reported(source: Any, reported: str) -> None:
    with pytest.raises(EngineError, match=reported):
        Beam(read_from=source(*client_data())).run(fedavg, start(), _reported())


def test_source_needs_one_argument_of_shapes() -> None:
    with pytest.raises(ProgramError, match=r"given 0 arguments as shapes and a `read_from`"):
        Beam(read_from=_pairs()).run(fedavg, start(), client_data())
