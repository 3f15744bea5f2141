"""The jobs of one run on Spark: tables of batches, passes over the clients, and rows that stay with Spark."""

# pyright: reportMissingImports=false

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import math
import re
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jax import Array
from pyspark import InheritableThread
from pyspark.sql.pandas.types import from_arrow_schema

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.engines._client_loop import Pass, name_clients
from workbench.engines._clients import Batch, ReadRows, RemoteRows, materialize
from workbench.engines._cohorts import absent_rows
from workbench.engines._places import for_arrow, place, remove_tree, whole_file
from workbench.engines._remote import merged
from workbench.engines._run_recorder import RunRecorder, brief
from workbench.engines._stage import edge_aval, from_edge, to_host
from workbench.engines._table_engine import TableEngine, check_clients, source_fact
from workbench.engines.spark import _worker
from workbench.engines.spark._readers import (
    MOST_SENT_BYTES,
    ClientTable,
    Names,
    PackedClients,
    check_packed,
    table_of_clients,
)
from workbench.errors import EngineError

Result = TypeVar("Result")

_ON_THIS_MACHINE = r"local(\[|-cluster|$)"  # masters whose executors share the driver's file system
# up to this size, values are sent in a job's function, once per executor; larger values are broadcast
_MOST_INLINE_BYTES = 2**20
_MOST_CELL_BYTES = 2**31 - 1  # size limit of a batch of rows, which is one JVM array


@dataclasses.dataclass
class _State:
    """Rows that a pass kept for the clients, as a checkpointed table and its columns."""

    path: Path
    frame: Foreign
    size: int
    names: dict[str, str]  # name of kept rows → column
    numbers: list[int]  # of its batches


