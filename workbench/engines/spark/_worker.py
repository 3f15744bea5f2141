"""What a Spark executor does: computes batches of clients that arrive as Arrow, and merges partial results.

Nothing here is pickled but the few objects that Spark itself sends with a job: all values are the bytes of arrays whose
shapes and dtypes the `Spec` says.
"""

# pyright: reportMissingImports=false

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from workbench._open_types import Foreign
from workbench.engines._remote import Task, run_task
from workbench.engines._run_recorder import find_nan

MERGES = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}
REPLY, PARTIAL, KEYED = 0, 1, 2  # what a row is: about one batch, of a whole partition, of one key

_COLUMNS = {
    **dict.fromkeys(("kind", "number", "key", "part", "grp"), pa.int32()), "report": pa.string(), "payload": pa.binary()
}  # fmt: skip
_SQL_TYPES = {pa.int32(): "int", pa.string(): "string", pa.binary(): "binary"}

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each array


@dataclasses.dataclass(frozen=True)
class SparkPass:
    """One pass over the clients: what comes in, and what each output of its function is."""

    digest: str
    size: int  # slots of a batch
    sources: tuple[str, ...]  # per row argument the column of the table, or "" for rows that came with the server's
    rows: Shapes  # of a batch
    made: Shapes  # rows of all clients that the server made
    shared: Shapes
    partial: Shapes
    kept: int
    merges: tuple[str, ...]
    keyed: tuple[int, ...]  # per partial result the axis of its keys, -1 where it has none
    groups: int  # partitions of the second level, 0 for none
    check_nan: bool


@dataclasses.dataclass(frozen=True)
class Inline:
    """Bytes that travel with the function, read as a broadcast variable is."""

    value: bytes


def shapes_of(avals: Sequence[Any]) -> Shapes:
    """Dtypes and shapes, as they travel."""
    return tuple((np.dtype(x.dtype).name, tuple(x.shape)) for x in avals)


def encode(arrays: Sequence[Any]) -> bytes:
    """Arrays as bytes, one after the other."""
    return b"".join(np.ascontiguousarray(x).tobytes() for x in arrays)


def decode(data: bytes, shapes: Shapes) -> list[np.ndarray]:
    """The arrays of `encode`, without a copy."""
    arrays, offset = [], 0
    for name, shape in shapes:
        dtype = np.dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, dtype, count, offset).reshape(shape))
        offset += count * dtype.itemsize
    return arrays


def schema_of(kept: int) -> str:
    """The columns of what a pass computes, as Spark reads them."""
    return ", ".join(
        [*(f"{name} {_SQL_TYPES[kind]}" for name, kind in _COLUMNS.items()), *(f"k{i} binary" for i in range(kept))]
    )


