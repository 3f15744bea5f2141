"""Partitions of a data set over clients; the same seed yields the same partition."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from workbench.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Row indices of a data set for each client; every row belongs to exactly one client.

    Attributes:
        rows: Row numbers of each client.
        clients: The clients' ids; `client_0`, `client_1`, … (with leading zeros) if omitted.

    Raises:
        DataError: if `rows` is not a permutation of all row numbers, or ids are repeated.
    """

    rows: tuple[np.ndarray, ...]
    clients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.clients:
            width = len(str(max(len(self.rows) - 1, 0)))
            object.__setattr__(self, "clients", tuple(f"client_{i:0{width}d}" for i in range(len(self.rows))))
        numbers = np.concatenate(self.rows) if self.rows else np.array([], np.int64)
        wrong = None
        if len(self.clients) != len(self.rows) or len(set(self.clients)) != len(self.clients):
            wrong = f"{len(set(self.clients))} distinct ids for {len(self.rows)} clients"
        elif numbers.size == 0:
            wrong = "no examples at all"
        elif not np.issubdtype(numbers.dtype, np.integer):
            wrong = f"row numbers of dtype {numbers.dtype}"
        elif not np.array_equal(np.sort(numbers), np.arange(numbers.size)):
            values, times = np.unique(numbers, return_counts=True)
            twice = values[times > 1][:5].tolist()
            absent = np.setdiff1d(np.arange(max(numbers.size, numbers.max() + 1)), numbers)[:5].tolist()
            wrong = f"rows of several clients: {twice}, rows of no client: {absent}"
        if wrong:
            message = (
                f"`Partition` was given {wrong}. Every row 0 … examples-1 must belong to exactly one client, and ids "
                "must be unique: pass integer arrays, one per client, that together are a permutation of the rows."
            )
            raise DataError(message)

    @property
    def examples(self) -> int:
        """Total number of rows over all clients."""
        return sum(len(rows) for rows in self.rows)


def iid(examples: int, clients: int, *, seed: int) -> Partition:
    """Distributes the examples at random in equal numbers (± 1), regardless of labels.

    Raises:
        DataError: if there are no clients or no examples.

    Example:
        >>> [len(rows) for rows in iid(10, 3, seed=0).rows]
        [4, 3, 3]
    """
    _check_enough("iid", examples, clients, 0)
    order = np.random.default_rng(seed).permutation(examples)
    return Partition(rows=tuple(np.sort(rows) for rows in np.array_split(order, clients)))


def dirichlet(
    labels: ArrayLike, clients: int, *, alpha: float, seed: int, min_examples: int = 1, equal_sizes: bool = False
) -> Partition:
    """Partitions with label skew: a smaller `alpha` gives each client fewer classes.

    By default, each class is split in proportions drawn from `Dirichlet(alpha)` over the clients, so client sizes also
    vary (Yurochkin et al. 2019). Clients with fewer than `min_examples` then receive random examples taken from the
    largest clients. With `equal_sizes`, all clients have the same size, as in Hsu et al. 2019. Each client in turn
    draws a class mixture from `Dirichlet(alpha * share of each class)`, and then draws its examples from the remaining
    examples. The two methods scale `alpha` differently: with 10 balanced classes, Hsu's `alpha=1` corresponds to 0.1
    per class.

    Args:
        labels: The class of each example, `[examples]`.
        clients: Number of clients.
        alpha: Concentration, positive; `inf` is the limit in which every client has the global mixture.
        seed: Seed; the same seed yields the same partition.
        min_examples: Minimum number of examples per client.
        equal_sizes: Whether all clients have the same number of examples (± 1).

    Returns:
        The partition; every example belongs to exactly one client.

    Raises:
        DataError: if `alpha` is not positive, `labels` does not have shape `[examples]`, or there are too few
            examples.

    Example:
        >>> parts = dirichlet([0, 0, 0, 0, 1, 1, 1, 1], 2, alpha=0.1, seed=1)
        >>> sorted(row for rows in parts.rows for row in rows.tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]

    References:
        Hsu, Qi, Brown, arXiv 1909.06335 (2019), section 3. Yurochkin et al., ICML 2019, section 4.
        Li, Diao, Chen, He, ICDE 2022 (NIID-Bench), section 4.1.
    """
    labels = _as_labels("dirichlet", labels)
    _check_enough("dirichlet", len(labels), clients, min_examples)
    if not alpha > 0:
        message = (
            f"`dirichlet` was given alpha={alpha}. The concentration must be positive: use 0.1 for strong label skew, "
            "1 for mild skew, math.inf for none."
        )
        raise DataError(message)
    rng = np.random.default_rng(seed)
    by_class = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    if equal_sizes:
        assignment = _mixture_per_client(rng, by_class, clients, alpha)
    else:
        assignment = _proportions_per_class(rng, by_class, clients, alpha)
        assignment = _top_up(rng, assignment, min_examples)
    return Partition(rows=tuple(np.sort(rows) for rows in assignment))


