"""Types that are said in many signatures, under one name each.

`PyTree[Shaped[Array, " clients *shape"]]` is a tree of arrays with one row per client.
"""

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Literal, Var
from jax.sharding import AbstractMesh, Mesh
from jax.tree_util import KeyPath as KeyPath, PyTreeDef as PyTreeDef

if TYPE_CHECKING:  # type checkers read jaxtyping's tree, which is made at run time, as a type that nobody knows
    from typing_extensions import TypeAliasType

    Leaf = TypeVar("Leaf")
    PyTree = TypeAliasType("PyTree", Any, type_params=(Leaf,))
    Aval: TypeAlias = Any  # JAX says of a variable only that its type is an `AbstractValue`, which has no shape
else:
    from jaxtyping import PyTree as PyTree

    Aval: TypeAlias = ShapedArray

"""`Aval` is the type of an array in a jaxpr: its shape, dtype and sharding."""

Atom: TypeAlias = Var | Literal
"""What an equation reads."""

AnyArray: TypeAlias = Array | np.ndarray
"""An array with values, on the devices or in the memory of the host."""

AnyMesh: TypeAlias = Mesh | AbstractMesh
"""A mesh with devices, or one that only has a shape."""


class Device(Protocol):
    """What is read of a `jax.Device`, whose type JAX does not give to type checkers."""

    id: int
    platform: str
    device_kind: str
    process_index: int

    def memory_stats(self) -> dict[str, int] | None:
        """The backend's own figures; None where it has none."""
        ...
