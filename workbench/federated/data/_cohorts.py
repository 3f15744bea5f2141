"""Cohorts: the clients of each round and their data."""

import dataclasses
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import ArrayLike

from workbench.errors import DataError
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._padding import Cohort, Padded, pad_clients
from workbench.federated.data._seeds import Key, generator

# Keeps the stream that draws cohorts apart from the one that shuffles examples under the same key.
_COHORT_STREAM = 0xC0407


def sample_clients(key: Key, clients: int, cohort: int, *, weight: ArrayLike | None = None) -> np.ndarray:
    """Draws the clients of one round, each at most once.

    Args:
        key: A seed or PRNG key; the same key draws the same clients.
        clients: How many there are.
        cohort: How many take part, at most `clients`.
        weight: How likely each client is drawn, relative to the others, `[clients]`, non-negative; all alike by
            default.

    Returns:
        Positions of the drawn clients, int64 `[cohort]`, ascending.

    Raises:
        DataError: if the cohort is empty or larger than the clients that can be drawn, or the weights do not fit.

    Example:
        >>> drawn = sample_clients(0, 100, 10)
        >>> len(set(drawn.tolist())), bool((drawn == sample_clients(0, 100, 10)).all())
        (10, True)
    """
    share = None if weight is None else _shares(weight, clients)
    able = clients if share is None else int((share > 0).sum())
    if not 1 <= cohort <= able:
        message = (
            f"`sample_clients` was asked for a cohort of {cohort} among {clients} clients, of which {able} can be "
            f"drawn. A cohort holds at least one client and each at most once: use 1 to {able}."
        )
        raise DataError(message)
    return np.sort(generator(key, _COHORT_STREAM).choice(clients, cohort, replace=False, p=share))


def _shares(weight: ArrayLike, clients: int) -> np.ndarray:
    weight = np.asarray(weight, np.float64)
    if weight.shape != (clients,) or not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        message = (
            f"`sample_clients` was given weights of shape {weight.shape} (smallest {weight.min(initial=0)}) for "
            f"{clients} clients. Each client needs one finite weight of at least 0, not all 0: pass shape "
            f"({clients},), for example `data.counts`."
        )
        raise DataError(message)
    return weight / weight.sum()


def cohorts(
    data: ClientData,
    cohort: int,
    *,
    key: Key,
    rounds: int | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    multiple_of: int = 1,
    weight: ArrayLike | None = None,
) -> Iterator[Padded]:
    """Yields one round's data after another: a fresh cohort, freshly shuffled, always of the same shapes.

    Make algorithms whose clients keep a state with `algorithms.in_cohorts`: the state follows the client's number.
    Round `r` depends on the key and `r` only. Wrap it in `prefetch` to prepare the next rounds while one runs.

    Args:
        data: All clients.
        cohort: How many take part in each round.
        key: A seed or PRNG key.
        rounds: How many rounds; without end when None.
        batch_size: As in `pad_clients`.
        epochs: As in `pad_clients`.
        multiple_of: As in `pad_clients`: the size of the mesh axis that holds the clients.
        weight: As in `sample_clients`.

    Returns:
        An iterator of `Padded`, each as long as the longest client of all `data`.

    Raises:
        DataError: as `sample_clients` and `pad_clients` do, at the first round.

    Example:
        >>> data = ClientData(arrays={c: {"x": np.arange(3.0)} for c in "abcd"})
        >>> [len(padded.clients) for padded in cohorts(data, 2, key=0, rounds=3)]
        [2, 2, 2]
    """
    longest = max(1, int(data.counts.max()))
    for number in count() if rounds is None else range(rounds):
        seed = int(generator(key, number).integers(2**63))
        drawn = sample_clients(seed, len(data), cohort, weight=weight)
        padded = pad_clients(
            data.select(drawn.tolist()),
            batch_size=batch_size,
            epochs=epochs,
            key=seed,
            examples=longest,
            multiple_of=multiple_of,
        )
        numbers = np.full(len(padded.clients), len(data), np.int32)
        numbers[: len(drawn)] = drawn
        yield dataclasses.replace(padded, cohort=Cohort(numbers, len(data)))
