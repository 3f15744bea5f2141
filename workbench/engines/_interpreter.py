"""Interprets a plan with compiled server stages, Python loops, and client passes run by an engine."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun

from workbench import _jax_compat
from workbench._types import Argument, Atom
from workbench.engines._client_loop import Pass
from workbench.engines._clients import ReadRows, RemoteRows, RemoteStack, is_held, materialize
from workbench.engines._cohorts import Cohorts, PresentRows
from workbench.engines._run_recorder import RunRecorder, brief
from workbench.engines._stage import BatchFunction, Totals, WholeFunction, dtype_of, from_edge, to_host
from workbench.errors import EngineError
from workbench.plan import (
    ControlFlow,
    Phase,
    Plan,
    PythonInterpreter,
    Scan,
    Step,
    While,
    control_flow,
    find_phases,
    plan_jaxpr,
)
from workbench.primitives import bind_here


@dataclasses.dataclass
class RunContext:
    """Shared state of the interpreters of one run."""

    compute: Callable[[Pass], None]
    recorder: RunRecorder
    loops: int = 0  # depth of nested loops
    masks: Sequence[PresentRows] = ()  # the plan's first arguments, if the engine has a quorum
    cohorts: Cohorts | None = None


class PlanInterpreter(PythonInterpreter):
    """Interprets a plan and caches its compiled stages."""

    def __init__(self, plan: Plan, path: str, run: RunContext) -> None:
        self.plan, self.path, self.shared_run = plan, path, run
        self.phases = find_phases(plan, alike=False)
        self.broadcasts = {step.outputs[0]: step for step in plan.steps if step.kind == "broadcast"}
        self._stage_of = {id(step.equation): step.stage for step in plan.steps}
        self._servers: dict[int, Server] = {}
        self._bodies: dict[tuple[int, str], PlanInterpreter] = {}
        self._functions: dict[tuple[int, int], BatchFunction] = {}
        self._totals: dict[int, Totals] = {}

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        closed = self.plan.closed
        variables = [*closed.jaxpr.constvars, *closed.jaxpr.invars]
        values: dict[Var, Any] = dict(zip(variables, [*closed.consts, *inputs], strict=True))
        for level in range(self.plan.levels):
            self._serve(level, values)
            for phase in self.phases.get(level, ()):
                self._pass(phase, values)
        return [
            self._read(atom, values, "the program's own results", allow_remote=True) for atom in closed.jaxpr.outvars
        ]

    def _serve(self, level: int, values: dict[Var, Any]) -> None:
        """Runs a level's server stages and loops; a loop may read results of server stages, but not vice versa."""
        for stage in self.plan.stages:
            steps = [step for step in stage.steps if step.level == level]
            if not steps or stage.kind not in ("server", "loop", "branch"):
                continue
            reader = f"the server stage {self.path}{stage.index}"
            if stage.kind == "server":
                server = self._servers.setdefault(stage.index, Server(self.plan, stage.index))
                operands = materialize([self._read(v, values, reader, allow_remote=True) for v in server.inputs])
                started = time.perf_counter()
                results = self._guarded(stage.index, lambda server=server, operands=operands: server(operands))
                values.update(zip(server.outputs, results, strict=True))
                self.shared_run.recorder.stage(f"{self.path}{stage.index}", "server", time.perf_counter() - started)
                continue
            for step in steps:
                operands = [self._read(atom, values, reader, rows=True) for atom in step.equation.invars]
                values.update(zip(step.outputs, self._loop(step, operands), strict=True))

    def _guarded(self, stage: int, call: Callable[[], list[Any]]) -> list[Any]:
        try:
            return jax.block_until_ready(call())
        except Exception as error:
            path = f"{self.path}{stage}"
            message = (
                f"the server stage {path} of `{self.plan.name}` raised {brief(error)}. Server stages run in this "
                "process, between two passes over the clients: correct the operation that the exception names."
            )
            raise EngineError(message, stage=path) from error

    def _loop(self, step: Step, operands: Sequence[Any]) -> list[Any]:
        self.shared_run.loops += 1
        try:
            flow = control_flow(step.equation)
            assert flow is not None
            return self.follow(flow, operands)
        finally:
            self.shared_run.loops -= 1

    def _read(
        self, atom: Atom, values: dict[Var, Any], reader: str, *, rows: bool = False, allow_remote: bool = False
    ) -> Argument:
        if isinstance(atom, Literal):
            return np.asarray(atom.val, dtype_of(atom))
        if atom not in values:  # broadcast rows that are read outside the clients
            (source,) = self.broadcasts[atom].equation.invars
            values[atom] = bind_here(self.broadcasts[atom].equation, [self._read(source, values, reader)])[0]
        value = values[atom]
        if isinstance(value, PresentRows) and not rows:
            message = (
                f"{reader} reads the mask of the clients that answered. Only client functions and reductions may read "
                "this mask: see `quorum`."
            )
            raise EngineError(message, stage=reader.removeprefix("the server stage "))
        if isinstance(value, ReadRows) and not rows:
            message = (
                f"{reader} needs the rows of all clients at once, {value.reader.avals[value.index]} each, but they "
                "come from a `ClientReader`, which is read one client at a time. Only `map_fn` and reductions may "
                "read such an argument: move this work into the client function, or pass the rows as one array."
            )
            raise EngineError(message, stage=reader.removeprefix("the server stage "))
        if is_held(value) and not rows and not allow_remote:
            (value,) = materialize([value])
            values[atom] = value
        return value

    def _pass(self, phase: Phase, values: dict[Var, Any]) -> None:
        recorder, cohorts = self.shared_run.recorder, self.shared_run.cohorts
        decided = cohorts.present(phase.placement) if cohorts is not None else None
        all_clients = np.ones(phase.placement.size, bool)
        rows = [self._read(v, values, "a pass", rows=True) for v in phase.rows]
        rows = [x if not isinstance(x, PresentRows) else all_clients if decided is None else decided for x in rows]
        rows = rows if phase.divisible else materialize(rows)
        rows = [x if isinstance(x, ReadRows | RemoteRows) else to_host(materialize([x])[0]) for x in rows]
        shared = [self._read(atom, values, "a broadcast") for atom in phase.shared.values()]
        functions = functools.partial(self._function, phase)
        work = Pass(phase, rows, shared, functions=functions, reduced=self._reduction(phase), recorder=recorder)
        work.cohorts, work.present = cohorts, decided
        if phase.divisible:
            self.shared_run.compute(work)
        else:
            self._together(phase, work)
        if cohorts is not None and decided is None:
            cohorts.decide(phase.placement, all_clients if work.present is None else work.present)
        started = time.perf_counter()
        row_outputs, results = work.results()
        for v, x in zip(phase.kept, row_outputs, strict=True):
            values[v] = x if is_held(x) else from_edge(x, dtype_of(v))
        for step, result in zip(phase.reductions, results, strict=True):
            values[step.equation.outvars[0]] = result
        if phase.reductions:
            last = phase.reductions[-1].stage
            recorder.stage(f"{self.path}{last}", "server", time.perf_counter() - started)
        together = {step.stage for step in phase.steps} - {step.stage for step in phase.reductions}
        if len(together) > 1:
            listed = ", ".join(f"{self.path}{stage}" for stage in sorted(together))
            recorder.note(
                f"stages {listed} run in one pass over the clients; the time of this pass is listed under stage "
                f"{work.stage}"
            )

    def _together(self, phase: Phase, work: Pass) -> None:
        """Runs clients that communicate with each other, all together in this process."""
        (batch,) = work.batches(work.clients)
        compiled = work.compiled(work.clients)
        started = time.perf_counter()
        outputs = self._guarded(phase.steps[0].stage, lambda: compiled(*work.operands(batch)))
        work.add(batch, outputs, seconds=time.perf_counter() - started, where="server")
        for i, x in enumerate(batch.rows):
            work.recorder.left(work.stage, f"row {i}", x, row=True, clients=work.clients, index=i)
        work.recorder.note(
            f"the clients of stage {work.stage} communicate with each other, so they were run together in this process"
        )

    def _function(self, phase: Phase, size: int) -> BatchFunction:
        key = (id(phase), size)
        if key not in self._functions:
            if phase.divisible or size != phase.placement.size:
                self._functions[key] = BatchFunction(self.plan, phase, self.path, size)
            else:
                self._functions[key] = WholeFunction(self.plan, phase, self.path)
        return self._functions[key]

    def _reduction(self, phase: Phase) -> Totals:
        if id(phase) not in self._totals:
            self._totals[id(phase)] = Totals(phase)
        return self._totals[id(phase)]

    def body(self, flow: ControlFlow, closed: ClosedJaxpr, operands: Sequence[Any], part: str = "") -> list[Any]:
        return self.inner(flow, closed, part).evaluate(operands)

    def inner(self, flow: ControlFlow, closed: ClosedJaxpr, part: str = "") -> "PlanInterpreter":
        """The interpreter for a loop's body; created at the first call."""
        stage = self._stage_of[id(flow.equation)]
        key = (stage, part)
        if key not in self._bodies:
            plan = plan_jaxpr(closed, self.plan.stages[stage].name)
            self._bodies[key] = PlanInterpreter(plan, f"{self.path}{stage}{part}.", self.shared_run)
        return self._bodies[key]

    def scan(self, flow: Scan, operands: Sequence[Any]) -> list[Any]:
        """Runs the iterations one by one, because a client reader cannot be sliced by iteration."""
        stage = f"{self.path}{self._stage_of[id(flow.equation)]}"
        if any(isinstance(x, ReadRows) for x in flow.split(operands)[2]):
            message = (
                f"the loop of stage {stage} slices an argument along its first axis, one slice per iteration, but the "
                "argument is a `ClientReader`. A reader has one row per client and no axis for iterations: close over "
                "the reader, so that each iteration reads all clients, or pass an array."
            )
            raise EngineError(message, stage=stage)
        return super().scan(flow, operands)

    def iteration(self, flow: Scan | While, number: int, operands: Sequence[Any]) -> list[Any]:
        """Runs one iteration; for the outermost loop, the recorder stores the iteration's time and carry."""
        recorder, cohorts = self.shared_run.recorder, self.shared_run.cohorts
        if self.shared_run.loops > 1:
            return self.body(flow, flow.body, operands)
        if recorder.carried is None:
            recorder.carried = list(operands[flow.consts : flow.consts + flow.carries])
        started = time.perf_counter()
        with cohorts.in_round(number) if cohorts is not None else contextlib.nullcontext():
            results = self.body(flow, flow.body, operands)
        recorder.round_seconds.append(time.perf_counter() - started)
        recorder.carried = list(results[: flow.carries])
        return results

    def stack(self, values: list[Any], aval: object) -> Argument:
        """Stacks the results of all iterations; remote rows become a `RemoteStack`."""
        if values and any(is_held(x) for x in values):
            return RemoteStack(values)
        return (
            np.stack(values)
            if values and all(isinstance(x, np.ndarray) for x in values)
            else super().stack(values, aval)
        )


class Server:
    """Compiles a server stage into one function."""

    def __init__(self, plan: Plan, stage: int) -> None:
        steps = plan.stages[stage].steps
        outputs = {v for step in steps for v in step.outputs}
        self.inputs = list(dict.fromkeys(v for step in steps for v in step.inputs if v not in outputs))
        self.outputs = [v for step in steps for v in step.outputs]
        closed = _jax_compat.sub_jaxpr([step.equation for step in steps], self.inputs, self.outputs, "server")
        self._call = jax.jit(jaxpr_as_fun(closed))

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        return self._call(*operands)
