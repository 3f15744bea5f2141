"""Rows of clients: readers for data that may be larger than memory, batches, and rows that stay at their clients."""

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from workbench._types import AnyArray, Aval, PyTree, PyTreeDef
from workbench.errors import EngineError, ProgramError
from workbench.primitives import EngineReader, Placement

Pairs = Iterable[tuple[Any, Any]]

COUNT = "n"
"""Name of the leaf with each client's number of examples."""


class ClientReader(EngineReader):
    """Replaces a `[clients, ...]` argument; the clients' rows are read when a stage needs them.

    Every pass over the clients reads the rows again; a scan over ten rounds reads them ten times.

    Args (of the constructor):
        source: `(client_id, data)` pairs; `data` is a pytree of one client's arrays, with the same shapes for all
            clients. It is either an object that can be iterated several times (a list, a dataset), or a function
            without arguments that returns an iterator.
        clients: Number of clients. Default: `len(source)`.

    Raises:
        ProgramError: if `source` can be read only once or is empty, or if its number of clients is unknown.

    Example:
        >>> reader = ClientReader([("ann", np.float32(1)), ("bob", np.float32(3))])
        >>> reader.clients, reader.struct
        (2, ShapeDtypeStruct(shape=(2,), dtype=float32))
    """

    def __init__(self, source: Pairs | Callable[[], Iterator[tuple[Any, Any]]], *, clients: int | None = None) -> None:
        self._source = source
        if clients is None and not hasattr(source, "__len__"):
            message = (
                f"`ClientReader` was given no `clients=`, and an object of type {type(source).__name__}, which has no "
                "length. A program is traced for a fixed number of clients: pass `clients=n`, or a source that has a "
                "length."
            )
            raise ProgramError(message)
        if not callable(source) and iter(source) is source:
            message = (
                f"`ClientReader` was given the iterator {type(source).__name__}, which can be read only once. Every "
                "round reads the clients again: pass a list, a data set, or the function that creates the iterator."
            )
            raise ProgramError(message)
        self.clients: int = int(clients if clients is not None else len(source))  # pyright: ignore[reportArgumentType]
        first = next(iter(self), None)
        if first is None:
            message = (
                "`ClientReader` was given a source with no clients. The first client determines the shapes of the "
                "client data: pass at least one `(client_id, data)` pair."
            )
            raise ProgramError(message)
        leaves, structure = jax.tree.flatten(first[1])
        self.structure: PyTreeDef = structure
        self.avals: tuple[Any, ...] = as_avals(leaves)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._source() if callable(self._source) else self._source)

    @property
    def struct(self) -> PyTree[Array]:
        """The shapes and dtypes of the whole argument, `[clients, ...]`."""
        return jax.tree.unflatten(
            self.structure, [jax.ShapeDtypeStruct((self.clients, *aval.shape), aval.dtype) for aval in self.avals]
        )

    @property
    def rows(self) -> PyTree[Array]:
        """The whole argument, with leaves that refer to this reader."""
        return jax.tree.unflatten(self.structure, [ReadRows(self, index) for index in range(len(self.avals))])

    def read_batches(self, size: int, stage: str) -> Iterator[tuple[tuple[Any, ...], list[np.ndarray]]]:
        """Yields the ids and leaves `[clients, ...]` of `size` clients at a time; the last batch may be smaller.

        Raises:
            EngineError: as in `read`.
        """
        stream = self.read(stage)
        while some := list(itertools.islice(stream, size)):
            yield (
                tuple(identity for identity, _ in some),
                [np.stack(x) for x in zip(*(y for _, y in some), strict=True)],
            )

    def read(self, stage: str) -> Iterator[tuple[Any, list[np.ndarray]]]:
        """Checks the leaves of each client, and yields them with the client's id.

        Raises:
            EngineError: if reading fails, if a client's data have a different shape, or if there are more or fewer
                clients.
        """
        count = 0
        for identity, data in self._guarded(stage):
            if count == self.clients:
                raise EngineError(wrong_number(stage, self.clients, "more"), stage=stage, client=identity)
            yield identity, self._leaves(identity, data, stage)
            count += 1
        if count < self.clients:
            raise EngineError(wrong_number(stage, self.clients, str(count)), stage=stage)

    def _guarded(self, stage: str) -> Iterator[tuple[Any, Any]]:
        last = None
        try:
            for identity, data in self:
                last = identity
                yield identity, data
        except EngineError:
            raise
        except Exception as error:
            message = (
                f"stage {stage} could not read a client: the `ClientReader` raised {type(error).__name__}: {error}, "
                f"after client {last!r}. Clients are read when the run reaches them: correct the source for this "
                "client; the exception above points to the line."
            )
            raise EngineError(message, stage=stage) from error

    def _leaves(self, identity: int | str | None, data: PyTree[Array], stage: str) -> list[np.ndarray]:
        leaves, structure = jax.tree.flatten(data)
        avals = as_avals(leaves)
        if structure != self.structure or any(
            a.shape != b.shape or a.dtype != b.dtype for a, b in zip(avals, self.avals, strict=True)
        ):
            message = (
                f"stage {stage} read client {identity!r} with data {structure} of {', '.join(map(str, avals))}, but "
                f"the first client has {self.structure} of {', '.join(map(str, self.avals))}. All clients of a program "
                "must have the same shapes and dtypes: pad their examples (see `workbench.federated.data`), or run "
                "them in separate programs."
            )
            raise EngineError(message, stage=stage, client=identity)
        return [np.asarray(leaf) for leaf in leaves]


