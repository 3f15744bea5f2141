"""Deep Q-learning on an environment of Gymnasium, as one agent for `run_agent`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from workbench.errors import ProgramError, needs_library
from workbench.launch.agents import Agent

Params = dict[str, Any]


class QState(NamedTuple):
    """The learner's parameters, the slowly following target's, and the optimiser's state."""

    params: Params
    target: Params
    optimizer: Any


@dataclasses.dataclass(frozen=True)
class _Settings:
    environment: str
    options: tuple[tuple[str, Any], ...]
    discount: float
    exploration: float
    unroll: int
    episodes: int
    learning_rate: float
    follow: float
    longest: int

    def make(self) -> Any:
        with needs_library("gymnasium", extra="rl", needed_for="`deep_q_agent`"):
            import gymnasium
        return gymnasium.make(self.environment, **dict(self.options))


def deep_q_agent(
    environment: str,
    *,
    hidden: int = 64,
    discount: float = 0.99,
    exploration: float = 0.2,
    learning_rate: float = 1e-3,
    follow: float = 0.02,
    unroll: int = 16,
    episodes: int = 5,
    longest: int = 500,
    seed: int = 0,
    **options: Any,
) -> Agent:
    """Deep Q-learning with a double-Q target, a network with one hidden layer and Adam.

    Args:
        environment: Its name in Gymnasium's registry, with discrete actions and discrete or box observations.
        hidden: Units.
        discount: γ.
        exploration: Chance of a random action.
        learning_rate: Of Adam.
        follow: Part of the way that the target's parameters go towards the learner's in each step.
        unroll: Steps of an actor between two fetches of parameters.
        episodes: In one evaluation, without exploration.
        longest: Steps of an episode in an evaluation.
        seed: Of the first parameters.
        **options: Of `gymnasium.make`, such as `is_slippery=False`.

    Returns:
        The agent. Its curve is the mean return of `episodes`.

    Raises:
        MissingDependencyError: if `gymnasium` is not installed (extra `rl`).
        ProgramError: if actions are not discrete, or observations neither discrete nor boxes.

    References:
        Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt et al., "Deep
        Reinforcement Learning with Double Q-learning", AAAI 2016 (arXiv 1509.06461).
    """
    how = _Settings(
        environment, tuple(sorted(options.items())), discount, exploration, unroll, episodes, learning_rate, follow,
        longest,
    )  # fmt: skip
    made = how.make()
    observations, actions = made.observation_space, made.action_space
    size = getattr(observations, "n", None) or int(np.prod(observations.shape or (0,)))
    if not hasattr(actions, "n") or size == 0:
        message = (
            f"`deep_q_agent` received {environment!r} with actions {actions} and observations {observations}. A "
            "Q-network has one output per action and reads a vector: use an environment with discrete actions and "
            "discrete or box observations."
        )
        raise ProgramError(message)
    first, second = jax.random.split(jax.random.key(seed))
    draw = jax.nn.initializers.he_normal()
    params = {
        "in": draw(first, (int(size), hidden)), "b": jnp.zeros(hidden),
        "out": 0.1 * draw(second, (hidden, int(actions.n))), "c": jnp.zeros(int(actions.n)),
    }  # fmt: skip
    params = jax.tree.map(np.asarray, params)
    state = QState(params, params, jax.tree.map(np.asarray, optax.adam(learning_rate).init(params)))
    return Agent(
        name=f"deep Q-learning of {environment}",
        actor=_MakeActor(how),
        learn=_Learn(how),
        state=state,
        params_of=_params_of,
        evaluate=_Evaluate(how, seed),
    )


def q_values(params: Params, x: Any, maximum: Any = jnp.maximum) -> Any:
    """The value of each action."""
    return maximum(x @ params["in"] + params["b"], 0) @ params["out"] + params["c"]


def _params_of(state: QState) -> Params:
    """As NumPy arrays, which travel between processes and make single actions fast."""
    return jax.tree.map(np.asarray, state.params)


def _vector(environment: Any, observation: Any) -> np.ndarray:
    count = getattr(environment.observation_space, "n", None)
    if count is None:
        return np.asarray(observation, np.float32).ravel()
    return np.eye(count, dtype=np.float32)[int(observation)]


class _MakeActor:
    def __init__(self, how: _Settings) -> None:
        self._how = how

    def __call__(self, seed: int) -> "_Actor":
        return _Actor(self._how, seed)


class _Actor:
    """One environment, which goes on from one call to the next."""

    def __init__(self, how: _Settings, seed: int) -> None:
        self._how, self._environment = how, how.make()
        self._random = np.random.default_rng(seed)
        self._now = _vector(self._environment, self._environment.reset(seed=seed)[0])

    def act(self, params: Params) -> list[tuple[Any, float]]:
        """Some steps: items of observation, action, reward, next observation, and whether the episode goes on."""
        found = []
        for _ in range(self._how.unroll):
            values = q_values(params, self._now, np.maximum)
            best = int(self._random.choice(np.flatnonzero(values == values.max())))
            explores = self._random.random() < self._how.exploration
            action = int(self._random.integers(len(values))) if explores else best
            observation, reward, ended, cut, _ = self._environment.step(action)
            after = _vector(self._environment, observation)
            found.append(((self._now, action, np.float32(reward), after, np.float32(not ended)), 1.0))
            self._now = _vector(self._environment, self._environment.reset()[0]) if ended or cut else after
        return found


class _Learn:
    def __init__(self, how: _Settings) -> None:
        self._how = how

    def __call__(self, state: QState, items: list[Any], probabilities: list[float]) -> tuple[QState, np.ndarray]:
        columns = [np.stack(column) for column in zip(*items, strict=True)]
        weight = 1 / np.asarray(probabilities, np.float32)
        how = self._how
        state, error = _step(state, columns, weight / weight.max(), how.discount, how.learning_rate, how.follow)
        return state, np.asarray(error) + 1e-3


@jax.jit
def _step(
    state: QState, columns: Any, weight: Any, discount: float, learning_rate: float, follow: float
) -> tuple[QState, Any]:
    now, action, reward, after, goes_on = columns
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        best = q_values(state.params, after).argmax(-1)
        beyond = jnp.take_along_axis(q_values(state.target, after), best[:, None], 1)[:, 0]
        goal = reward + discount * goes_on * beyond

        def loss(params: Params) -> tuple[Any, Any]:
            found = jnp.take_along_axis(q_values(params, now), action[:, None], 1)[:, 0]
            return (weight * optax.losses.huber_loss(found, goal)).mean(), jnp.abs(found - goal)

        gradient, error = jax.grad(loss, has_aux=True)(state.params)
        updates, optimizer = optax.adam(learning_rate).update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        target = jax.tree.map(lambda old, new: old + follow * (new - old), state.target, params)
    return QState(params, target, optimizer), error  # pyright: ignore[reportArgumentType]


class _Evaluate:
    def __init__(self, how: _Settings, seed: int) -> None:
        self._how, self._seed = how, seed

    def __call__(self, params: Params) -> float:
        """The mean return of some episodes without exploration."""
        environment, total = self._how.make(), 0.0
        for episode in range(self._how.episodes):
            now = _vector(environment, environment.reset(seed=self._seed + episode)[0])
            for _ in range(self._how.longest):
                observation, reward, ended, cut, _ = environment.step(int(q_values(params, now, np.maximum).argmax()))
                now, total = _vector(environment, observation), total + float(reward)
                if ended or cut:
                    break
        return total / self._how.episodes
