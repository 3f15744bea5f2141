"""Runs rounds, with progress, history, early stopping, checkpoints and resuming."""

import asyncio
import contextlib
import contextvars
import hashlib
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import jax
import numpy as np
from jax import Array

from workbench import _jax_compat, render
from workbench._types import PyTree
from workbench.errors import EngineError, MeasureError, MissingDependencyError, ProgramError, RoundError
from workbench.measurement._checkpoints import Checkpoints
from workbench.measurement._controls import Controls, stop_and_wait
from workbench.measurement._emissions import hearing
from workbench.measurement._feed import Feed
from workbench.measurement._history import History, read_metrics, without_clients
from workbench.measurement._progress import Progress
from workbench.measurement._run_log import Tracker, describe_run, trackers_of
from workbench.measurement._run_store import StoredRun, load_run
from workbench.records.live import ProblemRecord, RoundRecord
from workbench.records.run import RunRecord
from workbench.render import display_object

Status = Literal["ready", "running", "paused", "finished", "stopped", "interrupted", "failed"]
Callback = Callable[["Run", RoundRecord], Any]


class RoundEngine(Protocol):
    """Interface of the engines in `workbench.engines` that `run_rounds` can use."""

    def run(self, fn: Callable, *args: object) -> RunRecord:
        """Runs `fn`, and stores its return value as the record's `results`."""
        ...


class _Finished(NamedTuple):
    """State after a round, replaced atomically so that an interrupt sees either the old or the new state."""

    state: PyTree[Array]
    rounds: int  # number of records that belong to finished rounds


