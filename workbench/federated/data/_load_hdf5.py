"""TensorFlow Federated's HDF5 files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench._open_types import Foreign
from workbench.errors import DataError, MissingDependencyError
from workbench.federated.data._checks import show_ids
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._files import Source, guess_label


def load_tff_hdf5(
    path: str | Path,
    *,
    clients: int | Sequence[str] | None = None,
    label: str | None = "auto",
    allow_empty: bool = False,
    allow_nan: bool = False,
) -> ClientData:
    """Reads TensorFlow Federated's client data: HDF5 with `examples/<client>/<field>`.

    TensorFlow Federated's EMNIST, CIFAR-100 and Shakespeare data sets use these files. Needs the extra `data`.

    Args:
        path: The `.h5` file.
        clients: Ids to read, or N to read the first N clients; all by default.
        label: The field with the classes. "auto" uses `label` or another common name if present; None for no label.
        allow_empty: Whether to accept clients without examples.
        allow_nan: Whether to accept NaN.

    Returns:
        The clients in the file's (sorted) order, or in the order of `clients`. Text is returned as numpy strings.

    Raises:
        DataError: for a truncated file, a missing group `examples`, unknown clients, missing fields, ragged clients,
            differing dtypes or shapes, empty clients, or NaN. The message names the file, client and field.
        MissingDependencyError: if h5py is not installed.

    Example:
        >>> load_tff_hdf5("emnist.h5")  # doctest: +SKIP
        ClientData('emnist', 3383 clients, ...; label: int32[examples], pixels: float32[examples, 28, 28])

    References:
        tensorflow_federated, `simulation.datasets`, its HDF5 layout.
    """
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as missing:
        raise MissingDependencyError("h5py", extra="data", needed_for="`load_tff_hdf5`") from missing
    source = Source(loader="load_tff_hdf5", path=Path(path), allow_empty=allow_empty, allow_nan=allow_nan)
    form = "an HDF5 file with a group `examples` that contains one group per client"
    try:
        file = h5py.File(source.existing(), "r")
    except OSError as error:
        raise source.unreadable(form, problem=f"it is truncated or not an HDF5 file ({error})") from error
    try:
        return _load(source, file, form, clients, label)
    except DataError:
        raise
    except Exception as error:  # for damaged files h5py raises RuntimeError, KeyError, ValueError and others
        raise source.unreadable(form, problem=f"it is damaged ({type(error).__name__}: {error})") from error


def _load(
    source: Source, file: Foreign, form: str, clients: int | Sequence[str] | None, label: str | None
) -> ClientData:
    import h5py  # pyright: ignore[reportMissingImports]

    with file:
        _refuse_links(source, file, ["examples"])
        examples = file.get("examples")
        if not isinstance(examples, h5py.Group):
            raise source.unreadable(form, problem=f"it contains no group `examples`, only {show_ids(file)}")
        chosen = _choose(source, list(examples), clients)
        _refuse_links(source, examples, chosen)
        groups: dict[str, Any] = {client: examples[client] for client in chosen}
        problems = [f"client {c!r} is not a group" for c, group in groups.items() if not isinstance(group, h5py.Group)]
        source.refuse(problems)
        arrays: dict[str, dict[str, np.ndarray]] = {client: {} for client in chosen}
        for client, group in groups.items():
            _refuse_links(source, group, list(group))
            for field, dataset in group.items():
                if wrong := _outside(dataset):
                    problems.append(f"client {client!r}, field {field!r}: {wrong}")
                    continue
                try:
                    arrays[client][field] = _read(dataset)
                except Exception as error:
                    problems.append(f"client {client!r}, field {field!r}: cannot be read ({error})")
        source.refuse(problems)
    return source.checked(arrays, label=guess_label(next(iter(arrays.values()), {}), label))


_MOST_PACKED = 1100  # deflate compresses at most 1,032 bytes into one byte
_SMALL_BYTES = 64 * 2**20


def _refuse_links(source: Source, group: Foreign, names: Sequence[str]) -> None:
    """Rejects external links, through which an untrusted file could include other files of this machine."""
    import h5py  # pyright: ignore[reportMissingImports]

    linked = [name for name in names if isinstance(group.get(name, getlink=True), h5py.ExternalLink)]
    source.refuse(f"{name!r} of {group.name!r} is a link into another file" for name in linked)


def _outside(dataset: Foreign) -> str:
    """Returns the reason to reject a dataset (external or missing numbers), or ""."""
    import h5py  # pyright: ignore[reportMissingImports]

    if not isinstance(dataset, h5py.Dataset):
        return "cannot be read: it is not a dataset"
    if dataset.external or dataset.is_virtual:
        return "its values are in another file"
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > _SMALL_BYTES and dataset.nbytes > stored * _MOST_PACKED:
        return f"declares {dataset.nbytes} bytes but stores {stored}"
    return ""


def _choose(source: Source, there: list[str], clients: int | Sequence[str] | None) -> list[str]:
    if clients is None:
        return there
    if isinstance(clients, int):
        if 1 <= clients <= len(there):
            return there[:clients]
        message = (
            f"{source} was asked for {clients} clients but contains only {len(there)}: use 1 to {len(there)}, or None."
        )
        raise DataError(message)
    unknown = [client for client in clients if client not in there]
    if unknown:
        message = (
            f"{source} was asked for {show_ids(unknown)}, which the file does not contain. The clients in the file are "
            f"{show_ids(there)}."
        )
        raise DataError(message)
    return list(clients)


def _read(dataset: Foreign) -> np.ndarray:
    import h5py  # pyright: ignore[reportMissingImports]

    if h5py.check_string_dtype(dataset.dtype):
        # h5py stores Python bytes as "ascii" for any content; UTF-8 decodes both.
        return np.asarray(dataset.asstr("utf-8")[...], dtype=np.str_)
    return np.asarray(dataset[...])
