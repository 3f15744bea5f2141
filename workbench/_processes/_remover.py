"""Removes folders and files when its input closes, that is, when its parent exits or is killed.

This script is started by its path and uses only the standard library. Each line of its input is `+`, `-` or `!` and a
path. `+` registers a path for removal, `-` unregisters it. `!` also kills the Ray cluster that uses the path, and
removes links to the path. Ray's processes have no living parent, so they are recognized as follows. A process belongs
to Ray if it has open files in the path, and either an option names the session or its name is `ray::…`. Descendants of
these processes are also killed. Processes that only read a log, such as `tail -f`, are not killed.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 30.0  # seconds during which exiting processes may still write
_QUIET = 1.0  # seconds without new files after which removal is complete


def main() -> None:
    """Reads paths until the input closes, then removes them repeatedly until nothing writes to them any more."""
    paths: dict[Path, bool] = {}  # whether to kill the processes that use the path
    for line in sys.stdin:
        change, path = line[0], Path(line[1:].rstrip("\n"))
        if change == "-":
            paths.pop(path, None)
        else:
            paths[path] = change == "!"
    last = until = time.monotonic()
    until += _LONGEST
    while paths and time.monotonic() < min(last + _QUIET, until):
        for path, ends in paths.items():
            if (ends and _end_users(path)) | _remove(path):
                last = time.monotonic()
        time.sleep(0.05)
    for path in (path for path, ends in paths.items() if ends):
        for link in path.parent.glob("*"):
            if link.is_symlink() and link.readlink() == path:
                link.unlink(missing_ok=True)


def _remove(path: Path) -> bool:
    if not os.path.lexists(path):
        return False
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    return True


def _end_users(folder: Path) -> bool:
    """Kills the cluster's processes; returns whether there were any."""
    pids = list(_others())
    users = {pid for pid in pids if _uses(pid, f"{folder}{os.sep}") and _belongs(pid, folder.name)}
    parents = {pid: _parent(pid) for pid in pids} if users else {}
    while more := {pid for pid, parent in parents.items() if parent in users and pid not in users}:
        users |= more
    for pid in users:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(users)


def _belongs(pid: int, session: str) -> bool:
    """Returns whether Ray started the process, by its session option or worker name."""
    with contextlib.suppress(OSError):
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
        return words[0].startswith("ray::") or any(word.startswith("--") and session in word for word in words)
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _others() -> Iterator[int]:
    """Lists other processes of this user; empty on systems without /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.getuid() and int(entry.name) != os.getpid():
                yield int(entry.name)


def _uses(pid: int, prefix: str) -> bool:
    with contextlib.suppress(OSError):  # the process has just exited
        return any(str(link.readlink()).startswith(prefix) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


if __name__ == "__main__":
    main()
