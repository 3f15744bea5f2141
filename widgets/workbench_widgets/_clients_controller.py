"""Requests from the clients view: one client over all rounds, all clients in one round, one client's values."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from workbench import render
from workbench.records.live import RoundRecord, TapRecord
from workbench.render import render_tap_html
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import floats

MOST_ROUNDS = 200  # rounds whose per-client values are stored
MOST_STEPS = 500
LONGEST_TEXT = 200_000

Tap = Callable[[int], TapRecord]


class ClientsController(WorkbenchWidget):
    """A view that shows the clients of a run by round, and opens individual clients.

    Opening a client evaluates the program again in the kernel, with a function passed to the view.
    """

    requests: ClassVar[dict[str, str]] = {
        "open_client": "open_client",
        "client_course": "client_course",
        "clients_in_round": "clients_in_round",
    }
    background: ClassVar[frozenset[str]] = frozenset({"open_client"})

    def __init__(self, *, tap: Tap | None = None, **values: object) -> None:
        self._tap = tap
        self.courses: ClientCourses = ClientCourses(0)
        super().__init__(**values)

    def open_client(self, client: int, report: Callable[[str], None] | None = None) -> dict[str, str]:
        """Every value that a client computes, shown as a separate page and as text.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        if self._tap is None:
            message = (
                f"`open_client` was given client={client}, but this view shows a record without its program, so "
                "there is nothing to evaluate. Open a view with the program: `explore(fn, *args)`."
            )
            raise RuntimeError(message)
        follow = report or (lambda phase: None)
        follow("Evaluating the program, this client operation by operation")
        tapped = self._tap(client)
        follow("Drawing its values")
        return {"html": render_tap_html(tapped), "text": render.text(tapped)[:LONGEST_TEXT]}

    def client_course(self, client: int) -> list[dict[str, Any]]:
        """A client's metrics over the stored rounds, and over the local steps of the last round."""
        return self.courses.of(client)

    def clients_in_round(self, round: int) -> dict[str, list[float | None]]:
        """Every metric of all clients in one of the stored rounds."""
        return self.courses.at(round)


class ClientCourses:
    """The per-client metrics of the last rounds; every round is read once.

    Args:
        clients: Number of clients; metrics whose length differs are ignored.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._count = 0
        self._rounds: dict[str, deque[tuple[int, np.ndarray]]] = {}
        self._last: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def read(self, history: Sequence[RoundRecord]) -> None:
        """Reads the new rounds."""
        with self._lock:
            if len(history) < self._count:  # the run was resumed from an earlier round
                self._count, self._rounds, self._last = 0, {}, {}
            # Only the end of a long history is available.
            for place in range(max(self._count, len(history) - MOST_ROUNDS), len(history)):
                self._take(history[place])
            self._count = len(history)

    def state(self) -> dict[str, Any]:
        """The last round of every metric, in the form the view draws."""
        with self._lock:
            latest = {name: course[-1] for name, course in self._rounds.items()}
        if not latest:
            return {}
        return {
            "metrics": [{"key": name, "round": round} for name, (round, _) in latest.items()],
            "rounds": [min(course[0][0] for course in self._rounds.values()), max(r for r, _ in latest.values())],
            "values": floats(np.concatenate([values for _, values in latest.values()])),
        }

    def of(self, client: int) -> list[dict[str, Any]]:
        """One client's course."""
        with self._lock:
            return [
                {
                    "name": name,
                    "rounds": [round for round, _ in course],
                    "values": [_plain(values[client]) for _, values in course],
                    "mean": [_plain(_mean(values)) for _, values in course],
                    "steps": [_plain(value) for value in self._last[name][client].ravel()[:MOST_STEPS]]
                    if self._last[name].ndim > 1
                    else [],
                }
                for name, course in self._rounds.items()
            ]

    def at(self, round: int) -> dict[str, list[float | None]]:
        """All clients in one round."""
        with self._lock:
            return {
                name: [_plain(value) for value in values]
                for name, course in self._rounds.items()
                for number, values in course
                if number == round
            }

    def _take(self, record: RoundRecord) -> None:
        for name, value in record.metrics.items():
            values = np.asarray(value, dtype=np.float32)
            if values.ndim and self.clients > 1 and len(values) == self.clients:
                course = self._rounds.setdefault(name, deque(maxlen=MOST_ROUNDS))
                course.append((record.round, values if values.ndim == 1 else _over_steps(values)))
                self._last[name] = values


def _over_steps(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(len(values), -1).astype(np.float64)
    mask = np.isfinite(rows)
    counts = mask.sum(1)
    sums = np.where(mask, rows, 0.0).sum(1)
    return np.where(counts == rows.shape[1], sums / np.maximum(counts, 1), np.nan).astype(np.float32)


def _mean(values: np.ndarray) -> float:
    numbers = values[np.isfinite(values)]
    return float(numbers.mean()) if numbers.size else np.nan


def _plain(value: float) -> float | None:
    """Replaces NaN, which JSON does not support."""
    return float(value) if np.isfinite(value) else None
