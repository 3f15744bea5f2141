"""Clients present at run time: inside `only_present`, reductions use only the clients that are present."""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

import jax
import jax.numpy as jnp

from workbench import _jax_compat
from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.primitives._map import map_fn
from workbench.primitives._placement import Placement

_PRESENT: ContextVar[Mapping[Placement, jax.Array] | None] = ContextVar("workbench_present", default=None)


@contextlib.contextmanager
def only_present(masks: Mapping[Placement, jax.Array]) -> Iterator[None]:
    """Traces reductions over the clients that `masks` (bool `[clients]` for each placement) marks as present."""
    token = _PRESENT.set(masks)
    try:
        with _jax_compat.jit_keys().present(object()):  # programs traced with other masks must be traced again
            yield
    finally:
        _PRESENT.reset(token)


def is_partial() -> bool:
    """Returns whether reductions are currently traced inside `only_present`."""
    return bool(_PRESENT.get())


def present_of(placement: Placement, rows: object) -> jax.Array | None:
    """The mask of present clients for reducing `rows`; None if all clients are present.

    Different clients may be present in each iteration of a loop. Differentiation moves loop-invariant values out of
    a loop. The mask is therefore made to depend on the rows, so that it stays inside the loop.
    """
    present = (_PRESENT.get() or {}).get(placement)
    if present is None:
        return None

    def mark(here: jax.Array, row: PyTree[jax.Array]) -> jax.Array:
        values = [x.reshape(-1)[:1] for x in jax.tree.leaves(row)]
        return here & jnp.all(jnp.stack([jnp.all((v == v) | (v != v)) for v in values]))

    return jnp.asarray(map_fn(mark, (present, jax.lax.stop_gradient(rows)), over=placement.name))


def also_present(where: object, placement: Placement, rows: object) -> object:
    """The user's mask `where` combined with the mask of the present clients."""
    present = present_of(placement, rows)
    if present is None or where is None:
        return where if present is None else present
    return map_fn(jnp.logical_and, (jnp.asarray(where, dtype=bool), present), over=placement.name)


def require_all(operation: str, reason: str) -> None:
    """Raises an error if a round may continue without some clients."""
    if is_partial():
        message = (
            f"`{operation}` was traced for an engine with a `quorum`, whose rounds continue without clients that do "
            f"not answer. {reason} Use an engine without `quorum`, or another aggregator."
        )
        raise ProgramError(message)
