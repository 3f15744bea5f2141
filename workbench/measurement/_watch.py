"""`watch`: a live record of a training loop."""

import collections
import contextlib
import functools
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
from jax.core import Tracer

from workbench import render
from workbench._open_types import Foreign
from workbench._types import Argument
from workbench.errors import MeasureError
from workbench.inspection import TracedCall, function_name, trace_call
from workbench.measurement._explain import LOG, Heard, start_hearing, stop_hearing
from workbench.measurement._history import History
from workbench.measurement._profile import RunningProfile
from workbench.measurement._progress import Progress
from workbench.measurement._run_log import Tracker, describe_run, trackers_of
from workbench.measurement._watch_core import Core, WatchedStep, WatchStatus, copy_of
from workbench.measurement._watch_outputs import (
    Reader,
    Wanted,
    WatchedCall,
    arguments_of,
    arrays_of,
    changes_between,
    outputs_by_name,
    shapes_of,
)
from workbench.records.compiled import ProgramRecord
from workbench.records.live import ProblemRecord, WatchRecord
from workbench.render import display_object

if TYPE_CHECKING:
    import pandas as pd

_MOST_REMEMBERED = 16
_REMEMBERED: "collections.OrderedDict[tuple[str, str], Core]" = collections.OrderedDict()
"""The latest watched function of every name, to compare with the next."""


_FEW_ARRAYS = 50


