"""The first code that a spawned process of `workbench.launch` runs.

Importing `workbench` and `workbench.launch` does not import JAX. Importing JAX takes 1 s and 150 MB; nodes without JAX
avoid this cost. `multiprocessing`'s fork server, a process without threads or JAX, imports this module once for all
children.
"""

import pickle
from typing import Any

from workbench.launch import _child
from workbench.launch._values import Value


def start(order: bytes, **arguments: Value) -> None:
    """Runs a child process of a launched program."""
    _child.main(pickle.loads(order), **arguments)


class RayNode:
    """The Ray actor of a node; Ray's worker imports this module and therefore starts without JAX."""

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
        """Executes an order from the notebook."""
        self._actor.obey(order, *details)
