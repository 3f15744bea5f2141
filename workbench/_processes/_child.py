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
    """A child process with pipes, in its own session, that never outlives this process.

    Ctrl-C in a notebook reaches only the kernel, not the child. `end` also kills the processes that the child started.
    The child's standard input closes when this process exits or is killed. The child must then also exit.

    Args:
        command: The program and its arguments.
        env: The child's environment; None means this process's environment.
        stderr: File for the child's standard error; None means this process's standard error.
        folder: The child's folder, removed when the child ends.
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
        """Process id, which is also the session id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the child is running."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> int | None:
        """Waits up to `seconds` for the exit status; None if the child is still running."""
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def close_input(self) -> None:
        """Closes the child's input, which asks the child to exit."""
        with contextlib.suppress(OSError):  # input that the child did not read before it exited
            self.stdin.close()

    def end(self) -> None:
        """Kills the child and its descendants, and removes its folder; safe to repeat."""
        self._end()

    def forget_after_fork(self) -> None:
        """Closes the pipe in a forked copy of this process, where an open pipe would keep the child alive."""
        self._end.detach()
        with contextlib.suppress(OSError):
            os.close(self.stdin.fileno())


def _end(process: subprocess.Popen[bytes], folder: Path | None) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # the child has its own session, so its pid is the group id
    except (AttributeError, OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
