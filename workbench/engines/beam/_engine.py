"""The Apache Beam engine, which runs each pass over the clients as a pipeline and the rounds in this process."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from workbench._open_types import Foreign
from workbench.engines._client_loop import Pass
from workbench.engines._clients import Batch, ReadRows
from workbench.engines._engine import check_batch_size
from workbench.engines._places import load_arrays, save_arrays, scratch_folder
from workbench.engines._table_engine import Packer, TableEngine, check_folder
from workbench.engines.beam._child import Child, in_broken_kernel
from workbench.engines.beam._clients import IN_PROCESS, BeamExamples, ClientFiles, client_files, save_rows
from workbench.errors import EngineError, MissingDependencyError, ProgramError


@dataclasses.dataclass(eq=False, repr=False)
class Beam(TableEngine):
    """Computes each pass over the clients as an Apache Beam pipeline (extra `beam`).

    Clients become a PCollection of batches, the server's values become a side input, and reductions become a CombineFn
    over partial results, in the dtype of each reduction. `reduce_by_key` becomes a shuffle by key. Loops run in this
    process, one pipeline per pass, so a failed run keeps its finished rounds (`error.run`). The pipeline itself
    contains no data: rows are stored in files of `folder` until a worker reads them. Rows therefore need not fit in
    memory, but workers on other machines must be able to access `folder` under the same path. Workers must be able to
    import `workbench`.

    The engine was tested with the FnApiRunner, in this process and with several worker processes. The engine was not
    tested with Flink, Spark or Dataflow; to use these, pass `runner` and `options` as in Beam's documentation. Beam's
    DaskRunner returns wrong numbers and is rejected.

    Args (of the constructor):
        options: Pipeline options as flags, such as ["--direct_running_mode=multi_processing",
            "--direct_num_workers=2"].
        runner: A runner, or its name. Default: the FnApiRunner of this process, under its full name, because Beam's
            "DirectRunner" first tries to download another runner.
        clients_per_batch: Number of clients in one element of the PCollection.
        check_nan: Stop the run at the first NaN that a pass returns.
        folder: Folder for rows, as a path or as an fsspec address such as "s3://bucket/tmp" (extra `storage`). Default:
            a temporary folder, removed after each pass.
        read_from: Any Beam source of pairs `(client_id, data)`, such as
            `beam.io.ReadFromParquet(...) | beam.Map(as_client)`. Pass the corresponding argument of `run` as shapes, a
            pytree of `jax.ShapeDtypeStruct((clients, ...), dtype)`. The workers read the source once for each run and
            store the data in `folder`; the driver process never loads the data.
        timeout_seconds: Stop the run if one pass takes longer than this. Default: wait as long as Beam runs.
        write_to: Any Beam sink, such as `beam.Map(as_row) | beam.io.WriteToParquet(...)`, that accepts one
            dictionary `{"client": id, name: row, ...}` per client. The dictionary contains the client's row of every
            per-client result, keyed by the result's name ("out", or "out[1]" and so on in a pytree).
        own_process: Run the pipelines in a separate process, which takes seconds to start and is terminated at once
            when the run is cancelled. After a cancellation, a pipeline in this process first finishes its current
            batches. Default: true with the embedded job server, and with several worker processes, which would
            otherwise continue for minutes after this process is killed. It is also true in a notebook with pandas 3 or
            later, where Beam cannot run in the kernel. The separate process closes Beam's servers to other users.

    Raises:
        MissingDependencyError: if apache-beam is not installed.
        EngineError: if `runner` is the DaskRunner.
        ProgramError: if `clients_per_batch` is not a positive int or `options` is not a list of flags.

    References:
        https://beam.apache.org/documentation/programming-guide
    """

    options: Sequence[str] = ()
    _: dataclasses.KW_ONLY
    runner: Foreign = IN_PROCESS
    clients_per_batch: int = 32
    check_nan: bool = False
    folder: str | Path | None = None
    read_from: Foreign = None
    write_to: Foreign = None
    own_process: bool | None = None
    timeout_seconds: float | None = None

    _source: ClassVar[str] = "source"
    _table: ClassVar[str] = "PCollection"
    _sink_advice: ClassVar[str] = (
        'A sink receives dictionaries with the keys "client" and {columns}: before the sink, put a `beam.Map` that '
        "converts these dictionaries to the rows of the sink."
    )

    def __post_init__(self) -> None:
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingDependencyError("apache-beam", extra="beam", needed_for="`workbench.engines.Beam`")
        check_folder("Beam", self.folder)
        _check(self.options, self.runner, self.clients_per_batch, self.own_process)
        self.options = list(self.options)
        starts_servers = isinstance(self.runner, str) and any(
            word in flag for flag in self.options for word in ("multi_processing", "=embed")
        )
        self.own_process = starts_servers or in_broken_kernel() if self.own_process is None else self.own_process
        self._child: Child | None = None
        self.name: str = f"beam ({_runner_name(self.runner)})"

    @contextlib.contextmanager
    def _packing(self, *, running: bool) -> Iterator[Packer]:
        with contextlib.ExitStack() as files:
            files.callback(self._end_child)

            def pack(source: Foreign, struct: Foreign) -> ClientFiles:
                is_table = isinstance(source, BeamExamples)
                pairs, label = (source.packed, "`clients_from`") if is_table else (source, "`read_from`")
                reading = lambda folder, row: self._do("run_reading", folder, pairs, row)  # noqa: E731
                return files.enter_context(client_files(struct, self.folder, reading, self.name, label))

            yield pack

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _write(self, ids: Sequence[Any], rows: Mapping[str, np.ndarray]) -> None:
        with scratch_folder("results-", self.folder) as folder:
            batches = save_rows(folder, ids, rows, self.clients_per_batch)
            self._do("run_writing", str(folder), self.write_to, batches)

    def _do(self, job: str, *arguments: object, check: Callable[[], Any] = lambda: None) -> None:
        """Runs one pipeline, in this process or in the child process."""
        from workbench.engines.beam import _here

        if self.own_process:
            self._child = self._child or Child()
        (self._child or _here).run(job, arguments, self.runner, self.options, check)

    def _compute(self, work: Pass) -> None:
        size = min(self.clients_per_batch, work.clients)
        with scratch_folder("pass-", self.folder) as folder:
            started = time.perf_counter()
            batches = _write(folder, work, size)
            work.recorder.stage(work.stage, "writing rows", time.perf_counter() - started)
            self._pipeline(folder, work, batches)
            try:
                _read(folder, work, batches, self.check_nan)
            except EngineError as error:
                raise (_isolated(folder, work, batches) or error) if self.check_nan else error from None

    def _pipeline(self, folder: Path, work: Pass, batches: list[Batch]) -> None:
        started = time.perf_counter()
        try:
            self._do("run_pipeline", str(folder), len(batches), check=work.watched(self.name, self.timeout_seconds))
        except EngineError:
            raise
        except Exception as error:
            advice = "Read the log of the runner"
            raise work.failed_elsewhere(error, batches, "Beam pipeline", self.name, advice) from error
        work.recorder.stage(work.stage, "pipeline", time.perf_counter() - started)


def _write(folder: Path, work: Pass, size: int) -> list[Batch]:
    """Writes the pass to files: row batches, server values, and the stage. Returns the batches without their rows."""
    _, stage = work.exported(size, None)
    filed = {i: x for i, x in enumerate(work.rows) if isinstance(x, ReadRows) and isinstance(x.reader, ClientFiles)}
    spec = {
        "digest": hashlib.sha256(stage).hexdigest(),
        "kept": len(work.phase.kept),
        "merges": work.merges,
        "filed": [[position, x.index] for position, x in filed.items()],
        "size": size,
        "keyed": work.keyed,
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "stage").write_bytes(stage)
    save_arrays(folder / "shared.npz", work.shared)
    batches = []
    rows = [x for i, x in enumerate(work.rows) if i not in filed]
    files = next((x.reader for x in filed.values() if isinstance(x.reader, ClientFiles)), None)
    for batch in work.batches(size, rows):
        save_arrays(folder / f"rows-{batch.index}.npz", batch.rows)
        clients = batch.clients
        if files is not None:
            some = slice(batch.index * size, batch.index * size + len(clients))
            clients = files.ids[some]
            (folder / f"files-{batch.index}.json").write_text(json.dumps([str(path) for path in files.files[some]]))
        batches.append(Batch(batch.index, clients, []))
    return batches


def _read(folder: Path, work: Pass, batches: list[Batch], check_nan: bool) -> None:
    """Reads the pipeline's files: the kept rows of each batch, and the merged results."""
    totals_file = folder / "totals.npz"
    counts, *arrays = load_arrays(totals_file) if totals_file.exists() else [np.zeros(4, np.int64)]
    groups, keyed = [], np.zeros(2, np.int64)
    for path in folder.glob("groups-*.npz"):
        counted, values = load_arrays(path)
        groups.append((*map(int, path.stem.split("-")[1:]), values))
        keyed += counted
    totals = work.joined(arrays, groups)
    work.check_partials(batches, counts.tolist(), keyed.tolist())
    for batch in batches:
        reported, *rows = load_arrays(folder / f"reply-{batch.index}.npz")
        where, seconds, compiling, sent_bytes = json.loads(str(reported))
        work.recorder.warmup_seconds += compiling
        if compiling:
            work.recorder.note(f"stage {work.stage} was compiled on {where} in {compiling:.2f} s")
        work.add(batch, rows, seconds=seconds, where=where, check_nan=check_nan, sent_bytes=sent_bytes)
    work.reduced(totals, check_nan=check_nan)


