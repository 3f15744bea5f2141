"""One pass over the clients, with its batches and their results."""

import asyncio
import functools
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

import jax
import numpy as np

from workbench._types import type_of
from workbench.engines._clients import Batch, ReadRows, RemoteRows, batches
from workbench.engines._cohorts import Cohorts, Quorum, absent_rows
from workbench.engines._remote import token
from workbench.engines._run_recorder import RunRecorder, brief, find_nan
from workbench.engines._stage import BatchFunction, Totals, edge_aval, to_host
from workbench.errors import EngineError
from workbench.plan import REDUCTION_OF, Phase
from workbench.primitives import by_key_p


class Pass:
    """One pass over the clients of a phase.

    An engine reads `batches`, computes `function`, and passes each reply to `add`.
    """

    def __init__(
        self,
        phase: Phase,
        rows: Sequence[Any],
        shared: Sequence[Any],
        *,
        functions: Callable[[int], BatchFunction],
        reduced: Totals,
        recorder: RunRecorder,
    ) -> None:
        self.phase, self.recorder = phase, recorder
        self.rows, self.shared = list(rows), [to_host(x) for x in shared]
        self.clients = phase.placement.size
        self._functions, self._reduction = functools.cache(functions), reduced
        self.stage = self.function(1).stage
        self.name, self._names = self.function(1).name, self.function(1).out_names
        self.cohorts: Cohorts | None = None  # set by engines that support a quorum
        self.present: np.ndarray | None = None  # mask of the clients in this pass; None: all, or not yet decided
        self._kept: list[Any] | None = None
        self._totals: list[Any] | None = None
        self._done = self._answers = 0
        self.shared_bytes = sum(x.nbytes for x in self.shared)

    def function(self, size: int) -> BatchFunction:
        return self._functions(size)

    @property
    def partial_avals(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a batch's partial results."""
        return self._reduction.partial_avals

    @property
    def merges(self) -> list[str]:
        """The NumPy function that merges each partial result."""
        return [REDUCTION_OF[step.equation.primitive].merge.__name__ for step in self.phase.reductions]

    @property
    def keyed(self) -> list[int]:
        """The axis of the keys in each partial result; -1 without keys."""
        equations = [step.equation for step in self.phase.reductions]
        return [e.params["batch_dims"] if e.primitive is by_key_p else -1 for e in equations]

    def compiled(self, size: int) -> jax.stages.Compiled:
        """Compiles the batch function in this process, and records the time as warm-up."""
        function = self.function(size)
        started = time.perf_counter()
        compiled = function.compiled
        self.recorder.warmup_seconds += time.perf_counter() - started
        return compiled

    def exported(self, size: int, platforms: Sequence[str] | None) -> tuple[str, bytes]:
        """Exports the batch function as a digest and bytes, once for all rounds."""
        function = self.function(size)
        if function.travelling is None:
            function.travelling = function.exported(platforms)
        return function.travelling

    def batches(self, size: int, rows: Sequence[Any] | None = None) -> Iterator[Batch]:
        """Yields the clients, `size` at a time, together with their slots in `rows` (default: all rows)."""
        rows = self.rows if rows is None else rows
        reader = next((x.reader for x in rows if isinstance(x, ReadRows)), None)
        order = 0
        for batch in batches(rows, self.clients, size, self.stage):
            for client in batch.clients if reader is not None else ():
                order = zlib.crc32(repr(client).encode(), order)
            yield batch
        if reader is not None and self.recorder.orders.setdefault(id(reader), order) != order:
            fact = "their reader returned different clients, or a different order, than in an earlier pass of this run"
            raise self.miscounted(fact)

    def operands(self, batch: Batch) -> list[Any]:
        return [np.int32(batch.index), *batch.rows, *self.shared]

    def add(
        self,
        batch: Batch,
        outputs: Sequence[Any],
        *,
        seconds: float,
        where: str,
        check_nan: bool = False,
        sent_bytes: int | None = None,
        on_worker: bool = False,
    ) -> None:
        """Adds a batch's outputs, in order, so that sums do not depend on the order of completion.

        Engines that merge partial results themselves pass only the kept rows and, as `sent_bytes`, the number of bytes
        in all outputs. Engines whose clients keep their rows pass only the partial results with `on_worker=True`, and
        call `hold` for the rows.
        """
        self._count(batch, outputs, on_worker=on_worker, merged=sent_bytes is not None)
        count, clients = 0 if on_worker else len(self.phase.kept), len(batch.clients)
        names = self._names[len(self.phase.kept) - count :][: len(outputs)]
        rows, totals = [np.asarray(x) for x in outputs[:count]], list(outputs[count:])
        if check_nan and (fault := find_nan(outputs, names)) is not None:
            raise self.nan(batch, fault)
        if not on_worker:
            self._keep(rows, clients)
        if totals:
            self._totals = totals if self._totals is None else self._reduction.merge(self._totals, totals)
        for i, (name, x) in enumerate(zip(names, outputs, strict=True)):
            self.recorder.left(self.stage, name, np.asarray(x), row=i < count, clients=clients, index=i)
        if sent_bytes is not None:  # each batch also sent a partial result, which was merged elsewhere
            partial = self._names[len(self.phase.kept) :]
            for i, (name, aval) in enumerate(zip(partial, self.partial_avals, strict=True), count):
                self.recorder.left(self.stage, name, aval, row=False, clients=clients, index=i)
        sent_bytes = sum(x.nbytes for x in outputs) if sent_bytes is None else sent_bytes
        self.recorder.clients(self.stage, batch.clients, where, seconds, (self.shared_bytes, sent_bytes))
        self._done += clients
        self.recorder.check(self.stage, self._done / self.clients)

    def keep(self, batch: Batch, rows: Sequence[Any]) -> None:
        """Adds the kept rows of a batch computed in this process, without recording its clients."""
        self._count(batch, rows, on_worker=False, merged=True)
        self._keep([np.asarray(x) for x in rows], len(batch.clients))
        self._done += len(batch.clients)
        self.recorder.check(self.stage, self._done / self.clients)

    @property
    def undecided(self) -> Quorum | None:
        """The quorum in the first pass of a round, which decides which clients take part; None in later passes."""
        return self.cohorts.quorum if self.cohorts is not None and self.present is None else None

    def enough(self, answered: int, missing: Mapping[int, tuple[Batch, str]], started: float) -> str | None:
        """Returns the reason for continuing a round without the `missing` (failed) batches, or None to keep waiting."""
        quorum = self.undecided
        if quorum is None:
            return None
        need, failed = quorum.of(self.clients), sum(len(batch.clients) for batch, _ in missing.values())
        if failed > self.clients - need:
            reasons = "; ".join(sorted({reason for _, reason in missing.values()}))
            message = (
                f"stage {self.stage} (`{self.name}`) cannot reach its quorum: {need} of {self.clients} clients must "
                f"answer, and {failed} failed: {reasons}. Lower `quorum`, or run the round again."
            )
            raise EngineError(message, stage=self.stage)
        if answered < need:
            return None
        deadline, passed = quorum.deadline_seconds, time.perf_counter() - started
        if deadline is None:
            return f"not among the first {answered} clients that answered"
        return f"no answer within {passed:.1f} s (deadline_seconds={deadline})" if passed >= deadline else None

    def is_out(self, batch: Batch, size: int) -> bool:
        """Returns whether an earlier pass of the round skipped this batch of `size` clients."""
        return self.present is not None and not self.present[batch.index * size]

    def skip(self, batch: Batch, *, on_worker: bool = False) -> None:
        """Skips a batch's clients: they add nothing to sums, and their rows are absent."""
        if not on_worker:
            self._keep(
                [absent_rows(edge_aval(type_of(v)), len(batch.clients)) for v in self.phase.kept], len(batch.clients)
            )
        self._answers += 1
        self._done += len(batch.clients)

    def decide(self, missing: Mapping[int, tuple[Batch, str]], size: int) -> None:
        """Excludes the clients of missing batches from this round, and notes the reason."""
        self.present = np.ones(self.clients, bool)
        reasons: dict[str, list[Any]] = {}
        for number, (batch, reason) in missing.items():
            self.present[number * size : number * size + len(batch.clients)] = False
            reasons.setdefault(reason, []).extend(batch.clients)
        assert self.cohorts is not None
        when = "" if self.cohorts.round is None else f"round {self.cohorts.round}: "
        for reason, clients in reasons.items():
            self.recorder.note(
                f"{when}stage {self.stage} continued with {int(self.present.sum())} of {self.clients} clients, without "
                f"{name_clients(clients)}: {reason}"
            )

    def _keep(self, rows: Sequence[np.ndarray], clients: int) -> None:
        if self._kept is None:
            self._kept = [np.empty((self.clients, *x.shape[1:]), x.dtype) for x in rows]
        for all_rows, some in zip(self._kept, rows, strict=True):
            all_rows[self._done : self._done + clients] = some[:clients]

    def _count(self, batch: Batch, outputs: Sequence[Any], *, on_worker: bool, merged: bool) -> None:
        """Checks that each batch is answered once, in order, with the expected shapes."""
        if batch.index != self._answers or self._done + len(batch.clients) > self.clients:
            fact = (
                f"batch {batch.index} ({name_clients(batch.clients)}) answered, but batch {self._answers} was expected"
            )
            raise self.miscounted(fact)
        row_forms = [] if on_worker else [(x.shape[1:], x.dtype) for x in map(edge_aval, map(type_of, self.phase.kept))]
        partial = [] if merged else [(x.shape, x.dtype) for x in self.partial_avals]
        forms = [(np.shape(x), x.dtype) for x in outputs]
        short = [x for x in forms[: len(row_forms)] if not x[0] or x[0][0] < len(batch.clients)]
        if (
            short
            or [(shape[1:], dtype) for shape, dtype in forms[: len(row_forms)]] + forms[len(row_forms) :]
            != row_forms + partial
        ):
            arrays = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in forms) or "nothing"
            fact = f"batch {batch.index} ({name_clients(batch.clients)}) answered with {arrays}"
            raise self.miscounted(fact)
        self._answers += 1

    def check_partials(self, batches: Sequence[Batch], partial: Sequence[int], keyed: Sequence[int]) -> None:
        """Checks that merged partial results contain every batch and keyed row exactly once.

        `partial` counts the merged batches and their keyed rows, each with the sum of the tokens; `keyed` counts the
        keyed rows that arrived.
        """
        answers, tokens, keyed_answers, made_tokens = partial
        if self.phase.reductions and (answers, tokens) != (len(batches), sum(token(x.index) for x in batches)):
            fact = f"the merged partial results contain {answers} answers of {len(batches)} batches"
            raise self.miscounted(fact)
        if tuple(keyed) != (keyed_answers, made_tokens):
            fact = f"{keyed[0]} keyed partial results arrived, but the workers sent {keyed_answers}"
            raise self.miscounted(fact)

    def joined(self, merged: Sequence[Any], groups: Iterable[tuple[int, int, Any]]) -> list[Any]:
        """Joins merged partial results with the tables of keyed reductions, whose rows are (reduction, key, values)."""
        equations = [step.equation for step in self.phase.reductions]
        tables = {i: np.array(REDUCTION_OF[by_key_p].start(equations[i])) for i, x in enumerate(self.keyed) if x >= 0}
        for number, key, values in groups:
            np.moveaxis(tables[number], self.keyed[number], 0)[key] = values
        others = iter(merged)
        return [tables[i] if i in tables else next(others, None) for i in range(len(equations))]

    def miscounted(self, fact: str) -> EngineError:
        message = (
            f"stage {self.stage} (`{self.name}`) did not get exactly one answer for each of its {self.clients} "
            f"clients: {fact}. A result must count every client once, so this run has no result. Run it again; if the "
            "error returns, check the source of the clients and the storage between the workers and this process."
        )
        return EngineError(message, stage=self.stage)

    def hold(
        self,
        names: Sequence[str],
        bring: Callable[[Sequence[RemoteRows]], list[Any]],
        dropped: Callable[[str], Any],
    ) -> None:
        """Registers the kept rows, which stay outside this process under the given names."""
        rows = zip(names, self.phase.kept, self._names, strict=False)
        remote = functools.partial(RemoteRows, placement=self.phase.placement, bring=bring, dropped=dropped)
        self._kept = [remote(name, v.aval, made_by=(self.stage, label)) for name, v, label in rows]

    def reduced(self, totals: Sequence[Any], *, check_nan: bool = False) -> None:
        """Adds partial results that were merged elsewhere."""
        if check_nan and (fault := find_nan(totals, self._names[len(self.phase.kept) :])) is not None:
            raise self.nan(Batch(0, tuple(range(self.clients)), []), fault)
        self._totals = list(totals)

    def results(self) -> tuple[list[Any], list[Any]]:
        """Returns the kept rows and the results of the reductions."""
        if self._done != self.clients:
            fact = f"{self._done} of them answered"
            raise self.miscounted(fact)
        assert self._kept is not None
        return self._kept, jax.block_until_ready(self._reduction.finish(self._totals or []))

    def failed(self, batch: Batch, error: BaseException, where: str) -> EngineError:
        """Creates the error that names the stage and clients; the caller raises it from `error`."""
        message = (
            f"stage {self.stage} (`{self.name}`) failed for {list_clients(batch.clients)} on {where}: {brief(error)}. "
            f"A round needs all client results that its reductions read. {_what_to_do(error)}"
        )
        return EngineError(message, stage=self.stage, client=_client_of(batch.clients))

    def failed_elsewhere(
        self, error: Exception, batches: Sequence[Batch], job: str, where: str, advice: str
    ) -> EngineError:
        """Creates the error for a failed job; it names the clients if a worker named its batch."""
        match = re.search(r"\[batch (\d+)\] ([^\n]*)", str(error))
        if match is not None and batches:
            return self.failed(batches[int(match[1])], RuntimeError(match[2]), where)
        message = (
            f"stage {self.stage} (`{self.name}`) failed in its {job} on {where}: {brief(error)}. No worker reported "
            f"which clients failed. {advice}; finished rounds are in this error's `run`."
        )
        return EngineError(message, stage=self.stage)

    def nan(self, batch: Batch, fault: str) -> EngineError:
        message = (
            f"stage {self.stage} (`{self.name}`) produced a NaN for {list_clients(batch.clients)}, in {fault}. "
            "check_nan=True stops a run at the first NaN that a client returns: check this client's data and step "
            "size (`workbench.engines.Sequential(debug=True, check_nan=True)` names the line), or give this client "
            "the weight 0."
        )
        return EngineError(message, stage=self.stage, client=_client_of(batch.clients))

    def watched(self, engine: str, timeout_seconds: float | None) -> Callable[[], None]:
        """Returns a function that a waiting engine calls; it raises once the run is cancelled or times out."""
        started = time.perf_counter()

        def check() -> None:
            self.recorder.check(self.stage, 0.0)
            waited = time.perf_counter() - started
            if timeout_seconds is not None and waited > timeout_seconds:
                message = (
                    f"stage {self.stage} (`{self.name}`) did not finish on {engine} within {waited:.1f} s, "
                    f"with timeout_seconds={timeout_seconds}. A pass finishes when its last task finishes: increase "
                    "`timeout_seconds`, or check the workers. Finished rounds are in this error's `run`."
                )
                raise EngineError(message, stage=self.stage)

        return check

    @property
    def done(self) -> float:
        return self._done / self.clients

    def isolated(self, batch: Batch, *, nan: bool) -> EngineError | None:
        """Computes a batch's clients one by one in this process, to find the client that raises or has a NaN."""
        single = self.compiled(1)
        for slot, client in enumerate(batch.clients):
            rows = [x[slot : slot + 1] for x in batch.rows]
            alone = Batch(slot, (client,), rows)
            try:
                outputs = jax.block_until_ready(single(np.int32(slot), *rows, *self.shared))
            except Exception as error:
                return self.failed(alone, error, "this process")
            if nan and (fault := find_nan(outputs, self.function(1).out_names)) is not None:
                return self.nan(alone, fault)
        return None


