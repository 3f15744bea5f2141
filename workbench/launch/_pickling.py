"""Pickling between the processes of a launch, with large arrays in memory-mapped files."""

import contextlib
import mmap
import pickle
import secrets
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from pathlib import Path

from workbench.errors import ProgramError, needs_library
from workbench.launch._nodes import NodeSpec
from workbench.launch._values import Value

_LARGE_BYTES = 2**20  # larger arrays are sent in a file
_ALIGNED = 64  # alignment of the arrays in a file, in bytes


def pickled(value: object, folder: Path | None = None) -> bytes:
    """Pickles `value` to bytes that another process of the launch can load, but only once.

    The notebook's process pickles its definitions by value, because other processes cannot import them. A spawned
    process tries standard pickle first: its modules can be imported, and importing cloudpickle is slow.
    """
    large: list[pickle.PickleBuffer] = []
    data = _dumped(value, None if folder is None else large)
    if not large or folder is None:
        return data
    path = folder / secrets.token_hex(8)
    try:
        sizes = _write(path, large)
    except OSError:  # the disk is full: send the arrays through the connection
        path.unlink(missing_ok=True)
        return _dumped(value, None)
    return pickle.dumps(_InFile(str(path), sizes, data), pickle.HIGHEST_PROTOCOL)


def _dumped(value: object, large: list[pickle.PickleBuffer] | None) -> bytes:
    """Pickles `value`; appends large buffers to `large` if it is a list."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if large is None or buffer.raw().nbytes < _LARGE_BYTES:
            return True
        large.append(buffer)
        return False

    if parent_process() is not None:
        with contextlib.suppress(Exception):  # not importable, with various exceptions: pickle by value
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=keep)
        if large is not None:
            large.clear()  # buffers of the failed attempt
    with needs_library("cloudpickle", needed_for="A program of several processes"):
        import cloudpickle

    return cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=keep)


def pickled_nodes(specs: Sequence[NodeSpec], engine: str) -> bytes:
    try:
        return pickled(specs)
    except Exception as error:
        faults = [f"{spec.label} ({fault})" for spec in specs if (fault := _fault(spec))]
        message = (
            f"`launch` on {engine!r} cannot send these nodes to their process: {'; '.join(faults) or error}. A "
            "process starts empty, so a node's target and arguments must be picklable: pass plain data, and create "
            "locks, generators and connections inside the node's constructor."
        )
        raise ProgramError(message) from error


def _fault(spec: NodeSpec) -> str | None:
    try:
        pickled(spec)
    except Exception as error:  # pickling a user's object may raise anything
        return f"{type(error).__name__}: {error}"
    return None


class _InFile:
    """Pickled bytes with large buffers in a file."""

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
