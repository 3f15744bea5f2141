"""Accesses files and folders by path or by fsspec address, such as "s3://bucket/tmp"."""

import contextlib
import re
import secrets
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Removes a folder with its contents, if it exists."""
    with contextlib.suppress(Exception):
        if (system := getattr(path, "fs", None)) is None:
            shutil.rmtree(path)
        else:
            system.rm(path.path, recursive=True)  # pyright: ignore[reportAttributeAccessIssue]
