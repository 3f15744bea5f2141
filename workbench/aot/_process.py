"""The kernel's side of a worker process: started on demand, one request at a time, always terminated."""

import atexit
import contextlib
import logging
import os
import queue
import re
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from workbench._open_types import Progress
from workbench._processes import ChildProcess
from workbench.aot._frames import FrameError, read_frame, write_frame
from workbench.errors import CompilerDiedError, EngineError, MeshError

_TICK_SECONDS = 0.1
_COMMAND = (sys.executable, "-P", "-m", "workbench.aot.worker")
# XLA_FLAGS of the user are removed: they would change results without changing the cache key, and libtpu aborts on
# unknown flags. Options are passed per compilation.
_DROPPED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORM_NAME", "PYTHONSTARTUP")
_SET = {
    "JAX_PLATFORMS": "cpu",  # otherwise the CUDA plugin is skipped if no GPU is visible
    "CUDA_VISIBLE_DEVICES": "",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # no effect on a named topology; avoids a libtpu warning
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise libtpu queries a metadata server over the network
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "1",  # warnings: the GPU compiler's only sign that a program does not fit
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise the second notebook fails on libtpu's lock file
}
_NOISE = re.compile(r"^\s*(@|PC:|\*\*\*|WARNING|[IW]\d{4} )|process_state|cudart_stub|Stack trace|0x[0-9a-f]{6}")
_LOG = logging.getLogger("workbench.aot")
_SIGNALS = {
    "SIGFPE": "the compiler divided by zero",
    "SIGABRT": "an internal check of the compiler failed",
    "SIGSEGV": "the compiler accessed invalid memory",
    "SIGKILL": "it was killed from outside: by `stop_workers`, or because memory ran out",
}


