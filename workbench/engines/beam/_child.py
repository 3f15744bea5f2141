"""Runs Beam pipelines in a child process, because Beam 2.77 breaks in notebook kernels with pandas 3.

In a kernel, Beam imports its data frames, which use an API that pandas 3 removed. The child process is not a kernel.
The child process receives folders and settings as JSON lines, and exits when its stdin closes.
"""

import base64
import contextlib
import importlib.metadata
import json
import os
import pickle
import queue
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench._processes import ChildProcess
from workbench.engines._places import place, remove_tree


def in_broken_kernel() -> bool:
    """Returns whether this process is a notebook kernel in which Beam cannot create a pipeline."""
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None:
        return False
    return int(importlib.metadata.version("pandas").partition(".")[0]) >= 3


_FOLDER = "WORKBENCH_BEAM_FOLDER"  # name of the child's temporary folder
_working: list[str] = []  # the folder of the pipeline in progress, with clients' rows


class Child:
    """The parent's side of the child process."""

    def __init__(self) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-c", "from workbench.engines.beam._child import serve; serve()"]
        folder = Path(tempfile.mkdtemp(prefix="workbench-beam-"))  # a killed Beam leaves temporary folders behind
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), _FOLDER: str(folder)}
        self._process = ChildProcess(command, env=environment, folder=folder)

    def run(
        self, job: str, arguments: Sequence[Any], runner: str, flags: Sequence[str], check: Callable[[], Any]
    ) -> None:
        """Runs one pipeline in the child; `check` is called ten times a second and may raise."""
        try:
            import cloudpickle

            payload = base64.b64encode(cloudpickle.dumps(list(arguments))).decode()
            self._process.stdin.write(json.dumps([job, payload, runner, list(flags)]).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # the process has exited; reported below with its exit status
            pass
        while not select.select([self._process.stdout], [], [], 0.1)[0]:
            check()
        line = self._process.stdout.readline()
        if not line:
            message = f"the process of the Beam pipelines ended with exit status {self._process.wait(10)}"
            raise RuntimeError(message)
        if error := json.loads(line):
            raise RuntimeError(error)

    def close(self) -> None:
        self._process.end()
        self._process.stdout.close()


def serve() -> None:
    """Runs the child's side, which reads settings as JSON and objects that the parent wrote."""
    from workbench.engines.beam import _here
    from workbench.engines.beam._same_user import close_servers

    close_servers()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a runner's output must not be mistaken for an answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        job, payload, runner, flags = json.loads(lines.get())
        error = ""
        try:
            arguments = pickle.loads(base64.b64decode(payload))
            _working[:] = [str(arguments[0])] if job != "run_reading" else []
            _here.run(job, arguments, runner, flags, check=lambda: None)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        with contextlib.suppress(BrokenPipeError):  # the parent has exited; `_read` terminates this process
            answers.write(json.dumps(error) + "\n")
            answers.flush()


def _read(lines: "queue.SimpleQueue[str]") -> None:
    """Terminates this process and its workers, and removes its files, when stdin closes.

    Otherwise a pipeline in progress would continue without a parent. stdin closes whenever the parent exits, even if it
    is killed.
    """
    for line in sys.stdin:
        lines.put(line)
    for folder in (*_working, os.environ[_FOLDER]):
        remove_tree(place(folder))
    if os.getpgrp() == os.getpid():  # `Child` starts a new process group, which contains this process and its workers
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)
