"""The Apache Spark engine, which runs each pass as a few coarse-grained jobs and the rounds in this process."""

# pyright: reportMissingImports=false

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
import jax.numpy as jnp
import numpy as np
from jax import Array

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.engines._arguments import argument_of_source, check_batch_size, check_folder
from workbench.engines._client_loop import Pass, name_clients
from workbench.engines._clients import COUNT, Batch, ClientReader, ReadRows
from workbench.engines._cohorts import Quorum, absent_rows, check_quorum
from workbench.engines._engine import Engine, table_of_clients
from workbench.engines._interpreter import PlanInterpreter
from workbench.engines._places import for_arrow, place, remove_tree, scratch_folder, whole_file
from workbench.engines._remote_rows import RemoteRows, materialize
from workbench.engines._run_recorder import Progress, RunRecorder, brief
from workbench.engines._stage import edge_aval, exported_stage, from_edge, to_host
from workbench.engines.spark import _session
from workbench.errors import EngineError, ProgramError
from workbench.plan import REDUCTION_OF, Plan
from workbench.primitives import by_key_p
from workbench.records.run import RunRecord

Result = TypeVar("Result")

_MERGE_NAMES: dict[Any, str] = {jnp.add: "add", jnp.maximum: "maximum", jnp.minimum: "minimum"}
_ON_THIS_MACHINE = r"local(\[|-cluster|$)"  # masters whose executors share the driver's file system
_MOST_MADE_BYTES = 8 * 2**20  # up to this size, rows computed by the server are sent with the server's values
# up to this size, values are sent in a job's function, once per executor; larger values are broadcast
_MOST_INLINE_BYTES = 2**20
_MOST_CELL_BYTES = 2**31 - 1  # size limit of a batch of rows, which is one JVM array
_NUMPY_TYPES = {
    **{"boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64"},
    **{"float": "float32", "double": "float64"},
}


