"""Readers for clients stored in arrays or files with one row per client."""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench._types import PyTreeDef
from workbench.engines._clients import ClientReader, as_avals, wrong_number
from workbench.engines._places import for_arrow, place
from workbench.engines._run_recorder import brief
from workbench.errors import DataError, EngineError, MissingDependencyError, ProgramError


class ArrayReader(ClientReader):
    """A `ClientReader` for arrays `[clients, ...]` on disk or in memory, read slice by slice.

    Args (of the constructor):
        arrays: Pytree of objects that have a shape and a dtype, and can be sliced along the first axis.
            Examples are `numpy.load(file, mmap_mode="r")`, `numpy.memmap`, HDF5 and zarr data sets, and arrays in
            memory.

    Raises:
        ProgramError: if a leaf is not array-like, or if the leaves have different numbers of rows or no rows.

    Example:
        >>> reader = ArrayReader({"x": np.zeros((1000, 5), np.float32)})
        >>> reader.clients, reader.struct
        (1000, {'x': ShapeDtypeStruct(shape=(1000, 5), dtype=float32)})
    """

    def __init__(self, arrays: object) -> None:
        leaves, structure = jax.tree.flatten(arrays)
        self.structure: PyTreeDef = structure
        for leaf in leaves:
            if not all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__")) or not leaf.shape:
                message = (
                    f"`ArrayReader` was given a leaf of type {type(leaf).__name__}, which is not an array with a row "
                    "for each client. An `ArrayReader` reads slices of arrays of shape `[clients, ...]`: pass a "
                    "pytree of numpy arrays, memory maps, or HDF5 or Zarr datasets."
                )
                raise ProgramError(message)
        counts = {len(leaf) for leaf in leaves}
        if len(counts) != 1 or 0 in counts:
            message = (
                f"`ArrayReader` was given arrays with {', '.join(map(str, sorted(counts))) or 'no'} rows. Every array "
                "needs one row for each client, and there must be at least one client: pass arrays of shape "
                "`[clients, ...]`."
            )
            raise ProgramError(message)
        self.clients: int = counts.pop()
        self._leaves_on_disk = leaves
        self.avals: tuple[Any, ...] = as_avals(
            [np.empty((0, *leaf.shape[1:]), leaf.dtype) for leaf in leaves], rows=True
        )

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for names, leaves in self.read_batches(256, ""):
            for slot, name in enumerate(names):
                yield name, jax.tree.unflatten(self.structure, [leaf[slot] for leaf in leaves])

    def read_batches(self, size: int, stage: str) -> Iterator[tuple[tuple[Any, ...], list[np.ndarray]]]:
        """Reads batches of clients by slicing each array."""
        for start in range(0, self.clients, size):
            stop = min(start + size, self.clients)
            try:
                leaves = [np.asarray(leaf[start:stop]) for leaf in self._leaves_on_disk]
            except Exception as error:
                message = (
                    f"stage {stage} could not read the clients {start} to {stop - 1}: {type(error).__name__}: {error}. "
                    "Clients are read when the run reaches them: check the file; the exception has details."
                )
                raise EngineError(message, stage=stage) from error
            yield tuple(range(start, stop)), leaves
            for leaf in self._leaves_on_disk:
                _forget(leaf, start, stop)


def _forget(leaf: Foreign, start: int, stop: int) -> None:
    """Releases the pages of rows that have been read; otherwise a mapped file would fill the process's memory."""
    mapped = getattr(leaf, "_mmap", None)
    if mapped is None or getattr(leaf, "mode", None) != "r" or not hasattr(mapped, "madvise"):
        return
    if not isinstance(leaf.base, mmap.mmap) or not leaf.flags.c_contiguous:
        return  # a view of the map, whose rows are at a different offset in the file
    row_bytes = leaf.nbytes // len(leaf)
    begin = leaf.offset % mmap.ALLOCATIONGRANULARITY + start * row_bytes
    begin -= begin % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, begin, min((stop - start) * row_bytes + mmap.PAGESIZE, len(mapped) - begin))