class Worker:
    """A compiler process that serves one request at a time; started on request, and restarted after it has died.

    Requests can be sent from any thread; concurrent requests wait. The process has its own process group, so that
    Ctrl-C reaches only the kernel, and it exits when the kernel exits for any reason.

    Args:
        command: Command to start instead of the actual worker; receives the worker's directory as its last argument.
        compiler: Name and version of the compiler, used in the cache key; None means the installed plugin.
    """

    def __init__(self, command: Sequence[str] = _COMMAND, *, compiler: str | None = None) -> None:
        self.command: tuple[str, ...] = tuple(command)
        self.compiler = compiler
        self._busy = threading.Lock()
        self._started: _Started | None = None
        self._requests = 0
        _workers.add(self)

    @property
    def pid(self) -> int | None:
        """Process id of the running worker; None if no worker is running."""
        started = self._started
        return started.process.pid if started is not None and started.process.running else None

    @property
    def directory(self) -> Path | None:
        """Output folder of the running worker; None if no worker is running. The folder is removed with the worker."""
        return self._started.directory if self._started is not None else None

    def close(self) -> None:
        """Terminates the process; the next request starts a new process."""
        started, self._started = self._started, None
        if started is not None:
            started.process.end()

    def ask(
        self,
        message: dict[str, Any],
        *,
        task: str,
        timeout_seconds: float | None = None,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> dict[str, Any]:
        """Sends one request and waits for its result; `task` names the request in errors.

        Raises:
            EngineError: if the process dies, the time runs out, `cancel` is set, or the compiler fails.
            MeshError: if the compiler does not know the topology.
        """
        watch = _Watch(task, timeout_seconds, progress, cancel)
        with self._exclusive(watch):
            for last in (False, True):
                try:
                    return self._ask(message, watch, last=last)
                except _IdleEndError:
                    continue  # the worker exited because it was idle, just before the request
                except _RefusedError as refused:
                    raise refused.error from None
                except BaseException:
                    self.close()  # also on KeyboardInterrupt: only terminating the process stops a compilation
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _ask(self, message: dict[str, Any], watch: "_Watch", *, last: bool) -> dict[str, Any]:
        if self._started is None or not self._started.process.running:
            self.close()
            watch.phase = "starting the compiler"
            self._started = _Started(self.command)
            watch.look()
        started = self._started
        self._requests += 1
        number = self._requests
        try:
            write_frame(started.process.stdin, {"id": number, **message})
        except OSError:
            self._died(started, watch, last=last)
        while True:
            watch.look()
            try:
                frame = started.frames.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                continue
            if frame is None:
                self._died(started, watch, last=last)
            if frame.get("id") != number:
                continue
            if frame["kind"] == "progress":
                watch.phase = frame["phase"]
            elif frame["kind"] == "result":
                return frame["value"]
            else:
                raise _RefusedError(_refused(frame, watch.what))

    @contextlib.contextmanager
    def _exclusive(self, watch: "_Watch") -> Iterator[None]:
        while not self._busy.acquire(timeout=_TICK_SECONDS):
            watch.look()
        try:
            yield
        finally:
            self._busy.release()

    def _died(self, started: "_Started", watch: "_Watch", *, last: bool) -> NoReturn:
        code = started.process.wait(10)  # the worker closed the pipe
        words = started.last_words()
        self.close()
        if code == 0 and not last:
            raise _IdleEndError
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            why = f"was ended by {name}" + (f" ({_SIGNALS[name]})" if name in _SIGNALS else "")
        else:
            why = f"ended with exit code {code}"
        _LOG.warning("compiler process %d %s while %s", started.process.pid, why, watch.phase)
        suffix = f" It last wrote: {words!r}." if words else ""
        message = (
            f"{watch.what} failed while {watch.phase}: the worker process with the compiler {why}.{suffix} The "
            "compiler runs in a separate process: this kernel is unharmed, and the next request starts a new "
            "worker. Use a topology from `list_targets()`, a smaller program, or different options."
        )
        raise CompilerDiedError(message, stage=watch.phase)


class _IdleEndError(Exception):
    """The worker exited on its own before it read the request."""


class _RefusedError(Exception):
    """The worker is alive and has answered with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Watch:
    """Deadline, cancellation and progress of one request."""

    def __init__(
        self, task: str, timeout: float | None, progress: Progress | None, cancel: threading.Event | None
    ) -> None:
        self.what, self.phase = task, "waiting for the worker"
        self._timeout, self._progress, self._cancel = timeout, progress, cancel
        self._start = time.monotonic()

    def look(self) -> None:
        seconds = time.monotonic() - self._start
        if self._cancel is not None and self._cancel.is_set():
            message = (
                f"{self.what} was stopped after {seconds:.1f} s while {self.phase}, because its `cancel` event was "
                "set. Nothing is left running and nothing was cached: call again to start over."
            )
            raise EngineError(message, stage=self.phase)
        if self._timeout is not None and seconds > self._timeout:
            message = (
                f"{self.what} took longer than `timeout_seconds={self._timeout:g}` while {self.phase}, so the "
                "worker was terminated. Compile time grows with the program, not with the number of chips: pass a "
                "larger number of seconds (None: no limit), or a smaller program (fewer layers, a scan over identical "
                "layers)."
            )
            raise EngineError(message, stage=self.phase)
        if self._progress is not None:
            self._progress(self.phase, seconds)


class _Started:
    """A running process with its reader thread and its directory."""

    def __init__(self, command: Sequence[str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="workbench-targets-"))
        self._stderr = self.directory / "stderr.txt"
        environment = {key: value for key, value in os.environ.items() if key not in _DROPPED} | _SET
        self.process = ChildProcess(
            [*command, str(self.directory)], env=environment, stderr=self._stderr, folder=self.directory
        )
        _LOG.info("compiler process %d started", self.process.pid)
        self.frames: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_read_all, args=(self.process.stdout, self.frames), daemon=True).start()

    def last_words(self) -> str:
        """The most informative line that the process wrote to standard error, read after it died."""
        try:
            lines = self._stderr.read_text(errors="replace")[-20_000:].splitlines()
        except OSError:
            return ""
        lines = [line.strip() for line in lines if line.strip() and not _NOISE.search(line)]
        telling = [line for line in lines if "Check failed" in line or line.startswith("F")]
        return (telling or lines or [""])[-1][:300]


def _read_all(stream: BinaryIO, frames: "queue.Queue[dict[str, Any] | None]") -> None:
    with contextlib.suppress(FrameError, OSError, ValueError), stream:
        while (frame := read_frame(stream)) is not None:
            frames.put(frame)
    frames.put(None)


def _refused(frame: dict[str, Any], task: str) -> Exception:
    text = " ".join(str(frame["message"]).split())[:1500]
    if frame["type"] == "NoSuchTopologyError":
        message = (
            f"{task} failed: the compiler does not know this topology. The compiler reported: {text!r}. Each chip is "
            "available only in certain topologies: use a topology from `list_targets()`."
        )
        return MeshError(message)
    message = (
        f"{task} failed: the compiler failed with {frame['type']}: {text!r}. The compiler accepts valid StableHLO for "
        "its target and known options: check `options`, the dtypes and the custom calls of the program."
    )
    return EngineError(message, stage="compiling")


_workers: "weakref.WeakSet[Worker]" = weakref.WeakSet()
_shared: dict[str, Worker] = {}
_shared_lock = threading.Lock()


def shared_worker(platform: str) -> Worker:
    """This kernel's worker for one platform; libtpu and CUDA have separate workers."""
    with _shared_lock:
        return _shared.setdefault(platform, Worker())


def stop_workers() -> int:
    """Terminates all worker processes of this kernel and frees their memory (0.4 to 0.7 GB each).

    Returns:
        The number of terminated workers. The next compilation starts a new worker.

    Example:
        >>> stop_workers() >= 0
        True
    """
    running = [worker for worker in list(_workers) if worker.pid is not None]
    for worker in list(_workers):
        worker.close()
    return len(running)


def _forget_after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for worker in list(_workers):
        started, worker._started = worker._started, None
        worker._busy = threading.Lock()
        if started is not None:
            started.process.forget_after_fork()


atexit.register(stop_workers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
