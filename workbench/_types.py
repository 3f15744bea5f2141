"""Shared type aliases.

Types of arrays and pytrees: `PyTree[Shaped[Array, " clients *shape"]]` is a tree of arrays with one row per client.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Literal, Var
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jax.tree_util import KeyPath as KeyPath

if TYPE_CHECKING:  # jaxtyping creates its PyTree type at run time, so type checkers treat it as unknown
    from typing_extensions import TypeAliasType

    Leaf = TypeVar("Leaf")
    PyTree = TypeAliasType("PyTree", Any, type_params=(Leaf,))

    class PyTreeDef(Protocol):  # compiled, without stubs
        """The structure of a pytree."""

        num_leaves: int

        def unflatten(self, leaves: Iterable[object], /) -> "Argument": ...

    Aval: TypeAlias = Any  # JAX types a variable's aval as `AbstractValue`, which has no `shape` attribute
else:
    from jax.tree_util import PyTreeDef as PyTreeDef
    from jaxtyping import PyTree as PyTree

    Aval: TypeAlias = ShapedArray

"""`Aval` is the type of an array in a jaxpr: its shape, dtype and sharding."""

Atom: TypeAlias = Var | Literal
"""Operand of an equation."""


def type_of(atom: Atom) -> Aval:
    """The array type of a variable or literal in a jaxpr."""
    return atom.aval


AnyArray: TypeAlias = Array | np.ndarray
"""An array with values, on devices or in host memory."""

AnyMesh: TypeAlias = Mesh | AbstractMesh
"""A mesh with devices, or an abstract mesh."""

AxisNames: TypeAlias = str | tuple[str, ...]
"""Named axes of a mesh or a `vmap`, as passed to collectives."""

SpecEntry: TypeAlias = str | tuple[str, ...] | None
"""Entry of a `PartitionSpec` for one dimension, other than `P.UNCONSTRAINED`."""

Spec: TypeAlias = PartitionSpec | Sequence[SpecEntry] | SpecEntry
"""Sharding of an array as users write it: a `PartitionSpec`, its entries, or the axes of dimension 0."""

Param: TypeAlias = Any
"""A parameter of an equation: a jaxpr, a size, a placement, or another object."""

Argument: TypeAlias = Any
"""Argument or result of a user's function: trees of arrays, and static values of any type."""


class ArrayLikeType(Protocol):
    """An object with a shape and a dtype: an array, a tracer, a `jax.ShapeDtypeStruct`, or a variable's type."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...


class Device(Protocol):
    """The attributes of a `jax.Device` that the library reads; needed because JAX does not export the type."""

    id: int
    platform: str
    device_kind: str
    process_index: int

    def memory_stats(self) -> dict[str, int] | None:
        """The backend's own memory figures, or None."""
        ...