def _proportions_per_class(
    rng: np.random.Generator, by_class: list[np.ndarray], clients: int, alpha: float
) -> list[np.ndarray]:
    assignment: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for rows in by_class:
        share = _draw_dirichlet(rng, np.full(clients, alpha))
        # A random order of clients avoids rounding bias.
        order = rng.permutation(clients)
        cuts = np.rint(np.cumsum(share[order])[:-1] * len(rows)).astype(np.int64)
        for client, piece in zip(order, np.split(rows, cuts), strict=True):
            assignment[client].append(piece)
    return [np.concatenate(pieces) for pieces in assignment]


def _mixture_per_client(
    rng: np.random.Generator, by_class: list[np.ndarray], clients: int, alpha: float
) -> list[np.ndarray]:
    stock = np.array([len(rows) for rows in by_class])
    offsets = np.zeros_like(stock)
    prior = stock / stock.sum()
    sizes = [len(part) for part in np.array_split(np.arange(stock.sum()), clients)]
    assignment = []
    for size in sizes:
        mixture = _draw_dirichlet(rng, alpha * prior)
        draw = np.zeros_like(stock)
        while (missing := size - draw.sum()) > 0:
            room = stock - draw
            weight = np.where(room > 0, mixture, 0.0)
            # If a mixture contains only exhausted classes, draw from the remaining examples.
            weight = weight if weight.sum() > 1e-12 else room.astype(float)
            draw += np.minimum(rng.multinomial(missing, weight / weight.sum()), room)
        assignment.append(np.concatenate([rows[t : t + w] for rows, t, w in zip(by_class, offsets, draw, strict=True)]))
        offsets, stock = offsets + draw, stock - draw
    return assignment


def _draw_dirichlet(rng: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    if np.isinf(concentration).any():
        finite = np.where(np.isinf(concentration), 1.0, 0.0)
        return finite / finite.sum()
    share = rng.dirichlet(concentration)
    # Very small concentrations underflow to zeros or NaN; the limit is a single class, drawn by weight.
    if not np.isfinite(share).all() or share.sum() < 0.5:
        share = np.zeros(len(concentration))
        share[rng.choice(len(concentration), p=concentration / concentration.sum())] = 1.0
    return share / share.sum()


def _top_up(rng: np.random.Generator, assignment: list[np.ndarray], least: int) -> list[np.ndarray]:
    assignment = list(assignment)
    for poor in range(len(assignment)):
        while len(assignment[poor]) < least:
            rich = int(np.argmax([len(rows) for rows in assignment]))
            give = int(rng.integers(len(assignment[rich])))
            assignment[poor] = np.append(assignment[poor], assignment[rich][give])
            assignment[rich] = np.delete(assignment[rich], give)
    return assignment


def shards(labels: ArrayLike, clients: int, *, shards_per_client: int = 2, seed: int) -> Partition:
    """Sorts examples by label and gives each client equal shards ("pathological non-IID").

    With two shards each, most clients see only two classes.

    Args:
        labels: The class of each example, `[examples]`.
        clients: Number of clients.
        shards_per_client: Number of shards per client.
        seed: Seed for the order within a class and for the assignment of shards.

    Raises:
        DataError: if there are fewer examples than shards.

    Example:
        >>> labels = np.repeat([0, 1, 2, 3], 4)
        >>> [sorted(set(labels[rows].tolist())) for rows in shards(labels, 2, shards_per_client=1, seed=0).rows]
        [[0, 1], [2, 3]]

    References:
        McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, section 3.
    """
    labels = _as_labels("shards", labels)
    _check_enough("shards", len(labels), clients, shards_per_client)
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(len(labels))
    order = mixed[np.argsort(labels[mixed], kind="stable")]
    pieces = np.array_split(order, clients * shards_per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, shards_per_client)
    return Partition(rows=tuple(np.sort(np.concatenate([pieces[i] for i in hand])) for hand in dealt))


def by_natural_id(ids: ArrayLike) -> Partition:
    """Creates one client per natural id (such as a writer, hospital or speaker), in sorted order.

    Args:
        ids: Client id of each example, `[examples]`, strings or integers.

    Example:
        >>> by_natural_id(["ann", "bob", "ann"]).clients
        ('ann', 'bob')
    """
    names, owner = np.unique(_as_labels("by_natural_id", ids), return_inverse=True)
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    return Partition(rows=tuple(rows), clients=tuple(str(name) for name in names))


def _as_labels(operation: str, labels: ArrayLike) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iubUS":
        message = (
            f"`{operation}` was given labels of dtype {labels.dtype} and shape {labels.shape}. Labels must be a "
            "nonempty one-dimensional array of integers or strings, one per example: pass class numbers. For "
            "real-valued targets, use `iid`, or bin the targets with `numpy.digitize` first."
        )
        raise DataError(message)
    return labels


def _check_enough(operation: str, examples: int, clients: int, least: int) -> None:
    if clients < 1 or least < 0 or examples < max(1, clients * least):
        message = (
            f"`{operation}` was asked to split {examples} examples over {clients} clients with at least {least} each, "
            f"which needs {max(1, clients * least)} examples. There must be at least one client and enough examples "
            f"for all: use {max(1, examples // max(least, 1))} clients or fewer, or ask for fewer examples per client."
        )
        raise DataError(message)
