"""Client data from a folder with one file per client."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from workbench.errors import DataError
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._files import Source, guess_label
from workbench.federated.data._load_npz import read_npz


def load_folder(
    folder: str | Path,
    pattern: str = "*.npz",
    *,
    read: Callable[[Path], Mapping[str, ArrayLike]] | None = None,
    client: Callable[[Path], str] | None = None,
    label: str | None = "auto",
    allow_empty: bool = False,
    allow_nan: bool = False,
) -> ClientData:
    """Reads client data from a folder with one file per client.

    All clients are kept in the host's memory without padding; `pad_clients` and `cohorts` pad them. For larger data,
    see `engines.ClientReader`.

    Args:
        folder: The folder.
        pattern: Pattern for the files, as in `Path.glob`, such as `"*.npz"` or `"**/*.csv"`.
        read: Function of a path that returns fields, each `[examples, *shape]`. Default: reads the arrays of a `.npz`
            archive without executing code.
        client: Function of a path that returns the client's id. Default: the path inside the folder without its
            extension, such as `site/3`.
        label: The field with the classes. "auto" uses `y` or another common name if present; None for no label.
        allow_empty: Whether to accept clients without examples.
        allow_nan: Whether to accept NaN.

    Returns:
        The clients, sorted by path.

    Raises:
        DataError: if the folder or its files do not exist, if two files have the same id, if a file cannot be read, or
            for any reason listed in `load_npz`. The message names the file, the client and the field.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, count in (("north", 3), ("south", 1)):
        ...     np.savez(folder / f"{name}.npz", x=np.ones((count, 2)), y=np.zeros(count, int))
        >>> data = load_folder(folder)
        >>> data.clients, data.counts.tolist(), data.label
        (('north', 'south'), [3, 1], 'y')
    """
    place = Path(folder).expanduser()
    source = Source(loader="load_folder", path=place, allow_empty=allow_empty, allow_nan=allow_nan)
    if not place.is_dir():
        fault = "is a file" if place.exists() else "does not exist"
        message = (
            f"{source}: the path {fault}. `load_folder` reads a folder with one file per client: pass an existing "
            "folder."
        )
        raise DataError(message)
    paths = sorted(path for path in place.glob(pattern) if path.is_file())
    if not paths:
        message = (
            f"{source}: no file matches {pattern!r}. Every client is one file: pass a pattern of file names, such "
            'as "*.npz" or "**/*.csv".'
        )
        raise DataError(message)
    arrays: dict[str, dict[str, np.ndarray]] = {}
    problems = []
    for path in paths:
        name = client(path) if client is not None else path.relative_to(place).with_suffix("").as_posix()
        if name in arrays:
            problems.append(f"client {name!r} has a second file, {path.name!r}")
            continue
        arrays[name] = _fields(path, read)
    return source.checked(arrays, label=guess_label(next(iter(arrays.values())), label), problems=problems)


def _fields(path: Path, read: Callable[[Path], Mapping[str, ArrayLike]] | None) -> dict[str, np.ndarray]:
    source = Source(loader="load_folder", path=path)
    if read is None:
        return read_npz(source, "a .npz archive with one array per field")
    try:
        fields = {str(field): np.asarray(value) for field, value in dict(read(path)).items()}
    except Exception as error:  # the user's own function, on a file of any kind
        message = (
            f"{source}: `read` failed ({type(error).__name__}: {error}). `read` receives the path of one client's file "
            "and must return a dictionary of arrays, one row per example."
        )
        raise DataError(message) from error
    return fields