@dataclasses.dataclass(frozen=True)
class ReadRows:
    """One leaf of a reader's rows."""

    reader: ClientReader
    index: int


def as_avals(leaves: Sequence[Any], *, rows: bool = False) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of one client's leaves; with `rows`, the leaves `[clients, ...]` contain many clients."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    return tuple(jax.ShapeDtypeStruct(x.shape[rows:], jax.dtypes.canonicalize_dtype(x.dtype)) for x in arrays)


def converted(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        new = values.astype(dtype, copy=False)
    if new.dtype.kind in "iub" and not np.array_equal(new, values):
        message = f"numbers that {new.dtype} cannot represent"
        raise ValueError(message)
    return new


def padded(columns: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Truncates or zero-pads a client's columns to a length, and adds the number of examples."""
    count = 0
    arrays = {}
    for name, values in columns.items():
        count = min(len(values), length)
        arrays[name] = np.zeros((length, *values.shape[1:]), jax.dtypes.canonicalize_dtype(values.dtype))
        arrays[name][:count] = values[:count]
    return {**arrays, COUNT: np.asarray(count, np.int32)}


def wrong_number(stage: str, expected: int, finding: str) -> str:
    return (
        f"stage {stage} read {finding} clients, expected {expected}: the program was traced for {expected}, and the "
        f"`ClientReader` returned {finding}. Every pass must read the same number of clients: pass the actual number "
        "of clients of the source as `clients=`."
    )


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of clients, numbered by `index`; the first `len(clients)` of its `size` row slots are filled."""

    index: int
    clients: Sequence[Any]
    rows: list[np.ndarray]


def batches(rows: Sequence[Any], clients: int, size: int, stage: str) -> Iterator[Batch]:
    """Yields the rows of a pass, batch by batch; the last batch is padded with copies of its first client."""
    readers = {id(x.reader): x.reader for x in rows if isinstance(x, ReadRows)}
    streams = {key: reader.read_batches(size, stage) for key, reader in readers.items()}
    for index, start in enumerate(range(0, clients, size)):
        stop = min(start + size, clients)
        items = {key: next(stream) for key, stream in streams.items()}
        filled = []
        for x in rows:
            if isinstance(x, ReadRows):
                part = items[id(x.reader)][1][x.index].astype(x.reader.avals[x.index].dtype, copy=False)
            else:
                part = x[start:stop]
            filled.append(_fill(part, size))
        names = next((names for names, _ in items.values()), range(start, stop))
        yield Batch(index, names, filled)
    for stream in streams.values():
        next(stream, None)  # a source with too many clients is reported


def _fill(part: np.ndarray, size: int) -> np.ndarray:
    if len(part) == size:
        return part
    return np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])


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
