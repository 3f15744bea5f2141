"""Checks of what a user hands to a primitive: arrays, and one row per client."""

from typing import Any

import jax
import numpy as np

from workbench.errors import PlacementError, ProgramError
from workbench.mesh import Placement


def as_arrays(operation: str, argument: str, tree: Any) -> tuple[list[jax.Array], Any]:
    """The leaves of `tree` as arrays, and its structure.

    Raises:
        ProgramError: naming every leaf that is not an array or a number.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    wrong = [(path, leaf) for path, leaf in paths if not is_array(leaf)]
    if wrong:
        listed = "; ".join(f"{argument}{jax.tree_util.keystr(path)} = {_short(leaf)}" for path, leaf in wrong[:5])
        message = (
            f"`{operation}` was given {len(wrong)} leaf/leaves that are not arrays: {listed}. Only arrays and numbers "
            "can be placed at clients: take other values out of the pytree, and close over them or pass them as "
            "static arguments of the program."
        )
        raise ProgramError(message)
    return [leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf) for _, leaf in paths], structure


def is_array(leaf: Any) -> bool:
    """Whether a leaf can be an array of a program."""
    return (isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)) and getattr(
        leaf, "dtype", None
    ) != np.dtype(object)


def check_clients(operation: str, argument: str, tree: Any, placement: Placement) -> None:
    """Checks that every leaf has one row per client.

    Raises:
        PlacementError: naming every leaf that has not.
    """
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
    ) + "pad and mask the clients that are missing, or `broadcast` a value that all clients share"
    message = (
        f'`{operation}` was given {listed}{more}, but the placement "{placement.name}" has {placement.size} clients. '
        f"A value at the clients has one row per client: its leading axis is {placement.size}. Either {remedy}."
    )
    raise PlacementError(message)


def _short(value: object) -> str:
    text = repr(value)
    return f"{text[:40]}… ({type(value).__name__})" if len(text) > 40 else f"{text} ({type(value).__name__})"
