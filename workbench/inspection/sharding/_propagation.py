"""Asks Shardy how it would shard a program, and why, without devices and without compiling."""

import difflib
import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from workbench._jax_compat import shardy as _shardy
from workbench.errors import InspectionError
from workbench.inspection.hlo import group_axes, pair_axes
from workbench.records import (
    AxisArrivalRecord,
    PlannedCollectiveRecord,
    PlannedValueRecord,
    PropagationEdge,
    PropagationRecord,
    SourceLine,
)

_STAGE = re.compile(r"wb:([0-9.]+):\w+")
_MANUAL = re.compile(r"mc_\d+_(?P<what>input|output): (?P<number>\d+)")
_LIBRARIES = ("jax", "jaxlib", "workbench")


def propagate_shardings(program: Any, *, engine: Literal["auto", "in-process", "dump"] = "auto") -> PropagationRecord:
    """Runs Shardy's propagation on a lowered program and reads every decision; nothing is executed.

    In-process it needs one CPU device however large the mesh, abstract ones too, and milliseconds. Where jaxlib's
    passes refuse, the program is compiled for the present devices and the compiler's own dump files are read
    (`engine` of the record says which); these know neither reasons, lines nor stages.

    Args:
        program: `jax.stages.Lowered`, a StableHLO module, or its text (with locations: `debug_info=True`).
        engine: "auto" tries in-process, then dump.

    Returns:
        Values, propagation edges and planned collectives. What could not be found out is missing and said in `notes`;
        this function does not raise.

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
    except Exception as error:  # whatever was given is said in the record, not raised
        given = f"`propagate_shardings` was given a `{type(program).__name__}` that has no StableHLO: {error}"
        return PropagationRecord(engine="none", notes=(given,))
    notes: list[str] = []
    if engine != "dump":
        try:
            return _in_process(text)
        except _shardy.ShardyError as error:
            notes.append(f"Shardy's passes refused in-process: {error}")
    if engine != "in-process":
        try:
            return _from_dump(program, notes)
        except _shardy.ShardyError as error:
            notes.append(f"no dump files of the compiler either: {error}")
    return PropagationRecord(engine="none", notes=tuple(notes))


def explain_axis(record: PropagationRecord, value: str, axis: str) -> tuple[str, ...]:
    """Why a mesh axis shards a value: the chain of reasons, from the value back to where the axis came from.

    Args:
        record: From `propagate_shardings`.
        value: Name of a value (`"%6"`), or the label of an input or output (`"params['w']"`).
        axis: A mesh axis.

    Returns:
        One sentence per step, the value first; one sentence that says so where the axis does not shard it.

    Raises:
        InspectionError: if the record has no such value.

    Example:
        >>> given = PlannedValueRecord(
        ...     name="%arg0", operation="input", shape=(8,), dtype="f32", spec=(("clients",),), origins={}, op_name="x"
        ... )
        >>> explain_axis(PropagationRecord(values=(given,)), "x", "clients")
        ('input `x` (%arg0, f32[8]) is sharded by "clients" on dimension 0.', 'The program says so itself.')
    """
    known = {entry.name: entry for entry in record.values}
    named = [entry for entry in record.values if value in (entry.name, entry.op_name)]
    if not named:
        raise InspectionError(_unknown_message(record, value))
    here = known.get(value, named[0])
    dimensions = [str(dim) for dim, axes in enumerate(here.spec) if axis in axes]
    if not dimensions:
        return (f'{_said(here)} is not sharded by "{axis}"{_instead(here)}.',)
    chain = [f'{_said(here)} is sharded by "{axis}" on dimension {", ".join(dimensions)}.']
    arrivals = _Arrivals(record)
    while True:
        arrival = arrivals.of(here, axis)
        chain.append(arrival.sentence)
        if arrival.from_value is None:
            return tuple(chain)
        here = known[arrival.from_value]


def trace_axes(record: PropagationRecord) -> tuple[AxisArrivalRecord, ...]:
    """Every mesh axis of every value with the step at which it arrived and where it came from.

    Following `from_value` leads from any value back to where its axis entered the program.

    Args:
        record: From `propagate_shardings`.

    Returns:
        One entry per value and axis that shards it, values in program order.

    Example:
        >>> given = PlannedValueRecord(
        ...     name="%arg0", operation="input", shape=(8,), dtype="f32", spec=(("clients",),), origins={}, op_name="x"
        ... )
        >>> [(arrival.value, arrival.axis, arrival.step) for arrival in trace_axes(PropagationRecord(values=(given,)))]
        [('%arg0', 'clients', None)]
    """
    arrivals = _Arrivals(record)
    return tuple(
        arrivals.of(value, axis)
        for value in record.values
        for axis in dict.fromkeys(axis for axes in value.spec for axis in axes)
    )


class _Arrivals:
    """For every value and axis the first edge that brought it."""

    def __init__(self, record: PropagationRecord) -> None:
        self._record = record
        self._values = {value.name: value for value in record.values}
        self._first: dict[tuple[str, str], PropagationEdge] = {}
        for edge in record.edges:
            known = self._first.get((edge.to_value, edge.axis))
            if known is None or edge.step < known.step:
                self._first[edge.to_value, edge.axis] = edge

    def of(self, value: PlannedValueRecord, axis: str) -> AxisArrivalRecord:
        edge = self._first.get((value.name, axis))
        before = None if edge is None else self._first.get((edge.from_value, axis))
        # Only what was decided before can be a reason: whatever comes back later closes a circle.
        if edge is not None and (edge.from_value not in self._values or (before and before.step >= edge.step)):
            edge = None
        if edge is None:
            sentence = _beginning(value, value.origins.get(axis, ""), self._record)
        else:
            sentence = f"Step {edge.step}: {_said(value, short=True)} took it from {_said(self._source(edge))}."
        return AxisArrivalRecord(
            value=value.name,
            axis=axis,
            dimensions=tuple(dim for dim, axes in enumerate(value.spec) if axis in axes),
            step=None if edge is None else edge.step,
            from_value=None if edge is None else edge.from_value,
            sentence=sentence,
        )

    def _source(self, edge: PropagationEdge) -> PlannedValueRecord:
        return self._values[edge.from_value]


def _in_process(text: str) -> PropagationRecord:
    why = _shardy.run_shardy(text, _shardy.WHY_PASSES)
    notes: list[str] = []
    if not any(axes for value in why.values for axes in value.spec):
        notes.append("no value of this program is sharded: its inputs carry no sharding over a mesh")
    try:
        program = _shardy.run_shardy(text, _shardy.COLLECTIVE_PASSES, reasons=False)
        planned = tuple(_planned(found, program.axis_sizes) for found in program.collectives)
    except _shardy.ShardyError as error:
        planned = ()
        notes.append(f"planned collectives are missing: {error}")
    return _record(why, planned, "in-process", notes)


def _from_dump(program: Any, notes: list[str]) -> PropagationRecord:
    with tempfile.TemporaryDirectory(prefix="workbench-shardy-") as directory:
        _shardy.compile_with_dump(program, Path(directory))
        found = sorted(Path(directory).rglob("*after_propagation*.mlir"))
        if not found:
            message = "the compiler wrote no file after propagation (it may have used GSPMD for this program)"
            raise _shardy.ShardyError(message)
        read = _shardy.read_dumped(found[0].read_text())
    missing = "read from dump files: origins, edges, planned collectives, stages and lines are not in them"
    return _record(read, (), "dump", [*notes, missing])


def _record(
    program: _shardy.ShardyProgram,
    planned: tuple[PlannedCollectiveRecord, ...],
    engine: Literal["in-process", "dump"],
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
    return PropagationRecord(values=values, edges=edges, collectives=planned, engine=engine, notes=tuple(notes))


def _planned(found: Any, sizes: dict[str, int]) -> PlannedCollectiveRecord:
    axes = found.axes
    if found.groups:
        name_axes = pair_axes if found.kind == "collective-permute" else group_axes
        axes = name_axes(found.groups, list(sizes), list(sizes.values())).names
    return PlannedCollectiveRecord(
        kind=found.kind,
        axes=axes,
        shape=found.shape,
        dtype=found.dtype,
        size_bytes=found.size_bytes,
        device_bytes=found.device_bytes,
        stage=_stage(found.op_name),
        source=_source(found.frames),
        op_name=found.op_name,
    )


def _stage(op_name: str) -> str | None:
    """The innermost stage of the plan that an operation's name scopes tell."""
    found = _STAGE.findall(op_name)
    return found[-1] if found else None


