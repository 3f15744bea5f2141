"""Clients from Spark tables, which the executors group and pack."""

# pyright: reportMissingImports=false

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pyarrow as pa
from jax import Array
from pyarrow import compute
from pyspark.sql import functions

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.engines._client_loop import name_clients
from workbench.engines._clients import COUNT, ClientReader
from workbench.engines._columns import leaf_of, read_column
from workbench.engines._table_engine import TableReader
from workbench.engines.spark._worker import Pack, Shapes, decode, shapes_of
from workbench.errors import EngineError, ProgramError

MOST_SENT_BYTES = 8 * 2**20  # up to this size, rows computed by the server are sent with the server's values
NUMPY_TYPES = {
    **{"boolean": "bool", "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64"},
    **{"float": "float32", "double": "float64"},
}


class PackedClients(ClientReader):
    """Clients packed by executors into batches; read in this process only if the server needs them."""

    def __init__(self, frame: Foreign, ids: Foreign, struct: PyTree[Array], size: int) -> None:
        self.frame, self.ids, self.size, self.clients = frame, ids, size, len(ids)
        leaves, self.structure = jax.tree.flatten(struct)
        kinds = [jax.dtypes.canonicalize_dtype(x.dtype) for x in leaves]
        self.avals = tuple(jax.ShapeDtypeStruct(x.shape[1:], kind) for x, kind in zip(leaves, kinds, strict=True))
        self.passes = 0  # that read the frame

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return _rows_of(self.frame, self.ids, self.struct, self.size)


class Names(Sequence[Any]):
    """The ids of clients in an Arrow array, which takes less memory than Python objects."""

    def __init__(self, ids: Foreign) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self.ids.equals(other.ids)

    def __hash__(self) -> int:
        return hash((len(self), *(self.ids[at].as_py() for at in (0, -1) if len(self))))

    def __getitem__(self, key: Any) -> Any:
        return Names(self.ids[key]) if isinstance(key, slice) else self.ids[key].as_py()


def _rows_of(frame: Foreign, ids: Foreign, struct: PyTree[Array], size: int) -> Iterator[tuple[Any, Any]]:
    tree, shapes = jax.tree.structure(struct), [(name, (size, *shape)) for name, shape in _leaves_of(struct)]
    for row in frame.sort("batch").toLocalIterator():
        batch = [decode(bytes(row[f"c{i}"]), (shape,))[0] for i, shape in enumerate(shapes)]
        for slot, identity in enumerate(ids.slice(row["batch"] * size, size).to_pylist()):
            yield identity, jax.tree.unflatten(tree, [x[slot] for x in batch])


def _leaves_of(struct: PyTree[Array]) -> Shapes:
    return shapes_of([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in jax.tree.leaves(struct)])


class ClientTable(TableReader):
    """Clients of a table with the columns "client", "v0", "v1" and so on; `Spark` packs them on the executors.

    With `examples`, a row is an example, and "at" may be its place in the order; otherwise, a row is a client.
    """

    engine, table = "Spark", "Spark table"

    def __init__(
        self, frame: Foreign, ids: Foreign, length: int, row: PyTree[Array], *, examples: bool, most: int | None
    ) -> None:
        self.frame, self.ids, self.length, self.clients = frame, ids, length, len(ids)
        self.examples, self.most = examples, most
        self.structure, self.avals = jax.tree.structure(row), tuple(jax.tree.leaves(row))

    def batches(self, size: int, tasks: int) -> Foreign:
        """The packed clients, as a frame; the workers sort the rows by client."""
        work = Pack(leaf_names(self.struct), _leaves_of(self.struct), size, examples=self.examples, most=self.most)
        order = ["at"] if "at" in self.frame.columns else []
        with warnings.catch_warnings(action="ignore"):
            names = pa.table({"client": self.ids, "index": pa.array(np.arange(len(self.ids)))})
            index = self.frame.sparkSession.createDataFrame(names)
            if self.ids.nbytes <= MOST_SENT_BYTES:
                index = index.hint("broadcast")  # saves a shuffle of the rows
            view = self.frame.join(index, "client").selectExpr("*", f"cast(floor(index / {size}) as int) as batch")
            view = view.repartition(tasks, "batch").sortWithinPartitions("index", *order)
            cells = (f"c{i} binary" for i in range(len(work.leaves)))
            columns = ["batch int", "held array<bigint>", "rows bigint", "ccrc bigint", *cells]
            return view.mapInArrow(work, ", ".join(columns))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        tasks = max(1, self.frame.sparkSession.sparkContext.defaultParallelism)
        return _rows_of(self.batches(1, tasks), self.ids, self.struct, 1)


def table_of_clients(table: Foreign, struct: PyTree[Array]) -> ClientTable:
    """Reads clients of the given shapes from a Spark table with one row per client."""
    names = leaf_names(struct)
    if missing := [name for name in ["client", *names] if name not in table.columns]:
        message = f"[source] no column {', '.join(map(repr, missing))} among {table.columns}"
        raise ValueError(message)
    ids = table.select("client").toArrow().column("client").combine_chunks().sort()
    frame = table.selectExpr("client", *(f"`{name}` as v{i}" for i, name in enumerate(names)))
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), struct)
    return ClientTable(frame, ids, len(ids), row, examples=False, most=None)


