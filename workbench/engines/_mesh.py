"""The JAX engine: compiles the whole program for the devices of a mesh."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal

import jax

from workbench import _jax_compat
from workbench.engines._client_loop import Pass
from workbench.engines._clients import Batch, ClientReader
from workbench.engines._engine import KEPT_PLANS, Engine, check_batch_size
from workbench.engines._run_recorder import Progress, RunRecorder, brief
from workbench.engines._stream import StreamedPass, stream
from workbench.errors import EngineError, WorkbenchError
from workbench.plan import ChunkSize, jit, listeners
from workbench.records.run import RunRecord


class MeshEngine(Engine):
    """Runs a program with `workbench.jit`, and returns a run record like other engines.

    All stages are compiled into one computation, so the record does not contain the time of each stage; to measure
    stages, use `workbench.measure`.

    Clients of a `ClientReader` need not fit in the memory of the devices or of this machine. A thread reads batches of
    clients and sends them to the devices while earlier batches are processed; each batch is then released. Only a few
    batches are in memory at a time, regardless of the number of clients. Rows that the program keeps for every client
    are copied to the host.

    Args (of the constructor):
        mesh: Mesh to run on. Default: the mesh of `jax.set_mesh`.
        chunk_size: As for `workbench.jit`.
        clients_per_batch: Number of clients of a `ClientReader` that are on the devices at once, rounded up to a
            multiple of the number of devices. "auto": as many as fit in 16 MiB of rows, in batches of equal size.

    Raises:
        ProgramError: if `clients_per_batch` is neither "auto" nor a positive int.

    Example:
        >>> import workbench as wb
        >>> @wb.program(clients=3)
        ... def total(x):
        ...     return wb.reduce_sum(wb.map_fn(lambda row: row**2, x))
        >>> float(MeshEngine().run(total, jax.numpy.arange(3.0)).results)
        5.0
    """

    name: str = "mesh"

    def __init__(
        self,
        mesh: jax.sharding.Mesh | None = None,
        *,
        chunk_size: ChunkSize = "auto",
        clients_per_batch: int | Literal["auto"] = "auto",
    ) -> None:
        batch = "one batch of a `ClientReader` on the devices"
        check_batch_size("MeshEngine", batch, clients_per_batch, auto="rows of 16 MiB")
        self.mesh = mesh
        self.chunk_size: ChunkSize = chunk_size
        self.clients_per_batch: int | Literal["auto"] = clients_per_batch
        self._programs: dict[Any, Callable] = {}
        self._jitted: dict[Callable, Callable] = {}

    def run(
        self, fn: Callable, *args: object, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> RunRecord:
        """Runs a program; see `Engine.run`.

        Without a `ClientReader`, progress is reported and `cancel` is checked only before and after the computation.
        With a `ClientReader`, both happen after every batch.
        """
        self._check(fn, args)
        if any(isinstance(x, ClientReader) for x in jax.tree.leaves(args, is_leaf=_is_reader)):
            mesh = self.mesh if self.mesh is not None else jax.sharding.get_mesh()
            token = _MESH.set(None if mesh.empty else mesh)
            try:
                return super().run(fn, *args, progress=progress, cancel=cancel)
            finally:
                _MESH.reset(token)
        recorder = RunRecorder(getattr(fn, "__name__", type(fn).__name__), self.name, progress, cancel)
        try:
            recorder.check("", 0.0)
            with jax.set_mesh(self.mesh) if self.mesh is not None else contextlib.nullcontext():
                started = time.perf_counter()
                compiled = self._compiled(fn, args)
                recorder.warmup_seconds = time.perf_counter() - started
                started = time.perf_counter()
                results = jax.block_until_ready(compiled(*args))
        except WorkbenchError:
            raise
        except Exception as error:
            message = (
                f"`{recorder.name}` failed on the mesh: {brief(error)}. The compiled program runs as a whole, so the "
                "stage and the client are not known: run it with `workbench.engines.Sequential()`, which names both."
            )
            raise EngineError(message) from error
        recorder.stage("", f"{jax.default_backend()} x {len(jax.devices())}", time.perf_counter() - started)
        recorder.check("", 1.0)
        recorder.note("the program ran as one computation: use `workbench.measure` for the time of each stage")
        return recorder.record(results)

    def _compiled(self, fn: Callable, args: tuple[Any, ...]) -> Callable:
        """Caches compiled programs by function, shapes and mesh; `listen` selects the version that emits values."""
        if listeners():
            return self._jitted.setdefault(fn, jit(fn, chunk_size=self.chunk_size))
        shapes = [str(_jax_compat.aval_of(x)) for x in jax.tree.leaves(args)]
        shardings = [getattr(x, "sharding", None) for x in jax.tree.leaves(args)]
        key = (fn, jax.tree.structure(args), *shapes, *shardings, jax.sharding.get_mesh())
        if key not in self._programs:
            while len(self._programs) >= KEPT_PLANS:
                self._programs.pop(next(iter(self._programs)))
            jitted = jit(fn, chunk_size=self.chunk_size)
            self._programs[key] = functools.partial(jitted.run_compiled, jitted.lower(*args).compile())
        return self._programs[key]

    def _compute(self, work: Pass) -> None:
        mesh, function = _MESH.get(), work.function(1)
        streamed = function.streamed  # cached and released together with its plan
        if not isinstance(streamed, StreamedPass) or streamed.mesh != mesh:
            size = None if self.clients_per_batch == "auto" else self.clients_per_batch
            streamed = function.streamed = StreamedPass(function, mesh, self.chunk_size, size)
        started, compiling = time.perf_counter(), work.recorder.warmup_seconds
        try:
            stream(work, streamed)
        except WorkbenchError:
            raise
        except Exception as error:
            raise work.failed(Batch(0, tuple(range(work.clients)), []), error, "the mesh") from error
        compiling = work.recorder.warmup_seconds - compiling
        where = f"{jax.default_backend()} x {streamed.shards}"
        work.recorder.stage(work.stage, where, time.perf_counter() - started - compiling)
        work.recorder.note(f"stage {work.stage} read its clients in batches of {streamed.size}")


_MESH: ContextVar[Any] = ContextVar("workbench_streaming_mesh", default=None)


def _is_reader(x: object) -> bool:
    return isinstance(x, ClientReader)
