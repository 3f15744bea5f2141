"""Hyperparameters of a sweep: grid, random draws, and traceable names."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench._types import Argument
from workbench.errors import ProgramError

Space = Mapping[str, Any]
Setting = dict[str, Any]


def list_grid(space: Space) -> list[Setting]:
    """Lists every combination of a space's values; the last name varies fastest.

    Example:
        >>> list_grid({"lr": [0.1, 1.0], "mu": [0.0]})
        [{'lr': 0.1, 'mu': 0.0}, {'lr': 1.0, 'mu': 0.0}]
    """
    values = {name: _values(name, choices) for name, choices in space.items()}
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def draw_settings(space: Space, trials: int, seed: int) -> list[Setting]:
    """Draws settings uniformly from lists and with `rvs` from distributions.

    Example:
        >>> import scipy.stats
        >>> drawn = draw_settings({"lr": scipy.stats.loguniform(1e-3, 1.0), "mu": [0.0, 0.1]}, 3, seed=0)
        >>> [sorted(setting) for setting in drawn][0], all(1e-3 <= setting["lr"] <= 1 for setting in drawn)
        (['lr', 'mu'], True)
    """
    random = np.random.default_rng(seed)

    def draw(name: str, choices: Argument) -> object:
        if hasattr(choices, "rvs"):
            return _plain(choices.rvs(random_state=random))
        values = _values(name, choices)
        return values[int(random.integers(len(values)))]

    return [{name: draw(name, choices) for name, choices in space.items()} for _ in range(trials)]


def _values(name: str, choices: Argument) -> list[Any]:
    if hasattr(choices, "rvs"):
        message = (
            f"`sweep` received a distribution for {name!r} and a grid as its strategy. A grid needs the values "
            f"themselves: pass a list for {name!r}, or strategy=RandomSearch(trials=32)."
        )
        raise ProgramError(message)
    is_list = isinstance(choices, Sequence | np.ndarray) and not isinstance(choices, str)
    values = [_plain(value) for value in choices] if is_list else [_plain(choices)]
    if not values:
        message = (
            f"`sweep` received no values for {name!r}. A grid tries every value of every hyperparameter: pass at least "
            f"one, such as {name}=[0.1]."
        )
        raise ProgramError(message)
    return values


def _plain(value: object) -> object:
    return (
        value.item() if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim) else value
    )


@dataclass(frozen=True, slots=True)
class Grid:
    """Strategy that tries every combination of the listed values."""

    def settings(self, space: Space) -> list[Setting]:
        """The trials."""
        return list_grid(space)

    def rungs(self, rounds: int) -> tuple[int, ...]:
        """Returns the rounds after which trials are compared; here only the last round."""
        return (rounds,)

    def survivors(self, rung: int, scores: Mapping[int, float]) -> set[int]:
        """Returns the trials that continue; here all trials."""
        return set(scores)


@dataclass(frozen=True, slots=True)
class RandomSearch(Grid):
    """Strategy that draws at random from lists and frozen `scipy.stats` distributions.

    Attributes:
        trials: Number of trials.
        seed: Seed for the draws.

    References:
        Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012.
    """

    trials: int = 32
    seed: int = 0

    def settings(self, space: Space) -> list[Setting]:
        return draw_settings(space, self.trials, self.seed)


@dataclass(frozen=True, slots=True)
class SuccessiveHalving(Grid):
    """Strategy that runs many trials briefly, and the best trials `eta` times longer.

    Attributes:
        metric: Metric for comparing trials, by its mean over clients and seeds in the last round of a rung.
        minimize: Whether smaller values are better.
        eta: One in `eta` trials continues (rounded up).
        first_rounds: Number of rounds in the first rung; at most the number of rounds in the sweep.
        trials: Number of random draws, as in `RandomSearch`; None for the grid.
        seed: Seed for the draws.

    Raises:
        ProgramError: if `eta` is below 2, or `first_rounds` is below 1.

    References:
        Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016
        (arXiv 1502.07943), Figure 3.
    """

    metric: str = "loss"
    minimize: bool = True
    eta: int = 3
    first_rounds: int = 1
    trials: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.eta < 2 or self.first_rounds < 1:
            message = (
                f"`SuccessiveHalving` received eta={self.eta} and first_rounds={self.first_rounds}. One in `eta` "
                "trials continues after `first_rounds` rounds: pass eta >= 2 and first_rounds >= 1."
            )
            raise ProgramError(message)

    def settings(self, space: Space) -> list[Setting]:
        """The trials."""
        return list_grid(space) if self.trials is None else draw_settings(space, self.trials, self.seed)

    def rungs(self, rounds: int) -> tuple[int, ...]:
        """Returns `first_rounds`, its multiples by powers of `eta`, and the last round."""
        lengths, now = [], self.first_rounds
        while now < rounds:
            lengths.append(now)
            now *= self.eta
        return (*lengths, rounds)

    def survivors(self, rung: int, scores: Mapping[int, float]) -> set[int]:
        """Returns the best `1 / eta` of running trials, rounded up; ties go to earlier trials."""
        ordered = sorted(scores, key=lambda trial: (scores[trial] if self.minimize else -scores[trial], trial))
        return set(ordered[: math.ceil(len(ordered) / self.eta)])


Strategy = Grid


def traceable_names(settings: Sequence[Setting]) -> set[str]:
    """Lists the names that have only float values and can therefore be arguments of the program."""
    return {name for name in settings[0] if all(isinstance(setting[name], float) for setting in settings)}


def static_part(setting: Setting, traced: set[str]) -> tuple[tuple[str, str], ...]:
    """Returns the untraced hyperparameters as text, which serves as the compiled program's key."""
    return tuple((name, repr(value)) for name, value in setting.items() if name not in traced)


def segment_length(rungs: Sequence[int], most: int) -> int:
    """Returns the largest number of rounds up to `most` that divides every rung."""
    divisor = math.gcd(*rungs)
    return max(length for length in _divisors(divisor) if length <= max(1, most))


def _divisors(number: int) -> Iterator[int]:
    return (length for length in range(1, number + 1) if number % length == 0)
