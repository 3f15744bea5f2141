"""Any `concurrent.futures` executor as an engine, such as threads, processes or a Dask cluster."""

import concurrent.futures
import contextlib
import dataclasses
import logging
import math
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench._version import __version__
from workbench.engines._client_loop import Pass, list_clients, name_clients
from workbench.engines._clients import Batch, ReadRows
from workbench.engines._engine import Engine, check_batch_size
from workbench.engines._remote import Reply, StoredValues, Task, Values, fingerprint, run_task
from workbench.engines._run_recorder import brief
from workbench.engines._tables import HeldClients
from workbench.errors import EngineError, ProgramError

# limit for the stage and the server's values; larger ones are written to a file that each worker reads once
_MOST_SENT_BYTES = 2**20
_TRIES = 3  # attempts for a batch that receives another batch's answer
_LOG = logging.getLogger("workbench.engines")

Future = concurrent.futures.Future


@dataclasses.dataclass(eq=False, repr=False)
class Executor(Engine):
    """Computes batches of clients as tasks of an executor.

    The pool may be a `ThreadPoolExecutor`, loky's `get_reusable_executor()`, a `ProcessPoolExecutor` in a "spawn" or
    "forkserver" context, or Dask's `Client.get_executor()` (extra `dask`). Stages are sent to other processes as
    versioned StableHLO, never as pickled code, and are compiled once per worker. If only reductions read the clients'
    rows, a task returns the partial result of its batch instead of the rows. Workers must be able to import
    `workbench`. When this process exits or is killed, worker processes on this machine that have computed a task exit
    too.

    Args (of the constructor):
        pool: The executor. The engine does not shut it down.
        clients_per_task: Number of clients that one task processes together. "auto": up to 32, but few enough that
            every worker receives clients.
        check_nan: Stop the run at the first NaN that a client returns, and name that client.
        platforms: Platforms for which stages are exported, such as ("cpu",). Default: the platform of this process.
        timeout_seconds: Stop the run if no task answers within this time, and kill worker processes that hang. Default:
            wait as long as the pool exists.
        quorum: Continue once this number or share of clients (such as 0.9) has answered. All other clients are excluded
            from every reduction of this round and from the reduction's derivative, as with `where=`. The record's
            `notes` list the excluded clients. The first pass of a round determines which clients are absent; a round is
            an iteration of the outermost loop. Rows of absent clients are NaN for floats and 0 for integers.
        deadline_seconds: With `quorum`, the maximum time to wait for all clients. Default: do not wait after the quorum
            is reached.
        backups: Send a second copy of each late batch to idle workers, and take the first answer. Both copies return
            the same bytes.

    Raises:
        EngineError: if `pool` forks this process, because JAX hangs after a fork.
        ProgramError: if `pool` is not an executor, or `clients_per_task` is neither "auto" nor a positive int.

    Example:
        >>> import workbench as wb
        >>> @wb.program(clients=5)
        ... def total(x):
        ...     return wb.reduce_sum(wb.map_fn(lambda row: row**2, x))
        >>> with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ...     run = Executor(pool, clients_per_task=2).run(total, np.arange(5, dtype=np.float32))
        >>> float(run.results)
        30.0

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004, section 3.6 (backup tasks).
    """

    pool: concurrent.futures.Executor
    _: dataclasses.KW_ONLY
    clients_per_task: int | str = "auto"
    check_nan: bool = False
    platforms: tuple[str, ...] | None = None
    timeout_seconds: float | None = None
    quorum: int | float | None = None
    deadline_seconds: float | None = None
    backups: bool = False

    def __post_init__(self) -> None:
        _check(self.pool, self.clients_per_task)
        self._check_quorum()
        self.name: str = f"executor ({type(self.pool).__name__})"
        self._local = isinstance(self.pool, concurrent.futures.ThreadPoolExecutor)

    def _compute(self, work: Pass) -> None:
        workers = _count_workers(self.pool)
        most = max(1, min(32, math.ceil(work.clients / workers)))
        size = most if self.clients_per_task == "auto" else min(int(self.clients_per_task), work.clients)
        size = size if work.cohorts is None else work.cohorts.size(work.phase.placement, size)
        answers = _Answers(self, work, size)
        try:
            answers.collect(workers)
        finally:  # also cancels pending tasks after a cancellation or an interrupt
            answers.cancel()

    def _sender(self, work: Pass, size: int, inputs: dict[int, Any]) -> Callable[[Batch], Future]:
        """Returns a function that sends a batch of `size` clients to a worker and records the batch's checksums."""
        if self._local:
            compiled = work.compiled(size)
            return lambda batch: self.pool.submit(_run_here, compiled, work.operands(batch))
        started = time.perf_counter()
        digest, stage = work.exported(size, self.platforms)
        work.recorder.warmup_seconds += time.perf_counter() - started
        shared = Values(stage, work.shared, fingerprint(work.shared, digest))
        values: Any = self._put(shared)
        scheduler = getattr(getattr(self.pool, "_client", None), "scheduler", None)  # None after the client was closed
        if scheduler is not None and scheduler.address.startswith("tcp:"):
            work.recorder.note(
                "the Dask cluster does not use TLS: everyone who can connect to its scheduler can run code as you. "
                "Start the cluster with `LocalCluster(security=True)`, or with certificates."
            )
        reader, holdings = self._held(work)

        def send(batch: Batch) -> Future:
            operands = [np.int32(batch.index), *batch.rows]
            first = batch.index * size
            parts, slices = ((), ()) if reader is None else reader.slices(first, first + len(batch.clients))
            task = Task(digest, b"", operands, fingerprint(operands, digest), holdings, slices, size)
            inputs[batch.index] = task.inputs(shared)
            return self.pool.submit(run_task, task, values, *parts)

        return send

    def _held(self, work: Pass) -> tuple[HeldClients | None, tuple[tuple[int, int], ...]]:
        """Finds the reader whose clients are stored on this pool's workers, and the rows that it provides."""
        owner = getattr(self.pool, "_client", getattr(self.pool, "_ray", None))
        readers = [x.reader for x in work.rows if isinstance(x, ReadRows) and isinstance(x.reader, HeldClients)]
        reader = next((x for x in readers if owner is not None and x.cluster.owner is owner), None)
        if reader is None:
            return None, ()
        rows = enumerate(work.rows)
        return reader, tuple((i, x.index) for i, x in rows if isinstance(x, ReadRows) and x.reader is reader)

    def _batches(self, work: Pass, size: int) -> Iterator[Batch]:
        """Yields the batches of a pass; rows that the workers store are left out."""
        reader, holdings = self._held(work)
        if reader is None:
            yield from work.batches(size)
            return
        places = {place for place, _ in holdings}
        for batch in work.batches(size, [x for i, x in enumerate(work.rows) if i not in places]):
            first = batch.index * size
            yield dataclasses.replace(batch, clients=reader.ids[first : first + len(batch.clients)])

    def _put(self, values: Values) -> object:
        """Stores the stage and server values so that each worker receives them once, if the pool supports this."""
        client = getattr(self.pool, "_client", None)
        if client is not None:  # of Dask
            _check_dask(client)
            return _scattered(client, values)
        on_this_machine = isinstance(self.pool, concurrent.futures.ProcessPoolExecutor) or _is_loky(self.pool)
        return StoredValues(values) if on_this_machine and values.nbytes > _MOST_SENT_BYTES else values

    def _broken(self, work: Pass, error: Exception) -> EngineError:
        """Creates the error for a lost worker and, if possible, a new pool for the next run."""
        remedy = (
            "A pool that lost a worker accepts no more tasks: create a new pool, and a new `Executor` with this pool."
        )
        if (new := _remade(self.pool)) is not None:
            self.pool, remedy = new, "This engine has created a new pool: run the round again."
        message = (
            f"stage {work.stage} (`{work.name}`) lost a worker process of {self.name}: {type(error).__name__}. The "
            f"process exited or was killed, most often because memory ran out: give a task fewer clients. {remedy}"
        )
        return EngineError(message, stage=work.stage)

    def _late(self, work: Pass, batch: Batch, waited: float) -> EngineError:
        """Creates the error for a late batch; if the pool's settings are known, kills and replaces the pool."""
        new = _remade(self.pool)
        if new is not None:
            for process in list((getattr(self.pool, "_processes", None) or {}).values()):
                process.kill()  # while they compute, they ignore requests to stop
            self.pool.shutdown(wait=False, **({} if _is_loky(self.pool) else {"cancel_futures": True}))
            self.pool = new
        message = (
            f"stage {work.stage} (`{work.name}`) did not answer for {list_clients(batch.clients)} within "
            f"{waited:.1f} s, with timeout_seconds={self.timeout_seconds}. A worker that hangs would block the whole "
            "round: increase `timeout_seconds`, give a task fewer clients, or check the workers of the pool."
        )
        message += " This engine has killed the workers and created a new pool." if new is not None else ""
        return EngineError(message, stage=work.stage, client=", ".join(map(str, batch.clients)))