class Jobs:
    """State of one run in Spark, and the jobs of its passes."""

    def __init__(self, session: Foreign, folder: Path, engine: TableEngine) -> None:
        self.session, self.folder, self.engine = session, folder, engine
        self.context = session.sparkContext
        self.tasks = max(1, self.context.defaultParallelism)
        self._stages: dict[str, Any] = {}
        self._frames: dict[Any, tuple[Any, list[Any]]] = {}  # keyed by the address of the arrays in the list
        self._states: dict[str, _State] = {}
        self._files: dict[str, list[str]] = {}
        self._readers: list[PackedClients] = []
        self._input_ids: set[int] = set()
        self._recorder: RunRecorder | None = None
        self._numbers = iter(range(2**62))
        self._folder_is_shared = False

    def begin(self, inputs: Sequence[Any], recorder: RunRecorder) -> None:
        """Registers the caller's arrays, which are written to tables."""
        self._input_ids = {id(x) for x in inputs}
        self._inputs = list(inputs)  # keeps the arrays alive, so that their ids stay unique
        self._recorder = recorder

    def forget(self) -> None:
        """Removes all cached data of this run from Spark."""
        with contextlib.suppress(Exception):  # the JVM may have exited
            for frame in (*(frame for frame, _ in self._frames.values()), *(x.frame for x in self._readers)):
                if frame.is_cached:
                    frame.unpersist()
            for stage in self._stages.values():
                stage.destroy()

    def _check_folder(self) -> None:
        if self._folder_is_shared or re.match(_ON_THIS_MACHINE, str(self.context.master)):
            return
        mark, text = self.folder / "mark", uuid.uuid4().hex
        mark.write_text(text)
        tasks = 4 * self.tasks  # several tasks for each executor
        with warnings.catch_warnings(action="ignore"):
            look = partial(_worker.see, str(mark), text)
            answers = self.session.range(0, tasks, 1, tasks).mapInArrow(look, "fact string")
            facts = {row["fact"] for row in answers.collect() if row["fact"]}
        if facts:
            message = (
                f"{self.engine.name} keeps the rows of clients in {str(self.folder.parent)!r}, and executors on "
                f"{', '.join(sorted(facts))} cannot see that folder. Executors read rows that other executors wrote. "
                "Pass `folder=` with a path or address in a file system that the driver and all executors share, and "
                "run executors as this user."
            )
            raise EngineError(message)
        self._folder_is_shared = True

    def compute(self, work: Pass) -> None:
        """Runs one pass: makes its table, runs its jobs, and reads their results."""
        size = min(self.engine.clients_per_batch, work.clients)
        digest, stage = work.exported(size, None)
        started = time.perf_counter()
        with self._errors_reported(work):
            frame, named, sources, separate_rows, checks = self._source(work, size)
            spec = self._spec(work, size, digest, sources, separate_rows, checks)
            if digest not in self._stages:
                self._stages[digest] = sent_once(self.context, stage)
            server = sent_once(self.context, _worker.encode([*work.shared, *separate_rows]))
            if len(here := self._here(work, named, size)) < len(named):
                frame = frame.where(frame.batch.isin([batch.index for batch in here]))
        work.recorder.stage(work.stage, "sending rows", time.perf_counter() - started)
        started = time.perf_counter()
        path = self.folder / f"rows-{next(self._numbers)}" if spec.kept or work.undecided else None
        if path is not None:
            self._check_folder()
        compute = self._computed_apart if work.undecided else self._computed
        try:
            with self._errors_reported(work), warnings.catch_warnings(action="ignore"):  # PySpark warns about pandas 3
                table = compute(work, named, spec, frame, server, path)
        finally:
            with contextlib.suppress(Exception):
                server.destroy()
        work.recorder.stage(work.stage, "jobs", time.perf_counter() - started)
        here = self._here(work, named, size)
        try:
            self._take(work, named, here, spec, table)
        except (IndexError, KeyError, ValueError) as error:
            fact = f"the table of answers changed in transit to this process ({type(error).__name__}: {error})"
            raise work.miscounted(fact) from error
        if spec.kept and path is not None:
            self._hold(work, path, size, here)
        elif path is not None:
            remove_tree(path)

    def _here(self, work: Pass, named: Sequence[Batch], size: int) -> list[Batch]:
        return [batch for batch in named if not work.is_out(batch, size)]

    def _computed(
        self, work: Pass, named: Sequence[Batch], spec: Foreign, frame: Foreign, server: Foreign, path: Path | None
    ) -> Foreign:
        """Computes the answers of all batches; kept rows are stored in the folder `path`."""
        computed = frame.mapInArrow(
            _worker.Compute(spec, self._stages[spec.digest], server), _worker.schema_of(spec.kept)
        )

        def job() -> Foreign:
            rows = computed
            if path is not None:
                rows = self._stored(rows, path).select(*_worker.COLUMNS)
            if spec.groups:
                level = rows.repartition(spec.groups, "grp").sortWithinPartitions("kind", "number", "key", "part")
                rows = level.mapInArrow(_worker.Merge(spec), rows.schema)
            return rows.toArrow()

        return self._guarded(work, named, job)

    def _computed_apart(
        self, work: Pass, named: Sequence[Batch], spec: Foreign, frame: Foreign, server: Foreign, path: Path | None
    ) -> Foreign:
        """Collects answers, which are files in the folder `path`, until the round can continue."""
        assert path is not None
        path.mkdir(parents=True, exist_ok=True)
        missing: dict[int, tuple[Batch, str]] = {}
        numbers: set[int] = set()
        started = time.perf_counter()

        def look() -> None:
            for file in path.glob("*"):  # an object store has no empty folders
                if file.suffix == ".parquet":
                    numbers.add(int(file.stem))
                elif file.suffix == ".failed":
                    missing[int(file.stem)] = named[int(file.stem)], file.read_text().partition("] ")[2]
            if reason := work.enough(sum(len(named[i].clients) for i in numbers), missing, started):
                raise _Enough(reason)

        apart = _worker.ComputeApart(spec, self._stages[spec.digest], server, str(path))
        rows = frame.repartitionByRange(len(named), "batch").mapInArrow(apart, "batch int")  # one task per batch
        reason = None
        try:
            self._guarded(work, named, rows.toArrow, look)
            look()
        except _Enough as enough:
            reason = str(enough)
        except EngineError as error:
            if not isinstance(error.__cause__, Exception):
                raise
            reason = brief(error.__cause__)  # the job ended
        silent = [batch for batch in named if batch.index not in numbers and batch.index not in missing]
        if silent and reason is None:
            fact = f"{name_clients([x for batch in silent for x in batch.clients])} did not answer"
            raise work.miscounted(fact)
        missing.update((batch.index, (batch, reason or "")) for batch in silent)
        if missing:
            work.enough(0, missing, started)
            work.decide(missing, spec.size)
        files = [for_arrow(path / f"{i}.parquet") for i in sorted(numbers)]
        return pa.concat_tables(pq.read_table(**file, columns=list(_worker.COLUMNS)) for file in files)

    def _stored(self, frame: Foreign, path: Path) -> Foreign:
        """Writes a frame to a folder on the executors, and reads it back."""
        if not hasattr(path, "fs"):
            frame.write.parquet(str(path))
            return self.session.read.schema(frame.schema).parquet(str(path))  # without a job that reads the schema
        written = frame.mapInArrow(partial(_worker.write_file, str(path)), "file string").toArrow()
        files = self._files[str(path)] = written.column("file").to_pylist()  # without files of failed attempts
        return self._of_files(files, frame.schema)

    def _of_files(self, files: Sequence[str], schema: Foreign = None) -> Foreign:
        """Reads Parquet files as a frame.

        If Spark supports the file system only with extra JARs, the workers read the files instead.
        """
        if not hasattr(place(files[0]), "fs"):
            return self.session.read.parquet(*files)
        schema = schema or from_arrow_schema(pq.ParquetFile(**for_arrow(place(files[0]))).schema_arrow)
        with warnings.catch_warnings(action="ignore"):
            names = self.session.createDataFrame(pa.table({"file": sorted(files)})).repartition(len(files))
        return names.mapInArrow(_worker.read_files, schema)

    def _spec(
        self, work: Pass, size: int, digest: str, sources: Sequence[str], separate_rows: Sequence[Any], checks: Foreign
    ) -> Foreign:
        function = work.function(size)
        count = len(work.phase.rows)
        keyed = tuple(-1 if work.undecided else axis for axis in work.keyed)
        partitions = min(self.tasks, math.ceil(work.clients / size))
        return _worker.SparkPass(
            digest=digest,
            size=size,
            sources=tuple(sources),
            checks=tuple(checks),
            rows=_worker.shapes_of(function.in_avals[1 : 1 + count]),
            made=_worker.shapes_of(separate_rows),
            shared=_worker.shapes_of(function.in_avals[1 + count :]),
            partial=_worker.shapes_of(work.partial_avals),
            kept=len(work.phase.kept),
            merges=tuple(work.merges),
            keyed=keyed,
            groups=0 if work.undecided else max(_second_level(partitions), partitions * (max(keyed, default=-1) >= 0)),
            check_nan=self.engine.check_nan,
        )

    def _source(self, work: Pass, size: int) -> tuple[Any, list[Batch], list[str], list[np.ndarray], list[Any]]:
        """Creates the table of a pass, with batches, argument columns, separately sent rows, and checksums."""
        checks: list[tuple[str, tuple[str, ...]]] = []
        row_columns: list[Any] = []
        sources, separate_rows, states = [], [], {}
        for x in work.rows:
            if isinstance(x, RemoteRows) and (state := self._states.get(x.name)) and state.size == size:
                states[state.path] = state
                sources.append(f"s{list(states).index(state.path)}{state.names[x.name]}")
            elif isinstance(x, ReadRows) and isinstance(x.reader, PackedClients):
                sources.append(f"c{x.index}")
            elif self._comes_with_the_server(x):
                sources.append("")
                separate_rows.append(to_host(x))
            else:
                sources.append(f"a{len(row_columns)}")
                row_columns.append(to_host(materialize([x])[0]) if isinstance(x, RemoteRows) else x)
        clients = next(
            (x.reader for x in work.rows if isinstance(x, ReadRows) and isinstance(x.reader, PackedClients)), None
        )
        frames = [clients.frame] if clients is not None else []
        if clients is not None:
            if clients.passes == 1:
                clients.frame.persist()  # read by a second pass, so the executors cache it from now on
            clients.passes += 1
            checks.append(("ccrc", tuple(f"c{i}" for i in range(len(clients.avals)))))
        named: list[Batch] | None = None
        if row_columns or not (frames or states):
            frame, named = self._sent(row_columns, work, size)
            frames.append(frame)
            checks.append(("acrc", tuple(f"a{i}" for i in range(len(row_columns)))))
        for number, state in enumerate(states.values()):
            named_columns = {column: f"s{number}{column}" for column in dict.fromkeys(state.names.values())}
            columns = [f"{column} as {name}" for column, name in named_columns.items()]
            frames.append(state.frame.selectExpr("number as batch", f"crc as s{number}crc", *columns))
            checks.append((f"s{number}crc", tuple(named_columns.values())))
        table = frames[0]
        for right in frames[1:]:
            table = table.join(right, "batch")
        if len(frames) > 1:
            table = table.sortWithinPartitions("batch")  # rounding must not depend on the order of completion
        ids = clients.ids if clients is not None else None
        batches_ = named if named is not None and ids is None else _named(work.clients, size, ids)
        return table, batches_, sources, separate_rows, checks

    def _comes_with_the_server(self, x: object) -> bool:
        if not isinstance(x, np.ndarray) or x.nbytes > MOST_SENT_BYTES:
            return False
        return id(x) not in self._input_ids and id(x.base) not in self._input_ids

    def _sent(self, arrays: Sequence[Any], work: Pass, size: int) -> tuple[Any, list[Batch]]:
        """Writes arrays, or a reader's clients, to a table of batches."""
        if any(isinstance(x, ReadRows) for x in arrays):
            return self._read_into_files(arrays, work, size)
        key = (work.clients, size, *((x.__array_interface__["data"], x.shape, x.strides) for x in arrays))
        named = _named(work.clients, size, None)
        if key in self._frames:
            frame, _ = self._frames[key]
            if not frame.is_cached:
                frame.persist()  # read by a second pass, so the executors cache it from now on
            return frame, named
        records = [_record(batch) for batch in work.batches(size, arrays)]
        frame = self._frame(records)
        self._frames[key] = frame, list(arrays)
        while len(self._frames) > 4:
            old, _ = self._frames.pop(next(iter(self._frames)))
            old.unpersist()
        return frame, named

    def _frame(self, records: list[Any]) -> Foreign:
        # Above 48 MB, Spark creates one partition from each batch of a table, so a few batches must hold all rows.
        step = max(1, math.ceil(len(records) / (4 * self.tasks)))
        tables = [pa.Table.from_batches(records[i : i + step]) for i in range(0, len(records), step)]
        batches = [batch for table in tables for batch in table.combine_chunks().to_batches()]
        with warnings.catch_warnings(action="ignore"):
            return self.session.createDataFrame(pa.Table.from_batches(batches))

    def _read_into_files(self, arrays: Sequence[Any], work: Pass, size: int) -> tuple[Any, list[Batch]]:
        """Reads clients one by one, so that this process never stores all of them."""
        self._check_folder()
        path = self.folder / f"clients-{next(self._numbers)}"
        path.mkdir(parents=True, exist_ok=True)
        count = max(1, math.ceil(math.ceil(work.clients / size) / (4 * self.tasks)))
        named, files, source = [], [], work.batches(size, arrays)
        while some := next(source, None):
            record = _record(some)
            files.append(str(path / f"part-{some.index:08d}.parquet"))
            with (
                whole_file(place(files[-1])) as file,
                pq.ParquetWriter(file, record.schema, compression="none", use_dictionary=False) as writer,
            ):
                for batch in (some, *itertools.islice(source, count - 1)):
                    writer.write_batch(_record(batch))
                    named.append(Batch(batch.index, batch.clients, []))
        return self._of_files(files), named

    def _guarded(
        self, work: Pass, named: Sequence[Batch], job: Callable[[], Result], look: Callable[[], None] = lambda: None
    ) -> Result:
        """Waits for a job; checks ten times a second whether the run was cancelled, and then cancels the job."""
        watched = work.watched(self.engine.name, self.engine.timeout_seconds)
        label = f"workbench: {work.recorder.name}, stage {work.stage}"
        with self._errors_reported(work, named):
            return _in_group(self.context, label, job, lambda: (look(), watched()))

    @contextlib.contextmanager
    def _errors_reported(self, work: Pass, named: Sequence[Batch] = ()) -> Iterator[None]:
        """Converts Spark errors to errors that name the stage and, if a worker named its batch, the clients."""
        try:
            yield
        except (EngineError, _Enough):
            raise
        except Exception as error:
            never_retries = re.fullmatch(r"local(\[[^,\]]*\])?", str(self.context.master))
            retry = (
                "Spark's local mode does not retry tasks by default: use `local[2,4]` to try each task up to four "
                "times. " * bool(never_retries)
            )
            advice = f"{retry}Check Spark's log, and whether the driver's JVM is still running"
            raise work.failed_elsewhere(error, named, "Spark job", self.engine.name, advice) from error

    def _take(self, work: Pass, named: Sequence[Batch], here: Sequence[Batch], spec: Foreign, table: Foreign) -> None:
        """Reads the replies of the batches, in order, and the merged partial results."""
        _check_answers(work, here, table)
        kinds, numbers, keys, parts = (table.column(n).to_pylist() for n in ("kind", "number", "key", "part"))
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i], numbers[i], keys[i], parts[i]))
        report = table.column("report")
        counted = {_worker.PARTIAL: [0] * len(_worker.COUNTS), _worker.KEYED: [0] * len(_worker.COUNTS)}
        partials: list[np.ndarray] | None = None
        groups = []
        replies = {numbers[i]: json.loads(report[i].as_py()) for i in order if kinds[i] == _worker.REPLY}
        for batch in named:
            if batch.index in replies:
                self._reply(work, batch, replies[batch.index])
            else:
                work.skip(batch, on_worker=True)
        for i in order:
            if kinds[i] == _worker.REPLY:
                continue
            names, shapes = _worker.merges_of(spec, kinds[i], numbers[i])
            values, counts = _worker.read_partial(table, i, shapes)
            counted[kinds[i]] = [a + b for a, b in zip(counted[kinds[i]], counts, strict=True)]
            if kinds[i] == _worker.KEYED:
                groups.append((numbers[i], keys[i], values[0]))
            else:
                partials = values if partials is None else merged(names, partials, values)
        work.check_partials(here, counted[_worker.PARTIAL], counted[_worker.KEYED][:2])
        totals = partials or [] if work.undecided else work.joined(partials or [], groups)
        work.reduced(totals, check_nan=self.engine.check_nan)
        work.hold([], self._bring, self._dropped)

    def _reply(self, work: Pass, batch: Batch, report: Sequence[Any]) -> None:
        where, seconds, compiling, sent_bytes, nan = report
        if nan is not None:
            output, slot = nan
            clients = batch.clients if slot is None else batch.clients[slot : slot + 1]
            raise work.nan(Batch(batch.index, clients, []), work.function(1).out_names[int(output)])
        work.recorder.warmup_seconds += compiling / self.tasks
        if compiling:
            work.recorder.note(f"stage {work.stage} was compiled on {where} in {compiling:.2f} s")
        work.add(batch, [], seconds=seconds, where=where, sent_bytes=sent_bytes, on_worker=True)

    def _hold(self, work: Pass, path: Path, size: int, here: Sequence[Batch]) -> None:
        """Registers the kept rows of a pass, which stay in the checkpointed table."""
        numbers = [batch.index for batch in here]
        apart = [] if work.cohorts is None else [x for i in numbers if (x := path / f"{i}.parquet").exists()]
        files = [str(x) for x in apart] or self._files.get(str(path), [str(path)])
        frame = self._of_files(files).where(f"kind = {_worker.REPLY}")
        names = {f"{path.name}-{i}": f"k{i}" for i in range(len(work.phase.kept))}
        self._states.update(dict.fromkeys(names, _State(path, frame, size, names, numbers)))
        work.hold(list(names), self._bring, self._dropped)

    def _dropped(self, name: str) -> None:
        state = self._states.pop(name, None)
        if state is not None and not any(peer is state for peer in self._states.values()):
            remove_tree(state.path)

    def _bring(self, remote_rows: Sequence[RemoteRows]) -> list[Any]:
        """Fetches rows that the server or the caller reads; the clients thereby disclose the rows."""
        recorder = self._recorder
        assert recorder is not None
        tables = {}
        arrays = []
        for rows in remote_rows:
            state = self._states[rows.name]
            if state.path not in tables:
                columns = list(dict.fromkeys(state.names.values()))
                tables[state.path] = self._asked(state.frame.select("number", "crc", *columns).toArrow, rows, recorder)
                _check_kept(tables[state.path], columns, state.numbers, rows)
            table, aval = tables[state.path], edge_aval(rows.aval)
            cells = dict(zip(table.column("number").to_pylist(), table.column(state.names[rows.name]), strict=True))
            shapes = _worker.shapes_of([jax.ShapeDtypeStruct((state.size, *aval.shape[1:]), aval.dtype)])
            parts = [
                _worker.decode(cells[i].as_buffer(), shapes)[0] if i in cells else absent_rows(aval, state.size)
                for i in range(math.ceil(rows.shape[0] / state.size))
            ]
            array = np.concatenate(parts)[: aval.shape[0]]
            recorder.left(rows.stage, rows.label, array, row=True, clients=aval.shape[0])
            arrays.append(from_edge(array, rows.aval.dtype))
        return arrays

    def _asked(self, fetch: Callable[[], Result], rows: RemoteRows, recorder: RunRecorder) -> Result:
        check = lambda: recorder.check(rows.stage, 1.0)  # noqa: E731
        try:
            return _in_group(self.context, f"workbench: {rows.label}", fetch, check)
        except EngineError:
            raise
        except Exception as error:
            message = (
                f"the rows {rows.label} of stage {rows.stage} could not be read from {self.engine.name}: "
                f"{brief(error)}. The server, or the caller of the program, reads these rows from the checkpointed "
                "table: check that all executors can read `folder`, or let the program reduce the rows."
            )
            raise EngineError(message, stage=rows.stage) from error

    def read(self, source: Foreign, struct: PyTree[Array]) -> PackedClients:
        """Packs the clients of a table on the executors, for a program's argument of these shapes."""
        try:
            self._check_folder()
            source = self._parquet(str(source)) if isinstance(source, str | Path) else source
            table = source if isinstance(source, ClientTable) else table_of_clients(source, struct)
            check_clients("`read_from`", table.clients, len(table.ids.unique()), struct)
            size = min(self.engine.clients_per_batch, table.clients)
            packed = self._stored(table.batches(size, self.tasks), self.folder / f"clients-{next(self._numbers)}")
            check_packed(packed.select("batch", "held", "rows").toArrow(), table.ids, size, table.length)
        except EngineError:
            raise
        except Exception as error:
            message = (
                f"`read_from` returned {source_fact(error, self.engine.name)}. A table needs a row for each "
                'client: the column "client" with its id, and a column for each leaf of its data, with the shapes that '
                "the program expects. Rename or add the columns, or pass another DataFrame as `read_from`."
            )
            raise EngineError(message) from error
        self._readers.append(PackedClients(packed.drop("held", "rows"), table.ids, struct, size))
        return self._readers[-1]

    def _parquet(self, path: str) -> Foreign:
        """Lists the files in a folder; rejects Delta tables, whose folders contain all versions."""
        hadoop = self._hadoop_of(path)
        log = hadoop and self.context._jvm.org.apache.hadoop.fs.Path(path, "_delta_log")
        if hadoop.exists(log) if hadoop else (place(path) / "_delta_log").exists():
            message = (
                f"`read_from` was given {path!r}, which is a Delta table: its folder also contains the files of "
                "earlier versions, and a path is read as plain Parquet. Pass a DataFrame of your session: "
                '`spark.read.format("delta").load(path)` if Delta\'s JARs are installed, or, for a table without '
                "deletion vectors, `spark.read.parquet(*deltalake.DeltaTable(path).file_uris())`."
            )
            raise EngineError(message)
        if hadoop:
            return self.session.read.parquet(path)
        files = sorted(str(file) for file in place(path).glob("**/*.parquet"))
        return self._of_files(files or [path])

    def _hadoop_of(self, path: str) -> Foreign:
        """Hadoop's file system for an address, or None if its JAR is missing (fsspec may support the address)."""
        try:
            return self.context._jvm.org.apache.hadoop.fs.Path(path).getFileSystem(
                self.context._jsc.hadoopConfiguration()
            )
        except Exception:
            if not hasattr(place(path), "fs"):
                raise
            return None

    def write(self, ids: Sequence[Any], rows: Mapping[str, np.ndarray], target: Foreign) -> None:
        table = pa.table({"client": pa.array(ids), **{name: _listed(x) for name, x in rows.items()}})
        if not callable(target) and self._hadoop_of(str(target)) is None:
            if any(place(target).glob("*")):
                raise FileExistsError(target)
            with whole_file(place(target) / "part-0.parquet") as file:
                pq.write_table(table, file)
            return
        with warnings.catch_warnings(action="ignore"):
            frame = self.session.createDataFrame(table)
        if callable(target):
            target(frame)
        else:
            frame.write.parquet(str(target))


