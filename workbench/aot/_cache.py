"""Compilations stored on disk under a hash of their inputs."""

import hashlib
import json
from pathlib import Path
from typing import Any

from workbench._cache import DiskCache, cache_directory

_FORMAT = 1


class CompilationCache(DiskCache):
    """A directory of compilations with a size limit and least-recently-used eviction."""

    def __init__(self, directory: str | Path | None = None, *, limit_bytes: int | None = None) -> None:
        super().__init__(cache_directory("targets") if directory is None else directory, limit_bytes=limit_bytes)


def cache_key(request: dict[str, Any], *, compiler: str) -> str:
    """The key of a compilation: a hash of all its inputs, including debug locations.

    Locations are included because source lines are part of the result.
    """
    text = json.dumps({"format": _FORMAT, "compiler": compiler, **request}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
