"""A round's inputs other than the state."""

from collections.abc import Iterator
from typing import Any

import jax

from workbench._types import Argument
from workbench.errors import ProgramError


class Feed:
    """The arguments for every round: the round's number or data, and its key if there is one.

    Args:
        data: A function of the round, an iterator (one item per round), or any other value, which is passed unchanged.
            None passes the number of the round.
        key: A PRNG key, combined with the round's number by `fold_in`, or None.
        finished: Number of finished rounds; an iterator skips their items.
    """

    def __init__(self, data: object, key: jax.Array | None, *, finished: int) -> None:
        self._data, self._key = data, key
        if isinstance(data, Iterator):
            for _ in range(finished):
                next(data, None)

    def arguments(self, round: int) -> tuple[Any, ...]:
        """Arguments of `step` after the state.

        Raises:
            ProgramError: if the iterator was exhausted too early.
        """
        batch = self._batch(round)
        return (batch,) if self._key is None else (batch, jax.random.fold_in(self._key, round))

    def _batch(self, round: int) -> Argument:
        if self._data is None:
            return round
        if callable(self._data):
            return self._data(round)
        if not isinstance(self._data, Iterator):
            return self._data
        try:
            return next(self._data)
        except StopIteration as end:
            msg = (
                f"`run_rounds` was given an iterator as `data` that ended before round {round}. Every round takes one "
                "item: either run fewer rounds, or pass a function of the round as `data`."
            )
            raise ProgramError(msg) from end