class _Answers:
    """The answers of one pass, received in any order and added in batch order."""

    def __init__(self, engine: Executor, work: Pass, size: int) -> None:
        self.engine, self.work, self.size = engine, work, size
        self.digest = "" if engine._local else work.exported(size, engine.platforms)[0]
        self.inputs: dict[int, Any] = {}  # checksums of each batch's inputs
        self.submit = engine._sender(work, size, self.inputs)
        self.waiting: dict[Future, tuple[Batch, int]] = {}  # with the number of copies sent
        self.replies: dict[int, tuple[Batch, Reply]] = {}  # early answers
        self.missing: dict[int, tuple[Batch, str]] = {}
        self.turn = self.answered = 0
        self.quorum = work.undecided
        self.started = self.heard = time.perf_counter()

    def collect(self, workers: int) -> None:
        """Sends all batches, at most two per worker at a time, and adds their answers."""
        source = self.engine._batches(self.work, self.size)
        exhausted = reason = None
        while not (reason := self.work.enough(self.answered, self.missing, self.started)) and not (
            exhausted and not self.waiting
        ):
            while not exhausted and len(self.waiting) < 2 * workers:
                batch = next(source, None)
                if batch is None:
                    exhausted = True
                elif self.work.is_out(batch, self.size):
                    self.missing[batch.index] = batch, ""
                    self._add()
                else:
                    self._send(batch, 1)
            if exhausted and self.engine.backups:
                self._back_up(workers - len(self.waiting))
            self._wait()
        if self.quorum is None:
            return
        if reason:
            for batch, _ in self.waiting.values():
                self.missing[batch.index] = batch, reason
            self.missing.update((batch.index, (batch, reason)) for batch in source)
        if self.missing:
            self.work.decide(self.missing, self.size)
        self._add()

    def _send(self, batch: Batch, tries: int) -> None:
        try:
            self.waiting[self.submit(batch)] = batch, tries
        except concurrent.futures.BrokenExecutor as error:
            raise self.engine._broken(self.work, error) from error
        except RuntimeError as error:  # a closed pool raises here
            raise self.work.failed(batch, error, "the pool") from error

    def cancel(self, number: int | None = None) -> None:
        """Cancels all pending tasks, or the remaining copy of one batch."""
        for future in [x for x, (batch, _) in self.waiting.items() if number in (None, batch.index)]:
            future.cancel()
            del self.waiting[future]

    def _back_up(self, idle: int) -> None:
        """Sends second copies of the oldest batches that have not answered."""
        copies = Counter(batch.index for batch, _ in self.waiting.values())
        late = [(batch, tries) for batch, tries in self.waiting.values() if copies[batch.index] == 1]
        for batch, tries in late[: max(idle, 0)]:
            self._send(batch, tries)

    def _wait(self) -> None:
        """Receives finished answers; checks `cancel` and the deadline ten times a second."""
        began = time.perf_counter()
        if not (futures := self._done()):  # `wait` does not report futures that their pool cancelled
            concurrent.futures.wait(self.waiting, 0.1, concurrent.futures.FIRST_COMPLETED)
            futures = self._done()
        now = time.perf_counter()
        self.work.recorder.stage(self.work.stage, "server", 0.0, now - began)
        for future in futures:
            if future in self.waiting:  # except the copy of a batch that has been answered
                self.heard = now
                self._take(future, *self.waiting.pop(future))
        if not futures and self.waiting:
            self.work.recorder.check(self.work.stage, self.work.done)
            limit = self.engine.timeout_seconds
            if limit is not None and now - self.heard > limit:
                (batch, _) = next(iter(self.waiting.values()))
                raise self.engine._late(self.work, batch, now - self.heard)
        self._add()

    def _done(self) -> list[Future]:
        return [future for future in self.waiting if future.done()]

    def _take(self, future: Future, batch: Batch, tries: int) -> None:
        try:
            reply: Reply = future.result()
        except concurrent.futures.BrokenExecutor as error:
            raise self.engine._broken(self.work, error) from error
        except (Exception, concurrent.futures.CancelledError) as error:
            _LOG.warning("stage %s: a worker failed: %s: %s", self.work.stage, type(error).__name__, error)
            if any(peer.index == batch.index for peer, _ in self.waiting.values()):
                return  # its copy may still answer
            if self.quorum is not None:
                self.missing[batch.index] = batch, brief(error)
                return
            single = self.work.isolated(batch, nan=False) if self.engine._local and len(batch.clients) > 1 else None
            raise single or self.work.failed(batch, error, "a worker") from error
        if not reply.is_of(self.digest, batch.index, self.inputs.get(batch.index, ())):
            if tries == _TRIES:
                answer = f"the answer for {name_clients(batch.clients)}"
                fact = f"{answer} was changed in transit, or belonged to another batch, in each of {_TRIES} tries"
                raise self.work.miscounted(fact)
            _LOG.warning("stage %s: batch %d got a foreign answer and is sent again", self.work.stage, batch.index)
            self._send(batch, tries + 1)
            return
        self.cancel(batch.index)
        self.replies[batch.index] = batch, reply
        self.answered += len(batch.clients)

    def _add(self) -> None:
        """Adds the answers that are next in order; missing clients add nothing."""
        undecided = self.quorum is not None and self.work.present is None
        while self.turn in self.replies or (self.turn in self.missing and not undecided):
            if self.turn in self.replies:
                self._add_reply(*self.replies.pop(self.turn))
            else:
                self.work.skip(self.missing[self.turn][0])
            self.turn += 1

    def _add_reply(self, batch: Batch, reply: Reply) -> None:
        work, check_nan = self.work, self.engine.check_nan
        work.recorder.warmup_seconds += reply.compile_seconds / _count_workers(self.engine.pool)
        if reply.compile_seconds:
            work.recorder.note(f"stage {work.stage} was compiled on {reply.where} in {reply.compile_seconds:.2f} s")
        try:
            work.add(batch, reply.outputs, seconds=reply.seconds, where=reply.where, check_nan=check_nan)
        except EngineError as error:
            alone = check_nan and len(batch.clients) > 1 and self.engine._held(work)[0] is None
            raise (work.isolated(batch, nan=True) or error) if alone else error from None


