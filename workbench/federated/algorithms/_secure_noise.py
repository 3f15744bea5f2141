"""The integer grid of `secure_mean` with noise, and its privacy guarantee."""

import math
from typing import NamedTuple

from workbench.errors import ProgramError, check_settings, needs_library
from workbench.federated.algorithms._discrete_gaussian import MOST_LOG2_DEVIATION

_TAILS = 12  # the sum has room for this many standard deviations of the noise
_LEAST_LOG2_DEVIATION = 2  # sums of finer noise match a discrete Gaussian to fewer than 60 digits
_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 65), 80, 96, 128, 192, 256, 512, 1024)


class NoiseGrid(NamedTuple):
    """Fixed-point grid on which every number is an integer multiple of `unit`.

    Attributes:
        clip: The largest norm of one client's update.
        unit: Value of the integer 1.
        largest: Largest integer.
        log2_deviation: Base-2 logarithm of the standard deviation of one client's noise, in units.
        is_noisy: Whether noise is added.
    """

    clip: float
    unit: float
    largest: int
    log2_deviation: int
    is_noisy: bool

    def most_squared(self, values: int) -> int:
        """Bounds the squared norm of one client's integers; rounding changes each integer by up to half a unit."""
        return math.floor(longest(self.clip / self.unit, values) ** 2)


def longest(clip_units: float, values: int) -> float:
    """Bounds the norm of the integers that encode an update of norm `clip_units`."""
    return clip_units + math.sqrt(values) / 2


def noise_grid(clients: int, *, clip: float, bits: int, noise_multiplier: float, threshold: int | None) -> NoiseGrid:
    """Chooses the unit so that one client's noise deviation is a power of two units."""
    check_settings(
        "secure_mean",
        (clients >= 2, f"clients={clients}", "Masks cancel between clients: pass at least 2 `clients`."),
        (clip > 0 and math.isfinite(clip), f"clip={clip}", "Pass a positive finite `clip`."),
        (1 <= bits <= 30, f"bits={bits}", "Pass 1 to 30 `bits`."),
        (
            noise_multiplier >= 0 and math.isfinite(noise_multiplier),
            f"noise_multiplier={noise_multiplier}",
            "Pass a finite `noise_multiplier` of at least 0.",
        ),
        (
            noise_multiplier == 0 or (threshold is not None and 1 <= threshold <= clients),
            f"threshold={threshold}",
            "Each client adds its part of the noise, and the parts of `threshold` clients must suffice for privacy: "
            f"pass the threshold of the session, from 1 to {clients}.",
        ),
    )
    if noise_multiplier == 0:
        _check_fits(f"`secure_mean` received clients={clients} and bits={bits}. ", clients * 2**bits)
        return NoiseGrid(clip, clip / 2**bits, 2**bits, 0, is_noisy=False)
    assert threshold is not None  # checked above
    settings = (
        f"`secure_mean` received clients={clients}, bits={bits}, noise_multiplier={noise_multiplier} and "
        f"threshold={threshold}. "
    )
    deviation = noise_multiplier / math.sqrt(threshold)  # noise of one client, relative to the clip
    log2 = math.floor(math.log2(deviation) + bits)
    if not _LEAST_LOG2_DEVIATION <= log2 <= MOST_LOG2_DEVIATION:
        raise ProgramError(
            settings + f"One client's noise has a standard deviation of 2^{log2} units. The deviation must be between "
            f"2^{_LEAST_LOG2_DEVIATION} and 2^{MOST_LOG2_DEVIATION}: pass "
            + ("more bits." if log2 < _LEAST_LOG2_DEVIATION else "fewer bits.")
        )
    clip_units = clip_in_units(log2, noise_multiplier, threshold)
    largest = math.ceil(clip_units)
    _check_fits(settings, clients * largest + _TAILS * 2**log2 * math.sqrt(clients))
    return NoiseGrid(clip, clip / clip_units, largest, log2, is_noisy=True)


def clip_in_units(log2_deviation: int, noise_multiplier: float, threshold: int) -> float:
    """Returns the clip in units; the deviation is `noise_multiplier * clip / sqrt(threshold)`."""
    return 2**log2_deviation * math.sqrt(threshold) / noise_multiplier