def table_of_examples(
    frame: Foreign, by: str, names: Sequence[str], order: str | None, length: int | None
) -> ClientReader:
    """Reads clients from a Spark table of examples; executors group, order and pad them."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    inner = {name: re.fullmatch(r"(array<)?(\w+)(?(1)>)", types[name]) for name in names}
    lists = [name for name, kind in inner.items() if kind and kind[1]]
    wrong = [f"{name}: {types[name]}" for name, kind in inner.items() if not kind or kind[2] not in NUMPY_TYPES]
    sizes = [functions.expr(f"{f}(size(`{name}`)) as `{f} {name}`") for name in lists for f in ("min", "max")]
    groups = frame.groupBy(functions.col(f"`{by}`").alias("client")).agg(functions.count("*").alias(COUNT), *sizes)
    table = groups.toArrow().sort_by("client")
    clients, ids, counts = len(table), table.column("client").combine_chunks(), table.column(COUNT).to_numpy()
    extremes = ((name, [table.column(f"{f} {name}") for f in ("min", "max")]) for name in lists)
    pairs = {name: (compute.min(low).as_py(), compute.max(high).as_py()) for name, (low, high) in extremes}
    wrong += [f"{name}: lists of {low} to {high} numbers" for name, (low, high) in pairs.items() if low != high]
    if wrong or not clients:
        message = (
            f"`clients_from` was given a Spark table of {clients} clients with {'; '.join(wrong) or names}. The "
            "table must have at least one client, and its columns must contain numbers, or lists of numbers of the "
            "same length in every row: cast the columns, or choose others with `columns`."
        )
        raise ProgramError(message)
    truncates, length = length is not None, int(counts.max()) if length is None else length
    struct = {COUNT: jax.ShapeDtypeStruct((), np.int32)}
    for name in names:
        dtype = jax.dtypes.canonicalize_dtype(NUMPY_TYPES[inner[name][2]])  # pyright: ignore[reportOptionalSubscript]
        struct[name] = jax.ShapeDtypeStruct((length, *pairs.get(name, ())[1:]), dtype)
    columns = [f"`{by}` as client", *(f"`{name}` as v{i}" for i, name in enumerate(sorted(names)))]
    used = frame.selectExpr(*columns, *([f"`{order}` as at"] if order else []))
    most = None if truncates else length
    return ClientTable(used, ids, int(counts.sum()), struct, examples=True, most=most)


def columns_of(frame: Foreign, names: Sequence[str], out: str) -> list[jax.ShapeDtypeStruct]:
    """Shape and dtype of one row, for the given columns."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    try:
        if not names or out in types:
            raise KeyError(out)
        table = frame.select(*(f"`{name}`" for name in names if types[name])).limit(1).toArrow()
        (row,) = table.to_batches()
        leaves = {name: leaf_of(row.column(name), name) for name in names}
        for name, leaf in leaves.items():
            read_column(row.column(name), name, leaf)
    except (KeyError, ValueError) as error:
        message = (
            f"`Spark.predict` was given columns={list(names)} and out={out!r}, for a table with the columns {types}. "
            "The table must have at least one row. The columns must contain numbers or lists of numbers, without "
            "missing values, and `out` must be a new column: choose other columns, cast them, or fill missing values."
        )
        raise ProgramError(message) from error
    return [jax.ShapeDtypeStruct(shape, kind) for kind, shape in leaves.values()]


def leaf_names(struct: object) -> list[str]:
    """The column of each leaf, which is its key in a dictionary, or else "c" and its position."""
    paths, _ = jax.tree_util.tree_flatten_with_path(struct)
    names = []
    for number, (path, _) in enumerate(paths):
        keys = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        names.append("_".join(keys) if len(keys) == len(path) and keys else f"c{number}")
    return names


def check_packed(table: Foreign, ids: Foreign, size: int, rows: int) -> None:
    """Checks that reading the data from the frame returned the same clients as reading the ids."""
    numbers, lists = table.column("batch").to_numpy(), table.column("held").combine_chunks()
    indices, count = lists.flatten().to_numpy(), int(table.column("rows").to_numpy().sum())
    placed = np.array_equal(indices // size, np.repeat(numbers, lists.value_lengths().to_numpy()))
    times = np.bincount(indices, minlength=len(ids))
    if len(set(numbers)) == len(numbers) and placed and (times == 1).all() and count == rows:
        return
    missing = ids.take(np.flatnonzero(times == 0)).to_pylist()
    double = ids.take(np.flatnonzero((times > 1) | (len(set(numbers)) < len(numbers)))).to_pylist()
    facts = [f"{name_clients(some)} {label}" for some, label in ((missing, "missing"), (double, "double")) if some]
    facts = facts or [f"{count} rows instead of {rows}"]
    message = (
        f"`read_from` returned {len(ids)} clients when their ids were read, but different clients when their data were "
        f"read: {'; '.join(facts)}. A DataFrame with a random or time-dependent step, or `limit` without an order, can "
        "return different rows each time it is evaluated. Write it first and read the written files: "
        "`frame.write.parquet(path)`, then `read_from=path`."
    )
    raise EngineError(message)
