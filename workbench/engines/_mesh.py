"""The engine that is JAX itself: the whole program compiled for the devices of a mesh."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from workbench import _jax_compat
from workbench.engines._client_loop import Pass
from workbench.engines._clients import ClientReader
from workbench.engines._engine import KEPT_PLANS, Engine
from workbench.engines._run_recorder import Ledger, tell
from workbench.errors import EngineError, WorkbenchError
from workbench.plan import ChunkSize, jit, listeners
from workbench.records import RunRecord


class Mesh(Engine):
    """Runs a program as `workbench.jit` does, and returns a record as the other engines do.

    Stages are compiled into one computation here, so the record has no seconds of their own: see `workbench.measure`.
    The rows of a `ClientReader` are read into memory.

    Args (of the constructor):
        mesh: Mesh to run on. Default: that of `jax.set_mesh`.
        chunk_size: As for `workbench.jit`.

    Example:
        >>> import workbench as wb
        >>> @wb.program(clients=3)
        ... def total(x):
        ...     return wb.reduce_sum(wb.map_fn(lambda row: row**2, x))
        >>> float(Mesh().run(total, np.arange(3, dtype=np.float32)).results)
        5.0
    """

    name: str = "mesh"

    def __init__(self, mesh: jax.sharding.Mesh | None = None, *, chunk_size: ChunkSize = "auto") -> None:
        self.mesh = mesh
        self.chunk_size: ChunkSize = chunk_size
        self._programs: dict[Any, Callable] = {}
        self._jitted: dict[Callable, Callable] = {}

    def run(self, fn: Callable, *args: Any, progress: Any = None, cancel: Any = None) -> RunRecord:
        """As every engine's `run`; progress is told, and `cancel` looked at, before and after the computation only."""
        ledger = Ledger(getattr(fn, "__name__", type(fn).__name__), self.name, progress, cancel)
        try:
            ledger.check("", 0.0)
            whole = jax.tree.map(_read_all, args, is_leaf=lambda x: isinstance(x, ClientReader))
            with jax.set_mesh(self.mesh) if self.mesh is not None else contextlib.nullcontext():
                started = time.perf_counter()
                compiled = self._compiled(fn, whole)
                ledger.warmup_seconds = time.perf_counter() - started
                started = time.perf_counter()
                results = jax.block_until_ready(compiled(*whole))
        except WorkbenchError:
            raise
        except Exception as error:
            message = (
                f"`{ledger.name}` failed on the mesh: {tell(error)}. The compiled program runs as a whole, so stage "
                "and client are not known: run it with `workbench.engines.Sequential()`, which names them."
            )
            raise EngineError(message) from error
        ledger.stage("", f"{jax.default_backend()} x {len(jax.devices())}", time.perf_counter() - started)
        ledger.check("", 1.0)
        ledger.note("one computation: `workbench.measure` tells the seconds of each stage")
        return ledger.record(results)

    def _compiled(self, fn: Callable, args: Any) -> Callable:
        """The compiled program, kept by function, shapes and mesh; who listens needs the program that tells."""
        if listeners():
            return self._jitted.setdefault(fn, jit(fn, chunk_size=self.chunk_size))
        shapes = [str(_jax_compat.aval_of(x)) for x in jax.tree.leaves(args)]
        shardings = [getattr(x, "sharding", None) for x in jax.tree.leaves(args)]
        key = (fn, jax.tree.structure(args), *shapes, *shardings, jax.sharding.get_mesh())
        if key not in self._programs:
            while len(self._programs) >= KEPT_PLANS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = jit(fn, chunk_size=self.chunk_size).lower(*args).compile()
        return self._programs[key]

    def _compute(self, work: Pass) -> None:
        raise AssertionError(work)  # run does not walk the plan


def _read_all(x: Any) -> Any:
    if not isinstance(x, ClientReader):
        return x
    columns = zip(*(leaves for _, leaves in x.read("0")), strict=True)
    return jax.tree.unflatten(x.structure, [np.stack(column) for column in columns])