def _check_fits(settings: str, most: float) -> None:
    if most >= 2**31:
        raise ProgramError(
            settings
            + f"The sum over all clients, with its noise, can reach 2^{math.log2(most):.1f}. This sum must stay below "
            "2^31: pass fewer `bits`."
        )


def secure_epsilon(
    noise_multiplier: float,
    *,
    clients: int,
    threshold: int,
    bits: int,
    values: int,
    rounds: int,
    delta: float,
    colluding: int = 0,
) -> float:
    """Computes an upper bound on ε for (ε, δ)-differential privacy under `secure_mean`.

    The bound uses the noise of only `threshold - colluding` clients. The session recovers no sum of fewer than
    `threshold` clients, and colluding clients know the noise that they added. Two data sets are neighbours if one
    client sends zeros in one of them; participation in a round is public. The bound assumes that every client takes
    part in every round; it also applies to lower participation.

    Args:
        noise_multiplier: As in `secure_mean`.
        clients: As in `secure_mean`.
        threshold: As in `secure_mean`.
        bits: As in `secure_mean`.
        values: Number of values in an update; rounding changes each value by up to half a unit.
        rounds: Number of rounds.
        delta: δ.
        colluding: Number of clients that reveal their noise to the server, or add none.

    Returns:
        ε, which is infinite without noise and 0 without rounds.

    Raises:
        ProgramError: if a number is out of range, or `secure_mean` does not accept it.
        MissingDependencyError: if `dp-accounting` is not installed.

    Example:
        >>> secure_epsilon(0.0, clients=10, threshold=6, bits=16, values=10, rounds=5, delta=1e-5)  # without noise
        inf

    References:
        Canonne, Kamath and Steinke, NeurIPS 2020 (arXiv 2004.00010), proposition 5; Kairouz, Liu and Steinke, ICML 2021
        (arXiv 2102.06387), theorem 9; Mironov, "Rényi Differential Privacy", CSF 2017.
    """
    check_settings(
        "secure_epsilon",
        (values >= 1, f"values={values}", "An update has at least one value: pass `values` above 0."),
        (rounds >= 0, f"rounds={rounds}", "`rounds` must be at least 0."),
        (0 < delta < 1, f"delta={delta}", "`delta` is a probability: pass a number between 0 and 1, such as 1e-5."),
        (
            0 <= colluding < threshold,
            f"colluding={colluding} and threshold={threshold}",
            "Some of the remaining clients must be honest: pass `colluding` of at least 0 and below `threshold`.",
        ),
    )
    grid = noise_grid(clients, clip=1.0, bits=bits, noise_multiplier=noise_multiplier, threshold=threshold)
    if not grid.is_noisy or rounds == 0:
        return 0.0 if rounds == 0 else math.inf
    with needs_library("dp-accounting", extra="privacy", needed_for="`secure_epsilon`"):
        from dp_accounting.rdp import compute_epsilon
    l2 = longest(1 / grid.unit, values)
    divergences = [
        rounds * sum_divergence(order, l2, grid.log2_deviation, threshold - colluding, values) for order in _ORDERS
    ]
    return float(compute_epsilon(_ORDERS, divergences, delta)[0])


def sum_divergence(order: float, l2: float, log2_deviation: int, noises: int, values: int) -> float:
    """Bounds the Rényi divergence of one sum from the sum with one client's integers replaced by zeros.

    The noise is a sum of discrete Gaussians, which is nearly a discrete Gaussian. By Poisson's summation formula, the
    logarithms of the two probabilities differ by less than 5 exp(-π² σ²) for each summand and value.

    Args:
        order: α, above 1.
        l2: Largest Euclidean norm of one client's integers.
        log2_deviation: Base-2 logarithm of the standard deviation of one client's noise, in units.
        noises: Number of clients whose noise the bound uses. More noise makes the divergence smaller.
        values: Number of values in an update.
    """
    nearly = 5 * math.exp(-((math.pi * 2**log2_deviation) ** 2)) * (noises - 1) * values
    variance = noises * 4.0**log2_deviation
    return order * l2**2 / (2 * variance) + (2 * order - 1) / (order - 1) * nearly
