"""Hyperparameters of a sweep: a grid, random draws, and the names that may be traced."""

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
    """Every combination of the values of a space, the last name fastest.

    Raises:
        ProgramError: a name has no values, or a distribution where a grid needs values.

    Example:
        >>> list_grid({"lr": [0.1, 1.0], "mu": [0.0]})
        [{'lr': 0.1, 'mu': 0.0}, {'lr': 1.0, 'mu': 0.0}]
    """
    values = {name: _values(name, given) for name, given in space.items()}
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def draw_settings(space: Space, trials: int, seed: int) -> list[Setting]:
    """Independent draws of a space: of every list uniformly, of every distribution by its `rvs`.

    Example:
        >>> import scipy.stats
        >>> drawn = draw_settings({"lr": scipy.stats.loguniform(1e-3, 1.0), "mu": [0.0, 0.1]}, 3, seed=0)
        >>> [sorted(setting) for setting in drawn][0], all(1e-3 <= setting["lr"] <= 1 for setting in drawn)
        (['lr', 'mu'], True)
    """
    random = np.random.default_rng(seed)

    def one(name: str, given: Argument) -> object:
        if hasattr(given, "rvs"):
            return _plain(given.rvs(random_state=random))
        values = _values(name, given)
        return values[int(random.integers(len(values)))]

    return [{name: one(name, given) for name, given in space.items()} for _ in range(trials)]


def _values(name: str, given: Argument) -> list[Any]:
    if hasattr(given, "rvs"):
        message = (
            f"`sweep` received a distribution for {name!r} and a grid as strategy. A grid needs the values themselves: "
            f"pass a list for {name!r}, or strategy=RandomSearch(trials=32)."
        )
        raise ProgramError(message)
    is_list = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
    values = [_plain(value) for value in given] if is_list else [_plain(given)]
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
    """Every combination of the values that the space lists."""

    def settings(self, space: Space) -> list[Setting]:
        """The trials."""
        return list_grid(space)

    def rungs(self, rounds: int) -> tuple[int, ...]:
        """The numbers of rounds after which trials are compared: only the last."""
        return (rounds,)

    def survivors(self, rung: int, scores: Mapping[int, float]) -> set[int]:
        """The trials that go on: all."""
        return set(scores)


@dataclass(frozen=True, slots=True)
class RandomSearch(Grid):
    """Independent random draws; the space may hold lists and frozen distributions of `scipy.stats`.

    Attributes:
        trials: How many.
        seed: Decides the draws.

    References:
        Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012.
    """

    trials: int = 32
    seed: int = 0

    def settings(self, space: Space) -> list[Setting]:
        """The trials."""
        return draw_settings(space, self.trials, self.seed)


@dataclass(frozen=True, slots=True)
class SuccessiveHalving(Grid):
    """Many trials for few rounds, the best part of them for `eta` times as many, and so on.

    Attributes:
        metric: By which trials are compared: its mean over clients and seeds in the last round of a rung.
        minimize: Whether small is good.
        eta: One of `eta` trials goes on (rounded up).
        first_rounds: Rounds of the first rung; at most the rounds of the sweep.
        trials: Random draws as in `RandomSearch`; None: the grid.
        seed: Decides the draws.

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
                f"`SuccessiveHalving` received eta={self.eta} and first_rounds={self.first_rounds}. One of `eta` "
                "trials goes on after `first_rounds` rounds: pass eta >= 2 and first_rounds >= 1."
            )
            raise ProgramError(message)

    def settings(self, space: Space) -> list[Setting]:
        """The trials."""
        return list_grid(space) if self.trials is None else draw_settings(space, self.trials, self.seed)

    def rungs(self, rounds: int) -> tuple[int, ...]:
        """`first_rounds`, `eta` times as many, …, and the last round."""
        found, now = [], self.first_rounds
        while now < rounds:
            found.append(now)
            now *= self.eta
        return (*found, rounds)

    def survivors(self, rung: int, scores: Mapping[int, float]) -> set[int]:
        """The best `1 / eta` of the trials that still run, rounded up; ties go to the earlier trial."""
        ordered = sorted(scores, key=lambda trial: (scores[trial] if self.minimize else -scores[trial], trial))
        return set(ordered[: math.ceil(len(ordered) / self.eta)])


Strategy = Grid


def traceable_names(settings: Sequence[Setting]) -> set[str]:
    """Names whose every value is a float: what may be an argument of the compiled program instead of a constant."""
    return {name for name in settings[0] if all(isinstance(setting[name], float) for setting in settings)}


def static_part(setting: Setting, traced: set[str]) -> tuple[tuple[str, str], ...]:
    """The hyperparameters that are not traced, as text: they decide the compiled program."""
    return tuple((name, repr(value)) for name, value in setting.items() if name not in traced)


def segment_length(rungs: Sequence[int], most: int) -> int:
    """The longest number of rounds up to `most` that fits every rung a whole number of times."""
    whole = math.gcd(*rungs)
    return max(length for length in _divisors(whole) if length <= max(1, most))


def _divisors(whole: int) -> Iterator[int]:
    return (length for length in range(1, whole + 1) if whole % length == 0)