class _Enough(Exception):
    """Raised if the round continues without the clients that have not answered; the message states the reason."""


def _check_answers(work: Pass, named: Sequence[Batch], table: Foreign) -> None:
    """Checks that every batch has answered exactly once."""
    kinds, numbers = table.column("kind").to_pylist(), table.column("number").to_pylist()
    times = Counter(number for kind, number in zip(kinds, numbers, strict=True) if kind == _worker.REPLY)
    missing = [client for batch in named if times[batch.index] == 0 for client in batch.clients]
    double = [client for batch in named if times[batch.index] > 1 for client in batch.clients]
    facts = [f"{name_clients(missing)} did not answer"] if missing else []
    facts += [f"{name_clients(double)} answered more than once"] if double else []
    if foreign := sorted(set(times) - {batch.index for batch in named}):
        facts.append(f"batches {foreign} do not belong to this pass")
    if facts:
        raise work.miscounted("; ".join(facts))


def _check_kept(table: Foreign, columns: Sequence[str], written: list[int], rows: RemoteRows) -> None:
    """Checks that all kept rows of a pass were read back exactly once and unchanged."""
    numbers = table.column("number").to_pylist()
    cells = zip(*(table.column(name) for name in columns), strict=True)
    sums = [_worker.crc_of([cell.as_buffer() for cell in row]) for row in cells]
    if sorted(numbers) == written and sums == table.column("crc").to_pylist():
        return
    message = (
        f"the rows {rows.label} of stage {rows.stage} were read back as {len(numbers)} batches "
        f"({len(set(numbers))} distinct), but {len(written)} batches were written. Each row in "
        "`folder` must be read once and unchanged: keep other programs out of this folder, and run again."
    )
    raise EngineError(message, stage=rows.stage)


