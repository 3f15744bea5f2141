"""Atomic file writes, which keep the old file until the new file is complete."""

import contextlib
import functools
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_whole(path: str | os.PathLike[str], content: bytes | str | Callable[[IO[bytes]], Any]) -> None:
    """Writes a file atomically, so that the old file survives a full disk or a killed process.

    Args:
        path: The target. The file is written next to the target and then moved. Symbolic links are followed; devices
            and pipes are written directly, because they cannot be replaced.
        content: Bytes, text (as UTF-8), or a function that writes into the opened file.

    Raises:
        OSError: if the file cannot be written; the old file is then unchanged.
    """
    place = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(place.stat().st_mode):
            with place.open("wb") as opened:
                _write(opened, content)
            return
    name = place.with_name(f".{place.name[:100]}.{secrets.token_hex(8)}.part")
    # The system applies the umask, which cannot be read without setting it; a replaced file keeps its permissions.
    mode = 0o600 if place.exists() else 0o666
    try:  # No Python code between open and the file object: an interrupt there would leave the descriptor open.
        with open(name, "xb", opener=functools.partial(os.open, mode=mode)) as opened:
            _write(opened, content)
            opened.flush()
            os.fsync(opened.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(name, stat.S_IMODE(place.stat().st_mode))  # noqa: PTH101
        os.replace(name, place)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise


def _write(opened: IO[bytes], content: str | bytes | Callable[[IO[bytes]], object]) -> None:
    if callable(content):
        content(opened)
    else:
        opened.write(content.encode("utf-8") if isinstance(content, str) else content)
