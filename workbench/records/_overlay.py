"""Records of several runs drawn over one another."""

from dataclasses import dataclass

from workbench.records._base import Record

Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaidMetricRecord(Record):
    """One metric of one result over its rounds: the mean over seeds, its interval, and every seed.

    Attributes:
        metric: Its name; of a metric with one value per client, the mean over them.
        rounds: Which rounds the curves have points at; long runs are thinned.
        mean: Over the seeds that are compared; None where it is not known.
        low: Lower end of the interval; None with a single seed, which says nothing about others.
        high: Its upper end.
        seeds: The curve of every seed that is drawn.
        final: Mean of the final values over the compared seeds; None where no seed is compared.
        final_low: Lower end of its interval.
        final_high: Its upper end.
    """

    metric: str
    rounds: tuple[int, ...]
    mean: Numbers
    low: Numbers
    high: Numbers
    seeds: tuple[Numbers, ...] = ()
    final: float | None = None
    final_low: float | None = None
    final_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaidResultRecord(Record):
    """Runs with several seeds under one name.

    Attributes:
        name: Of the result.
        status: How its runs ended, such as "finished" or "2 finished, 1 diverged".
        seeds: The seeds that are drawn.
        compared: How many of them count in means and tests.
        left_out: Why the others do not, one sentence each.
        metrics: The curves.
    """

    name: str
    status: str
    seeds: tuple[int, ...]
    compared: int
    left_out: tuple[str, ...] = ()
    metrics: tuple[OverlaidMetricRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPairRecord(Record):
    """The difference of two results, paired by seed.

    Attributes:
        metric: What is compared.
        a: The first result.
        b: The second result.
        pairs: Seeds that both have.
        difference: Mean of a minus that of b.
        low: Lower end of its interval; None for a single pair.
        high: Its upper end.
        p: Of the paired test; None where there are too few pairs for one.
        p_corrected: Corrected for the number of pairs of results.
    """

    metric: str
    a: str
    b: str
    pairs: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverlayRecord(Record):
    """Several runs, or all trials of a sweep, over one another.

    Attributes:
        name: What they are.
        metric: The one that is shown first.
        minimize: Whether small is good.
        confidence: Of all intervals.
        results: In the order in which they were given.
        pairs: Paired tests, for the metric that is shown first.
        running: Whether some of them have not ended, so that there are no tests yet.
    """

    name: str
    metric: str
    minimize: bool
    confidence: float
    results: tuple[OverlaidResultRecord, ...]
    pairs: tuple[ResultPairRecord, ...] = ()
    running: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics, each once, the first one first."""
        every = (curve.metric for result in self.results for curve in result.metrics)
        return tuple(dict.fromkeys((self.metric, *every)))
