"""Values as bytes between the processes of one launch; large arrays in files, which the other process maps."""

import contextlib
import mmap
import pickle
import secrets
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from pathlib import Path

from workbench.errors import needs_library
from workbench.launch._values import Value

_LARGE_BYTES = 2**20  # an array of this size and more travels in a file
_ALIGNED = 64  # bytes, of the arrays in a file


def pickled(value: object, folder: Path | None = None) -> bytes:
    """`value` as bytes that every process of the launch can read once with `pickle.loads`.

    The notebook's own process sends what it defined by value, as the others do not have it. A spawned process tries
    the standard way first: what is importable there is importable everywhere, and cloudpickle takes long to import.

    Args:
        value: What is sent.
        folder: Where NumPy arrays of 1 MiB and more may wait for a process of this computer. Reading the bytes removes
            them.
    """
    large: list[pickle.PickleBuffer] = []
    data = _dumped(value, None if folder is None else large)
    if not large or folder is None:
        return data
    path = folder / secrets.token_hex(8)
    try:
        sizes = _write(path, large)
    except OSError:  # the disk is full: through the connection
        path.unlink(missing_ok=True)
        return _dumped(value, None)
    return pickle.dumps(_InFile(str(path), sizes, data), pickle.HIGHEST_PROTOCOL)


def _dumped(value: object, large: list[pickle.PickleBuffer] | None) -> bytes:
    """`value` as bytes, without its large buffers if there is a list for them."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Returns whether a buffer goes into the bytes."""
        if large is None or buffer.raw().nbytes < _LARGE_BYTES:
            return True
        large.append(buffer)
        return False

    if parent_process() is not None:
        with contextlib.suppress(Exception):  # by reference it cannot be found, which says in many ways: go by value
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=keep)
        if large is not None:
            large.clear()  # of the attempt that failed
    with needs_library("cloudpickle", needed_for="A program of several processes"):
        import cloudpickle

    return cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=keep)


class _InFile:
    """Bytes whose large buffers wait in a file."""

    def __init__(self, path: str, sizes: Sequence[int], data: bytes) -> None:
        self._parts = path, tuple(sizes), data

    def __reduce__(self) -> tuple[Callable[..., Value], tuple[object, ...]]:
        return _read, self._parts


def _write(path: Path, buffers: Sequence[pickle.PickleBuffer]) -> list[int]:
    with path.open("xb") as file:
        for buffer in buffers:
            file.write(buffer.raw())
            file.write(bytes(-file.tell() % _ALIGNED))
    return [buffer.raw().nbytes for buffer in buffers]


def _read(path: str, sizes: Sequence[int], data: bytes) -> Value:
    with Path(path).open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))  # private, and can be written
    Path(path).unlink()
    views, start = [], 0
    for size in sizes:
        views.append(mapped[start : start + size])
        start += size + -size % _ALIGNED
    return pickle.loads(data, buffers=views)