def _remade(pool: Foreign) -> concurrent.futures.Executor | None:
    """Creates a new pool with a broken pool's settings, or returns None if these settings are not known."""
    if type(pool) is concurrent.futures.ProcessPoolExecutor:
        old: Foreign = pool  # its settings have no public names
        settings = old._max_workers, old._mp_context, old._initializer, old._initargs
        return concurrent.futures.ProcessPoolExecutor(*settings, max_tasks_per_child=old._max_tasks_per_child)
    if type(pool).__name__ == "_ReusablePoolExecutor":  # a loky pool, which stores its settings
        from loky import get_reusable_executor  # pyright: ignore[reportMissingImports] -- installed with the pool

        return get_reusable_executor(pool._max_workers, reuse=False, kill_workers=True)  # pyright: ignore
    return None


def _is_loky(pool: object) -> bool:
    return type(pool).__module__.startswith("loky.")


def _check_dask(client: Foreign) -> None:
    """Checks that every Dask worker can import this version of the package."""
    addresses = client.__dict__.setdefault("_workbench_checked", set())
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    if not (new := sorted(workers - addresses)):
        return
    # Uses only the standard library, so that a worker without the package can run this check.
    answers = client.run(eval, "__import__('workbench').__version__", workers=new, on_error="return")
    wrong = [f"{worker}: {answer}" for worker, answer in answers.items() if answer != __version__]
    if wrong:
        message = (
            f"workers of the Dask cluster do not have workbench {__version__}, which this process runs: "
            f"{'; '.join(wrong)}. Workers need the same package version as this process: install it on the workers."
        )
        raise EngineError(message)
    addresses.update(new)


