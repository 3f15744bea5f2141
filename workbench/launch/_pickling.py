"""Values as bytes between the processes of one launch."""

import pickle
from multiprocessing import parent_process

from workbench.errors import needs_library


def pickled(value: object) -> bytes:
    """`value` as bytes that every process of the launch can read with `pickle.loads`.

    The notebook's own process sends what it defined by value, as the others do not have it. A spawned process tries
    the standard way first: what is importable there is importable everywhere, and cloudpickle takes long to import.
    """
    if parent_process() is not None:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception:  # by reference it cannot be found, which says in many ways that it must go by value
            return _by_value(value)
    return _by_value(value)


def _by_value(value: object) -> bytes:
    with needs_library("cloudpickle", needed_for="A program of several processes"):
        import cloudpickle

    return cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
