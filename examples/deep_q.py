"""Deep Q-learning on an environment of Gymnasium, as one agent for `run_agent`."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.agents import Agent
from workbench.errors import ProgramError, needs_library

if TYPE_CHECKING:
    from flax import nnx

AnyArray: TypeAlias = jax.Array | np.ndarray
Params = dict[str, Any]  # a tree of `jax.Array`


Environment: TypeAlias = Any  # a `gymnasium.Env`, whose spaces differ in what they have
Transition = tuple[np.ndarray, int, np.float32, np.ndarray, np.float32]


class QState(NamedTuple):
    """The learner's parameters, the slowly following target's, and the optimiser's state."""

    params: Params
    target: Params
    optimizer: optax.OptState


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
    values: Callable[[Params, AnyArray], jax.Array]  # jitted and differentiated
    quick_values: Callable[[Params, np.ndarray], np.ndarray]  # of one observation, for actors

    def make(self) -> Environment:
        with needs_library("gymnasium", extra="rl", needed_for="`deep_q_agent`"):
            import gymnasium
        return gymnasium.make(self.environment, **dict(self.options))


def deep_q_agent(
    environment: str,
    network: Callable[..., "nnx.Module"] | None = None,
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
    **options: object,
) -> Agent[QState, Params]:
    """Deep Q-learning with a double-Q target, a network of Flax NNX or with one hidden layer, and Adam of optax.

    Args:
        environment: Its name in Gymnasium's registry, with discrete actions and discrete or box observations.
        network: `network(observations, actions, rngs=rngs)` makes an `nnx.Module` that maps `[..., observations]` to
            values `[..., actions]`: a class of a module that workers can import. Its parameters (`nnx.Param`) are
            learned; a module with other state is refused. Default: one hidden layer, whose actors need no JAX.
        hidden: Units of the default network.
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
        MissingDependencyError: if `gymnasium` is not installed (extra `rl`), or Flax for a `network` (extra `course`).
        ProgramError: if actions are not discrete, observations neither discrete nor boxes, or a network has other state
            than parameters.

    References:
        Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt et al., "Deep
        Reinforcement Learning with Double Q-learning", AAAI 2016 (arXiv 1509.06461).
    """
    how = _Settings(
        environment, tuple(sorted(options.items())), discount, exploration, unroll, episodes, learning_rate, follow,
        longest, q_values, _numpy_values,
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
    if network is None:
        first, second = jax.random.split(jax.random.key(seed))
        draw = jax.nn.initializers.he_normal()
        params = {
            "in": draw(first, (int(size), hidden)), "b": jnp.zeros(hidden),
            "out": 0.1 * draw(second, (hidden, int(actions.n))), "c": jnp.zeros(int(actions.n)),
        }  # fmt: skip
    else:
        module = _Module(network, int(size), int(actions.n))
        how, params = dataclasses.replace(how, values=module, quick_values=_Jitted(module)), module.start(seed)
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


def q_values(params: Params, x: AnyArray, maximum: Callable = jnp.maximum) -> jax.Array:
    """The value of each action, by the default network."""
    return maximum(x @ params["in"] + params["b"], 0) @ params["out"] + params["c"]


def _numpy_values(params: Params, x: np.ndarray) -> np.ndarray:
    return np.asarray(q_values(params, x, np.maximum))


@dataclasses.dataclass(frozen=True)
class _Module:
    """A network of Flax NNX as a function of its parameters; what travels is the function that makes it."""

    network: Callable[..., "nnx.Module"]
    observations: int
    actions: int

    def start(self, seed: int) -> Params:
        """The first parameters."""
        with needs_library("flax", extra="course", needed_for="`deep_q_agent(network=...)`"):
            from flax import nnx

        _, params, other = nnx.split(self._made(seed), nnx.Param, ...)
        if found := jax.tree.leaves(other):
            message = (
                f"`deep_q_agent` received a network with {len(found)} variables besides its parameters, such as "
                "those of dropout or batch statistics. Learner and actors exchange parameters only: leave out the "
                "others."
            )
            raise ProgramError(message)
        return nnx.to_pure_dict(params)

    def __call__(self, params: Params, x: np.ndarray) -> jax.Array:
        from flax import nnx

        graph, state = _structure(self)
        state = jax.tree.map(lambda leaf: leaf, state)  # a copy, that the next call finds without values
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x)

    def _made(self, seed: int) -> "nnx.Module":
        from flax import nnx

        return self.network(self.observations, self.actions, rngs=nnx.Rngs(seed))


@functools.lru_cache(maxsize=16)
def _structure(module: _Module) -> tuple[Any, Any]:
    """A network without values."""
    from flax import nnx

    return nnx.split(nnx.eval_shape(lambda: module._made(0)))


@functools.lru_cache(maxsize=16)
def _compiled(module: _Module) -> Callable[[Params, AnyArray], jax.Array]:
    return jax.jit(module)


@dataclasses.dataclass(frozen=True)
class _Jitted:
    """The same for one observation after the other; each process compiles it once."""

    module: _Module

    def __call__(self, params: Params, x: np.ndarray) -> np.ndarray:
        return np.asarray(_compiled(self.module)(params, x))


def _params_of(state: QState) -> Params:
    """As NumPy arrays, which travel between processes and make single actions fast."""
    return jax.tree.map(np.asarray, state.params)


def _vector(environment: Environment, observation: np.ndarray | int) -> np.ndarray:
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

    def act(self, params: Params) -> list[tuple[Transition, float]]:
        """Some steps: items of observation, action, reward, next observation, and whether the episode goes on."""
        found = []
        for _ in range(self._how.unroll):
            values = self._how.quick_values(params, self._now)
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

    def __call__(self, state: QState, items: list[Transition], probabilities: list[float]) -> tuple[QState, np.ndarray]:
        columns = [np.stack(column) for column in zip(*items, strict=True)]
        weight = 1 / np.asarray(probabilities, np.float32)
        how = self._how
        state, error = _step(
            how.values, state, columns, weight / weight.max(), how.discount, how.learning_rate, how.follow
        )
        return state, np.asarray(error) + 1e-3


@functools.partial(jax.jit, static_argnums=0)
def _step(
    values: Callable[[Params, AnyArray], jax.Array],
    state: QState,
    columns: Sequence[np.ndarray],
    weight: np.ndarray,
    discount: float,
    learning_rate: float,
    follow: float,
) -> tuple[QState, jax.Array]:
    now, action, reward, after, goes_on = columns
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        best = values(state.params, after).argmax(-1)
        beyond = jnp.take_along_axis(values(state.target, after), best[:, None], 1)[:, 0]
        goal = reward + discount * goes_on * beyond

        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            found = jnp.take_along_axis(values(params, now), action[:, None], 1)[:, 0]
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
                observation, reward, ended, cut, _ = environment.step(int(self._how.quick_values(params, now).argmax()))
                now, total = _vector(environment, observation), total + float(reward)
                if ended or cut:
                    break
        return total / self._how.episodes
