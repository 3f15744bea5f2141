"""Removes folders and files when its own input ends, which is when the process that started it ended in whatever way.

Started by its path, with Python's own modules alone. Each line of its input is `+` or `-` and a path: one to remove at
the end, or one that is removed already. With `!` the cluster that works in the path is ended first, and links to it are
removed: Ray's processes are no descendants of anybody who is alive. They are those that have files of the path open and
were started with an option that names it, or call themselves `ray::…`, and all of their descendants; who only reads a
log, such as `tail -f`, is left alone.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 30.0  # seconds in which other processes may still write as they end
_QUIET = 1.0  # seconds after which nobody writes any more


def main() -> None:
    """Until the input ends, and until the paths stay away."""
    paths: dict[Path, bool] = {}  # whether the processes that use it are ended
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
    """Ends the cluster's processes; whether there was one."""
    others = list(_others())
    found = {pid for pid in others if _uses(pid, f"{folder}{os.sep}") and _belongs(pid, folder.name)}
    parents = {pid: _parent(pid) for pid in others} if found else {}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _belongs(pid: int, session: str) -> bool:
    """Returns whether Ray started the process, by its option for the session or the name of its workers."""
    with contextlib.suppress(OSError):
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
        return words[0].startswith("ray::") or any(word.startswith("--") and session in word for word in words)
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _others() -> Iterator[int]:
    """The other processes of this user; none where the system has no /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.getuid() and int(entry.name) != os.getpid():
                yield int(entry.name)


def _uses(pid: int, prefix: str) -> bool:
    with contextlib.suppress(OSError):  # it ended a moment ago
        return any(str(link.readlink()).startswith(prefix) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


if __name__ == "__main__":
    main()