def _in_group(context: Foreign, label: str, job: Callable[[], Result], check: Callable[[], Any]) -> Result:
    """Runs a job in a thread; cancels the job whenever waiting ends early."""
    group, future = f"workbench-{uuid.uuid4().hex}", concurrent.futures.Future[Result]()

    def target() -> None:
        try:
            context.setJobGroup(group, label, interruptOnCancel=True)
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    InheritableThread(target=target, daemon=True).start()
    try:
        while not concurrent.futures.wait([future], 0.1).done:
            check()
    finally:
        if not future.done():  # a JVM that does not answer must not block this thread
            cancelling = threading.Thread(target=_cancel, args=(context, group), daemon=True)
            cancelling.start()
            cancelling.join(5)
            concurrent.futures.wait([future], 5)
    return future.result()


def sent_once(context: Foreign, data: bytes) -> Foreign:
    """Sends bytes to each executor once. Short data are sent inline: a broadcast variable would cost more."""
    return _worker.Inline(data) if len(data) <= _MOST_INLINE_BYTES else context.broadcast(data)


def _cancel(context: Foreign, group: str) -> None:
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)


def _second_level(partitions: int) -> int:
    scale = max(math.ceil(math.sqrt(partitions)), 2)
    groups = math.ceil(partitions / scale)
    return groups if partitions > scale + groups else 0


def _named(clients: int, size: int, ids: Foreign = None) -> list[Batch]:
    names = range(clients) if ids is None else Names(ids)
    return [Batch(number, names[start : start + size], []) for number, start in enumerate(range(0, clients, size))]


def _record(batch: Batch) -> Foreign:
    for x in batch.rows:
        if x.nbytes > _MOST_CELL_BYTES:
            message = (
                f"`Spark` was given rows of {x.nbytes / 2**30:.1f} GiB in one batch of {len(batch.clients)} clients. "
                "A table cell can store at most 2 GiB: lower `clients_per_batch`."
            )
            raise EngineError(message)
    return _worker.record_of(batch.index, "a", [_worker.encode([x]) for x in batch.rows])


def _listed(x: np.ndarray) -> Foreign:
    """Converts rows to a column of numbers or flat lists; dtypes that Spark lacks become float32."""
    is_supported = x.dtype.kind in "biuf" and x.dtype.name not in ("float16", "bfloat16")
    plain = x if is_supported else x.astype(np.float32)
    return _worker.flat_column(plain)