class Spark(Engine):
    """Computes each pass over the clients as coarse-grained Apache Spark jobs (extra `spark`, and Java 17 or later).

    Each row of a DataFrame is a batch of clients, computed by `mapInArrow`. The server's values and the stage (as
    StableHLO) are sent as part of the job if they are at most 1 MiB, and as broadcast variables otherwise. Partial
    results are merged in three steps: within each partition, within groups of partitions, and in this process. The
    number of groups is about the square root of the number of partitions. `reduce_by_key` shuffles by key. Rows that a
    pass keeps for the clients, such as client state, are checkpointed to Parquet in `folder` and read by the next pass.
    These rows reach this process only when the server or the caller reads them. Executors cache arguments from the
    second pass on, and compile a stage once per Python process. A task returns the same bytes if it is computed again
    because its executor was lost or slow. Workers must be able to import `workbench`.

    A session that the engine starts listens only on the loopback interface. The session stops on `close()`, at the end
    of the `with` block, or when this process exits or is killed.

    Args (of the constructor):
        session: An existing `SparkSession`, or the master for a session that the first run starts, such as "local[2]",
            or "local-cluster[2,1,1024]" for executors in separate processes.
        conf: Spark settings for a session that the engine starts, such as {"spark.driver.memory": "4g"}. Use
            "spark.jars" for a table format's JARs.
        clients_per_batch: Number of clients that are computed together, in one row of the DataFrame.
        check_nan: Stop the run at the first NaN that a client returns, and name that client.
        folder: Folder for checkpointed rows and for the clients of a `ClientReader`, as a path that all executors can
            access or as an fsspec address such as "s3://bucket/tmp" (extra `storage`). Default: a temporary folder.
        read_from: A Parquet path or address, or a DataFrame (such as a Delta table), with a row for each client. The
            column "client" contains the client's id (str or int). Each leaf of the client's data has a column with the
            leaf's name ("x" in a dictionary, "c0" and so on by position in a tuple). The cells are numbers, nested or
            flat lists, or bytes. Pass the corresponding argument of `run` as shapes, a pytree of
            `jax.ShapeDtypeStruct((clients, ...), dtype)`. The executors read the table once per run.
        write_to: A path or address to which each client's row of every result is written as Parquet. Alternatively, a
            function that receives the rows as a DataFrame with columns "client", "out[0]" and so on.
        timeout_seconds: Stop the run if one pass takes longer than this. Default: wait as long as Spark runs.
        quorum: Once a quorum has answered, continue without the other clients, as in `Executor`. In the first pass
            of a round, every batch is a separate task, which writes its answer to a file in `folder`.
        deadline_seconds: Maximum time to wait for all clients, as in `Executor`.

    Raises:
        MissingDependencyError: if PySpark, PyArrow or Java is not installed.
        ProgramError: if a constructor argument has a wrong type.
        EngineError: if `session` is a Spark Connect session, which has no broadcast variables.

    References:
        BigDL: J. Dai et al., "BigDL: A Distributed Deep Learning Framework for Big Data", SoCC 2019.
        https://spark.apache.org/docs/latest/api/python/user_guide/sql/arrow_pandas.html
    """

    def __init__(
        self,
        session: Foreign = "local[2]",
        *,
        conf: Mapping[str, str] | None = None,
        clients_per_batch: int = 32,
        check_nan: bool = False,
        folder: str | Path | None = None,
        read_from: Foreign = None,
        write_to: str | Path | Callable[[Any], Any] | None = None,
        timeout_seconds: float | None = None,
        quorum: int | float | None = None,
        deadline_seconds: float | None = None,
    ) -> None:
        self.quorum: Quorum | None = check_quorum("Spark", quorum, deadline_seconds)
        _session.check_libraries()
        check_folder("Spark", folder)
        _check(session, conf, clients_per_batch)
        self.session: Foreign = session
        self.conf: dict[str, str] = dict(conf or {})
        self.clients_per_batch: int = clients_per_batch
        self.check_nan: bool = check_nan
        self.folder: str | Path | None = folder
        self.read_from: Foreign = read_from
        self.write_to: str | Path | Callable[[Any], Any] | None = write_to
        self.timeout_seconds: float | None = timeout_seconds
        self.name: str = f"spark ({session if isinstance(session, str) else session.sparkContext.master})"
        self._started: _session.Started | None = None
        self._own: tuple[Any, Any] | None = None  # the given session, and the session that the engine starts
        self._jobs: _Jobs | None = None
        self._lock = threading.Lock()  # only one run at a time uses the folder and the frames

    def __enter__(self) -> "Spark":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the session and its JVM if the engine started them; the next run restarts them."""
        started, self._started = self._started, None
        if started is not None:
            _session.stop(started)

    def run(
        self, fn: Callable, *args: object, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> RunRecord:
        """Runs a program; with `read_from`, pass one argument as shapes. See `Engine.run`."""
        with self._lock, scratch_folder("workbench-", self.folder) as folder:
            jobs = self._jobs = _Jobs(self._opened(), folder, self)
            try:
                if self.read_from is not None:
                    args = tuple(jobs.read_clients(args, self.read_from))
                args = tuple(jobs.packed(x) if isinstance(x, _Examples) else x for x in args)
                record, walk = self._ran(fn, args, progress, cancel)
                if self.write_to is not None:
                    self._write(record, walk, jobs)
                return record
            finally:
                self._jobs = None
                jobs.forget()

    @contextlib.contextmanager
    def read(self, clients: ClientReader) -> Iterator[ClientReader]:
        """Packs the clients of a Spark table once, for all runs of this engine in the `with` block.

        Args:
            clients: The result of `clients_from` for a DataFrame in this engine's session.

        Raises:
            ProgramError: if `clients` does not read a Spark table.
        """
        if not isinstance(clients, _Examples):
            message = (
                f"`Spark.read` was given an object of type {type(clients).__name__}. `Spark.read` packs the clients of "
                "a Spark table on the executors: call `clients_from` on the Spark DataFrame, and pass its result."
            )
            raise ProgramError(message)
        with scratch_folder("workbench-", self.folder) as folder:
            jobs = _Jobs(self._opened(), folder, self)
            try:
                yield jobs.packed(clients)
            finally:
                jobs.forget()

    def predict(
        self,
        frame: Foreign,
        fn: Callable[..., Array],
        *values: PyTree[Array],
        columns: str | Sequence[str],
        out: str = "prediction",
        rows_per_batch: int = 1024,
    ) -> Foreign:
        """Adds a column with `fn(*values, row)` for each row of a table.

        The executors compute the rows in batches of fixed size, when the result is used. Each Python worker compiles
        `fn` once.

        Args:
            frame: A Spark DataFrame.
            fn: Function of the values and one row, which returns one array.
            *values: Pytrees of arrays, such as the weights of a model.
            columns: One or several columns with numbers, or with lists of numbers whose length is the same in every
                row. `fn` receives a single column as an array, and several columns as a dictionary.
            out: Name of the new column, which contains a number or a flat list of numbers for each row.
            rows_per_batch: Number of rows that a worker processes together.

        Returns:
            The DataFrame with the new column.

        Raises:
            ProgramError: if the table has no rows, a column is missing or has no numbers, `out` is already a column, or
                `fn` does not return one array of numbers.
            EngineError: if `fn` calls back into Python.
        """
        from workbench.engines.spark._worker import Inline, Predict, shapes_of

        check_batch_size("Spark.predict", "a batch of rows", rows_per_batch, option="rows_per_batch")
        names = [columns] if isinstance(columns, str) else list(columns)
        rows = _columns_of(frame, names, out)
        row = rows[0] if isinstance(columns, str) else dict(zip(names, rows, strict=True))
        leaves, tree = jax.tree.flatten(values)
        leaves = [to_host(x) for x in leaves]

        def batch(_: Array, *arrays: Array) -> list[Array]:
            inputs = arrays[0] if isinstance(columns, str) else dict(zip(names, arrays[: len(names)], strict=True))
            model = jax.tree.unflatten(tree, arrays[len(names) :])
            return [jax.vmap(lambda row: fn(*model, row))(inputs)]

        result = jax.eval_shape(fn, *values, row)
        kind = {numpy: sql for sql, numpy in _NUMPY_TYPES.items()}.get(str(getattr(result, "dtype", "")))
        if kind is None:
            message = (
                f"`Spark.predict` was given a function that returns {result}. A table column has one array of numbers "
                f"for each row, with one of the dtypes {', '.join(_NUMPY_TYPES.values())}: return one such array."
            )
            raise ProgramError(message)
        full = [jax.ShapeDtypeStruct((rows_per_batch, *x.shape), x.dtype) for x in rows]
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        name = getattr(fn, "__name__", type(fn).__name__)
        digest, stage = exported_stage(batch, [jax.ShapeDtypeStruct((), np.int32), *full, *avals], name, "predict")
        context = frame.sparkSession.sparkContext
        send = lambda data: Inline(data) if len(data) <= _MOST_INLINE_BYTES else context.broadcast(data)  # noqa: E731
        work = Predict(digest, send(stage), send(_encoded(leaves)), shapes_of(leaves), names, shapes_of(full))
        schema = frame.selectExpr("*", f"cast(null as {f'array<{kind}>' if result.shape else kind}) as `{out}`").schema
        return frame.mapInArrow(work, schema)

    def _opened(self) -> Foreign:
        """Creates a session whose settings are separate from those of the user's session."""
        if isinstance(self.session, str):
            if self._started is not None and not _session.alive(self._started):
                self.close()
            self._started = self._started or _session.start(self.session, self.conf)
            session = self._started.session
        else:
            session = self.session
        if self._own is not None and self._own[0] is session:
            return self._own[1]
        new_session = session.newSession()
        tasks = max(2, session.sparkContext.defaultParallelism)
        for name, value in {
            "spark.sql.adaptive.enabled": "false",  # Spark would combine batches by bytes, not by work
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "8",  # a row is a batch of clients, so it takes megabytes
            "spark.sql.parquet.columnarReaderBatchSize": "8",
            "spark.sql.inMemoryColumnarStorage.batchSize": "8",
            "spark.sql.inMemoryColumnarStorage.compressed": "false",
            "spark.sql.shuffle.partitions": str(tasks),
        }.items():
            new_session.conf.set(name, value)
        self._own = session, new_session
        return new_session

    def _begin(self, plan: Plan, inputs: list[Any], recorder: RunRecorder) -> None:
        assert self._jobs is not None
        self._jobs.begin(inputs, recorder)

    def _compute(self, work: Pass) -> None:
        assert self._jobs is not None
        self._jobs.compute(work)

    def _write(self, record: RunRecord, walk: PlanInterpreter, jobs: "_Jobs") -> None:
        ids, rows = table_of_clients("Spark", record, walk)
        try:
            jobs.write(ids, rows, self.write_to)
        except Exception as error:
            message = (
                f"`write_to` failed for the results of `{record.name}` on {self.name}: {brief(error)}. `write_to` must "
                f'be a new path, or a function of a DataFrame with the columns "client", '
                f"{', '.join(map(repr, rows))}: choose another path, or correct the function. "
                "The results are in this error's `run`."
            )
            raise EngineError(message, run=record) from error


