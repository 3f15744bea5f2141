"""Shardings of the compiled program, from the shapes of its instructions."""

import functools
import itertools
import math
import operator
import re
from collections.abc import Collection, Sequence

from workbench.records.compiled import InstructionRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import PlannedValueRecord

Spec = tuple[tuple[str, ...], ...]
COMPILER = "compiler"  # origin of an axis that only the compiled program uses
EXCHANGES = frozenset("all-gather all-reduce reduce-scatter all-to-all collective-permute".split())
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_OPCODES = {"dot_general": "dot", "broadcast_in_dim": "broadcast"}
# Their results have parts of other shapes, or are cut out of a value of the same name.
_CUTTING = EXCHANGES | frozenset("dynamic-slice slice dynamic-update-slice pad concatenate parameter".split())
# The program states the shardings of these values, or they have no sharding of their own.
_STATED = frozenset("input output constant sharding_constraint reshard copy manual_computation while case".split())
REARRANGING = frozenset("broadcast_in_dim reshape transpose convert".split())
# Their results may be transposed under the same name, so a shape must fit in only one order of its dimensions.
_TRANSPOSING = frozenset("dot_general convolution transpose".split())
_MOST_AXES = 6

_Place = tuple[str, tuple[str, int] | None]  # name and line of an operation


def shape_of(instruction: InstructionRecord) -> tuple[int, ...] | None:
    """The shape of an instruction's result on one device; None for tuples."""
    return _dimensions(instruction.shape)


def is_shard(shape: Sequence[int], of: Sequence[int]) -> bool:
    """Returns whether an array of one shape may be one device's part of an array of another."""
    return len(shape) == len(of) and 0 not in shape and not any(map(operator.mod, of, shape))


def compiled_values(
    values: Sequence[PlannedValueRecord],
    instructions: Sequence[InstructionRecord],
    sizes: dict[str, int],
    local: Collection[str],
) -> tuple[tuple[PlannedValueRecord, ...], frozenset[str]]:
    """Replaces propagated shardings by those of the compiled program.

    XLA simplifies a program before it propagates shardings, so that its shardings may differ. A device's part of a
    value has the shape of the compiled instruction with the name, line and opcode of the operation. If only one choice
    of mesh axes leads from the value's shape to this shape, these axes shard the value.

    Args:
        values: The values of the propagation.
        instructions: The instructions of the compiled module.
        sizes: The sizes of the mesh axes.
        local: Names of values inside a `shard_map`, which are parts already.

    Returns:
        The values, and the names of those whose sharding is known.
    """
    shapes: dict[_Place, dict[str, set[tuple[int, ...]]]] = {}
    for instruction in instructions:
        shape = shape_of(instruction)
        if shape is not None and instruction.op_name and instruction.opcode not in _CUTTING:
            place = instruction.op_name, _line(instruction.source)
            shapes.setdefault(place, {}).setdefault(instruction.opcode, set()).add(shape)
    peers: dict[_Place, list[PlannedValueRecord]] = {}
    for value in values:
        peers.setdefault((value.op_name, _line(value.source)), []).append(value)
    named: dict[str, PlannedValueRecord] = {}
    confirmed: set[str] = set()
    for value in values:
        place = value.op_name, _line(value.source)
        spec = _spec(value, peers[place], shapes.get(place, {}), sizes)
        if value.operation in _STATED or value.name in local or not value.shape:
            spec = value.spec
        elif spec is None and value.operation in REARRANGING and not _has_rank(value, shapes.get(place, {})):
            spec = _rearranged(value, named, confirmed)  # the compiler removed the operation
            if spec is None and (operand := named.get(next(iter(value.operands), ""))) is not None:
                spec = _spec(value, [value], shapes.get((operand.op_name, _line(operand.source)), {}), sizes)
        if spec is not None:
            confirmed.add(value.name)
        named[value.name] = value if spec in (None, value.spec) else with_spec(value, spec)
    return tuple(named.values()), frozenset(confirmed)


def observed_spec(value: PlannedValueRecord, shapes: Sequence[str], sizes: dict[str, int]) -> Spec | None:
    """The sharding of a value whose parts have one of these compiled shapes; None if they leave more than one."""
    parts = {part for shape in shapes if (part := _dimensions(shape)) is not None and len(part) == len(value.shape)}
    return _spec(value, [value], {"": parts}, sizes)


def _has_rank(value: PlannedValueRecord, shapes: dict[str, set[tuple[int, ...]]]) -> bool:
    return any(len(shape) == len(value.shape) for kind in shapes.values() for shape in kind)


