"""Padding of ragged clients to the rectangular arrays with masks that programs need."""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from workbench._types import AnyArray
from workbench.errors import DataError
from workbench.federated.data._client_data import ClientArrays, ClientData
from workbench.federated.data._seeds import Key, generator

_RESERVED = ("mask", "weight", "cohort")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cohort:
    """The clients of one round, identified by their numbers in the population. A pytree; `population` is static.

    Attributes:
        numbers: The number of the client in each slot, int32 `[cohort]`; in an empty slot, it equals `population`.
        population: Total number of clients.
    """

    numbers: AnyArray
    population: int = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Padded:
    """Client data as rectangular arrays; `mask` separates examples from padding (zeros).

    Attributes:
        arrays: One array per field, `[clients, examples, *shape]`; if batched, `[clients, steps, batch, *shape]`.
        mask: True where there is an example, bool `[clients, examples]` or `[clients, steps, batch]`.
        counts: Number of distinct examples of each client, int32 `[clients]`; 0 for an empty slot.
        clients: The clients' ids; an empty slot has the id "".
        cohort: The clients' numbers in the population if the data is for one round; otherwise None.
    """

    arrays: Mapping[str, AnyArray]
    mask: AnyArray
    counts: AnyArray
    clients: tuple[str, ...]
    cohort: Cohort | None = None

    @property
    def tree(self) -> dict[str, Any]:
        """The argument of a program: the fields, `mask` (bool) and `weight` (float32 `[clients]`, the counts).

        For a cohort there is also the entry `cohort`, which algorithms use to find each client's state.
        """
        cohort = {} if self.cohort is None else {"cohort": self.cohort}
        return {**self.arrays, "mask": self.mask, "weight": self.counts.astype(np.float32), **cohort}

    def __getitem__(self, field: str) -> AnyArray:
        return self.arrays[field]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{field}: {value.dtype}{list(value.shape)}" for field, value in self.arrays.items())
        return f"Padded({len(self.clients)} clients, mask: bool{list(self.mask.shape)}, {shapes})"

    def put(self, sharding: object = None) -> "Padded":
        """Puts the data on the default device, or shards all arrays according to `sharding`."""
        arrays, mask, counts = jax.device_put((dict(self.arrays), self.mask, self.counts), sharding)
        return dataclasses.replace(self, arrays=arrays, mask=mask, counts=counts)


