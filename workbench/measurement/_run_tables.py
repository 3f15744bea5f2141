"""Tables of results over seeds: final values with intervals, paired tests, cost to a target, fairness."""

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.measurement._history import History
from workbench.measurement._intervals import Correction, Test, mean_interval, paired_tests

if TYPE_CHECKING:
    import pandas as pd


def values_of(history: History, metric: str) -> np.ndarray | None:
    """The metric over rounds, with NaN for rounds that lack it; None if no round has it."""
    if metric not in history.metrics():
        return None
    return np.array([float(np.mean(np.asarray(r.metrics.get(metric, np.nan), np.float64))) for r in history])


class RunTables:
    """Results by name and seed, and their tables."""

    def __init__(
        self,
        results: dict[str, dict[int, History]],
        metric: str,
        minimize: bool,
        last: int,
        confidence: float,
        resamples: int,
        test: Test,
        correction: Correction,
        outcomes: dict[str, dict[int, tuple[str, str]]] | None = None,
    ) -> None:
        self.results: dict[str, dict[int, History]] = results
        self.metric: str = metric
        self.minimize: bool = minimize
        self.confidence: float = confidence
        self.last: int = last
        self.outcomes: dict[str, dict[int, tuple[str, str]]] = outcomes or {}
        self._last, self._resamples = last, resamples
        self._test: Test = test
        self._correction: Correction = correction
        self._longest: int = max(len(history) for seeds in results.values() for history in seeds.values())
        self._values: dict[str, dict[int, np.ndarray]] = {}
        self._left_out: dict[str, int] = {}
        for name, seeds in results.items():
            curves = {seed: values_of(history, metric) for seed, history in seeds.items()}
            finals = {
                s: v
                for s, v in curves.items()
                if v is not None and len(v) == self._longest and np.isfinite(v[-last:]).all()
            }
            self._values[name], self._left_out[name] = finals, len(seeds) - len(finals)

    def __repr__(self) -> str:
        seeds = ", ".join(f"{name}: {len(values)}" for name, values in self._values.items())
        return f"<{type(self).__name__} by {self.metric!r}, seeds of {seeds}>"

    def finals(self) -> dict[str, dict[int, float]]:
        return {
            name: {seed: float(values[-self._last :].mean()) for seed, values in seeds.items()}
            for name, seeds in self._values.items()
        }

    def table(self) -> "pd.DataFrame":
        """One row per result: `seeds`, `mean` with `low` and `high`, `std`, `best` and `worst` seed, `left_out`."""
        rows = []
        for name, by_seed in self.finals().items():
            values = np.array(list(by_seed.values()))
            row: dict[str, Any] = {"result": name, "seeds": len(values), "left_out": self._left_out[name]}
            if len(values):
                mean, low, high = self._interval(values)
                ends = (values.min(), values.max()) if self.minimize else (values.max(), values.min())
                std = values.std(ddof=1) if len(values) > 1 else np.nan
                row |= {"mean": mean, "low": low, "high": high, "std": std, "best": ends[0], "worst": ends[1]}
            rows.append(row)
        names = ["result", "seeds", "mean", "low", "high", "std", "best", "worst", "left_out"]
        return _pandas().DataFrame(rows, columns=names).astype(dict.fromkeys(names[2:8], "float64"))

    def tests(self) -> "pd.DataFrame":
        """Returns one row per pair: `difference` of means, its interval, `p` of the paired test, and `p_corrected`."""
        names = ["a", "b", "pairs", "difference", "low", "high", "p", "p_corrected"]
        rows = paired_tests(
            self.finals(),
            test=self._test,
            correction=self._correction,
            confidence=self.confidence,
            resamples=self._resamples,
        )
        return _pandas().DataFrame(rows, columns=names)

    def curves(self) -> "pd.DataFrame":
        """One row per result and round: `mean`, `low`, `high` over the seeds."""
        pd, parts = _pandas(), []
        for name, seeds in self._values.items():
            if seeds:
                mean, low, high = self._interval(np.stack(list(seeds.values()), axis=-1))
                columns = {"result": name, "round": np.arange(len(mean)), "mean": mean, "low": low, "high": high}
                parts.append(pd.DataFrame(columns))
        columns = ["result", "round", "mean", "low", "high"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    def to_target(self, target: float, *, bytes_per_round: Mapping[str, float] | float | None = None) -> "pd.DataFrame":
        """Computes the number of rounds, bytes and seconds until the metric first reaches a value.

        Args:
            target: The value; an upper bound if the metric is minimised, otherwise a lower bound.
            bytes_per_round: Bytes per round, for all results or by name (from a plan:
                `sum(stage.moved_bytes for stage in plan.stages)`).

        Returns: One row per result and `unit` ("rounds", "seconds", "bytes"): the number of `seeds`, the number that
            `reached` the target, and `mean` with `low` and `high` over the seeds that reached it. The unit "seconds" is
            included only if rounds were timed one by one.
        """
        rows = []
        for name, seeds in self.results.items():
            at = {seed: self._first(history, target) for seed, history in seeds.items()}
            reached = {seed: rounds for seed, rounds in at.items() if rounds is not None}
            units = {"rounds": [float(rounds) for rounds in reached.values()]}
            seconds = [sum(r.seconds for r in seeds[seed][:rounds]) for seed, rounds in reached.items()]
            if seconds and np.isfinite(seconds).all():
                units["seconds"] = seconds
            if bytes_per_round is not None:
                round_bytes = bytes_per_round[name] if isinstance(bytes_per_round, Mapping) else bytes_per_round
                units["bytes"] = [rounds * round_bytes for rounds in reached.values()]
            for unit, values in units.items():
                mean, low, high = self._interval(np.array(values)) if values else (np.nan,) * 3
                row = {"result": name, "unit": unit, "reached": len(values), "seeds": len(seeds)}
                rows.append(row | {"mean": float(mean), "low": float(low), "high": float(high)})
        return _pandas().DataFrame(rows)

    def profile(self, target: float | None = None) -> "pd.DataFrame":
        """Computes performance profiles: the share of seeds whose cost is at most τ times the lowest cost.

        Args:
            target: Value to reach; the cost is the number of rounds until the metric reaches it. With None, the cost is
                the final value itself, which must be positive, and smaller values must be better.

        Returns:
            One row per result and τ: `result`, `tau`, `share`.

        Raises:
            DataError: without a target, if the metric is maximised or not positive.

        References:
            Dolan and Moré, "Benchmarking optimization software with performance profiles", Mathematical Programming
            91, 2002, equation 2.1.
        """
        if target is None:
            costs: dict[str, dict[int, float]] = self.finals()
            if not self.minimize or any(value <= 0 for seeds in costs.values() for value in seeds.values()):
                message = (
                    f"`profile` was asked to compare ratios of {self.metric!r} to the best result, but this metric is "
                    "maximised or not positive. Such a ratio needs a positive metric that is minimised: pass target=… "
                    "to compare the numbers of rounds that reach this target."
                )
                raise DataError(message)
        else:
            costs = {
                name: {seed: float(at) for seed, h in seeds.items() if (at := self._first(h, target)) is not None}
                for name, seeds in self.results.items()
            }
        problems = sorted({seed for seeds in self.results.values() for seed in seeds})
        least = {p: min((by[p] for by in costs.values() if p in by), default=np.inf) for p in problems}
        ratios = {n: np.array([by.get(p, np.inf) / least[p] for p in problems]) for n, by in costs.items()}
        finite = np.concatenate([r[np.isfinite(r)] for r in ratios.values()])
        taus = np.unique(np.concatenate([[1.0], finite]))
        rows = [
            {"result": name, "tau": float(tau), "share": float((ratio <= tau).mean())}
            for name, ratio in ratios.items()
            for tau in taus
        ]
        return _pandas().DataFrame(rows)

    def fairness(self, metric: str | None = None) -> "pd.DataFrame":
        """Computes the spread of final values over clients, with mean, `low` and `high` over seeds.

        Seeds that ended before the longest run are left out.

        Args:
            metric: Metric with a value per client. Default: the compared metric.

        Returns:
            One row per result and `statistic`: "mean", "std" (over clients), "decile 1" to "decile 9", "worst 10 %" and
            "best 10 %" (means over a tenth of the clients, at least one).

        Raises:
            DataError: if no result has per-client values for this metric.

        References:
            Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020 (arXiv 1905.10497), section 4.
        """
        name_of = self.metric if metric is None else metric
        rows = []
        for name, seeds in self.results.items():
            complete = [history for history in seeds.values() if len(history) == self._longest]
            finals = [np.asarray(history[-1].metrics.get(name_of, 0.0), np.float64) for history in complete]
            per_client = [f.reshape(len(f), -1).mean(axis=1) for f in finals if f.ndim and np.isfinite(f).all()]
            if not per_client:
                continue
            statistics = [_spread(clients, self.minimize) for clients in per_client]
            for statistic in statistics[0]:
                mean, low, high = self._interval(np.array([spread[statistic] for spread in statistics]))
                row = {"result": name, "statistic": statistic, "mean": float(mean)}
                rows.append(row | {"low": float(low), "high": float(high)})
        if not rows:
            message = (
                f"`fairness` was asked about {name_of!r}, for which no result has finite per-client values. Fairness "
                "compares clients: pass as `metric` the name of a metric with one value per client, such as a "
                "per-client loss."
            )
            raise DataError(message)
        return _pandas().DataFrame(rows)

    def _interval(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return mean_interval(values, confidence=self.confidence)

    def _first(self, history: History, target: float) -> int | None:
        values = values_of(history, self.metric)
        if values is None:
            return None
        there = np.flatnonzero(values <= target if self.minimize else values >= target)
        return int(there[0]) + 1 if len(there) else None


def _spread(clients: np.ndarray, minimize: bool) -> dict[str, float]:
    ordered = np.sort(clients)
    tenth = max(1, len(ordered) // 10)
    small, large = float(ordered[:tenth].mean()), float(ordered[-tenth:].mean())
    deciles = np.quantile(ordered, np.arange(1, 10) / 10)
    figures = {"mean": float(ordered.mean()), "std": float(ordered.std())}
    figures |= {f"decile {number}": float(value) for number, value in enumerate(deciles, 1)}
    return figures | {"worst 10 %": large if minimize else small, "best 10 %": small if minimize else large}


def _pandas() -> ModuleType:
    with needs_library("pandas", needed_for="The tables of comparisons"):
        import pandas as pd
    return pd
