"""Compilations on disk, addressed by what went into them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from workbench._cache import DiskCache, cache_directory

_FORMAT = 1


class CompilationCache(DiskCache):
    """A directory of compilations, least recently used ones removed beyond a size.

    Args:
        directory: Where; None: `targets` in `$WORKBENCH_CACHE`, else in the user's cache directory.
        limit_bytes: How large it may grow (compressed); None: `$WORKBENCH_CACHE_BYTES`, else 512 MiB.
    """

    def __init__(self, directory: str | Path | None = None, *, limit_bytes: int | None = None) -> None:
        super().__init__(cache_directory("targets") if directory is None else directory, limit_bytes=limit_bytes)


def cache_key(request: dict[str, Any], *, compiler: str) -> str:
    """The address of a compilation: a hash of everything that it depends on, debug locations included.

    Locations are part of it since source lines are part of the result.
    """
    text = json.dumps({"format": _FORMAT, "compiler": compiler, **request}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
