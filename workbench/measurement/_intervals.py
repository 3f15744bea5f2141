"""Intervals over seeds and paired tests, computed with `scipy.stats`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from workbench._open_types import Foreign

Test = Literal["permutation", "t", "wilcoxon"]
Correction = Literal["holm", "benjamini-hochberg"]


def mean_interval(values: np.ndarray, *, confidence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes the mean over the last axis, with its Student's t interval.

    With few seeds, resampling is unreliable: 95 % percentile intervals cover the mean in 51 % of cases with two seeds
    and in 73 % of cases with three. Student's interval covers the mean in 95 % of cases if the values are normally
    distributed.

    Returns:
        Mean, low and high, each `[...]`; low and high are NaN for a single seed.

    Example:
        >>> mean, low, high = mean_interval(np.array([1.0, 2.0, 3.0]), confidence=0.95)
        >>> float(mean), round(float(low), 3), round(float(high), 3)  # 2 ± 4.303 · 1 / √3
        (2.0, -0.484, 4.484)

    References:
        Student, "The probable error of a mean", Biometrika 1908.
    """
    import scipy.stats

    mean, count = values.mean(axis=-1), values.shape[-1]
    if count < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    half = scipy.stats.t.ppf((1 + confidence) / 2, count - 1) * values.std(axis=-1, ddof=1) / np.sqrt(count)
    return mean, mean - half, mean + half


def paired_tests(
    finals: Mapping[str, Mapping[int, float]], *, test: Test, correction: Correction, confidence: float, resamples: int
) -> list[dict[str, Any]]:
    """Compares every pair of results by seed; p-values are corrected for the number of pairs.

    Args:
        finals: Final value by name and seed.
        test: "permutation" flips the signs of the differences (exact for few seeds), "t" is Student's paired test, and
            "wilcoxon" is the signed-rank test.
        correction: "holm" bounds the probability of any false difference, and "benjamini-hochberg" bounds the expected
            share of false differences.
        confidence: Confidence level of the interval for the mean difference.
        resamples: Number of random permutations to use if there are too many sign combinations to try them all.

    Returns:
        Rows: `a`, `b`, `pairs` (common seeds), `difference` (mean of a − b) with `low` and `high`, `p`, `p_corrected`.
    """
    rows = []
    for a, b in itertools.combinations(finals, 2):
        common = sorted(set(finals[a]) & set(finals[b]))
        differences = np.array([finals[a][seed] - finals[b][seed] for seed in common])
        row: dict[str, Any] = {"a": a, "b": b, "pairs": len(common)}
        if common:
            mean, low, high = mean_interval(differences, confidence=confidence)
            row |= {"difference": float(mean), "low": float(low), "high": float(high)}
        else:
            row |= dict.fromkeys(("difference", "low", "high"), float("nan"))
        rows.append(row | {"p": _p_value(differences, test, resamples)})
    finite_rows = [row for row in rows if np.isfinite(row["p"])]
    for row, p in zip(finite_rows, corrected([row["p"] for row in finite_rows], correction), strict=True):
        row["p_corrected"] = p
    return [{"p_corrected": float("nan")} | row for row in rows]


def _p_value(differences: np.ndarray, test: Test, resamples: int) -> float:
    import scipy.stats

    if len(differences) < 2:
        return float("nan")
    if not differences.any():
        return 1.0
    if test == "permutation":
        outcome = scipy.stats.permutation_test(
            (differences,),
            np.mean,
            permutation_type="samples",
            vectorized=True,
            n_resamples=resamples,
            rng=np.random.default_rng(0),
        )
        return float(outcome.pvalue)
    if test == "wilcoxon":
        ranked: Foreign = scipy.stats.wilcoxon(differences)
        return float(ranked.pvalue)
    if np.ptp(differences) == 0:  # the standard deviation of equal numbers may round to another number than 0
        return 0.0
    tested: Foreign = scipy.stats.ttest_1samp(differences, 0)
    return float(tested.pvalue)


def corrected(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Corrects p-values for the number of tests.

    Example:
        >>> corrected([0.01, 0.04, 0.03], "holm")
        [0.03, 0.06, 0.06]

    References:
        Holm, "A simple sequentially rejective multiple test procedure", 1979; Benjamini and Hochberg, 1995.
    """
    import scipy.stats

    if not p_values:
        return []
    if correction == "benjamini-hochberg":
        return scipy.stats.false_discovery_control(p_values, method="bh").tolist()
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    values = np.empty(len(p_values))
    values[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return values.tolist()
