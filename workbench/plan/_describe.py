"""A plan as a record of its stages, used by readers, views and cost models."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import NamedTuple

import jax
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal, Var

from workbench import _jax_compat
from workbench._types import Atom, PyTree, type_of
from workbench.mesh import chunk_shard
from workbench.plan._chunk_size import ChunkSize, resolve_chunk_size, rules_by_devices
from workbench.plan._count import JaxprCount, count_jaxpr_work
from workbench.plan._disclosure import callbacks, exchanges, find_disclosed
from workbench.plan._evaluate import kept_bytes_of, resolve_choice
from workbench.plan._inline import uses_primitives
from workbench.plan._interpreter import control_flow
from workbench.plan._loop_form import LoopForm
from workbench.plan._phases import find_phases
from workbench.plan._plan import Plan, Stage, loop_bodies, operation_name, plan_jaxpr, source_stack
from workbench.primitives import Placement, find_layout
from workbench.records import deferred
from workbench.records.program import PlacementRecord, PlanRecord, SourceLine, StageRecord, ValueRecord

_MOST_EQUATIONS = 100  # in a stage's text; printing 6,000 takes as long as reading a module


class Chunks(NamedTuple):
    """Number of clients that a device processes together.

    `limit` is the requested size. `slots` maps a placement to its slots per device if some slots stay empty.
    """

    size: int | None = None
    limit: int | None = None
    slots: Mapping[str, int] = MappingProxyType({})


def describe_plan(
    plan: Plan,
    *,
    names: Sequence[str] = (),
    chunk_size: ChunkSize = None,
    form: LoopForm | None = None,
    under: Callable[[], AbstractContextManager[object]] = nullcontext,
    notes: Sequence[str] = (),
) -> PlanRecord:
    with under():
        chunk_size, form = resolve_choice(plan, chunk_size, form or LoopForm())
    kept_bytes = kept_bytes_of(chunk_size, form)
    flow = _Names(plan, names)
    variables = plan.closed.jaxpr
    inputs = tuple(flow.value(v) for v in variables.invars)
    disclosure = functools.cache(functools.partial(find_disclosed, plan, inputs))
    chunks = functools.cache(functools.partial(_chunks, plan, chunk_size, kept_bytes, under))
    made_again = _computations(plan, kept_bytes)
    stages = tuple(_stage_record(plan, stage, flow, "", made_again, kept_bytes) for stage in plan.stages)
    repeated = [stage for top in stages for stage in top.walk() if stage.computations > 1]
    notes = [*notes, *(_repeated_note(stage) for stage in repeated)]
    notes += dict.fromkeys(_exchange_note(stages[step.stage]) for step in exchanges(plan))
    notes += dict.fromkeys(_callback_note(stages[step.stage]) for step in callbacks(plan))
    return PlanRecord(
        name=plan.name,
        placements=tuple(_placement_record(p, chunks) for p in plan.placements),
        stages=stages,
        inputs=inputs,
        outputs=tuple(flow.value(v, f"out[{i}]") for i, v in enumerate(variables.outvars)),
        chunk_size=deferred(lambda: chunks().size),
        chunk_limit=deferred(lambda: chunks().limit),
        auto_limits=deferred(lambda: _auto_limits(plan, chunk_size, kept_bytes, under)),
        disclosed=deferred(lambda: disclosure()[0]),
        kept_local=deferred(lambda: disclosure()[1]),
        notes=tuple(notes),
    )


_ANY_SHARE = 2**30  # more clients than any device computes


def _chunks(
    plan: Plan, chunk_size: ChunkSize, kept_bytes: float, under: Callable[[], AbstractContextManager[object]]
) -> Chunks:
    with under():
        phases = list(_chunks_of_phases(plan, chunk_size, kept_bytes))
    return Chunks(
        size=max((chunk for _, chunk, _, _ in phases), default=None),
        limit=max((limit for _, _, _, limit in phases), default=None),
        slots={name: max(s for placement, _, s, _ in phases if placement == name) for name, *_ in phases},
    )


def _auto_limits(
    plan: Plan, chunk_size: ChunkSize, kept_bytes: float, under: Callable[[], AbstractContextManager[object]]
) -> tuple[tuple[int, int], ...]:
    limits = [(first, _chunks(plan, rule, kept_bytes, under).limit) for first, rule in rules_by_devices(chunk_size)]
    return tuple((first, limit) for first, limit in limits if limit is not None)


def _chunks_of_phases(plan: Plan, chunk_size: ChunkSize, kept_bytes: float) -> Iterator[tuple[str, int, int, int]]:
    """Placement, chunk size, slots per device and chunk-size limit of every phase, including phases in loops."""
    if chunk_size is None:
        return
    for level in find_phases(plan, kept_bytes=kept_bytes).values():
        for phase in level:
            if phase.divisible:
                shards = 1 if phase.layout is None else phase.layout.size
                per_shard = -(-phase.placement.size // shards)
                limit = resolve_chunk_size(chunk_size, phase, _ANY_SHARE)
                size = resolve_chunk_size(chunk_size, phase, per_shard) if callable(chunk_size) else limit
                chunk, slots = chunk_shard(per_shard, min(size, per_shard))
                yield phase.placement.name, chunk, slots, limit
    for step in plan.steps:
        if step.kind in ("loop", "branch"):
            for body in loop_bodies(step.equation):
                yield from _chunks_of_phases(plan_jaxpr(body, plan.name), chunk_size, kept_bytes)


def _exchange_note(stage: StageRecord) -> str:
    where = f" at {stage.source}" if stage.source else ""
    return (
        f"clients exchange values with each other in {stage.name}{where}: the disclosed values do not include these "
        "exchanges"
    )


def _callback_note(stage: StageRecord) -> str:
    where = f" at {stage.source}" if stage.source else ""
    return (
        f"clients call Python in {stage.name}{where}: the disclosed values do not include what these callbacks receive"
    )


def _placement_record(placement: Placement, chunks: Callable[[], Chunks]) -> PlacementRecord:
    layout = find_layout(placement, uneven=True)
    axes = layout.axes if layout else ()
    slots = deferred(lambda: chunks().slots.get(placement.name))
    return PlacementRecord(name=placement.name, size=placement.size, mesh_axes=axes, slots_per_device=slots)


def _computations(plan: Plan, kept_bytes: float) -> dict[int, int]:
    """Number of executions per client of each step that runs more than once, keyed by equation id."""
    if math.isinf(kept_bytes) or len({s.level for s in plan.steps if s.kind in ("clients", "reduce")}) < 2:
        return {}  # rows are kept, or no later level reads them
    counts: Counter[int] = Counter()
    levels = find_phases(plan, kept_bytes=kept_bytes)
    for level in levels.values():
        counts.update(id(step.equation) for phase in level for step in phase.steps if step.kind == "clients")
    return {equation: count for equation, count in counts.items() if count > 1}


def _repeated_note(stage: StageRecord) -> str:
    return (
        f"each client computes stage {stage.path} (`{stage.name}`) {stage.computations} times: a later stage reads its "
        "rows, and recomputing them takes less memory than keeping the rows of all clients"
    )


class _Names:
    """Names of variables: arguments keep their own names, and other values are named after their stage."""

    def __init__(self, plan: Plan, names: Sequence[str], path: str = "") -> None:
        self.names: dict[Var, str] = {}
        for v, name in zip(plan.closed.jaxpr.invars, names, strict=False):
            self.names[v] = name
        for i, v in enumerate(plan.closed.jaxpr.constvars):
            self.names[v] = f"constant {i}"
        self.made_by: dict[Var, int] = {}
        for stage in plan.stages:
            outputs = [v for step in stage.steps for v in step.outputs]
            for i, v in enumerate(outputs):
                self.made_by[v] = stage.index
                suffix = f"[{i}]" if len(outputs) > 1 else ""
                self.names.setdefault(v, f"{plan.shown_name(stage, path)}{suffix}")

    def value(self, atom: Atom, name: str | None = None, argument: str = "") -> ValueRecord:
        aval = type_of(atom)
        label = "" if isinstance(atom, Literal) else self.names.get(atom, "")
        spec = getattr(getattr(aval, "sharding", None), "spec", None)
        return ValueRecord(
            name=name or label or str(atom),
            shape=tuple(aval.shape),
            dtype=_dtype_name(aval.dtype),
            size_bytes=math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4),
            sharding=str(tuple(spec)) if spec is not None and any(entry is not None for entry in spec) else None,
            argument=argument,
        )


_dtype_name = functools.cache(str)  # cached, because numpy rebuilds the name each time


def _stage_record(
    plan: Plan,
    stage: Stage,
    flow: _Names,
    path: str,
    made_again: Mapping[int, int],
    kept_bytes: float,
    outer: tuple[SourceLine, ...] = (),
) -> StageRecord:
    step = stage.steps[0]
    variables = {v for s in stage.steps for v in s.outputs}
    inputs = list(dict.fromkeys(v for s in stage.steps for v in s.inputs if v not in variables))
    outputs = [v for v in _read_elsewhere(plan, stage) if v in variables]
    jaxpr = functools.cache(functools.partial(_stage_jaxpr, stage, inputs, outputs))
    work = functools.cache(lambda: _work(stage, jaxpr()))
    arguments = _arguments(stage)
    stack = outer + next((calls for s in stage.steps if (calls := source_stack(s.equation))), ())
    return StageRecord(
        index=stage.index,
        path=f"{path}{stage.index}",
        kind=plan.shown_kind(stage, path),  # pyright: ignore[reportArgumentType]
        name=plan.shown_name(stage, path),
        placement=step.placement.name if step.placement else None,
        clients=step.placement.size if step.placement else 1,
        operation=operation_name(step) if step.kind in ("broadcast", "clients", "reduce") else "",
        inputs=tuple(flow.value(v, argument=arguments.get(v, "")) for v in inputs),
        outputs=tuple(flow.value(v) for v in outputs),
        consumes=tuple(sorted({flow.made_by.get(v, -1) for v in inputs})),
        moved_bytes=_moved_bytes(stage),
        flops_per_client=deferred(lambda: work().flops),
        elementwise_flops_per_client=deferred(lambda: work().elementwise_flops),
        bytes_per_client=deferred(lambda: work().accessed_bytes),
        trip_count=step.equation.params.get("length") if step.kind == "loop" else None,
        computations=max(made_again.get(id(s.equation), 1) for s in stage.steps),
        source=stage.source,
        stack=stack,
        jaxpr=deferred(lambda: _text(jaxpr())),
        body=_body(stage, flow, path, kept_bytes, stack),
    )


def _text(closed: ClosedJaxpr | None) -> str:
    return "" if closed is None else _jax_compat.pretty_jaxpr(closed.jaxpr, source=True, most=_MOST_EQUATIONS)


def _arguments(stage: Stage) -> dict[Var, str]:
    """Names for the inputs of one client's function."""
    step = stage.steps[0]
    if stage.kind != "clients" or len(stage.steps) != 1 or step.jaxpr is None:
        return {}
    names = _jax_compat.argument_names(step.jaxpr)
    if len(names) != len(step.equation.invars):
        return {}
    return {v: name for v, name in zip(step.equation.invars, names, strict=True) if not isinstance(v, Literal)}