@dataclasses.dataclass
class _State:
    """Rows that a pass kept for the clients, as a checkpointed table and its columns."""

    path: Path
    frame: Foreign
    size: int
    names: dict[str, str]  # name of kept rows → column
    numbers: list[int]  # of its batches


class _Jobs:
    """State of one run in Spark, and the jobs of its passes."""

    def __init__(self, session: Foreign, folder: Path, engine: Spark) -> None:
        self.session, self.folder, self.engine = session, folder, engine
        self.context = session.sparkContext
        self.tasks = max(1, self.context.defaultParallelism)
        self._stages: dict[str, Any] = {}
        self._frames: dict[Any, tuple[Any, list[Any]]] = {}  # keyed by the address of the arrays in the list
        self._states: dict[str, _State] = {}
        self._files: dict[str, list[str]] = {}
        self._readers: list[_Clients] = []
        self._input_ids: set[int] = set()
        self._recorder: RunRecorder | None = None
        self._numbers = iter(range(2**62))
        self._table: tuple[Any, tuple[Any, ...]] | None = None
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
                _forget(stage)

    def _check_folder(self) -> None:
        """Checks that every executor can access the folder of this run."""
        if self._folder_is_shared or re.match(_ON_THIS_MACHINE, str(self.context.master)):
            return
        from workbench.engines.spark._worker import See

        mark, text = self.folder / "mark", uuid.uuid4().hex
        mark.write_text(text)
        tasks = 4 * self.tasks  # several tasks for each executor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers = self.session.range(0, tasks, 1, tasks).mapInArrow(See(str(mark), text), "fact string")
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
                self._stages[digest] = self._sent_once(stage)
            server = self._sent_once(_encoded([*work.shared, *separate_rows]))
            if len(here := self._here(work, named, size)) < len(named):
                frame = frame.where(frame.batch.isin([batch.index for batch in here]))
        work.recorder.stage(work.stage, "sending rows", time.perf_counter() - started)
        started = time.perf_counter()
        path = self.folder / f"rows-{next(self._numbers)}" if spec.kept or work.undecided else None
        if path is not None:
            self._check_folder()
        compute = self._computed_apart if work.undecided else self._computed
        try:
            with self._errors_reported(work), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PySpark 4.3 warns about pandas 3, although no plan uses pandas
                table = compute(work, named, spec, frame, server, path)
        finally:
            with contextlib.suppress(Exception):
                _forget(server)
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
        """Returns the batches of the clients that take part in the round."""
        return [batch for batch in named if not work.is_out(batch, size)]

    def _computed(
        self, work: Pass, named: Sequence[Batch], spec: Foreign, frame: Foreign, server: Foreign, path: Path | None
    ) -> Foreign:
        """Computes the answers of all batches; kept rows are stored in the folder `path`."""
        from workbench.engines.spark._worker import Compute, Merge, column_names, schema_of

        computed = frame.mapInArrow(Compute(spec, self._stages[spec.digest], server), schema_of(spec.kept))

        def job() -> Foreign:
            rows = computed
            if path is not None:
                rows = self._stored(rows, path).select(*column_names())
            if spec.groups:
                level = rows.repartition(spec.groups, "grp").sortWithinPartitions("kind", "number", "key", "part")
                rows = level.mapInArrow(Merge(spec), rows.schema)
            return rows.toArrow()

        return self._guarded(work, named, job)

    def _computed_apart(
        self, work: Pass, named: Sequence[Batch], spec: Foreign, frame: Foreign, server: Foreign, path: Path | None
    ) -> Foreign:
        """Collects answers, which are files in the folder `path`, until the round can continue."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from workbench.engines.spark._worker import ComputeApart, column_names

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

        apart = ComputeApart(spec, self._stages[spec.digest], server, str(path))
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
        return pa.concat_tables(pq.read_table(**file, columns=column_names()) for file in files)

    def _stored(self, frame: Foreign, path: Path) -> Foreign:
        """Writes a frame to a folder on the executors, and reads it back."""
        from workbench.engines.spark._worker import WriteFiles

        if not hasattr(path, "fs"):
            frame.write.parquet(str(path))
            return self.session.read.schema(frame.schema).parquet(str(path))  # without a job that reads the schema
        written = frame.mapInArrow(WriteFiles(str(path)), "file string").toArrow()
        files = self._files[str(path)] = written.column("file").to_pylist()  # without files of failed attempts
        return self._of_files(files, frame.schema)

    def _of_files(self, files: Sequence[str], schema: Foreign = None) -> Foreign:
        """Reads Parquet files as a frame.

        If Spark supports the file system only with extra JARs, the workers read the files instead.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import from_arrow_schema

        from workbench.engines.spark._worker import ReadFiles

        if not hasattr(place(files[0]), "fs"):
            return self.session.read.parquet(*files)
        schema = schema or from_arrow_schema(pq.ParquetFile(**for_arrow(place(files[0]))).schema_arrow)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = self.session.createDataFrame(pa.table({"file": sorted(files)})).repartition(len(files))
        return names.mapInArrow(ReadFiles(), schema)

    def _sent_once(self, data: bytes) -> Foreign:
        """Sends bytes to each executor once; few bytes are sent inline, which costs less than a broadcast variable."""
        from workbench.engines.spark._worker import Inline

        return Inline(data) if len(data) <= _MOST_INLINE_BYTES else self.context.broadcast(data)

    def _spec(
        self, work: Pass, size: int, digest: str, sources: Sequence[str], separate_rows: Sequence[Any], checks: Foreign
    ) -> Foreign:
        from workbench.engines.spark._worker import SparkPass, shapes_of

        function = work.function(size)
        count = len(work.phase.rows)
        equations = [step.equation for step in work.phase.reductions]
        keyed = tuple(
            e.params["batch_dims"] if e.primitive is by_key_p and not work.undecided else -1 for e in equations
        )
        partitions = min(self.tasks, math.ceil(work.clients / size))
        return SparkPass(
            digest=digest,
            size=size,
            sources=tuple(sources),
            checks=tuple(checks),
            rows=shapes_of(function.in_avals[1 : 1 + count]),
            made=shapes_of(separate_rows),
            shared=shapes_of(function.in_avals[1 + count :]),
            partial=shapes_of(work.partial_avals),
            kept=len(work.phase.kept),
            merges=tuple(_MERGE_NAMES[REDUCTION_OF[e.primitive].merge] for e in equations),
            keyed=keyed,
            groups=0
            if work.undecided
            else max(_second_level(partitions), partitions if any(axis >= 0 for axis in keyed) else 0),
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
            elif isinstance(x, ReadRows) and isinstance(x.reader, _Clients):
                sources.append(f"c{x.index}")
            elif self._comes_with_the_server(x):
                sources.append("")
                separate_rows.append(to_host(x))
            else:
                sources.append(f"a{len(row_columns)}")
                row_columns.append(to_host(materialize([x])[0]) if isinstance(x, RemoteRows) else x)
        clients = next(
            (x.reader for x in work.rows if isinstance(x, ReadRows) and isinstance(x.reader, _Clients)), None
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
        if not isinstance(x, np.ndarray) or x.nbytes > _MOST_MADE_BYTES:
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
        import pyarrow as pa

        # Above 48 MB, Spark creates one partition from each batch of a table, so a few batches must hold all rows.
        step = max(1, math.ceil(len(records) / (4 * self.tasks)))
        tables = [pa.Table.from_batches(records[i : i + step]) for i in range(0, len(records), step)]
        batches = [batch for table in tables for batch in table.combine_chunks().to_batches()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.session.createDataFrame(pa.Table.from_batches(batches))

    def _read_into_files(self, arrays: Sequence[Any], work: Pass, size: int) -> tuple[Any, list[Batch]]:
        """Reads clients one by one, so that this process never stores all of them."""
        import pyarrow.parquet as pq

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

        def check() -> None:
            look()
            watched()

        label = f"workbench: {work.recorder.name}, stage {work.stage}"
        with self._errors_reported(work, named):
            return _in_group(self.context, label, job, check)

    @contextlib.contextmanager
    def _errors_reported(self, work: Pass, named: Sequence[Batch] = ()) -> Iterator[None]:
        """Converts Spark errors to errors that name the stage and, if a worker named its batch, the clients."""
        try:
            yield
        except (EngineError, _Enough):
            raise
        except Exception as error:
            match = re.search(r"\[batch (\d+)\] ([^\n]*)", str(error))
            if match is not None and named:
                raise work.failed(named[int(match[1])], RuntimeError(match[2]), self.engine.name) from error
            never_retries = re.fullmatch(r"local(\[[^,\]]*\])?", str(self.context.master))
            retry = (
                " Spark's local mode does not retry tasks by default: use `local[2,4]` to try each task up to four "
                "times." * bool(never_retries)
            )
            message = (
                f"stage {work.stage} (`{work.name}`) failed in its Spark job on {self.engine.name}: {brief(error)}. No "
                f"executor reported which clients failed.{retry} Check Spark's log, and whether the driver's JVM is "
                "still running; finished rounds are in this error's `run`."
            )
            raise EngineError(message, stage=work.stage) from error

    def _take(self, work: Pass, named: Sequence[Batch], here: Sequence[Batch], spec: Foreign, table: Foreign) -> None:
        """Reads the replies of the batches, in order, and the merged partial results."""
        from workbench.engines.spark._worker import COUNTS, KEYED, PARTIAL, REPLY, merge, merges_of, read_partial

        _check_answers(work, here, table)
        kinds, numbers, keys, parts = (table.column(n).to_pylist() for n in ("kind", "number", "key", "part"))
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i], numbers[i], keys[i], parts[i]))
        report = table.column("report")
        counted = {PARTIAL: [0] * len(COUNTS), KEYED: [0] * len(COUNTS)}
        partials: list[np.ndarray] | None = None
        tables = {
            number: np.array(REDUCTION_OF[by_key_p].start(step.equation))
            for number, step in enumerate(work.phase.reductions)
            if spec.keyed[number] >= 0
        }
        replies = {numbers[i]: json.loads(report[i].as_py()) for i in order if kinds[i] == REPLY}
        for batch in named:
            if batch.index in replies:
                self._reply(work, batch, replies[batch.index])
            else:
                work.skip(batch, on_worker=True)
        for i in order:
            if kinds[i] == REPLY:
                continue
            names, shapes = merges_of(spec, kinds[i], numbers[i])
            values, counts = read_partial(table, i, shapes)
            counted[kinds[i]] = [a + b for a, b in zip(counted[kinds[i]], counts, strict=True)]
            if kinds[i] == KEYED:
                (groups,) = (np.moveaxis(tables[numbers[i]], spec.keyed[numbers[i]], 0),)
                groups[keys[i]] = values[0]
            else:
                partials = values if partials is None else merge(names, partials, values)
        work.check_partials(here, counted[PARTIAL], counted[KEYED][:2])
        merged = iter(partials or ())
        totals = [tables[i] if i in tables else next(merged) for i in range(len(work.phase.reductions))]
        work.reduced(totals, check_nan=self.engine.check_nan)
        work.hold([])

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
        from workbench.engines.spark._worker import REPLY

        numbers = [batch.index for batch in here]
        apart = [] if work.cohorts is None else [x for i in numbers if (x := path / f"{i}.parquet").exists()]
        files = [str(x) for x in apart] or self._files.get(str(path), [str(path)])
        frame = self._of_files(files).where(f"kind = {REPLY}")
        names = {f"{path.name}-{i}": f"k{i}" for i in range(len(work.phase.kept))}
        state = _State(path, frame, size, names, numbers)
        row_list = []
        for (name, _), v, label in zip(state.names.items(), work.phase.kept, work.function(1).out_names, strict=False):
            self._states[name] = state
            made_by = work.stage, label
            rows = RemoteRows(
                name, v.aval, work.phase.placement, made_by=made_by, bring=self._bring, dropped=self._dropped
            )
            row_list.append(rows)
        work.hold(row_list)

    def _dropped(self, name: str) -> None:
        state = self._states.pop(name, None)
        if state is not None and not any(peer is state for peer in self._states.values()):
            remove_tree(state.path)

    def _bring(self, remote_rows: Sequence[RemoteRows]) -> list[Any]:
        """Fetches rows that the server or the caller reads; the clients thereby disclose the rows."""
        from workbench.engines.spark._worker import decode, shapes_of

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
            shapes = shapes_of([jax.ShapeDtypeStruct((state.size, *aval.shape[1:]), aval.dtype)])
            parts = [
                decode(cells[i].as_buffer(), shapes)[0] if i in cells else absent_rows(aval, state.size)
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

    def read_clients(self, args: Sequence[Any], source: object) -> list[Any]:
        """Reads the table on the executors, for the argument that was passed as shapes."""
        position = argument_of_source("Spark", "table", args)
        reader = self._read(source, args[position])
        return [reader if i == position else x for i, x in enumerate(args)]

    def packed(self, clients: "_Examples") -> ClientReader:
        """Packs the clients of a table on the executors."""
        return self._read(clients, clients.struct)

    def _read(self, source: object, struct: PyTree[Array]) -> "_Clients":
        try:
            return self._packed(source, struct)
        except EngineError:
            raise
        except Exception as error:
            fact = re.search(r"\[source\] ([^\n]*)", str(error))
            message = (
                f"`read_from` returned {fact[1] if fact else 'an error'} on {self.engine.name}"
                f"{'' if fact else ': ' + brief(error)}. "
                'A table needs a row for each client: the column "client" with its id, and a column for each leaf of '
                "its data, with the shapes that the program expects. Rename or add the columns, or "
                "pass another DataFrame as `read_from`."
            )
            raise EngineError(message) from error

    def _packed(self, source: Foreign, struct: PyTree[Array]) -> "_Clients":
        from workbench.engines.spark._worker import Pack

        self._check_folder()
        columns = leaf_names(struct)
        (clients,) = {x.shape[0] for x in jax.tree.leaves(struct)}
        size = min(self.engine.clients_per_batch, clients)
        if isinstance(source, _Examples):
            ids, rows = source.ids, source.examples
            in_batches = partial(source.batches, size, self.tasks)
        else:
            table, rows = self._parquet(str(source)) if isinstance(source, str | Path) else source, clients
            if missing := [name for name in ["client", *columns] if name not in table.columns]:
                message = f"[source] no column {', '.join(map(repr, missing))} among {table.columns}"
                raise ValueError(message)
            ids = table.select("client").toArrow().column("client").combine_chunks().sort()
            table = table.select("client", *(f"`{name}`" for name in columns))
            pack = Pack(columns, _shapes_in(struct), size)
            in_batches = partial(_in_batches, table, ids, size, self.tasks, pack)
        if len(ids) != clients or len(ids.unique()) != clients:
            message = (
                f"`read_from` returned {len(ids)} clients, {len(ids.unique())} of them distinct, but the program has "
                f"{clients}. Each client must be in the table exactly once: correct the table, or the shapes and "
                "`clients` of the program."
            )
            raise EngineError(message)
        path = self.folder / f"clients-{next(self._numbers)}"
        packed = self._stored(in_batches(), path)
        _check_packed(packed.select("batch", "held", "rows").toArrow(), ids, size, rows)
        self._readers.append(_Clients(packed.drop("held", "rows"), ids, struct, size))
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
        """Writes every client's rows to a table."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"client": pa.array(ids), **{name: _listed(x) for name, x in rows.items()}})
        if not callable(target) and self._hadoop_of(str(target)) is None:
            if any(place(target).glob("*")):
                raise FileExistsError(target)
            with whole_file(place(target) / "part-0.parquet") as file:
                pq.write_table(table, file)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = self.session.createDataFrame(table)
        if callable(target):
            target(frame)
        else:
            frame.write.parquet(str(target))


class _Enough(Exception):
    """Raised if the round continues without the clients that have not answered; the message states the reason."""


class _Clients(ClientReader):
    """Clients packed by executors into batches; read in this process only if the server needs them."""

    def __init__(self, frame: Foreign, ids: Foreign, struct: PyTree[Array], size: int) -> None:
        self.frame, self.ids, self.size, self.clients = frame, ids, size, len(ids)
        leaves, self.structure = jax.tree.flatten(struct)
        kinds = [jax.dtypes.canonicalize_dtype(x.dtype) for x in leaves]
        self.avals = tuple(jax.ShapeDtypeStruct(x.shape[1:], kind) for x, kind in zip(leaves, kinds, strict=True))
        self.passes = 0  # that read the frame

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Reads the clients in this process."""
        return _rows_of(self.frame, self.ids, self.struct, self.size)


class _Names(Sequence[Any]):
    """The ids of clients in an Arrow array, which takes less memory than Python objects."""

    def __init__(self, ids: Foreign) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Names) and self.ids.equals(other.ids)

    def __hash__(self) -> int:
        return hash((len(self), *(self.ids[at].as_py() for at in (0, -1) if len(self))))

    def __getitem__(self, key: Any) -> Any:
        return _Names(self.ids[key]) if isinstance(key, slice) else self.ids[key].as_py()