class Run:
    """A run of rounds, which can be watched, paused or stopped from any thread, and awaited.

    Args: step, state, rounds and all options: As for `run_rounds`, which makes and starts a run.

    Raises:
        MeasureError: if `rounds`, `keep` or `checkpoint_every` is out of range, or if `checkpoint_dir` already has
            rounds and `resume` is False.
        DataError: if no checkpoint in `checkpoint_dir` matches the state.

    Example:
        >>> run = Run(lambda total, round: (total + round, {"before": total}), 0, 4, progress=False)
        >>> run.start().status, run.state
        ('finished', 6)
        >>> [record.metrics["before"] for record in run.history]
        [0.0, 0.0, 1.0, 3.0]
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: PyTree[Array],
        rounds: int,
        *,
        data: PyTree[Array] = None,
        key: jax.Array | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_dir: str | Path | None = None,
        keep: int = 3,
        checkpoint_every: int = 1,
        resume: bool = True,
        evaluate: Callable[[Any], Any] | None = None,
        every: int = 1,
        stop_when: Callable[[RoundRecord], bool] | None = None,
        client_rounds: int | None = None,
        emitted: bool = False,
        nonfinite: Literal["note", "stop"] = "note",
        progress: bool = True,
        log: Tracker | str | Path | Sequence[Tracker | str | Path] | None = None,
        name: str = "",
        engine: RoundEngine | None = None,
    ) -> None:
        _check(
            rounds=(rounds, 0),
            keep=(keep, 1),
            checkpoint_every=(checkpoint_every, 1),
            every=(every, 1),
            client_rounds=(client_rounds, 1),
        )
        self.rounds = rounds
        self.error: BaseException | None = None
        self._step, self._client_rounds, self._emitted = step, client_rounds, emitted
        self._engine = engine
        self._evaluate, self._every = evaluate, every
        self._stop_when, self._nonfinite, self._progress = stop_when, nonfinite, progress
        self._checkpoint_every = checkpoint_every
        self._checkpoints = None if checkpoint_dir is None else Checkpoints(checkpoint_dir, keep=keep)
        self._callbacks = list(callbacks)
        self._trackers = trackers_of(log)
        self._about = (state, data, key, name)
        self._problems: list[ProblemRecord] = []
        self._status: Status = "ready"
        self._controls = Controls()
        self._thread: threading.Thread | None = None
        self._pending: tuple[Any, Any, float] | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._saved = 0
        self._writing = 0  # the newest round whose checkpoint was started: an interrupt may leave it unfinished
        self._resumed_from: int | None = 0  # the newest round in the folder when this run last read it
        self._records: list[RoundRecord] = []
        self._last = _Finished(state, 0)
        self._take_up(resume)
        self._feed = Feed(data, key, finished=self.finished)

    @property
    def status(self) -> Status:
        """The state of the run: ready, running, paused, finished, stopped, interrupted or failed."""
        return self._status

    @property
    def finished(self) -> int:
        """Number of finished rounds, including rounds before a resume."""
        return self._last.rounds

    @property
    def history(self) -> History:
        """The finished rounds."""
        return History(self._records[: self._last.rounds])

    @property
    def problems(self) -> tuple[ProblemRecord, ...]:
        """Problems that did not stop the run: non-finite metrics, failed checkpoints or callbacks."""
        in_rounds = [problem for record in self._records[: self._last.rounds] for problem in record.problems]
        return tuple(sorted([*in_rounds, *self._problems], key=lambda problem: problem.round))

    @property
    def state(self) -> PyTree[Array]:
        """The state after the last finished round.

        Raises:
            EngineError: if the step donates its state, and a failed round has consumed it.
        """
        if _gone(self._last.state):
            where = f" Round {self._saved} is on disk: use `load_checkpoint`." if self._saved else ""
            msg = (
                f"`run.state` was asked for the state after {self.finished} rounds, but `step` donates its state, and "
                "the next round, which did not finish, has reused its memory. A donated array cannot be read "
                f"again.{where} To keep the state, run with `checkpoint_dir` or without donation."
            )
            raise EngineError(msg)
        return self._last.state

    def start(self, *, background: bool = False) -> Self:
        """Runs the remaining rounds; a stopped or failed run continues after its last finished round.

        A background run inherits the mesh of `jax.set_mesh` and the context variables, but none of the calling thread's
        other settings.

        Raises:
            RoundError: if a round failed.
            KeyboardInterrupt: on Ctrl-C in the foreground; `error.run` is this run, after its last finished round.
            MeasureError: if the run is already in progress, or in a forked child of a process that used JAX.
        """
        if self._status in ("running", "paused"):
            msg = (
                f"`start` was called on a run that is {self._status} (round {self.finished} of {self.rounds}). A run "
                "can use only one thread at a time: call `pause()`, `resume()` or `wait()` on this run, or "
                "create another run."
            )
            raise MeasureError(msg)
        if refused := _jax_compat.waits_forever("`run_rounds`"):
            raise MeasureError(refused)
        if _gone(self._last.state) and self._saved:
            self._take_up(resume=True)
        _ = self.state  # reject a donated state, which would crash inside JAX
        try:
            if self._checkpoints is not None:
                self._lock_folder(self._checkpoints)
            self._start_trackers()
        except BaseException:
            if self._checkpoints is not None:
                self._checkpoints.close()
            raise
        self.error, self._pending, self._interrupt = None, None, None
        self._controls.stop.clear()
        self._controls.over.clear()
        self._controls.go.set()
        self._status = "running"
        if not background:
            try:
                self._drive()
            except KeyboardInterrupt as error:  # a second interrupt, at any place
                self._interrupt = error
            finally:
                self._settle("interrupted")
            self._raise_interrupt()
            return self._raise_error()
        mesh, context = jax.sharding.get_mesh(), contextvars.copy_context()

        at_exit = weakref.finalize(self, stop_and_wait, self._controls)  # a thread killed inside JAX aborts Python

        def drive() -> None:
            try:
                with contextlib.nullcontext() if mesh.empty else jax.set_mesh(mesh):
                    self._drive(background=True)
            finally:
                self._settle("failed")
                at_exit.detach()

        self._thread = threading.Thread(target=context.run, args=(drive,), name="workbench-run", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops the run after the current round."""
        self._controls.stop.set()
        self._controls.go.set()

    def pause(self) -> None:
        """Pauses the run before its next round."""
        self._controls.go.clear()

    def resume(self) -> None:
        """Resumes a paused run."""
        self._controls.go.set()

    def wait(self, timeout_seconds: float | None = None) -> Self:
        """Waits until the run is over.

        Raises:
            RoundError: if a round failed.
            EngineError: if the run does not finish in time; the run continues.
        """
        if not self._controls.over.wait(timeout_seconds):
            msg = (
                f"`wait` gave up after {timeout_seconds:g} s, with {self.finished} of {self.rounds} rounds finished; "
                f"the run is {self._status}. The run continues in the background: wait longer, or `stop()` it."
            )
            raise EngineError(msg)
        return self._raise_error()

    def __await__(self) -> Generator[Any, None, Self]:
        """Waits without blocking the event loop; starts the run if it has not started yet."""
        if self._status == "ready":
            self.start(background=True)
        return asyncio.to_thread(self.wait).__await__()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Calls `callback(run, record)` after every round; returns a function that unsubscribes."""
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return unsubscribe

    def __repr__(self) -> str:
        return f"<Run {self._status}: {self.finished} of {self.rounds} rounds, {len(self.problems)} problems>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return display_object("Run", repr(self)[1:-1], picture=render.rounds_png(tuple(self.history)))

    def _raise_error(self) -> Self:
        if self.error is not None:
            raise self.error
        return self

    def _take_up(self, resume: bool) -> None:
        rounds = self._checkpoints.rounds() if self._checkpoints else []
        if not rounds or self._checkpoints is None:
            return
        if not resume:
            msg = (
                f"`Run` was given resume=False and checkpoint_dir={str(self._checkpoints.directory)!r}, which already "
                f"has rounds {rounds}. Two runs must not share a folder: pass another folder, empty this folder, or "
                "omit `resume` to continue from its newest round."
            )
            raise MeasureError(msg)
        finished, state, history = self._checkpoints.load(self._last.state)
        shortened = 0 if self._client_rounds is None else max(0, finished - self._client_rounds)
        self._records = [*map(without_clients, history[:shortened]), *history[shortened:]]
        self._last, self._saved = _Finished(state, finished), finished
        self._resumed_from = rounds[-1]
        if self._checkpoints.program not in ("", _program_of(self._step)):
            self._note(
                f"the checkpoint of round {finished} was written by another step ({self._checkpoints.program}); this "
                f"step ({_program_of(self._step)}) continues from its state"
            )

    def _lock_folder(self, checkpoints: Checkpoints) -> None:
        """Locks the folder, and checks whether another run has written to it since it was read."""
        checkpoints.lock()
        newest = max(checkpoints.rounds(), default=0)
        # After an interrupt, checkpoints that this run started may still appear.
        if self._resumed_from is None or self._resumed_from <= newest <= max(self._resumed_from, self._writing):
            return
        msg = (
            f"`Run` was given checkpoint_dir={str(checkpoints.directory)!r}, whose newest round was "
            f"{self._resumed_from} when this run read it and is {newest} now: another run has written to this "
            "folder. Continuing would overwrite the states of the other run: create a new `Run` to continue from "
            "these states, or pass another folder."
        )
        raise MeasureError(msg)

    def _drive(self, *, background: bool = False) -> None:
        status: Status = "failed"
        progress = None
        try:
            progress = Progress(self.rounds, self.finished, shown=self._progress)
            status = self._all_rounds(progress)
        except KeyboardInterrupt as error:
            status, self._interrupt = "interrupted", error
            self._rescue()
        except Exception as error:
            self.error = self._round_error(error)
        except BaseException as error:  # `sys.exit()` in a step, which would be invisible in a thread
            self.error = self._round_error(error)
            if not background:
                raise
        finally:
            try:
                self._save(last=True)
            except KeyboardInterrupt as error:  # a second interrupt, while the last checkpoint was written
                self._note(
                    f"checkpoint of round {self.finished} was interrupted; it will be written when the run continues"
                )
                status, self._interrupt = "interrupted", error
            finally:
                self._settle(status)
                if progress is not None:
                    progress.close(self.status)

    def _raise_interrupt(self) -> None:
        if (interrupt := self._interrupt) is None:
            return
        self._interrupt = None
        interrupt.args = interrupt.args or (
            f"The run has finished {self.finished} of {self.rounds} rounds. The run is the attribute `run` of this "
            "exception (`sys.last_value.run` in a notebook): `run.start()` continues.",
        )
        setattr(interrupt, "run", self)  # noqa: B010 -- a built-in exception
        raise interrupt

    def _settle(self, status: Status) -> None:
        """Marks the run as over, unless it is already marked; `start` and `wait` depend on this mark."""
        if self._status not in ("running", "paused"):
            return
        for tracker in list(self._trackers):
            self._with_tracker(tracker, lambda tracker: tracker.finish(status))
        self._status = status
        self._controls.over.set()
        if self._checkpoints is not None:
            with contextlib.suppress(Exception):  # the folder may have been deleted
                self._resumed_from = max(self._checkpoints.rounds(), default=0)
                self._checkpoints.close()

    def _all_rounds(self, progress: Progress) -> Status:
        while self.finished < self.rounds:
            if not self._controls.go.is_set():
                self._status = "paused"
                self._controls.go.wait()
                self._status = "running"
            if self._controls.stop.is_set():
                return "stopped"
            if not self._one_round():
                return "stopped"
            self._add_evaluation()
            self._save()
            record = self._records[self._last.rounds - 1]
            progress.update(record)
            self._notify(record)
            if self._stop_when is not None and self._stop_when(record):
                return "stopped"
        return "finished"

    def _one_round(self) -> bool:
        started = time.perf_counter()
        round = self.finished
        with hearing(self._emitted) as received:
            arguments = (self._last.state, *self._feed.arguments(round))
            returned = (
                self._step(*arguments) if self._engine is None else self._engine.run(self._step, *arguments).results
            )
        if not isinstance(returned, tuple) or len(returned) != 2:
            kind = type(returned).__name__
            msg = (
                f"`run_rounds` was given a step that returned an object of type {kind} in round {round}. "
                "A step returns two values, the next state and the metrics: `return state, {'loss': loss}`."
            )
            raise ProgramError(msg)
        self._pending = (returned[0], received(returned[1]), started)
        return self._commit()

    def _commit(self) -> bool:
        """Waits for the pending round and marks it as finished; returns False if its metrics end the run."""
        assert self._pending is not None
        state, metrics, started = self._pending
        state, metrics = jax.block_until_ready((state, metrics))
        values, problems = read_metrics(metrics, round=self.finished)
        if problems and self._nonfinite == "stop":
            self._problems += problems
            self._pending = None
            return False
        seconds = time.perf_counter() - started
        record = RoundRecord(
            round=self.finished, seconds=seconds, metrics=values, problems=problems, unix_seconds=time.time()
        )
        count = self._last.rounds
        self._records[count:] = [record]  # also overwrites a record that an interrupt left there
        self._last = _Finished(state, count + 1)
        self._pending = None
        if self._client_rounds is not None and count >= self._client_rounds:
            old = count - self._client_rounds  # all earlier rounds were already shortened
            self._records[old] = without_clients(self._records[old])
        return True

    def _add_evaluation(self) -> None:
        """Adds the metrics from `evaluate` to the last round; the round is kept if `evaluate` fails."""
        count = self.finished
        if self._evaluate is None or (count % self._every and count < self.rounds):
            return
        record = self._records[count - 1]
        try:
            metrics = jax.block_until_ready(self._evaluate(self._last.state))
            values, problems = read_metrics(metrics, round=record.round)
        except Exception as error:
            msg = (
                f"`evaluate` failed after round {record.round}: {type(error).__name__}: {error}. `evaluate` receives "
                "only the state and returns metrics, a dictionary of numbers or arrays. The round itself is finished."
            )
            raise ProgramError(msg) from error
        if both := [name for name in values if name in record.metrics]:
            msg = (
                f"`evaluate` and the step both returned {', '.join(both)} in round {record.round}. "
                'One of the two would be lost: use different names, such as "test loss".'
            )
            raise ProgramError(msg)
        self._records[count - 1] = record.replace(
            metrics=record.metrics | values, problems=(*record.problems, *problems)
        )

    def _rescue(self) -> None:
        """Finishes a round, after an interrupt, if its step has already donated the old state."""
        if self._pending is not None and _gone(self._last.state):
            self._commit()

    def _save(self, *, last: bool = False) -> None:
        finished = self.finished
        if self._checkpoints is None or finished == self._saved or (not last and finished % self._checkpoint_every):
            return
        self._writing = finished
        try:
            self._checkpoints.save(finished, self.state, self._records, program=_program_of(self._step))
        except Exception as error:  # a full disk must not stop the run, whose state is still in memory
            note = f"the checkpoint of round {self._saved} is kept" if self._saved else "there is no earlier checkpoint"
            reason = (str(error).splitlines() or [""])[0][:300]
            self._note(
                f"checkpoint of round {finished} could not be written ({type(error).__name__}: {reason}); {note}"
            )
        else:
            self._saved = finished

    def _notify(self, record: RoundRecord) -> None:
        for callback in list(self._callbacks):
            try:
                callback(self, record)
            except Exception as error:  # a broken display must not stop the run
                self._callbacks.remove(callback)
                self._note(f"a callback failed and was removed ({type(error).__name__}: {error})")

        for tracker in list(self._trackers):
            self._with_tracker(tracker, lambda tracker: tracker.log(record))

    def _start_trackers(self) -> None:
        if not self._trackers:
            return
        state, data, key, name = self._about
        is_deleted = _gone(state)
        start_state = None if is_deleted else state
        about = describe_run(self._step, start_state, data=data, key=key, rounds=self.rounds, name=name)
        about["earlier"] = self._records[: self._last.rounds]
        program = {"step": self._step, "state": start_state, "data": data, "key": key, "rounds": self.rounds}
        program |= {"emitted": self._emitted, "evaluate": self._evaluate, "every": self._every}
        if is_deleted:
            program["cannot"] = "the step donates its state, and the first state is no longer available"
        elif hasattr(data, "__next__"):
            program["cannot"] = "`data` is an iterator, which can be read only once"
        for tracker in list(self._trackers):
            self._with_tracker(tracker, lambda tracker: tracker.start(about, program))

    def _with_tracker(self, tracker: Tracker, do: Callable[[Tracker], None]) -> None:
        try:
            do(tracker)
        except MissingDependencyError:
            self._trackers.remove(tracker)
            raise
        except Exception as error:  # a full disk or a lost connection must not stop the run
            self._trackers.remove(tracker)
            self._note(f"{type(tracker).__name__} failed and was removed ({type(error).__name__}: {error})")

    @staticmethod
    def load(path: str | Path) -> "StoredRun[Run]":
        """Reads a run from a folder that `log=` wrote: its provenance and history, with `rerun()`.

        Raises:
            DataError: if there is no run.
        """
        return load_run(path, run_rounds)

    def _note(self, text: str) -> None:
        self._problems.append(ProblemRecord(round=max(self.finished - 1, 0), what=text))

    def _round_error(self, error: BaseException) -> RoundError:
        if not _gone(self._last.state):
            advice = (
                f"The state and the history of the {self.finished} finished rounds are kept in `error.run` (`.state`, "
                "`.history`). Fix the error and continue with `error.run.start()`."
            )
        else:
            advice = (
                "The step donates its state, and the failed round has reused its memory. The history of the "
                f"{self.finished} finished rounds is kept in `error.run`"
                + (
                    f", and the state of round {self._saved} is on disk: fix the error and continue from there with "
                    "`error.run.start()`."
                    if self._saved
                    else ", but their state is lost: fix the error and start again, with `checkpoint_dir` or without "
                    "donation to keep the state next time."
                )
            )
        failed = RoundError(
            f"`run_rounds`: round {self.finished} of {self.rounds} failed: {type(error).__name__}: {error}\n{advice}",
            round=self.finished,
            run=self,
        )
        failed.stage, failed.client = getattr(error, "stage", None), getattr(error, "client", None)
        failed.__cause__ = error
        return failed


def run_rounds(
    step: Callable[..., Any],
    state: PyTree[Array],
    rounds: int,
    *,
    data: PyTree[Array] = None,
    key: jax.Array | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint_dir: str | Path | None = None,
    keep: int = 3,
    checkpoint_every: int = 1,
    resume: bool = True,
    evaluate: Callable[[Any], Any] | None = None,
    every: int = 1,
    stop_when: Callable[[RoundRecord], bool] | None = None,
    client_rounds: int | None = None,
    emitted: bool = False,
    nonfinite: Literal["note", "stop"] = "note",
    progress: bool = True,
    log: Tracker | str | Path | Sequence[Tracker | str | Path] | None = None,
    name: str = "",
    engine: RoundEngine | None = None,
    background: bool = False,
) -> Run:
    """Runs `state, metrics = step(state, …)` for many rounds; returns the run with its history.

    Each round adds one wait for the devices and one copy of the metrics to the host.

    Args:
        step: One round. Called as `step(state, round)`, or as `step(state, batch)` if `data` is given; with `key`, the
            round's key is an additional last argument. Returns the next state (any pytree of the same shapes) and
            metrics: a dictionary of numbers or arrays `[]`, `[clients]` or `[clients, steps]`.
        state: The initial state.
        rounds: Total number of rounds, including rounds before a resume.
        data: The second argument of `step`. A function is called with the number of each round. An iterator, such as
            `(cohort.tree for cohort in cohorts)`, yields one item per round. Any other value, such as a list, is passed
            unchanged to every round. Default: the number of the round.
        key: A PRNG key; round `r` gets `jax.random.fold_in(key, r)` as its last argument.
        callbacks: Called as `callback(run, record)` after every round; a callback that raises is removed and noted.
        checkpoint_dir: Folder for the states of the latest rounds. The run resumes from an existing checkpoint.
        keep: Number of checkpoints to keep.
        checkpoint_every: Number of rounds between checkpoints; the last finished round is always written.
        resume: If False, a `checkpoint_dir` that already contains rounds causes an error.
        evaluate: Called as `evaluate(state)` with the state after a round; like a step, it returns metrics, which are
            added to the metrics of the round. The time that `evaluate` takes is not included in the round's time.
        every: Number of rounds between evaluations; the last round is always evaluated.
        stop_when: Called with the record of each round; returning True stops the run.
        client_rounds: Number of latest rounds that keep every client's metrics; older rounds keep only the mean, so
            that long runs need less memory. None means all rounds.
        emitted: Whether values that programs `emit` in a round are added to the metrics: one value per client, or per
            client and local step. The first round then compiles a version of the program that reports these values.
        nonfinite: Reaction to a non-finite metric: "note" records it with round, metric and client; "stop" stops the
            run with the state before that round.
        progress: Whether to show a progress bar.
        log: Destination of finished rounds: a folder or trackers. A folder becomes a registry of runs as JSON lines
            (`Run.load`, `list_runs`, `workbench runs`). Trackers are `RunFolder`, `TensorBoardLog`, `WandbLog`,
            `MlflowLog`, `TrackioLog`, or your own objects with the same three methods.
        name: Name of the run, for trackers. Default: the step's name.
        engine: An engine of `workbench.engines` that runs the step (a program), instead of a call in this process.
            `data` may then be a `ClientReader`, whose clients need not fit in memory: `MeshEngine()` reads them again
            in every round.
        background: Whether to return immediately and run in a thread.

    Returns:
        The run, which is finished, stopped early, or (with `background`) still running.

    Raises:
        RoundError: if a round failed; `error.run` contains the state and history of the finished rounds.
        KeyboardInterrupt: on Ctrl-C, so that a loop over runs is stopped as well. `error.run` (in a notebook,
            `sys.last_value.run`) is the run after its last finished round; call its `start()` to continue.

    Example:
        >>> run = run_rounds(lambda state, round: (state + 1, {"loss": 1 / (round + 1)}), 0, 4, progress=False)
        >>> run.state, run.status, run.history.summary()["loss"].tolist()[:2]
        (4, 'finished', [1.0, 0.5])
    """
    run = Run(
        step,
        state,
        rounds,
        data=data,
        key=key,
        callbacks=callbacks,
        checkpoint_dir=checkpoint_dir,
        keep=keep,
        checkpoint_every=checkpoint_every,
        resume=resume,
        evaluate=evaluate,
        every=every,
        stop_when=stop_when,
        client_rounds=client_rounds,
        emitted=emitted,
        nonfinite=nonfinite,
        progress=progress,
        log=log,
        name=name,
        engine=engine,
    )
    return run.start(background=background)


def _program_of(step: Callable) -> str:
    """Name and code digest of a step, used to detect a folder that contains another program's states."""
    code = getattr(inspect.unwrap(step), "__code__", None)
    name = getattr(step, "__qualname__", type(step).__name__)
    return name if code is None else f"{name} {hashlib.sha256(code.co_code).hexdigest()[:12]}"


def _check(**settings: tuple[Any, int]) -> None:
    """Checks settings against their minimum values; names all settings that are too small."""
    entries = {name: value for name, (value, _) in settings.items() if value is not None}
    if texts := [f"{name}={value!r}" for name, value in entries.items() if not _is_integer(value)]:
        msg = (
            f"`Run` was given {' and '.join(texts)}. These are counts: pass whole numbers, such as "
            f"{texts[0].partition('=')[0]}=10."
        )
        raise MeasureError(msg)
    wrong = [name for name, value in entries.items() if value < settings[name][1]]
    if wrong:
        entries = " and ".join(f"{name}={settings[name][0]}" for name in wrong)
        rules = " and ".join(f"{name} >= {settings[name][1]}" for name in wrong)
        msg = (
            f"`Run` was given {entries}, but `rounds` must be at least 0 and all other counts at least 1. Pass {rules}."
        )
        raise MeasureError(msg)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _gone(state: PyTree[Array]) -> bool:
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(state))
