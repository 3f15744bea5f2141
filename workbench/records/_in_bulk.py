"""Making many records at once."""

import gc
from collections.abc import Callable

from workbench._processes import SharedChange


def _pause() -> Callable[[], object]:
    enabled = gc.isenabled()
    gc.disable()
    return gc.enable if enabled else lambda: None


_PAUSE = SharedChange(_pause)


def without_collections() -> SharedChange:
    """Pauses Python's search for cycles: it goes through all that a kernel holds (0.2 s) and finds none.

    Example:
        >>> with without_collections():
        ...     gc.isenabled()
        False
    """
    return _PAUSE
