"""Beam pipelines of this process: on a thread, so that they can be cancelled; and without processes that stay.

Beam's local runner has no way to cancel, and leaves the other worker processes at work when one is lost. A cancelled
pipeline finds a file in its folder and computes no further batch; its worker processes are ended.
"""

# pyright: reportMissingImports=false

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

_ENDING_SECONDS = 10.0
_WORKER = "apache_beam.runners.worker.sdk_worker_main"
_log = logging.getLogger("workbench.engines")


def run(job: str, arguments: Sequence[Any], runner: object, flags: Sequence[str], check: Callable[[], Any]) -> None:
    """Runs one pipeline; `check` is called ten times a second and may raise."""
    from workbench.engines.beam import _worker
    from workbench.engines.beam._child import do

    raised: list[BaseException] = []

    def work() -> None:
        try:
            do(job, arguments, runner, flags)
        except BaseException as error:  # told to the thread that waits
            raised.append(error)

    thread = threading.Thread(target=work, name="a Beam pipeline", daemon=True)
    before = {process.pid for process in _workers()}
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
            check()
        if raised:
            raise raised[0]
    except BaseException:
        _end(thread, Path(arguments[0]) / _worker.CANCELLED, before)
        raise


def _workers() -> list[psutil.Process]:
    """Processes of Beam below this one: the workers, and the shells that Beam starts them by."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(_WORKER in part for part in process.cmdline()):
                found.append(process)
    return found


def _end(thread: threading.Thread, mark: Path, before: set[int]) -> None:
    with contextlib.suppress(OSError):
        mark.touch()
    for process in _workers():
        if process.pid not in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    thread.join(_ENDING_SECONDS)
    if thread.is_alive():
        _log.warning("a Beam pipeline that was called off still computes a batch; it ends after that")
