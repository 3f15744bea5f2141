"""Tables with a client column: Parquet files and Hugging Face data sets on disk."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench._open_types import Foreign
from workbench.errors import DataError, MissingDependencyError
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._files import Source, guess_label
from workbench.federated.data._partition import by_natural_id


def load_parquet(
    path: str | Path,
    *,
    client: str,
    fields: Sequence[str] | None = None,
    label: str | None = "auto",
    allow_nan: bool = False,
) -> ClientData:
    """Reads client data from Parquet, with one row per example and a column of client ids. Needs the extra `data`.

    Args:
        path: A `.parquet` file, or a folder of `.parquet` files.
        client: The column that contains each row's client.
        fields: The columns to keep; by default, all other columns. Columns of (nested) lists become arrays.
        label: The column with the classes. "auto" uses `y`, `label` or another common name if present.
        allow_nan: Whether to accept NaN.

    Returns:
        The clients in sorted order.

    Raises:
        DataError: for a truncated file, a missing column, missing values, NaN, lists of different lengths, or columns
            that contain neither numbers nor text nor lists. The message names the file, client and field.
        MissingDependencyError: if pyarrow is not installed.

    Example:
        >>> load_parquet("visits.parquet", client="hospital")  # doctest: +SKIP
        ClientData('visits', 12 clients, ...)
    """
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise MissingDependencyError("pyarrow", extra="data", needed_for="`load_parquet`") from missing
    source = Source(loader="load_parquet", path=Path(path), allow_nan=allow_nan)
    place = source.existing(folder=True)
    try:
        table = pq.read_table(place)
    except (pa.ArrowException, OSError) as error:
        raise source.unreadable("a parquet file", problem=f"it is truncated or not a Parquet file ({error})") from error
    return _from_table(source, table, client=client, fields=fields, label=label)


def load_hugging_face(
    path: str | Path,
    *,
    client: str,
    split: str | None = None,
    fields: Sequence[str] | None = None,
    label: str | None = "auto",
    allow_nan: bool = False,
) -> ClientData:
    """Reads a data set that Hugging Face `datasets` saved with `save_to_disk`. Needs the extra `data`, but no network.

    Args:
        path: The folder.
        client: The column that contains each row's client.
        split: Name of the split, for folders with several splits.
        fields: The columns to keep; by default, all other columns.
        label: As in `load_parquet`. The names of a `ClassLabel` become the classes.
        allow_nan: Whether to accept NaN.

    Returns:
        The clients in sorted order.

    Raises:
        DataError: for the same reasons as `load_parquet`, or if the split is missing.
        MissingDependencyError: if `datasets` is not installed.

    Example:
        >>> load_hugging_face("my_dataset", client="speaker", split="train")  # doctest: +SKIP
        ClientData('my_dataset', 40 clients, ...)
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise MissingDependencyError("datasets", extra="data", needed_for="`load_hugging_face`") from missing
    source = Source(loader="load_hugging_face", path=Path(path), allow_nan=allow_nan)
    form = "a folder that `datasets` wrote with `save_to_disk`"
    if not source.existing(folder=True).is_dir():
        raise source.unreadable(form, problem="it is a file")
    try:
        dataset: Foreign = datasets.load_from_disk(str(source.path))
    # Truncated files cause pyarrow, JSON, key or system errors, depending on the file.
    except Exception as error:
        raise source.unreadable(form, problem=f"`datasets` says {type(error).__name__}: {error}") from error
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            message = (
                f"{source} was asked for split={split!r}, but the folder contains the splits "
                f"{', '.join(map(repr, dataset))}. Pass one of these splits, for example split={next(iter(dataset))!r}."
            )
            raise DataError(message)
        dataset = dataset[split]
    table = dataset.with_format("arrow")[:]  # applies the data set's own selection and order of rows
    column = guess_label(dataset.column_names, label)
    names = getattr(dataset.features.get(column), "names", None) if column else None
    return _from_table(source, table, client=client, fields=fields, label=label, classes=tuple(names or ()))


def _from_table(
    source: Source,
    table: Foreign,
    *,
    client: str,
    fields: Sequence[str] | None,
    label: str | None,
    classes: tuple[str, ...] = (),
) -> ClientData:
    there = list(table.column_names)
    field_names = [name for name in there if name != client] if fields is None else list(fields)
    missing = [name for name in (client, *field_names) if name not in there]
    if missing or not field_names:
        absent = (
            f"lacks the column(s) {', '.join(map(repr, missing))}" if missing else f"has no column except {client!r}"
        )
        message = (
            f"{source} {absent}; its columns are {', '.join(map(repr, there))}. The table needs a column of client ids "
            "and at least one field: pass existing columns as `client` and `fields`."
        )
        raise DataError(message)
    owners = np.asarray(table.column(client).to_pylist(), dtype=object)
    absent_ids = [row for row, owner in enumerate(owners) if not isinstance(owner, str | int)]
    if absent_ids or not len(owners):
        fact = f"row {absent_ids[0]} has the client id {owners[absent_ids[0]]!r}" if absent_ids else "it has no rows"
        form = f"a table with text or whole numbers in every row of column {client!r}"
        raise source.unreadable(form, problem=fact)
    partition = by_natural_id(np.array([str(owner) for owner in owners]))
    problems: list[str] = []
    columns: dict[str, np.ndarray] = {}
    for name in field_names:
        try:
            columns[name] = _as_array(table.column(name).combine_chunks())
        except _BadRowError as bad:
            prefix = "" if bad.row is None else f"client {str(owners[bad.row])!r}, "
            problems.append(f"{prefix}field {name!r}: {bad}")
    source.refuse(problems)
    arrays = {
        owner: {field: value[rows] for field, value in columns.items()}
        for owner, rows in zip(partition.clients, partition.rows, strict=True)
    }
    return source.checked(arrays, label=guess_label(columns, label), classes=classes)


class _BadRowError(Exception):
    """A column cannot be converted to an array; `row` is the failing row of the table, if known."""

    def __init__(self, fact: str, row: int | None) -> None:
        super().__init__(fact)
        self.row = row


def _as_array(column: Foreign) -> np.ndarray:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        message = f"{column.null_count} missing value(s), the first in row {row}"
        raise _BadRowError(message, row)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_array(column.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _as_nested(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=np.str_)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False)
    message = f"wrong dtype, {kind}, which is neither numbers, text nor lists of these"
    raise _BadRowError(message, None)


def _as_nested(column: Foreign) -> np.ndarray:
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    length = int(lengths[0])
    if (lengths != length).any():
        row = int(np.argmax(lengths != length))
        message = f"rows of different lengths: {int(lengths[row])} values in row {row}, {length} in row 0"
        raise _BadRowError(message, row)
    try:
        inner = _as_array(column.flatten())
    except _BadRowError as bad:
        raise _BadRowError(str(bad), None if bad.row is None else bad.row // max(length, 1)) from None
    return inner.reshape(len(column), length, *inner.shape[1:])
