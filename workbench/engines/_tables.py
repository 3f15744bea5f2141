"""Builds clients from tables of examples, grouped and padded on the workers that store the rows."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench.engines._clients import COUNT, ClientReader, converted, padded
from workbench.engines._held import Cluster, HeldClients, HeldPart, cluster_of_dask, cluster_of_ray, label_of
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
    """Reads clients from a table with one row per example.

    A client's data are a dictionary. It contains the client's columns (`[length, ...]`, padded with zeros) and "n", the
    number of examples as an int32. For Spark tables, the executors group and pad the clients, and `Spark` computes them
    there, so no client data reach this process. The clients are packed once per run, or once for many runs with
    `Spark.read`. With a Dask client or Ray, the workers group and pad the clients, and store them until the reader is
    deleted. `Ray`, or an `Executor` that uses this Dask client, computes the clients there. Without a Dask client,
    Dask's own scheduler packs the clients into files, which this process reads. For a PCollection, the pipeline's
    workers group, pad and store the clients. This pipeline runs once to count the examples, and again for each reader
    that is used in a run or in `Beam.read`.

    Args:
        frame: A pandas, Dask or Spark DataFrame, a Ray Data data set, a Beam DataFrame, or a PCollection whose elements
            are examples (dictionaries, named tuples or `beam.Row`s). Pipeline steps after the PCollection do not run.
        by: Column that identifies the client of each example.
        columns: Columns with numbers, or with lists of numbers whose length is the same in every row. Default: all but
            `by` and `order`.
        order: Column by which each client's examples are sorted. Default: the order in the table, which only pandas
            preserves.
        length: Number of examples per client; clients with more examples are truncated. Default: the number of examples
            of the largest client.
        buckets: Several lengths instead of one `length`. Each client is padded to the next larger length; clients with
            more examples than the last length are truncated.

    Returns: The reader for the clients; its `struct` contains the shapes, and its `clients` is the number of clients.
        Clients are ordered by `by`; clients from Dask and Ray Data are ordered only within each part of the table. With
        `buckets`, a tuple with one reader for each length that has clients. The readers are arguments of a program with
        one `with program(clients=...)` block per reader.

    Raises:
        ProgramError: if a column is missing, is called "n", has missing values or has no numbers; if the table has no
            rows; or if `buckets` are not increasing or are combined with `length`.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"client": ["b", "a", "b"], "x": [1.0, 2.0, 3.0]})
        >>> clients = clients_from(frame)
        >>> clients.clients, [(name, data["x"].tolist(), int(data["n"])) for name, data in clients]
        (2, [('a', [2.0, 0.0], 1), ('b', [1.0, 3.0], 2)])
    """
    if buckets is not None:
        _check_buckets(buckets, length)
    if type(frame).__module__.startswith("apache_beam."):
        readers = _of_beam(frame, by, columns, order, length, buckets)
        return readers if buckets is not None else readers[0]
    is_ray = type(frame).__module__.startswith("ray.data")
    labels = [str(name) for name in (frame.columns() if is_ray else frame.columns)]
    names = _checked_columns(labels, by, columns, order)
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
    if is_ray or hasattr(frame, "npartitions"):
        cluster = cluster_of_ray() if is_ray else cluster_of_dask()
        if not is_ray:
            _check_texts(frame, names)
        readers = _held(cluster, _whole_clients(cluster, frame, by), by, names, order, length, buckets)
        return readers if buckets is not None else readers[0]
    readers = tuple(
        ClientReader(functools.partial(_clients_of, frame, by, names, order, range_), clients=range_.clients)
        for range_ in _ranges(frame.groupby(by).size().to_numpy(), length, buckets)
    )
    return readers[0] if buckets is None else readers


def _checked_columns(labels: Sequence[str], by: str, columns: Sequence[str] | None, order: str | None) -> list[str]:
    names = list(columns) if columns is not None else [name for name in labels if name not in (by, order)]
    wrong = [name for name in (by, *names, *([order] if order else ())) if name not in labels]
    if wrong or not names or COUNT in names:
        message = (
            f"`clients_from` was given by={by!r}, columns={names} and order={order!r}, for a table with the columns "
            f'{labels}. Each name must be a column of the table, and "n" is reserved for the number of examples: '
            "rename the column or choose another column."
        )
        raise ProgramError(message)
    return names


def _of_beam(
    frame: Foreign,
    by: str,
    columns: Sequence[str] | None,
    order: str | None,
    length: int | None,
    buckets: Sequence[int] | None,
) -> tuple[ClientReader, ...]:
    """Makes readers for a PCollection of rows, or a Beam DataFrame."""
    from workbench.engines.beam import count_examples

    if type(frame).__module__.startswith("apache_beam.dataframe"):
        from apache_beam.dataframe.convert import to_pcollection  # pyright: ignore[reportMissingImports]

        frame = to_pcollection(frame)
    table = count_examples(frame, by, columns, order)
    ranges = _ranges(table.counts, length, buckets)
    names = _checked_columns(table.known, by, columns, order)
    if fact := table.wrong_ids(by, order) or (table.uneven and f"rows with only the columns {table.uneven[0]}"):
        message = (
            f"`clients_from` found {fact} in a PCollection with the columns {table.known}. Every row must have a str "
            "or int that identifies its client. All rows must have the same columns, unless `columns` lists the "
            "columns to read. Convert or drop rows with a `beam.Map` or `beam.Filter`."
        )
        raise ProgramError(message)
    for name in names:
        if (problem := table.wrong_value(name)) is not None:
            raise _wrong_values(*problem, name)
    return tuple(table.reader(by, names, order, *range_) for range_ in ranges)


class _Range(NamedTuple):
    """Clients with more than `low` and at most `high` examples, padded to a length."""

    low: int
    high: float
    length: int
    clients: int


def _ranges(counts: np.ndarray, length: int | None, buckets: Sequence[int] | None) -> list[_Range]:
    if not len(counts):
        message = "`clients_from` was given a table without rows. A program needs at least one client."
        raise ProgramError(message)
    if buckets is None:
        longest = int(counts.max())  # no client has more examples, unless the table changes
        return [_Range(0, longest if length is None else np.inf, longest if length is None else length, len(counts))]
    used = _used(buckets, counts)
    return [_Range(*bounds, clients=int(np.sum((bounds[0] < counts) & (counts <= bounds[1])))) for bounds in used]


def _clients_of(
    piece: Foreign, by: str, names: Sequence[str], order: str | None, range_: _Range
) -> Iterator[tuple[Any, Any]]:
    """Packs those clients of a pandas DataFrame whose number of examples is in a range."""
    ordered = piece.sort_values([by, order] if order else by, kind="stable")
    for client, rows in ordered.groupby(by, sort=True):
        if range_.low < len(rows) <= range_.high:
            yield client, padded({name: _values(client, name, rows[name]) for name in names}, range_.length)


def _whole_clients(cluster: Cluster, frame: Foreign, by: str) -> list[Any]:
    """Groups examples by client into DataFrames on the workers; returns references."""
    if hasattr(frame, "to_pandas_refs"):  # of Ray Data
        places = max(1, int(cluster.owner.cluster_resources().get("CPU", 1)))
        return frame.repartition(2 * places, keys=[by]).to_pandas_refs()
    placed = frame.shuffle(on=by).to_delayed()
    return placed if cluster.owner is None else cluster.owner.compute(placed)


def _check_texts(frame: Foreign, names: Sequence[str]) -> None:
    """Rejects text columns of a Dask DataFrame, because they may have been lists."""
    texts = [name for name in names if "string" in str(frame.dtypes[name])]
    if texts:
        message = (
            f"`clients_from` was given a Dask DataFrame with text in the columns {texts}. Columns must contain "
            "numbers or lists of numbers, but by default Dask converts lists to text. For lists, call "
            '`dask.config.set({"dataframe.convert-string": False})` before the DataFrame is created; otherwise, choose '
            "other `columns`."
        )
        raise ProgramError(message)


def _held(
    cluster: Cluster,
    frames: Sequence[Any],
    by: str,
    names: Sequence[str],
    order: str | None,
    length: int | None,
    buckets: Sequence[int] | None,
) -> tuple[ClientReader, ...]:
    """Creates readers for clients; the workers pack the clients from their DataFrames, and store them."""
    sizes = cluster.gather([cluster.start(_sizes, piece, by) for piece in frames])
    readers = []
    for range_ in _ranges(np.concatenate(sizes), length, buckets):
        parts = cluster.store([cluster.start(_pack, piece, by, names, order, range_) for piece in frames])
        labels = cluster.gather([cluster.start(label_of, part) for part in parts])
        reader = HeldClients(cluster, parts, labels, jax.tree.structure(dict.fromkeys([*names, COUNT], 0)))
        if reader.clients != range_.clients or len(set(reader.ids)) != reader.clients:
            message = (
                f"`clients_from` counted {range_.clients} clients and packed {reader.clients}, {len(set(reader.ids))} "
                f"of them distinct. A table must return the same rows each time it is read: write it to files first, "
                "and read these files."
            )
            raise ProgramError(message)
        readers.append(reader)
    return tuple(readers)


def _sizes(piece: Foreign, by: str) -> np.ndarray:
    return piece.groupby(by).size().to_numpy() if len(piece) else np.zeros(0, int)


def _pack(piece: Foreign, by: str, names: Sequence[str], order: str | None, range_: _Range) -> HeldPart:
    return HeldPart.of(list(_clients_of(piece, by, names, order, range_)) if len(piece) else [])


def _check_buckets(buckets: Sequence[int], length: int | None) -> None:
    are_integers = all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in buckets)
    if are_integers and length is None and list(buckets) == sorted(set(buckets)) and buckets:
        return
    message = (
        f"`clients_from` was given buckets={list(buckets)} and length={length!r}. Buckets must be increasing numbers "
        "of examples, such as [32, 128, 512], and the last bucket truncates larger clients: pass such "
        "`buckets` without `length`."
    )
    raise ProgramError(message)


def _used(buckets: Sequence[int], counts: np.ndarray) -> list[tuple[int, float, int]]:
    """Returns (more than, at most, padded length) for each bucket that contains clients."""
    tops = [*buckets[:-1], np.inf]
    ranges = zip([0, *buckets[:-1]], tops, buckets, strict=True)
    return [(low, high, top) for low, high, top in ranges if ((low < counts) & (counts <= high)).any()]


def _of_sizes(frame: Foreign, by: str, low: int, high: float) -> Foreign:
    """Selects the rows of clients whose number of rows is in a range, from a Spark table."""
    from pyspark.sql import Window, functions  # pyright: ignore[reportMissingImports]

    size = functions.count("*").over(Window.partitionBy(by))
    most = int(high) if np.isfinite(high) else 2**62
    return frame.withColumn("examples of client", size).where(f"`examples of client` between {low + 1} and {most}")


def _values(client: object, name: str, column: Foreign) -> np.ndarray:
    """Converts one client's column to numbers; accepts nullable and Arrow dtypes without missing values."""
    missing = 0 if isinstance(column.dtype, np.dtype) and column.dtype != object else int(column.isna().sum())
    kind = getattr(column.dtype, "numpy_dtype", None)  # pandas nullable dtypes
    values = column.to_numpy() if missing or kind is None else column.to_numpy(kind)
    if values.dtype == object and not missing:
        shapes = {np.shape(x) for x in values}
        values = np.stack([np.asarray(x) for x in values]) if len(shapes) == 1 else values
    if missing or values.dtype.kind not in "biufc":
        raise _wrong_values(client, missing, name)
    try:
        return converted(values, jax.dtypes.canonicalize_dtype(values.dtype))
    except ValueError as error:
        raise _wrong_values(client, 0, name, str(error)) from error


def _wrong_values(
    client: object, missing: int, name: str, fact: str = "text, or lists of different lengths,"
) -> ProgramError:
    fact = f"{missing} missing value(s)" if missing else fact
    message = (
        f"`clients_from` found {fact} in column {name!r} of client {client!r}. Columns must contain numbers, or lists "
        "of numbers of the same length in every row: fill or drop rows with missing values, cast the column to "
        "float, or choose other `columns`."
    )
    return ProgramError(message)