def _rows_of(frame: Foreign, ids: Foreign, struct: PyTree[Array], size: int) -> Iterator[tuple[Any, Any]]:
    """Reads packed clients in this process."""
    from workbench.engines.spark._worker import decode

    tree, shapes = jax.tree.structure(struct), [(name, (size, *shape)) for name, shape in _shapes_in(struct)]
    for row in frame.sort("batch").toLocalIterator():
        batch = [decode(bytes(row[f"c{i}"]), (shape,))[0] for i, shape in enumerate(shapes)]
        for slot, identity in enumerate(ids.slice(row["batch"] * size, size).to_pylist()):
            yield identity, jax.tree.unflatten(tree, [x[slot] for x in batch])


def _shapes_in(struct: PyTree[Array]) -> Foreign:
    """Dtypes and shapes of one client's leaves."""
    from workbench.engines.spark._worker import shapes_of

    return shapes_of([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in jax.tree.leaves(struct)])


def _in_batches(
    table: Foreign, ids: Foreign, size: int, tasks: int, work: Foreign, order: Sequence[str] = ()
) -> Foreign:
    """Sorts the rows of a table by client, and packs batches of clients."""
    import pyarrow as pa

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = table.sparkSession.createDataFrame(pa.table({"client": ids, "index": pa.array(np.arange(len(ids)))}))
        if ids.nbytes <= _MOST_MADE_BYTES:
            index = index.hint("broadcast")  # saves a shuffle of the rows
        view = table.join(index, "client").selectExpr("*", f"cast(floor(index / {size}) as int) as batch")
        view = view.repartition(tasks, "batch").sortWithinPartitions("index", *order)
        cells = (f"c{i} binary" for i in range(len(work.leaves)))
        return view.mapInArrow(
            work, ", ".join(["batch int", "held array<bigint>", "rows bigint", "ccrc bigint", *cells])
        )