class ParquetReader(ClientReader):
    """A `ClientReader` for a parquet file or folder with one row per client. Needs the extra `data`.

    Args (of the constructor):
        path: A `.parquet` file, a folder of such files, or an address such as "s3://bucket/clients" (extra `storage`).
        columns: The columns to read, in this order; all by default. Columns contain numbers, or (nested) lists of
            numbers whose lengths are the same for every client.

    Raises:
        DataError: if the file cannot be read or is empty, or if a column has an unsupported type.
        MissingDependencyError: if pyarrow is not installed.

    Example:
        >>> reader = ParquetReader("clients.parquet", columns=["x", "y"])  # doctest: +SKIP
        >>> wb.engines.MeshEngine().run(fedavg, w, reader)  # doctest: +SKIP
    """

    def __init__(self, path: str | Path, *, columns: Sequence[str] | None = None) -> None:
        try:
            import pyarrow.dataset as datasets  # pyright: ignore[reportMissingImports]
        except ImportError as missing:
            raise MissingDependencyError("pyarrow", extra="data", needed_for="`ParquetReader`") from missing
        self.path: str = str(path)
        try:
            self._table = datasets.dataset(**for_arrow(place(path)), format="parquet")
            self.columns: list[str] = list(columns if columns is not None else self._table.schema.names)
            self.clients: int = self._table.count_rows()
            first = next(iter(self._table.head(1, columns=self.columns).to_batches()), None)
        except Exception as error:  # raised by Arrow, fsspec, or a file system client
            fact = f"it cannot be read ({brief(error)})"
            raise self._wrong(fact, "pass a parquet file, or a folder of them") from error
        if first is None:
            raise self._wrong("it contains no rows", "write one row for each client")
        from workbench.engines._columns import leaf_of

        self.structure: PyTreeDef = jax.tree.structure(dict.fromkeys(self.columns, 0))
        try:
            self._forms = {name: leaf_of(first.column(name), name) for name in sorted(self.columns)}
        except ValueError as error:
            raise self._wrong_column(error) from error
        self._arrays(first)
        self.avals: tuple[Any, ...] = tuple(jax.ShapeDtypeStruct(x, kind) for kind, x in self._forms.values())

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for names, leaves in self.read_batches(256, ""):
            for slot, name in enumerate(names):
                yield name, jax.tree.unflatten(self.structure, [leaf[slot] for leaf in leaves])

    def read_batches(self, size: int, stage: str) -> Iterator[tuple[tuple[Any, ...], list[np.ndarray]]]:
        """Reads batches of clients, a few record batches at a time."""
        start, waiting = 0, []
        for record_batch in self._table.to_batches(
            columns=self.columns, batch_size=min(size, 1 << 16), batch_readahead=2
        ):
            if not record_batch.num_rows:
                continue
            waiting.append(self._arrays(record_batch))
            while (count := sum(len(part[0]) for part in waiting)) >= size:
                arrays = _joined(waiting)
                waiting = [[x[size:] for x in arrays]] if count > size else []
                yield tuple(range(start, start + size)), [x[:size] for x in arrays]
                start += size
        if waiting:
            arrays = _joined(waiting)
            yield tuple(range(start, start + len(arrays[0]))), arrays
            start += len(arrays[0])
        if start != self.clients:
            raise EngineError(wrong_number(stage, self.clients, str(start)), stage=stage)

    def _arrays(self, batch: Foreign) -> list[np.ndarray]:
        from workbench.engines._columns import read_column

        try:
            return [read_column(batch.column(name), name, leaf) for name, leaf in self._forms.items()]
        except ValueError as error:
            raise self._wrong_column(error) from error

    def _wrong_column(self, error: ValueError) -> DataError:
        fact = f"it has {str(error).removeprefix('[source] ')}"
        return self._wrong(fact, "pad lists, and leave out other columns with `columns=`")

    def _wrong(self, fact: str, advice: str) -> DataError:
        return DataError(
            f"`ParquetReader` was given {self.path}, but {fact}. Each row must belong to one client, and the "
            f"columns must contain numbers, or lists of numbers with the same length for every client: {advice}."
        )


def _joined(parts: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(x) if len(parts) > 1 else x[0] for x in zip(*parts, strict=True)]
