"""Reads columns of Arrow tables as arrays."""

# pyright: reportMissingImports=false

import math

import jax
import numpy as np
import pyarrow as pa
from pyarrow import compute

from workbench._open_types import Foreign
from workbench.engines._clients import converted

Leaf = tuple[str, tuple[int, ...]]  # dtype and shape of one row


def read_column(column: Foreign, name: str, leaf: Leaf, clients: Foreign = None) -> np.ndarray:
    """Reads numbers, nested or flat lists of numbers, or bytes, as an array `[rows, *shape]`.

    Messages name the row's client, if the column of `clients` is given.
    """
    dtype, shape = np.dtype(leaf[0]), leaf[1]
    values, wrong = _values(column, dtype, shape)
    if wrong.any():
        i = int(wrong.argmax())
        inner = column.slice(i, 1)
        while _is_list(inner.type):
            inner = inner.flatten()
        message = (
            f"[source] {_row(clients, i)} with {len(inner) - inner.null_count} values in column {name!r} of type "
            f"{column.type}, where {dtype}{list(shape)} is needed"
        )
        raise ValueError(message)
    try:
        return converted(values, dtype).reshape(len(column), *shape)
    except ValueError as error:
        with np.errstate(invalid="ignore"):
            changed = (values.astype(dtype) != values).reshape(len(column), -1).any(axis=1)
        message = f"[source] {error} in column {name!r} of {_row(clients, int(changed.argmax()))}"
        raise ValueError(message) from error


def leaf_of(column: Foreign, name: str) -> Leaf:
    """Finds the dtype (as JAX stores it) and the shape of the first row of a column of numbers or lists of numbers."""
    shape, row = (), column.slice(0, 1)
    while _is_list(row.type):
        shape = (*shape, compute.list_value_length(row)[0].as_py() or 0) if len(row) else (*shape, 0)
        row = row.flatten()[:1]
    if not _is_number(row.type):
        message = f"[source] a column {name!r} of type {column.type}"
        raise ValueError(message)
    return jax.dtypes.canonicalize_dtype(row.type.to_pandas_dtype()).name, shape


def _values(column: Foreign, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of all rows, and the mask of the rows whose numbers do not have the shape."""
    wrong = column.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        cells = [cell or b"" for cell in column.to_pylist()]
        wrong = wrong | (np.array(list(map(len, cells))) != math.prod(shape) * dtype.itemsize)
        return np.frombuffer(b"" if wrong.any() else b"".join(cells), dtype), wrong
    row_of, depth, wrong = np.arange(len(column)), 0, wrong.copy()
    while _is_list(column.type):
        inner, lengths = column.flatten(), compute.list_value_length(column).fill_null(0).to_numpy()
        size = math.prod(shape[depth : depth + 1] if _is_list(inner.type) else shape[depth:])
        wrong[row_of[lengths != size]] = True
        if _is_list(inner.type) or inner.null_count:
            row_of = np.repeat(row_of, lengths)
        column, depth = inner, depth + 1
    if not _is_number(column.type) or (depth == 0 and math.prod(shape) != 1):
        wrong[:] = True
    if column.null_count:
        wrong[row_of[column.is_null().to_numpy(zero_copy_only=False)]] = True
    return column.to_numpy(zero_copy_only=False), wrong


def _is_list(kind: Foreign) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_number(kind: Foreign) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _row(clients: Foreign, i: int) -> str:
    return "a row" if clients is None else f"client {clients[i].as_py()!r}"