def _dimensions(shape: str) -> tuple[int, ...] | None:
    match = _SHAPE.match(shape)
    return tuple(map(int, filter(None, match[1].split(",")))) if match else None


def with_spec(value: PlannedValueRecord, spec: Spec) -> PlannedValueRecord:
    """A value with another sharding; axes that the propagation does not have there come from the compiler."""
    before = {(dim, axis) for dim, entry in enumerate(value.spec) for axis in entry}
    added = {axis for dim, entry in enumerate(spec) for axis in entry if (dim, axis) not in before}
    return value.replace(spec=spec, origins={**value.origins, **dict.fromkeys(sorted(added), COMPILER)})


def _spec(
    value: PlannedValueRecord,
    peers: Sequence[PlannedValueRecord],
    shapes: dict[str, set[tuple[int, ...]]],
    sizes: dict[str, int],
) -> Spec | None:
    """The sharding of a value in the compiled program; None if its instructions leave more than one."""
    matches = [peer for peer in peers if peer.operation == value.operation]
    opcode = _OPCODES.get(value.operation, value.operation.replace("_", "-"))
    rank = len(value.shape)
    alike = {shape for shape in shapes.get(opcode, ()) if len(shape) == rank}
    if not alike:
        matches = list(peers)
        alike = {shape for kind in shapes.values() for shape in kind if len(shape) == rank}
    planned = _part(value, sizes)
    if planned in alike:
        return value.spec
    others = [peer for peer in matches if peer.shape != value.shape]
    assigned = {_part(peer, sizes) for peer in matches}
    missing = {peer.shape for peer in others if _part(peer, sizes) not in alike}
    fitting = [shape for shape in alike - assigned if _axes(_ratios(shape, value.shape), tuple(sizes.items()))]
    if len(fitting) != 1:
        return None
    shape = fitting[0]
    if any(_axes(_ratios(shape, other), tuple(sizes.items())) for other in missing):
        return None
    choices = _axes(_ratios(shape, value.shape), tuple(sizes.items()))
    if value.operation in _TRANSPOSING and any(
        order != shape and _axes(_ratios(order, value.shape), tuple(sizes.items()))
        for order in itertools.permutations(shape)
    ):
        return None
    return choices[0] if len(choices) == 1 else None


def _rearranged(
    value: PlannedValueRecord, named: dict[str, PlannedValueRecord], confirmed: Collection[str]
) -> Spec | None:
    """The sharding of an operand whose dimensions an operation keeps in order, apart from dimensions of size 1."""
    if len(value.operands) != 1 or value.operands[0] not in confirmed:
        return None
    operand = named[value.operands[0]]
    before = [(size, axes) for size, axes in zip(operand.shape, operand.spec, strict=False) if size != 1]
    if value.operation == "transpose" or [size for size, _ in before] != [size for size in value.shape if size != 1]:
        return None
    remaining = iter(before)
    return tuple(() if size == 1 else next(remaining)[1] for size in value.shape)


def _ratios(shape: Sequence[int], of: Sequence[int]) -> tuple[int, ...] | None:
    return tuple(full // part for full, part in zip(of, shape, strict=True)) if is_shard(shape, of) else None


@functools.lru_cache(maxsize=4096)
def _axes(ratios: tuple[int, ...] | None, sizes: tuple[tuple[str, int], ...]) -> tuple[Spec, ...]:
    """All choices of mesh axes that divide each dimension by its ratio."""
    axes = [(name, size) for name, size in sizes if size > 1]
    if ratios is None or len(axes) > _MOST_AXES:
        return ()
    choices: list[Spec] = []
    for places in itertools.product(range(-1, len(ratios)), repeat=len(axes)):
        if all(
            math.prod(size for (_, size), place in zip(axes, places, strict=True) if place == dim) == ratio
            for dim, ratio in enumerate(ratios)
        ):
            choices.append(
                tuple(
                    tuple(name for (name, _), place in zip(axes, places, strict=True) if place == dim)
                    for dim in range(len(ratios))
                )
            )
    return tuple(choices)


def _part(value: PlannedValueRecord, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape of one device's part of a value, as propagated."""
    parts = [math.prod(sizes.get(axis, 1) for axis in axes) for axes in value.spec]
    return tuple(size // part for size, part in itertools.zip_longest(value.shape, parts, fillvalue=1))


def _line(source: SourceLine | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)
