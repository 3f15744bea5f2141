"""Rows that stay at their clients between the pass that computes them and the passes that read them."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from workbench._types import AnyArray, Aval
from workbench.primitives import Placement


class RemoteRows:
    """Rows of all clients of `placement`, stored at the clients under `name`.

    `bring` fetches the rows from the clients. For messages and records, `made_by` contains the rows' label and the
    stage that computed the rows. `dropped` is called with the name when this object is garbage-collected.
    """

    def __init__(
        self,
        name: str,
        aval: Aval,
        placement: Placement,
        *,
        made_by: tuple[str, str],
        bring: Callable[[Sequence["RemoteRows"]], list[np.ndarray]],
        dropped: Callable[[str], Any],
    ) -> None:
        self.name, self.aval, self.placement = name, aval, placement
        self.stage, self.label = made_by
        self._bring = bring
        weakref.finalize(self, dropped, name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows of all clients, `[clients, ...]`."""
        return tuple(self.aval.shape)

    def __repr__(self) -> str:
        return f"<rows {self.aval} that stayed at the {self.placement.name}>"


class RemoteStack:
    """Remote rows of several loop iterations; `stack[iteration]` returns one iteration."""

    def __init__(self, iterations: Sequence[Any]) -> None:
        self.iterations = list(iterations)

    def __getitem__(self, iteration: int) -> "AnyArray | RemoteRows":
        return self.iterations[iteration]

    def __repr__(self) -> str:
        return f"<{len(self.iterations)} iterations of {self.iterations[0]!r}>"


def is_held(x: object) -> bool:
    """Returns whether `x` is a `RemoteRows`, or a stack of them."""
    return isinstance(x, RemoteRows | RemoteStack)


def materialize(values: Sequence[Any]) -> list[Any]:
    """Fetches all remote rows among the values with one request."""
    rows_by_id: dict[int, RemoteRows] = {}
    for x in values:
        for rows in x.iterations if isinstance(x, RemoteStack) else [x]:
            if isinstance(rows, RemoteRows):
                rows_by_id[id(rows)] = rows
    if not rows_by_id:
        return list(values)
    first = next(iter(rows_by_id.values()))
    arrays: dict[int, Any] = dict(zip(rows_by_id, first._bring(list(rows_by_id.values())), strict=True))

    def here(x: object) -> object:
        if isinstance(x, RemoteStack):
            iterations = [arrays.get(id(rows), rows) for rows in x.iterations]
            return (
                np.stack(iterations)
                if all(isinstance(y, np.ndarray) for y in iterations)
                else jax.numpy.stack(iterations)
            )
        return arrays.get(id(x), x)

    return [here(x) for x in values]