class Compute:
    """Computes the batches of one partition, and merges their partial results: the first level of the tree.

    One row per batch says where it ran and holds what is kept of its clients; one row holds the partition's partial
    results; where there are keys, one row for each that occurs.
    """

    def __init__(self, spec: SparkPass, stage: Foreign, server: Foreign) -> None:
        self.spec, self.stage, self.server = spec, stage, server

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` calls once per partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        spec, merged = self.spec, None
        rows: list[list[Any]] = []
        values = decode(self.server.value, (*spec.shared, *spec.made))
        shared, made = values[: len(spec.shared)], values[len(spec.shared) :]
        for record in batches:
            for slot, number in enumerate(record.column("batch").to_pylist()):
                try:
                    operands = [np.int32(number), *self._rows(record, slot, number, made), *shared]
                    reply = run_task(Task(spec.digest, self.stage.value, operands))
                except Exception as error:
                    message = f"[batch {number}] {type(error).__name__}: {' '.join(str(error).split())}"
                    raise RuntimeError(message) from error
                kept, partial = reply.outputs[: spec.kept], reply.outputs[spec.kept :]
                nan = find_nan(reply.outputs, [str(i) for i in range(len(reply.outputs))]) if spec.check_nan else None
                report = [
                    reply.where,
                    reply.seconds,
                    reply.compile_seconds,
                    sum(x.nbytes for x in reply.outputs),
                    nan,
                ]
                rows.append(self._row(REPLY, number, part, report=json.dumps(report), kept=[encode([x]) for x in kept]))
                merged = partial if merged is None else merge(spec.merges, merged, partial)
                if kept:  # may be large; without it the replies of a partition are one Arrow batch
                    yield _as_batch(rows, spec)
                    rows = []
        whole = [x for x, axis in zip(merged or (), spec.keyed, strict=False) if axis < 0]
        if whole:
            rows.append(self._row(PARTIAL, 0, part, payload=encode(whole)))
        if rows:
            yield _as_batch(rows, spec)
        if merged:
            yield from self._keyed(part, merged)

    def _rows(self, record: pa.RecordBatch, slot: int, number: int, made: list[np.ndarray]) -> list[np.ndarray]:
        rows, waiting = [], iter(made)
        for source, shape in zip(self.spec.sources, self.spec.rows, strict=True):
            if source:
                rows += decode(record.column(source)[slot].as_buffer(), (shape,))
                continue
            some = next(waiting)[number * self.spec.size : (number + 1) * self.spec.size]
            fill = np.repeat(some[:1], self.spec.size - len(some), axis=0)
            rows.append(np.concatenate([some, fill]) if len(fill) else some)
        return rows

    def _keyed(self, part: int, merged: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        for number, (table, axis) in enumerate(zip(merged, self.spec.keyed, strict=True)):
            if axis < 0:
                continue
            groups = np.moveaxis(table, axis, 0)
            for key in np.flatnonzero(groups.reshape(len(groups), -1).any(axis=1)):
                row = self._row(KEYED, number, part, key=int(key), payload=encode([groups[key]]))
                yield _as_batch([row], self.spec)

    def _row(
        self,
        kind: int,
        number: int,
        part: int,
        *,
        key: int = 0,
        report: str = "",
        payload: bytes = b"",
        kept: Sequence[bytes] = (),
    ) -> list[Any]:
        group = (number * 31 + key if kind == KEYED else part) % max(self.spec.groups, 1)
        return [kind, number, key, part, group, report, payload, *(kept or [None] * self.spec.kept)]


def _as_batch(rows: Sequence[Sequence[Any]], spec: SparkPass) -> pa.RecordBatch:
    names, types = [*_COLUMNS, *(f"k{i}" for i in range(spec.kept))], [*_COLUMNS.values(), *[pa.binary()] * spec.kept]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)


class Merge:
    """Merges the partial results of some partitions, which come sorted: the second level of the tree."""

    def __init__(self, spec: SparkPass) -> None:
        self.spec = spec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` calls once per group of partitions."""
        open_row: tuple[tuple[int, ...], pa.RecordBatch] | None = None
        total: list[np.ndarray] = []
        for record in batches:
            kinds, numbers, keys = (record.column(name).to_pylist() for name in ("kind", "number", "key"))
            for slot, (kind, number, key) in enumerate(zip(kinds, numbers, keys, strict=True)):
                row = record.slice(slot, 1)
                if kind == REPLY:
                    yield row
                    continue
                names, shapes = merges_of(self.spec, kind, number)
                values = decode(record.column("payload")[slot].as_buffer(), shapes)
                if open_row is not None and open_row[0] == (kind, number, key):
                    total = merge(names, total, values)
                    continue
                if open_row is not None:
                    yield _with_payload(open_row[1], total)
                open_row, total = ((kind, number, key), row), values
        if open_row is not None:
            yield _with_payload(open_row[1], total)


def _with_payload(row: pa.RecordBatch, total: Sequence[Any]) -> pa.RecordBatch:
    place = row.schema.get_field_index("payload")
    columns = row.columns
    columns[place] = pa.array([encode(total)], row.schema.field(place).type)
    return pa.RecordBatch.from_arrays(columns, schema=row.schema)


def merges_of(spec: SparkPass, kind: int, number: int) -> tuple[Sequence[str], Shapes]:
    """How the arrays of a row are merged, and their shapes."""
    if kind == KEYED:
        (name, shape), axis = spec.partial[number], spec.keyed[number]
        return [spec.merges[number]], ((name, (*shape[:axis], *shape[axis + 1 :])),)
    plain = [i for i, axis in enumerate(spec.keyed) if axis < 0]
    return [spec.merges[i] for i in plain], tuple(spec.partial[i] for i in plain)


def merge(names: Sequence[str], a: Sequence[Any], b: Sequence[Any]) -> list[np.ndarray]:
    """Two lists of partial results as one, each in the dtype that its reduction states."""
    return [np.asarray(MERGES[name](x, y)) for name, x, y in zip(names, a, b, strict=True)]


class Pack:
    """Clients of a table, one per row and sorted, as batches of bytes."""

    def __init__(self, columns: Sequence[str], leaves: Shapes, size: int) -> None:
        self.columns, self.leaves, self.size = tuple(columns), leaves, size

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `mapInArrow` calls once per partition."""
        number, slots = None, []
        for record in batches:
            for slot, index in enumerate(record.column("index").to_pylist()):
                if index // self.size != number:
                    if slots:
                        yield self._packed(number, slots)
                    number, slots = index // self.size, []
                slots.append(self._client(record, slot))
        if slots:
            yield self._packed(number, slots)

    def _client(self, record: pa.RecordBatch, slot: int) -> list[np.ndarray]:
        return [
            read_cell(record.column(name)[slot], name, shape, record.column("client")[slot].as_py())
            for name, shape in zip(self.columns, self.leaves, strict=True)
        ]

    def _packed(self, number: int | None, slots: list[list[np.ndarray]]) -> pa.RecordBatch:
        filled = [*slots, *slots[:1] * (self.size - len(slots))]
        columns: dict[str, Any] = {"batch": pa.array([number], pa.int32())}
        for i, leaf in enumerate(zip(*filled, strict=True)):
            columns[f"c{i}"] = pa.array([encode(leaf)], pa.binary())
        return pa.RecordBatch.from_pydict(columns)


def read_cell(cell: Foreign, name: str, shape: tuple[str, tuple[int, ...]], client: object) -> np.ndarray:
    """One client's array from a cell of a table: nested or flat lists, a number, or the bytes of the array.

    Raises:
        ValueError: if the cell holds another number of values.
    """
    dtype, count = np.dtype(shape[0]), int(np.prod(shape[1], dtype=np.int64))
    if pa.types.is_binary(cell.type) or pa.types.is_large_binary(cell.type):
        raw = cell.as_py()
        values = np.frombuffer(raw, dtype) if raw is not None and len(raw) % dtype.itemsize == 0 else np.empty(0, dtype)
    else:
        values = np.asarray(cell.as_py(), dtype=object if cell.as_py() is None else None)
        values = values.astype(dtype).reshape(-1) if values.dtype.kind in "biuf" else np.empty(0, dtype)
    if values.size != count:
        message = (
            f"[source] client {client!r} with {values.size} values in column {name!r}, but the program reads "
            f"{shape[0]}{list(shape[1])}, which are {count}"
        )
        raise ValueError(message)
    return values.reshape(shape[1])
