"""The run view: progress, curves with bands over clients, every client over the rounds, pause and stop."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from widgets._base import WorkbenchWidget
from widgets._clients_state import floats
from workbench.records import ProblemRecord, RoundRecord, TimelineRecord
from workbench.views import GLOSSARY, count_text, describe_timeline, render_gantt_svg, seconds_text

MOST_ROUNDS, MOST_ROWS = 120, 256  # of the map of clients over rounds
MOST_POINTS = 1000  # of one curve
LOOK_SECONDS = 0.25


class Run(Protocol):
    """What the view needs of a run, such as `workbench.live.Run`."""

    rounds: int

    @property
    def status(self) -> str:
        """How the run stands."""
        ...

    @property
    def history(self) -> Sequence[RoundRecord]:
        """The finished rounds."""
        ...

    @property
    def problems(self) -> Sequence[ProblemRecord]:
        """What went wrong without ending the run."""
        ...

    def pause(self) -> None:
        """Holds the run before its next round."""
        ...

    def resume(self) -> None:
        """Lets it go on."""
        ...

    def stop(self) -> None:
        """Ends it after the round in progress."""
        ...

    def subscribe(self, callback: Callable[[Any, RoundRecord], Any]) -> Callable[[], None]:
        """Calls back after every round; returns what ends this."""
        ...


class RunView(WorkbenchWidget):
    """A run, live: watch it, pause it, go on, stop it.

    The buttons reach a run that was started in the background or that a cell awaits; while a cell blocks the kernel,
    they wait until it is over, as everything in a notebook does.

    Args:
        run: The run.
        timeline: A simulated round, whose stragglers are shown as a Gantt chart.
    """

    module_name = "run.js"
    requests: ClassVar[dict[str, str]] = {"pause": "pause", "resume": "resume", "stop": "stop"}

    def __init__(self, run: Run, timeline: TimelineRecord | None = None, **values: Any) -> None:
        self.run = run
        gantt = None if timeline is None else [str(render_gantt_svg(timeline)), describe_timeline(timeline)]
        self._digest = _Digest()
        data, live = {"gantt": gantt, "glossary": GLOSSARY}, self._digest.state(run)
        super().__init__(data=data, label=f"Run of {run.rounds} rounds", live=live, **values)
        me = weakref.ref(self)

        def finished(_run: Any, _record: RoundRecord) -> None:
            if (view := me()) is not None:
                view.refresh()

        self._unsubscribe = run.subscribe(finished)
        threading.Thread(target=_follow, args=(me,), name="workbench-run-view", daemon=True).start()

    def refresh(self) -> None:
        """Sends how the run stands, if a page shows it."""
        if self.is_open:
            self.update_live(**self._digest.state(self.run))

    def pause(self) -> str:
        """Holds the run before its next round."""
        self.run.pause()
        return self.run.status

    def resume(self) -> str:
        """Lets a paused run go on."""
        self.run.resume()
        return self.run.status

    def stop(self) -> str:
        """Ends the run after the round that is in progress."""
        self.run.stop()
        return self.run.status

    def text(self) -> str:
        """Status, rounds and the last metrics."""
        history = self.run.history
        lines = [f"Run {self.run.status}: {len(history)} of {self.run.rounds} rounds"]
        for name, value in history[-1].metrics.items() if len(history) else ():
            values = np.asarray(value, dtype=float)
            spread = (
                f" ({count_text(float(np.nanmin(values)))} to {count_text(float(np.nanmax(values)))})"
                if values.size > 1
                else ""
            )
            lines.append(f"  {name}: {count_text(float(np.nanmean(values)))}{spread}")
        return "\n".join(lines)

    def close(self) -> None:
        """Ends the view; the run goes on."""
        end, self._unsubscribe = (
            getattr(self, "_unsubscribe", None),
            None,
        )  # ipywidgets closes once more when collecting
        if end is not None:
            end()
        super().close()


def _follow(reference: "weakref.ref[RunView]") -> None:
    # A paused run finishes no round, so nobody would tell the view that it is paused.
    last = ""
    while (view := reference()) is not None and view.comm is not None:
        status = view.run.status
        if status != last:
            view.refresh()
        last = status
        over = status in ("finished", "stopped", "interrupted", "failed")
        del view
        if over:
            return
        time.sleep(LOOK_SECONDS)


class _Digest:
    """What the view draws of the finished rounds; every round is read once, however often the view is refreshed."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds: list[float] = []
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
        self.count, self.seconds, self.curves, self.per_client = 0, [], {}, ""
        self.columns.clear()

    def _read(self, record: RoundRecord) -> None:
        self.count += 1
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
        pace = float(np.median(self.seconds[-20:])) if self.seconds else None
        return {
            "status": run.status,
            "finished": self.count,
            "rounds": run.rounds,
            "elapsed": seconds_text(sum(self.seconds)),
            "left": seconds_text(None if pace is None else (run.rounds - self.count) * pace),
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