def pad_clients(
    data: ClientData,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    key: Key | None = None,
    examples: int | None = None,
    multiple_of: int = 1,
) -> Padded:
    """Pads every client to the length of the longest client, with a mask.

    Needs host memory for `clients × longest` examples, even if the clients' sizes differ greatly.

    Args:
        data: The clients.
        batch_size: Number of examples per local SGD step; None for a single axis with all examples. Padding is added at
            the end of each epoch, so some steps of small clients contain only padding.
        epochs: Number of passes over a client's examples; needs `batch_size`. The steps of all epochs share one axis.
        key: A seed or PRNG key for shuffling each client's examples, with a new order in every epoch. A client's order
            depends only on the key and the client's id, not on the other clients. None keeps the order.
        examples: Number of examples per client after padding; by default, the size of the largest client in `data`. A
            fixed number gives all cohorts the same shapes, so that nothing recompiles.
        multiple_of: The number of clients is rounded up to a multiple of this number by adding empty slots (no
            examples, count 0).

    Returns:
        Arrays, mask and counts, with the dtypes of `data`: `.tree` is the argument of a program, and `.put(sharding)`
        puts the arrays on devices.

    Raises:
        DataError: if a client has more than `examples` examples, if a field is called `mask`, `weight` or `cohort`, or
            if a size is not positive.

    Example:
        >>> data = ClientData(arrays={"a": {"x": np.array([1.0, 2.0, 3.0])}, "b": {"x": np.array([4.0])}})
        >>> padded = pad_clients(data, batch_size=2)
        >>> padded["x"].tolist(), padded.mask.astype(int).tolist()
        ([[[1.0, 2.0], [3.0, 0.0]], [[4.0, 0.0], [0.0, 0.0]]], [[[1, 1], [1, 0]], [[1, 0], [0, 0]]])
    """
    _check_sizes(data, batch_size=batch_size, epochs=epochs, examples=examples, multiple_of=multiple_of)
    longest = max(1, int(data.counts.max())) if examples is None else examples
    width = longest if batch_size is None else -(-longest // batch_size) * batch_size
    slots = -(-len(data) // multiple_of) * multiple_of
    arrays = {
        field: np.zeros((slots, epochs * width, *value.shape[1:]), value.dtype) for field, value in data[0].items()
    }
    mask = np.zeros((slots, epochs * width), bool)
    for slot, (client, fields) in enumerate(data.arrays.items()):
        _fill(arrays, mask, slot, fields, orders=_orders(client, int(data.counts[slot]), epochs, key))
    if batch_size is not None:
        steps = epochs * width // batch_size
        arrays = {field: value.reshape(slots, steps, batch_size, *value.shape[2:]) for field, value in arrays.items()}
        mask = mask.reshape(slots, steps, batch_size)
    empty = slots - len(data)
    counts = np.append(data.counts, np.zeros(empty, np.int64)).astype(np.int32)
    return Padded(arrays=arrays, mask=mask, counts=counts, clients=data.clients + ("",) * empty)


def _orders(client: str, count: int, epochs: int, key: Key | None) -> list[np.ndarray]:
    if key is None:
        return [np.arange(count)] * epochs
    return [generator(key, zlib.crc32(client.encode()), epoch).permutation(count) for epoch in range(epochs)]


def _fill(
    arrays: dict[str, np.ndarray], mask: np.ndarray, slot: int, fields: ClientArrays, *, orders: list[np.ndarray]
) -> None:
    width = mask.shape[1] // len(orders)
    for epoch, order in enumerate(orders):
        place = slice(epoch * width, epoch * width + len(order))
        mask[slot, place] = True
        for field, value in fields.items():
            arrays[field][slot, place] = value[order]


def _check_sizes(
    data: ClientData, *, batch_size: int | None, epochs: int, examples: int | None, multiple_of: int
) -> None:
    sizes = {"batch_size": batch_size, "epochs": epochs, "examples": examples, "multiple_of": multiple_of}
    wrong = [f"{name}={size}" for name, size in sizes.items() if size is not None and size < 1]
    if wrong or (batch_size is None and epochs != 1):
        message = (
            f"`pad_clients` was given {', '.join(wrong) or f'epochs={epochs} without a batch_size'}. Sizes must be at "
            "least 1, and several epochs need a batch_size: pass positive numbers, for example batch_size=16, "
            "epochs=2."
        )
        raise DataError(message)
    clashes = [field for field in data.fields if field in _RESERVED]
    if clashes:
        message = (
            f"`pad_clients` was given client data with the field(s) {', '.join(map(repr, clashes))}. These names are "
            f"reserved for arrays that padding adds ({', '.join(map(repr, _RESERVED))}): rename the field(s)."
        )
        raise DataError(message)
    text = [field for field in data.fields if data[0][field].dtype.kind not in "biufcV"]
    if text:
        message = (
            f"`pad_clients` was given client data whose field(s) {', '.join(map(repr, text))} contain text. Devices "
            "store only numbers: convert text to numbers first (for words, use `tokenize`), or omit the field."
        )
        raise DataError(message)
    if examples is not None and data.counts.max() > examples:
        long = [f"{c!r} has {n}" for c, n in zip(data.clients, data.counts, strict=True) if n > examples]
        message = (
            f"`pad_clients` was given examples={examples}, but client "
            f"{', '.join(long[:5])}{f' and {len(long) - 5} more' if len(long) > 5 else ''}. Padding never drops an "
            f"example: use examples={data.counts.max()} or more, or shorten the clients' data first."
        )
        raise DataError(message)
