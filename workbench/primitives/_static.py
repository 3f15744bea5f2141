"""Turns leaves that are not arrays (an activation function, a name) into static parts of a pytree."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.core import Tracer

from workbench import _jax_compat
from workbench._types import PyTree
from workbench.errors import ProgramError


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Static:
    """A static leaf as a pytree without leaves; JAX compares it, and recompiles if it has changed."""

    value: object

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), self.value

    @classmethod
    def tree_unflatten(cls, value: object, _: Sequence[Any]) -> "Static":
        return cls(value)


def is_array(leaf: object) -> bool:
    """Returns whether a leaf can be an array in a program; arrays of objects or text cannot.

    Example:
        >>> is_array(np.ones(3)), is_array("text")
        (True, False)
    """
    if isinstance(leaf, jax.Array | bool | int | float | complex):
        return True
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OSU"


def is_opaque(leaf: object) -> bool:
    """Returns whether a leaf may hide arrays (unregistered dataclasses) or is consumed when it is read (iterators).

    Example:
        >>> is_opaque(iter([1.0])), is_opaque("relu")
        (True, False)
    """
    return hasattr(leaf, "__next__") or (dataclasses.is_dataclass(leaf) and not isinstance(leaf, type))


def is_static(leaf: object) -> bool:
    """Returns whether a leaf can be a static part: it has no dtype, and JAX can compare it."""
    if hasattr(leaf, "dtype") or is_opaque(leaf):
        return False
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def hide_static(tree: PyTree[Array]) -> PyTree[Array]:
    """Moves the leaves of a pytree that are not arrays into its static structure."""
    return jax.tree.map(lambda leaf: Static(leaf) if not is_array(leaf) and is_static(leaf) else leaf, tree)


def show_static(tree: PyTree[Array]) -> PyTree[Array]:
    """Restores the pytree that was passed to `hide_static`, possibly with other arrays."""
    return jax.tree.map(lambda x: x.value if isinstance(x, Static) else x, tree, is_leaf=_is_hidden)


def _is_hidden(x: object) -> bool:
    return isinstance(x, Static)


def _is_deleted(x: object) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted()


def refuse_forked(operation: str) -> None:
    """Checks that this process is not an `os.fork` child of a process that used JAX."""
    waiting = _jax_compat.waits_forever(f"`{operation}`")
    if waiting and _jax_compat.at_top_level():
        raise ProgramError(waiting)


def refuse_deleted(operation: str, tree: PyTree[Array]) -> None:
    """Checks that no array was deleted or donated."""
    if not any(map(_is_deleted, jax.tree.leaves(tree))):
        return
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    deleted_arrays = [
        f"{jax.tree_util.keystr(path) or 'the argument'} of shape {x.shape}" for path, x in paths if _is_deleted(x)
    ]
    message = (
        f"`{operation}` received {len(deleted_arrays)} array(s) whose memory has been freed: "
        f"{', '.join(deleted_arrays[:8])}. A donated or deleted array has no values, and reading it may make JAX abort "
        "the process. Pass the result of the call to which it was donated, keep a copy (`jnp.copy(x)`) before that "
        "call, or omit `donate_argnums`."
    )
    raise ProgramError(message)


class EngineReader:
    """Base class of arguments whose clients are read by an engine while the program runs."""


def refuse_readers(operation: str, arguments: PyTree[Array]) -> None:
    """Raises an error for arguments whose clients are read during a run."""
    reader = next((x for x in jax.tree.leaves(arguments) if isinstance(x, EngineReader)), None)
    if reader is not None:
        message = (
            f"`{operation}` received an object of type {type(reader).__name__}. An engine reads its clients while the "
            "program runs. All other calls need arrays. Run the program on an engine, as in "
            "`workbench.engines.MeshEngine().run(fn, …)` or `run_rounds(…, engine=MeshEngine())`."
        )
        raise ProgramError(message)
