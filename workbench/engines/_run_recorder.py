"""Records a run's events as they happen, and makes the run record."""

import math
import threading
import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench._open_types import Progress
from workbench._types import ArrayLikeType
from workbench.errors import EngineError
from workbench.records import deferred
from workbench.records.program import DisclosedRecord
from workbench.records.run import ClientRunRecord, RunRecord, StageRunRecord
from workbench.render.units import share_text


class RunRecorder:
    def __init__(
        self, name: str, engine: str = "", progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> None:
        self.name, self.engine = name, engine
        self.notes: dict[str, None] = {}
        self.errors: list[str] = []
        self.moved_bytes = 0
        self.warmup_seconds = 0.0
        self.round_seconds: list[float] = []
        self.orders: dict[int, int] = {}  # checksum of each reader's client order
        self.carried: list[Any] | None = None  # carry of the outermost loop, after its last finished round
        self._progress, self._cancel = progress, cancel
        self._stages: dict[tuple[str, str], list[float]] = {}
        self._batches: dict[tuple[str, Sequence[Any], str], list[float]] = {}
        self._left: dict[tuple[Any, ...], list[int]] = {}  # stage, name, index, shape, dtype, row -> clients, count
        self._started = time.perf_counter()
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        self.notes[text] = None

    def stage(self, stage: str, where: str, seconds: float, waited: float = 0.0) -> None:
        with self._lock:
            spent = self._stages.setdefault((stage, where), [0.0, 0.0, 0])
            spent[0] += seconds
            spent[1] += waited
            spent[2] += 1

    def clients(self, stage: str, clients: Sequence[Any], where: str, seconds: float, moved: tuple[int, int]) -> None:
        """Records the clients of one batch; `moved` is the total number of bytes that they received and sent."""
        self.stage(stage, where, seconds)
        with self._lock:
            self.moved_bytes += sum(moved)
            names = clients if isinstance(clients, Hashable) else tuple(clients)
            spent = self._batches.setdefault((stage, names, where), [0.0, 0, 0.0, 0.0])
            for i, value in enumerate((seconds, 1, *moved)):
                spent[i] += value

    def left(self, stage: str, name: str, x: ArrayLikeType, *, row: bool, clients: int, index: int = 0) -> None:
        """Records a value that clients sent, either one `row` per client or one partial result for all clients.

        `index` distinguishes values with the same name in one stage.
        """
        shape = x.shape[1:] if row else x.shape
        with self._lock:
            entry = self._left.setdefault((stage, name, index, shape, x.dtype, row), [1, 0])
            entry[0] = max(entry[0], 1 if row else clients)
            entry[1] += clients if row else 1

    def check(self, stage: str, progress: float) -> None:
        """Reports the progress, and stops the run if it was cancelled."""
        if self._progress is not None:
            self._progress(stage, progress)
        if self._cancel is not None and self._cancel.is_set():
            message = (
                f"the run of `{self.name}` was cancelled in stage {stage}, after "
                f"{share_text(progress, 0)} of that stage. A cancelled run has no results: finished rounds are in "
                "this error's `run`. Start a new run without setting `cancel`."
            )
            raise EngineError(message, stage=stage)

    def record(self, results: object = None) -> RunRecord:
        seconds = time.perf_counter() - self._started
        return RunRecord(
            name=self.name,
            engine=self.engine,
            seconds=max(seconds - self.warmup_seconds, 0.0),
            warmup_seconds=self.warmup_seconds,
            rounds=len(self.round_seconds) or 1,
            round_seconds=tuple(self.round_seconds),
            stages=tuple(
                StageRunRecord(stage=stage, where=where, compute_seconds=spent, wait_seconds=waited, calls=int(calls))
                for (stage, where), (spent, waited, calls) in self._stages.items()
            ),
            clients=deferred(partial(_clients_of, [(*key, tuple(spent)) for key, spent in self._batches.items()])),
            moved_bytes=self.moved_bytes,
            disclosed=tuple(
                DisclosedRecord(
                    stage=stage,
                    name=name,
                    shape=shape,
                    dtype=str(dtype),
                    size_bytes=math.prod(shape) * dtype.itemsize,
                    kind="row" if row else "partial result",
                    clients=clients,
                    count=count,
                )
                for (stage, name, _, shape, dtype, row), (clients, count) in self._left.items()
            ),
            errors=tuple(self.errors),
            notes=tuple(self.notes),
            results=results,
        )


def _clients_of(batches: Sequence[tuple[str, Sequence[Any], str, Sequence[float]]]) -> tuple[ClientRunRecord, ...]:
    """Divides each batch's seconds and bytes equally among its clients, and sums the shares of each client."""
    figures: dict[tuple[str, Any, str], list[float]] = {}
    for stage, clients, where, (seconds, steps, down_bytes, up_bytes) in batches:
        count = len(clients)
        share = seconds / count, steps, down_bytes / count, up_bytes / count
        for client in clients:
            spent = figures.setdefault((stage, client, where), [0.0, 0, 0.0, 0.0])
            spent[:] = [before + added for before, added in zip(spent, share, strict=True)]
    return tuple(
        ClientRunRecord(
            stage=stage,
            client=client,
            where=where,
            seconds=seconds,
            steps=int(steps),
            received_bytes=round(down_bytes),
            sent_bytes=round(up_bytes),
        )
        for (stage, client, where), (seconds, steps, down_bytes, up_bytes) in figures.items()
    )


def brief(error: BaseException) -> str:
    """Shortens an exception by removing JVM frames and the middle of long texts (JAX tracebacks)."""
    lines = (line for line in str(error).splitlines() if not line.startswith("\tat "))
    text = " ".join(" ".join(lines).split())
    if len(text) > 500:
        text = f"{text[:120]} … {text[-350:]}"
    return f"{type(error).__name__}: {text}"


def find_nan(values: Sequence[Any], names: Sequence[str]) -> str | None:
    for value, name in zip(values, names, strict=True):
        array = np.asarray(value)
        if array.dtype.kind in "fcV" and bool(np.isnan(array.astype(np.complex64)).any()):
            return name
    return None
