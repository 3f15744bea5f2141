"""Files that are whole or not there: the old one stays until the new one is complete."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_whole(path: str | os.PathLike[str], content: bytes | str | Callable[[IO[bytes]], Any]) -> None:
    """Writes a file next to its place and moves it there, so that a full disk or a kill leaves the old one.

    Args:
        path: Where. A link is followed; a device or pipe is written as it is, since it cannot be replaced.
        content: Bytes, text (as UTF-8), or a function that writes into the opened file.

    Raises:
        OSError: if it cannot be written; what was there before is unchanged.
    """
    place = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(place.stat().st_mode):
            with place.open("wb") as opened:
                _write(opened, content)
            return
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:100]}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            _write(opened, content)
            opened.flush()
            os.fsync(descriptor)
        os.chmod(name, _mode(place))  # noqa: PTH101
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


def _mode(place: Path) -> int:
    """The permissions of the file that is replaced; for a new one those that `open` would give."""
    try:
        return stat.S_IMODE(place.stat().st_mode)
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
