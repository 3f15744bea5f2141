"""Tasks for workers, which receive only bytes and arrays."""

import dataclasses
import functools
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from workbench._processes import is_removed, remove_with_this_process
from workbench.engines._artifact import unpack
from workbench.engines._places import load_arrays, save_arrays


class Slice(NamedTuple):
    """The clients from `start` to `stop` of a stored part, and the part's checksum."""

    start: int
    stop: int
    mark: int


@dataclasses.dataclass(frozen=True)
class Task:
    """One batch, with the stage's StableHLO and its digest, and the arguments that are not in `Values`."""

    digest: str
    stage: bytes | memoryview
    operands: list[Any]
    sent: int | None = None  # fingerprint of the operands, if they are sent
    held: tuple[tuple[int, int], ...] = ()  # rows read from parts: the position of each row argument, and its leaf
    slices: tuple[Slice, ...] = ()  # of each part
    size: int = 0  # slots of the batch

    def inputs(self, values: "Values | None") -> tuple[Any, ...]:
        """Checksums of all inputs; they distinguish a batch from the same batch in another pass."""
        return self.sent, self.slices, None if values is None else values.sent


@dataclasses.dataclass(frozen=True)
class Values:
    """The stage and the server's values, shared by all batches of a pass, with a fingerprint of both."""

    stage: bytes
    arrays: Sequence[Any]
    sent: int

    @property
    def nbytes(self) -> int:
        return len(self.stage) + sum(x.nbytes for x in self.arrays)


class StoredValues:
    """Values in a file that each worker on this machine reads once; the file is removed with this object."""

    def __init__(self, values: Values) -> None:
        folder = tempfile.mkdtemp(prefix="workbench-values-")
        remove_with_this_process(Path(folder))
        self.path, self.sent = f"{folder}/values.npz", values.sent
        save_arrays(self.path, [np.frombuffer(values.stage, np.uint8), *values.arrays])
        weakref.finalize(self, remove_values, folder)

    def __reduce__(self) -> tuple[Callable, tuple[str, int]]:
        return _read_values, (self.path, self.sent)


def remove_values(folder: str) -> None:
    """Removes a temporary folder before this process exits."""
    shutil.rmtree(folder, ignore_errors=True)
    is_removed(Path(folder))


@functools.lru_cache(maxsize=2)
def _read_values(path: str, sent_bytes: int) -> Values:
    stage, *arrays = load_arrays(path)
    return Values(stage.tobytes(), arrays, sent_bytes)


@dataclasses.dataclass(frozen=True)
class Reply:
    """Result of a batch: outputs as numpy arrays, the worker, and its compute time in seconds (without compilation).

    `fingerprint` covers the stage, the batch number, the inputs and the outputs; it is None if nothing was sent.
    """

    outputs: list[Any]
    where: str
    seconds: float
    compile_seconds: float
    fingerprint: int | None = None

    def is_of(self, digest: str, number: int, inputs: tuple[Any, ...]) -> bool:
        """Returns whether these are the outputs of the batch in this pass, unchanged."""
        return self.fingerprint is None or self.fingerprint == fingerprint(self.outputs, digest, number, inputs)