class _Examples(ClientReader):
    """Clients of a table with one row per example; `Spark` packs them on the executors.

    The columns of the table are "client", "v0", "v1" and so on, and "at" if the examples have an order.
    """

    def __init__(
        self, frame: Foreign, ids: Foreign, examples: int, struct: dict[str, jax.ShapeDtypeStruct], most: int | None
    ) -> None:
        self.frame, self.ids, self.examples, self.clients, self.most = frame, ids, examples, len(ids), most
        self.structure, self.avals = jax.tree.structure(struct), tuple(jax.tree.leaves(struct))

    def batches(self, size: int, tasks: int) -> Foreign:
        """The packed clients, as a frame."""
        from workbench.engines.spark._worker import PackExamples

        work = PackExamples(leaf_names(self.struct), _shapes_in(self.struct), size, self.most)
        return _in_batches(self.frame, self.ids, size, tasks, work, ["at"] if "at" in self.frame.columns else [])

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Reads the clients in this process."""
        tasks = max(1, self.frame.sparkSession.sparkContext.defaultParallelism)
        return _rows_of(self.batches(1, tasks), self.ids, self.struct, 1)


def table_of_examples(
    frame: Foreign, by: str, names: Sequence[str], order: str | None, length: int | None
) -> ClientReader:
    """Reads clients from a Spark table of examples; executors group, order and pad them.

    Raises:
        ProgramError: if the table has no rows, or if a column has an unsupported type.
    """
    from pyarrow import compute
    from pyspark.sql import functions

    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    inner = {name: re.fullmatch(r"(array<)?(\w+)(?(1)>)", types[name]) for name in names}
    lists = [name for name, kind in inner.items() if kind and kind[1]]
    wrong = [f"{name}: {types[name]}" for name, kind in inner.items() if not kind or kind[2] not in _NUMPY_TYPES]
    sizes = [functions.expr(f"{f}(size(`{name}`)) as `{f} {name}`") for name in lists for f in ("min", "max")]
    groups = frame.groupBy(functions.col(f"`{by}`").alias("client")).agg(functions.count("*").alias(COUNT), *sizes)
    table = groups.toArrow().sort_by("client")
    clients, ids, counts = len(table), table.column("client").combine_chunks(), table.column(COUNT).to_numpy()
    extremes = ((name, [table.column(f"{f} {name}") for f in ("min", "max")]) for name in lists)
    pairs = {name: (compute.min(low).as_py(), compute.max(high).as_py()) for name, (low, high) in extremes}
    wrong += [f"{name}: lists of {low} to {high} numbers" for name, (low, high) in pairs.items() if low != high]
    if wrong or not clients:
        message = (
            f"`clients_from` was given a Spark table of {clients} clients with {'; '.join(wrong) or names}. The "
            "table must have at least one client, and its columns must contain numbers, or lists of numbers of the "
            "same length in every row: cast the columns, or choose others with `columns`."
        )
        raise ProgramError(message)
    truncates, length = length is not None, int(counts.max()) if length is None else length
    struct = {COUNT: jax.ShapeDtypeStruct((), np.int32)}
    for name in names:
        dtype = jax.dtypes.canonicalize_dtype(_NUMPY_TYPES[inner[name][2]])  # pyright: ignore[reportOptionalSubscript]
        struct[name] = jax.ShapeDtypeStruct((length, *pairs.get(name, ())[1:]), dtype)
    columns = [f"`{by}` as client", *(f"`{name}` as v{i}" for i, name in enumerate(sorted(names)))]
    used = frame.selectExpr(*columns, *([f"`{order}` as at"] if order else []))
    return _Examples(used, ids, int(counts.sum()), struct, None if truncates else length)


def _columns_of(frame: Foreign, names: Sequence[str], out: str) -> list[jax.ShapeDtypeStruct]:
    """Shape and dtype of one row, for the given columns."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    inner = [re.fullmatch(r"(array<)?(\w+)(?(1)>)", types.get(name, "")) for name in names]
    good = names and out not in types and all(kind and kind[2] in _NUMPY_TYPES for kind in inner)
    first = frame.select(*(f"`{name}`" for name in names)).first() if good else None
    if first is None or any(value is None for value in first):
        message = (
            f"`Spark.predict` was given columns={list(names)} and out={out!r}, for a table with the columns {types}. "
            "The table must have at least one row. The columns must contain numbers or lists of numbers, without "
            "missing values, and `out` must be a new column: choose other columns, cast them, or fill missing values."
        )
        raise ProgramError(message)
    kinds = [jax.dtypes.canonicalize_dtype(_NUMPY_TYPES[kind[2]]) for kind in inner]  # pyright: ignore
    shapes = [(len(value),) if kind[1] else () for kind, value in zip(inner, first, strict=True)]  # pyright: ignore
    return [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]


