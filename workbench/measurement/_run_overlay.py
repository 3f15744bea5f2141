"""The record of overlaid runs, for the live view, the page and the text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.measurement._history import History
from workbench.measurement._intervals import mean_interval
from workbench.measurement._run_tables import RunTables, values_of
from workbench.records.run import OverlaidMetricRecord, OverlaidResultRecord, ResultPairRecord, RunOverlayRecord

MOST_POINTS = 300  # of one curve
MOST_TESTED = 12  # most results for pairwise tests
_LIVE = ("ready", "running", "paused")


def record_of(comparison: RunTables) -> RunOverlayRecord:
    """Makes the record that the view of a comparison shows."""
    statuses = {state for seeds in comparison.outcomes.values() for state, _ in seeds.values()}
    running = bool(statuses & set(_LIVE))
    longest = max(len(history) for seeds in comparison.results.values() for history in seeds.values())
    every = (m for seeds in comparison.results.values() for history in seeds.values() for m in history.metrics())
    metrics = tuple(dict.fromkeys((comparison.metric, *every)))
    names = dict.fromkeys((*comparison.results, *comparison.outcomes))  # trials that never started have no history
    results = tuple(_result(comparison, name, metrics, longest, running) for name in names)
    pairs: tuple[ResultPairRecord, ...] = ()
    if not running and 1 < len(results) <= MOST_TESTED:
        rows = comparison.tests().to_dict("records")
        pairs = tuple(_pair(comparison.metric, row) for row in rows)
    counted = f"{len(results)} results" if len(results) != 1 else "1 result"
    return RunOverlayRecord(
        name=f"{counted} by {comparison.metric}",
        metric=comparison.metric,
        minimize=comparison.minimize,
        confidence=comparison.confidence,
        results=results,
        pairs=pairs,
        running=running,
    )


def _pair(metric: str, row: Mapping[Any, Any]) -> ResultPairRecord:
    numbers = {name: _finite(row[name]) for name in ("difference", "low", "high", "p", "p_corrected")}
    return ResultPairRecord(metric=metric, a=str(row["a"]), b=str(row["b"]), pairs=int(row["pairs"]), **numbers)


def _result(
    comparison: RunTables, name: str, metrics: Sequence[str], longest: int, running: bool
) -> OverlaidResultRecord:
    seeds, outcomes = comparison.results.get(name, {}), comparison.outcomes.get(name, {})
    full_seeds = dict(seeds) if running else {seed: h for seed, h in seeds.items() if len(h) == longest}
    values_by_metric = {
        metric: {s: v for s, h in full_seeds.items() if (v := values_of(h, metric)) is not None} for metric in metrics
    }
    compared = {
        s for s, v in values_by_metric[comparison.metric].items() if running or np.isfinite(v[-comparison.last :]).all()
    }
    drawn = tuple(sorted(compared or seeds))
    exclusions = tuple(
        f"seed {seed}: {_why(*outcomes.get(seed, ('', '')), len(history), longest)}"
        for seed, history in sorted(seeds.items())
        if seed not in compared
    )
    never = [seed for seed in sorted(outcomes) if seed not in seeds]
    exclusions += tuple(f"seed {seed}: {_why(*outcomes[seed], 0, longest)}" for seed in never)
    curves = [_curve(comparison, metric, {s: seeds[s] for s in drawn}, bool(compared)) for metric in metrics]
    return OverlaidResultRecord(
        name=name,
        status=_status([state for state, _ in outcomes.values()]),
        seeds=drawn,
        compared=len(compared),
        left_out=exclusions,
        metrics=tuple(curve for curve in curves if curve is not None),
    )


def _why(status: str, reason: str, rounds: int, longest: int) -> str:
    label = f"{status}: {reason}" if status and reason else status or reason
    fact = f"{rounds} of {longest} rounds" if rounds < longest else "its last value is missing or not finite"
    return f"{label} ({fact})" if label else fact


def _status(states: Sequence[str]) -> str:
    counts = {state: states.count(state) for state in dict.fromkeys(states) if state}
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _curve(
    comparison: RunTables, metric: str, seeds: Mapping[int, History], compared: bool
) -> OverlaidMetricRecord | None:
    rows = [values for history in seeds.values() if (values := values_of(history, metric)) is not None and len(values)]
    if not rows:
        return None
    length = min(map(len, rows))  # a mean over fewer seeds would jump where a seed ends
    numbers = [record.round for record in next(iter(seeds.values()))[:length]]
    places = _thinned(length)
    table = np.stack([row[:length][places] for row in rows], axis=-1)
    mask = np.isfinite(table).all(axis=-1)  # no mean if a seed is not finite
    mean, low, high = (np.full(len(places), np.nan) for _ in range(3))
    if mask.any():
        interval = mean_interval(table[mask], confidence=comparison.confidence)
        mean[mask], low[mask], high[mask] = interval
    ends: list[float | None] = [None, None, None]
    if compared:
        finals = np.array([row[-comparison.last :].mean() for row in rows])
        ends = [_finite(v) for v in mean_interval(finals, confidence=comparison.confidence)]
    return OverlaidMetricRecord(
        metric=metric,
        rounds=tuple(numbers[place] for place in places),
        mean=_numbers(mean),
        low=_numbers(low),
        high=_numbers(high),
        seeds=tuple(_numbers(column) for column in table.T) if len(rows) > 1 else (),
        final=ends[0],
        final_low=ends[1],
        final_high=ends[2],
    )


def _thinned(length: int) -> list[int]:
    step = max(1, -(-length // MOST_POINTS))
    places = list(range(0, length, step))
    return places if places[-1] == length - 1 else [*places, length - 1]


def _finite(value: float | np.ndarray) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(_finite(value) for value in values)
