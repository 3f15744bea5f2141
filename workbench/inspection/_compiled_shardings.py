"""Shardings of the compiled program, from the shapes of its instructions."""

import dataclasses
import functools
import itertools
import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from workbench.records.compiled import InstructionRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import PlannedValueRecord

Spec = tuple[tuple[str, ...], ...]
COMPILER = "compiler"  # origin of an axis that only the compiled program uses
EXCHANGES = frozenset("all-gather all-reduce reduce-scatter all-to-all collective-permute".split())
_LAYOUT = re.compile(r"\{([\d,]+)")
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
_PART = re.compile(r"(.+)\[(\d+) of \d+\]$")  # part of an axis: "clients[4 of 8]"

Place = tuple[str, tuple[str, int] | None]  # name and line of an operation
Sizes = Mapping[str, int]


def shape_of(instruction: InstructionRecord) -> tuple[int, ...] | None:
    """The shape of an instruction's result on one device; None for tuples."""
    return _dimensions(instruction.shape)


def is_shard(shape: Sequence[int], of: Sequence[int]) -> bool:
    """Returns whether an array of one shape may be one device's part of an array of another."""
    return len(shape) == len(of) and 0 not in shape and not any(map(operator.mod, of, shape))


def whole_axis(axis: str) -> str:
    """The mesh axis of which `axis` is a part, such as `a[2 of 4]`, or `axis` itself."""
    match = _PART.match(axis)
    return match[1] if match else axis


def axis_size(axis: str, sizes: Sizes) -> int:
    """The number of parts into which an axis, or a part of an axis, divides a dimension."""
    match = _PART.match(axis)
    return int(match[2]) if match else sizes.get(axis, 1)


def place_of(operation: PlannedValueRecord | InstructionRecord) -> Place:
    """The name and line of an operation; the compiled program has fewer columns than the propagation."""
    return operation.op_name, _line(operation.source)


