"""Names the leaves of a program's arguments, and changes the shardings of selected leaves."""

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from workbench._types import Argument
from workbench.errors import MeshError
from workbench.inspection.sharding import inspect_sharding
from workbench.records.sharding import ShardingRecord

Spec = tuple[tuple[str, ...], ...]


class Leaves:
    """The leaves of a program's positional arguments, each under several names.

    `params['w']` is the leaf's name in the program and in `inspect(...).inputs`; `[0]['w']` is its position. If a
    library has flattened a module, `names` holds the user's names of its arrays, such as `model.head.kernel`.
    """

    def __init__(
        self, fn: Callable, args: tuple[Any, ...], mesh: Mesh | AbstractMesh, names: Sequence[str] = ()
    ) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(args)
        self.values = [shape_of(leaf, mesh) for _, leaf in leaves]  # shapes, so that arrays are not kept alive
        self.paths = [jax.tree_util.keystr(path) for path, _ in leaves]
        named = _argument_names(fn, len(args))
        raw = [named[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in leaves]
        self.labels = list(names[: len(raw)]) if len(names) >= len(raw) else raw
        self._names = list(zip(self.paths, raw, self.labels, strict=True))

    def resolve(self, specs: Mapping[str, Any], mesh: Mesh | AbstractMesh) -> dict[int, Spec]:
        """Assigns a spec to each leaf."""
        chosen: dict[int, Spec] = {}
        wrong: list[str] = []
        for name, value in specs.items():
            indices = self._find(name)
            if not indices:
                near = difflib.get_close_matches(name, [*self.labels, *self.paths], n=2) or self.labels[:3]
                wrong.append(f"{name!r} is not a leaf of the program's arguments (near: {', '.join(near) or 'none'})")
            for index in indices:
                shape = tuple(jax.numpy.shape(self.values[index]))
                try:
                    spec = as_spec(value, len(shape))
                except (TypeError, ValueError) as error:
                    wrong.append(f"{self.labels[index]}: {error}")
                    continue
                wrong += [f"{self.labels[index]} {list(shape)}: {fact}" for fact in _misfits(spec, shape, mesh)]
                chosen[index] = spec
        if wrong:
            axes = " × ".join(f"{name}={size}" for name, size in mesh.shape.items())
            message = (
                f"`what_if` was given specs that do not fit: {'; '.join(wrong)}. The mesh is {axes}. A spec names, for "
                "each dimension, mesh axes whose sizes divide the dimension, and names each axis once: choose "
                "different axes or dimensions, or pad the array."
            )
            raise MeshError(message)
        return chosen

    def replaced(self, chosen: Mapping[int, Spec], mesh: Mesh | AbstractMesh) -> tuple[Any, ...]:
        """The arguments, with the selected leaves replaced by shapes that have the new sharding."""
        leaves = [
            leaf
            if index not in chosen
            else jax.ShapeDtypeStruct(
                jax.numpy.shape(leaf), _dtype(leaf), sharding=NamedSharding(mesh, partition_spec(chosen[index]))
            )
            for index, leaf in enumerate(self.values)
        ]
        return jax.tree_util.tree_unflatten(self._structure, leaves)

    def sharded(self, specs: Sequence[Spec | None], mesh: Mesh | AbstractMesh) -> tuple[Any, ...]:
        """The arguments as shapes with the shardings in `specs`; all other arguments are unchanged."""
        # In the compiled program, random keys have additional trailing dimensions.
        by_index = {
            index: spec[: len(jax.numpy.shape(leaf))]
            for index, (spec, leaf) in enumerate(zip(specs, self.values, strict=True))
            if spec is not None
        }
        return self.replaced(by_index, mesh)

    def record(self, specs: Sequence[Spec | None], mesh: Mesh | AbstractMesh) -> ShardingRecord:
        """The arguments with the shardings in `specs`, under the names that the user writes."""
        record = inspect_sharding(self.sharded(specs, mesh))
        named = zip(record.leaves, self.labels, strict=True)
        return record.replace(leaves=tuple(leaf.replace(path=label) for leaf, label in named))

    def _find(self, name: str) -> list[int]:
        """The leaves that `name` selects: one leaf, or all leaves in an argument or a branch of it."""
        below = (f"{name}[", f"{name}.")
        return [
            index
            for index, names in enumerate(self._names)
            if name in names or any(path.startswith(below) for path in names)
        ]


def as_spec(given: object, rank: int) -> Spec:
    """Mesh axes per dimension, from a `PartitionSpec` or from a sequence of None, names and tuples of names."""
    if isinstance(given, str) or not isinstance(given, PartitionSpec | Sequence):
        message = f"a spec is a `PartitionSpec` or a sequence with the mesh axes of each dimension, not {given!r}"
        raise TypeError(message)
    entries = list(given)
    if len(entries) > rank:
        message = f"{len(entries)} entries for {rank} dimension{'s' if rank != 1 else ''}"
        raise ValueError(message)
    free = (None, PartitionSpec.UNCONSTRAINED)
    spec = [() if entry in free else (entry,) if isinstance(entry, str) else tuple(entry) for entry in entries]
    return (*spec, *[()] * (rank - len(spec)))


def partition_spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*[axes[0] if len(axes) == 1 else axes or None for axes in spec])


def _misfits(spec: Spec, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> list[str]:
    used = [axis for axes in spec for axis in axes]
    facts = [f"mesh axis {axis!r} does not exist" for axis in dict.fromkeys(used) if axis not in mesh.shape]
    facts += [f"mesh axis {axis!r} is used twice" for axis in dict.fromkeys(used) if used.count(axis) > 1]
    if facts:
        return facts
    parts = [math.prod(mesh.shape[axis] for axis in axes) for axes in spec]
    return [
        f"{part} does not divide dimension {dim}"
        for dim, (size, part) in enumerate(zip(shape, parts, strict=True))
        if size % part
    ]


def _argument_names(fn: Callable, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [plain[number] if number < len(plain) else f"args[{number}]" for number in range(count)]


def shape_of(leaf: Argument, mesh: Mesh | AbstractMesh) -> Argument:
    """A leaf as a shape; a named sharding on another mesh is moved to this mesh if its axes exist here."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    named = None
    if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
        spec = as_spec(sharding.spec, len(leaf.shape))
        if not _misfits(spec, leaf.shape, mesh):
            named = NamedSharding(mesh, partition_spec(spec))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=named)


def _dtype(leaf: Argument) -> np.dtype:
    return leaf.dtype if hasattr(leaf, "dtype") else jax.numpy.result_type(leaf)
