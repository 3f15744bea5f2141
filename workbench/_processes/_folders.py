"""Temporary folders that are removed when this process exits or is killed."""

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from workbench._processes import _remover
from workbench._processes._child import ChildProcess

_lock = threading.Lock()
_removers: list[ChildProcess] = []  # one remover while paths are registered


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """Creates a private folder that is removed after the block, even if this process is killed."""
    folder = make_folder(prefix, parent)
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder(prefix: str, parent: str | Path | None = None) -> Path:
    """Creates a private folder, removed by `remove_folder` or when this process exits."""
    folder = Path(parent or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(4)}"
    remove_with_this_process(folder)  # register first: this process may be killed in between
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Removes a folder created by `make_folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    is_removed(folder)


def remove_with_this_process(path: Path) -> None:
    """Registers a folder or file for removal if this process is killed."""
    _say("+", path)


def end_users_with_this_process(folder: Path) -> None:
    """Registers a Ray session's folder and (on Linux) cluster for removal if this process is killed."""
    _say("!", folder)


def is_removed(path: Path) -> None:
    """Unregisters a folder or a file."""
    _say("-", path)


def _say(change: str, path: Path) -> None:
    with _lock:
        if change != "-" and not (_removers and _removers[0].running):
            _removers[:] = [ChildProcess([sys.executable, "-I", "-S", _remover.__file__])]
        for remover in _removers:
            with contextlib.suppress(OSError, ValueError):  # the remover has exited, as it does at exit
                remover.stdin.write(os.fsencode(f"{change}{path.resolve()}\n"))
                remover.stdin.flush()


def _forget() -> None:
    """Closes the remover's pipe in a forked copy, so that the remover does not wait for it."""
    global _lock
    _lock = threading.Lock()
    for remover in _removers:
        remover.forget_after_fork()
    _removers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
