"""Programs of nodes that call each other, on threads, processes or a cluster: Launchpad's model.

Importing this module does not import JAX, and its names are looked up when they are first used: a spawned process needs
few of them, and imports no more.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

del lazy_loader
