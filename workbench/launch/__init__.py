"""Launchpad's model: programs of nodes that run on threads, processes or a cluster.

Importing this module does not import JAX. Names are imported when first used, because a spawned process needs only a
few of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

del lazy_loader
