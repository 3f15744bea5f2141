"""A pass over clients that do not fit in memory: batches are read ahead, and every batch is spread over the devices."""

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
from workbench.mesh import Layout, find_layout
from workbench.plan import REDUCTION_OF, ChunkSize, ClientLoop, Phase, Step, resolve_chunk_size
from workbench.primitives import CallbackErrors

BatchCall: TypeAlias = Callable[..., tuple[list[Any], list[Any]]]
"""A compiled batch: totals and rows of its operands."""

_BATCH_BYTES = 16 << 20  # of rows that are on their way at a time
_AHEAD = 2  # batches that are read while one is computed


class StreamedPass(ClientLoop):
    """`(batch number, totals so far, rows, shared) -> (kept rows, totals)`, compiled once for the devices of a mesh.

    `size` clients are one batch, spread over the devices along the layout of their placement, in chunks on each.
    """

    def __init__(self, batch_of_one: BatchFunction, mesh: AnyMesh, chunk_size: ChunkSize, size: int | None) -> None:
        self._stage, self.mesh = batch_of_one, mesh
        self._chunk_size: ChunkSize = chunk_size
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
        """Shardings of rows and of server values; None for the default device."""
        layout = self.phase.layout
        if layout is None:
            return None, None
        return NamedSharding(layout.mesh, P(layout.entry)), NamedSharding(layout.mesh, P())  # pyright: ignore

    @property
    def _clients(self) -> int:
        return self.phase.placement.size

    def _batch_size(self) -> int:
        """As many clients as fit the bytes, in batches that are equally large, so that few slots stay empty."""
        row_bytes = sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in self._stage.row_avals)
        most = max(self.shards, _BATCH_BYTES // max(1, row_bytes))
        batches = math.ceil(self._clients / most)
        together = self.chunk_size_of(self.phase, math.ceil(self._clients / batches / self.shards))
        return _multiple(math.ceil(self._clients / batches), self.shards * together)

    def chunk_size_of(self, phase: Phase, per_shard: int) -> int:
        """As `workbench.jit` chooses it for the clients of a device."""
        return resolve_chunk_size(self._chunk_size, phase, per_shard)

    def scope_of(self, step: Step) -> str:
        """As in the plan that this pass belongs to."""
        return self._stage.scope_of(step)

    def run_client_program(self, step: Step, operands: PyTree[Array]) -> list[Any]:
        """As in the plan that this pass belongs to."""
        return self._stage.run_client_program(step, operands)

    def start(self) -> list[Any]:
        """Totals of no clients."""
        _, everywhere = self.shardings
        return [jax.device_put(start(), everywhere) for start in self._starts]

    def compiled(self, totals: list[Any], rows: list[Any], shared: list[Any]) -> BatchCall:
        """The function of a batch; all batches have the shapes of the first one."""
        if self._compiled is None:
            compiled = self._run.lower(jnp.int32(0), totals, rows, shared).compile()
            self._compiled = functools.partial(self._call, compiled)
        return self._compiled

    def _call(self, compiled: Callable, *operands: object) -> tuple[list[Any], list[Any]]:
        return self._errors.call(compiled, operands, {})

    def _batch(
        self, number: jax.Array, totals: list[jax.Array], rows: list[jax.Array], shared: list[jax.Array]
    ) -> tuple[list, list]:
        typed = [from_edge(x, dtype_of(v)) for v, x in zip(self.phase.rows, rows, strict=True)]
        read = [from_edge(x, dtype_of(v)) for v, x in zip(self.phase.shared.values(), shared, strict=True)]
        kept, added = self.run_batch(self.phase, typed, read, number=number, size=self.size)
        merged = [merge(a, b) for merge, a, b in zip(self._merges, totals, added, strict=True)]
        return [to_edge(x) for x in kept], merged


def stream(work: Pass, streamed: StreamedPass) -> None:
    """Computes a pass batch by batch, reading ahead; memory is that of a few batches."""
    _, everywhere = streamed.shardings
    shared = [jax.device_put(x, everywhere) for x in work.shared]
    totals, compute = streamed.start(), None
    # Two computations with collectives at once can starve the threads of simulated devices, and XLA then aborts.
    one_at_a_time = streamed.shards > 1 and jax.default_backend() == "cpu"
    with _Reading(work, streamed) as reading:
        unfinished: tuple[_Read, list[Any], list[Any]] | None = None
        while (read := reading.next()) is not None:
            if compute is None:
                began = time.perf_counter()
                compute = streamed.compiled(totals, read.rows, shared)
                work.recorder.warmup_seconds += time.perf_counter() - began
            if unfinished is not None and one_at_a_time:
                unfinished = reading.finish(*unfinished)
            kept, totals = compute(jnp.int32(read.batch.index), totals, read.rows, shared)
            if unfinished is not None:
                reading.finish(*unfinished)
            unfinished = read, kept, totals
            del read, kept  # or their memory stays while the next batch is awaited
        assert unfinished is not None
        reading.finish(*unfinished)
    work.reduced(totals)


@dataclasses.dataclass
class _Read:
    """A batch, its rows on the devices, and the memory of the host that they were sent from, or still lie in."""

    batch: Batch
    rows: list[Any]
    memory: list[np.ndarray]


class _Reading:
    """Reads the batches of a pass in a thread, and sends them to the devices, ahead of their use.

    Rows go through a few buffers that are used again and again: fresh memory for every batch costs ten times what
    copying into them does. They are aligned, so that a CPU reads them where they are.
    """

    def __init__(self, work: Pass, streamed: StreamedPass) -> None:
        self._work, self._batches = work, work.batches(streamed.size)
        self._sharding, _ = streamed.shardings
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="workbench-read")
        self._free: queue.SimpleQueue[list[np.ndarray] | None] = queue.SimpleQueue()
        for _ in range(_AHEAD + 2):  # one more is computed, and of one the results are copied
            self._free.put([])

    def __enter__(self) -> "_Reading":
        self._waiting = collections.deque(self._reader.submit(self._read) for _ in range(_AHEAD))
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._waiting:
            future.cancel()
        self._free.put(None)  # whoever waits for memory waits no longer
        self._reader.shutdown()

    def next(self) -> _Read | None:
        """The next batch; None after the last."""
        read = self._waiting.popleft().result()
        self._waiting.append(self._reader.submit(self._read))
        return read

    def finish(self, read: _Read, kept: list[Any], totals: list[Any]) -> None:
        """Waits for a batch, takes its kept rows, and gives its memory back."""
        jax.block_until_ready((kept, totals))
        self._work.keep(read.batch, kept)
        read.rows.clear()
        self._free.put(read.memory)

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
    """An array that begins at a multiple of 64 bytes, as XLA wants it."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(dtype).reshape(shape)


def _automatic(layout: Layout | None) -> Layout | None:
    """The layout on a mesh whose axes are all Auto: the plan of an engine was traced without types of a mesh."""
    if layout is None:
        return None
    mesh = layout.mesh
    assert isinstance(mesh, jax.sharding.Mesh)  # of devices: it runs
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return Layout(jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds), layout.axes, explicit=False)


def _multiple(count: int, of: int) -> int:
    return math.ceil(count / of) * of