def _folders() -> tuple[str, ...]:
    specs = (importlib.util.find_spec(library) for library in _LIBRARIES)
    homes = tuple(home for spec in specs if spec for home in spec.submodule_search_locations or ())
    return (*homes, f"{sys.base_prefix}/lib/python3", f"{sys.prefix}/lib/python3")


_NOT_THE_USERS = _folders()


def _source(frames: tuple[Any, ...]) -> SourceLine | None:
    """The innermost frame that is the user's."""
    for file, line, column, end_line, end_column, function in frames:
        if not file.startswith((*_NOT_THE_USERS, "<frozen")):
            return SourceLine(
                file=file, line=line, column=column, end_line=end_line, end_column=end_column, function=function
            )
    return None


def _unknown_message(record: PropagationRecord, value: str) -> str:
    names = [name for entry in record.values for name in (entry.name, entry.op_name) if name]
    near = difflib.get_close_matches(value, names, n=3) or names[:3]
    listed = ", ".join(f"`{name}`" for name in near) if near else "no values at all"
    return (
        f"`explain_axis` was asked about value `{value}`, but the record has no value of this name or label (it has "
        f"{listed}). A reason can be given for the {len(record.values)} values of the program only: take a `name` from "
        "`record.values`."
    )


def _said(value: PlannedValueRecord, *, short: bool = False) -> str:
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    where = f", {Path(value.source.file).name}:{value.source.line}" if value.source else ""
    if value.operation in ("input", "output"):
        return f"{value.operation} `{value.op_name or value.name}` ({value.name}, {kind})"
    operation = value.operation.replace("manual_computation", "shard_map")  # as one writes it in JAX
    return f"{operation} {value.name}" if short else f"{operation} {value.name} ({kind}{where})"


def _instead(value: PlannedValueRecord) -> str:
    used = [f"dimension {dim} by {', '.join(axes)}" for dim, axes in enumerate(value.spec) if axes]
    return f" ({'; '.join(used)})" if used else " or any other axis: every device holds all of it"


def _beginning(value: PlannedValueRecord, origin: str, record: PropagationRecord) -> str:
    kind, _, number = origin.partition(": ")
    if kind == "constraint":
        return f"Constraint {number} (a sharding constraint in the program) put it there."
    if kind == "output":
        return f"The sharding asked for output {number} put it there."
    if kind == "input":
        label = next((v.op_name for v in record.values if v.name == f"%arg{number}"), "") if number else ""
        named = f" (input {number}, `{label}`)" if label and value.name != f"%arg{number}" else ""
        return f"The program says so itself{named}."
    if value.operation == "input":
        return "The program says so itself."
    if part := _MANUAL.match(origin):  # the edge of a `shard_map`, whose inputs and outputs Shardy counts by itself
        return f"A `shard_map` in the program asks for it on its {part['what']} {part['number']}."
    if not record.edges:
        return f"This record holds no reasons (engine {record.engine!r})."
    return f"The program says so itself at this {value.operation}."
