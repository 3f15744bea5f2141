"""The tree of arrays in the primitives' signatures: `PyTree[Shaped[Array, " clients *shape"]]`."""

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # type checkers read jaxtyping's tree, which is made at run time, as a type that nobody knows
    from typing_extensions import TypeAliasType

    Leaf = TypeVar("Leaf")
    PyTree = TypeAliasType("PyTree", Any, type_params=(Leaf,))
else:
    from jaxtyping import PyTree as PyTree
