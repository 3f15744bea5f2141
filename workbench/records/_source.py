"""Source files: safely reads the text at a `SourceLine`, shortens names, and finds libraries.

File names come from compiled modules and loaded artifacts, whose author can choose any name. The text is included in
pages that people share. Therefore, only modules that this process has imported and cells in its notebook are read.
Folders whose name starts with a dot, and other files below the working folder (which may be a home folder), are never
read.
"""

import contextlib
import functools
import linecache
import os
import re
import site
import stat
import sys
import sysconfig
import tokenize
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path, PurePath
from typing import TypeVar, cast

_MOST_BYTES = 4 * 2**20
_SUFFIX = ".py"


def read_source_line(file: str, line: int) -> str:
    """Returns one line of source code, without its line break.

    Args:
        file: Name of the file, or of a notebook cell. May be untrusted.
        line: Number of the line, from 1.

    Returns:
        The line; "" if it does not exist, or if `file` may not be read (see `read_source_lines`).

    Example:
        >>> read_source_line("no such file", 1)
        ''
    """
    lines = read_source_lines(file)
    return lines[line - 1] if 0 < line <= len(lines) else ""


def read_source_lines(file: str) -> tuple[str, ...]:
    """Returns all lines of a notebook cell or of an imported module.

    Args:
        file: Name of the file. May be untrusted.

    Returns:
        The lines without line breaks. () for everything else: other files, files above 4 MiB, devices, pipes, folders,
        and modules in hidden folders.
    """
    if (cell := _numbered_cell(file)) is not None:
        return cell
    if _is_cell(file):
        return tuple(line.rstrip("\n") for line in linecache.getlines(file))
    try:
        path = os.path.realpath(file)
        if not (path.endswith(_SUFFIX) and path in _imported() and not _is_hidden(path)):
            return ()
        status = os.stat(path)  # noqa: PTH116 -- `Path.stat` would resolve the name again
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return ()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        return ()
    return _read(path, status.st_mtime_ns, status.st_size)


def _numbered_cell(file: str) -> tuple[str, ...] | None:
    """The lines of a notebook cell, given its number, such as "In [3]"; None for files."""
    match = re.fullmatch(r"In \[(\d+)\]", file)
    shell = sys.modules["IPython"].get_ipython() if match is not None and "IPython" in sys.modules else None
    if match is None or shell is None:
        return None
    cells, number = shell.user_ns.get("In", []), int(match[1])
    return tuple(cells[number].splitlines()) if number < len(cells) else None


def _is_cell(file: str) -> bool:
    """Returns whether code without a file, such as a cell or a doctest, was run under this name."""
    entry = linecache.cache.get(file)
    return entry is not None and (len(entry) == 1 or entry[1] is None or cell_name(file) is not None)


def _is_hidden(path: str) -> bool:
    """Returns whether a hidden folder is below the import folder; `.venv` above the import folder does not count."""
    roots = [os.path.join(_real(root), "") for root in sys.path if os.path.isabs(root)]  # noqa: PTH117, PTH118
    with contextlib.suppress(FileNotFoundError):  # the working folder has been removed
        roots.append(os.path.join(os.path.realpath(os.curdir), ""))  # noqa: PTH118
    inside = max((root for root in roots if path.startswith(root)), key=len, default="")
    return any(part.startswith(".") for part in PurePath(path[len(inside) :]).parts)


