"""Removes folders when its own input ends, which is when the process that started it ended in whatever way.

Started by its path, with Python's own modules alone. Each line of its input is `+` or `-` and a folder: one to remove
at the end, or one that is removed already.
"""

import shutil
import sys
import time
from pathlib import Path

_LONGEST = 30.0  # seconds in which other processes may still write as they end
_QUIET = 1.0  # seconds after which nobody writes any more


def main() -> None:
    """Until the input ends, and until the folders stay away."""
    folders: set[Path] = set()
    for line in sys.stdin:
        change, folder = line[0], Path(line[1:].rstrip("\n"))
        (folders.add if change == "+" else folders.discard)(folder)
    last = until = time.monotonic()
    until += _LONGEST
    while folders and time.monotonic() < min(last + _QUIET, until):
        for folder in folders:
            if folder.exists():
                shutil.rmtree(folder, ignore_errors=True)
                last = time.monotonic()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
