"""The other end of a task: runs in a worker, which knows nothing but what arrives as bytes and arrays."""

import dataclasses
import functools
import multiprocessing
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

import jax
import numpy as np

from workbench.engines._artifact import unpack


@dataclasses.dataclass(frozen=True)
class Task:
    """One batch: the stage's StableHLO with its digest, and the arguments."""

    digest: str
    stage: bytes | memoryview
    operands: list[Any]
    sent: int | None = None  # the fingerprint of the operands, where they travel


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a batch gave: outputs as numpy arrays, where it ran, and its seconds; compiling is counted apart.

    `fingerprint` is that of the stage, the batch number and the outputs; None where nothing travelled.
    """

    outputs: list[Any]
    where: str
    seconds: float
    compile_seconds: float
    fingerprint: int | None = None

    def is_of(self, digest: str, number: int) -> bool:
        """Returns whether these are the unchanged outputs of a batch."""
        return self.fingerprint is None or self.fingerprint == fingerprint(self.outputs, digest, number)


def fingerprint(arrays: Sequence[Any], *parts: object) -> int:
    """A checksum of arrays with their shapes and dtypes, and of what they belong to."""
    crc = zlib.crc32(repr(parts).encode())
    for x in map(np.asarray, arrays):
        crc = zlib.crc32(f"{x.dtype}{x.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data, crc)
    return crc


_MOST_STAGES = 64  # compiled, kept for their next batches; a pool of threads keeps them in the kernel itself
_LOADED: dict[str, Callable] = {}
_LOCK = threading.Lock()


def run_task(task: Task) -> Reply:
    """Runs one batch; a stage is compiled when its first batch arrives and kept."""
    end_with_parent()
    if task.sent is not None and task.sent != fingerprint(task.operands, task.digest):
        message = "the rows of its clients changed on their way to the worker"
        raise ValueError(message)
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
    mark = fingerprint(outputs, task.digest, int(task.operands[0]))
    return Reply(outputs, _place(), seconds, compile_seconds, mark)


@functools.cache
def end_with_parent() -> None:
    """Ends a worker of a pool when the process that made the pool is gone; such workers never stop waiting for it."""
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
    os._exit(1)  # in the middle of a computation that nobody reads


def _load(task: Task) -> Callable:
    _, module = unpack(bytes(task.stage))
    shapes = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in task.operands]
    return jax.jit(module.call).lower(*shapes).compile()


def _place() -> str:
    return f"process {os.getpid()}, {threading.current_thread().name}"
