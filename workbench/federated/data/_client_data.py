"""Ragged numpy arrays of named clients, on the host."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from workbench._open_types import Foreign
from workbench.engines import clients_from
from workbench.errors import DataError
from workbench.federated.data._checks import problems_between_clients, raise_all, show_ids
from workbench.federated.data._partition import Partition

ClientArrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientData:
    """Data of clients with the same fields but different numbers of examples.

    Arrays are kept as read-only views: nothing is copied, and the arrays cannot be changed through the data set.

    Attributes:
        arrays: For each client id and field, an array `[examples_of_this_client, *shape]`.
        name: Name of the data, for titles.
        label: The field that contains the class indices, or None.
        classes: Class names for the integer labels 0, 1, … in `label`; empty if they have no names.
        metadata: For each client id, further information about the client, such as a writer's age or a hospital's town.

    Raises:
        DataError: if clients have different fields, dtypes or shapes, or if `label` or `metadata` is unknown.
    """

    arrays: Mapping[str, ClientArrays]
    name: str = ""
    label: str | None = None
    classes: tuple[str, ...] = ()
    metadata: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        frozen = {
            str(client): MappingProxyType({field: _read_only(value) for field, value in fields.items()})
            for client, fields in self.arrays.items()
        }
        raise_all(f"client data `{self.name or 'without a name'}`", problems_between_clients(frozen))
        unknown = [client for client in self.metadata if client not in frozen]
        if unknown:
            message = (
                f"`ClientData` was given metadata for {show_ids(unknown)}, which have no arrays. Metadata refer to "
                f"clients by id: use ids among {show_ids(frozen)}, or omit these metadata."
            )
            raise DataError(message)
        fields = next(iter(frozen.values()))
        if self.label is not None and self.label not in fields:
            message = (
                f"`ClientData` was given label={self.label!r}, but the clients have the fields "
                f"{', '.join(map(repr, fields))}. The label is one of the fields: pass its name, or label=None."
            )
            raise DataError(message)
        object.__setattr__(self, "arrays", MappingProxyType(frozen))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' ids, in order."""
        return tuple(self.arrays)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, the same at every client."""
        return tuple(next(iter(self.arrays.values())))

    @property
    def counts(self) -> np.ndarray:
        """Number of examples of each client, int64 `[clients]`."""
        first = self.fields[0]
        return np.array([len(fields[first]) for fields in self.arrays.values()], np.int64)

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __contains__(self, client: object) -> bool:
        return client in self.arrays

    def __getitem__(self, client: str | int) -> ClientArrays:
        """The arrays of one client, by its id or its position."""
        if isinstance(client, int | np.integer):
            return tuple(self.arrays.values())[client]
        try:
            return self.arrays[client]
        except KeyError:
            message = (
                f"client {client!r} was requested, but the data contain {show_ids(self.arrays)}. Use one of these ids, "
                "or a position (an int)."
            )
            raise DataError(message) from None

    def __repr__(self) -> str:
        counts = self.counts
        shapes = ", ".join(f"{k}: {v.dtype}[examples{_dims(v.shape[1:])}]" for k, v in self[0].items())
        spread = f"{counts.min()} to {counts.max()} each"
        return f"ClientData({self.name!r}, {len(self)} clients, {counts.sum()} examples, {spread}; {shapes})"

    def select(self, clients: Iterable[str | int]) -> "ClientData":
        """Selects clients by ids or positions, in the given order; a client may occur only once."""
        names = self.clients
        chosen = [names[c] if isinstance(c, int | np.integer) else c for c in clients]
        repeated = sorted({c for c in chosen if chosen.count(c) > 1}) if len(set(chosen)) < len(chosen) else []
        if repeated or not chosen:
            fault = f"{show_ids(repeated)} more than once" if repeated else "no client"
            message = (
                f"`select` was asked for {fault}. A cohort contains at least one client, and each client at most once: "
                "pass distinct ids or positions."
            )
            raise DataError(message)
        arrays = {client: self[client] for client in chosen}
        return dataclasses.replace(
            self, arrays=arrays, metadata={c: self.metadata[c] for c in chosen if c in self.metadata}
        )

    def pooled(self) -> dict[str, np.ndarray]:
        """Concatenates all examples in client order, as centralized training needs them."""
        return {field: np.concatenate([fields[field] for fields in self.arrays.values()]) for field in self.fields}


def federate(
    x: Foreign,
    y: np.ndarray | None = None,
    partition: Partition | Sequence[np.ndarray] | None = None,
    *,
    by: str | None = None,
    name: str = "",
    classes: Sequence[str] = (),
) -> ClientData:
    """Distributes the examples of one data set over clients.

    Args:
        x: The inputs, `[examples, *shape]`. If `by` is given, a pandas or Dask DataFrame with one row per example.
        y: The labels or targets, `[examples, *shape]`, or None if there are none.
        partition: Each client's rows, as the result of `iid`, `dirichlet`, `shards` or `by_natural_id`, or as one
            array of row numbers per client.
        by: Name of the DataFrame column that contains each example's client; used instead of `partition`. The other
            columns are the fields, in JAX's default precision. These columns contain numbers, or equally long lists of
            numbers.
        name: Name of the data, for titles.
        classes: Class names for the integer labels 0, 1, …

    Returns:
        Client data with the fields `x` and, if `y` is passed, `y`. For a DataFrame, the clients are in sorted order and
        have one field per column; the column "y" is the label if it contains integers.

    Raises:
        DataError: if `x` and `y` differ in length, or the partition is for a different number of examples than `x`.
        ProgramError: if a column of the DataFrame is missing, has missing values, or is not numeric.

    Example:
        >>> data = federate(np.arange(6.0), np.array([0, 0, 1, 1, 2, 2]), [np.array([0, 5]), np.array([1, 2, 3, 4])])
        >>> data.counts.tolist(), data["client_0"]["x"].tolist()
        ([2, 4], [0.0, 5.0])
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"client": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
        >>> federate(frame, by="client")["b"]["x"].tolist()
        [1.0, 3.0]
    """
    if (by is None) == (partition is None) or (by is not None and (y is not None or not hasattr(x, "columns"))):
        inputs = f"x of type {type(x).__name__}, y={'None' if y is None else type(y).__name__}, by={by!r} and "
        message = (
            f"`federate` was given {inputs}{'no' if partition is None else 'a'} partition. Each example belongs to one "
            "client: pass arrays with a partition of their rows, or only a DataFrame, with the name of its client "
            "column as `by`."
        )
        raise DataError(message)
    if partition is None:
        return _from_frame(x, str(by), name, classes)
    fields = {"x": np.asarray(x)} | ({} if y is None else {"y": np.asarray(y)})
    lengths = {field: value.shape[0] if value.ndim else None for field, value in fields.items()}
    if not isinstance(partition, Partition):
        partition = Partition(rows=tuple(np.asarray(rows) for rows in partition))
    if set(lengths.values()) != {partition.examples}:
        inputs = ", ".join(f"`{field}` of shape {value.shape}" for field, value in fields.items())
        message = (
            f"`federate` was given {inputs} and a partition of {partition.examples} examples. Every array needs one "
            "row per example of the partition: create the partition from these labels (`dirichlet(y, ...)`) or this "
            "number of rows (`iid(len(x), ...)`)."
        )
        raise DataError(message)
    arrays = {
        client: {field: value[rows] for field, value in fields.items()}
        for client, rows in zip(partition.clients, partition.rows, strict=True)
    }
    return ClientData(arrays=arrays, name=name, label=_label(fields), classes=tuple(classes))


def _from_frame(frame: Foreign, by: str, name: str, classes: Sequence[str]) -> ClientData:
    """Groups the rows of a DataFrame by client, with `clients_from`."""
    padded = {str(client): fields for client, fields in clients_from(frame, by)}
    counts = {client: int(fields.pop("n")) for client, fields in padded.items()}
    arrays = {client: {k: v[: counts[client]] for k, v in fields.items()} for client, fields in padded.items()}
    return ClientData(arrays=arrays, name=name, label=_label(next(iter(arrays.values()))), classes=tuple(classes))


def _label(fields: ClientArrays) -> str | None:
    """Returns "y" if this field contains class numbers, or else None."""
    y = fields.get("y")
    return "y" if y is not None and y.ndim == 1 and np.issubdtype(y.dtype, np.integer) else None


def _read_only(value: object) -> np.ndarray:
    view = np.asarray(value).view()
    view.flags.writeable = False
    return view


def _dims(shape: tuple[int, ...]) -> str:
    return "".join(f", {n}" for n in shape)
