"""The text behind a `SourceLine`, where reading it is safe.

File names come out of compiled modules and loaded artifacts, so that whoever wrote those chooses them. What is read
ends up in pages that people share. Only modules that this process has imported and cells of its notebook are read:
no other file below the working folder, which may be somebody's home, and no folder whose name begins with a dot.
"""

import contextlib
import functools
import linecache
import os
import re
import stat
import sys
import tokenize
from io import BytesIO
from pathlib import PurePath

_MOST_BYTES = 4 * 2**20
_SUFFIX = ".py"


def read_source_line(file: str, line: int) -> str:
    """One line of source code, without its line break.

    Args:
        file: Name of the file, or of a notebook cell. May be untrusted.
        line: From 1.

    Returns:
        The line; "" where there is none, or where `file` may not be read (see `read_source_lines`).

    Example:
        >>> read_source_line("no such file", 1)
        ''
    """
    lines = read_source_lines(file)
    return lines[line - 1] if 0 < line <= len(lines) else ""


def read_source_lines(file: str) -> tuple[str, ...]:
    """All lines of a notebook cell or of an imported module.

    Args:
        file: Name of the file. May be untrusted.

    Returns:
        The lines without their breaks; () for anything else: other files, files above 4 MiB, devices, pipes, folders,
        and modules in hidden folders.
    """
    if _is_cell(file):
        return tuple(line.rstrip("\n") for line in linecache.getlines(file))
    try:
        path = os.path.realpath(file)
        if not _may_be_read(path):
            return ()
        found = os.stat(path)  # noqa: PTH116 -- `Path.stat` would resolve the name again
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return ()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        return ()
    return _read(path, found.st_mtime_ns, found.st_size)


def _may_be_read(path: str) -> bool:
    return path.endswith(_SUFFIX) and path in _imported() and not _is_hidden(path)


def _is_cell(file: str) -> bool:
    """Returns whether code was run under this name that no file holds: a cell, a doctest."""
    entry = linecache.cache.get(file)
    return entry is not None and (len(entry) == 1 or entry[1] is None or cell_name(file) is not None)


def _is_hidden(path: str) -> bool:
    """Returns whether a hidden folder is on the path below the import folder; `.venv/…/site-packages` is not."""
    roots = [os.path.join(_real(root), "") for root in sys.path if os.path.isabs(root)]  # noqa: PTH117, PTH118
    with contextlib.suppress(FileNotFoundError):  # a working folder that somebody has removed
        roots.append(os.path.join(os.path.realpath(os.curdir), ""))  # noqa: PTH118
    inside = max((root for root in roots if path.startswith(root)), key=len, default="")
    return any(part.startswith(".") for part in PurePath(path[len(inside) :]).parts)


def _imported() -> set[str]:
    """The source files of all modules of this process, as real paths."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {_real(file) for file in files if isinstance(file, str) and file.endswith(_SUFFIX)}


@functools.lru_cache(maxsize=8192)
def _real(file: str) -> str:
    return os.path.realpath(file)


@functools.lru_cache(maxsize=64)
def _read(path: str, changed: int, size: int) -> tuple[str, ...]:
    """The lines of a regular file; `changed` and `size` make a new reading where the file has changed."""
    del changed
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # exchanged for a pipe in the meantime
                return ()
            content = opened.read(min(size, _MOST_BYTES) + 1)
        encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
        text = content.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        return tuple(text.split("\n"))  # as Python counts lines: `splitlines` also breaks at form feeds
    except (OSError, SyntaxError, LookupError):
        return ()


def cell_name(file: str) -> str | None:
    """A notebook's cell by its number, `In [3]`; None for files, and for cells of another kernel.

    Example:
        >>> cell_name("<ipython-input-3-8f1c>"), cell_name("fedavg.py")
        ('In [3]', None)
    """
    if match := re.match(r"<ipython-input-(\d+)-", file):
        return f"In [{match[1]}]"
    if "ipykernel_" not in file:
        return None
    # IPython knows which cell it compiled under which name; where it was never imported there are no cells.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    describe = getattr(getattr(shell, "compile", None), "format_code_name", None)
    described = describe(file) if describe is not None else None
    number = re.search(r"\d+", described[1]) if described else None
    return f"In [{number[0]}]" if number else None
