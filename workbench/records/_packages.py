"""Library of a source file: the one rule for the lines of plans, call trees and HLO frames."""

import functools
import re
import sysconfig
from pathlib import Path

_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_OURS = str(Path(__file__).resolve().parents[1]) + "/"
_TAUGHT = (_OURS + "federated/", _OURS + "cli/")  # programs that come with the package are a user's programs
_STANDARD = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})


@functools.lru_cache(maxsize=4096)
def package_of(file: str) -> str | None:
    """The library that a file belongs to; None for the user's own files.

    Example:
        >>> package_of("/venv/lib/python3.11/site-packages/optax/_src/base.py"), package_of("/home/me/train.py")
        ('optax', None)
    """
    match = _PACKAGE.search(file)
    if match is not None:
        return match[1]
    if file.startswith(_TAUGHT):
        return None
    if file.startswith(_OURS):
        return "workbench"
    if file.startswith(_STANDARD) or file.startswith("<frozen "):
        return "python"
    return None
