"""Builds clients from tables of examples, grouped and padded on the workers that store the rows."""

# pyright: reportMissingImports=false

import dataclasses
import functools
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench._processes import remove_with_this_process
from workbench._types import PyTreeDef
from workbench.engines._clients import COUNT, ClientReader, as_avals, converted, padded
from workbench.engines._places import load_arrays, save_arrays
from workbench.engines._remote import Slice, fingerprint, remove_values
from workbench.errors import ProgramError


@dataclasses.dataclass(frozen=True)
class HeldPart:
    """A part of the clients, stored on one worker: ids, leaves `[clients, ...]`, and a checksum of both.

    In a label of a part, which is for the driver, the leaves are one client's shapes.
    """

    ids: tuple[Any, ...]
    leaves: Sequence[Any]
    mark: int

    @classmethod
    def of(cls, clients: Sequence[tuple[Any, Any]]) -> "HeldPart":
        ids = tuple(x.item() if isinstance(x, np.generic) else x for x, _ in clients)
        rows = zip(*(jax.tree.leaves(data) for _, data in clients), strict=True)
        leaves = [np.stack(x) for x in rows]
        return cls(ids, leaves, fingerprint(leaves, ids))


def label_of(part: HeldPart) -> HeldPart:
    return dataclasses.replace(part, leaves=as_avals(part.leaves, rows=True))


class Cluster(NamedTuple):
    """A cluster that stores parts: the owner of its references, and functions that start tasks and gather results."""

    owner: Foreign  # a Dask client, the module `ray`, or None for Dask's own scheduler
    start: Callable[..., Any]  # fn, *arguments, which may be references → a reference
    gather: Callable[[Sequence[Any]], list[Any]]
    store: Callable[[Sequence[Any]], list[Any]] = list  # references to parts → references that are not computed again


def cluster_of_dask() -> Cluster:
    """The cluster of the current `distributed.Client`, or else Dask's own scheduler."""
    try:
        from distributed import get_client  # pyright: ignore[reportAttributeAccessIssue]

        client = get_client()
    except (ImportError, ValueError):
        files = _PartFiles()
        return Cluster(None, files.start, files.gather, files.store)
    return Cluster(client, client.submit, client.gather)


class _PartFiles:
    """Parts that Dask's own scheduler packs into files; their temporary folder is removed with this object."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="workbench-clients-")
        remove_with_this_process(Path(self.folder))
        weakref.finalize(self, remove_values, self.folder)

    def start(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Creates a task that runs when its result is gathered."""
        import dask

        return dask.delayed(fn, pure=False)(*arguments)

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        import dask

        return list(dask.compute(*tasks))

    def store(self, parts: Sequence[Any]) -> list[Any]:
        """Writes parts to files; returns tasks that read them."""
        names = [f"{self.folder}/{uuid.uuid4().hex}.npz" for _ in parts]
        stubs = self.gather([self.start(_save, part, name) for part, name in zip(parts, names, strict=True)])
        return [self.start(_load, stub, name) for stub, name in zip(stubs, names, strict=True)]


def _save(part: HeldPart, path: str) -> HeldPart:
    save_arrays(path, part.leaves)
    return dataclasses.replace(part, leaves=[])


def _load(part: HeldPart, path: str) -> HeldPart:
    return dataclasses.replace(part, leaves=load_arrays(path))


def cluster_of_ray() -> Cluster:
    import ray

    return Cluster(ray, lambda fn, *arguments: ray.remote(fn).remote(*arguments), lambda refs: ray.get(list(refs)))


class HeldClients(ClientReader):
    """Clients stored in parts on a cluster; engines outside the cluster read one part at a time in this process."""

    def __init__(self, cluster: Cluster, parts: Sequence[Any], labels: Sequence[HeldPart], form: PyTreeDef) -> None:
        full = [(part, label) for part, label in zip(parts, labels, strict=True) if label.ids]
        self.cluster, self.parts, self.labels = cluster, [x for x, _ in full], [x for _, x in full]
        self.ids = tuple(identity for label in self.labels for identity in label.ids)
        self.clients, self.structure, self.avals = len(self.ids), form, tuple(self.labels[0].leaves)
        self._ends = np.cumsum([len(label.ids) for label in self.labels])

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for reference in self.parts:
            (part,) = self.cluster.gather([reference])
            for identity, *leaves in zip(part.ids, *part.leaves, strict=True):
                yield identity, jax.tree.unflatten(self.structure, leaves)

    def slices(self, start: int, stop: int) -> tuple[list[Any], tuple[Slice, ...]]:
        """Finds the parts with the clients from `start` to `stop`, and the slice of each part."""
        parts, slices = [], []
        for number in range(int(np.searchsorted(self._ends, start, "right")), len(self.parts)):
            first = int(self._ends[number]) - len(self.labels[number].ids)
            if first >= stop:
                break
            parts.append(self.parts[number])
            end = min(stop, int(self._ends[number])) - first
            slices.append(Slice(max(start - first, 0), end, self.labels[number].mark))
        return parts, tuple(slices)


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
    ranges, library = functools.partial(_ranges, length=length, buckets=buckets), type(frame).__module__
    if library.startswith("apache_beam."):
        readers = _of_beam(frame, by, columns, order, ranges)
    else:
        labels = frame.columns() if library.startswith("ray.data") else frame.columns
        names = _checked_columns(list(map(str, labels)), by, columns, order)
        if library.startswith("pyspark."):
            readers = _of_spark(frame, by, names, order, length, ranges if buckets is not None else None)
        elif library.startswith("ray.data") or hasattr(frame, "npartitions"):
            readers = _held(frame, Columns(by, tuple(names), order), ranges)
        else:
            clients_of = functools.partial(_clients_of, frame, Columns(by, tuple(names), order))
            counts = frame.groupby(by).size().to_numpy()
            readers = [ClientReader(functools.partial(clients_of, x), clients=x.clients) for x in ranges(counts)]
    return readers[0] if buckets is None else tuple(readers)


