"""Cohorts: the clients of each round and their data."""

import dataclasses
import math
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import ArrayLike

from workbench.errors import DataError, check_settings
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._padding import Cohort, Padded, pad_clients
from workbench.federated.data._seeds import Key, generator

# Separates the stream for cohorts from the stream for shuffling under the same key.
_COHORT_STREAM = 0xC0407


def sample_clients(key: Key, clients: int, cohort: int, *, weight: ArrayLike | None = None) -> np.ndarray:
    """Draws the clients of one round, each at most once.

    Args:
        key: A seed or PRNG key; the same key draws the same clients.
        clients: Total number of clients.
        cohort: Number of clients to draw, at most `clients`.
        weight: Relative probability of each client, `[clients]`, non-negative; uniform by default.

    Returns:
        Positions of the drawn clients, int64 `[cohort]`, ascending.

    Raises:
        DataError: if the cohort is empty or larger than the number of clients that can be drawn, or the weights are
            invalid.

    Example:
        >>> drawn = sample_clients(0, 100, 10)
        >>> len(set(drawn.tolist())), bool((drawn == sample_clients(0, 100, 10)).all())
        (10, True)
    """
    share = None if weight is None else _shares(weight, clients)
    able = clients if share is None else int((share > 0).sum())
    if not 1 <= cohort <= able:
        message = (
            f"`cohorts` was asked for a cohort of {cohort} from {clients} clients, of which {able} can be "
            "drawn. A cohort contains at least one client, and each client at most once: pass a `cohort` from 1 to "
            f"{able}."
        )
        raise DataError(message)
    return np.sort(generator(key, _COHORT_STREAM).choice(clients, cohort, replace=False, p=share))


