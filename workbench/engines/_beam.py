"""Apache Beam as an engine: every pass over the clients is a pipeline, the rounds are driven from here."""

import hashlib
import importlib.util
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from workbench._errors import EngineError, MissingDependencyError, ProgramError
from workbench.engines._beam_child import Child, in_broken_kernel
from workbench.engines._clients import Batch
from workbench.engines._engine import Engine
from workbench.engines._ledger import Progress, tell
from workbench.engines._pass import Pass
from workbench.plan._reductions import REDUCTION_OF
from workbench.primitives import by_key_p
from workbench.records import RunRecord

IN_PROCESS = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_MERGE_NAMES: dict[Any, str] = {jnp.add: "add", jnp.maximum: "maximum", jnp.minimum: "minimum"}


class Beam(Engine):
    """Computes each pass over the clients as an Apache Beam pipeline (extra `beam`).

    Clients are a PCollection of batches, the server's values a side input, and the reductions a CombineFn over partial
    results, in the dtype that each reduction states; `reduce_by_key` is a shuffle by key. Loops run here, one pipeline
    per pass, so a run that fails keeps its finished rounds (`error.run`). Nothing of the data stands in the pipeline
    itself: rows wait in files of `folder` until a worker reads them, so they need not fit in memory, and workers on
    other machines must see `folder` under the same path. Workers must be able to import `workbench`.

    Tried: the in-process FnApiRunner, also with several processes. Not tried: Flink, Spark, Dataflow; they take
    `runner` and `options` as Beam documents them. Beam's own DaskRunner gives wrong numbers and is refused.

    Args (of the constructor):
        options: Pipeline options as flags: ["--direct_running_mode=multi_processing", "--direct_num_workers=2"].
        runner: Name of a runner, or one. Default: the FnApiRunner of this process, by its full name, since Beam's
            "DirectRunner" first tries to download another one.
        clients_per_batch: Clients that one element of the PCollection holds.
        check_nan: End the run at the first NaN that leaves a pass.
        folder: Where rows wait. Default: a temporary folder, removed after each pass.
        own_process: Make the pipelines in another process, which takes seconds to start and can be cancelled at any
            time. Default: where it must be, in a notebook with pandas 3 or later, whose kernel Beam cannot work in.

    Raises:
        MissingDependencyError: if apache-beam is not installed.
        EngineError: for the DaskRunner.
        ProgramError: if `clients_per_batch` is not a positive int or `options` not a list of flags.

    References:
        https://beam.apache.org/documentation/programming-guide
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        runner: Any = IN_PROCESS,
        clients_per_batch: int = 32,
        check_nan: bool = False,
        folder: str | Path | None = None,
        own_process: bool | None = None,
    ) -> None:
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingDependencyError("apache-beam", extra="beam", needed_for="`workbench.engines.Beam`")
        _check(options, runner, clients_per_batch, own_process)
        self.options, self.runner, self.folder = list(options), runner, folder
        self.clients_per_batch, self.check_nan = clients_per_batch, check_nan
        self.own_process = in_broken_kernel() if own_process is None else own_process
        self._child: Child | None = None
        self.name = f"beam ({_runner_name(runner)})"

    def run(self, fn: Callable, *args: Any, progress: Progress | None = None, cancel: Any = None) -> RunRecord:
        """As every engine's `run`."""
        try:
            return super().run(fn, *args, progress=progress, cancel=cancel)
        finally:
            if self._child is not None:
                self._child.close()
                self._child = None

    def _compute(self, work: Pass) -> None:
        size = min(self.clients_per_batch, work.clients)
        with tempfile.TemporaryDirectory(prefix="pass-", dir=self.folder) as folder:
            started = time.perf_counter()
            batches = _write(Path(folder), work, size)
            work.ledger.stage(work.stage, "writing rows", time.perf_counter() - started)
            self._pipeline(Path(folder), work, batches)
            _read(Path(folder), work, batches, self.check_nan)

    def _pipeline(self, folder: Path, work: Pass, batches: list[Batch]) -> None:
        started = time.perf_counter()
        try:
            self._start(str(folder), len(batches), work)
        except EngineError:
            raise
        except Exception as error:
            found = re.search(r"\[batch (\d+)\] (.*)", str(error))
            if found is None:
                message = (
                    f"stage {work.stage} (`{work.name}`) ended with its Beam pipeline on {self.name}: {tell(error)}. "
                    "No worker "
                    "said which clients it was computing: look at the runner's own log; finished rounds are in this "
                    "error's "
                    "`run`."
                )
                raise EngineError(message, stage=work.stage) from error
            raise work.failed(batches[int(found[1])], RuntimeError(found[2]), self.name) from error
        work.ledger.stage(work.stage, "pipeline", time.perf_counter() - started)

    def _start(self, folder: str, batches: int, work: Pass) -> None:
        if not self.own_process:
            from workbench.engines._beam_worker import run_pipeline

            run_pipeline(folder, batches, self.runner, self.options)
            return
        self._child = self._child or Child()
        self._child.run(folder, batches, self.runner, self.options, lambda: work.ledger.check(work.stage, 0.0))


