"""The end of a Ray cluster whose driver is killed."""

import contextlib
from importlib import import_module
from pathlib import Path

from workbench._processes._folders import end_users_with_this_process, is_removed

_session: list[Path] = []  # the one that this process started last


def close_folder_of_ray() -> Path | None:
    """Closes the folder and the tokens of the cluster that `ray.init` started here to other users.

    By default they may write into the folder, and the umask decides whether they read the tokens (Ray 2.60).

    Returns:
        The folder, or None if this process started no cluster.
    """
    try:
        node = getattr(import_module("ray._private.worker"), "_global_node", None)  # None: `ray.init` was not here
    except ImportError:  # another Ray than those that are known
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
    """Ends the cluster that `ray.init` started here, with its folder, should this process be killed.

    Ray's own processes watch each other, but on a busy machine agents outlive a killed driver by a minute, and the
    folder of the session stays. A cluster that others started is left alone, as are the logs after any other end:
    at exit whoever removes folders is ended first.
    """
    session = close_folder_of_ray()
    if session is None:
        return
    if _session == [session]:
        return
    for other in _session:  # that cluster was shut down
        is_removed(other)
    _session[:] = [session]
    end_users_with_this_process(session)
