"""The run view: progress, curves with bands over clients, all clients over the rounds, pause and stop."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from workbench import render
from workbench.records.live import ProblemRecord, RoundRecord, SampleRecord, TimelineRecord
from workbench.render import GLOSSARY
from workbench.render.units import seconds_text
from workbench_widgets._clients_state import floats
from workbench_widgets._devices import Monitor, device_courses
from workbench_widgets._picture import picture_state
from workbench_widgets._run_controller import RunController, RunLike
from workbench_widgets.states import ClientMap, NamedCurves, RunDigestLive, RunSamples, RunState

MOST_COLUMNS, MOST_ROWS = 400, 256  # maximum number of rows in the map of clients over rounds
MOST_POINTS = 1000  # of one curve
_OF_CALLS = ("dispatch_seconds", "idle_seconds")  # metrics that are dominated by compilation
PERCENTILES = (10, 25, 50, 75, 90)


class RunView(RunController):
    """Live view of a run, with controls to pause, resume and stop the run.

    The buttons control a run that was started in the background or that a cell awaits. While a cell blocks the kernel,
    a click takes effect only after the cell has finished.

    Args:
        run: The run.
        timeline: A simulated round, whose stragglers are shown as a Gantt chart.
        others: Other runs, by name; their curves are drawn behind this run's curves.
        monitor: Device samples, drawn over the same time axis as the curves.
    """

    view_name = "run"

    def __init__(
        self,
        run: RunLike,
        timeline: TimelineRecord | None = None,
        *,
        others: Mapping[str, RunLike] | None = None,
        monitor: Monitor | None = None,
        **values: object,
    ) -> None:
        self.run: RunLike = run
        self.monitor: Monitor | None = monitor
        self._digest = RunDigest()
        self.unit: str = getattr(run, "unit", "round")
        data = {**run_state(timeline, others or {}, unit=self.unit), "glossary": GLOSSARY}
        live = {**self._digest.state(run), "samples": self._samples()}
        label = (
            f"Run of {run.rounds} {self.unit}s"
            if run.rounds is not None
            else f"Live {self.unit}s of {getattr(run, '__name__', 'a loop')}"
        )
        super().__init__(data=data, label=label, live=live, **values)
        self.follow(run)

    def refresh(self) -> None:
        """Sends the run's state if a page shows the view."""
        if self.is_open:
            self.update_live(**self._digest.state(self.run), samples=self._samples())

    def renew(self) -> None:
        """Reads the current state of the run, so that it can be saved in a notebook."""
        self.live = {**self.live, **self._digest.state(self.run), "samples": self._samples()}

    def _samples(self) -> RunSamples | None:
        return None if self.monitor is None else samples_state(tuple(self.monitor.history()), self._digest.began)

    def static_picture(self) -> bytes | None:
        return render.rounds_png(self.run.history, unit=self.unit)

    def text(self) -> str:
        """Status, rounds and the most recent metrics."""
        return f"Run {self.run.status}: {render.describe(self.run.history, rounds=self.run.rounds, unit=self.unit)}"


def run_state(
    timeline: TimelineRecord | None, others: Mapping[str, RunLike] = MappingProxyType({}), *, unit: str = "round"
) -> RunState:
    """State of the run view: the Gantt chart of a simulated round, and the curves of other runs."""
    return {
        "gantt": None if timeline is None else picture_state(timeline),
        "unit": unit,
        "others": others_state(others),
    }


def others_state(runs: Mapping[str, RunLike]) -> list[NamedCurves]:
    """The current curves of other runs."""
    return [{"name": name, "curves": RunDigest().state(run)["curves"]} for name, run in runs.items()]


def samples_state(history: Sequence[SampleRecord], began: float | None) -> RunSamples:
    """Bytes in use and utilisation of every device, over the time since the run began."""
    samples = [sample for sample in history if began is None or sample.unix_seconds >= began - 1.0][-MOST_POINTS:]
    names = [device.where for device in samples[-1].devices] if samples else []
    courses = device_courses(samples, names, {"memory": "bytes_in_use", "utilisation": "utilisation_percent"})
    columns = {name: floats(values) for name, values in courses.items() if np.isfinite(values).any()}
    origin = began if began is not None else (samples[0].unix_seconds if samples else 0.0)
    return {"devices": names, "seconds": floats([s.unix_seconds - origin for s in samples]), "columns": columns}


@runtime_checkable
class Timed(Protocol):
    """A watched loop, which records the typical duration of its steps."""

    @property
    def step_seconds(self) -> float | None:
        """Typical duration of a step, in seconds."""
        ...