def _write(folder: Path, work: Pass, size: int) -> list[Batch]:
    """The pass as files: rows batch by batch, server values, the stage. Returns the batches without their rows."""
    from workbench.engines._beam_worker import save_arrays

    _, stage = work.exported(size, None)
    steps = [step.equation for step in work.phase.reductions]
    spec = {
        "digest": hashlib.sha256(stage).hexdigest(),
        "kept": len(work.phase.kept),
        "merges": [_MERGE_NAMES[REDUCTION_OF[equation.primitive].merge] for equation in steps],
        "keyed": [equation.params["batch_dims"] if equation.primitive is by_key_p else -1 for equation in steps],
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "stage").write_bytes(stage)
    save_arrays(folder / "shared.npz", work.shared)
    batches = []
    for batch in work.batches(size):
        save_arrays(folder / f"rows-{batch.index}.npz", batch.rows)
        batches.append(Batch(batch.index, batch.clients, []))
    return batches


def _read(folder: Path, work: Pass, batches: list[Batch], check_nan: bool) -> None:
    """What the pipeline wrote: each batch's kept rows, and the merged results."""
    from workbench.engines._beam_worker import load_arrays

    merged = iter(load_arrays(folder / "totals.npz")) if (folder / "totals.npz").exists() else iter(())
    totals = []
    for number, step in enumerate(work.phase.reductions):
        equation = step.equation
        if equation.primitive is not by_key_p:
            totals.append(next(merged))
            continue
        table = np.array(REDUCTION_OF[by_key_p].start(equation))
        groups = np.moveaxis(table, equation.params["batch_dims"], 0)
        for path in folder.glob(f"groups-{number}-*.npz"):
            (groups[int(path.stem.rpartition("-")[2])],) = load_arrays(path)
        totals.append(table)
    for batch in batches:
        told, *kept = load_arrays(folder / f"reply-{batch.index}.npz")
        where, seconds, compiling, sent = json.loads(str(told))
        work.ledger.warmup_seconds += compiling
        if compiling:
            work.ledger.note(f"stage {work.stage} was compiled on {where} in {compiling:.2f} s")
        work.add(batch, kept, seconds=seconds, where=where, check_nan=check_nan, sent=sent)
    work.reduced(totals, check_nan=check_nan)


def _runner_name(runner: Any) -> str:
    name = runner if isinstance(runner, str) else type(runner).__name__
    return name.rpartition(".")[2]


def _check(options: Any, runner: Any, clients_per_batch: Any, own_process: Any) -> None:
    if "dask" in _runner_name(runner).lower():
        message = (
            f"`Beam` was given the runner {_runner_name(runner)}. Beam's DaskRunner merges outputs that belong apart, "
            "and gave "
            "wrong sums when it was tried with Beam 2.77: use `workbench.engines.Executor(client.get_executor())` for "
            "a Dask "
            "cluster, or another runner."
        )
        raise EngineError(message)
    if own_process and not isinstance(runner, str):
        message = (
            f"`Beam` was given own_process=True and a runner of type {type(runner).__name__}. To another process a "
            "runner goes "
            "by its name, like the options: pass the full name of its class."
        )
        raise ProgramError(message)
    if isinstance(options, str) or not all(isinstance(flag, str) for flag in options):
        message = (
            f"`Beam` was given options={options!r}. Pipeline options are a list of flags, as on a command line: pass "
            '["--direct_num_workers=2", …], one string for each.'
        )
        raise ProgramError(message)
    if not isinstance(clients_per_batch, int) or isinstance(clients_per_batch, bool) or clients_per_batch < 1:
        message = (
            f"`Beam` was given clients_per_batch={clients_per_batch!r}. It is the number of clients in one element of "
            "the "
            "PCollection: pass a positive int; 32 was fastest for small clients."
        )
        raise ProgramError(message)