class Watch:
    """Wraps a function and records its calls; see `workbench.watch`.

    Attributes of the function, such as `lower` and `trace`, are forwarded.

    Args:
        fn: The function. With None, the steps come from `steps`, or from a function passed when the watch is called.
        outputs: See `workbench.watch`.
        log: See `workbench.watch`.
        profile_every: See `workbench.watch`.
        name: Name of the loop. Default: the function's name.
        display: Function that shows the watch; it receives this object before the first watched step.
    """

    def __init__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        outputs: Wanted = None,
        log: Tracker | str | Path | list[Tracker | str | Path] | None = None,
        profile_every: int | None = None,
        name: str = "",
        display: Callable[["Watch"], object] | None = None,
    ) -> None:
        if fn is not None and not callable(fn):
            message = (
                f"`watch` received an object of type {type(fn).__name__}. `watch` watches the calls of a function, or "
                "the steps of a loop: write `step = wb.watch(step)` for a function, or `with wb.watch() as loop:` for "
                "a loop."
            )
            raise MeasureError(message)
        if profile_every is not None and (isinstance(profile_every, bool) or profile_every < 1):
            message = (
                f"`watch` was given profile_every={profile_every}. Every n-th call is profiled: pass a whole number "
                "of at least 1, or omit it."
            )
            raise MeasureError(message)
        outputs_by_name(outputs)
        self._fn: Callable[..., Any] | None = None
        self._wanted, self._profile_every, self._display = outputs, profile_every, display
        self._last_profile = -1
        self._reader: Reader | None = None
        self._shown_problems = 0
        self._compiled: dict[tuple[Any, ...], None] = {}  # shapes of the arguments of calls that compiled something
        self._arguments: dict[str, str] = {}  # of the latest call that compiled something: their types and shardings
        self._opened = False
        self._open_lock = threading.Lock()
        self._here = threading.local()
        self._last: WatchedStep | None = None
        self._token: Any = None
        self._core = Core(name or "loop", trackers_of(log))
        self._given_name = name
        self._finish = weakref.finalize(self, _let_go, self._core)
        if fn is not None:
            self._bind(fn)

    def _bind(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        functools.update_wrapper(self, fn, updated=())
        name = self._given_name or function_name(fn)
        core = self._core
        core.name = name
        if name == "<lambda>":  # all lambdas have this name
            return
        key = str(getattr(fn, "__module__", "")), str(getattr(fn, "__qualname__", name))
        old = _REMEMBERED.pop(key, None)
        if old is not None:
            core.previous = old if old.started else old.previous
        _REMEMBERED[key] = core
        while len(_REMEMBERED) > _MOST_REMEMBERED:
            _REMEMBERED.popitem(last=False)

    # Calls.

    def __call__(self, *args: Argument, **kwargs: Argument) -> Any:
        """Calls the function; results and exceptions are passed through unchanged."""
        fn = self._fn
        if fn is None:
            if len(args) == 1 and not kwargs and callable(args[0]):
                self._bind(args[0])
                return self
            message = (
                f"`watch` was called with {len(args)} arguments, but has no function to watch yet. The first call must "
                "pass the function: `step = wb.watch()(step)`."
            )
            raise MeasureError(message)
        if self._core.status in ("finished", "failed"):
            return fn(*args, **kwargs)
        if not self._opened:
            self._open()
        step, token, before = self._begin(args, kwargs)
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            self._leave(step, token)
            if step is not None:
                self._core.problem(step.index, f"step {step.index} raised {type(error).__name__}: {str(error)[:200]}")
                self._core.settle()
            raise
        returned = time.perf_counter()
        self._leave(step, token)
        if step is not None:
            step.returned = returned
            try:
                self._end(step, WatchedCall(result, args, kwargs), before)
            except Exception as error:  # the user's loop continues, even if recording fails
                self._core.note(f"step {step.index} was not recorded ({type(error).__name__}: {str(error)[:200]})")
                self._core.settle()
            self._here.returned = time.perf_counter()
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        fn = self.__dict__.get("_fn")
        if fn is None or name.startswith("__"):
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(fn, name)

    def _open(self) -> None:
        with self._open_lock:
            if self._opened:
                return
            core = self._core
            if core.trackers:
                about = describe_run(self._fn or Watch, None, data=None, key=None, rounds=0, name=core.name)
                core.start_trackers(about)
            LOG.__enter__()
            self._finish.detach()
            self._finish = weakref.finalize(self, _let_go, core, opened=True)
            self._opened = True
        if self._display is not None:
            try:
                self._display(self)
            except Exception as error:  # a failing display must not stop the loop
                core.note(f"the live view could not be shown ({type(error).__name__}: {error})")

    def _begin(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> tuple[WatchedStep | None, Any, Any]:
        try:
            now = time.perf_counter()
            self._see_ready(now)
            last = getattr(self._here, "returned", None)
            before = arrays_of(args, kwargs) if self._reader is None else None
            step = WatchedStep(self._core.next_index(), now, None if last is None else now - last)
            every = self._profile_every
            if every is not None and step.index >= self._last_profile + every:
                step.profile = self._profile()
                if step.profile is not None:  # otherwise the next call tries again
                    self._last_profile = step.index
            step.heard = Heard()
            token = start_hearing(step.heard)
        except Exception as error:
            self._core.note(f"a call was not recorded ({type(error).__name__}: {str(error)[:200]})")
            return None, None, None
        step.called = time.perf_counter()
        return step, token, before

    def _leave(self, step: WatchedStep | None, token: Any) -> None:
        if step is not None:
            with contextlib.suppress(Exception):
                stop_hearing(token)

    def _see_ready(self, now: float) -> None:
        """Records that the previous call is ready, if the waiting thread has not noticed it yet."""
        last = self._last
        probe: Foreign = None if last is None else last.probe  # `is_ready` has no stub
        if last is None or last.ready is not None or probe is None:
            return
        try:
            if probe.is_ready():
                last.ready = now
        except RuntimeError:  # donated
            pass

    def _profile(self) -> RunningProfile | None:
        try:
            return RunningProfile()
        except Exception as error:
            self._core.note(f"a call was not profiled ({type(error).__name__}: {error})")
            return None

    def _end(self, step: WatchedStep, call: WatchedCall, before: Any) -> None:
        core = self._core
        if self._reader is None:
            reader = Reader(self._fn, self._wanted, call, before or {})
            if reader.is_traced:  # called inside another traced function, so nothing ran
                core.skip()
                return
            self._reader = reader
            core.donated |= reader.of_state
            if reader.is_empty and self._wanted is None:
                core.note(
                    "no output is recorded, because the results contain no floating-point scalar: choose outputs by "
                    'name or function, such as outputs={"norm": lambda result: …}'
                )
            self._note_problems()
        versions = self._compiled
        # With many arrays, shapes are compared only after the function was compiled for several shapes.
        if step.heard or len(versions) != 1 or len(next(iter(versions))) <= _FEW_ARRAYS:
            step.version = shapes_of(call.args, call.kwargs)
        else:
            (step.version,) = versions
        if step.heard or step.version not in versions:  # a call may run a program that was compiled before the loop
            versions[step.version] = None
            self._look(call, step.version)
        if step.heard:
            arguments = arguments_of(self._fn, call)
            step.changed, self._arguments = changes_between(self._arguments, arguments), arguments
        reader = self._reader
        try:
            step.probe, step.values = reader.read(call)
        except (AttributeError, KeyError, IndexError, TypeError):  # the structure of the results has changed
            self._reader = Reader(self._fn, self._wanted, call, {})
            step.probe, step.values = self._reader.read(call)
        if isinstance(step.probe, Tracer):
            core.skip()
            return
        self._note_problems()
        for name in core.donated:
            if name in step.values:
                step.values[name] = copy_of(step.values[name])
            elif not name and step.probe is not None:
                step.probe = copy_of(step.probe)
        self._last = step
        core.put(step)

    def _note_problems(self) -> None:
        reader = self._reader
        if reader is not None and len(reader.problems) > self._shown_problems:
            for problem in reader.problems[self._shown_problems :]:
                self._core.problem(max(self._core.finished - 1, 0), problem)
            self._shown_problems = len(reader.problems)

    def _look(self, call: WatchedCall, version: tuple[Any, ...]) -> None:
        """Finds the compiled program; JAX has already traced this call, so no user code runs again."""
        fn = self._fn
        inner = getattr(fn, "func", fn)
        if not callable(getattr(inner, "lower", None)):
            self._core.note(
                f"the cost is unknown: `{self._core.name}` is a Python function that calls compiled functions. Watch "
                "the jitted function to see its cost"
            )
            return
        try:
            assert fn is not None
            traced = trace_call(fn, call.args, call.kwargs, as_run=True)
            if isinstance(traced, TracedCall):
                self._core.inspect(traced.with_shapes(), version)
        except Exception as error:
            self._core.note(f"the cost is unknown ({type(error).__name__}: {str(error)[:200]})")

    # Loops of several functions.

    def steps(self, items: Iterable[Any]) -> Iterator[Any]:
        """Iterates over batches: each iteration is a step, and the time spent in the iterator is input time.

        Use `steps` for loops whose step consists of more than one function. Use `log` to record values of a step.

        Args:
            items: The batches.

        Yields:
            The batches.

        Raises:
            MeasureError: if the watch already has a function, whose calls are the steps.

        Example:
            >>> with Watch() as loop:
            ...     for batch in loop.steps([1.0, 2.0]):
            ...         loop.log(loss=jnp.square(batch))
            >>> [step.metrics["loss"] for step in loop.history]
            [1.0, 4.0]
        """
        if self._fn is not None:
            message = (
                f"`steps` was called on a watch of `{self._core.name}`, which counts each call as a step. A step "
                "must not be counted twice: iterate over the batches directly, or watch only the loop, "
                "as in `with wb.watch() as loop:`."
            )
            raise MeasureError(message)
        if not self._opened:
            self._open()
        source = iter(items)
        ended = time.perf_counter()
        while True:
            try:
                item = next(source)
            except StopIteration:
                return
            now = time.perf_counter()
            self._see_ready(now)
            step = WatchedStep(self._core.next_index(), now, now - ended)
            step.heard = Heard()
            token = start_hearing(step.heard)
            self._current: WatchedStep | None = step
            try:
                yield item
            finally:
                with contextlib.suppress(Exception):  # a generator may be closed in another context
                    stop_hearing(token)
                step.returned = ended = time.perf_counter()
                self._current = None
                self._last = step
                self._core.put(step)

    _current: WatchedStep | None = None

    def log(self, **values: Any) -> None:
        """Records numbers for the current step; arrays are read in another thread once they are ready.

        Args:
            **values: Numbers and small arrays by name.

        Raises:
            MeasureError: outside `steps`.
        """
        step = self._current
        if step is None:
            message = (
                f"`log` received {', '.join(values) or 'nothing'} outside a step. Values belong to the current step: "
                "call `log` inside `for batch in loop.steps(batches)`."
            )
            raise MeasureError(message)
        step.values |= values
        for name, value in values.items():
            if isinstance(value, jax.Array):
                if name in self._core.donated:
                    step.values[name] = value = copy_of(value)
                step.probe = value

    # The block.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close("failed" if error is not None else "finished")

    def close(self, status: WatchStatus = "finished") -> None:
        """Ends the record once all calls so far are recorded; further calls to the function are not recorded."""
        self._see_ready(time.perf_counter())
        self._core.close(status)
        if self._finish.detach() is not None and self._opened:
            LOG.__exit__()

    # Interface for views of a run.

    rounds: None = None
    unit: str = "step"

    @property
    def status(self) -> WatchStatus:
        """The state of the record: ready, running, waiting, paused (drawing only), finished or failed.

        The status is waiting between the end of the loop's notebook cell and the next call.
        """
        return self._core.drawn_status

    @property
    def history(self) -> History:
        """The stored steps so far: the latest 2,048, and increasingly sparse older steps. Does not wait for results."""
        return self._core.history

    @property
    def problems(self) -> tuple[ProblemRecord, ...]:
        """Later compilations, non-finite values and exceptions, each with its step."""
        return self._core.problems

    @property
    def step_seconds(self) -> float | None:
        """The typical time of a step so far in seconds; None before the first step without a compilation."""
        return self._core.step_seconds

    @property
    def record(self) -> WatchRecord:
        """The record of all calls so far; waits for their results."""
        self._core.flush()
        return self._core.record()

    @property
    def program(self) -> ProgramRecord | None:
        """The inspected step; if there are several programs, the one that most of the recent steps ran.

        None until the step has been inspected, or if it cannot be inspected.
        """
        return self._core.shown.program

    def to_pandas(self) -> "pd.DataFrame":
        """Returns one row per stored step: the time and its parts, outputs, rates, memory."""
        return History(self.record.history).summary().rename_axis("step")

    def pause(self) -> None:
        """Stops drawing; the loop continues and is recorded."""
        self._core.pause(True)

    def resume(self) -> None:
        """Resumes drawing."""
        self._core.pause(False)

    def stop(self) -> None:
        """Ends the record; the loop continues."""
        self.close()

    def subscribe(self, callback: Callable[[Any, Any], object]) -> Callable[[], None]:
        """Calls `callback(watch, step)` at most 4 times a second, and at the end.

        Returns a function that unsubscribes.
        """
        me = weakref.ref(self)

        def heard(core: Core) -> None:
            watch, history = me(), core.history
            if watch is not None and len(history):
                callback(watch, history[-1])

        self._core.callbacks.append(heard)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._core.callbacks.remove(heard)

        return unsubscribe

    def end_cell(self) -> int:
        """Waits for the results of a notebook cell, and marks the loop as waiting; returns the number of steps."""
        self._core.flush()
        self._core.rest()
        return self._core.finished

    def show_progress(self) -> None:
        """Writes one line to the terminal, and updates the line as steps finish."""
        self._core.progress = Progress(None, 0, shown=True, unit="step")

    def __str__(self) -> str:
        return str(self.record)

    def __repr__(self) -> str:
        return f"<Watch {self._core.name}: {self.status}, {self._core.finished} steps>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        record = self.record
        return display_object("Watch", str(record), picture=render.rounds_png(record.history, unit="step"))


def _let_go(core: Core, *, opened: bool = False) -> None:
    core.close(wait=False)
    core.forget()
    if opened:
        LOG.__exit__()
