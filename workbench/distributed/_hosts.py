"""Processes on this machine that act as hosts of one JAX program, driven by ipyparallel's `%%px`."""

# pyright: reportMissingImports=false

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from workbench._open_types import Foreign
from workbench._processes import make_folder, remove_folder
from workbench.distributed._merge import merge_runs
from workbench.distributed._synchronize import TIMEOUT_SECONDS
from workbench.errors import EngineError, MeshError, MissingDependencyError, needs_library
from workbench.mesh import simulate_devices
from workbench.records.run import RunRecord

with needs_library("psutil", needed_for="`start_hosts`"):
    import psutil

_GRACE_SECONDS = 10.0  # grace time for the other hosts after one has failed
_POLL_SECONDS = 0.05
_LONGEST_FOLDER = 80  # the path of a Unix socket may have at most 107 characters
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def join(
    coordinator: str,
    hosts: int,
    host: int,
    *,
    devices: int | None = None,
    timeout_seconds: int = 120,
    bind_address: str | None = None,
) -> None:
    """Joins this process to a multi-host program. Call it before any JAX device is used.

    The function was tested with CPU devices and gloo collectives on one machine. GPUs, TPUs and several machines use
    the same JAX call, but were not tested. On Cloud TPU, call `jax.distributed.initialize()` directly.

    Args:
        coordinator: Address and port of host 0, such as "127.0.0.1:15000".
        hosts: Number of hosts.
        host: Index of this host, from 0.
        devices: Number of CPU devices to simulate in this process. Default: the real devices.
        timeout_seconds: Maximum time to wait for the other hosts.
        bind_address: Address on which host 0 listens. Default: only the address in `coordinator`, so that the machine's
            other networks cannot reach host 0. JAX's coordinator has no authentication: anyone who can connect can join
            or stop the run.

    Raises:
        EngineError: if not all hosts join in time.
        MeshError: if devices were already used.
    """
    if devices is not None:
        simulate_devices(devices)
    try:
        jax.distributed.initialize(
            coordinator,
            hosts,
            host,
            initialization_timeout=timeout_seconds,
            coordinator_bind_address=bind_address or coordinator,  # by default, JAX listens on all interfaces
        )
    except Exception as error:
        message = (
            f"host {host} of {hosts} could not join at {coordinator}: {type(error).__name__}: {error}. All hosts must "
            f"call `join` with the same address, within {timeout_seconds} s and before any host uses a device: start "
            "all hosts again, with a free port."
        )
        raise EngineError(message) from error


def start_hosts(
    hosts: int = 2, devices: int = 4, *, port: int | None = None, timeout_seconds: float = 180.0
) -> "Hosts":
    """Starts processes on this machine that are hosts of one JAX program, each with simulated CPU devices.

    In a notebook, cells that begin with `%%px` then run on all hosts. ipyparallel uses the loopback interface and
    authenticates with keys. JAX's coordinator has no authentication, so it listens on a Unix socket in a private
    folder. gloo's collectives use the loopback interface without authentication. Other users of this machine can
    disturb the collectives, but cannot run code on the hosts. The hosts exit when this process exits. Needs the extra
    `hosts`.

    Args:
        hosts: Number of hosts.
        devices: Number of CPU devices per host.
        port: Port on which JAX's coordinator listens, on the loopback interface. Default: the Unix socket, or a free
            port on systems without Unix sockets.
        timeout_seconds: Maximum time until all hosts have joined.

    Returns:
        The hosts; stop them with `stop`, or use them in a `with` block.

    Raises:
        MissingDependencyError: if ipyparallel is not installed.
        MeshError: if `hosts` or `devices` is not positive, or the port is in use.
        EngineError: if the hosts do not start in time.

    References:
        https://ipyparallel.readthedocs.io and https://docs.jax.dev/en/latest/multi_process.html
    """
    if hosts < 1 or devices < 1:
        message = (
            f"`start_hosts` was given hosts={hosts} and devices={devices}. A host is a process with at least one "
            "device: pass positive numbers, such as hosts=2, devices=4."
        )
        raise MeshError(message)
    try:
        import ipyparallel
    except ImportError as missing:
        raise MissingDependencyError("ipyparallel", extra="hosts", needed_for="`start_hosts`") from missing
    private = port is None and hasattr(socket, "AF_UNIX") and len(tempfile.gettempdir()) <= _LONGEST_FOLDER
    address = "" if private else f"127.0.0.1:{_free_port(port)}"
    folder = make_folder("wb-")
    address = address or f"unix:{folder}/jax"
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    cluster = ipyparallel.Cluster(
        n=hosts, engine_timeout=int(timeout_seconds), log_level=logging.ERROR, send_engines_connection_env=False
    )
    started = Hosts(cluster, before)
    weakref.finalize(started, remove_folder, folder)
    try:
        started._connect(address, devices, timeout_seconds)
    except BaseException:
        started.stop()
        raise
    return started