def leaf_names(struct: object) -> list[str]:
    """The column of each leaf, which is its key in a dictionary, or else "c" and its position."""
    paths, _ = jax.tree_util.tree_flatten_with_path(struct)
    names = []
    for number, (path, _) in enumerate(paths):
        keys = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        names.append("_".join(keys) if len(keys) == len(path) and keys else f"c{number}")
    return names


def _check_answers(work: Pass, named: Sequence[Batch], table: Foreign) -> None:
    """Checks that every batch has answered exactly once."""
    from workbench.engines.spark._worker import REPLY

    kinds, numbers = table.column("kind").to_pylist(), table.column("number").to_pylist()
    times = Counter(number for kind, number in zip(kinds, numbers, strict=True) if kind == REPLY)
    missing = [client for batch in named if times[batch.index] == 0 for client in batch.clients]
    double = [client for batch in named if times[batch.index] > 1 for client in batch.clients]
    facts = [f"{name_clients(missing)} did not answer"] if missing else []
    facts += [f"{name_clients(double)} answered more than once"] if double else []
    facts += (
        [f"batches {foreign} do not belong to this pass"]
        if (foreign := sorted(set(times) - {batch.index for batch in named}))
        else []
    )
    if facts:
        raise work.miscounted("; ".join(facts))


