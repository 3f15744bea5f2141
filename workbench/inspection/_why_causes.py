"""Sharding decisions that cause many collectives, such as a batch dimension that loses a mesh axis."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.inspection._call_tree._frames import shown_file
from workbench.records import read_source_line
from workbench.records.sharding import PlannedValueRecord, WhyCauseRecord, WhyCollectiveRecord
from workbench.render.units import spec_entry, spec_text

_LEAST_COLLECTIVES = 2  # if there are fewer collectives, they are reported one by one


def find_causes(
    values: Sequence[PlannedValueRecord],
    collectives: Sequence[WhyCollectiveRecord],
    factors: Callable[[PlannedValueRecord], tuple[Sequence[Sequence[str]], Sequence[str]] | None],
    named: Callable[[PlannedValueRecord], str],
    origin: Callable[[PlannedValueRecord, str], str],
    departs: Callable[[PlannedValueRecord], bool],
) -> tuple[WhyCauseRecord, ...]:
    """The first value at which the batch loses each axis, and the number of collectives that depend on that value.

    Values that the compiled program shards differently (`departs`) are not causes.
    """
    by_name = {value.name: value for value in values}
    causes: dict[str, WhyCauseRecord] = {}
    for value in values:
        operands = [by_name[name] for name in value.operands if name in by_name]
        rule = factors(value)
        if rule is None or len(rule[0]) != len(operands) or not value.shape:
            continue
        for operand, axis in _lost(value, operands, rule):
            if axis in causes or departs(value):
                continue
            after = _after(value.name, values)
            following = [
                collective
                for collective in collectives
                if axis in collective.axes and any(operand.value in after for operand in collective.operands)
            ]
            if len(following) >= _LEAST_COLLECTIVES:
                rules = (operands, rule[0], rule[1])
                causes[axis] = _cause(value, operand, axis, rules, following, named, origin, values)
    return tuple(sorted(causes.values(), key=lambda cause: -cause.sent_bytes))


def _lost(
    value: PlannedValueRecord,
    operands: Sequence[PlannedValueRecord],
    rule: tuple[Sequence[Sequence[str]], Sequence[str]],
) -> list[tuple[PlannedValueRecord, str]]:
    """The operands whose leading dimension is sharded over an axis that shards a different dimension of the result."""
    inputs, result = rule
    if not result:
        return []
    return [
        (operand, axis)
        for operand, dims in zip(operands, inputs, strict=True)
        if dims and dims[0] == result[0] and operand.spec
        # A float argument may be a weight, whose columns the compiler correctly leaves unsharded.
        if operand.operation != "input" or operand.dtype[0] != "f"
        for axis in operand.spec[0]
        if axis not in value.spec[0] and any(axis in entry for entry in value.spec[1:])
    ]


def _after(name: str, values: Sequence[PlannedValueRecord]) -> set[str]:
    """A value and all values that depend on that value."""
    names = {name}
    for value in values:
        if value.name not in names and names.intersection(value.operands):
            names.add(value.name)
    return names


def _cause(
    value: PlannedValueRecord,
    operand: PlannedValueRecord,
    axis: str,
    rule: tuple[Sequence[PlannedValueRecord], Sequence[Sequence[str]], Sequence[str]],
    following: Sequence[WhyCollectiveRecord],
    named: Callable[[PlannedValueRecord], str],
    origin: Callable[[PlannedValueRecord, str], str],
    values: Sequence[PlannedValueRecord],
) -> WhyCauseRecord:
    operands, inputs, result = rule
    dim = next(number for number, entry in enumerate(value.spec) if number and axis in entry)
    giver, place = next(
        (
            (peer, place)
            for peer, dims in zip(operands, inputs, strict=True)
            for place, factor in enumerate(dims)
            if factor == result[dim] and place < len(peer.spec) and axis in peer.spec[place]
        ),
        (None, 0),
    )
    request = None if giver is not None else _request(value, dim, axis, values)
    like = "" if giver is None else f", as it shards dimension {place} of {named(giver)}"
    batch = named(operand) if operand.operation == "input" else f"{named(operand)}, from {origin(operand, axis)}"
    first_axes = tuple(a for a in operand.spec[0] if a == axis or a in value.spec[0])
    spec = (first_axes, *(tuple(a for a in entry if a != axis) for entry in value.spec[1:]))
    source, change = value.source, constraint_advice(value, spec)
    if request is not None:
        source, (like, change) = request.source, _request_text(request, spec_text(spec))
    where = f" at {Path(shown_file(source.file)).name}:{source.line}" if source else ""
    return WhyCauseRecord(
        axis=axis,
        sentence=(
            f"The batch loses `{axis}`{where}: `{axis}` shards dimension 0 of {batch}, but dimension {dim} of the "
            f"result of `{value.operation}`{like}. {len(following)} collectives over `{axis}` use this result, or "
            "values computed from it."
        ),
        advice=change,
        source=source,
        value=value.name,
        spec=spec,
        collectives=len(following),
        payload_bytes=float(sum(collective.payload_bytes * (collective.executions or 1) for collective in following)),
        sent_bytes=sum(collective.sent_bytes or 0.0 for collective in following),
    )


def _request(
    value: PlannedValueRecord, dim: int, axis: str, values: Sequence[PlannedValueRecord]
) -> PlannedValueRecord | None:
    """The constraint from which a value takes an axis of a dimension, through values of the same shape."""
    if value.operation == "sharding_constraint":
        return value
    names = {value.name}
    for user in values:
        if user.shape == value.shape and axis in user.spec[dim] and names.intersection(user.operands):
            if user.operation == "sharding_constraint":
                return user
            names.add(user.name)
    return None


def is_constraint(value: PlannedValueRecord) -> bool:
    """Returns whether a constraint is the user's rather than one that JAX adds with explicit axes."""
    return last_name(value.op_name) in ("", "sharding_constraint", "reshard", "copy")


