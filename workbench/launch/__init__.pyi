from ._cache import CacheNode as CacheNode
from ._context import current_node as current_node
from ._dask import DaskEngine as DaskEngine
from ._deadline import launched_on_threads as launched_on_threads
from ._launch import launch as launch
from ._launched import Launched as Launched
from ._nodes import (
    Handle as Handle,
    PyClassNode as PyClassNode,
    PyNode as PyNode,
    Restart as Restart,
    ServiceNode as ServiceNode,
)
from ._program import Program as Program
from ._ray import RayEngine as RayEngine
from ._replay import Replay as Replay, ReplayNode as ReplayNode
from ._service import batched as batched
