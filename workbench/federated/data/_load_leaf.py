"""LEAF's JSON files."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workbench.federated.data._client_data import ClientData
from workbench.federated.data._files import Source, guess_label


def load_leaf(
    path: str | Path, *, label: str | None = "auto", allow_empty: bool = False, allow_nan: bool = False
) -> ClientData:
    """Reads LEAF's client data: JSON with `users`, `num_samples` and `user_data`.

    Integers become int32 (int64 if necessary), and other numbers become float32; text stays text.

    Args:
        path: A `.json` file, or a folder of `.json` files with different users.
        label: The field with the classes. "auto" uses `y` or another common name if present; None for no label.
        allow_empty: Whether to accept clients without examples.
        allow_nan: Whether to accept NaN.

    Returns:
        The clients in the order of `users`.

    Raises:
        DataError: for a truncated file, missing parts, duplicate users, inconsistent `num_samples`, rows of different
            lengths, text among numbers, empty clients, or NaN. The message names the file, client and field.

    Example:
        >>> import tempfile
        >>> text = '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1.0], [2.0]], "y": [0, 1]}}}'
        >>> path = Path(tempfile.mkdtemp()) / "toy.json"
        >>> _ = path.write_text(text)
        >>> load_leaf(path)
        ClientData('toy', 1 clients, 2 examples, 2 to 2 each; x: float32[examples, 1], y: int32[examples])

    References:
        Caldas et al., arXiv 1812.01097 (LEAF).
    """
    folder = Source(loader="load_leaf", path=Path(path), allow_empty=allow_empty, allow_nan=allow_nan)
    root = folder.existing(folder=True)
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    if not files:
        raise folder.unreadable("a folder of LEAF's .json files", problem="the folder contains no .json file")
    arrays: dict[str, dict[str, np.ndarray]] = {}
    problems: list[str] = []
    for file in files:
        source = Source(loader="load_leaf", path=file)
        for client, fields in _read(source).items():
            if client in arrays:
                problems.append(f"client {client!r} is in several files; {file.name!r} repeats it")
                continue
            arrays[client] = {}
            for field, rows in fields.items():
                value, wrong = _as_array(rows)
                arrays[client][field] = value
                problems += [f"client {client!r}, field {field!r}: {wrong}"] if wrong else []
    folder.refuse(problems)
    arrays = _one_number_kind(arrays)
    fields = next(iter(arrays.values()), {})
    return folder.checked(arrays, label=guess_label(fields, label))


def _read(source: Source) -> dict[str, dict[str, list[Any]]]:
    form = "LEAF's JSON: an object with `users`, `num_samples` and `user_data`"
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        # JSON allows duplicate keys, and the last one would silently win.
        repeated.extend(key for key, times in Counter(key for key, _ in items).items() if times > 1)
        return dict(items)

    try:
        document = json.loads(source.path.read_text(encoding="utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:  # also raised for integers of 5,000 digits and for deep nesting
        raise source.unreadable(form, problem=f"it is truncated or not a JSON file ({error})") from error
    parts = {"users": list, "num_samples": list, "user_data": dict}
    missing = [
        part
        for part, kind in parts.items()
        if not isinstance(document, dict) or not isinstance(document.get(part), kind)
    ]
    if missing:
        raise source.unreadable(form, problem=f"it lacks {', '.join(f'`{part}`' for part in missing)}")
    users, data = [str(user) for user in document["users"]], document["user_data"]
    problems = [f"client {user!r} is in `users` {times} times" for user, times in Counter(users).items() if times > 1]
    problems += [f"client or field {key!r} appears twice" for key in repeated]
    problems += [f"client {user!r} is in `users` but not in `user_data`" for user in users if user not in data]
    problems += [f"client {user!r} is in `user_data` but not in `users`" for user in data if user not in users]
    if len(users) != len(document["num_samples"]):
        problems.append(f"`num_samples` has {len(document['num_samples'])} numbers for {len(users)} clients")
    for user, fields in data.items():
        if not isinstance(fields, dict) or not all(isinstance(rows, list) for rows in fields.values()):
            problems.append(f"client {user!r} is not an object of lists")
    source.refuse(problems)
    for user, samples in zip(users, document["num_samples"], strict=True):
        for field, rows in data[user].items():
            if len(rows) != samples:
                problems.append(
                    f"client {user!r}, field {field!r}: {len(rows)} examples, but `num_samples` is {samples}"
                )
    source.refuse(problems)
    return {user: data[user] for user in users}


def _as_array(rows: list[Any]) -> tuple[np.ndarray, str | None]:
    try:
        value = np.asarray(rows)
    except ValueError:
        return np.zeros(0), "rows of different lengths"
    leaves = {type(leaf) for leaf in _leaves(rows)}
    if value.dtype == object or (str in leaves and leaves != {str}):
        return value, f"wrong dtype, a mixture of {', '.join(sorted(kind.__name__ for kind in leaves))}"
    if value.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinite values are rejected below, with the client and field
            return value.astype(np.float32), None
    if value.dtype.kind == "i" and (not value.size or (value.min() > -(2**31) and value.max() < 2**31)):
        return value.astype(np.int32), None
    return value, None


def _leaves(rows: object) -> Iterator[object]:
    if isinstance(rows, list):
        for row in rows:
            yield from _leaves(row)
    else:
        yield rows


def _one_number_kind(arrays: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """Casts a field to float for all clients if any client has fractions (JSON may write 1.0 as 1)."""
    kinds: dict[str, set[str]] = {}
    for fields in arrays.values():
        for field, value in fields.items():
            if value.size:
                kinds.setdefault(field, set()).add(value.dtype.str)
    common = {
        field: np.dtype(np.float32) if any(np.dtype(k).kind == "f" for k in dtypes) else np.result_type(*dtypes)
        for field, dtypes in kinds.items()
        if all(np.dtype(k).kind in "if" for k in dtypes)
    }
    shapes = {field: value.shape[1:] for fields in arrays.values() for field, value in fields.items() if value.size}
    return {
        client: {
            field: (value if value.size else np.zeros((len(value), *shapes.get(field, ())))).astype(
                common.get(field, value.dtype)
            )
            for field, value in fields.items()
        }
        for client, fields in arrays.items()
    }
