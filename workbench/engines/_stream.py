"""Streaming passes, in which batches are read ahead and each batch is sharded over the devices."""

import collections
import dataclasses
import functools
import math
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from workbench._types import AnyMesh, PyTree
from workbench.engines._client_loop import Pass
from workbench.engines._clients import Batch
from workbench.engines._stage import BatchFunction, dtype_of, from_edge, to_edge
from workbench.plan import REDUCTION_OF, ChunkSize, ClientLoop, Phase, Step
from workbench.primitives import CallbackErrors, Layout, find_layout

BatchCall: TypeAlias = Callable[..., tuple[list[Any], list[Any]]]
"""A compiled batch, which returns totals and rows."""

_BATCH_BYTES = 16 << 20  # total size of the rows in flight at a time
_AHEAD = 2  # batches that are read ahead while a batch is computed


class StreamedPass(ClientLoop):
    """`(batch number, totals so far, rows, shared) -> (kept rows, totals)`, compiled once for the devices of a mesh.

    A batch has `size` clients, sharded over the devices according to their placement's layout; each device computes its
    clients in chunks.
    """

    def __init__(self, batch_of_one: BatchFunction, mesh: AnyMesh, chunk_size: ChunkSize, size: int | None) -> None:
        self._stage, self.mesh = batch_of_one, mesh
        self.chunk_size = chunk_size
        layout = _automatic(find_layout(batch_of_one.phase.placement, mesh, uneven=True) if mesh is not None else None)
        self.phase: Phase = dataclasses.replace(batch_of_one.phase, layout=layout)
        self.shards: int = 1 if layout is None else layout.size
        self.size: int = self._batch_size() if size is None else _multiple(min(size, self._clients), self.shards)
        equations = [step.equation for step in self.phase.reductions]
        self._merges = [REDUCTION_OF[equation.primitive].merge for equation in equations]
        self._starts = [functools.partial(REDUCTION_OF[equation.primitive].start, equation) for equation in equations]
        rows, everywhere = self.shardings
        self._compiled: BatchCall | None = None
        self._errors = CallbackErrors(batch_of_one.name, batch_of_one.stage)
        self._run = jax.jit(self._errors.guarding(self._batch), in_shardings=(None, everywhere, rows, everywhere))

    @property
    def shardings(self) -> tuple[Any, Any]:
        """Shardings for rows and for server values, or None for the default device."""
        layout = self.phase.layout
        if layout is None:
            return None, None
        return NamedSharding(layout.mesh, P(layout.entry)), NamedSharding(layout.mesh, P())  # pyright: ignore

    @property
    def _clients(self) -> int:
        return self.phase.placement.size

    def _batch_size(self) -> int:
        """The batch size, limited by the byte budget; batches have equal sizes, so that few slots are empty."""
        row_bytes = sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in self._stage.row_avals)
        most = max(self.shards, _BATCH_BYTES // max(1, row_bytes))
        batches = math.ceil(self._clients / most)
        together = self.chunk_size_of(self.phase, math.ceil(self._clients / batches / self.shards))
        return _multiple(math.ceil(self._clients / batches), self.shards * together)

    def scope_of(self, step: Step) -> str:
        return self._stage.scope_of(step)

    def run_client_program(self, step: Step, operands: PyTree[Array]) -> list[Any]:
        return self._stage.run_client_program(step, operands)

    def start(self) -> list[Any]:
        _, everywhere = self.shardings
        return [jax.device_put(start(), everywhere) for start in self._starts]

    def compiled(self, totals: list[Any], rows: list[Any], shared: list[Any]) -> BatchCall:
        """Compiles the batch function; all batches have the same shapes as the first batch."""
        if self._compiled is None:
            compiled = self._run.lower(jnp.int32(0), totals, rows, shared).compile()
            self._compiled = lambda *operands: self._errors.call(compiled, operands, {})
        return self._compiled

    def _batch(
        self, number: jax.Array, totals: list[jax.Array], rows: list[jax.Array], shared: list[jax.Array]
    ) -> tuple[list, list]:
        typed = [from_edge(x, dtype_of(v)) for v, x in zip(self.phase.rows, rows, strict=True)]
        values = [from_edge(x, dtype_of(v)) for v, x in zip(self.phase.shared.values(), shared, strict=True)]
        row_outputs, added = self.run_batch(self.phase, typed, values, number=number, size=self.size)
        merged = [merge(a, b) for merge, a, b in zip(self._merges, totals, added, strict=True)]
        return [to_edge(x) for x in row_outputs], merged


def stream(work: Pass, streamed: StreamedPass) -> None:
    """Computes a pass batch by batch with read-ahead; only a few batches are in memory at a time."""
    _, everywhere = streamed.shardings
    shared = [jax.device_put(x, everywhere) for x in work.shared]
    totals, compute = streamed.start(), None
    # Two concurrent computations with collectives can starve the threads of simulated devices, and XLA then aborts.
    one_at_a_time = streamed.shards > 1 and jax.default_backend() == "cpu"
    with _Reading(work, streamed) as reading:
        unfinished: tuple[_Read, list[Any], list[Any]] | None = None
        while (entry := reading.next()) is not None:
            if compute is None:
                began = time.perf_counter()
                compute = streamed.compiled(totals, entry.rows, shared)
                work.recorder.warmup_seconds += time.perf_counter() - began
            if unfinished is not None and one_at_a_time:
                unfinished = reading.finish(*unfinished)
            row_outputs, totals = compute(jnp.int32(entry.batch.index), totals, entry.rows, shared)
            if unfinished is not None:
                reading.finish(*unfinished)
            unfinished = entry, row_outputs, totals
            del entry, row_outputs  # otherwise their memory stays allocated while this loop waits for the next batch
        assert unfinished is not None
        reading.finish(*unfinished)
    work.reduced(totals)


@dataclasses.dataclass
class _Read:
    """A batch, its rows on the devices, and the host buffers of these rows."""

    batch: Batch
    rows: list[Any]
    memory: list[np.ndarray]


class _Reading:
    """Reads batches in a thread and sends them to the devices before they are needed.

    Rows are copied into a few reused buffers; allocating new memory for every batch would take ten times as long as
    these copies. The buffers are aligned so that a CPU device can read them without a copy.
    """

    def __init__(self, work: Pass, streamed: StreamedPass) -> None:
        self._work, self._batches = work, work.batches(streamed.size)
        self._sharding, _ = streamed.shardings
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="workbench-read")
        self._free: queue.SimpleQueue[list[np.ndarray] | None] = queue.SimpleQueue()
        for _ in range(_AHEAD + 2):  # plus one batch that is being computed, and one whose results are being copied
            self._free.put([])

    def __enter__(self) -> "_Reading":
        self._waiting = collections.deque(self._reader.submit(self._read) for _ in range(_AHEAD))
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._waiting:
            future.cancel()
        self._free.put(None)  # release a thread that is waiting for memory
        self._reader.shutdown()

    def next(self) -> _Read | None:
        entry = self._waiting.popleft().result()
        self._waiting.append(self._reader.submit(self._read))
        return entry

    def finish(self, entry: _Read, row_outputs: list[Any], totals: list[Any]) -> None:
        """Waits for a batch, stores its kept rows, and frees its memory."""
        jax.block_until_ready((row_outputs, totals))
        self._work.keep(entry.batch, row_outputs)
        entry.rows.clear()
        self._free.put(entry.memory)

    def _read(self) -> _Read | None:
        batch = next(self._batches, None)
        memory = self._free.get() if batch is not None else None
        if batch is None or memory is None:
            return None
        if not memory:
            memory = [_aligned(x.shape, x.dtype) for x in batch.rows]
        for buffer, x in zip(memory, batch.rows, strict=True):
            buffer[...] = x
        rows = [jax.device_put(x, self._sharding) for x in memory]
        return _Read(dataclasses.replace(batch, rows=[]), rows, memory)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocates a 64-byte aligned array, which XLA reads without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _automatic(layout: Layout | None) -> Layout | None:
    """Copies the layout with all mesh axes set to Auto, because engine plans are traced without axis types."""
    if layout is None:
        return None
    mesh = layout.mesh
    assert isinstance(mesh, jax.sharding.Mesh)  # the mesh of a running computation is never abstract
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return Layout(jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds), layout.axes, explicit=False)


def _multiple(count: int, of: int) -> int:
    return math.ceil(count / of) * of
