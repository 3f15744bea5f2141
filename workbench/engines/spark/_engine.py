"""The Apache Spark engine: each pass is a few coarse-grained jobs, and this process runs the rounds."""

# pyright: reportMissingImports=false

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from jax import Array

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.engines._client_loop import Pass
from workbench.engines._clients import ClientReader
from workbench.engines._engine import check_batch_size
from workbench.engines._places import scratch_folder
from workbench.engines._run_recorder import RunRecorder
from workbench.engines._stage import exported_stage, to_host
from workbench.engines._table_engine import Packer, TableEngine, check_folder
from workbench.engines.spark import _session
from workbench.errors import EngineError, ProgramError
from workbench.plan import Plan

if TYPE_CHECKING:
    from workbench.engines.spark._jobs import Jobs


@dataclasses.dataclass(eq=False, repr=False)
class Spark(TableEngine):
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

    session: Foreign = "local[2]"
    _: dataclasses.KW_ONLY
    conf: Mapping[str, str] | None = None
    clients_per_batch: int = 32
    check_nan: bool = False
    folder: str | Path | None = None
    read_from: Foreign = None
    write_to: str | Path | Callable[[Any], Any] | None = None
    timeout_seconds: float | None = None
    quorum: int | float | None = None
    deadline_seconds: float | None = None

    _source: ClassVar[str] = "table"
    _table: ClassVar[str] = "Spark table"
    _sink_advice: ClassVar[str] = (
        '`write_to` must be a new path, or a function of a DataFrame with the columns "client", {columns}: choose '
        "another path, or correct the function."
    )

    def __post_init__(self) -> None:
        self._check_quorum()
        _session.check_libraries()
        check_folder("Spark", self.folder)
        _check(self.session, self.conf, self.clients_per_batch)
        master = self.session if isinstance(self.session, str) else self.session.sparkContext.master
        self.name: str = f"spark ({master})"
        self._started: _session.Started | None = None
        self._own: tuple[Any, Any] | None = None  # the given session, and the session that the engine starts
        self._jobs: Jobs | None = None
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
        from workbench.engines.spark._jobs import sent_once
        from workbench.engines.spark._readers import NUMPY_TYPES, columns_of
        from workbench.engines.spark._worker import Predict, encode, shapes_of

        check_batch_size("Spark.predict", "a batch of rows", rows_per_batch, option="rows_per_batch")
        names = [columns] if isinstance(columns, str) else list(columns)
        rows = columns_of(frame, names, out)
        row = rows[0] if isinstance(columns, str) else dict(zip(names, rows, strict=True))
        leaves, tree = jax.tree.flatten(values)
        leaves = [to_host(x) for x in leaves]

        def batch(_: Array, *arrays: Array) -> list[Array]:
            inputs = arrays[0] if isinstance(columns, str) else dict(zip(names, arrays[: len(names)], strict=True))
            model = jax.tree.unflatten(tree, arrays[len(names) :])
            return [jax.vmap(lambda row: fn(*model, row))(inputs)]

        result = jax.eval_shape(fn, *values, row)
        kind = {numpy: sql for sql, numpy in NUMPY_TYPES.items()}.get(str(getattr(result, "dtype", "")))
        if kind is None:
            message = (
                f"`Spark.predict` was given a function that returns {result}. A table column has one array of numbers "
                f"for each row, with one of the dtypes {', '.join(NUMPY_TYPES.values())}: return one such array."
            )
            raise ProgramError(message)
        full = [jax.ShapeDtypeStruct((rows_per_batch, *x.shape), x.dtype) for x in rows]
        avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        name = getattr(fn, "__name__", type(fn).__name__)
        digest, stage = exported_stage(batch, [jax.ShapeDtypeStruct((), np.int32), *full, *avals], name, "predict")
        send = partial(sent_once, frame.sparkSession.sparkContext)
        work = Predict(digest, send(stage), send(encode(leaves)), shapes_of(leaves), names, shapes_of(full))
        schema = frame.selectExpr("*", f"cast(null as {f'array<{kind}>' if result.shape else kind}) as `{out}`").schema
        return frame.mapInArrow(work, schema)

    def _opened(self) -> Foreign:
        """Creates a session whose settings are separate from those of the user's session."""
        if isinstance(self.session, str):
            if self._started is not None and not _session.alive(self._started):
                self.close()
            self._started = self._started or _session.start(self.session, self.conf or {})
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

    @contextlib.contextmanager
    def _packing(self, *, running: bool) -> Iterator[Packer]:
        from workbench.engines.spark._jobs import Jobs

        with self._lock if running else contextlib.nullcontext(), scratch_folder("workbench-", self.folder) as folder:
            jobs = Jobs(self._opened(), folder, self)
            try:
                self._jobs = jobs if running else self._jobs
                yield jobs.read
            finally:
                self._jobs = None if running else self._jobs
                jobs.forget()

    def _begin(self, plan: Plan, inputs: list[Any], recorder: RunRecorder) -> None:
        assert self._jobs is not None
        self._jobs.begin(inputs, recorder)

    def _compute(self, work: Pass) -> None:
        assert self._jobs is not None
        self._jobs.compute(work)

    def _write(self, ids: Sequence[Any], rows: Mapping[str, np.ndarray]) -> None:
        assert self._jobs is not None
        self._jobs.write(ids, rows, self.write_to)


def table_of_examples(*arguments: Any) -> ClientReader:
    """Calls `_readers.table_of_examples`, whose module needs the extra `spark`."""
    from workbench.engines.spark import _readers

    return _readers.table_of_examples(*arguments)


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
