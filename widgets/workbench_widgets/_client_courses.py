"""Metrics of clients over rounds, and the answers to the clients view's requests."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Never

import numpy as np

from workbench.records.live import RoundRecord
from workbench_widgets._base import Answering
from workbench_widgets._clients_state import floats
from workbench_widgets.states import ClientMetricCourse, ClientsLive

MOST_ROUNDS = 200  # rounds whose per-client values are stored
MOST_STEPS = 500


class ClientCourses(Answering):
    """The per-client metrics of the latest rounds; every round is read once."""

    requests: ClassVar[dict[str, str]] = {"client_course": "of", "clients_in_round": "at"}

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._count = 0
        self._rounds: dict[str, deque[tuple[int, np.ndarray]]] = {}
        self._last: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def read(self, history: Sequence[RoundRecord]) -> None:
        with self._lock:
            if len(history) < self._count:  # the run was resumed from an earlier round
                self._count, self._rounds, self._last = 0, {}, {}
            # Only the end of a long history is available.
            for place in range(max(self._count, len(history) - MOST_ROUNDS), len(history)):
                self._take(history[place])
            self._count = len(history)

    def state(self) -> ClientsLive | dict[str, Never]:
        """The last round of every metric, in the form the view draws."""
        with self._lock:
            latest = {name: course[-1] for name, course in self._rounds.items()}
        if not latest:
            return {}
        return {
            "metrics": [{"key": name, "round": round} for name, (round, _) in latest.items()],
            "rounds": (min(course[0][0] for course in self._rounds.values()), max(r for r, _ in latest.values())),
            "values": floats(np.concatenate([values for _, values in latest.values()])),
        }

    def of(self, client: int) -> list[ClientMetricCourse]:
        """A client's metrics over the stored rounds, and over the local steps of the last round."""
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
        """Every metric of all clients in one of the stored rounds."""
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
    """Replaces non-finite numbers, which JSON does not support, with None."""
    return float(value) if np.isfinite(value) else None
