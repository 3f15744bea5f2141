"""The run view: progress, curves with bands over clients, every client over the rounds, pause and stop."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.records import RoundRecord, TimelineRecord
from workbench.render import (
    GLOSSARY,
    Markup,
    describe_rounds,
    describe_timeline,
    render_gantt_svg,
    render_rounds_svg,
    seconds_text,
)
from workbench_widgets._clients_state import floats
from workbench_widgets._picture import for_both_widths
from workbench_widgets._run_desk import Run, RunDesk

MOST_ROUNDS, MOST_ROWS = 120, 256  # of the map of clients over rounds
MOST_POINTS = 1000  # of one curve


class RunView(RunDesk):
    """A run, live: watch it, pause it, go on, stop it.

    The buttons reach a run that was started in the background or that a cell awaits; while a cell blocks the kernel,
    they wait until it is over, as everything in a notebook does.

    Args:
        run: The run.
        timeline: A simulated round, whose stragglers are shown as a Gantt chart.
    """

    module_name = "run.js"

    def __init__(self, run: Run, timeline: TimelineRecord | None = None, **values: Any) -> None:
        self.run = run
        self._digest = RunDigest()
        data, live = {**run_state(timeline), "glossary": GLOSSARY}, self._digest.state(run)
        super().__init__(data=data, label=f"Run of {run.rounds} rounds", live=live, **values)
        self.follow(run)

    def refresh(self) -> None:
        """Sends how the run stands, if a page shows it."""
        if self.is_open:
            self.update_live(**self._digest.state(self.run))

    def static_svg(self) -> Markup | None:
        """The curves so far."""
        return render_rounds_svg(self.run.history)

    def text(self) -> str:
        """Status, rounds and the last metrics."""
        return f"Run {self.run.status}: {describe_rounds(self.run.history, self.run.rounds)}"


def run_state(timeline: TimelineRecord | None) -> dict[str, Any]:
    """What the view of a run draws once: the Gantt chart of a simulated round."""
    if timeline is None:
        return {"gantt": None}
    return {"gantt": {"drawn": for_both_widths(render_gantt_svg, timeline), "sentence": describe_timeline(timeline)}}


class RunDigest:
    """What the view draws of the finished rounds; every round is read once, however often the view is refreshed."""

    def __init__(self) -> None:
        self.count = 0
        self.spent = 0.0
        self.seconds: deque[float] = deque(maxlen=20)
        self.curves: dict[str, list[tuple[float, float, float, float]]] = {}
        self.per_client = ""
        self.columns: deque[np.ndarray] = deque(maxlen=MOST_ROUNDS)
        self.latest = np.zeros(0)
        self.first_round = 0
        self._lock = threading.Lock()

    def state(self, run: Run) -> dict[str, Any]:
        """The live values of the view."""
        with self._lock:
            history = run.history
            if len(history) < self.count:  # the run was taken up again from an earlier round
                self._forget()
            for place in range(self.count, len(history)):
                self._read(history[place])
            return self._state(run)

    def _forget(self) -> None:
        self.count, self.spent, self.curves, self.per_client = 0, 0.0, {}, ""
        self.seconds.clear()
        self.columns.clear()

    def _read(self, record: RoundRecord) -> None:
        self.count += 1
        self.spent += record.seconds
        self.seconds.append(record.seconds)
        for name, value in record.metrics.items():
            values = np.asarray(value, dtype=float)
            known = values[np.isfinite(values)]
            low, mean, high = (known.min(), known.mean(), known.max()) if known.size else (np.nan,) * 3
            self.curves.setdefault(name, []).append((record.round, mean, low, high))
            if values.ndim and len(values) > 1 and self.per_client in ("", name):
                self.per_client = name
                column = values.reshape(len(values), -1).mean(1)
                self.latest = column
                self.columns.append(_together(column))
        self.first_round = record.round - len(self.columns) + 1

    def _state(self, run: Run) -> dict[str, Any]:
        pace = float(np.median(self.seconds)) if self.seconds else None
        return {
            "status": run.status,
            "finished": self.count,
            "rounds": run.rounds,
            "elapsed": _duration(self.spent),
            "left": "unknown" if pace is None else _duration((run.rounds - self.count) * pace),
            "pace": seconds_text(pace),
            "curves": [{"name": name, "points": _thinned(points)} for name, points in self.curves.items()],
            "map": self._map(),
            "problems": [f"round {each.round}: {each.what}" for each in run.problems][-20:],
        }

    def _map(self) -> dict[str, Any] | None:
        if not self.columns:
            return None
        rows = max(column.size for column in self.columns)
        grid = np.full((rows, len(self.columns)), np.nan)
        for place, column in enumerate(self.columns):
            grid[: column.size, place] = column
        clients = self.latest.size
        return {
            "name": self.per_client,
            "rows": rows,
            "columns": len(self.columns),
            "together": -(-clients // MOST_ROWS),
            "clients": clients,
            "first": self.first_round,
            "values": floats(grid.ravel()),
            "latest": floats(self.latest) if clients > MOST_ROWS else b"",
        }


def _duration(seconds: float) -> str:
    """Seconds in the two largest of days, hours, minutes and seconds."""
    if seconds < 100:
        return seconds_text(seconds)
    rest, parts = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def _together(column: np.ndarray) -> np.ndarray:
    """At most `MOST_ROWS` numbers: means of neighbouring clients."""
    each = -(-column.size // MOST_ROWS)
    if each == 1:
        return column
    padded = np.pad(column, (0, -column.size % each), constant_values=np.nan).reshape(-1, each)
    known = np.isfinite(padded)
    return np.where(known, padded, 0.0).sum(1) / np.maximum(known.sum(1), 1)


def _thinned(points: Sequence[tuple[float, float, float, float]]) -> bytes:
    step = max(1, -(-len(points) // MOST_POINTS))
    kept = list(points[::step]) + ([points[-1]] if (len(points) - 1) % step else [])
    return floats(np.array(kept).ravel())
