"""Replica groups of collectives, in every HLO syntax, expressed as axes of the user's mesh."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:,\s*device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,\s]+))\))?\s*\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_MESH_REF = re.compile(r"'([^':]*)(?:':\((\d+)\)(\d+)|:\((\d+)\)(\d+)'|')")
_LIST = re.compile(r"\{([\d,\s]*)\}")

_MOST_POSITIONS = 65_536  # more devices than any system has, because a short text can specify 10^12

Groups = tuple[tuple[int, ...], ...]


class Axes(NamedTuple):
    """The mesh axes of a collective; empty, with a note, if its groups are not a product of axes."""

    names: tuple[str, ...]
    note: str = ""


def parse_groups(text: str, devices: int) -> Groups | None:
    """Parses the value of `replica_groups=`.

    Args:
        text: `{{0,1},{2,3}}`, `[2,2]<=[4]`, `mesh['x'=2,'y'=2] {'x'}`, the same with `device_ids=([2,2]T(1,0))` or
            `device_ids=(0,2,1,3)`, or `{}` (all devices together).
        devices: Number of devices in the module.

    Returns:
        The groups as positions, or None if the syntax is unknown or names more than 65,536 positions.

    Example:
        >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4)
        ((0, 2), (1, 3))
    """
    text = text.strip()
    if text.startswith("mesh["):
        return _mesh_groups(text)
    if match := _IOTA.match(text):
        count, size = _pair(match[1])
        sizes = _integers(match[2])
        if count * size != math.prod(sizes) or count * size > _MOST_POSITIONS:
            return None
        flat = _iota(sizes, _integers(match[3] or ""))
        return tuple(tuple(flat[i * size : (i + 1) * size]) for i in range(count))
    if text == "{}":
        if devices > _MOST_POSITIONS:
            return None
        return (tuple(range(devices)),)
    groups = tuple(tuple(_integers(group)) for group in _LIST.findall(text))
    return groups if groups and all(groups) else None


def group_axes(groups: Groups, names: Sequence[str], sizes: Sequence[int]) -> Axes:
    """Names the mesh axes along which the devices of every group differ.

    Returns:
        Whole axes by name; parts of an axis as `a[4 of 8]`. There is a note instead of a name if the groups are not a
        product of axes, do not cover the mesh exactly once, or contain one device each.

    Example:
        >>> group_axes(((0, 1), (2, 3)), ("clients", "model"), (2, 2)).names
        ('model',)
    """
    total = math.prod(sizes)
    members = sorted(itertools.chain.from_iterable(groups))
    if members != list(range(total)):
        return Axes((), f"the groups do not fit this mesh: they must contain each of its {total} positions once")
    if len({len(group) for group in groups}) > 1:
        return Axes((), "groups of different sizes: not a product of axes")
    if len(groups[0]) == 1:
        return Axes((), "every device is alone in its group, so nothing is sent")
    digits = _Digits(sizes)
    axes: list[str] = []
    rest = groups
    reach = 1
    for axis, size in enumerate(sizes):
        values = {frozenset(digits.value(position, axis) for position in group) for group in rest}
        widths = {len(value) for value in values}
        if widths == {1}:
            continue
        if len(widths) > 1 or not _is_digit(values, size):
            return Axes((), "not a product of axes")
        width = widths.pop()
        reach *= width
        axes.append(names[axis] if width == size else f"{names[axis]}[{width} of {size}]")
    # If a group has as many devices as there are combinations of coordinates, it is the product of the coordinates.
    if reach != len(groups[0]):
        return Axes((), "not a product of axes")
    return Axes(tuple(axes))


def pair_axes(pairs: Groups, names: Sequence[str], sizes: Sequence[int]) -> Axes:
    """Names the mesh axes along which `source_target_pairs` move data."""
    total, digits = math.prod(sizes), _Digits(sizes)
    if any(position >= total for pair in pairs for position in pair):
        return Axes((), f"the pairs do not fit this mesh: some positions are outside its {total} positions")
    moved = {
        axis
        for source, target in pairs
        for axis in range(len(sizes))
        if digits.value(source, axis) != digits.value(target, axis)
    }
    if not moved:
        return Axes((), "every device sends only to itself, so nothing is sent")
    return Axes(tuple(names[axis] for axis in sorted(moved)))


class _Digits:
    """The coordinate of a position along each mesh axis."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]

    def value(self, position: int, axis: int) -> int:
        return position // self._strides[axis] % self._sizes[axis]


