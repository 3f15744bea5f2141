"""Base of all engines: traces a call, makes a plan, interprets the plan, and records the run."""

import abc
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array

from workbench import _jax_compat
from workbench._types import Aval, PyTree
from workbench.engines._client_loop import Pass
from workbench.engines._clients import ClientReader, ReadRows, materialize
from workbench.engines._cohorts import (
    Cohorts,
    PresentRows,
    Quorum,
    check_quorum,
    check_rows,
    of_present,
    placements_of,
)
from workbench.engines._interpreter import PlanInterpreter, RunContext
from workbench.engines._run_recorder import Progress, RunRecorder
from workbench.engines._stage import is_key
from workbench.errors import EngineError, ProgramError
from workbench.plan import (
    Jitted,
    Plan,
    PlannedCall,
    check_call,
    deliver,
    listeners,
    plan_jaxpr,
    trace,
)
from workbench.primitives import show_static
from workbench.records.run import RunRecord

KEPT_PLANS = 8


class Engine(abc.ABC):
    """Base class of the engines. Subclasses define how the clients of one pass are computed."""

    name: str = ""
    quorum: int | float | None = None  # set, like the deadline, by engines that support a quorum
    deadline_seconds: float | None = None

    @functools.cached_property
    def _known(self) -> dict[Any, tuple[PlannedCall, PlanInterpreter]]:
        """Interpreters (plans with compiled stages), cached by program and shapes, newest last."""
        return {}

    def run(
        self, fn: Callable, *args: object, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> RunRecord:
        """Runs a program, with server stages in this process and client stages on this engine.

        The second run of the same function with the same shapes traces and compiles nothing.

        Args:
            fn: A program, any function that calls programs, a derivative of one, or the result of `workbench.jit`.
            *args: Arguments of `fn`, pytrees of arrays. An argument `[clients, ...]` may be a `ClientReader`.
            progress: Function that is called as `progress(stage, done)`, with the path of a stage and the finished
                share of its clients.
            cancel: A `threading.Event`; once it is set, the run stops and raises an `EngineError`.

        Returns:
            The run record, with the time and bytes of every stage and client, and the place where each client ran.
            `results` is the return value of `fn`. The time for tracing and compiling stages is recorded as
            `warmup_seconds`.

        Raises:
            ProgramError: if `fn` is not a function.
            EngineError: if a stage fails or the run is cancelled; `stage` and `client` identify the place, and `run`
                contains the finished rounds.
            KeyboardInterrupt: on Ctrl-C, with the finished rounds in its `run`.
        """
        return self._ran(fn, args, progress, cancel)[0]

    def _ran(
        self, fn: Callable, args: tuple[Any, ...], progress: Progress | None, cancel: threading.Event | None
    ) -> tuple[RunRecord, PlanInterpreter]:
        """Runs a program, and returns its run record and the plan of this run."""
        if not callable(fn):
            message = (
                f"`{type(self).__name__}.run` was given {fn!r} (type {type(fn).__name__}) as its program. `run` "
                "traces a call of a function: pass the function itself, then its arguments."
            )
            raise ProgramError(message)
        fn = fn.fn if isinstance(fn, Jitted) else fn
        self._check(fn, args)
        recorder = RunRecorder(getattr(fn, "__name__", type(fn).__name__), self.name, progress, cancel)
        # Engines compute clients outside the mesh of this process, so the program is traced without the mesh.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return self._run(fn, args, recorder)

    def _check(self, fn: Callable, args: tuple[Any, ...]) -> None:
        method = f"`{type(self).__name__}.run`"
        check_call(method, fn, args, {})
        if refused := _jax_compat.needs_compiler(method):
            raise EngineError(refused)

    def _run(self, fn: Callable, args: tuple[Any, ...], recorder: RunRecorder) -> tuple[RunRecord, PlanInterpreter]:
        shapes = jax.tree.map(
            lambda x: x.struct if isinstance(x, ClientReader) else as_struct(x), args, is_leaf=_is_reader
        )
        values = jax.tree.map(lambda x: x.rows if isinstance(x, ClientReader) else x, args, is_leaf=_is_reader)
        listened = bool(listeners())
        key = (fn, listened, jax.tree.structure(shapes), *map(str, jax.tree.leaves(shapes)))
        started = time.perf_counter()
        # Removed during the run, so that two threads never share one interpreter.
        traced, walk = self._known.pop(key, None) or self._planned(fn, shapes, listened)
        walk.shared_run.recorder, walk.shared_run.loops = recorder, 0
        quorum = self._check_quorum()
        walk.shared_run.cohorts = None if quorum is None else Cohorts(quorum)
        recorder.warmup_seconds += time.perf_counter() - started
        count = traced.out_tree.num_leaves
        try:
            leaves = [*walk.shared_run.masks, *jax.tree.leaves(values)]
            inputs = list(map(_as_input, leaves, walk.plan.closed.in_avals))
            self._begin(walk.plan, inputs, recorder)
            outputs = materialize(walk.evaluate(inputs))
        except EngineError as error:
            recorder.errors.append(str(error))
            error.run = recorder.record(recorder.carried)
            raise
        except KeyboardInterrupt as error:
            error.run = recorder.record(recorder.carried)  # pyright: ignore[reportAttributeAccessIssue]
            raise
        finally:
            self._known[key] = traced, walk
            while len(self._known) > KEPT_PLANS:
                self._known.pop(next(iter(self._known)))
        if listened and traced.emissions:
            deliver(recorder.name, traced.emissions, tuple(outputs[count:]))
        results = [jax.numpy.asarray(y) for y in outputs[:count]]
        return recorder.record(show_static(jax.tree.unflatten(traced.out_tree, results))), walk

    def _planned(self, fn: Callable, shapes: tuple[Any, ...], listened: bool) -> tuple[PlannedCall, PlanInterpreter]:
        traced = trace(fn, shapes, listening=True)
        masks: list[PresentRows] = []
        if self.quorum is not None:
            masks = [PresentRows(placement) for placement in placements_of(traced.plan)]
            present = [jax.ShapeDtypeStruct((mask.placement.size,), bool) for mask in masks]
            traced = trace(of_present(fn, [x.placement for x in masks]), (present, *shapes), listening=True)
            check_rows(traced.plan)
        plan = traced.plan
        if traced.emissions and not listened:
            plan = _without_emissions(plan, traced.out_tree.num_leaves)
        context = RunContext(self._compute, RunRecorder(plan.name), masks=masks)
        return traced, PlanInterpreter(plan, "", context)

    def _check_quorum(self) -> Quorum | None:
        return check_quorum(type(self).__name__, self.quorum, self.deadline_seconds)

    def _begin(self, plan: Plan, inputs: list[Any], recorder: RunRecorder) -> None:  # noqa: B027 - optional
        """Prepares an engine before the first stage of a run; the default does nothing."""

    @abc.abstractmethod
    def _compute(self, work: Pass) -> None:
        """Computes all batches of a pass and adds their results."""


def _is_reader(x: object) -> bool:
    return isinstance(x, ClientReader)


def as_struct(x: object) -> jax.ShapeDtypeStruct:
    """Describes an argument without its values and sharding, so that the plan does not depend on a mesh."""
    aval = _jax_compat.aval_of(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _as_input(x: object, aval: Aval) -> object:
    return x if isinstance(x, ReadRows | PresentRows) or is_key(aval.dtype) else np.asarray(x, aval.dtype)


def plan_of(fn: Callable, args: PyTree[Array]) -> tuple[PlannedCall, PlanInterpreter]:
    """Traces a program for an export, without emitted values."""
    traced = trace(fn, jax.tree.map(as_struct, args), listening=True)
    plan = _without_emissions(traced.plan, traced.out_tree.num_leaves) if traced.emissions else traced.plan
    return traced, PlanInterpreter(plan, "", RunContext(lambda _: None, RunRecorder(plan.name)))


def _without_emissions(plan: Plan, count: int) -> Plan:
    """Returns the plan with only its first outputs and without emitted values, which nothing reads."""
    used = [i < count for i in range(len(plan.closed.out_avals))]
    return plan_jaxpr(_jax_compat.drop_unused_outputs(plan.closed, used), plan.name)


def check_batch_size(
    engine: str, batch: str, size: object, *, option: str = "clients_per_batch", auto: str = ""
) -> None:
    if (auto and size == "auto") or (isinstance(size, int) and not isinstance(size, bool) and size >= 1):
        return
    hint = f', or "auto" for {auto}.' if auto else "; 32 is fast for small clients."
    message = (
        f"`{engine}` was given {option}={size!r}. {option} is the number of clients in {batch}: pass a positive "
        f"int{hint}"
    )
    raise ProgramError(message)
