"""Start of a Ray cluster on a busy machine, and cleanup after its driver is killed."""

import contextlib
import os
import socket
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench._open_types import Foreign
from workbench._processes._folders import end_users_with_this_process, is_removed
from workbench._processes._shared_change import SharedChange

_session: list[Path] = []  # the last session that this process started

_AGENT_SECONDS = 240
_ENVIRONMENT = {
    "RAY_agent_register_timeout_ms": str(1000 * _AGENT_SECONDS),  # read by the raylet
    "AUTOSCALER_METRIC_PORT": "-1",  # Ray serves these metrics on all interfaces, without its token
}
_AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


def _choose_agent_ports() -> Callable[[], object]:
    """Changes how this process's `ray.init` starts a raylet; returns a function that undoes the change."""
    try:
        node: Any = import_module("ray._private.node").Node
        persist_port: Any = import_module("ray._raylet").persist_port
    except (ImportError, AttributeError):  # an unsupported version of Ray
        return lambda: None
    start = node.start_raylet

    def start_raylet(self: Foreign, *args: Foreign, **kwargs: Foreign) -> Foreign:
        for name, port in zip(_AGENT_PORTS, free_ports(len(_AGENT_PORTS)), strict=True):
            port = getattr(self._ray_params, name) or port
            setattr(self._ray_params, name, port)
            persist_port(self._session_dir, self._node_id, name, port)
        return start(self, *args, **kwargs)

    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    node.start_raylet = start_raylet

    def undo() -> None:
        node.start_raylet = start
        for name in added:
            os.environ.pop(name, None)

    return undo


patient_ray_start = SharedChange(_choose_agent_ports)
"""Lets `ray.init` start a raylet whose agents need more than 15 s to start.

Ray's raylet (2.55 and 2.60) exits if its agents have not written their ports to files within 15 s, or do not answer
within 30 s. On a busy machine, the agents' imports take longer. In this context the ports are chosen and written before
the raylet starts, and the raylet waits `_AGENT_SECONDS` for an answer. The autoscaler opens no port.
"""


def free_ports(count: int) -> list[int]:
    """Finds free ports on the loopback interface."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def close_folder_of_ray() -> Path | None:
    """Makes the folder and tokens of this process's Ray cluster private.

    By default (Ray 2.60), other users may write to the folder, and the umask determines whether they can read the
    tokens.
    """
    try:
        node = getattr(import_module("ray._private.worker"), "_global_node", None)  # None without `ray.init`
    except ImportError:  # an unsupported version of Ray
        return None
    if node is None or not getattr(node, "head", False):
        return None
    session = Path(node.get_session_dir_path()).resolve()
    with contextlib.suppress(OSError):  # somebody else's folder
        session.chmod(0o700)
    with contextlib.suppress(OSError, RuntimeError):  # no such folder, or no home
        (Path.home() / ".ray").chmod(0o700)
    return session


def has_lost_raylet() -> bool:
    """Returns whether the raylet that this process started has exited; Ray then ends this process in its next call."""
    node = getattr(import_module("ray._private.worker"), "_global_node", None)
    return node is not None and any(name == "raylet" for name, _ in node.dead_processes())


def end_ray_with_this_process() -> None:
    """Shuts down this process's Ray cluster and removes its folder if this process is killed.

    Ray's processes watch each other, but on a busy machine the agents outlive a killed driver by a minute, and the
    session folder remains. Clusters of other processes are not changed. After a normal exit the logs remain, because
    the remover exits first.
    """
    session = close_folder_of_ray()
    if session is None:
        return
    if _session == [session]:
        return
    for former_session in _session:  # the previous cluster was shut down
        is_removed(former_session)
    _session[:] = [session]
    end_users_with_this_process(session)
