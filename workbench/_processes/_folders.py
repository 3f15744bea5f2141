"""Temporary folders that are removed with this process, also when it is killed."""

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
_removers: list[ChildProcess] = []  # one, as long as something is to be removed


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """A folder for this user alone, removed afterwards, and by another process if this one is killed.

    Args:
        prefix: What its name begins with.
        parent: The folder in which it is made; None: the system's.
    """
    folder = make_folder(prefix, parent)
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_folder(prefix: str, parent: str | Path | None = None) -> Path:
    """A folder for this user alone, for whoever cannot use a block: `remove_folder` removes it, a killed process too.

    Args:
        prefix: What its name begins with.
        parent: The folder in which it is made; None: the system's.
    """
    folder = Path(parent or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(4)}"
    remove_with_this_process(folder)  # before it is made: this process may be killed between the two
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Removes a folder of `make_folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    is_removed(folder)


def remove_with_this_process(path: Path) -> None:
    """Has a folder or a file removed when this process ends without doing it, as by `kill -9`."""
    _say("+", path)


def end_users_with_this_process(folder: Path) -> None:
    """Has a Ray session's folder removed when this process is killed, and its cluster ended first (on Linux)."""
    _say("!", folder)


def is_removed(path: Path) -> None:
    """Says that a folder or a file needs no more care."""
    _say("-", path)


def _say(change: str, path: Path) -> None:
    with _lock:
        if change != "-" and not (_removers and _removers[0].running):
            _removers[:] = [ChildProcess([sys.executable, "-I", "-S", _remover.__file__])]
        for remover in _removers:
            with contextlib.suppress(OSError, ValueError):  # it was ended, as at exit: only its owner removes a folder
                remover.stdin.write(os.fsencode(f"{change}{path.resolve()}\n"))
                remover.stdin.flush()


def _forget() -> None:
    """In a forked copy of this process, whose open pipe would keep the remover waiting."""
    global _lock
    _lock = threading.Lock()
    for remover in _removers:
        remover.forget_after_fork()
    _removers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
