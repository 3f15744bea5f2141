"""Tokenised text from Hugging Face pipelines, packed into sequences."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from workbench._open_types import Foreign
from workbench.errors import DataError, MissingDependencyError
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._files import Source


def load_tokens(
    path: str | Path,
    *,
    length: int,
    client: str | None = None,
    field: str = "input_ids",
    clients: int | None = None,
    separator: int | None = None,
) -> ClientData:
    """Reads tokenised text and packs each client's rows into equally long sequences.

    The rows of a client are joined and cut into sequences; a remainder shorter than a sequence is dropped. No network
    or tokenizer is needed. `x` contains tokens, and `y` contains the tokens that follow them, so a client needs
    `length + 1` tokens.

    Args:
        path: A file, or a folder of files, such as a folder written by `save_to_disk`. A file contains JSON lines
            (`.jsonl`), Arrow (`.arrow`, file or stream format) or Parquet (`.parquet`). Files in a folder are read in
            order of their names. Arrow and Parquet need the extra `data`.
        length: Number of tokens in a sequence.
        client: The field that contains each row's client; None assigns the rows to clients in rotation.
        field: The field with a row's token ids.
        clients: Number of clients, if `client` is None.
        separator: A token to insert between a client's rows, such as the end-of-text token.

    Returns:
        Clients, sorted by name, with `x` and `y`, int32 `[sequences, length]`.

    Raises:
        DataError: for a truncated line, a missing field, ids that are not integers from 0 to 2³¹ − 1, or a client with
            too few tokens. The message names the file and row.
        MissingDependencyError: for an `.arrow` or `.parquet` file if pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "texts.jsonl"
        >>> _ = file.write_text('{"who": "a", "input_ids": [1, 2, 3, 4, 5]}')
        >>> held = load_tokens(file, length=2, client="who")["a"]
        >>> held["x"].tolist(), held["y"].tolist()
        ([[1, 2], [3, 4]], [[2, 3], [4, 5]])
    """
    source = Source(loader="load_tokens", path=Path(path))
    if length < 1 or (client is None) == (clients is None) or (clients is not None and clients < 1):
        message = (
            f"{source} received length={length}, client={client!r}, clients={clients!r}. A sequence has at least one "
            "token. Either a field names each row's client, or rows are assigned to clients in turn: pass a positive "
            "`length`, and either `client` or a positive `clients`."
        )
        raise DataError(message)
    pieces: dict[str, list[np.ndarray]] = {}
    between = [] if separator is None else [np.array([separator], np.int32)]
    for number, (where, row) in enumerate(_rows(source)):
        missing = [name for name in (field, client) if name is not None and name not in row]
        if missing:
            message = (
                f"{source}, {where}, lacks {', '.join(map(repr, missing))}; its fields are "
                f"{', '.join(map(repr, row)) or 'none'}. Every row needs these fields: pass names of existing fields."
            )
            raise DataError(message)
        owner = f"client_{number % clients}" if clients else str(row[client or ""])
        pieces.setdefault(owner, []).extend([_ids(source, where, field, row[field]), *between])
    if not pieces:
        raise source.unreadable("JSON lines, Arrow or Parquet with at least one row", problem="it has no rows")
    packed, short = {}, []
    for owner in sorted(pieces):
        tokens = np.concatenate(pieces[owner])
        count = (len(tokens) - 1) // length
        if count < 1:
            short.append(
                f"client {owner!r} has {len(tokens)} tokens, but at least length + 1 = {length + 1} are needed"
            )
            continue
        x, y = tokens[: count * length], tokens[1 : count * length + 1]
        packed[owner] = {"x": x.reshape(count, length), "y": y.reshape(count, length)}
    source.refuse(short)
    return ClientData(arrays=packed, name=source.path.stem)


def _ids(source: Source, where: str, field: str, value: object) -> np.ndarray:
    try:
        ids = np.asarray(value)
    except ValueError:  # lists of different lengths
        ids = np.zeros((0, 0))
    if ids.ndim == 1 and not ids.size:
        return np.zeros(0, np.int32)
    is_integer = ids.ndim == 1 and np.issubdtype(ids.dtype, np.integer)
    if not is_integer or ids.min() < 0 or ids.max() >= 2**31:
        message = (
            f"{source}, {where}, has no token ids in {field!r}: {str(value)[:60]}. Ids must be a list of whole numbers "
            "from 0 to 2147483647: tokenise the text first, or pass the name of the field that contains them."
        )
        raise DataError(message)
    return ids.astype(np.int32)


def _rows(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    root = source.existing(folder=True)
    files: Sequence[Path] = [root]
    if root.is_dir():
        files = sorted(f for f in root.iterdir() if f.suffix in (".jsonl", ".arrow", ".parquet"))
    if not files:
        splits = sorted(f.name for f in root.iterdir() if f.is_dir())  # of a DatasetDict
        inside = f", only the folders {', '.join(splits)}: pass one of them" if splits else ""
        found_none = f"it contains no .jsonl, .arrow or .parquet file{inside}"
        raise source.unreadable("a folder with .jsonl, .arrow or .parquet files", problem=found_none)
    for file in files:
        reader = {".jsonl": _json_lines, ".arrow": _arrow, ".parquet": _parquet}.get(file.suffix)
        if reader is None:
            raise source.unreadable("a .jsonl, .arrow or .parquet file", problem=f"it ends in {file.suffix!r}")
        yield from reader(source, file)


def _json_lines(source: Source, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise source.unreadable("JSON lines", problem=f"line {number} of {file.name} is not JSON") from error
            if not isinstance(row, dict):
                raise source.unreadable("JSON lines", problem=f"line {number} of {file.name} is not an object")
            yield f"line {number} of {file.name}", row


def _pyarrow(file: Path) -> ModuleType:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise MissingDependencyError(
            "pyarrow", extra="data", needed_for=f"`load_tokens` of a {file.suffix} file"
        ) from missing
    return pyarrow


def _arrow(source: Source, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    pa = _pyarrow(file)
    try:
        with pa.memory_map(str(file)) as opened:
            try:
                table = pa.ipc.open_stream(opened).read_all()
            except pa.ArrowInvalid:
                table = pa.ipc.open_file(opened).read_all()
    except (pa.ArrowException, OSError) as error:
        raise source.unreadable("an Arrow file", problem=f"{file.name} is truncated or not an Arrow file") from error
    yield from _table(file, table)


def _parquet(source: Source, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    pa = _pyarrow(file)
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise source.unreadable("a Parquet file", problem=f"{file.name} is truncated or not a Parquet file") from error
    yield from _table(file, table)


def _table(file: Path, table: Foreign) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for batch in table.to_batches():
        for row in batch.to_pylist():
            yield f"row {number} of {file.name}", row
            number += 1