class Hosts:
    """Processes that act as hosts of one JAX program."""

    def __init__(self, cluster: Foreign, before: set[int]) -> None:
        self._cluster, self._before, self._client = cluster, before, None
        self.processes: list[psutil.Process] = []

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __len__(self) -> int:
        return 0 if self._client is None else len(self._client.ids)

    def run(self, fn: Callable[..., Any], *args: object, timeout_seconds: float = TIMEOUT_SECONDS) -> list[Any]:
        """Calls a function on every host at once.

        Args:
            fn: Function to call. The function may be defined in a notebook cell, and must import everything that it
                uses.
            *args: Arguments of `fn`.
            timeout_seconds: Time limit, after which the hosts are terminated.

        Returns:
            The result of each host.

        Raises:
            EngineError: if `fn` raised on a host, a host exited, or the call took too long; `stage` names the host. All
                hosts are then terminated, because hosts that wait for a failed host cannot continue.
        """
        if not callable(fn):
            message = (
                f"`Hosts.run` received an object of type {type(fn).__name__}. Every host calls a function: pass a "
                "function that imports everything it uses. To run other code on the hosts from a notebook, use a "
                "`%%px` cell."
            )
            raise EngineError(message)
        client = self._open()
        self._check_alive(client)
        calls = [client[i].apply_async(fn, *args) for i in client.ids]
        ends = time.monotonic() + timeout_seconds
        failed: tuple[int, BaseException] | None = None
        while not all(call.ready() for call in calls):
            time.sleep(_POLL_SECONDS)
            dead = [i for i, process in enumerate(self.processes) if not _runs(process)]
            if failed is None:
                failed = next(((i, _error(c)) for i, c in enumerate(calls) if c.ready() and not c.successful()), None)
                if failed is not None:
                    ends = min(ends, time.monotonic() + _GRACE_SECONDS)
            if time.monotonic() > ends or dead:
                late = [i for i, call in enumerate(calls) if not call.ready()]
                self.stop()
                raise self._stuck(failed, dead, late, timeout_seconds)
        failed = next(((i, _error(call)) for i, call in enumerate(calls) if not call.successful()), None)
        if failed is not None:
            raise _raised(*failed) from failed[1]
        return [call.get() for call in calls]

    def pull(self, name: str) -> list[Any]:
        """Returns every host's value of a variable that was set in a `%%px` cell."""
        client = self._open()
        self._check_alive(client)
        return client[:].pull(name, block=True)

    def record(self, name: str) -> RunRecord:
        """Merges the hosts' records of one run (`run = wb.measure(...)` in a `%%px` cell)."""
        return merge_runs(self.pull(name))

    def stop(self) -> None:
        """Kills all hosts, including hung hosts; their data is lost."""
        for process in self._children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a host in a collective ignores SIGTERM
                process.send_signal(signal.SIGKILL)
        if self._client is not None:
            self._client.close()
            self._client = None
        with contextlib.suppress(Exception):  # its processes are gone, so there is nothing to stop
            self._cluster.stop_cluster_sync()
        psutil.wait_procs(self._children(), timeout=10)

    def _open(self) -> Foreign:
        if self._client is None:
            message = (
                "the hosts were asked to run something after they had ended. Hosts cannot restart, because a process "
                "can join JAX's hosts only once: call `start_hosts` to start new hosts."
            )
            raise EngineError(message)
        return self._client

    def _check_alive(self, client: Foreign) -> None:
        """Raises an error if a host has exited; ipyparallel silently drops hosts that exit while idle."""
        dead = [i for i, process in enumerate(self.processes) if not _runs(process) or i not in client.ids]
        if not dead:
            return
        count = len(self.processes)
        self.stop()
        message = (
            f"host {', '.join(map(str, dead))} of {count} ended while no step was running. All hosts run the same "
            "steps and wait for each other, so the others could not continue and were stopped too: call `start_hosts` "
            "to start new hosts."
        )
        raise EngineError(message, stage=f"host {dead[0]}")

    def _connect(self, address: str, devices: int, timeout_seconds: float) -> None:
        try:
            self._client = self._cluster.start_and_connect_sync(activate=_in_ipython())
        except Exception as error:
            message = (
                f"the hosts did not start: {type(error).__name__}: {error}. Each host is an ipyparallel process that "
                f"must answer within {timeout_seconds:g} s: pass a larger `timeout_seconds`, or look at the host's log "
                "in ~/.ipython."
            )
            raise EngineError(message) from error
        ids = self._client.ids
        self._client[:].apply_sync(_see, [entry for entry in sys.path if entry])
        pids = [self._client[i].apply_sync(os.getpid) for i in ids]
        self.processes = [psutil.Process(pid) for pid in pids]
        other_pids = [process.pid for process in self._children() if process.pid not in pids]
        for i in ids:
            self._client[i].apply_sync(_end_with, os.getpid(), other_pids)
        calls = [self._client[i].apply_async(join, address, len(ids), i, devices=devices) for i in ids]
        for i, call in enumerate(calls):
            call.wait(timeout_seconds)
            if not call.ready() or not call.successful():
                raise _raised(i, _error(call))

    def _children(self) -> list[psutil.Process]:
        """Lists the processes of the hosts and of ipyparallel."""
        return [child for child in psutil.Process().children(recursive=True) if child.pid not in self._before]

    def _stuck(
        self, failed: tuple[int, BaseException] | None, dead: Sequence[int], late: Sequence[int], seconds: float
    ) -> EngineError:
        if failed is not None:
            error = _raised(*failed)
            error.__cause__ = failed[1]
            return error
        subject = (
            f"host {dead[0]} ended" if dead else f"hosts {', '.join(map(str, late))} took longer than {seconds:g} s"
        )
        message = (
            f"{subject} while a step was running. All hosts run the same steps in the same order and wait for each "
            "other, so the others could not continue and were stopped too: call `start_hosts` again, wait after every "
            "step (`workbench.distributed.synchronized`), or pass a larger `timeout_seconds`."
        )
        return EngineError(message, stage=f"host {(dead or late)[0]}")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _error(call: Foreign) -> BaseException:
    try:
        call.get(0)
    except Exception as error:
        return error
    return TimeoutError("it did not answer in time")


