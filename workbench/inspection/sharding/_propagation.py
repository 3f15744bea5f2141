"""Runs Shardy's sharding propagation without devices and without compiling."""

import re
from typing import Any, cast

from workbench._jax_compat import shardy as _shardy
from workbench._jax_compat.shardy_read import ShardyCollective
from workbench.inspection.hlo import group_axes, pair_axes
from workbench.records import package_of
from workbench.records.program import SourceLine
from workbench.records.sharding import (
    PlannedCollectiveKind,
    PlannedCollectiveRecord,
    PlannedValueRecord,
    PropagationEdge,
    PropagationRecord,
)

_STAGE = re.compile(r"wb:([0-9.]+):\w+")


def propagate_shardings(program: object) -> PropagationRecord:
    """Runs Shardy's propagation on a lowered program and records every decision, without executing the program.

    Propagation takes milliseconds and needs only one CPU device, even for a large or an abstract mesh.

    Args:
        program: `jax.stages.Lowered`, a StableHLO module, or its text (with locations: `debug_info=True`).

    Returns:
        The values, propagation edges and planned collectives. `notes` explain what is missing; this function raises no
        exceptions.

    Example:
        >>> import jax
        >>> mesh = jax.sharding.AbstractMesh((1024, 8), ("clients", "model"))
        >>> spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
        >>> x = jax.ShapeDtypeStruct((4096, 2), "float32", sharding=spec)
        >>> record = propagate_shardings(jax.jit(lambda x: x.sum(0)).trace(x).lower(lowering_platforms=("cpu",)))
        >>> [(planned.kind, planned.axes) for planned in record.collectives]
        [('all-reduce', ('clients',))]
    """
    try:
        text = _shardy.stablehlo_text(program)
    except Exception as error:  # record the failure instead of raising
        kind = type(program).__name__
        note = f"`propagate_shardings` was given an object of type {kind} that has no StableHLO: {error}"
        return PropagationRecord(engine="none", notes=(note,))
    try:
        why = _shardy.run_shardy(text, _shardy.WHY_PASSES)
    except _shardy.ShardyError as error:
        return PropagationRecord(engine="none", notes=(f"Shardy's passes failed in-process: {error}",))
    notes: list[str] = []
    if not any(axes for value in why.values for axes in value.spec):
        notes.append("no value of this program is sharded: its inputs carry no sharding over a mesh")
    try:
        program = _shardy.run_shardy(text, _shardy.COLLECTIVE_PASSES, reasons=False)
        planned = tuple(_planned(collective, program.axis_sizes) for collective in program.collectives)
    except _shardy.ShardyError as error:
        planned = ()
        notes.append(f"planned collectives are missing: {error}")
    return _record(why, planned, notes)


def _record(
    program: _shardy.ShardyProgram,
    planned: tuple[PlannedCollectiveRecord, ...],
    notes: list[str],
) -> PropagationRecord:
    values = tuple(
        PlannedValueRecord(
            name=value.name,
            operation=value.operation,
            shape=value.shape,
            dtype=value.dtype,
            spec=value.spec,
            origins=value.origins,
            rule=value.rule,
            stage=_stage(value.op_name),
            source=_source(value.frames),
            op_name=value.op_name,
            operands=value.operands,
        )
        for value in program.values
    )
    edges = tuple(
        PropagationEdge(step=step, axis=axis, from_value=origin, to_value=target)
        for step, axis, origin, target in program.edges
    )
    return PropagationRecord(values=values, edges=edges, collectives=planned, notes=tuple(notes))


def _planned(collective: ShardyCollective, sizes: dict[str, int]) -> PlannedCollectiveRecord:
    axes = collective.axes
    if collective.groups:
        name_axes = pair_axes if collective.kind == "collective-permute" else group_axes
        axes = name_axes(collective.groups, list(sizes), list(sizes.values())).names
    return PlannedCollectiveRecord(
        kind=cast(PlannedCollectiveKind, collective.kind),
        axes=axes,
        shape=collective.shape,
        dtype=collective.dtype,
        size_bytes=collective.size_bytes,
        device_bytes=collective.device_bytes,
        stage=_stage(collective.op_name),
        source=_source(collective.frames),
        op_name=collective.op_name,
    )


def _stage(op_name: str) -> str | None:
    """The innermost plan stage among an operation's name scopes."""
    stages = _STAGE.findall(op_name)
    return stages[-1] if stages else None


def _source(frames: tuple[Any, ...]) -> SourceLine | None:
    """The innermost user frame."""
    for file, line, column, end_line, end_column, function in frames:
        if package_of(file) is None:
            return SourceLine(
                file=file, line=line, column=column, end_line=end_line, end_column=end_column, function=function
            )
    return None