_LOST_WORKERS = (  # errors of concurrent.futures, loky, Dask, Ray
    "BrokenProcessPool", "TerminatedWorkerError", "KilledWorker", "WorkerCrashedError", "OutOfMemoryError",
)  # fmt: skip


def _what_to_do(error: BaseException) -> str:
    """Formats advice after a failure; if a batch was cancelled, the advice does not blame its clients."""
    if isinstance(error, CancelledError | asyncio.CancelledError) or "Cancelled" in type(error).__name__:
        return "The task was cancelled, for example because a cluster closed or a worker left: run the round again."
    if getattr(error, "worker_lost", False):
        return (
            "Its worker process exited, or is still computing. This engine starts new workers for the next run: run "
            "the round again, or increase `timeout_seconds`."
        )
    if type(error).__name__ in _LOST_WORKERS:
        return (
            "A worker process exited or was killed, most often because memory ran out: give a task fewer clients, "
            "or run the round again."
        )
    return (
        "Correct that client's data or the function (`workbench.engines.Sequential(debug=True)` shows the line and "
        "the values), or exclude the client with `where=`."
    )


def name_clients(clients: Sequence[Any]) -> str:
    """Names up to eight clients, and counts the others."""
    more = f" and {len(clients) - 8} more" if len(clients) > 8 else ""
    return f"client{'s' * (len(clients) != 1)} {', '.join(repr(client) for client in clients[:8])}{more}"


def list_clients(clients: Sequence[Any]) -> str:
    return ("" if len(clients) == 1 else "one of the ") + name_clients(clients)


def _client_of(clients: Sequence[Any]) -> int | str:
    return clients[0] if len(clients) == 1 else ", ".join(map(str, clients))
