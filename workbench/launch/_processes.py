"""Nodes as processes on this machine that exit with the notebook's kernel."""

import contextlib
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
import weakref
from multiprocessing import connection, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from workbench._processes import make_folder, remove_folder, remove_with_this_process
from workbench.errors import needs_library
from workbench.launch import _spawned
from workbench.launch._child import Address, StartupConfig
from workbench.launch._client import CallQueue
from workbench.launch._nodes import NodeSpec
from workbench.launch._pickling import pickled, pickled_nodes
from workbench.launch._program import Program
from workbench.launch._remote import RemoteHost, RemoteService
from workbench.launch._reporting import ReportingHost
from workbench.launch._runner import Emit
from workbench.launch._service import parallel_calls

with needs_library("psutil", needed_for="`launch` on processes"):
    import psutil

_LOG_TAIL_BYTES = 4096
# The fork server has neither threads nor JAX; forking from it is ten times as fast as spawning.
_START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # a fork of this process, with JAX, would deadlock
_registered: set[Path] = set()  # paths to remove when this process is killed
_REAPING = threading.Lock()  # an exit code of a forked process can be read only once; `start` and `join` read it


class ProcessHost(ReportingHost):
    """One process and its nodes."""

    def __init__(self, specs: tuple[NodeSpec, ...], engine: "Processes", address: str, log: Path) -> None:
        super().__init__(specs, place="process", patience_seconds=1.0)
        self._engine = engine
        self._address = address
        self._log = log
        self._payload = pickled_nodes(specs, engine.name)
        self._remote = RemoteHost(address, engine.authkey)
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._sending = threading.Lock()
        self._exited = threading.Event()
        self._exited.set()

    def start(self, attempt: int) -> None:
        """Starts the process; its nodes start after their imports."""
        with contextlib.suppress(OSError):
            Path(self._address).unlink()  # left behind by a process that was killed
        order = StartupConfig(
            specs=self._payload,
            addresses=self._engine.addresses,
            here=self._address,
            authkey=self._engine.authkey,
            attempt=attempt,
        )
        context = multiprocessing.get_context(_START_METHOD)
        if _START_METHOD == "forkserver":
            context.set_forkserver_preload([_spawned.__name__])
            _keep_no_socket()
        parent_end, child_end = context.Pipe()
        name = f"{self.specs[0].program}:{self.specs[0].label}"
        arguments = {
            "order": pickled(order),
            "pipe": child_end,
            "log_path": str(self._log),
            "environment": {**os.environ, **self.specs[0].environment},  # the fork server has an older environment
        }
        process = context.Process(target=_spawned.start, kwargs=arguments, name=name, daemon=True)
        with _REAPING:
            process.start()
        child_end.close()
        self._process, self._pipe = process, parent_end
        self._exited = threading.Event()
        self._hear({})
        threading.Thread(
            target=self._listen, args=(process, parent_end), name=f"reports of {name}", daemon=True
        ).start()

    def kill(self) -> None:
        """Kills the process. Sends SIGKILL, because JAX's preemption notifier catches SIGTERM."""
        if self._process is not None:
            self._process.kill()

    def report_failed(self, label: str, reason: str) -> None:
        """Notifies nodes that another node has failed, so that calls to it fail without waiting."""
        super().report_failed(label, reason)
        address = self._engine.address_of(label)
        if address is not None:
            self._send("gone", address, reason)

    def failed(self, reason: str) -> None:
        """Notifies callers in this process that the host has failed permanently."""
        self._remote.gone = reason

    def ended(self) -> bool:
        return self._exited.is_set()

    def snapshot(self, label: str) -> dict[str, Any]:
        """Returns the numbers for a `NodeStateRecord`, from the process and the operating system."""
        pid = self._process.pid if self._process is not None else None
        log_tail = self._log_text(_LOG_TAIL_BYTES)[-5:]
        state = self._reported(label) | {"where": f"process {pid}", "log_tail": log_tail}
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            times = process.cpu_times()
            state |= {"cpu_seconds": times.user + times.system, "memory_bytes": process.memory_info().rss}
        return state

    def log_lines(self, label: str) -> tuple[str, ...]:
        """Returns the process's output and the log lines of all its nodes."""
        del label
        return self._log_text(None)

    def line(self, label: str) -> CallQueue:
        """Creates a new call queue to a service of this process."""
        address = next(entry for entry in self._engine.addresses.values() if entry.label == label)
        return CallQueue(RemoteService(self._remote, label, address.methods), address.parallel)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _send(self, *order: str) -> None:
        with self._sending, contextlib.suppress(OSError):  # gone
            if self._pipe is not None:
                self._pipe.send(order)

    def _listen(self, process: BaseProcess, pipe: Connection) -> None:
        emit = self._engine.emit
        while True:
            # Wait for the sentinel too: a child that was stopped by a signal keeps the pipe open.
            ready = connection.wait([pipe, process.sentinel])
            try:
                message = pipe.recv() if pipe in ready or pipe.poll() else None
            except (EOFError, OSError):
                message = None
            if message is None:
                break
            if message[0] == "reports":
                self._hear(message[1])
            else:
                self._heard_at = time.monotonic()
                _, label, event, detail = message
                label = label or self.specs[0].label
                if event in ("running", "serving"):  # count silent seconds from now on, even before the first report
                    self._reports.setdefault(label, {"silent_seconds": 0.0, "stack": None})
                emit(label, event, detail)
        connection.wait([process.sentinel])
        with _REAPING:
            process.join()
        while process.exitcode is None:  # multiprocessing may have just reaped it in another thread
            time.sleep(0.005)
        with self._sending:
            pipe.close()
        emit(self.specs[0].label, "exited", process.exitcode)
        self._exited.set()  # after the events, so that they are received before the next attempt starts
        emit(self.specs[0].label, "gone", None)

    def _log_text(self, last_bytes: int | None) -> tuple[str, ...]:
        try:
            with self._log.open("rb") as file:
                if last_bytes is not None:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - last_bytes))
                return tuple(file.read().decode(errors="replace").splitlines())
        except OSError:
            return ()


