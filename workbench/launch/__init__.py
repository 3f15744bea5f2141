"""Programs of nodes that call each other, on threads, processes or a cluster: Launchpad's model.

Importing this module does not import JAX, and its names are looked up when they are first used: a spawned process needs
few of them, and waits for no more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.launch._client import Client as Client, Futures as Futures
    from workbench.launch._context import NodeContext as NodeContext, current_node as current_node
    from workbench.launch._dask import DaskEngine as DaskEngine
    from workbench.launch._launch import launch as launch
    from workbench.launch._launched import Launched as Launched
    from workbench.launch._nodes import (
        Handle as Handle,
        Node as Node,
        PyClassNode as PyClassNode,
        PyNode as PyNode,
        Restart as Restart,
        ServiceNode as ServiceNode,
    )
    from workbench.launch._program import Program as Program
    from workbench.launch._ray import RayEngine as RayEngine
    from workbench.launch._replay import Replay as Replay, ReplayNode as ReplayNode
    from workbench.launch._service import batched as batched

__all__ = [
    "Client",
    "DaskEngine",
    "Futures",
    "Handle",
    "Launched",
    "Node",
    "NodeContext",
    "Program",
    "PyClassNode",
    "PyNode",
    "RayEngine",
    "Replay",
    "ReplayNode",
    "Restart",
    "ServiceNode",
    "batched",
    "current_node",
    "launch",
]
_HOMES = {
    "Client": "_client",
    "DaskEngine": "_dask",
    "Futures": "_client",
    "Handle": "_nodes",
    "Launched": "_launched",
    "Node": "_nodes",
    "NodeContext": "_context",
    "Program": "_program",
    "PyClassNode": "_nodes",
    "PyNode": "_nodes",
    "RayEngine": "_ray",
    "Replay": "_replay",
    "ReplayNode": "_replay",
    "Restart": "_nodes",
    "ServiceNode": "_nodes",
    "batched": "_service",
    "current_node": "_context",
    "launch": "_launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
