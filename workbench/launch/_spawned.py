"""The first code of a spawned process of `workbench.launch`.

Importing `workbench` and `workbench.launch` does not import JAX, which takes a second and 150 MB; a node that does not
use JAX never pays for it. Where processes are forked from a server (`multiprocessing`'s forkserver, a process without
threads and without JAX), the server imports this module once for all of them.
"""

import pickle
from typing import Any

from workbench.launch import _child
from workbench.launch._values import Value


def start(order: bytes, **arguments: Value) -> None:
    """Becomes a child of a launched program."""
    _child.main(pickle.loads(order), **arguments)


class RayNode:
    """The Ray actor of a node: Ray's worker imports this module to make it, and so starts without JAX as well."""

    def __init__(self, order: bytes) -> None:
        from workbench.launch._ray_worker import RayNodeActor

        self._actor = RayNodeActor(pickle.loads(order))

    def ask(self, label: str, payload: bytes) -> bytes:
        """Answers one call."""
        return self._actor.ask(label, payload)

    def events(self, seconds: float) -> dict[str, Any]:
        """Returns the events since the last call, after at most `seconds`."""
        return self._actor.events(seconds)

    def obey(self, order: str, *details: str) -> None:
        """Does what the notebook says."""
        self._actor.obey(order, *details)