class Processes:
    """The engine that runs each host of a program in a process on this machine.

    Sockets and logs are in a private temporary folder. Callers authenticate with the launch's random key.
    """

    name = "processes"
    kills = True

    def __init__(self) -> None:
        self.authkey = secrets.token_bytes(32)
        self.addresses: dict[int, Address] = {}
        self._folder = make_folder("wb-")
        weakref.finalize(self, remove_folder, self._folder)

    def open(self, program: Program, emit: Emit) -> list[ProcessHost]:
        """Creates one host for each set of nodes that share a process.

        Raises:
            ProgramError: if a node's target or arguments cannot be sent to another process.
        """
        self.emit = emit
        folder = self._folder
        shared = program.hosts()
        for number, specs in enumerate(shared):
            for spec in specs:
                if spec.kind == "service":
                    self.addresses[spec.index] = Address(
                        label=spec.label,
                        methods=spec.methods,
                        parallel=parallel_calls(spec),
                        host=_address(folder, number),
                    )
        return [
            ProcessHost(specs, self, _address(folder, number), folder / f"{number}.log")
            for number, specs in enumerate(shared)
        ]

    def address_of(self, label: str) -> str | None:
        """Returns the address of a service's process."""
        return next((entry.host for entry in self.addresses.values() if entry.label == label), None)

    def close(self) -> None:
        """Does nothing, because the folder with the logs is removed with this object."""


def exit_text(code: int | None) -> str:
    """Describes an exit code in words.

    Example:
        >>> exit_text(1), exit_text(-9)
        ('ended with exit code 1', 'was killed by signal 9 (SIGKILL)')
    """
    if code is not None and code < 0:
        try:
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def _keep_no_socket() -> None:
    """Registers the fork server's socket (and its own folder) for removal if the process is killed.

    A `multiprocessing` child may use its parent's folder, which must not be removed.
    """
    from multiprocessing import forkserver  # exists only on platforms with this start method

    tempdir = getattr(multiprocessing.current_process(), "_config", {}).get("tempdir")
    is_ours = multiprocessing.parent_process() is None or tempdir is None
    folder = Path(util.get_temp_dir())
    if is_ours and folder not in _registered:
        _registered.add(folder)
        remove_with_this_process(folder)
    forkserver.ensure_running()
    address = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_address", None)
    if isinstance(address, str) and not {Path(address), folder} & _registered:
        _registered.add(Path(address))
        remove_with_this_process(Path(address))


def _address(folder: Path, number: int) -> str:
    if hasattr(socket, "AF_UNIX"):
        return str(folder / str(number))
    return rf"\\.\pipe\{folder.name}-{number}"
