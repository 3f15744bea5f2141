"""Files and folders by their path, or by their address in another file system, such as "s3://bucket/tmp"."""

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
    """A path of this machine, or what has its methods for an address that fsspec knows.

    Raises:
        ImportError: if a package for the address is missing; `MissingDependencyError` for the first one.
        ValueError: if fsspec does not know such addresses.
    """
    address = re.match(r"([a-z][a-z0-9+.-]+):/", str(path))  # a drive has one letter
    if address is None:
        return Path(path)
    if address[1] == "file":
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(str(path)).path))
    with needs_library("universal-pathlib", needed_for=f"The address {str(path)!r}", extra="storage"):
        from upath import UPath  # pyright: ignore[reportMissingImports]
    return UPath(str(path), use_listings_cache=False)  # other processes write there


def for_arrow(path: Path) -> dict[str, Any]:
    """The path and its file system, as functions of pyarrow take them."""
    system = getattr(path, "fs", None)
    return {"source": path if system is None else path.path, "filesystem": system}  # pyright: ignore


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """A file to be written, which appears under its name when it is whole."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with part.open("wb") as file:
        yield file
    if (system := getattr(path, "fs", None)) is None:
        part.replace(path)
    else:
        system.mv(part.path, path.path)  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: str | Path | None) -> Iterator[Path]:
    """As `temporary_folder`, in any file system. In another one the folder of a killed process stays."""
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
    """Removes a folder with what is in it, if it is there."""
    with contextlib.suppress(Exception):
        if (system := getattr(path, "fs", None)) is None:
            shutil.rmtree(path)
        else:
            system.rm(path.path, recursive=True)  # pyright: ignore[reportAttributeAccessIssue]