def _imported() -> set[str]:
    """The source files of all modules in this process, as real paths."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {_real(file) for file in files if isinstance(file, str) and file.endswith(_SUFFIX)}


@functools.lru_cache(maxsize=8192)
def _real(file: str) -> str:
    return os.path.realpath(file)


@functools.lru_cache(maxsize=64)
def _read(path: str, changed: int, size: int) -> tuple[str, ...]:
    """The lines of a regular file, cached by modification time and size."""
    del changed
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced by a pipe in the meantime
                return ()
            content = opened.read(min(size, _MOST_BYTES) + 1)
        encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
        text = content.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        return tuple(text.split("\n"))  # lines as Python counts them: `splitlines` also breaks at form feeds
    except (OSError, SyntaxError, LookupError):
        return ()


def cell_name(file: str) -> str | None:
    """Names a notebook cell by number, `In [3]`; None for files and for cells of other kernels.

    Example:
        >>> cell_name("<ipython-input-3-8f1c>"), cell_name("fedavg.py")
        ('In [3]', None)
    """
    if match := re.match(r"<ipython-input-(\d+)-", file):
        return f"In [{match[1]}]"
    if "ipykernel_" not in file:
        return None
    # IPython knows the file name of each compiled cell; if IPython was never imported, there are no cells.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    describe = getattr(getattr(shell, "compile", None), "format_code_name", None)
    described = describe(file) if describe is not None else None
    number = re.search(r"\d+", described[1]) if described else None
    return f"In [{number[0]}]" if number else None


Value = TypeVar("Value")

_REST = r"(?=[^\"'\n<>]*?\.pyi?\b)"  # of a source file's name
_ABSOLUTE = re.compile(
    r"(?<![\w.~\\/-])(?:[A-Za-z]:)?[\\/](?:[^\s\"'<>:|*?\\/]+[\\/])*?"
    r"((?:ipykernel_\d+[\\/])?[^\s\"'<>:|*?\\/]+\.pyi?)(?![\w\\/])"
)


def shorten_paths(value: Value) -> Value:
    """Shortens the names of Python files in a value, so that it can be shared.

    Args:
        value: Text, or mappings, lists and tuples of text; keys are also shortened, and other values are left
            unchanged.

    Returns: The value. Absolute names of `.py` files become relative to the nearest of the working folder, the import
        folders and the home folder (`~/`). A file in none of these folders keeps only its name.

    Example:
        >>> shorten_paths({"line": "/opt/secret/project/train.py:12"})
        {'line': 'train.py:12'}
    """
    return cast(
        Value,
        _shorten(value, *_patterns(_working_folder(), tuple(entry for entry in sys.path if isinstance(entry, str)))),
    )


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:  # it has been removed
        return ""


def folders_pattern() -> str:
    """A regular expression for the prefixes that `shorten_paths` removes from file names."""
    folders = _folders(_working_folder(), tuple(entry for entry in sys.path if isinstance(entry, str)))
    prefixes = "|".join(re.escape(folder) for folder in [*folders, _home()] if folder)
    return rf"^(?:{prefixes})[\\/]|^.*[\\/](?=ipykernel_\d+[\\/])|^(?![^\\/]*ipykernel_\d+[\\/]).*[\\/]"


def _shorten(value: object, prefixes: "re.Pattern[str]", home: "re.Pattern[str] | None") -> object:
    if isinstance(value, str):
        if ".py" not in value or ("/" not in value and "\\" not in value):
            return value
        value = prefixes.sub("", value)
        if home is not None:
            value = home.sub("~/", value)
        return _ABSOLUTE.sub(r"\1", value)
    if isinstance(value, Mapping):
        return {_shorten(key, prefixes, home): _shorten(item, prefixes, home) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten(item, prefixes, home) for item in value]
    return value


@functools.lru_cache(8)
def _patterns(here: str, path: tuple[str, ...]) -> tuple["re.Pattern[str]", "re.Pattern[str] | None"]:
    prefixes = "|".join(re.escape(folder) for folder in _folders(here, path))
    home = _home()
    return (
        re.compile(rf"(?:{prefixes})[\\/]+{_REST}"),
        re.compile(rf"{re.escape(home)}[\\/]+{_REST}") if home else None,
    )


def _folders(here: str, path: tuple[str, ...]) -> list[str]:
    """Folders that are removed from file names, deepest first, each also as a real path."""
    folders = {here, *path, *sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    folders |= {os.path.realpath(folder) for folder in folders if os.path.isabs(folder) or here}  # noqa: PTH117
    absolute = {folder.rstrip("\\/") for folder in folders if os.path.isabs(folder)}  # noqa: PTH117
    return sorted((folder for folder in absolute if len(folder) > 1), key=len, reverse=True)


def _home() -> str:
    try:
        home = str(Path.home())
    except RuntimeError:  # a user without a home folder, as in some containers
        return ""
    return home if len(home) > 1 else ""


_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_OURS = str(Path(__file__).resolve().parents[1]) + "/"
_TAUGHT = (_OURS + "federated/", _OURS + "cli/")  # programs shipped with the package count as user programs
_STANDARD = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})


@functools.lru_cache(maxsize=4096)
def package_of(file: str) -> str | None:
    """The library of a file; None for user files.

    Example:
        >>> package_of("/venv/lib/python3.11/site-packages/optax/_src/base.py"), package_of("/project/train.py")
        ('optax', None)
    """
    if file.startswith(_TAUGHT):  # also where the package is installed in site-packages
        return None
    if file.startswith(_OURS):
        return "workbench"
    match = _PACKAGE.search(file)
    if match is not None:
        return match[1]
    if "/jax/_src/" in file:  # a checkout
        return "jax"
    if file.startswith(_STANDARD) or file.startswith("<frozen "):
        return "python"
    for folder in sys.path:  # as filled by `pip install --target`
        name = file.removeprefix(folder.rstrip("/") + "/").partition("/")[0] if folder else ""
        if name and file.startswith(folder) and name in _installed_in(folder):
            return name.removesuffix(".py")
    return None


@functools.lru_cache(maxsize=256)
def _installed_in(folder: str) -> frozenset[str]:
    """Top-level packages and modules that installers recorded in a folder."""
    names = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            names.update(re.findall(r"^([^/,]+)(?:/|,)", record.read_text(encoding="utf-8"), re.MULTILINE))
    return frozenset(names)
