"""The Flower engine, in which each client is a node that keeps its data and rows."""

import dataclasses
import importlib.util
import itertools
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workbench._types import Aval
from workbench.engines._client_loop import Pass, list_clients
from workbench.engines._clients import Batch, ReadRows, RemoteRows, materialize
from workbench.engines._cohorts import absent_rows
from workbench.engines._engine import Engine, Progress
from workbench.engines._run_recorder import RunRecorder
from workbench.engines._stage import edge_aval, from_edge, to_host
from workbench.engines.flower._app.asks import Ask, NodeFailure, NodeReply, ToDrop
from workbench.engines.flower._app.stages import as_plain
from workbench.engines.flower._export import export_app
from workbench.engines.flower._runtime import Deployment, FlowerSimulation, Runtime, check_users
from workbench.errors import EngineError, MissingDependencyError, ProgramError
from workbench.plan import Plan, loop_bodies, plan_jaxpr
from workbench.records.run import RunRecord


@dataclasses.dataclass(eq=False, repr=False)
class Flower(Engine):
    """Runs server stages in this process, and each client on its own Flower node (extra `flower`).

    Arguments `[clients, ...]` are client data: each node reads its rows from its own folder, and messages never contain
    them. Values for later stages of the same client stay on the node. The server receives partial results of
    reductions, and rows only if the server or the caller reads them; the record's `leaves` lists these rows.

    The runtime starts with the first run and serves later runs, until `close`, the end of a `with` block, or the exit
    of this process. No part of the runtime outlives this process.

    Args (of the constructor):
        runtime: "simulation" is Flower's simulation runtime, which uses Ray worker processes. "deployment" is a
            SuperLink, and a SuperNode for each node, on the loopback interface of this machine. These processes
            start a new Python process for every message, so a stage takes half a minute. Use this runtime
            to prove that the parties are separate.
        nodes: Number of nodes. Default: the number that the first program needs; more nodes are started when a later
            program needs them.
        clients_per_node: Number of clients per node. A node sends one partial result for all its clients.
        workers: Number of worker processes in the simulation. Default: one per core of the machine.
        check_nan: Stop the run at the first NaN that a node returns.
        timeout_seconds: Time limit for a stage.
        start_seconds: Time limit for starting the runtime.
        port: Port of the SuperLink. Default: a free port.
        insecure: Allow every user of this machine to use the deployment's SuperLink, and thereby to run code as you. By
            default, the SuperLink accepts only your own user's connections; this requires Linux.
        ray_options: Options for `ray.init` in the simulation.
        quorum: Once a quorum has answered, continue without the other clients, as in `Executor`. A node that is
            still computing an earlier round is absent and receives no request.
        deadline_seconds: Maximum time to wait for all clients, as in `Executor`.

    Raises:
        MissingDependencyError: if flwr is not installed; for the simulation, also if ray is not installed.
        ProgramError: if a setting is invalid.
        EngineError: if a deployment is requested without `insecure`, and the system cannot check which user opened a
            connection.

    References:
        https://flower.ai/docs/framework
    """

    runtime: Literal["simulation", "deployment"] = "simulation"
    _: dataclasses.KW_ONLY
    nodes: int | None = None
    clients_per_node: int = 1
    workers: int | None = None
    check_nan: bool = False
    timeout_seconds: float = 600.0
    start_seconds: float = 240.0
    port: int = 0
    insecure: bool = False
    ray_options: Mapping[str, Any] | None = None
    quorum: int | float | None = None
    deadline_seconds: float | None = None

    def __post_init__(self) -> None:
        self._check_quorum()
        for library in ("flwr", "ray") if self.runtime == "simulation" else ("flwr",):
            if importlib.util.find_spec(library) is None:
                raise MissingDependencyError(library, extra="flower", needed_for="`workbench.engines.Flower`")
        _check(self.runtime, {name: getattr(self, name) for name in ("nodes", "clients_per_node", "workers")})
        if self.runtime == "deployment" and self.insecure:
            warnings.warn(
                "Flower's SuperLink starts without authenticating its users: while it is running, every user of this "
                "machine can run code as you. To accept only your own user, omit `insecure=True`.",
                UserWarning,
                stacklevel=3,
            )
        elif self.runtime == "deployment":
            check_users()
        self.name: str = f"flower ({self.runtime})"
        self._running: Runtime | None = None
        self._numbers = itertools.count()
        # kept rows without references in this process; their names are sent to every node
        self._dropped: list[str] = []
        self._to_drop = ToDrop()
        self._absent: dict[str, set[int]] = {}  # nodes that lack these kept rows because they were late
        self._inputs_by_id: dict[int, Any] = {}
        self._columns: dict[Any, tuple[str, Any]] = {}
        self._recorder: RunRecorder | None = None

    export = staticmethod(export_app)

    def __enter__(self) -> "Flower":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Terminates all runtime processes, and removes the clients' files."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def run(
        self, fn: Callable, *args: object, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> RunRecord:
        """Runs a program; see `Engine.run`.

        In the `results` of a failed run, rows that stayed at the clients are placeholders.
        """
        try:
            return super().run(fn, *args, progress=progress, cancel=cancel)
        finally:
            self._inputs_by_id.clear()
            self._absent.clear()
            self._columns.clear()
            if self._running is not None:
                for name in Path(self._running.data).glob("*/*.npy"):
                    name.unlink()

    def _begin(self, plan: Plan, inputs: list[Any], recorder: RunRecorder) -> None:
        self._recorder = recorder
        self._inputs_by_id = {id(x): x for x in inputs if isinstance(x, np.ndarray)}
        node_count = math.ceil(_most_clients(plan) / self.clients_per_node)
        if self._running is not None and self._running.nodes < node_count:
            self.close()
        if self._running is not None:
            return
        started = time.perf_counter()
        self._running = self._new_runtime(max(node_count, self.nodes or 0))
        try:
            self._running.start(lambda: recorder.check("", 0.0))
        except BaseException:
            self.close()
            raise
        recorder.warmup_seconds += time.perf_counter() - started
        recorder.note(f"Flower's {self.runtime} runtime started in {time.perf_counter() - started:.1f} s")

    def _new_runtime(self, nodes: int) -> Runtime:
        if self.runtime == "deployment":
            return Deployment(nodes, self.start_seconds, port=self.port, insecure=self.insecure)
        workers = min(self.workers or os.cpu_count() or 1, nodes)
        return FlowerSimulation(nodes, self.start_seconds, workers=workers, ray_options=self.ray_options)

    def _compute(self, work: Pass) -> None:
        size = min(self.clients_per_node, work.clients)
        work.rows[:] = [self._here(x, work) for x in work.rows]
        started = time.perf_counter()
        digest, stage = work.exported(size, None)
        work.recorder.warmup_seconds += time.perf_counter() - started
        row_names = [f"r{next(self._numbers)}" for _ in work.phase.kept]
        all_asked = self._asks(work, size, Ask(digest=digest, blob=stage, kept=row_names))
        requests = [(ask, batch) for ask, batch in all_asked if not work.is_out(batch, size)]
        started, enough = time.perf_counter(), None
        if (quorum := work.undecided) is not None:  # nodes of `size` clients; the last may have fewer
            unused = size * len(requests) - work.clients
            enough = math.ceil((quorum.of(work.clients) + unused) / size), quorum.deadline_seconds
        try:
            replies = self._ask([ask for ask, _ in requests], lambda: work.recorder.check(work.stage, 0.0), enough)
        except NodeFailure as error:
            raise work.failed(all_asked[error.slot][1], error, self._place(error.slot)) from error
        work.recorder.stage(work.stage, "messages", time.perf_counter() - started)
        if made_here := [x for x in work.rows if self._source(x)[0] == "sent"]:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in made_here)
            work.recorder.note(
                f"stage {work.stage} reads rows that the server computed and sent, one to each client: {shapes}"
            )
        reply_of = {ask.slot: reply for (ask, _), reply in zip(requests, replies, strict=True)}
        failed = {slot: str(reply.reported["error"]) for slot, reply in reply_of.items() if reply.reported["error"]}
        if missing := {slot: (all_asked[slot][1], reason) for slot, reason in failed.items()}:
            work.enough(0, missing, started)
            work.decide(missing, size)
        for slot, (_, batch) in enumerate(all_asked):
            if work.is_out(batch, size):
                work.skip(batch, on_worker=True)
            else:
                self._add(work, batch, reply_of[slot], slot, work.partial_avals)
        out = {slot for slot, (_, batch) in enumerate(all_asked) if work.is_out(batch, size)}
        self._absent.update(dict.fromkeys(row_names, out) if out else {})
        work.hold(row_names, self._bring, self._dropped.append)

    def _asks(self, work: Pass, size: int, common: Ask) -> list[tuple[Ask, Batch]]:
        """Creates one request per node, with its clients. Client data are written to the nodes' files once per run."""
        assert self._running is not None
        self._to_drop.forget(self._dropped, self._running.nodes)
        sources = [self._source(x) for x in work.rows]
        rows = [x for x in work.rows if not isinstance(x, RemoteRows)]
        requests = []
        started = time.perf_counter()
        written = {name for kind, name in sources if kind == "own" and name in {n for n, _ in self._columns.values()}}
        for slot, batch in enumerate(work.batches(size, rows)):
            parts = iter(batch.rows)
            payload, named = [], []
            for kind, name in sources:
                part = next(parts) if kind != "held" else None
                if kind == "own" and name not in written:
                    np.save(self._running.data / str(slot) / f"{name}.npy", part)  # pyright: ignore[reportArgumentType]
                elif kind == "sent":
                    payload.append(part)
                named.append(f"sent:{len(payload) - 1}" if kind == "sent" else f"{kind}:{name}")
            shared = list(range(len(payload), len(payload) + len(work.shared)))
            names = [*(name or f"row {i}" for i, (_, name) in enumerate(sources)), *(f"shared {i}" for i in shared)]
            ask = dataclasses.replace(common, rows=named, names=names, shared=shared, slot=slot)
            ask.sent, ask.drop = [*payload, *work.shared], self._to_drop.pop(slot, [])
            requests.append((ask, Batch(batch.index, batch.clients, [])))
        for x, (kind, name) in zip(work.rows, sources, strict=True):
            if kind == "own" and not isinstance(x, ReadRows):
                self._columns[self._key(x)] = name, x
        work.recorder.stage(work.stage, "clients' files", time.perf_counter() - started)
        return requests

    def _here(self, x: object, work: Pass) -> object:
        """Fetches rows that are stored at clients of another placement; the server must send these rows."""
        elsewhere = isinstance(x, RemoteRows) and x.placement != work.phase.placement
        return to_host(materialize([x])[0]) if elsewhere else x

    def _source(self, x: "np.ndarray | RemoteRows | ReadRows") -> tuple[str, str]:
        """Returns where a node gets a row: from its kept rows, its data, or the server."""
        if isinstance(x, RemoteRows):
            return "held", x.name
        if isinstance(x, ReadRows):
            return "own", f"input-{id(x.reader)}-{x.index}"
        if id(x) in self._inputs_by_id or id(x.base) in self._inputs_by_id:
            column = self._columns.get(self._key(x))
            return "own", column[0] if column else f"input-{next(self._numbers)}"
        return "sent", ""

    def _key(self, x: np.ndarray) -> Hashable:
        """Identifies a slice of an argument by its memory address, because slice objects are recreated."""
        return x.__array_interface__["data"], x.shape, x.strides

    def _add(self, work: Pass, batch: Batch, reply: NodeReply, slot: int, expected: Sequence[Any]) -> None:
        where = f"{self._place(slot)}, {reply.reported['where']}"
        pairs = itertools.zip_longest(reply.values, expected)
        values = [_as_expected(x, aval, work, batch, where) for x, aval in pairs]
        compiling = float(reply.reported["compile_seconds"])
        if compiling:
            work.recorder.note(f"stage {work.stage} was compiled on {where} in {compiling:.2f} s")
        seconds = float(reply.reported["seconds"])
        work.add(batch, values, seconds=seconds, where=where, check_nan=self.check_nan, on_worker=True)

    def _bring(self, remote_rows: Sequence[RemoteRows]) -> list[np.ndarray]:
        """Fetches rows that the server or the caller reads; this discloses the clients' rows."""
        recorder = self._recorder
        assert recorder is not None
        nodes = [math.ceil(rows.shape[0] / self.clients_per_node) for rows in remote_rows]
        pairs = list(zip(remote_rows, nodes, strict=True))
        fetched = [
            [rows.name for rows, count in pairs if slot < count and slot not in self._absent.get(rows.name, ())]
            for slot in range(max(nodes))
        ]
        asks = [Ask(fetch=names, slot=slot) for slot, names in enumerate(fetched) if names]
        try:
            replies = self._ask(asks, lambda: recorder.check("", 1.0))
        except NodeFailure as error:
            message = (
                f"client {error.slot} on {self._place(error.slot)} could not send the rows that its node had kept: "
                f"{error}. The server, or the caller of the program, reads these rows: run the program again, or "
                "let the program reduce the rows."
            )
            raise EngineError(message, client=error.slot) from error
        answers = zip(asks, replies, strict=True)
        arrays = {(ask.slot, y): x for ask, z in answers for y, x in zip(ask.fetch, z.values, strict=True)}
        fetched_arrays = []
        for rows, count in pairs:
            aval = edge_aval(rows.aval)
            none = as_plain(absent_rows(aval, self.clients_per_node))
            parts = [arrays.get((slot, rows.name), none) for slot in range(count)]
            array = np.concatenate(parts)[: aval.shape[0]]
            array = array.view(aval.dtype) if array.dtype != aval.dtype else array
            recorder.left(rows.stage, rows.label, array, row=True, clients=aval.shape[0])
            recorder.moved_bytes += array.nbytes
            fetched_arrays.append(from_edge(array, rows.aval.dtype))
        return fetched_arrays

    def _ask(
        self, asks: Sequence[Ask], check: Callable[[], Any], enough: tuple[int, float | None] | None = None
    ) -> list[NodeReply]:
        assert self._running is not None
        try:
            return self._running.ask(asks, self.timeout_seconds, check, enough)
        except (NodeFailure, EngineError) as error:
            is_lost = self.runtime == "simulation" and getattr(error, "worker_lost", False)
            if is_lost or self._running.processes.ended:
                self.close()  # it would wait for lost and busy workers; the next run starts a new runtime
            raise

    def _place(self, slot: int) -> str:
        return f"node {slot}" if self.runtime == "simulation" else f"supernode {slot}"