def last_name(op_name: str) -> str:
    """The operation in a name: `dot_general` in `jit(f)/jvp(mlp)/dot_general`."""
    return op_name.partition(";")[0].rpartition("/")[2]


def _request_text(request: PlannedValueRecord, spec: str) -> tuple[str, str]:
    """The request for a sharding, and the advice to request a different sharding there."""
    name = last_name(request.op_name)
    if not is_constraint(request):
        change = f"Request `{spec}` as the sharding of the result of `{name}` (`out_sharding={spec}`)."
        return f", as the explicit sharding of `{name}` requests", change
    noun = "`reshard`" if name == "reshard" else "constraint"
    return f", as the {noun} there requests", f"Request `{spec}` in this {noun}, or remove the {noun}."


def constraint_advice(value: PlannedValueRecord, axes: Sequence[tuple[str, ...]]) -> str:
    """The constraint to add to the program, either after a line that assigns a name or around a value."""
    spec = spec_text(axes)
    if value.op_name.count("vmap(") == 1 and axes[0]:  # the line sees a value without the mapped dimension
        kind = f"{value.dtype}[{','.join(map(str, value.shape[1:]))}]"
        return (
            "Keep the batch sharded. The line is inside `jax.vmap`, which adds the batch dimension: name the mesh axes "
            f"of that dimension, as in `jax.vmap(fn, spmd_axis_name={spec_entry(axes[0])})`. Then constrain the value "
            f"{kind} of the line, as in `jax.lax.with_sharding_constraint(value, {spec_text(axes[1:])})`."
        )
    code = read_source_line(value.source.file, value.source.line) if value.source else ""
    assigned = re.match(r"\s*(\w+)\s*=[^=]", code)
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if "transpose(" in value.op_name:
        return (
            f"Keep the batch sharded: this is the gradient of a value {kind} that the line reads. Constrain that "
            f"value, as in `jax.lax.with_sharding_constraint(value, {spec})`."
        )
    if assigned is None:
        call = f"`jax.lax.with_sharding_constraint(value, {spec})`"
        return f"Keep the batch sharded: constrain the value {kind}, as in {call}."
    name = assigned[1]
    return f"Keep the batch sharded after that line: `{name} = jax.lax.with_sharding_constraint({name}, {spec})`."
