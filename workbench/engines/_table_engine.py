"""Engines whose workers read clients from tables, and write results to tables."""

import abc
import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jax.extend.core import Var

from workbench._open_types import Foreign
from workbench.engines._clients import ClientReader
from workbench.engines._engine import Engine
from workbench.engines._interpreter import PlanInterpreter
from workbench.engines._places import place
from workbench.engines._run_recorder import Progress, brief
from workbench.errors import EngineError, ProgramError
from workbench.plan import Plan, Scan, control_flow, find_phases, plan_jaxpr
from workbench.records.run import RunRecord

Packer = Callable[[Any, Any], ClientReader]
"""Packs a source or a `TableReader` on the workers, for a pytree of shapes `[clients, ...]`."""


class TableReader(ClientReader):
    """Clients of a `table`, which the workers of one `engine` group and pack."""

    engine: ClassVar[str]
    table: ClassVar[str]


class TableEngine(Engine):
    """Base class of `Spark` and `Beam`, which read and write tables on their workers."""

    clients_per_batch: int
    check_nan: bool
    timeout_seconds: float | None
    read_from: Foreign
    write_to: Foreign
    _table: ClassVar[str]  # what `clients_from` reads for this engine
    _source: ClassVar[str]  # what `read_from` is
    _sink_advice: ClassVar[str]  # for a `write_to` that fails on the columns `{columns}`

    def run(
        self, fn: Callable, *args: object, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> RunRecord:
        """Runs a program; with `read_from`, pass one argument as shapes. See `Engine.run`."""
        with self._packing(running=True) as pack:
            if self.read_from is not None:
                position = self._argument_of_source(args)
                args = (*args[:position], pack(self.read_from, args[position]), *args[position + 1 :])
            args = tuple(pack(x, x.struct) if isinstance(x, TableReader) and self._packs(x) else x for x in args)
            record, walk = self._ran(fn, args, progress, cancel)
            if self.write_to is not None:
                self._write_results(record, walk)
            return record

    @contextlib.contextmanager
    def read(self, clients: ClientReader) -> Iterator[ClientReader]:
        """Packs the clients of a table once, for all runs of this engine in the `with` block.

        Args:
            clients: The result of `clients_from` for a DataFrame in the session of this `Spark`, or for a PCollection
                with `Beam`.

        Raises:
            ProgramError: if `clients` does not read such a table.
        """
        if not isinstance(clients, TableReader) or not self._packs(clients):
            name = type(self).__name__
            message = (
                f"`{name}.read` was given an object of type {type(clients).__name__}. `{name}.read` packs the clients "
                f"of a {self._table} on the workers: call `clients_from` on the {self._table}, and pass its result."
            )
            raise ProgramError(message)
        with self._packing(running=False) as pack:
            yield pack(clients, clients.struct)

    @abc.abstractmethod
    def _packing(self, *, running: bool) -> contextlib.AbstractContextManager[Packer]:
        """Prepares the workers for packing clients and, if `running`, for the passes of a run."""

    @abc.abstractmethod
    def _write(self, ids: Sequence[Any], rows: Mapping[str, np.ndarray]) -> None:
        """Writes the rows of all clients to `write_to`."""

    def _packs(self, clients: TableReader) -> bool:
        return any(clients.engine == base.__name__ for base in type(self).__mro__)

    def _argument_of_source(self, args: Sequence[Any]) -> int:
        as_shapes = [
            i
            for i, x in enumerate(args)
            if (leaves := jax.tree.leaves(x)) and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
        ]
        if len(as_shapes) != 1:
            message = (
                f"`{type(self).__name__}.run` was given {len(as_shapes)} arguments as shapes and a `read_from`. The "
                f"{self._source} provides the clients for one argument. Pass a pytree of "
                "`jax.ShapeDtypeStruct((clients, ...), dtype)` for this argument, and arrays for all other arguments."
            )
            raise ProgramError(message)
        return as_shapes[0]

    def _write_results(self, record: RunRecord, walk: PlanInterpreter) -> None:
        ids, rows = table_of_clients(type(self).__name__, record, walk)
        try:
            self._write(ids, rows)
        except EngineError:
            raise
        except Exception as error:
            message = (
                f"`write_to` failed for the results of `{record.name}` on {self.name}: {brief(error)}. "
                f"{self._sink_advice.format(columns=', '.join(map(repr, rows)))} The results are in this error's "
                "`run`."
            )
            raise EngineError(message, run=record) from error


def source_fact(error: Exception, where: str = "") -> str:
    """Describes what is wrong with a source, as its workers reported it."""
    fact = re.search(r"\[source\] ([^\n]*?)(?: \[while|$)", str(error), re.MULTILINE)
    place_of = f" on {where}" if where else ""
    return f"{fact[1]}{place_of}" if fact else f"an error{place_of}: {brief(error)}"


def check_clients(source: str, found: int, distinct: int, struct: object) -> None:
    """Checks that a source has the clients of a program, each of them once."""
    clients = {x.shape[0] for x in jax.tree.leaves(struct)}
    if clients != {found} or distinct < found:
        message = (
            f"{source} returned {found} clients, {distinct} of them distinct, but the program has "
            f"{' and '.join(map(str, sorted(clients)))}. Each client must be in the source exactly once: correct the "
            "source, or the shapes and `clients` of the program."
        )
        raise EngineError(message)


def table_of_clients(engine: str, record: RunRecord, walk: PlanInterpreter) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Collects the client ids, and all results with one row per client, named "out[0]" and so on.

    If a loop returns a result for every client in every round, a client's row has shape `[rounds, ...]`.
    """
    axes = _axes_of_rows(walk.plan)
    paths, _ = jax.tree_util.tree_flatten_with_path(record.results)
    outputs = walk.plan.closed.jaxpr.outvars[: len(paths)]
    rows = {
        f"out{jax.tree_util.keystr(path)}": np.moveaxis(np.asarray(x), axes[v], 0)
        for (path, x), v in zip(paths, outputs, strict=True)
        if isinstance(v, Var) and v in axes
    }
    ids = list(dict.fromkeys(client.client for client in record.clients))
    if {len(x) for x in rows.values()} != {len(ids)}:
        message = (
            f"`{engine}.run` was given a `write_to`, and `{record.name}` returned {len(rows)} results with a row for "
            f"each of the {len(ids)} clients. A table can contain only the rows of one placement's clients. "
            "Return a result of `map_fn`; if the program returns anything else, use an engine without `write_to`."
        )
        raise ProgramError(message)
    return ids, rows


def _axes_of_rows(plan: Plan) -> dict[Var, int]:
    """Maps variables with client rows to their client axis; loops add an iteration axis before the client axis."""
    axes = {v: 0 for phases in find_phases(plan, alike=False).values() for phase in phases for v in phase.kept}
    for step in plan.steps:
        flow = control_flow(step.equation) if step.kind == "loop" else None
        if isinstance(flow, Scan):
            inner = _axes_of_rows(plan_jaxpr(flow.body, plan.name))
            for i, (inner_out, out) in enumerate(zip(flow.body.jaxpr.outvars, step.equation.outvars, strict=True)):
                if isinstance(inner_out, Var) and inner_out in inner:
                    axes[out] = inner[inner_out] + (i >= flow.carries)
    return axes


def check_folder(engine: str, folder: str | Path | None) -> None:
    if folder is None:
        return
    try:
        probe = place(folder) / f".workbench-{secrets.token_hex(4)}"
        probe.write_bytes(b"")
        probe.unlink()
    except Exception as error:
        message = (
            f"`{engine}` was given folder={str(folder)!r}, but no file can be written there: {brief(error)}. The "
            "engine stores rows in this folder, and this process and all workers read them through the same path. "
            "Pass an existing "
            'folder that all of them can access, or an address such as "s3://bucket/tmp" (extra `storage`, and s3fs '
            "for s3)."
        )
        raise ProgramError(message) from error