def _most_clients(plan: Plan) -> int:
    most = max((step.placement.size for step in plan.steps if step.kind == "clients" and step.placement), default=1)
    loops = [step.equation for step in plan.steps if step.kind in ("loop", "branch")]
    bodies = [plan_jaxpr(closed, plan.name) for equation in loops for closed in loop_bodies(equation)]
    return max([most, *map(_most_clients, bodies)])


def _as_expected(x: np.ndarray | None, aval: Aval | None, work: Pass, batch: Batch, where: str) -> np.ndarray:
    """Checks a value in a reply against the shape and dtype of the stage output."""
    if x is None or aval is None or x.dtype.itemsize != np.dtype(aval.dtype).itemsize or x.shape != aval.shape:
        form = "nothing" if x is None else f"{x.dtype}{list(x.shape)}"
        expected_form = "nothing" if aval is None else f"{aval.dtype}{list(aval.shape)}"
        message = (
            f"stage {work.stage} (`{work.name}`) got {form} from {list_clients(batch.clients)} on {where}, but "
            f"expects {expected_form}. A node must return the unchanged outputs of the stage: check this node for a "
            f"Flower mod or a changed client app."
        )
        raise EngineError(message, stage=work.stage, client=", ".join(map(str, batch.clients)))
    return x.view(aval.dtype) if x.dtype != aval.dtype else x


def _check(runtime: object, counts: Mapping[str, Any]) -> None:
    if runtime not in ("simulation", "deployment"):
        message = (
            f'`Flower` was given runtime={runtime!r}. Flower has two runtimes: "simulation" (worker processes of '
            'Ray) and "deployment" (a SuperLink with SuperNodes). Pass one of these two names.'
        )
        raise ProgramError(message)
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            message = (
                f"`Flower` was given {name}={value!r}. `{name}` must be a number of nodes, clients or processes: pass "
                f"a positive int, or omit `{name}`."
            )
            raise ProgramError(message)
