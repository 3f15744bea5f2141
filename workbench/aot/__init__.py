"""Ahead-of-time compilation for hardware that is not attached: TPUs and GPUs, in a worker process.

Names are imported on first use, so that the worker process can start without importing JAX through this package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

del lazy_loader
