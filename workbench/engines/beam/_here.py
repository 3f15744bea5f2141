"""Runs Beam pipelines on a thread of this process, with cancellation and without leftover processes.

Beam's local runner cannot cancel a pipeline. When a worker process is lost, the runner keeps the other worker processes
running. The runner may wait forever, because the error is raised in the thread that started the lost process. To cancel
a pipeline, this module first writes a file to the pipeline's folder, so that no further batches start. It then kills
the worker processes.
"""

# pyright: reportMissingImports=false

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from workbench._open_types import Foreign
from workbench.engines._places import place

_ENDING_SECONDS = 10.0
_WORKER = "apache_beam.runners.worker.sdk_worker_main"
_STARTER = "run_worker"  # Beam's name for the threads that start a worker process and wait for it to exit
_log = logging.getLogger("workbench.engines")


def run(job: str, arguments: Sequence[Any], runner: object, flags: Foreign, check: Callable[[], Any]) -> None:
    """Runs one pipeline, the function `job` of `_worker`; `check` is called ten times a second and may raise."""
    from workbench.engines.beam import _worker

    raised: list[BaseException] = []

    def work() -> None:
        try:
            getattr(_worker, job)(*arguments, runner, flags)
        except BaseException as error:  # raised in the waiting thread
            raised.append(error)

    thread = threading.Thread(target=work, name="a Beam pipeline", daemon=True)
    before = {process.pid for process in _workers()}
    with _lost_workers() as lost:
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.1)
                check()
                if lost and thread.is_alive():
                    message = f"a worker process was lost: {lost[0]}"
                    raise RuntimeError(message)
            if raised:
                raise raised[0]
        except BaseException:
            _end(place(arguments[0]) / _worker.CANCELLED, before)
            if not lost:  # otherwise Beam's thread may wait forever
                thread.join(_ENDING_SECONDS)
                if thread.is_alive():
                    _log.warning("a cancelled Beam pipeline is still computing a batch, and stops after this batch")
            raise


@contextlib.contextmanager
def _lost_workers() -> Iterator[list[BaseException]]:
    """Collects the errors of threads that start workers, for any pipeline in this process."""
    global _other_hook
    lost: list[BaseException] = []
    with _lock:
        if not _pipelines:
            _other_hook, threading.excepthook = threading.excepthook, _take_event
        _pipelines.append(lost)
    try:
        yield lost
    finally:
        with _lock:
            _pipelines.remove(lost)
            if not _pipelines:
                threading.excepthook = _other_hook


_lock = threading.Lock()
_pipelines: list[list[BaseException]] = []  # errors of each running pipeline
_other_hook = threading.excepthook


def _take_event(raised: threading.ExceptHookArgs) -> None:
    if raised.thread is not None and raised.thread.name == _STARTER and raised.exc_value is not None:
        for lost in _pipelines:
            lost.append(raised.exc_value)
    else:
        _other_hook(raised)


def _workers() -> list[psutil.Process]:
    """Beam's child processes: the workers, and the shells that start them."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(_WORKER in part for part in process.cmdline()):
                processes.append(process)
    return processes


def _end(mark: Path, before: set[int]) -> None:
    with contextlib.suppress(OSError):
        mark.touch()
    for process in _workers():
        if process.pid not in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
