"""Faults that tests really make: full disks, interrupts at any moment, killed processes, moving clocks."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest


def living(pids: Iterable[int]) -> set[int]:
    """Those of some processes that run."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


@contextlib.contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond `most_bytes`: writing more raises OSError, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def interrupts(*after_seconds: float) -> Iterator[None]:
    """Sends SIGINT to this process after so many seconds each, as Ctrl-C does; the last ones are taken back."""
    timers = [threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)) for seconds in after_seconds]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def interrupt_on(calls: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, call: int = 1) -> None:
    """Raises KeyboardInterrupt inside of the given call of a function, instead of it, once."""
    whole, count = getattr(calls, name), 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise KeyboardInterrupt
        return whole(*args, **kwargs)

    monkeypatch.setattr(calls, name, interrupted)


def python(code: str, *, cwd: Path, **popen: Any) -> "subprocess.Popen[str]":
    """A Python process of this environment that runs `code`."""
    paths = [str(Path(__file__).parent), *(entry for entry in sys.path if entry)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen([sys.executable, "-c", code], cwd=cwd, env=env, text=True, **popen)


def kill_when(process: "subprocess.Popen[str]", ready: Callable[[], bool], *, seconds: float = 120.0) -> None:
    """Ends a process with SIGKILL as soon as `ready`; fails where it ended before, or never got there."""
    until = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, f"the process ended with {process.returncode} before it was killed"
        assert time.monotonic() < until, "the process did not get there in time"
        time.sleep(0.002)
    process.kill()
    process.wait()


def clock_jumps(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on the wall clock is `seconds` off, as after a correction of the system's time."""
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
