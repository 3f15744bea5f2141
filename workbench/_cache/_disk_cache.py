"""On-disk entries, keyed by a hash of their inputs; an error in the cache never changes a result."""

import contextlib
import functools
import gzip
import json
import os
import secrets
import stat
import time
import zlib
from pathlib import Path
from typing import Any

from workbench.errors import needs_library

_FORMAT = 1
_ENDING = ".json.gz"
_STALE_SECONDS = 3600.0
LIMIT_BYTES = 512 * 2**20
_MOST_UNPACKED = 2**28


class DiskCache:
    """A directory of JSON objects; above a size limit, the least recently used objects are removed."""

    def __init__(self, directory: str | Path, *, limit_bytes: int | None = None) -> None:
        self.directory: Path = Path(directory)
        self.limit_bytes: int = _default_limit() if limit_bytes is None else limit_bytes

    def load(self, key: str) -> dict[str, Any] | None:
        """Returns the value stored under `key`, or None if it is absent or unreadable."""
        path = self._path(key)
        try:
            if self._foreign():
                return None
            entry = json.loads(_unpacked(path.read_bytes()))
            if entry["format"] != _FORMAT or entry["key"] != key:
                return None
            value = entry["value"]
            if not isinstance(value, dict):
                raise TypeError(type(value))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError, zlib.error):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def store(self, key: str, value: dict[str, Any]) -> str:
        """Stores `value`; returns "" or, if storing failed, a note with the reason."""
        text = json.dumps({"format": _FORMAT, "key": key, "value": value}).encode()
        if len(text) > _MOST_UNPACKED:
            return f"not cached: {len(text)} bytes exceed the limit for one entry ({_MOST_UNPACKED} bytes)"
        data = gzip.compress(text, compresslevel=5)
        if len(data) > self.limit_bytes:
            return (
                f"not cached: {len(data)} bytes exceed the limit for the whole cache ({self.limit_bytes} bytes, set by "
                "WORKBENCH_CACHE_BYTES)"
            )
        temporary = self.directory / f"{secrets.token_hex(8)}.part"
        try:  # HLO contains paths and names from the user's code, so no other user may read it
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(temporary, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
                file.write(data)
            if self._foreign():
                return (
                    f"not cached: other users of this machine can write to {self.directory}, and their files would be "
                    "trusted. Set WORKBENCH_CACHE to a directory that only you can write to"
                )
            temporary.replace(self._path(key))
        except OSError as error:
            return (
                f"not cached: {self.directory} cannot be written ({error.strerror or error}); the work is repeated "
                "next time. Free some space in this directory, or set WORKBENCH_CACHE to another directory"
            )
        finally:  # after an interrupt as well
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._evict()
        return ""

    def clear(self) -> int:
        """Removes every entry; returns the number of removed entries."""
        entries = self._entries()
        for _, _, path in entries:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return len(entries)

    def size_bytes(self) -> int:
        """Returns the total size of all entries."""
        return sum(size for _, size, _ in self._entries())

    def _foreign(self) -> bool:
        """Returns whether other users can write to the directory."""
        if not hasattr(os, "getuid") or not self.directory.exists():
            return False
        status = self.directory.stat()
        return status.st_uid != os.getuid() or bool(status.st_mode & stat.S_IWOTH)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_ENDING}"

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Last use, size and path of every entry, oldest first; omits entries that another kernel has just removed."""
        entries = []
        for path in self.directory.glob(f"*{_ENDING}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        return sorted(entries)

    def _evict(self) -> None:
        entries = self._entries()
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.limit_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            total -= size
        for path in self.directory.glob("*.part"):  # files of kernels that were killed while writing
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink(missing_ok=True)


def _unpacked(data: bytes) -> bytes:
    """Unpacks gzip data, up to a size limit that no compilation reaches."""
    unpacking = zlib.decompressobj(wbits=31)
    content = unpacking.decompress(data, _MOST_UNPACKED)
    if not unpacking.eof:
        message = "the entry is truncated, or larger than any compilation result"
        raise ValueError(message)
    return content


def cache_directory(name: str) -> Path:
    """The directory for one kind of entry, in `$WORKBENCH_CACHE` or otherwise in the user's cache directory."""
    root = os.environ.get("WORKBENCH_CACHE")
    if root:
        return Path(root) / name
    return _user_directory(tuple(map(os.environ.get, _HOMES))) / name


_HOMES = ("XDG_CACHE_HOME", "HOME", "USERPROFILE", "LOCALAPPDATA", "WIN_PD_OVERRIDE_LOCAL_APPDATA")


@functools.lru_cache(maxsize=8)  # platformdirs takes a tenth of the time that describing a small plan takes
def _user_directory(homes: tuple[str | None, ...]) -> Path:
    """The user's cache directory, which depends on these environment variables."""
    del homes
    with needs_library("platformdirs", needed_for="The cache on disk (without WORKBENCH_CACHE)"):
        import platformdirs
    return Path(platformdirs.user_cache_dir("mapreduce-workbench", appauthor=False))


def _default_limit() -> int:
    try:
        return int(os.environ["WORKBENCH_CACHE_BYTES"])
    except (KeyError, ValueError):
        return LIMIT_BYTES