def _checked_columns(labels: Sequence[str], by: str, columns: Sequence[str] | None, order: str | None) -> list[str]:
    names = list(columns) if columns is not None else [name for name in labels if name not in (by, order)]
    wrong = [name for name in (by, *names, *([order] if order else ())) if name not in labels]
    if wrong or not names or COUNT in names:
        message = (
            f"`clients_from` received by={by!r}, columns={names} and order={order!r}, for a table with the columns "
            f'{labels}. Each name must be a column of the table, and "n" is reserved for the number of examples: '
            "rename the column or choose another column."
        )
        raise ProgramError(message)
    return names


class Columns(NamedTuple):
    """The column of the clients' ids, the columns to read, and the column of the order."""

    by: str
    names: tuple[str, ...]
    order: str | None


def _of_spark(
    frame: Foreign, by: str, names: Sequence[str], order: str | None, length: int | None, ranges: Callable | None
) -> list[ClientReader]:
    from workbench.engines.spark import table_of_examples

    if ranges is None:
        return [table_of_examples(frame, by, names, order, length)]
    sizes = frame.groupBy(by).count().select("count").distinct().toArrow().column("count").to_numpy()
    return [table_of_examples(_of_sizes(frame, by, x.low, x.high), by, names, order, x.length) for x in ranges(sizes)]


def _of_beam(
    frame: Foreign, by: str, columns: Sequence[str] | None, order: str | None, ranges: Callable[..., list["_Range"]]
) -> list[ClientReader]:
    """Makes readers for a PCollection of rows, or a Beam DataFrame."""
    from workbench.engines.beam import count_examples

    if type(frame).__module__.startswith("apache_beam.dataframe"):
        from apache_beam.dataframe.convert import to_pcollection  # pyright: ignore[reportMissingImports]

        frame = to_pcollection(frame)
    table = count_examples(frame, by, columns, order)
    used = ranges(table.counts)
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
    return [table.reader(by, names, order, *range_) for range_ in used]


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
    bounds = zip([0, *buckets[:-1]], [*buckets[:-1], np.inf], buckets, strict=True)
    ranges = [_Range(low, high, top, int(np.sum((low < counts) & (counts <= high)))) for low, high, top in bounds]
    return [range_ for range_ in ranges if range_.clients]


def _clients_of(piece: Foreign, columns: Columns, range_: _Range) -> Iterator[tuple[Any, Any]]:
    """Packs those clients of a pandas DataFrame whose number of examples is in a range."""
    by, names, order = columns
    ordered = piece.sort_values([by, order] if order else by, kind="stable")
    for client, rows in ordered.groupby(by, sort=True):
        if range_.low < len(rows) <= range_.high:
            yield client, padded({name: _values(client, name, rows[name]) for name in names}, range_.length)


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


def _held(frame: Foreign, columns: Columns, ranges: Callable[..., list[_Range]]) -> list[ClientReader]:
    """Creates readers for clients; the workers pack the clients from their DataFrames, and store them."""
    if hasattr(frame, "to_pandas_refs"):  # of Ray Data
        cluster = cluster_of_ray()
        places = max(1, int(cluster.owner.cluster_resources().get("CPU", 1)))
        frames = frame.repartition(2 * places, keys=[columns.by]).to_pandas_refs()
    else:
        cluster = cluster_of_dask()
        _check_texts(frame, columns.names)
        frames = frame.shuffle(on=columns.by).to_delayed()
        frames = frames if cluster.owner is None else cluster.owner.compute(frames)
    sizes = cluster.gather([cluster.start(_sizes, piece, columns.by) for piece in frames])
    form = jax.tree.structure(dict.fromkeys([*columns.names, COUNT], 0))
    readers = []
    for range_ in ranges(np.concatenate(sizes)):
        parts = cluster.store([cluster.start(_pack, piece, columns, range_) for piece in frames])
        labels = cluster.gather([cluster.start(label_of, part) for part in parts])
        reader = HeldClients(cluster, parts, labels, form)
        if reader.clients != range_.clients or len(set(reader.ids)) != reader.clients:
            message = (
                f"`clients_from` counted {range_.clients} clients and packed {reader.clients}, {len(set(reader.ids))} "
                f"of them distinct. A table must return the same rows each time it is read: write it to files first, "
                "and read these files."
            )
            raise ProgramError(message)
        readers.append(reader)
    return readers


def _sizes(piece: Foreign, by: str) -> np.ndarray:
    return piece.groupby(by).size().to_numpy() if len(piece) else np.zeros(0, int)


def _pack(piece: Foreign, columns: Columns, range_: _Range) -> HeldPart:
    return HeldPart.of(list(_clients_of(piece, columns, range_)) if len(piece) else [])


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
