"""Checks the arguments that users pass to primitives: arrays, and one row per client."""

from collections.abc import Sequence

import jax
from jax import Array

from workbench._types import PyTree, PyTreeDef
from workbench.errors import PlacementError, ProgramError
from workbench.primitives._placement import Placement
from workbench.primitives._static import (
    hide_static,
    is_array,
    refuse_deleted,
    refuse_forked,
    refuse_readers,
    show_static,
)


class Structure:
    """The structure of a pytree, including the leaves that are not arrays."""

    def __init__(self, treedef: PyTreeDef, *, static: bool) -> None:
        self.treedef, self._static = treedef, static

    def unflatten(self, arrays: Sequence[jax.Array]) -> PyTree[Array]:
        """Rebuilds the pytree with these arrays."""
        tree = jax.tree.unflatten(self.treedef, arrays)
        return show_static(tree) if self._static else tree

    def hidden(self, arrays: Sequence[jax.Array | int]) -> PyTree[Array]:
        """Rebuilds the pytree with these arrays, but without its other leaves."""
        return jax.tree.unflatten(self.treedef, arrays)


def as_arrays(operation: str, argument: str, tree: PyTree[Array]) -> tuple[list[jax.Array], Structure]:
    """The arrays in `tree`, and its structure with other leaves (functions, names) as static parts."""
    leaves, treedef = jax.tree.flatten(tree)
    refuse_forked(operation)
    refuse_deleted(operation, tree)
    static = not all(map(is_array, leaves))
    if static:
        refuse_readers(operation, tree)
        leaves, treedef = _hidden_leaves(operation, argument, tree)
    arrays: list[jax.Array] = [x if hasattr(x, "dtype") else jax.numpy.asarray(x) for x in leaves]
    return arrays, Structure(treedef, static=static)


def _hidden_leaves(operation: str, argument: str, tree: PyTree[Array]) -> tuple[list[Array], PyTreeDef]:
    hidden = hide_static(tree)
    paths, treedef = jax.tree_util.tree_flatten_with_path(hidden)
    wrong = [(path, leaf) for path, leaf in paths if not is_array(leaf)]
    if not paths:  # a tree without arrays contains nothing to place
        wrong = jax.tree_util.tree_flatten_with_path(tree)[0]
    if wrong:
        listed = "; ".join(f"{argument}{jax.tree_util.keystr(path)} = {_short(leaf)}" for path, leaf in wrong[:5])
        message = (
            f"`{operation}` received {len(wrong)} non-array value{'s' * (len(wrong) != 1)}: {listed}. Only arrays and "
            "numbers can be placed at clients; a pytree may also have hashable static leaves, such as functions and "
            "names. Remove other values from the pytree, and close over them or pass them as static arguments of the "
            "program."
        )
        raise ProgramError(message)
    return [leaf for _, leaf in paths], treedef


def check_clients(operation: str, argument: str, tree: PyTree[Array], placement: Placement) -> None:
    """Checks that every leaf has one row per client."""
    wrong = [
        (path, tuple(leaf.shape))
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if leaf.ndim == 0 or leaf.shape[0] != placement.size
    ]
    if not wrong:
        return
    listed = ", ".join(f"{argument}{jax.tree_util.keystr(path)} of shape {shape}" for path, shape in wrong[:8])
    more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
    rows = {shape[0] for _, shape in wrong if shape}
    remedy = (
        f"set the placement to {rows.pop()} clients, " if len(rows) == 1 and len(wrong) > 0 else ""
    ) + "pad and mask the missing clients, or `broadcast` a value that all clients share"
    message = (
        f'`{operation}` was given {listed}{more}, but the placement "{placement.name}" has {placement.size} clients. '
        f"A client-placed value has one row per client, so its leading axis must be {placement.size}. Either {remedy}."
    )
    raise PlacementError(message)


def _short(value: object) -> str:
    text = repr(value)
    return f"{text[:40]}… ({type(value).__name__})" if len(text) > 40 else f"{text} ({type(value).__name__})"
