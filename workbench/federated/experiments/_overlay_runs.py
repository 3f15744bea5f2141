"""`overlay_runs`: several runs over one another, from whatever holds them."""

from collections.abc import Mapping
from typing import Any

from workbench.errors import DataError
from workbench.federated.experiments._compare_runs import compare_runs
from workbench.federated.experiments._overlay import is_runs, several
from workbench.federated.experiments._sweep_result import SweepResult
from workbench.measurement import History, StoredRun
from workbench.records import RunOverlayRecord


def overlay_runs(results: object, *, metric: str | None = None, minimize: bool = True) -> RunOverlayRecord:
    """Several runs over one another: curves with intervals over seeds, how each ended, and paired tests.

    Args:
        results: A sweep; runs by name as for `compare_runs`; or a list of runs, stored runs or histories, of which
            those of one name are seeds of one result.
        metric: The one that is shown first; default: "loss" where there is one, else the first.
        minimize: Whether small is good.

    Returns:
        The record: `wb.show` draws it live in a notebook, and `to_html` of that view is a page.

    Raises:
        DataError: these are no runs, or none of them has finished a round.

    Example:
        >>> from workbench.records import RoundRecord
        >>> def run(*losses):
        ...     return History([RoundRecord(round=r, seconds=1.0, metrics={"loss": x}) for r, x in enumerate(losses)])
        >>> drawn = overlay_runs({"a": [run(3.0, 1.0), run(3.0, 2.0)], "b": [run(3.0, 2.0)]})
        >>> [(result.name, result.metrics[0].mean) for result in drawn.results]
        [('a', (3.0, 1.5)), ('b', (3.0, 2.0))]
    """
    named = by_name(results)
    metrics = _metrics_of(named)
    if not metrics:
        message = (
            "`overlay_runs` received runs of which none has finished a round. There is nothing to draw yet: run at "
            "least one round, or wait for it."
        )
        raise DataError(message)
    first = metric or ("loss" if "loss" in metrics else metrics[0])
    return compare_runs(named, metric=first, minimize=minimize).record


def by_name(results: object) -> "SweepResult | Mapping[Any, Any]":
    """Runs by name and seed, from whatever `overlay_runs` takes."""
    if isinstance(results, SweepResult | Mapping):
        return results
    if not isinstance(results, list | tuple) or not is_runs(results):
        message = (
            f"`overlay_runs` received a `{type(results).__name__}`. It draws a sweep, a list of `Run`, `StoredRun` or "
            "`History`, or a dictionary of these by name: pass one of them."
        )
        raise DataError(message)
    found: dict[str, list[Any]] = {}
    for number, run in enumerate(results, 1):
        named = run.about["name"] if isinstance(run, StoredRun) else ""
        found.setdefault(named or f"run {number}", []).append(run)
    return found


def _metrics_of(named: "SweepResult | Mapping[Any, Any]") -> list[str]:
    if isinstance(named, SweepResult):
        known = [named.metrics(trial, seed) for trial in range(len(named.settings)) for seed in named.seeds]
        return list(dict.fromkeys(name for metrics in known for name in metrics))
    runs = [one for given in named.values() for one in several(given)]
    histories = [one if isinstance(one, History) else one.history for one in runs]
    return list(dict.fromkeys(name for history in histories for name in history.metrics()))
