"""Groups of arguments that share one spec: a parameter in all layers, and its optimizer state."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.records.advice import SpecGroupRecord
from workbench.records.sharding import LAYER_NUMBER, pattern_of

Spec = tuple[tuple[str, ...], ...]
_TOKENS = re.compile(r"[A-Za-z_]+|\d+")
_SILENT = {"value", "raw_value"}


@dataclass(frozen=True)
class ArgumentLeaf:
    """One array in the arguments."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    item_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the entire array."""
        return math.prod(self.shape) * self.item_bytes


@dataclass
class SpecGroup:
    """Leaves that share a spec, and the results that replace them."""

    pattern: str
    shape: tuple[int, ...]
    dtype: str
    leaves: list[int]
    size_bytes: int
    outputs: list[int] = field(default_factory=list)
    locked: Spec | None = None
    patterns: tuple[str, ...] = ()  # several if no single pattern matches exactly its leaves
    is_reference: bool = False
    is_exception: bool = False  # another group's pattern matches its name, so it is listed even if replicated

    def __post_init__(self) -> None:
        self.patterns = self.patterns or (self.pattern,)

    @property
    def argument(self) -> str:
        """The argument that the group's first leaf belongs to."""
        return pattern_argument(self.pattern)

    def record(self, leaves: Sequence[ArgumentLeaf]) -> SpecGroupRecord:
        return SpecGroupRecord(
            pattern=self.pattern,
            shape=self.shape,
            dtype=self.dtype,
            leaves=tuple(leaves[i].name for i in self.leaves),
            size_bytes=self.size_bytes,
            locked=self.locked is not None,
            is_reference=self.is_reference,
        )


def pattern_argument(name: str) -> str:
    """The argument at the beginning of a path."""
    return re.split(r"[\[.]", name, maxsplit=1)[0]


def _patterns_of(names: Sequence[str]) -> tuple[str, ...]:
    """Patterns for paths that differ only in numbers, with `*` if all combinations of numbers occur.

    Example:
        >>> _patterns_of(["p['Mlp_0']['Dense_1']", "p['Mlp_1']['Dense_1']"])
        ("p['Mlp_*']['Dense_1']",)
        >>> _patterns_of(["p['Mlp_0']['Dense_1']", "p['Mlp_1']['Dense_2']"])
        ("p['Mlp_0']['Dense_1']", "p['Mlp_1']['Dense_2']")
    """
    numbers = [tuple(LAYER_NUMBER.findall(name)) for name in names]
    places = [sorted(set(column)) for column in zip(*numbers, strict=True)]
    if math.prod(map(len, places)) != len(set(numbers)):
        return tuple(names)
    parts = iter([column[0] if len(column) == 1 else "*" for column in places])
    return (LAYER_NUMBER.sub(lambda _: next(parts), names[0]),)


def group_leaves(
    leaves: Sequence[ArgumentLeaf], outputs: Sequence[tuple[str, tuple[int, ...], str]]
) -> list[SpecGroup]:
    """Groups leaves by pattern and shape; optimizer states join the parameter with the same path ending."""
    tails: dict[tuple[tuple[str, ...], tuple[int, ...]], int] = {}
    tokens = [_tokens(leaf.name) for leaf in leaves]
    for number, (leaf, words) in enumerate(zip(leaves, tokens, strict=True)):
        if len(words) > 1:
            tails.setdefault((words[1:], leaf.shape), number)
        if len(words) > 2 and words[1] == "params":  # parts of a training state that includes the optimizer state
            tails.setdefault((words[2:], leaf.shape), number)
    owner = [
        _owner(number, words, leaf.shape, tails)
        for number, (leaf, words) in enumerate(zip(leaves, tokens, strict=True))
    ]
    groups: dict[tuple[str, tuple[int, ...]], SpecGroup] = {}
    of_leaf: dict[int, SpecGroup] = {}
    for number, leaf in enumerate(leaves):
        first = owner[number]
        key = (pattern_of(leaves[first].name), leaf.shape)
        if key not in groups:
            groups[key] = SpecGroup(key[0], leaf.shape, leaves[first].dtype, [], 0)
        of_leaf[number] = groups[key]
        groups[key].leaves.append(number)
        groups[key].size_bytes += leaf.size_bytes
    shared = Counter(pattern for pattern, _ in groups)
    general: set[str] = set()  # patterns of one group; other leaves that they match are listed by name
    for key, group in groups.items():
        if shared[key[0]] > 1:  # layers have different widths, but a pattern must match one group
            paths = [leaves[i].name for i in group.leaves if pattern_of(leaves[i].name) == key[0]]
            group.patterns, group.is_exception = _patterns_of(paths), True
            if general.intersection(group.patterns):
                group.patterns = tuple(dict.fromkeys(paths))
            general.update(group.patterns)
            group.pattern = group.patterns[0]
    for position, (path, shape, dtype) in enumerate(outputs):
        words = _tokens(path)
        for start in range(len(words)):
            number = tails.get((words[start:], shape))
            if number is not None and leaves[number].dtype == dtype:
                of_leaf[number].outputs.append(position)
                break
    return sorted(groups.values(), key=lambda group: -group.size_bytes)


def candidates(shape: Sequence[int], axes: Mapping[str, int], at_most: int = 81) -> list[Spec]:
    """All specs that shard a shape evenly, replication first; each axis is used on at most one dimension.

    Example:
        >>> candidates((8,), {"data": 4})
        [((),), (('data',),)]
    """
    specs: list[Spec] = []
    names = [name for name, size in axes.items() if size > 1]
    for places in itertools.product([None, *range(len(shape))], repeat=len(names)):
        spec = tuple(tuple(n for n, place in zip(names, places, strict=True) if place == d) for d in range(len(shape)))
        if fits(spec, shape, axes):
            specs.append(spec)
    specs.sort(key=lambda spec: sum(map(len, spec)))
    return specs[:at_most]


def fits(spec: Spec, shape: Sequence[int], axes: Mapping[str, int]) -> bool:
    """Returns whether a spec uses only known axes, each at most once, that divide the dimensions evenly."""
    used = [axis for entry in spec for axis in entry]
    if len(spec) != len(shape) or len(set(used)) != len(used) or not set(used) <= set(axes):
        return False
    return all(n % math.prod(axes[axis] for axis in entry) == 0 for n, entry in zip(shape, spec, strict=True))


def _tokens(path: str) -> tuple[str, ...]:
    """The words in a path, with `*` for numbers."""
    return tuple("*" if word.isdigit() else word for word in _TOKENS.findall(path) if word not in _SILENT)


def _owner(
    number: int,
    words: tuple[str, ...],
    shape: tuple[int, ...],
    tails: Mapping[tuple[tuple[str, ...], tuple[int, ...]], int],
) -> int:
    """The parameter leaf whose path (without the argument) ends this leaf's path; this leaf if there is none."""
    for start in range(2, len(words)):
        parameter = tails.get((words[start:], shape))
        if parameter is not None and parameter != number:
            return parameter
    return number