def _read_elsewhere(plan: Plan, stage: Stage) -> list[Var]:
    inside = {id(step.equation) for step in stage.steps}
    inputs = {v for s in plan.steps if id(s.equation) not in inside for v in s.inputs}
    inputs |= {v for v in plan.closed.jaxpr.outvars if isinstance(v, Var)}
    return [v for step in stage.steps for v in step.outputs if v in inputs]


def _stage_jaxpr(stage: Stage, inputs: Sequence[Var], outputs: Sequence[Var]) -> ClosedJaxpr | None:
    if stage.kind == "clients" and len(stage.steps) == 1:
        return stage.steps[0].jaxpr
    if stage.kind in ("server", "clients"):
        return _jax_compat.sub_jaxpr([s.equation for s in stage.steps], inputs, outputs, stage.name)
    return None


def _work(stage: Stage, jaxpr: ClosedJaxpr | None) -> JaxprCount:
    if stage.kind in ("loop", "branch"):
        parts = [count_jaxpr_work(body) for body in loop_bodies(stage.steps[0].equation)]
        return max(parts, key=lambda part: math.inf if part.flops is None else part.flops)
    if jaxpr is None:
        return JaxprCount(flops=0.0, elementwise_flops=0.0, accessed_bytes=0)
    work = count_jaxpr_work(jaxpr)
    if stage.kind == "clients" and len(stage.steps) > 1:  # rows of all clients, elementwise
        clients = stage.steps[0].placement.size if stage.steps[0].placement else 1
        return JaxprCount(
            flops=None if work.flops is None else work.flops / clients,
            elementwise_flops=None if work.elementwise_flops is None else work.elementwise_flops / clients,
            accessed_bytes=None if work.accessed_bytes is None else work.accessed_bytes // clients,
        )
    return work


