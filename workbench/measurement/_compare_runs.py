"""Compares runs over several seeds: intervals, paired tests, cost to a target, fairness and figures."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from workbench._open_types import Option
from workbench.errors import DataError, check_settings
from workbench.measurement._history import History
from workbench.measurement._intervals import Correction, Test
from workbench.measurement._rounds import Run
from workbench.measurement._run_figures import plot_comparison
from workbench.measurement._run_overlay import record_of
from workbench.measurement._run_store import StoredRun
from workbench.measurement._run_tables import RunTables, values_of
from workbench.records.run import RunOverlayRecord
from workbench.render import display_object

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Results(ABC):
    """Results that can be compared over seeds, such as a sweep."""

    @abstractmethod
    def histories(self) -> dict[str, dict[int, History]]:
        """The history of every started run, by name and seed."""

    @abstractmethod
    def outcomes(self) -> dict[str, dict[int, tuple[str, str]]]:
        """The state of every run, and why it ended early, by name and seed."""

    @abstractmethod
    def metric_names(self) -> list[str]:
        """The metrics of all runs."""


def compare_runs(
    results: object,
    *,
    metric: str | None = None,
    minimize: bool = True,
    last: int = 1,
    confidence: float = 0.95,
    resamples: int = 9999,
    test: Test = "permutation",
    correction: Correction = "holm",
) -> "RunComparison":
    """Compares results over seeds: means with intervals, paired tests, cost to a target, fairness and figures.

    Args:
        results: A sweep (each trial is a result, and its seeds are repetitions), several runs, or a dictionary by name.
            Each dictionary value is a `Run`, a `StoredRun`, a `History`, a list of these (one per seed), or a
            dictionary of these by seed.
        metric: Metric to compare; per-client metrics are averaged. Default: "loss" if present, otherwise the first
            metric.
        minimize: Whether smaller values are better.
        last: Number of rounds at the end of a run that are averaged to obtain the final value.
        confidence: Confidence level of all intervals (Student's t over the seeds).
        resamples: Number of random permutations to use if there are too many sign combinations to try them all.
        test: "permutation" (sign flips; exact for few seeds), "t" or "wilcoxon". All tests are paired by seed.
        correction: "holm" or "benjamini-hochberg", for the number of compared pairs.

    Returns:
        The comparison. Runs whose final metric is not finite, and runs with fewer rounds than the longest run, are left
        out of means and tests and counted as `left_out`.

    Raises:
        DataError: if a result has a wrong type, no result has the metric, or an option is out of range.

    Example:
        >>> from workbench.records.live import RoundRecord
        >>> def run(*losses):
        ...     return History([RoundRecord(round=r, seconds=1.0, metrics={"loss": x}) for r, x in enumerate(losses)])
        >>> compared = compare_runs({"a": [run(3.0, 1.0), run(3.0, 2.0)], "b": [run(3.0, 2.0), run(3.0, 3.0)]},
        ...                         metric="loss")
        >>> compared.table()["mean"].tolist(), compared.tests()["difference"].tolist()
        ([1.5, 2.5], [-1.0])

    References:
        Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021
        (arXiv 2108.13264), on intervals for few runs.
    """
    check_settings(
        "compare",
        (last >= 1, f"last={last}", "`last` is a number of rounds: pass at least 1."),
        (0 < confidence < 1, f"confidence={confidence}", "Pass a `confidence` between 0 and 1, such as 0.95."),
        (test in get_args(Test), f"test={test!r}", f"Pass one of {', '.join(map(repr, get_args(Test)))} as `test`."),
        (
            correction in get_args(Correction),
            f"correction={correction!r}",
            f"Pass {' or '.join(map(repr, get_args(Correction)))} as `correction`.",
        ),
        error=DataError,
    )
    named_results = named_runs(results)
    metric = first_metric(named_results) if metric is None else metric
    named = _histories(named_results)
    values = {
        name: {seed: curve for seed, history in seeds.items() if (curve := values_of(history, metric)) is not None}
        for name, seeds in named.items()
    }
    if not any(values.values()):
        has = sorted({m for seeds in named.values() for history in seeds.values() for m in history.metrics()})
        message = (
            f"`compare` received metric={metric!r}, which none of {len(named)} results has. The results have "
            f"{', '.join(map(repr, has)) + ': pass one of these metrics.' if has else 'no metrics.'}"
        )
        outcomes = [outcome for seeds in _outcomes(named_results).values() for outcome in seeds.values()]
        reasons = Counter(why for status, why in outcomes if status == "failed" and why)
        if reasons:
            failed = "; ".join(f"{count} failed with {why}" for why, count in reasons.most_common(3))
            message += f" Of the runs, {failed}. Correct the cause and run them again."
        raise DataError(message)
    outcomes = _outcomes(named_results)
    return RunComparison(named, metric, minimize, last, confidence, resamples, test, correction, outcomes)


class RunComparison(RunTables):
    """Results by name and seed; every method returns a table or a figure."""

    @property
    def record(self) -> RunOverlayRecord:
        """The overlaid results for `wb.show` and `wb.explore`, recomputed on each access."""
        return record_of(self)

    def figure(self, kind: str = "curves", path: str | Path | None = None, **options: Option) -> "Figure":
        """Draws a publication figure; see `plot_comparison`."""
        return plot_comparison(self, kind, path, **options)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return display_object("RunComparison", repr(self)[1:-1], self.table().to_dict("records"))


def is_runs(x: object) -> bool:
    """Returns whether the argument is a sweep, a list of runs, or runs by name.

    Example:
        >>> is_runs([History([])]), is_runs({"a": [History([])]}), is_runs([1.0])
        (True, True, False)
    """
    if isinstance(x, Results):
        return True
    entries = list(x.values()) if isinstance(x, Mapping) else x
    if not isinstance(entries, list | tuple) or not entries:
        return False
    flat = [run for entry in entries for run in several(entry)]
    return bool(flat) and all(isinstance(run, Run | History | StoredRun) for run in flat)


def named_runs(results: object) -> Results | Mapping[Any, Any]:
    """Collects runs by name and seed; stored runs with the same name are treated as different seeds of one result."""
    if isinstance(results, Results | Mapping):
        return results
    if not isinstance(results, list | tuple) or not is_runs(results):
        message = (
            f"`compare` received an object of type {type(results).__name__}. `compare` compares the results of a "
            "sweep, a list of results, or a dictionary of results by name. A result is a `Run`, a `StoredRun` or a "
            "`History`. Pass one of these collections."
        )
        raise DataError(message)
    runs: dict[str, list[Any]] = {}
    for number, run in enumerate(results, 1):
        named = run.about["name"] if isinstance(run, StoredRun) else ""
        runs.setdefault(named or f"run {number}", []).append(run)
    return runs


def overlay_runs(results: object, *, metric: str | None = None, minimize: bool = True) -> RunOverlayRecord:
    """Overlays several runs: curves with intervals over seeds, final states, and paired tests.

    Args:
        results: A sweep, a dictionary of runs by name, or a list of runs, stored runs or histories. In a list, items
            with the same name are treated as different seeds of one result.
        metric: Metric to show first. Default: "loss" if present, otherwise the first metric.
        minimize: Whether smaller values are better.

    Returns:
        The record. `wb.show` draws the overlay live in a notebook; call `to_html` on this view to write a page.

    Raises:
        DataError: if `results` are not runs, or no run has finished a round.

    Example:
        >>> from workbench.records.live import RoundRecord
        >>> def run(*losses):
        ...     return History([RoundRecord(round=r, seconds=1.0, metrics={"loss": x}) for r, x in enumerate(losses)])
        >>> drawn = overlay_runs({"a": [run(3.0, 1.0), run(3.0, 2.0)], "b": [run(3.0, 2.0)]})
        >>> [(result.name, result.metrics[0].mean) for result in drawn.results]
        [('a', (3.0, 1.5)), ('b', (3.0, 2.0))]
    """
    return compare_runs(results, metric=metric, minimize=minimize).record


def several(runs: object) -> list[Any]:
    if isinstance(runs, Mapping):
        return list(runs.values())
    return list(runs) if isinstance(runs, list | tuple) else [runs]


def first_metric(named: Results | Mapping[Any, Any]) -> str:
    """The metric to show first: "loss" if present, otherwise the first metric."""
    metrics = _metrics_of(named)
    if not metrics:
        message = (
            "`compare` received runs, none of which has finished a round. There is nothing to compare or draw yet: run "
            "at least one round, or wait for the first round."
        )
        raise DataError(message)
    return "loss" if "loss" in metrics else metrics[0]


def _metrics_of(named: Results | Mapping[Any, Any]) -> list[str]:
    if isinstance(named, Results):
        return named.metric_names()
    runs = [run for entry in named.values() for run in several(entry)]
    histories = [run if isinstance(run, History) else run.history for run in runs]
    return list(dict.fromkeys(name for history in histories for name in history.metrics()))


def _outcomes(results: Results | Mapping[Any, Any]) -> dict[str, dict[int, tuple[str, str]]]:
    """The state of every run, and why it ended early, by name and seed; "" if unknown."""
    if isinstance(results, Results):
        return results.outcomes()
    outcomes: dict[str, dict[int, tuple[str, str]]] = {}
    for name, runs in results.items():
        pairs = list(runs.items()) if isinstance(runs, Mapping) else list(enumerate(several(runs)))
        outcomes[str(name)] = {seed: (getattr(run, "status", ""), "") for seed, run in pairs}
    return outcomes


def _histories(results: Results | Mapping[Any, Any]) -> dict[str, dict[int, History]]:
    if isinstance(results, Results):
        return results.histories()
    return {str(name): _by_seed(str(name), runs) for name, runs in results.items()}


def _by_seed(name: str, runs: object) -> dict[int, History]:
    if isinstance(runs, Run | History | StoredRun):
        runs = [runs]
    if isinstance(runs, Mapping):
        pairs: Iterable[tuple[int, Any]] = runs.items()
    elif isinstance(runs, Sequence):
        pairs = enumerate(runs)
    else:
        pairs = [(0, runs)]
    histories = {}
    for seed, run in pairs:
        history = run.history if isinstance(run, Run | StoredRun) else run
        if not isinstance(history, History):
            message = (
                f"`compare` received an object of type {type(run).__name__} for {name!r}. A result is a `Run`, a "
                "`StoredRun` or a `History`, or a list or dictionary of these with one per seed. Pass one of these, or "
                "a sweep instead of the dictionary."
            )
            raise DataError(message)
        histories[seed] = history
    return histories