def _is_digit(values: set[frozenset[int]], size: int) -> bool:
    """Returns whether the sets of coordinates result from varying some digits of the coordinate."""
    width = len(next(iter(values)))
    if len(values) * width != size or set().union(*values) != set(range(size)):
        return False
    return width == size or any(_sweeps(values, factors) for factors in _factorings(size))


def _sweeps(values: set[frozenset[int]], factors: tuple[int, ...]) -> bool:
    digits = _Digits(factors)
    sample = next(iter(values))
    varying = [i for i in range(len(factors)) if len({digits.value(v, i) for v in sample}) > 1]
    if math.prod(factors[i] for i in varying) != len(sample):
        return False
    fixed = [i for i in range(len(factors)) if i not in varying]
    # There is one set per combination of the fixed digits, and each set lies within one combination.
    return all(len({tuple(digits.value(v, i) for i in fixed) for v in value}) == 1 for value in values)


def _factorings(size: int) -> Iterator[tuple[int, ...]]:
    primes, rest, factor = [], size, 2
    while rest > 1:
        while rest % factor == 0:
            primes.append(factor)
            rest //= factor
        factor += 1
    seen = set()
    for order in itertools.permutations(primes) if len(primes) < 8 else [tuple(primes), tuple(reversed(primes))]:
        if order not in seen:
            seen.add(order)
            yield order


def _mesh_groups(text: str) -> Groups | None:
    match = _MESH.match(text)
    if match is None:
        return None
    axes = [(name, int(size)) for name, size in _MESH_AXIS.findall(match[1])]
    total = math.prod(size for _, size in axes)
    if total > _MOST_POSITIONS:
        return None
    if match[4]:
        flat = _integers(match[4])
    elif match[2]:
        sizes = _integers(match[2])
        flat = _iota(sizes, _integers(match[3] or "")) if math.prod(sizes) == total else []
    else:
        flat = list(range(total))
    if len(flat) != total:
        return None
    split, grouped = _split_axes(axes, match[5])
    digits = _Digits(split)
    rest = [i for i in range(len(split)) if i not in grouped]
    groups: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
    for index, device in enumerate(flat):
        place = [digits.value(index, i) for i in range(len(split))]
        group = groups.setdefault(tuple(place[i] for i in rest), {})
        group[tuple(place[i] for i in grouped)] = device
    # Devices within a group are ordered in the order in which the axes are named.
    return tuple(tuple(group[place] for place in sorted(group)) for group in groups.values())


def _split_axes(axes: list[tuple[str, int]], references: str) -> tuple[list[int], list[int]]:
    """Sizes of the mesh after splitting sub-axes such as `'x':(2)4`, and the grouped axes in the named order."""
    wholes = dict(axes)
    named: list[tuple[str, int]] = []  # (axis, size of its more major part)
    cuts: dict[str, list[tuple[int, int]]] = {}
    for name, pre, size, pre_inside, size_inside in _MESH_REF.findall(references):
        if name not in wholes:
            continue
        before = int(pre or pre_inside or 1)
        cuts.setdefault(name, []).append((before, int(size or size_inside or wholes[name])))
        named.append((name, before))
    split: list[int] = []
    place: dict[tuple[str, int], int] = {}
    for name, size in axes:
        product = 1
        for pre, part in sorted(cuts.get(name, [])):
            split += [pre // product, part]
            place[name, pre] = len(split) - 1
            product = pre * part
        split.append(size // product)
    return split, [place[reference] for reference in named]


def _iota(sizes: list[int], order: list[int]) -> list[int]:
    """`iota(sizes).transpose(order).flatten()`."""
    order = order or list(range(len(sizes)))
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    ranges = [range(0, sizes[axis] * strides[axis], strides[axis]) for axis in order]
    return [sum(offsets) for offsets in itertools.product(*ranges)]


def _pair(text: str) -> tuple[int, int]:
    values = _integers(text)
    return (values[0], math.prod(values[1:])) if len(values) > 1 else (1, values[0])


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]
