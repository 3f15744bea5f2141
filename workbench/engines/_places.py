"""Accesses files and folders by path or by fsspec address, such as "s3://bucket/tmp"."""

import contextlib
import json
import re
import secrets
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench._processes import temporary_folder
from workbench.errors import needs_library


def place(path: str | Path) -> Path:
    """Returns a path on this machine, or a path-like object for an fsspec address."""
    address = re.match(r"([a-z][a-z0-9+.-]+):/", str(path))  # a drive has one letter
    if address is None:
        return Path(path)
    if address[1] == "file":
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(str(path)).path))
    with needs_library("universal-pathlib", needed_for=f"The address {str(path)!r}", extra="storage"):
        from upath import UPath  # pyright: ignore[reportMissingImports]
    return UPath(str(path), use_listings_cache=False)  # other processes may also write there


def for_arrow(path: Path) -> dict[str, Any]:
    """Returns the path and its file system, in the form that pyarrow functions accept."""
    system = getattr(path, "fs", None)
    return {"source": path if system is None else path.path, "filesystem": system}  # pyright: ignore


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """Opens a file for writing; the file receives its final name only once it is complete."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with part.open("wb") as file:
        yield file
    if (system := getattr(path, "fs", None)) is None:
        part.replace(path)
    else:
        system.mv(part.path, path.path)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: str | Path | None) -> Iterator[Path]:
    """Creates a `temporary_folder` in any file system.

    Outside the local file system, the folder of a killed process is not removed.
    """
    at = None if parent is None else place(parent)
    if at is None or not hasattr(at, "fs"):
        with temporary_folder(prefix, at) as folder:
            yield folder
        return
    folder = at / f"{prefix}{secrets.token_hex(4)}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        remove_tree(folder)


def remove_tree(path: Path) -> None:
    with contextlib.suppress(Exception):
        if (system := getattr(path, "fs", None)) is None:
            shutil.rmtree(path)
        else:
            system.rm(path.path, recursive=True)  # pyright: ignore[reportAttributeAccessIssue]


def load_arrays(path: str | Path) -> list[np.ndarray]:
    """Reads the arrays in a file, in order.

    If numpy's format cannot store an array's dtype, the array was saved as bytes, with the dtype's name.
    """
    with place(path).open("rb") as data, np.load(data, allow_pickle=False) as file:
        names = json.loads(str(file["names"]))
        return [file[f"x{i}"].view(np.dtype(name)) if name else file[f"x{i}"] for i, name in enumerate(names)]


def save_arrays(path: str | Path, arrays: Sequence[Any]) -> None:
    """Writes arrays to one file, which receives its final name only once it is complete."""
    typed = [np.asarray(x) for x in arrays]
    names = [x.dtype.name if x.dtype.kind == "V" or x.dtype.name.startswith("float8") else "" for x in typed]
    plain = [x.view(f"u{x.dtype.itemsize}") if name else x for name, x in zip(names, typed, strict=True)]
    with whole_file(place(path)) as file:
        np.savez(file, names=json.dumps(names), **{f"x{i}": x for i, x in enumerate(plain)})  # pyright: ignore[reportArgumentType]
