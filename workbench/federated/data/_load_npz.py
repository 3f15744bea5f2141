"""numpy's own archives."""

from collections import Counter
from pathlib import Path

import numpy as np

from workbench.federated.data._client_data import ClientData
from workbench.federated.data._files import Source, guess_label
from workbench.federated.data._partition import by_natural_id

_FORM = (
    "a .npz archive of arrays named `client/field`, or of arrays with one row per example, including an array with the "
    "client of each row"
)


def load_npz(
    path: str | Path,
    *,
    client: str = "client",
    label: str | None = "auto",
    allow_empty: bool = False,
    allow_nan: bool = False,
) -> ClientData:
    """Reads client data from a numpy archive without executing code (`allow_pickle=False`).

    Args:
        path: The `.npz` file. The archive contains either arrays named `<client>/<field>`, or arrays with one row per
            example and the array `client`, which contains each row's client.
        client: Name of the array that contains each row's client.
        label: The field with the classes. "auto" uses `y` or another common name if present; None for no label.
        allow_empty: Whether to accept clients without examples.
        allow_nan: Whether to accept NaN.

    Returns:
        The clients in the archive's order, or in sorted order if each row names its client.

    Raises:
        DataError: for a truncated file, names without a client, an array of Python objects, duplicate fields of a
            client, or any reason listed in `load_leaf`. The message names the file, client and field.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "toy.npz"
        >>> np.savez(path, client=np.array(["b", "a", "b"]), x=np.array([1.0, 2.0, 3.0]))
        >>> load_npz(path)["b"]["x"].tolist()
        [1.0, 3.0]
    """
    source = Source(loader="load_npz", path=Path(path), allow_empty=allow_empty, allow_nan=allow_nan)
    arrays = read_npz(source)
    if client in arrays:
        return _by_rows(source, arrays, client, label)
    nameless = [name for name in arrays if "/" not in name]
    if nameless or not arrays:
        names = ", ".join(map(repr, nameless[:5])) or "nothing"
        raise source.unreadable(
            _FORM, problem=f"it contains {names}, but no array {client!r} with the client of each row"
        )
    client_arrays: dict[str, dict[str, np.ndarray]] = {}
    for name, value in arrays.items():
        owner, _, field = name.rpartition("/")
        client_arrays.setdefault(owner, {})[field] = value
    return source.checked(client_arrays, label=guess_label(next(iter(client_arrays.values())), label))


def _by_rows(source: Source, arrays: dict[str, np.ndarray], client: str, label: str | None) -> ClientData:
    owners = arrays.pop(client)
    if owners.ndim != 1 or owners.dtype.kind not in "iuUS" or not owners.size or not arrays:
        raise source.unreadable(
            _FORM,
            problem=f"its array {client!r} has dtype {owners.dtype} and shape {owners.shape}; "
            f"the file has {len(arrays)} field(s)",
        )
    rows = {field: value.shape[0] if value.ndim else None for field, value in arrays.items()}
    source.refuse(
        f"field {field!r} has {length} rows, but {client!r} names the clients of {len(owners)} rows"
        for field, length in rows.items()
        if length != len(owners)
    )
    partition = by_natural_id(owners)
    client_arrays = {
        owner: {field: value[rows] for field, value in arrays.items()}
        for owner, rows in zip(partition.clients, partition.rows, strict=True)
    }
    return source.checked(client_arrays, label=guess_label(arrays, label))


def read_npz(source: Source, form: str = _FORM) -> dict[str, np.ndarray]:
    """Reads the arrays of an archive, keyed by name, without executing code."""
    # numpy does not close a file that it opened itself and that turns out to be damaged.
    with source.existing().open("rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
        except Exception as error:  # numpy and zipfile raise many types of errors for a damaged file
            raise source.unreadable(form, problem=f"it is truncated or not an .npz file ({error})") from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise source.unreadable(form, problem="it contains a single array (.npy)")
        with loaded:
            return _read_members(source, loaded)


def _read_members(source: Source, loaded: np.lib.npyio.NpzFile) -> dict[str, np.ndarray]:
    source.refuse(f"{_name(n)} appears {times} times" for n, times in Counter(loaded.files).items() if times > 1)
    arrays: dict[str, np.ndarray] = {}
    problems = []
    for name in loaded.files:
        try:
            arrays[name] = loaded[name]
        except MemoryError:
            problems.append(f"{_name(name)}: declares more values than fit into the memory of this machine")
        except Exception as error:  # encrypted, damaged, Python objects
            problems.append(f"{_name(name)}: cannot be read ({str(error).rstrip('.')})")
    source.refuse(problems)
    return arrays


def _name(name: str) -> str:
    owner, slash, field = name.rpartition("/")
    return f"client {owner!r}, field {field!r}" if slash else f"field {name!r}"
