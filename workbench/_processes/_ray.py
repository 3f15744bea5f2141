"""Cleanup of a Ray cluster after its driver is killed."""

import contextlib
from importlib import import_module
from pathlib import Path

from workbench._processes._folders import end_users_with_this_process, is_removed

_session: list[Path] = []  # the last session that this process started


def close_folder_of_ray() -> Path | None:
    """Makes the folder and tokens of this process's Ray cluster private.

    By default (Ray 2.60), other users may write to the folder, and the umask determines whether they can read the
    tokens.

    Returns:
        The folder, or None if this process started no cluster.
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