class RunDigest:
    """State of the finished rounds; every round is read once, however often the view refreshes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def state(self, run: RunLike) -> RunDigestLive:
        """The view's live values."""
        with self._lock:
            self.timed = isinstance(run, Timed)
            history = run.history
            if len(history) < self.count:  # the run was resumed from an earlier round
                self._forget()
            for place in range(self.count, len(history)):
                self._read(history[place])
            return self._state(run)

    timed = False

    def _forget(self) -> None:
        self.count = 0
        self.spent = 0.0
        self.began: float | None = None  # wall-clock time, if the run reports it
        self.seconds: deque[float] = deque(maxlen=20)
        self.curves: dict[str, list[tuple[float, ...]]] = {}
        self.spreads: dict[str, list[tuple[float, ...]]] = {}
        self.per_client = ""
        self.map = MergedMap(MOST_COLUMNS)
        self.latest = np.zeros(0)

    def _read(self, record: RoundRecord) -> None:
        self.count += 1
        self.spent += record.seconds
        if self.count > 1:  # the first round also compiles
            self.seconds.append(record.seconds)
        if self.began is None and record.unix_seconds is not None:
            self.began = record.unix_seconds - record.seconds
        known_clock = self.began is not None and record.unix_seconds is not None
        ended = record.unix_seconds - self.began if known_clock else self.spent  # type: ignore[operator]
        for name, value in self._shown(record).items():
            if isinstance(value, float):
                self.curves.setdefault(name, []).append((record.round, value, value, value))
                self.spreads.setdefault(name, []).append((ended, *(value,) * len(PERCENTILES)))
                continue
            values = np.asarray(value, dtype=float)
            numbers = values[np.isfinite(values)]
            low, mean, high = (numbers.min(), numbers.mean(), numbers.max()) if numbers.size else (np.nan,) * 3
            spread = np.percentile(numbers, PERCENTILES) if numbers.size else np.full(len(PERCENTILES), np.nan)
            self.curves.setdefault(name, []).append((record.round, mean, low, high))
            self.spreads.setdefault(name, []).append((ended, *spread))
            if values.ndim and len(values) > 1 and self.per_client in ("", name):
                self.per_client = name
                column = values.reshape(len(values), -1).mean(1)
                self.latest = column
                self.map.add(record.round, _together(column))

    def _shown(self, record: RoundRecord) -> Mapping[str, Any]:
        """The metrics to draw for a round; for a watched step, also its duration without compilation."""
        if not self.timed:
            return record.metrics
        if "compile_seconds" in record.metrics:
            return {name: value for name, value in record.metrics.items() if name not in _OF_CALLS}
        return {**record.metrics, "seconds": record.seconds}

    def _state(self, run: RunLike) -> RunDigestLive:
        median = float(np.median(self.seconds)) if self.seconds else None
        pace = run.step_seconds if isinstance(run, Timed) else median
        return {
            "status": run.status,
            "finished": self.count,
            "rounds": run.rounds,
            "elapsed": _duration(self.spent),
            "left": "unknown" if pace is None or run.rounds is None else _duration((run.rounds - self.count) * pace),
            "pace": seconds_text(pace) if pace is not None or not self.count else seconds_text(self.spent),
            "curves": [
                {"name": name, "points": _thinned(points), "spread": _thinned(self.spreads[name])}
                for name, points in self.curves.items()
            ],
            "map": self._map(),
            "problems": [_problem_text(p, getattr(run, "unit", "round")) for p in run.problems][-20:],
        }

    def _map(self) -> ClientMap | None:
        if not self.map.columns:
            return None
        grid = self.map.grid()
        clients = self.latest.size
        return {
            "name": self.per_client,
            "rows": grid.shape[0],
            "columns": grid.shape[1],
            "together": -(-clients // MOST_ROWS),
            "each": self.map.each,
            "clients": clients,
            "first": self.map.first,
            "last": self.map.last,
            "values": floats(grid.ravel()),
            "latest": floats(self.latest) if clients > MOST_ROWS else b"",
        }


def _problem_text(problem: ProblemRecord, unit: str) -> str:
    at = f"{unit} {problem.round}"
    return problem.what if at in problem.what else f"{at}: {problem.what}"


class MergedMap:
    """Columns of numbers, one per round; if there are too many, neighbouring columns are averaged."""

    def __init__(self, most: int) -> None:
        self.most, self.each = most, 1  # `each`: number of rounds per column
        self.columns: list[np.ndarray] = []
        self.first = self.last = 0
        self._open: list[np.ndarray] = []  # rounds in the column that is still incomplete

    def add(self, round: int, column: np.ndarray) -> None:
        """Adds the clients' values of the next round."""
        if not self.columns:
            self.first = round
        self.last = round
        if self._open:
            self.columns.pop()
        self._open.append(column)
        self.columns.append(_mean_of(self._open))
        if len(self._open) == self.each:
            self._open = []
        if len(self.columns) > self.most:
            self._halve()

    def _halve(self) -> None:
        pairs = [self.columns[i : i + 2] for i in range(0, len(self.columns), 2)]
        if len(pairs[-1]) == 1:  # the last column is now at most half full
            self._open = self._open or [self.columns[-1]] * self.each
        self.columns = [_mean_of(pair) for pair in pairs]
        self.each *= 2

    def grid(self) -> np.ndarray:
        """Rows are clients; columns are rounds."""
        rows = max(column.size for column in self.columns)
        grid = np.full((rows, len(self.columns)), np.nan)
        for place, column in enumerate(self.columns):
            grid[: column.size, place] = column
        return grid


def _mean_of(columns: Sequence[np.ndarray]) -> np.ndarray:
    rows = max(column.size for column in columns)
    padded = np.stack([np.pad(column, (0, rows - column.size), constant_values=np.nan) for column in columns])
    mask = np.isfinite(padded)
    counts = mask.sum(0)
    return np.where(counts > 0, np.where(mask, padded, 0.0).sum(0) / np.maximum(counts, 1), np.nan)


def _duration(seconds: float) -> str:
    """A duration in at most two adjacent units, from days to seconds."""
    if seconds < 100:
        return seconds_text(seconds)
    rest, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def _together(column: np.ndarray) -> np.ndarray:
    """At most `MOST_ROWS` numbers; neighbouring clients are averaged."""
    size = -(-column.size // MOST_ROWS)
    if size == 1:
        return column
    padded = np.pad(column, (0, -column.size % size), constant_values=np.nan).reshape(-1, size)
    return _mean_of(list(padded.T))


def _thinned(points: Sequence[tuple[float, ...]]) -> bytes:
    step = max(1, -(-len(points) // MOST_POINTS))
    selection = list(points[::step]) + ([points[-1]] if (len(points) - 1) % step else [])
    return floats(np.array(selection).ravel())
