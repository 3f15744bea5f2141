"""Names of source files without the folders of the machine that they lie on, for what people hand on."""

import functools
import os
import re
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

Value = TypeVar("Value")

_REST = r"(?=[^\"'\n<>]*?\.pyi?\b)"  # of a source file's name
_ABSOLUTE = re.compile(
    r"(?<![\w.~\\/-])(?:[A-Za-z]:)?[\\/](?:[^\s\"'<>:|*?\\/]+[\\/])*?"
    r"((?:ipykernel_\d+[\\/])?[^\s\"'<>:|*?\\/]+\.pyi?)(?![\w\\/])"
)


def shorten_paths(value: Value) -> Value:
    """The value with the names of Python files as somebody else may read them.

    Args:
        value: Text, or mappings, lists and tuples of it; keys are shortened too, anything else is kept.

    Returns:
        Text in which absolute names of `.py` files are relative to the working folder, to a folder that Python imports
        from, or to the home folder (`~/`), whichever is the nearest; of other files the name without folders is left.

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
    except FileNotFoundError:  # somebody has removed it
        return ""


def folders_pattern() -> str:
    """A regular expression of what `shorten_paths` takes away from the beginning of a file's name."""
    folders = _folders(_working_folder(), tuple(entry for entry in sys.path if isinstance(entry, str)))
    known = "|".join(re.escape(folder) for folder in [*folders, _home()] if folder)
    return rf"^(?:{known})[\\/]|^.*[\\/](?=ipykernel_\d+[\\/])|^(?![^\\/]*ipykernel_\d+[\\/]).*[\\/]"


def _shorten(value: object, known: "re.Pattern[str]", home: "re.Pattern[str] | None") -> object:
    if isinstance(value, str):
        if ".py" not in value or ("/" not in value and "\\" not in value):
            return value
        value = known.sub("", value)
        if home is not None:
            value = home.sub("~/", value)
        return _ABSOLUTE.sub(r"\1", value)
    if isinstance(value, Mapping):
        return {_shorten(key, known, home): _shorten(item, known, home) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten(item, known, home) for item in value]
    return value


@functools.lru_cache(8)
def _patterns(here: str, path: tuple[str, ...]) -> tuple["re.Pattern[str]", "re.Pattern[str] | None"]:
    known = "|".join(re.escape(folder) for folder in _folders(here, path))
    home = _home()
    return (
        re.compile(rf"(?:{known})[\\/]+{_REST}"),
        re.compile(rf"{re.escape(home)}[\\/]+{_REST}") if home else None,
    )


def _folders(here: str, path: tuple[str, ...]) -> list[str]:
    """Folders whose files are named without them, the deepest first, each also as a real path."""
    found = {here, *path, *sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    found |= {os.path.realpath(folder) for folder in found if os.path.isabs(folder) or here}  # noqa: PTH117
    absolute = {folder.rstrip("\\/") for folder in found if os.path.isabs(folder)}  # noqa: PTH117
    return sorted((folder for folder in absolute if len(folder) > 1), key=len, reverse=True)


def _home() -> str:
    try:
        home = str(Path.home())
    except RuntimeError:  # a user without one, as in some containers
        return ""
    return home if len(home) > 1 else ""
