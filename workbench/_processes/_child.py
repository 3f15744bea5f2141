"""A child process that answers requests through its pipes."""

import contextlib
import os
import shutil
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast


class ChildProcess:
    """One process with pipes, in a session of its own, that never outlives this one.

    Ctrl-C in a notebook reaches the kernel alone, and `end` reaches all processes that the child started. Its standard
    input ends with this process, also when that is killed; the child must end with its input.

    Args:
        command: The program and its arguments.
        env: Its environment; None: that of this process.
        stderr: The file that gets its standard error; None: that of this process.
        folder: A folder of its own, which is removed with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stderr: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        with contextlib.ExitStack() as files:
            log = None if stderr is None else files.enter_context(stderr.open("wb"))
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
        self.stdin = cast(BinaryIO, self._process.stdin)
        self.stdout = cast(BinaryIO, self._process.stdout)
        self._end = weakref.finalize(self, _end, self._process, folder)  # also when this process exits

    @property
    def pid(self) -> int:
        """Its process id, which is also the number of its session."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if it has not ended yet."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> int | None:
        """The exit status, once it has ended; None if it has not within `seconds`."""
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def close_input(self) -> None:
        """Ends its input, which asks it to end."""
        with contextlib.suppress(OSError):  # what it did not read before it ended
            self.stdin.close()

    def end(self) -> None:
        """Ends it at once with all that it started, and removes its folder; a second time, nothing."""
        self._end()

    def forget_after_fork(self) -> None:
        """For a forked copy of this process, whose open pipe would keep the child alive: closes that copy alone."""
        self._end.detach()
        with contextlib.suppress(OSError):
            os.close(self.stdin.fileno())


def _end(process: subprocess.Popen[bytes], folder: Path | None) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its own session, so the group has its number
    except (AttributeError, OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
