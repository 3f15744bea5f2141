"""The first code of a spawned process of `workbench.launch`, importable before anything of `workbench` is imported.

The root package imports JAX, which takes a second and 150 MB; with sixteen processes on a laptop that is what one would
wait for. A node that does not use JAX never needs it, so the root's name is given to a stand-in with the same
submodules, which becomes the real root package as soon as somebody asks for one of its names.

Where processes are forked from a server (`multiprocessing`'s forkserver, a process without threads and without JAX),
the server imports this module once for all of them.
"""

import pickle
import sys
import threading
import types
from importlib import util
from pathlib import Path
from typing import Any

PACKAGE = "workbench"


def install_light_root(folder: Path) -> types.ModuleType:
    """Puts the stand-in for the package in `folder` where `import` looks; keeps a package that is there already.

    Raises:
        ImportError: if there is no package in `folder`.
    """
    name = folder.name
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None or not (folder / "__init__.py").exists():
        message = f"there is no package in {folder}"
        raise ImportError(message)
    root, loader, lock = util.module_from_spec(spec), spec.loader, threading.RLock()

    def load_and_look_up(attribute: str) -> Any:
        if attribute.startswith("__") and attribute != "__all__":  # `inspect` and the import system only look around
            raise AttributeError(attribute)
        with lock:
            if vars(root).pop("__getattr__", None) is not None:
                loader.exec_module(root)
        return getattr(root, attribute)

    vars(root)["__getattr__"] = load_and_look_up
    sys.modules[name] = root
    return root


def start(order: bytes, **arguments: Any) -> None:
    """Becomes a child of a launched program."""
    _child.main(pickle.loads(order), **arguments)


class RayNode:
    """The Ray actor of a node: Ray's worker imports this module to make it, and so starts without JAX as well."""

    def __init__(self, order: bytes) -> None:
        from workbench.launch._ray_worker import NodeActor  # noqa: PLC2701

        self._actor = NodeActor(pickle.loads(order))

    def ask(self, label: str, payload: bytes) -> bytes:
        """Answers one call."""
        return self._actor.ask(label, payload)

    def news(self, seconds: float) -> dict[str, Any]:
        """What happened since the last look, after at most `seconds`."""
        return self._actor.news(seconds)

    def obey(self, order: str, *details: str) -> None:
        """Does what the notebook says."""
        self._actor.obey(order, *details)


# In the process that imports this, be it a server or a child, before anything else could ask for the root package.
install_light_root(Path(__file__).with_name(PACKAGE))

import workbench.launch._child as _child  # noqa: E402, PLC2701