def _shares(weight: ArrayLike, clients: int) -> np.ndarray:
    weight = np.asarray(weight, np.float64)
    if weight.shape != (clients,) or not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        message = (
            f"`cohorts` was given weights of shape {weight.shape} (smallest {weight.min(initial=0)}) for "
            f"{clients} clients. Each client needs one finite weight of at least 0, and at least one weight must be "
            f"positive: pass shape ({clients},), for example `data.counts`."
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
    """Yields a new cohort's shuffled data for each round, with constant shapes.

    If an algorithm's clients keep state, build the algorithm with `algorithms.in_cohorts`, so that each state belongs
    to a client, not to a slot. Round `r` depends only on the key and `r`. For cohorts to which `algorithms.epsilon`
    applies, use `poisson_cohorts`.

    Args:
        data: All clients.
        cohort: Number of clients in each round.
        key: A seed or PRNG key.
        rounds: Number of rounds, or None for infinitely many.
        batch_size: As in `pad_clients`.
        epochs: As in `pad_clients`.
        multiple_of: The size of the clients' mesh axis, as in `pad_clients`.
        weight: Relative probability of each client, `[clients]`, non-negative; uniform by default.

    Returns: An iterator over `Padded` rounds, each padded to the length of the longest client in `data`.

    Raises:
        DataError: at the first round, if the cohort is empty or larger than the number of clients that can be drawn, if
            the weights are invalid, or for the same reasons as in `pad_clients`.

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


def poisson_cohorts(
    data: ClientData,
    participation: float,
    *,
    key: Key,
    rounds: int | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    slots: int | None = None,
    multiple_of: int = 1,
) -> Iterator[Padded]:
    """Yields rounds that each client joins independently with the same probability.

    `algorithms.epsilon` assumes this Poisson sampling. The number of clients differs between rounds and can be 0. All
    rounds have the same shapes; empty slots have weight 0. Divide sums by the expected number of clients, not by the
    actual number, as in `gaussian_mean(expected=participation * len(data))`. Round `r` depends only on the key and `r`.

    Args:
        data: All clients.
        participation: q, above 0 and up to 1.
        key: A seed or PRNG key.
        rounds: Number of rounds. Default: infinitely many.
        batch_size: As in `pad_clients`.
        epochs: As in `pad_clients`.
        slots: Number of slots in a round. Default: the smallest number that a round exceeds only with a probability
            below 1e-12.
        multiple_of: The size of the clients' mesh axis, which must divide the number of slots.

    Returns: An iterator over `Padded` rounds with `slots` clients, each padded to the length of the longest client in
        `data`.

    Raises:
        DataError: if `participation` or `slots` is out of range, or a round draws more clients than slots. No client is
            left out, because the privacy accountant assumes unchanged Poisson samples.

    Example:
        >>> data = ClientData(arrays={str(c): {"x": np.arange(3.0)} for c in range(40)})
        >>> drawn = list(poisson_cohorts(data, 0.1, key=0, rounds=4))
        >>> [sum(client != "" for client in padded.clients) for padded in drawn], {p["x"].shape for p in drawn}
        ([1, 5, 5, 3], {(23, 3)})

    References:
        Abadi et al., "Deep Learning with Differential Privacy", CCS 2016 (arXiv 1607.00133), Section 3.1; McMahan et
        al., ICLR 2018 (arXiv 1710.06963), Algorithm 1.
    """
    clients = len(data)
    check_settings(
        "poisson_cohorts",
        (
            0 < participation <= 1,
            f"participation={participation}",
            "`participation` is the probability that a client takes part in a round: pass a number above 0, up to 1.",
        ),
        (slots is None or slots >= 1, f"slots={slots}", "Pass at least 1 slot, or None."),
        (multiple_of >= 1, f"multiple_of={multiple_of}", "`multiple_of` must be at least 1."),
        error=DataError,
    )
    places = most_drawn(clients, participation) if slots is None else slots
    places = -(-places // multiple_of) * multiple_of
    return _poisson_rounds(data, participation, key, rounds, batch_size, epochs, places)


def _poisson_rounds(
    data: ClientData,
    participation: float,
    key: Key,
    rounds: int | None,
    batch_size: int | None,
    epochs: int,
    places: int,
) -> Iterator[Padded]:
    clients, longest = len(data), max(1, int(data.counts.max()))
    for number in count() if rounds is None else range(rounds):
        seed = int(generator(key, number).integers(2**63))
        drawn = np.flatnonzero(generator(seed, _COHORT_STREAM).random(clients) < participation)
        if len(drawn) > places:
            message = (
                f"`poisson_cohorts` drew {len(drawn)} of {clients} clients in round {number} for {places} slots. If a "
                "client were omitted, the cohort would not be what the privacy accountant assumes: pass "
                f"slots={most_drawn(clients, participation)}, or omit `slots`."
            )
            raise DataError(message)
        is_empty = not len(drawn)
        chosen = data.select([0] if is_empty else drawn.tolist())
        padded = pad_clients(
            chosen, batch_size=batch_size, epochs=epochs, key=seed, examples=longest, multiple_of=places
        )
        if is_empty:  # a client's shapes, without its data
            arrays = {field: np.zeros_like(value) for field, value in padded.arrays.items()}
            mask, counts = np.zeros_like(padded.mask), np.zeros_like(padded.counts)
            padded = Padded(arrays=arrays, mask=mask, counts=counts, clients=("",) * places)
        numbers = np.full(places, clients, np.int32)
        numbers[: len(drawn)] = drawn
        yield dataclasses.replace(padded, cohort=Cohort(numbers, clients))


def most_drawn(clients: int, participation: float) -> int:
    """Computes a sample size that is exceeded with probability below 1e-12, by Chernoff's bound.

    Example:
        >>> most_drawn(40, 0.1), most_drawn(10_000, 0.01), most_drawn(5, 1.0)
        (23, 182, 5)
    """
    low, high = math.floor(clients * participation), clients
    while low < high:
        middle = (low + high) // 2
        share = (middle + 1) / clients  # one more than fits
        if share > 1 or clients * _divergence(min(share, 1.0), participation) >= _RARE:
            high = middle
        else:
            low = middle + 1
    return max(1, low)


_RARE = -math.log(1e-12)


def _divergence(share: float, chance: float) -> float:
    """Computes the Kullback-Leibler divergence in nats between two coins; 0 if share <= chance."""
    if share <= chance:
        return 0.0
    rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - chance))
    return share * math.log(share / chance) + rest