def fingerprint(arrays: Sequence[Any], *parts: object) -> int:
    """Computes a checksum over arrays, including their shapes and dtypes, and over `parts`."""
    crc = zlib.crc32(repr(parts).encode())
    for x in map(np.asarray, arrays):
        crc = zlib.crc32(f"{x.dtype}{x.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data, crc)
    return crc


def token(*parts: object) -> int:
    """Returns a number for a batch or keyed row (a token); sums of tokens reveal missing or repeated batches."""
    return zlib.crc32(repr(parts).encode())


def counted(tokens: Sequence[int]) -> np.ndarray:
    return np.array([len(tokens), sum(tokens)], np.int64)


def merged(merges: Sequence[str], a: Sequence[Any], b: Sequence[Any]) -> list[np.ndarray]:
    """Merges two lists of partial results with the NumPy functions `merges`, each in its reduction's dtype."""
    return [np.asarray(getattr(np, name)(x, y)) for name, x, y in zip(merges, a, b, strict=True)]


def groups_of(partial: Sequence[np.ndarray], axes: Sequence[int]) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields the groups that are not 0 of keyed partial results, as (index of the result, key, values)."""
    for number, (table, axis) in enumerate(zip(partial, axes, strict=True)):
        if axis >= 0:
            groups = np.moveaxis(table, axis, 0)
            for key in np.flatnonzero(groups.reshape(len(groups), -1).any(axis=1)):
                yield number, int(key), groups[key]


_MOST_STAGES = 64  # compiled stages, cached for later batches; with thread pools the cache is in this process
_LOADED: dict[str, Callable] = {}
_LOCK = threading.Lock()


def _rows_of_parts(task: Task, parts: Sequence[Any]) -> list[Any]:
    if [part.mark for part in parts] != [x.mark for x in task.slices]:
        message = (
            "a part of the table was read again and returned different clients: write the table to files first, "
            "and read these files"
        )
        raise ValueError(message)
    operands = list(task.operands)
    for place, leaf in task.held:
        rows = [part.leaves[leaf][x.start : x.stop] for part, x in zip(parts, task.slices, strict=True)]
        filled = np.concatenate([*rows, *[rows[0][:1]] * (task.size - sum(map(len, rows)))])
        operands.insert(place + 1, filled)
    return operands


def run_task(task: Task, values: Values | None = None, *parts: Any) -> Reply:
    """Runs one batch; a stage is compiled when its first batch arrives, and then cached."""
    end_with_parent()
    inputs = task.inputs(values)
    if values is not None and values.sent != fingerprint(values.arrays, task.digest):
        message = "the server's values changed in transit to the worker"
        raise ValueError(message)
    if task.sent is not None and task.sent != fingerprint(task.operands, task.digest):
        message = "the rows of its clients changed in transit to the worker"
        raise ValueError(message)
    if task.held:
        task = dataclasses.replace(task, operands=_rows_of_parts(task, parts))
    if values is not None:
        task = dataclasses.replace(task, stage=values.stage, operands=[*task.operands, *values.arrays])
    started = time.perf_counter()
    call, compile_seconds = _LOADED.get(task.digest), 0.0
    if call is None:
        with _LOCK:  # two threads of one worker must not compile the same stage twice
            call = _LOADED.get(task.digest)
            if call is None:
                call = _load(task)
                while len(_LOADED) >= _MOST_STAGES:
                    del _LOADED[next(iter(_LOADED))]  # the oldest
                _LOADED[task.digest] = call
                compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    outputs = [np.asarray(x) for x in jax.block_until_ready(call(*task.operands))]
    seconds = time.perf_counter() - started
    mark = fingerprint(outputs, task.digest, int(task.operands[0]), inputs)
    return Reply(outputs, f"process {os.getpid()}, {threading.current_thread().name}", seconds, compile_seconds, mark)


@functools.cache
def end_with_parent() -> None:
    """Exits a pool's worker when its parent process is gone; otherwise the worker would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_end, args=(parent,), name="end with the kernel", daemon=True).start()


def _wait_for_end(parent: BaseProcess) -> None:
    sentinel = getattr(parent, "_sentinel", None)
    if sentinel is not None:
        connection.wait([sentinel])
    elif os.getppid() == parent.pid:  # loky's workers have no sentinel
        while os.getppid() == parent.pid:
            time.sleep(0.5)
    else:
        return
    os._exit(1)  # even during a computation, because nothing will read its result


def _load(task: Task) -> Callable:
    _, module = unpack(bytes(task.stage))
    shapes = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in task.operands]
    return jax.jit(module.call).lower(*shapes).compile()