def _moved_bytes(stage: Stage) -> int:
    if stage.kind == "broadcast":
        return sum(_size(v) for step in stage.steps for v in step.outputs)
    if stage.kind == "reduce":
        return sum(_size(v) for step in stage.steps for v in step.inputs)
    return 0


def _size(v: Atom) -> int:
    return math.prod(type_of(v).shape) * getattr(type_of(v).dtype, "itemsize", 4)


def _body(
    stage: Stage, flow: _Names, path: str, kept_bytes: float, outer: tuple[SourceLine, ...]
) -> tuple[StageRecord, ...]:
    step = stage.steps[0]
    if stage.kind in ("loop", "branch"):
        closed = loop_bodies(step.equation)
    elif stage.kind == "clients" and step.jaxpr is not None and any(uses_primitives(e) for e in step.jaxpr.eqns):
        closed = [step.jaxpr]
    else:
        return ()
    loop = control_flow(step.equation)
    first = 0 if loop is None else loop.offset
    names = ["" if isinstance(v, Literal) else flow.names.get(v, "") for v in step.equation.invars[first:]]
    records: list[StageRecord] = []
    for number, jaxpr in enumerate(closed):
        inner = plan_jaxpr(jaxpr, stage.name)
        suffix = f"[{number}]" if stage.kind == "branch" else ""
        prefix = f"{path}{stage.index}{suffix}."
        inside = _Names(inner, names, prefix)
        again = _computations(inner, kept_bytes)
        records.extend(_stage_record(inner, s, inside, prefix, again, kept_bytes, outer) for s in inner.stages)
    return tuple(records)


def abstract(tree: PyTree[Array]) -> PyTree[Array]:
    """The arrays in a pytree as records of shape, dtype and sharding."""
    return jax.tree.map(_jax_compat.aval_of, tree)
