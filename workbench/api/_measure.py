"""`measure`: runs a program on the attached devices and times its parts."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from workbench import _jax_compat
from workbench._types import Argument, PyTree
from workbench.cost import known_chip, largest_dtype
from workbench.engines import Sequential
from workbench.errors import EngineError, InspectionError
from workbench.inspection import Inspection, LoweredCall, TracedCall, compile_now, inspect_module
from workbench.measurement import ReadingOptions, measure_compiled
from workbench.plan import ChunkSize
from workbench.primitives import CallbackErrors
from workbench.records.program import PlanRecord
from workbench.records.run import RunRecord

_MOST_SECONDS = 10.0  # for separate calls of clients


def measure_program(
    call: TracedCall | LoweredCall,
    *,
    rounds: int,
    warmup: int,
    clients: Literal["together", "probe"],
    mesh: Mesh | None,
    chip: str | None,
    replayed: Callable[[], tuple[Callable, Sequence[Argument]]],
) -> RunRecord:
    """Runs a traced call and times it; see `Traced.measure`.

    `replayed` returns the call as a function with its arguments. It is used if the devices do not report the times of
    single clients.
    """
    if clients not in ("together", "probe"):
        message = (
            f"`measure` was given clients={clients!r}. The clients on a device run either together, as in production, "
            "or one by one: "
            'pass "together" or "probe".'
        )
        raise InspectionError(message)
    refused = _jax_compat.needs_compiler("`measure`")
    if refused:
        raise InspectionError(refused)
    if isinstance(call, LoweredCall):
        return _measure_lowered(call, rounds=rounds, warmup=warmup, chip=chip)
    _refuse_shapes(call.name, call.leaves)
    probe = clients == "probe"
    with_clients: ChunkSize = 1 if probe else call.chunk_size
    errors = CallbackErrors(call.name)
    measured_call = call.with_one_chunk_at_once() if probe else call
    compilation = Inspection(_guarded(measured_call, errors), with_clients).compile(mesh)
    assert compilation.module is not None
    assert compilation.compiled is not None
    options = ReadingOptions(
        mesh=compilation.mesh,
        client_stages=client_paths(compilation.plan) if probe else (),
        placement=compilation.plan.placements[0].name if compilation.plan.placements else None,
        clients=compilation.plan.placements[0].size if compilation.plan.placements else None,
        chip=(chip_record := known_chip(chip) if chip else None),
        dtype=largest_dtype(compilation.plan, chip_record),
    )
    run = measure_compiled(
        _Bound(compilation.compiled, compilation.kwargs, errors),
        compilation.args,
        compilation.module,
        rounds=rounds,
        warmup=warmup,
        options=options,
    )
    run = run.replace(name=compilation.plan.name, results=call.finish(run.results))
    untimed = set(options.client_stages) - {client.stage for client in run.clients}
    return _with_separate_calls(run, untimed, *replayed()) if untimed else run


def _with_separate_calls(run: RunRecord, stages: set[str], fn: Callable, args: Sequence[Argument]) -> RunRecord:
    """Adds the clients of some stages, timed in separate calls."""
    engine, stop = Sequential(), threading.Event()
    clock = threading.Timer(_MOST_SECONDS, stop.set)
    clock.start()
    try:
        engine.run(fn, *args, cancel=stop)  # the first calls of a compiled function take longer
        separate = engine.run(fn, *args, cancel=stop).clients
    except EngineError as error:
        why = f"took more than {_MOST_SECONDS:g} s" if stop.is_set() else f"failed: {str(error)[:300]}"
        note = (
            f"Stage {', '.join(sorted(stages))} has no per-client times: separate calls, one per client, {why}. Give "
            "the clients more work, or measure fewer rounds or clients with `engines.Sequential()`."
        )
        return run.replace(notes=(*run.notes, note))
    finally:
        clock.cancel()
    runs = tuple(client for client in separate if client.stage in stages and client.where != "server")
    notes = [
        f"Stage {stage}: the time of a client is the time of a separate call, including the overhead of the call."
        if any(client.stage == stage for client in runs)
        else f"Stage {stage} has no per-client times: its clients communicate with each other, so they cannot be "
        "called separately."
        for stage in sorted(stages)
    ]
    return run.replace(clients=(*run.clients, *runs), notes=(*run.notes, *notes))


def _measure_lowered(call: LoweredCall, *, rounds: int, warmup: int, chip: str | None) -> RunRecord:
    if not (call.args or call.kwargs):
        message = (
            f"`measure` was given `{call.name}`, which is compiled already, and no arguments to run it with. `measure` "
            "runs a call: pass the function, then its arguments, as in `measure(fn)(*args)`."
        )
        raise InspectionError(message)
    _refuse_shapes(call.name, jax.tree.leaves((call.args, call.kwargs)))
    program = call.program
    if isinstance(program, jax.stages.Lowered):
        program = compile_now(program, program.as_text(), call.name)
    options = ReadingOptions(chip=known_chip(chip) if chip else None)
    module = inspect_module(program)
    bound = _Bound(program, call.kwargs, CallbackErrors(call.name))
    return measure_compiled(bound, call.args, module, rounds=rounds, warmup=warmup, options=options).replace(
        name=call.name
    )


def _refuse_shapes(name: str, leaves: list[Any]) -> None:
    shapes = sum(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    if shapes:
        message = (
            f"`measure` was given `{name}` with {shapes} of {len(leaves)} leaves as `jax.ShapeDtypeStruct`, which has "
            "a shape but no values. `measure` runs the program: pass arrays, or use `inspect`, which does not run the "
            "program."
        )
        raise InspectionError(message)


def client_paths(plan: PlanRecord) -> tuple[str, ...]:
    """Paths of all client stages in a plan, including stages inside loops."""
    return tuple(stage.path for stage in plan.walk(into=("loop", "branch")) if stage.kind == "clients")


def _guarded(call: TracedCall, errors: CallbackErrors) -> TracedCall:
    """The call, with its callbacks guarded so that they cannot abort the process; unchanged without callbacks."""
    closed = errors.guarded(call.closed)
    return call if closed is call.closed else call.rewritten(closed)


class _Bound:
    """A compiled program with bound keyword arguments, and the object that collects its callbacks' exceptions."""

    def __init__(self, compiled: jax.stages.Compiled, kwargs: dict[str, Argument], errors: CallbackErrors) -> None:
        self._compiled, self._kwargs, self._errors = compiled, kwargs, errors

    def __call__(self, *args: PyTree[jax.Array]) -> PyTree[jax.Array]:
        return self._errors.call(self._compiled, args, self._kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self._compiled, name)