def _raised(host: int, error: BaseException) -> EngineError:
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    trace = _COLOURS.sub("", str(getattr(error, "traceback", "")))
    message = (
        f"host {host} raised {name}: {value}. Every host must complete the same steps: correct the code of that "
        f"host; its traceback follows.\n{trace}"
    )
    return EngineError(message.rstrip(), stage=f"host {host}")


def _in_ipython() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


def _free_port(port: int | None) -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port or 0))
        except OSError as error:
            message = (
                f"`start_hosts` was given port={port}, but another program is already listening on this port "
                f"({error}). Host 0 waits for the other hosts on this port: pass a free port, or omit `port` to "
                "choose one automatically."
            )
            raise MeshError(message) from error
        return listener.getsockname()[1]


def _see(paths: Sequence[str]) -> None:
    """Adds the driver's module paths to this host."""
    sys.path.extend(path for path in paths if path not in sys.path)


def _end_with(driver: int, pids: Sequence[int]) -> None:
    """Kills this host and `pids` when the process `driver` exits."""
    driving = psutil.Process(driver)
    around = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]

    def watch() -> None:
        while driving.is_running() and driving.status() != psutil.STATUS_ZOMBIE:
            time.sleep(1.0)
        for process in around:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="ends with the notebook", daemon=True).start()