def compiled_values(
    values: Sequence[PlannedValueRecord],
    instructions: Sequence[InstructionRecord],
    sizes: Sizes,
    local: Collection[str],
    divided: Mapping[Place, Collection[str]],
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
        divided: For each place that exchanges values over a part of an axis, these axes. There, and at any place for
            axes of which the propagation uses a part, a choice may contain parts of the axes.

    Returns:
        The values, and the names of those whose sharding is known.
    """
    shapes: dict[Place, dict[str, set[tuple[int, ...]]]] = {}
    for instruction in instructions:
        shape = shape_of(instruction)
        if shape is not None and instruction.op_name and instruction.opcode not in _CUTTING:
            place = place_of(instruction)
            shapes.setdefault(place, {}).setdefault(instruction.opcode, set()).add(shape)
    peers: dict[Place, list[PlannedValueRecord]] = {}
    for value in values:
        peers.setdefault(place_of(value), []).append(value)
    planned = frozenset(parts_of(values).values())
    named: dict[str, PlannedValueRecord] = {}
    confirmed: set[str] = set()
    for value in values:
        place = place_of(value)
        axes = _Axes(sizes, planned.union(divided.get(place, ())))
        spec = _spec(value, peers[place], shapes.get(place, {}), axes)
        if spec == value.spec and place in divided and len(axes.choices(_part(value, sizes), value.shape)) > 1:
            spec = None  # another choice of axes gives the same shape
        if value.operation in _STATED or value.name in local or not value.shape:
            spec = value.spec
        elif spec is None and value.operation in REARRANGING and not _has_rank(value, shapes.get(place, {})):
            spec = _rearranged(value, named, confirmed)  # the compiler removed the operation
            if spec is None and (operand := named.get(next(iter(value.operands), ""))) is not None:
                axes = _Axes(sizes, axes.divided.union(divided.get(place_of(operand), ())))
                spec = _spec(value, [value], shapes.get(place_of(operand), {}), axes)
        if spec is not None:
            confirmed.add(value.name)
        named[value.name] = value if spec in (None, value.spec) else with_spec(value, spec)
    return tuple(named.values()), frozenset(confirmed)


def parts_of(values: Iterable[PlannedValueRecord]) -> dict[str, str]:
    """The parts of axes that shard values, such as `a[2 of 4]`, with their axes."""
    axes = {axis for value in values for axis in itertools.chain(*value.spec)}
    return {axis: match[1] for axis in axes if (match := _PART.match(axis))}


def observed_spec(
    value: PlannedValueRecord,
    shapes: Sequence[str],
    sizes: Sizes,
    divided: Collection[str] = (),
    gathered: Mapping[int, Collection[str]] | None = None,
) -> Spec | None:
    """The sharding of a value whose parts have one of these compiled shapes; None if they leave more than one.

    A choice may contain parts of the `divided` axes, and has all axes over which each `gathered` dimension is gathered.
    """
    shapes = [shape for shape in shapes if not _is_transposed(shape)]
    parts = {part for shape in shapes if (part := _dimensions(shape)) is not None and len(part) == len(value.shape)}
    return _spec(value, [value], {"": parts}, _Axes(sizes, frozenset(divided), gathered or {}))


def _has_rank(value: PlannedValueRecord, shapes: dict[str, set[tuple[int, ...]]]) -> bool:
    return any(len(shape) == len(value.shape) for kind in shapes.values() for shape in kind)


def _dimensions(shape: str) -> tuple[int, ...] | None:
    match = _SHAPE.match(shape)
    return tuple(map(int, filter(None, match[1].split(",")))) if match else None


def _is_transposed(shape: str) -> bool:
    """Returns whether a layout may be that of a transposed value: its dimensions are not in descending order."""
    match = _LAYOUT.search(shape)
    order = match[1].split(",") if match else []
    return order != sorted(order, key=int, reverse=True)


def with_spec(value: PlannedValueRecord, spec: Spec) -> PlannedValueRecord:
    """A value with another sharding; axes that the propagation does not have there come from the compiler."""
    before = {(dim, axis) for dim, entry in enumerate(value.spec) for axis in entry}
    added = {axis for dim, entry in enumerate(spec) for axis in entry if (dim, axis) not in before}
    return value.replace(spec=spec, origins={**value.origins, **dict.fromkeys(sorted(added), COMPILER)})


@dataclasses.dataclass(frozen=True)
class _Axes:
    """The mesh axes that may shard the dimensions of a value."""

    sizes: Sizes
    divided: frozenset[str] = frozenset()  # axes of which a part alone may shard a dimension
    required: Mapping[int, Collection[str]] = dataclasses.field(default_factory=dict)  # by dimension

    def choices(self, part: Sequence[int], shape: Sequence[int]) -> list[Spec]:
        """All choices of axes that lead from an array's shape to the shape of one device's part."""
        ratios = tuple(full // size for full, size in zip(shape, part, strict=True)) if is_shard(part, shape) else None
        choices = _choices(ratios, tuple(self.sizes.items()), self.divided)
        return [spec for spec in choices if self.allows(spec)]

    def allows(self, spec: Spec) -> bool:
        return all(dim < len(spec) and set(axes) <= set(spec[dim]) for dim, axes in self.required.items())


def _spec(
    value: PlannedValueRecord,
    peers: Sequence[PlannedValueRecord],
    shapes: Mapping[str, set[tuple[int, ...]]],
    axes: _Axes,
) -> Spec | None:
    """The sharding of a value in the compiled program; None if its instructions leave more than one."""
    matches = [peer for peer in peers if peer.operation == value.operation]
    opcode = _OPCODES.get(value.operation, value.operation.replace("_", "-"))
    rank = len(value.shape)
    alike = {shape for shape in shapes.get(opcode, ()) if len(shape) == rank}
    if not alike:
        matches = list(peers)
        alike = {shape for kind in shapes.values() for shape in kind if len(shape) == rank}
    if _part(value, axes.sizes) in alike and axes.allows(value.spec):
        return value.spec
    others = [peer for peer in matches if peer.shape != value.shape]
    assigned = {_part(peer, axes.sizes) for peer in matches} if axes.allows(value.spec) else set()
    missing = {peer.shape for peer in others if _part(peer, axes.sizes) not in alike}
    fitting = [shape for shape in alike - assigned if axes.choices(shape, value.shape)]
    if len(fitting) != 1:
        return None
    shape = fitting[0]
    if any(axes.choices(shape, other) for other in missing if len(other) == rank):
        return None
    if value.operation in _TRANSPOSING and any(
        order != shape and axes.choices(order, value.shape) for order in itertools.permutations(shape)
    ):
        return None
    choices = axes.choices(shape, value.shape)
    return choices[0] if len(choices) == 1 and not any(map(_PART.match, itertools.chain(*choices[0]))) else None


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


@functools.lru_cache(maxsize=4096)
def _choices(
    ratios: tuple[int, ...] | None, sizes: tuple[tuple[str, int], ...], divided: frozenset[str]
) -> tuple[Spec, ...]:
    """All choices of mesh axes, and of prime factors of the divided axes, that divide each dimension by its ratio."""
    lengths = dict(sizes)
    units = [
        (axis, unit) for axis in lengths for unit in (_primes(lengths[axis]) if axis in divided else (lengths[axis],))
    ]
    units = [(axis, unit) for axis, unit in units if unit > 1]
    if ratios is None or len(units) > _MOST_AXES:
        return ()
    choices: list[Spec] = []
    for places in itertools.product(range(-1, len(ratios)), repeat=len(units)):
        parts: list[dict[str, int]] = [{} for _ in ratios]
        for (axis, unit), place in zip(units, places, strict=True):
            if place >= 0:
                parts[place][axis] = parts[place].get(axis, 1) * unit
        if all(math.prod(part.values()) == ratio for part, ratio in zip(parts, ratios, strict=True)):
            choices.append(tuple(tuple(_part_name(*pair, lengths) for pair in part.items()) for part in parts))
    return tuple(choices)


def _part_name(axis: str, size: int, sizes: Sizes) -> str:
    return axis if size == sizes[axis] else f"{axis}[{size} of {sizes[axis]}]"


def _primes(size: int) -> tuple[int, ...]:
    divisor = next((number for number in range(2, math.isqrt(size) + 1) if size % number == 0), size)
    return (divisor, *_primes(size // divisor)) if divisor < size else (size,)


def _part(value: PlannedValueRecord, sizes: Sizes) -> tuple[int, ...]:
    """The shape of one device's part of a value, as propagated."""
    parts = [math.prod(axis_size(axis, sizes) for axis in axes) for axes in value.spec]
    return tuple(size // part for size, part in itertools.zip_longest(value.shape, parts, fillvalue=1))


def _line(source: SourceLine | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)
