"""Programs of nodes that call each other, on threads, processes or a cluster: Launchpad's model.

Importing this module does not import JAX; the processes of a program import only what their nodes need.
"""

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
from workbench.launch._replay import Replay as Replay, ReplayNode as ReplayNode
from workbench.launch._service import batched as batched
