"""Process trees of other systems, terminated by a supervisor."""

import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench._processes._child import ChildProcess

_SUPERVISOR = Path(__file__).with_name("_supervisor.py")  # started by its path: only the supervisor needs psutil


class SupervisedProcesses:
    """Processes with logs in `folder`, terminated by `close` or when this process exits.

    Descendants of these processes are also terminated, even in other sessions or after their parents have exited. On
    Linux, the supervisor is a subreaper: it adopts descendants whose parents have exited, which a process group cannot
    do.

    Args:
        folder: Folder for the logs.
        env: Variables added to the environment of each process.
        log: Logger for process starts and exits.
        system: Name of the system, as shown in the log.
    """

    def __init__(self, folder: Path, env: Mapping[str, str], *, log: logging.Logger, system: str) -> None:
        self.folder, self.env = folder, dict(env)
        self.pids: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self._log, self._system = log, system
        self._supervisor = ChildProcess([sys.executable, str(_SUPERVISOR)])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Starts a process; its output goes to `log(name)`."""
        task = {"name": name, "argv": list(argv), "env": {**self.env, **(env or {})}, "log": str(self._path(name))}
        self._supervisor.stdin.write(json.dumps(task).encode() + b"\n")
        self._supervisor.stdin.flush()

    def log(self, name: str, size: int = 600) -> str:
        """Returns the last part of a process's output in one line."""
        path = self._path(name)
        return " ".join(path.read_text(errors="replace")[-size:].split()) if path.exists() else ""

    def close(self) -> None:
        """Terminates all processes and their descendants."""
        self._supervisor.close_input()  # the supervisor terminates the processes, then kills them
        self._supervisor.wait(30)
        self._supervisor.end()
        self._reader.join(timeout=10)
        self._supervisor.stdout.close()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def _read(self) -> None:
        for line in self._supervisor.stdout:
            event = json.loads(line)
            if "started" in event:
                self.pids[event["started"]] = event["pid"]
                self._log.info("%s's %s started as process %d", self._system, event["started"], event["pid"])
            else:
                self.ended[event["ended"]] = event["status"]
                self._log.info("%s's %s ended with exit status %s", self._system, event["ended"], event["status"])
