"""All replicas' batches, from one iterator per replica."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from workbench._types import PyTree
from workbench.errors import DataError
from workbench.replicate._context import InputContext


class ReplicaInputs:
    """Stacks the batches of the iterators that `input_fn` returned for this host's replicas."""

    def __init__(self, input_fn: Callable, num_replicas: int, replicas: Sequence[int] | None = None) -> None:
        self.name = getattr(input_fn, "__name__", type(input_fn).__name__)
        self.own = tuple(range(num_replicas)) if replicas is None else tuple(replicas)
        sources = {i: input_fn(InputContext(i, num_replicas)) for i in self.own}
        wrong = [i for i, source in sources.items() if not hasattr(source, "__iter__")]
        if wrong:
            message = (
                f"`{self.name}` returned an object of type {type(sources[wrong[0]]).__name__} for replicas {wrong}, "
                "which is not an iterator. Each replica reads its own batches, one per step: return an iterator of "
                "batches, or use a generator function."
            )
            raise DataError(message)
        self.sources: list[Iterator[Any]] = [iter(source) for source in sources.values()]

    def next_batch(self, step: int, steps: int) -> PyTree[Array]:
        """Stacks the batches of one step into numpy arrays `[replicas of this host, *shape]`.

        Raises:
            DataError: if a replica's iterator is exhausted, or its batch has a different structure, shape or dtype; the
                message names these replicas.
        """
        missing = object()
        batches = [next(source, missing) for source in self.sources]
        ended = [i for i, batch in zip(self.own, batches, strict=True) if batch is missing]
        if ended:
            message = (
                f"`{self.name}` had no batch for step {step} of {steps} on replicas {ended} of {len(batches)}. Every "
                "replica needs a batch in every step, otherwise the other replicas would wait for it: yield more "
                f"batches (repeat the data), give all replicas the same number of batches, or run {step} steps."
            )
            raise DataError(message)
        kinds = [_described(batch) for batch in batches]
        unlike = [place for place, kind in enumerate(kinds) if kind != kinds[0]]
        if unlike:
            replicas = [self.own[place] for place in unlike]
            message = (
                f"`{self.name}` returned batches that differ in form at step {step}: replica {self.own[0]} has "
                f"{kinds[0]}, but replicas {replicas} have {', '.join(kinds[place] for place in unlike[:3])}. All "
                "replicas run one program, so their batches must have the same structure, shapes and dtypes: pad the "
                "smaller ones, or drop the remainder."
            )
            raise DataError(message)
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *batches)


def _described(batch: PyTree[Array]) -> str:
    kinds = jax.tree.map(lambda x: f"{jax.numpy.result_type(x)}{list(jax.numpy.shape(x))}", batch)
    return str(kinds).replace("'", "")
