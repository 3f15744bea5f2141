"""The end of a Ray cluster whose driver is killed."""

from importlib import import_module
from pathlib import Path

from workbench._processes._folders import end_users_with_this_process, is_removed

_session: list[Path] = []  # the one that this process started last


def end_ray_with_this_process() -> None:
    """Ends the cluster that `ray.init` started here, with its folder, should this process be killed.

    Ray's own processes watch each other, but on a busy machine agents outlive a killed driver by a minute, and the
    folder of the session stays. A cluster that others started is left alone, as are the logs after any other end:
    at exit whoever removes folders is ended first.
    """
    try:
        node = getattr(import_module("ray._private.worker"), "_global_node", None)  # None: `ray.init` was not here
    except ImportError:  # another Ray than those that are known
        return
    if node is None or not getattr(node, "head", False):
        return
    session = Path(node.get_session_dir_path()).resolve()
    if _session == [session]:
        return
    for other in _session:  # that cluster was shut down
        is_removed(other)
    _session[:] = [session]
    end_users_with_this_process(session)