def _isolated(folder: Path, work: Pass, batches: list[Batch]) -> EngineError | None:
    """Recomputes the batch in this process to find the client with a NaN; None if workers read clients from files."""
    if any(isinstance(x, ReadRows) and isinstance(x.reader, ClientFiles) for x in work.rows):
        return None
    again = (Batch(batch.index, batch.clients, load_arrays(folder / f"rows-{batch.index}.npz")) for batch in batches)
    return next(filter(None, (work.isolated(batch, nan=True) for batch in again)), None)


def _runner_name(runner: object) -> str:
    name = runner if isinstance(runner, str) else type(runner).__name__
    return name.rpartition(".")[2]


def _check(options: Foreign, runner: object, clients_per_batch: object, own_process: object) -> None:
    if "dask" in _runner_name(runner).lower():
        message = (
            f"`Beam` was given the runner {_runner_name(runner)}. Beam's DaskRunner merges separate outputs, and "
            "returned wrong sums in a test with Beam 2.77: use "
            "`workbench.engines.Executor(client.get_executor())` for a Dask cluster, or another runner."
        )
        raise EngineError(message)
    if own_process and not isinstance(runner, str):
        message = (
            f"`Beam` was given own_process=True and a runner of type {type(runner).__name__}. A runner is sent to "
            "another process by name: pass the full name of its class."
        )
        raise ProgramError(message)
    if isinstance(options, str) or not all(isinstance(flag, str) for flag in options):
        message = (
            f"`Beam` was given options={options!r}. Pipeline options must be a list of flags, as on a command line: "
            'pass ["--direct_num_workers=2", …], one string for each flag.'
        )
        raise ProgramError(message)
    check_batch_size("Beam", "one element of the PCollection", clients_per_batch)
