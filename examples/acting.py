"""Environments of Gymnasium for agents: acting with exploration, and evaluating without."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from workbench.errors import needs_library

Params = dict[str, Any]  # a tree of arrays
Environment: TypeAlias = Any  # a `gymnasium.Env`, whose spaces differ in what they have
Transition = tuple[np.ndarray, Any, np.float32, np.ndarray, np.float32]
Policy = Callable[[Params, np.ndarray, np.random.Generator | None], Any]  # explores where there is a generator


@dataclasses.dataclass(frozen=True)
class Playing:
    """An environment and a policy; its methods are parts of an `Agent`.

    Attributes:
        environment: Name of the environment in Gymnasium's registry.
        options: Options of `gymnasium.make`.
        policy: `policy(params, observation, random)` returns an action, and explores unless `random` is None.
        unroll: Number of steps that an actor takes before it fetches parameters again.
        episodes: Number of episodes in one evaluation.
        longest: Maximum number of steps in an episode of an evaluation.
        seed: Seed of the episodes in an evaluation.
    """

    environment: str
    options: tuple[tuple[str, Any], ...]
    policy: Policy
    unroll: int = 16
    episodes: int = 5
    longest: int = 500
    seed: int = 0

    def make(self) -> Environment:
        """Creates the environment.

        Raises:
            MissingDependencyError: if Gymnasium is not installed.
        """
        with needs_library("gymnasium", extra="rl", needed_for="`examples.acting`"):
            import gymnasium
        return gymnasium.make(self.environment, **dict(self.options))

    def actor(self, seed: int) -> "_Actor":
        """Creates an actor with its own environment."""
        return _Actor(self, seed)

    def evaluate(self, params: Params) -> float:
        """Returns the mean return of some episodes without exploration."""
        environment, total = self.make(), 0.0
        for episode in range(self.episodes):
            now = vector(environment, environment.reset(seed=self.seed + episode)[0])
            for _ in range(self.longest):
                observation, reward, ended, cut, _ = environment.step(self.policy(params, now, None))
                now, total = vector(environment, observation), total + float(reward)
                if ended or cut:
                    break
        return total / self.episodes


def vector(environment: Environment, observation: np.ndarray | int) -> np.ndarray:
    """Converts an observation to a vector; a number becomes a one-hot vector."""
    count = getattr(environment.observation_space, "n", None)
    if count is None:
        return np.asarray(observation, np.float32).ravel()
    return np.eye(count, dtype=np.float32)[int(observation)]


class _Actor:
    """One environment, whose episode continues from one call to the next."""

    def __init__(self, how: Playing, seed: int) -> None:
        self._how, self._environment = how, how.make()
        self._random = np.random.default_rng(seed)
        self._now = vector(self._environment, self._environment.reset(seed=seed)[0])

    def act(self, params: Params) -> list[tuple[Transition, float]]:
        """Takes some steps; each item has an observation, action, reward, next observation and continuation flag."""
        found = []
        for _ in range(self._how.unroll):
            action = self._how.policy(params, self._now, self._random)
            observation, reward, ended, cut, _ = self._environment.step(action)
            after = vector(self._environment, observation)
            found.append(((self._now, action, np.float32(reward), after, np.float32(not ended)), 1.0))
            self._now = vector(self._environment, self._environment.reset()[0]) if ended or cut else after
        return found
