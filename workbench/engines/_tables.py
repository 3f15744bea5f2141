"""Clients from tables of examples: grouped, ordered and padded where the rows are."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from workbench._open_types import Foreign
from workbench.engines._clients import COUNT, ClientReader, padded
from workbench.errors import ProgramError


@overload
def clients_from(
    frame: Foreign,
    by: str = "client",
    columns: Sequence[str] | None = None,
    *,
    order: str | None = None,
    length: int | None = None,
) -> ClientReader: ...


@overload
def clients_from(
    frame: Foreign,
    by: str = "client",
    columns: Sequence[str] | None = None,
    *,
    order: str | None = None,
    buckets: Sequence[int],
) -> tuple[ClientReader, ...]: ...


def clients_from(
    frame: Foreign,
    by: str = "client",
    columns: Sequence[str] | None = None,
    *,
    order: str | None = None,
    length: int | None = None,
    buckets: Sequence[int] | None = None,
) -> ClientReader | tuple[ClientReader, ...]:
    """Clients of a table with one row per example.

    A client's data are a dictionary of its columns, `[length, ...]` each, filled up with zeros, and "n", the number of
    its examples as an int32. Spark groups and pads on its executors, and `Spark` computes them there: no client's data
    reach this process. A run packs them once, and `Spark.read` once for many runs. Of a Dask DataFrame this process
    reads one partition at a time, in each pass again.

    Args:
        frame: A DataFrame of pandas, Dask or Spark.
        by: Column with the client of each example.
        columns: Columns of numbers, or of lists of numbers that are as long in every row. Default: all but `by` and
            `order`.
        order: Column that orders the examples of a client. Default: the order of the table, which Spark does not keep.
        length: Examples that each client has; of longer clients the first are taken. Default: those of the longest.
        buckets: Several such lengths: each client is padded to the next one, and cut to the last.

    Returns:
        The reader of the clients, ordered by `by`; `struct` has the shapes and `clients` the number. With `buckets`
        one reader for each length that has clients, as arguments for a program with one `with program(clients=...)`
        block each.

    Raises:
        ProgramError: if a column is missing, has missing values or no numbers, is called "n", the table has no rows, or
            `buckets` are not growing lengths without a `length`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"client": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
        >>> clients = clients_from(frame)
        >>> clients.clients, [(name, data["x"].tolist(), int(data["n"])) for name, data in clients]
        (2, [('a', [2.0, 0.0], 1), ('b', [1.0, 3.0], 2)])
    """
    known = [str(name) for name in frame.columns]
    names = list(columns) if columns is not None else [name for name in known if name not in (by, order)]
    wrong = [name for name in (by, *names, *([order] if order else ())) if name not in known]
    if wrong or not names or COUNT in names:
        message = (
            f"`clients_from` was given by={by!r}, columns={names} and order={order!r}, of a table with the columns "
            f'{known}. Each is a column of the table, and "n" is the name of the number of examples: rename or choose.'
        )
        raise ProgramError(message)
    if buckets is not None:
        _check_buckets(buckets, length)
    if type(frame).__module__.startswith("pyspark."):
        from workbench.engines.spark import table_of_examples

        if buckets is None:
            return table_of_examples(frame, by, names, order, length)
        sizes = frame.groupBy(by).count().select("count").distinct().toArrow()
        counts = sizes.column("count").to_numpy()
        return tuple(
            table_of_examples(_of_sizes(frame, by, low, high), by, names, order, top)
            for low, high, top in _used(buckets, counts)
        )
    parts = getattr(frame, "npartitions", None)
    sizes = frame.groupby(by).size()
    counts = np.asarray(sizes if parts is None else sizes.compute())
    if not len(counts):
        message = "`clients_from` was given a table without rows. A program needs at least one client."
        raise ProgramError(message)
    if buckets is not None:
        ranges = _used(buckets, counts)
    else:
        longest = int(counts.max())
        ranges = [(0, longest, longest if length is None else length)]

    def read(low: int, high: float, length: int) -> Iterator[tuple[Any, Any]]:
        placed = frame if parts is None else frame.shuffle(on=by)
        pieces = [placed] if parts is None else (piece.compute() for piece in placed.partitions)
        for piece in pieces:
            ordered = piece.sort_values([by, order] if order else by, kind="stable")
            for client, rows in ordered.groupby(by, sort=True):
                if low < len(rows) <= high:
                    yield client, padded({name: _values(client, name, rows[name]) for name in names}, length)

    readers = tuple(
        ClientReader(functools.partial(read, low, high, top), clients=int(np.sum((low < counts) & (counts <= high))))
        for low, high, top in ranges
    )
    return readers[0] if buckets is None else readers


def _check_buckets(buckets: Sequence[int], length: int | None) -> None:
    whole = all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in buckets)
    if whole and length is None and list(buckets) == sorted(set(buckets)) and buckets:
        return
    message = (
        f"`clients_from` was given buckets={list(buckets)} and length={length!r}. Buckets are numbers of examples that "
        "grow, such as [32, 128, 512], and the last one cuts longer clients: pass such numbers, and no `length`."
    )
    raise ProgramError(message)


def _used(buckets: Sequence[int], counts: np.ndarray) -> list[tuple[int, float, int]]:
    """Buckets that have clients: more examples than, at most as many as, and the length."""
    tops = [*buckets[:-1], np.inf]
    ranges = zip([0, *buckets[:-1]], tops, buckets, strict=True)
    return [(low, high, top) for low, high, top in ranges if ((low < counts) & (counts <= high)).any()]


def _of_sizes(frame: Foreign, by: str, low: int, high: float) -> Foreign:
    """The rows of a Spark table of clients that have some number of rows."""
    from pyspark.sql import Window, functions  # pyright: ignore[reportMissingImports]

    size = functions.count("*").over(Window.partitionBy(by))
    most = int(high) if np.isfinite(high) else 2**62
    return frame.withColumn("examples of client", size).where(f"`examples of client` between {low + 1} and {most}")


def _values(client: object, name: str, column: Foreign) -> np.ndarray:
    """A column of one client as numbers; nullable and Arrow's dtypes too, where no value is missing."""
    missing = 0 if isinstance(column.dtype, np.dtype) and column.dtype != object else int(column.isna().sum())
    kind = getattr(column.dtype, "numpy_dtype", None)  # of pandas' nullable dtypes
    values = column.to_numpy() if missing or kind is None else column.to_numpy(kind)
    if values.dtype == object and not missing:
        shapes = {np.shape(x) for x in values}
        values = np.stack([np.asarray(x) for x in values]) if len(shapes) == 1 else values
    if missing or values.dtype.kind not in "biufc":
        fact = f"{missing} missing value(s)" if missing else "text, or lists of different lengths,"
        message = (
            f"`clients_from` found {fact} in column {name!r} of client {client!r}. Columns are numbers, or lists of "
            "numbers that are as long in every row: fill or drop the missing rows, or choose other `columns`."
        )
        raise ProgramError(message)
    return values
