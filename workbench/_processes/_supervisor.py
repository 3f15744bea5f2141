"""Supervises processes, and terminates them and their descendants when its input closes.

This script is started by its path, so that it imports neither JAX nor the workbench. Each line of its input is a
process to start, as `{"name", "argv", "env", "log"}`. The supervisor writes a line for each process start and each
process exit.
"""

import contextlib
import ctypes
import json
import os
import select
import subprocess
import sys
import time
from typing import Any

import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphaned descendants become children of this process (Linux)


def main() -> None:
    """Supervises processes until the input closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    waiting = b""
    try:
        while True:
            if select.select([0], [], [], 0.2)[0]:
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    return
                *lines, waiting = (waiting + chunk).split(b"\n")
                for line in lines:
                    task = json.loads(line)
                    processes[task["name"]] = _start(task)
                    _say({"started": task["name"], "pid": processes[task["name"]].pid})
            for name, process in list(processes.items()):
                if process.poll() is not None:
                    del processes[name]  # so that a later process with this name is reported too
                    _say({"ended": name, "status": process.returncode})
    finally:
        _end_all()


def _start(task: dict[str, Any]) -> "subprocess.Popen[bytes]":
    with open(task["log"], "ab") as log:  # noqa: PTH123
        return subprocess.Popen(
            task["argv"],
            env={**os.environ, **task["env"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,  # Ray creates its sockets and logs with the umask
        )


def _say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        print(json.dumps(message), flush=True)


def _end_all() -> None:
    """Terminates all descendants, then kills them, until none is left."""
    patience = time.monotonic() + 5
    while descendants := _descendants():
        late = time.monotonic() > patience
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill() if late else process.terminate()
        psutil.wait_procs(descendants, timeout=0.5)
        if time.monotonic() > patience + 10:
            return


def _descendants() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [process for process in children if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


if __name__ == "__main__":
    main()
