"""Clients from PCollections with one row per example, with pandas as the oracle."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from example_tables import BY_HAND, FRAME, expected, fitted, in_buckets

import workbench as wb
from workbench.engines import Beam, ClientReader, Sequential, clients_from
from workbench.errors import EngineError, ProgramError

beam = pytest.importorskip("apache_beam", reason="the extra `beam` is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ROWS = FRAME.to_dict("records")
W = np.array([1.0, -2.0], np.float32)


class Row(NamedTuple):
    client: str
    at: int
    y: float


def table(rows: Any = ROWS, *steps: Any) -> Any:
    made = beam.Pipeline() | beam.Create(rows)
    for step in steps:
        made |= step
    return made


def same_clients(found: ClientReader, oracle: ClientReader) -> None:
    ours, theirs = dict(found), dict(oracle)
    assert [*ours] == [*theirs]
    assert found.struct == oracle.struct
    for name, data in ours.items():
        jax.tree.map(np.testing.assert_array_equal, data, theirs[name])


@pytest.mark.parametrize("options", [{}, {"columns": ["y"]}, {"length": 2}, {"buckets": [1, 2, 8]}], ids=str)
def test_a_pcollection_gives_the_clients_of_pandas(options: Any):
    ours, theirs = (clients_from(frame, order="at", **options) for frame in (table(), FRAME))
    if "buckets" not in options:
        ours, theirs = (ours,), (theirs,)
    for found, oracle in zip(ours, theirs, strict=True):
        same_clients(found, oracle)


def rows_through_many_steps() -> Any:
    """The rows from a flattened pair of collections, joined, windowed, tagged, and with a side input."""
    pipeline = beam.Pipeline()
    first, second = (pipeline | str(i) >> beam.Create(ROWS[i::2]) for i in range(2))
    offset = pipeline | "offset" >> beam.Create([0.5, 0.5]) | beam.CombineGlobally(sum)
    both = (first, second) | beam.Flatten() | beam.WindowInto(beam.window.FixedWindows(1))
    keyed = both | beam.Map(lambda row: (row["at"] % 2, row)) | beam.GroupByKey()
    split = keyed | beam.FlatMap(
        lambda pair, one: [{**row, "y": row["y"] + one} for row in pair[1]], beam.pvalue.AsSingleton(offset)
    ).with_outputs("other", main="main")
    again = split.main | beam.Reshuffle() | "back" >> beam.Map(lambda row: {**row, "y": row["y"] - 1})
    _ = again | "never" >> beam.Map(lambda row: 1 / 0)  # a later step, which must not run
    return again


def rows_of_files(tmp_path: Path) -> Any:
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for part in range(2):
        files.write_table(
            arrow.Table.from_pylist([{**x, "x": x["x"].tolist()} for x in ROWS[part::2]]), tmp_path / f"{part}.parquet"
        )
    return beam.Pipeline() | beam.io.ReadFromParquet(str(tmp_path / "*.parquet"))


@pytest.mark.parametrize("kind", ["steps", "named tuples", "beam.Row", "Parquet", "JSON"])
def test_rows_of_every_kind_and_every_pipeline_are_read(kind: str, tmp_path: Path):
    plain = FRAME.drop(columns="x")
    if kind == "steps":
        same_clients(clients_from(rows_through_many_steps(), order="at"), clients_from(FRAME, order="at"))
    elif kind == "named tuples":
        rows = beam.Pipeline() | beam.Create([Row(x["client"], x["at"], x["y"]) for x in ROWS]).with_output_types(Row)
        same_clients(clients_from(rows, order="at"), clients_from(plain, order="at"))
    elif kind == "beam.Row":
        rows = table(
            ROWS, beam.Select(client=lambda r: str(r["client"]), at=lambda r: int(r["at"]), y=lambda r: float(r["y"]))
        )
        same_clients(clients_from(rows, order="at"), clients_from(plain, order="at"))
    elif kind == "Parquet":
        found = dict(clients_from(rows_of_files(tmp_path), order="at"))
        assert {name: (data["y"][: data["n"]].tolist(), int(data["n"])) for name, data in found.items()} == BY_HAND
        assert found["c"]["x"].tolist() == [[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]
    else:
        lines = [json.dumps({**x, "x": x["x"].tolist(), "y": int(x["y"]) if x["at"] > 1 else x["y"]}) for x in ROWS]
        same_clients(clients_from(table(lines, beam.Map(json.loads)), order="at"), clients_from(FRAME, order="at"))


@pytest.mark.parametrize("own_process", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "child"])
def test_clients_are_packed_by_the_workers_once(own_process: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reads = tmp_path / "reads"

    def count(row: Any) -> Any:
        with reads.open("a") as file:
            file.write("x")
        return row

    rows = table(ROWS, beam.Map(count))
    clients, waiting = clients_from(rows, order="at", columns=["x", "y"]), tmp_path / "waiting"
    waiting.mkdir()
    assert (clients.clients, clients.struct["x"].shape, reads.read_text()) == (3, (3, 3, 2), "x" * 6)
    engine = Beam(clients_per_batch=2, own_process=own_process, folder=waiting)
    with monkeypatch.context() as here:
        here.setattr(type(clients), "__iter__", None)
        mean, losses = engine.run(fitted, W, clients).results
        np.testing.assert_allclose(mean, expected(W)[0], rtol=1e-5)
        np.testing.assert_allclose(losses, expected(W)[1], rtol=1e-5)
        buckets = clients_from(rows, order="at", columns=["x", "y"], buckets=[2, 3])
        np.testing.assert_allclose(engine.run(in_buckets, W, *buckets).results, expected(W)[0], rtol=1e-5)
        before = len(reads.read_text())
        with engine.read(clients) as packed:
            run = wb.run_rounds(
                lambda w, d: (w + 0 * fitted(w, d)[0], {"loss": fitted(w, d)[0]}),
                W,
                2,
                data=packed,
                engine=engine,
                progress=False,
            )
        assert len(reads.read_text()) == before + 6
    np.testing.assert_allclose(run.history.summary()["loss"], [expected(W)[0]] * 2, rtol=1e-5)
    np.testing.assert_allclose(Sequential().run(fitted, W, clients).results[0], expected(W)[0], rtol=1e-5)
    assert not list(waiting.iterdir())
    with (
        pytest.raises(ProgramError, match=r"`Beam.read` was given an object of type ClientReader"),
        engine.read(ClientReader([(0, 1)])),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"by": "user"}, "by='user'"),
        ({"columns": ["z"]}, r"columns=\['z'\]"),
        ({"order": "t"}, "order='t'"),
        ({"buckets": [2, 1]}, r"buckets=\[2, 1\]"),
    ],
)
def test_columns_are_checked_as_those_of_pandas(options: Any, fact: str):
    said = []
    for frame in (table(), FRAME):
        with pytest.raises(ProgramError, match=fact) as caught:
            clients_from(frame, **options)
        said.append(str(caught.value))
    assert said[0] == said[1]
    with pytest.raises(ProgramError, match="without rows"):
        clients_from(table([]))


@pytest.mark.parametrize("value", [None, "word", [1.0, 2.0]], ids=["missing", "text", "length"])
def test_values_that_are_no_numbers_are_reported_as_those_of_pandas(value: Any):
    frame = FRAME.drop(columns="x").astype({"y": object})
    frame.at[0, "y"] = value
    said = []
    for each in (table(frame.to_dict("records")), frame):
        with pytest.raises(ProgramError, match=r"in column 'y' of client 'b'") as caught:
            list(clients_from(each, order="at"))
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("rows", "options", "fact"),
    [
        ([3], {}, "an element of type int, which has no columns"),
        ([{**ROWS[0], "client": 1.5}], {}, "values of type float in column 'client'"),
        ([{**ROWS[0], "client": None}], {}, "values of type NoneType in column 'client'"),
        ([ROWS[0], {**ROWS[1], "at": None}], {"order": "at"}, "missing values in column 'at' of client 'a'"),
        ([ROWS[0], {"client": "a", "y": 1.0}], {}, r"rows with only the columns \['client', 'y'\]"),
        ([ROWS[0], {"client": "a", "y": 1.0}], {"columns": ["x"]}, "1 missing value.s. in column 'x' of client 'a'"),
    ],
)
def test_rows_that_do_not_fit_are_reported(rows: Any, options: Any, fact: str):
    with pytest.raises(ProgramError, match=fact):
        clients_from(table(rows), **options)


def test_a_step_that_fails_and_a_stream_are_reported():
    with pytest.raises(ProgramError, match=r"found an error: .*ZeroDivisionError"):
        clients_from(table(ROWS, beam.Map(lambda row: 1 / 0)))
    rows = table()
    rows.is_bounded = False
    with pytest.raises(ProgramError, match="found an unbounded PCollection"):
        clients_from(rows)


@pytest.mark.parametrize("extra", [1, 2], ids=["a longer client", "another client"])
def test_a_table_that_changes_is_refused(extra: int, tmp_path: Path):
    mark = tmp_path / "mark"
    added = {**ROWS[0], "client": "b" if extra == 1 else "new"}
    clients = clients_from(
        table([ROWS], beam.FlatMap(lambda rows: [*rows, added] if mark.exists() else rows)), order="at"
    )
    mark.touch()
    with pytest.raises(EngineError, match=rf"`clients_from` returned {2 if extra == 1 else 4} clients"):
        Beam().run(fitted, W, clients)
