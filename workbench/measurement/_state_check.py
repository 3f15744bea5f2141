"""Structure and digest of a state; checkpoints are restored only into the same structure."""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from workbench._types import PyTree

_NUMBERS = {"b": np.bool_, "i": np.integer, "f": np.floating, "c": np.complexfloating}


def describe_state(state: PyTree[Array]) -> dict[str, list[Any]]:
    """Kind, shape and SHA-256 of every leaf, by path; no digest if other hosts store a part of the leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): [*_form(leaf), _digest(leaf)] for path, leaf in leaves}


def misfits(like: object, saved: dict[str, list[Any]]) -> list[str]:
    """Describes the leaves of `like` whose kind or shape differs from the saved state."""
    template = {
        jax.tree_util.keystr(path): (leaf, _form(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(like)
    }
    problems = [f"{_name(path)} is not in the checkpoint" for path in template if path not in saved]
    problems += [f"{_name(path)} is only in the checkpoint" for path in saved if path not in template]
    for path, (leaf, form) in template.items():
        if path in saved and not _fits(leaf, form, saved[path]):
            problems.append(f"{_name(path)} is {_shown(form)} and was saved as {_shown(saved[path])}")
    return problems


def changed_leaves(state: PyTree[Array], saved: dict[str, list[Any]]) -> list[str]:
    """Lists the leaves whose bits differ from the saved bits."""
    entries = describe_state(state)
    return [_name(path) for path, entry in saved.items() if entry[2] and entries.get(path, [None] * 3)[2] != entry[2]]


def _form(leaf: PyTree[Array]) -> tuple[str, list[int]]:
    if isinstance(leaf, jax.Array):
        return str(leaf.dtype), list(leaf.shape)
    if isinstance(leaf, bool | int | float | complex | str | bytes):
        return type(leaf).__name__, []
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return str(leaf.dtype), list(leaf.shape)
    return type(leaf).__name__, []


def _fits(leaf: object, form: tuple[str, list[int]], saved: list[Any]) -> bool:
    if isinstance(leaf, bool | int | float | complex) and saved[0] not in ("bool", "int", "float", "complex"):
        # A Python number in the initial state becomes an array in the first round.
        return not saved[1] and jnp.issubdtype(jnp.dtype(saved[0]), _NUMBERS[np.dtype(type(leaf)).kind])
    return list(form) == saved[:2]


def _digest(leaf: object) -> str:
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable:
            return ""
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
    if isinstance(leaf, str | bytes):
        return hashlib.sha256(leaf.encode() if isinstance(leaf, str) else leaf).hexdigest()
    try:
        plain = np.ascontiguousarray(np.asarray(leaf))
    except (TypeError, ValueError):
        return ""
    return "" if plain.dtype == object else hashlib.sha256(plain.view(np.uint8).data if plain.size else b"").hexdigest()


def _name(path: str) -> str:
    return f"state{path}"


def _shown(form: Sequence[Any]) -> str:
    return f"{form[0]}{list(form[1])}" if form[1] else str(form[0])
