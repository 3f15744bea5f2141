"""Base of all engines: traces a call, makes a plan, interprets the plan, and records the run."""

import abc
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Var

from workbench import _jax_compat
from workbench._types import Aval
from workbench.engines._client_loop import Pass
from workbench.engines._clients import ClientReader, ReadRows
from workbench.engines._cohorts import Cohorts, PresentRows, Quorum, check_rows, of_present, placements_of
from workbench.engines._interpreter import PlanInterpreter, RunContext
from workbench.engines._remote_rows import materialize
from workbench.engines._run_recorder import Progress, RunRecorder
from workbench.engines._stage import is_key
from workbench.errors import EngineError, ProgramError
from workbench.plan import (
    Jitted,
    Plan,
    PlannedCall,
    Scan,
    check_call,
    control_flow,
    deliver,
    find_phases,
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
    quorum: Quorum | None = None  # set by engines that support a quorum

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
        check_call(f"`{type(self).__name__}.run`", fn, args, {})
        refused = _jax_compat.needs_compiler(f"`{type(self).__name__}.run`")
        if refused:
            raise EngineError(refused)
        recorder = RunRecorder(getattr(fn, "__name__", type(fn).__name__), self.name, progress, cancel)
        # Engines compute clients outside the mesh of this process, so the program is traced without the mesh.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return self._run(fn, args, recorder)

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
        walk.shared_run.cohorts = None if self.quorum is None else Cohorts(self.quorum)
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
            plan = without_emissions(plan, traced.out_tree.num_leaves)
        context = RunContext(self._compute, RunRecorder(plan.name, self.name, None, None), masks=masks)
        return traced, PlanInterpreter(plan, "", context)

    def _begin(self, plan: Plan, inputs: list[Any], recorder: RunRecorder) -> None:  # noqa: B027 - optional
        """Prepares an engine before the first stage of a run; the default does nothing."""

    @abc.abstractmethod
    def _compute(self, work: Pass) -> None:
        """Computes all batches of a pass and adds their results."""


def table_of_clients(engine: str, record: RunRecord, walk: PlanInterpreter) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Collects the client ids, and all results with one row per client, named "out[0]" and so on.

    If a loop returns a result for every client in every round, a client's row has shape `[rounds, ...]`.
    """
    axes = _axes_of_rows(walk.plan)
    paths, _ = jax.tree_util.tree_flatten_with_path(record.results)
    outputs = walk.plan.closed.jaxpr.outvars[: len(paths)]
    rows = {
        f"out{jax.tree_util.keystr(path)}": np.moveaxis(np.asarray(x), axes[v], 0)
        for (path, x), v in zip(paths, outputs, strict=True)
        if isinstance(v, Var) and v in axes
    }
    ids = list(dict.fromkeys(client.client for client in record.clients))
    if {len(x) for x in rows.values()} != {len(ids)}:
        message = (
            f"`{engine}.run` was given a `write_to`, and `{record.name}` returned {len(rows)} results with a row for "
            f"each of the {len(ids)} clients. A table can contain only the rows of one placement's clients. "
            "Return a result of `map_fn`; if the program returns anything else, use an engine without `write_to`."
        )
        raise ProgramError(message)
    return ids, rows


def _axes_of_rows(plan: Plan) -> dict[Var, int]:
    """Maps variables with client rows to their client axis; loops add an iteration axis before the client axis."""
    axes = {v: 0 for phases in find_phases(plan, alike=False).values() for phase in phases for v in phase.kept}
    for step in plan.steps:
        flow = control_flow(step.equation) if step.kind == "loop" else None
        if isinstance(flow, Scan):
            inner = _axes_of_rows(plan_jaxpr(flow.body, plan.name))
            for i, (inner_out, out) in enumerate(zip(flow.body.jaxpr.outvars, step.equation.outvars, strict=True)):
                if isinstance(inner_out, Var) and inner_out in inner:
                    axes[out] = inner[inner_out] + (i >= flow.carries)
    return axes


def _is_reader(x: object) -> bool:
    return isinstance(x, ClientReader)


def as_struct(x: object) -> jax.ShapeDtypeStruct:
    """Describes an argument without its values and sharding, so that the plan does not depend on a mesh."""
    aval = _jax_compat.aval_of(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _as_input(x: object, aval: Aval) -> object:
    return x if isinstance(x, ReadRows | PresentRows) or is_key(aval.dtype) else np.asarray(x, aval.dtype)


def without_emissions(plan: Plan, count: int) -> Plan:
    """Returns the plan with only its first outputs and without emitted values, which nothing reads."""
    used = [i < count for i in range(len(plan.closed.out_avals))]
    return plan_jaxpr(_jax_compat.drop_unused_outputs(plan.closed, used), plan.name)