def _scattered(client: Foreign, values: Values) -> object:
    """Copies the values to two Dask workers; every other worker fetches them once.

    Dask's `broadcast=True` never returns if a worker has just died (distributed 2026.8).
    """
    key, copies = f"workbench-{uuid.uuid4().hex}", []
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    for worker in random.sample(workers, len(workers)):
        with contextlib.suppress(OSError, KeyError):  # the worker is gone
            copies.append(client.scatter({key: values}, workers=[worker])[key])
        if len(copies) == 2:
            break
    return copies[0] if copies else client.scatter({key: values})[key]


def _run_here(compiled: jax.stages.Compiled, operands: list[Any]) -> Reply:
    started = time.perf_counter()
    outputs = jax.block_until_ready(compiled(*operands))
    return Reply(outputs, threading.current_thread().name, time.perf_counter() - started, 0.0)


def _count_workers(pool: Foreign) -> int:
    count = getattr(pool, "_max_workers", None)
    if count is None and hasattr(pool, "_client"):  # distributed's executor
        count = sum(worker["nthreads"] for worker in pool._client.scheduler_info(n_workers=-1)["workers"].values())
    return max(1, count or os.cpu_count() or 1)


def _check(pool: object, clients_per_task: object) -> None:
    if not callable(getattr(pool, "submit", None)):
        message = (
            f"`Executor` was given {pool!r} (type {type(pool).__name__}), which has no `submit`. `Executor` submits "
            "its tasks to an executor like those of `concurrent.futures`: pass a ThreadPoolExecutor, loky's "
            "`get_reusable_executor()`, or `distributed.Client(…).get_executor()`."
        )
        raise ProgramError(message)
    check_batch_size("Executor", "one task", clients_per_task, option="clients_per_task", auto="up to 32")
    context = getattr(pool, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        message = (
            f"`Executor` was given an object of type {type(pool).__name__} that starts its processes by fork. A forked "
            "process inherits JAX's locks but not its threads, and hangs in its first computation: pass "
            '`ProcessPoolExecutor(n, mp_context=multiprocessing.get_context("spawn"))`, or loky\'s '
            "`get_reusable_executor(n)`."
        )
        raise EngineError(message)
