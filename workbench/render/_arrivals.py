"""Explains why a mesh axis shards a value: the steps of a recorded propagation, in words."""

import difflib
import re

from workbench.errors import InspectionError
from workbench.records.sharding import AxisArrivalRecord, PlannedValueRecord, PropagationEdge, PropagationRecord
from workbench.render.units import source_text

_MANUAL = re.compile(r"mc_\d+_(?P<what>input|output): (?P<number>\d+)")


def explain_axis(record: PropagationRecord, value: str, axis: str) -> tuple[str, ...]:
    """Explains why a mesh axis shards a value: the chain of steps back to the origin of the axis.

    Args:
        record: The `propagation` attribute of a program's record.
        value: Name of a value (`"%6"`), or label of an input or output (`"params['w']"`).
        axis: A mesh axis.

    Returns:
        One sentence per step, starting at the value; only one sentence if the axis does not shard the value.

    Raises:
        InspectionError: if the record has no such value.

    Example:
        >>> given = PlannedValueRecord(
        ...     name="%arg0", operation="input", shape=(8,), dtype="f32", spec=(("clients",),), origins={}, op_name="x"
        ... )
        >>> explain_axis(PropagationRecord(values=(given,)), "x", "clients")
        ('input `x` (%arg0, f32[8]) is sharded by "clients" on dimension 0.', 'Given in the program.')
    """
    return AxisChains(record).of(value, axis)


class AxisChains:
    """The answers of `explain_axis` about many values of one record."""

    def __init__(self, record: PropagationRecord) -> None:
        self._record, self._arrivals = record, _Arrivals(record)
        self._values = {entry.name: entry for entry in record.values}
        self._named: dict[str, PlannedValueRecord] = {}
        for entry in record.values:
            self._named.setdefault(entry.op_name, entry)

    def of(self, value: str, axis: str) -> tuple[str, ...]:
        """Explains why a mesh axis shards a value; see `explain_axis`."""
        here = self._values.get(value) or self._named.get(value)
        if here is None:
            raise InspectionError(_unknown_message(self._record, value))
        dimensions = [str(dim) for dim, axes in enumerate(here.spec) if axis in axes]
        if not dimensions:
            return (f'{_said(here)} is not sharded by "{axis}"{_instead(here)}.',)
        chain = [f'{_said(here)} is sharded by "{axis}" on dimension {", ".join(dimensions)}.']
        while True:
            arrival = self._arrivals.of(here, axis)
            chain.append(arrival.sentence)
            if arrival.from_value is None:
                return tuple(chain)
            here = self._values[arrival.from_value]


def trace_axes(record: PropagationRecord) -> tuple[AxisArrivalRecord, ...]:
    """Lists every mesh axis of every value, with the axis's source and the step at which it reached the value.

    Following `from_value` leads from any value back to the point where its axis entered the program.

    Args:
        record: The `propagation` attribute of a program's record.

    Returns:
        One entry for each value and each axis that shards it, with values in program order.

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
    """The first edge that carried an axis to a value, for all values and axes."""

    def __init__(self, record: PropagationRecord) -> None:
        self._record = record
        self._values = {value.name: value for value in record.values}
        self._first: dict[tuple[str, str], PropagationEdge] = {}
        for edge in record.edges:
            arrival = self._first.get((edge.to_value, edge.axis))
            if arrival is None or edge.step < arrival.step:
                self._first[edge.to_value, edge.axis] = edge

    def of(self, value: PlannedValueRecord, axis: str) -> AxisArrivalRecord:
        edge = self._first.get((value.name, axis))
        before = None if edge is None else self._first.get((edge.from_value, axis))
        # Only earlier decisions can be reasons, because a later edge back would close a cycle.
        if edge is not None and (edge.from_value not in self._values or (before and before.step >= edge.step)):
            edge = None
        if edge is None:
            sentence = _beginning(value, value.origins.get(axis, ""), self._record)
        else:
            sentence = f"Step {edge.step}: {_said(value, short=True)} took the axis from {_said(self._source(edge))}."
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


def _unknown_message(record: PropagationRecord, value: str) -> str:
    names = [name for entry in record.values for name in (entry.name, entry.op_name) if name]
    near = difflib.get_close_matches(value, names, n=3) or names[:3]
    listed = ", ".join(f"`{name}`" for name in near) if near else "no values at all"
    return (
        f"`explain_axis` was asked about value `{value}`, but the record has no value with this name or label (it has "
        f"{listed}). Reasons exist only for the {len(record.values)} values of the program: use a `name` from "
        "`record.values`."
    )


def _said(value: PlannedValueRecord, *, short: bool = False) -> str:
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    where = f", {source_text(value.source.file, value.source.line)}" if value.source else ""
    if value.operation in ("input", "output"):
        return f"{value.operation} `{value.op_name or value.name}` ({value.name}, {kind})"
    operation = value.operation.replace("manual_computation", "shard_map")  # the name in JAX
    return f"{operation} {value.name}" if short else f"{operation} {value.name} ({kind}{where})"


def _instead(value: PlannedValueRecord) -> str:
    used = [f"dimension {dim} by {', '.join(axes)}" for dim, axes in enumerate(value.spec) if axes]
    return f" ({'; '.join(used)})" if used else " or any other axis: every device holds the full value"


def _beginning(value: PlannedValueRecord, origin: str, record: PropagationRecord) -> str:
    kind, _, number = origin.partition(": ")
    if kind == "constraint":
        return f"Constraint {number} (a sharding constraint in the program) introduced the axis."
    if kind == "output":
        return f"The sharding requested for output {number} introduced the axis."
    if kind == "input":
        label = next((v.op_name for v in record.values if v.name == f"%arg{number}"), "") if number else ""
        named = f" (input {number}, `{label}`)" if label and value.name != f"%arg{number}" else ""
        return f"Given in the program{named}."
    if value.operation == "input":
        return "Given in the program."
    if part := _MANUAL.match(origin):  # the boundary of a `shard_map`; Shardy numbers its inputs and outputs separately
        return f"A `shard_map` in the program requests the axis for its {part['what']} {part['number']}."
    if not record.edges:
        return f"This record contains no reasons (engine {record.engine!r})."
    return f"Given in the program, at this {value.operation}."