def _check_kept(table: Foreign, columns: Sequence[str], written: list[int], rows: RemoteRows) -> None:
    """Checks that all kept rows of a pass were read back exactly once and unchanged."""
    from workbench.engines.spark._worker import crc_of

    numbers = table.column("number").to_pylist()
    cells = zip(*(table.column(name) for name in columns), strict=True)
    sums = [crc_of([cell.as_buffer() for cell in row]) for row in cells]
    if sorted(numbers) == written and sums == table.column("crc").to_pylist():
        return
    message = (
        f"the rows {rows.label} of stage {rows.stage} were read back as {len(numbers)} batches "
        f"({len(set(numbers))} distinct), but {len(written)} batches were written. Each row in "
        "`folder` must be read once and unchanged: keep other programs out of this folder, and run again."
    )
    raise EngineError(message, stage=rows.stage)


def _check_packed(table: Foreign, ids: Foreign, size: int, rows: int) -> None:
    """Checks that reading the data from the frame returned the same clients as reading the ids."""
    numbers, lists = table.column("batch").to_numpy(), table.column("held").combine_chunks()
    indices, count = lists.flatten().to_numpy(), int(table.column("rows").to_numpy().sum())
    placed = np.array_equal(indices // size, np.repeat(numbers, lists.value_lengths().to_numpy()))
    times = np.bincount(indices, minlength=len(ids))
    if len(set(numbers)) == len(numbers) and placed and (times == 1).all() and count == rows:
        return
    missing = ids.take(np.flatnonzero(times == 0)).to_pylist()
    double = ids.take(np.flatnonzero((times > 1) | (len(set(numbers)) < len(numbers)))).to_pylist()
    facts = [f"{name_clients(some)} {label}" for some, label in ((missing, "missing"), (double, "double")) if some]
    facts = facts or [f"{count} rows instead of {rows}"]
    message = (
        f"`read_from` returned {len(ids)} clients when their ids were read, but different clients when their data were "
        f"read: {'; '.join(facts)}. A DataFrame with a random or time-dependent step, or `limit` without an order, can "
        "return different rows each time it is evaluated. Write it first and read the written files: "
        "`frame.write.parquet(path)`, then `read_from=path`."
    )
    raise EngineError(message)


def _in_group(context: Foreign, label: str, job: Callable[[], Result], check: Callable[[], None]) -> Result:
    """Runs a job in a thread; cancels the job whenever waiting ends early."""
    from pyspark import InheritableThread

    group, event = f"workbench-{uuid.uuid4().hex}", threading.Event()
    results: list[Any] = []
    failures: list[BaseException] = []

    def target() -> None:
        try:
            context.setJobGroup(group, label, interruptOnCancel=True)
            results.append(job())
        except BaseException as error:
            failures.append(error)
        finally:
            event.set()

    InheritableThread(target=target, daemon=True).start()
    try:
        while not event.wait(0.1):
            check()
    finally:
        if not event.is_set():  # a JVM that does not answer must not block this thread
            cancelling = threading.Thread(target=_cancel, args=(context, group), daemon=True)
            cancelling.start()
            cancelling.join(5)
            event.wait(5)
    if failures:
        raise failures[0]
    return results[0]


def _forget(broadcast: Foreign) -> None:
    if hasattr(broadcast, "destroy"):
        broadcast.destroy()


def _cancel(context: Foreign, group: str) -> None:
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)


