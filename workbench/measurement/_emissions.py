"""Adds values emitted by a round's programs to the round's metrics."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from workbench._types import AnyArray
from workbench.errors import ProgramError
from workbench.plan import listen

_LOOPS = ("step", "round")


@contextlib.contextmanager
def hearing(is_enabled: bool) -> Iterator[Callable[[Any], Any]]:
    """Captures emissions in a `with` block; yields a function that adds them to the metrics.

    The leading array axis is clients, followed by rounds and steps inside the call. If a name is emitted twice in a
    round, the last value is kept.
    """
    if not is_enabled:
        yield lambda metrics: metrics
        return
    with listen() as captured:
        yield lambda metrics: _merged(metrics, {e.name: _clients_first(e.axes, e.value) for e in captured})


def _clients_first(axes: tuple[str, ...], value: AnyArray) -> AnyArray:
    place = next((i for i, axis in enumerate(axes) if not axis.startswith(_LOOPS)), 0)
    return jnp.moveaxis(value, place, 0) if place else value


def _merged(metrics: object, captured: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        kind = type(metrics).__name__
        msg = (
            f"`run_rounds` was given emitted=True and a step whose metrics are an object of type {kind}. "
            "Emitted values are added to the metrics by name: return a dictionary of metrics, `{}` for no metrics."
        )
        raise ProgramError(msg)
    return {**captured, **metrics}