def _second_level(partitions: int) -> int:
    """Number of groups in the tree's second level, or 0 if that level would not reduce the driver's work."""
    scale = max(math.ceil(math.sqrt(partitions)), 2)
    groups = math.ceil(partitions / scale)
    return groups if partitions > scale + groups else 0


def _named(clients: int, size: int, ids: Foreign = None) -> list[Batch]:
    names = range(clients) if ids is None else _Names(ids)
    return [Batch(number, names[start : start + size], []) for number, start in enumerate(range(0, clients, size))]


def _record(batch: Batch) -> Foreign:
    import pyarrow as pa

    for x in batch.rows:
        if x.nbytes > _MOST_CELL_BYTES:
            message = (
                f"`Spark` was given rows of {x.nbytes / 2**30:.1f} GiB in one batch of {len(batch.clients)} clients. "
                "A table cell can store at most 2 GiB: lower `clients_per_batch`."
            )
            raise EngineError(message)
    from workbench.engines.spark._worker import crc_of

    cells = [_encoded([x]) for x in batch.rows]
    columns: dict[str, Any] = {
        "batch": pa.array([batch.index], pa.int32()),
        "acrc": pa.array([crc_of(cells)], pa.int64()),
        **{f"a{i}": pa.array([cell], pa.binary()) for i, cell in enumerate(cells)},
    }
    return pa.RecordBatch.from_pydict(columns)


def _encoded(arrays: Sequence[Any]) -> bytes:
    from workbench.engines.spark._worker import encode

    return encode(arrays)


def _listed(x: np.ndarray) -> Foreign:
    """Converts rows to a column of numbers or flat lists; dtypes that Spark lacks become float32."""
    import pyarrow as pa

    is_supported = x.dtype.kind in "biuf" and x.dtype.name not in ("float16", "bfloat16")
    plain = x if is_supported else x.astype(np.float32)
    return pa.array(plain) if plain.ndim == 1 else pa.array(list(plain.reshape(len(plain), -1)))


def _check(session: Foreign, conf: Foreign, clients_per_batch: object) -> None:
    if type(session).__module__.startswith("pyspark.sql.connect"):
        message = (
            "`Spark` was given a Spark Connect session. A pass sends the server's values as broadcast variables, "
            "which Connect does not support: pass a classic session, created on the driver's machine."
        )
        raise EngineError(message)
    if not isinstance(session, str) and not hasattr(session, "sparkContext"):
        message = (
            f"`Spark` was given {session!r} (type {type(session).__name__}) as its session. "
            "The engine runs on a Spark session: pass a session, or the master of a session that the "
            'engine starts, such as "local[2]".'
        )
        raise ProgramError(message)
    if conf is not None and not isinstance(session, str):
        message = (
            f"`Spark` was given an existing session and conf={dict(conf)!r}. Settings apply only to a session that the "
            "engine starts. Either set them when you create your own session, or pass the session's master URL, so "
            "that the engine starts a session with these settings."
        )
        raise ProgramError(message)
    check_batch_size("Spark", "one row of the DataFrame", clients_per_batch)
