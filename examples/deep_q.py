"""A deep Q-learning agent for Gymnasium environments and `run_agent`; it learns values or distributions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.acting import Params, Playing, Transition
from examples.agents import Agent
from workbench.errors import ProgramError, needs_library

if TYPE_CHECKING:
    from flax import nnx

AnyArray: TypeAlias = jax.Array | np.ndarray
Support = tuple[float, float, int]  # the lowest and the highest return, and the number of atoms


class QState(NamedTuple):
    """Parameters of the learner and of the target network, and the optimizer's state."""

    params: Params
    target: Params
    optimizer: optax.OptState


@dataclasses.dataclass(frozen=True)
class _Greedy:
    """Chooses the action with the highest value, or a random action."""

    outputs: Callable[[Params, np.ndarray], np.ndarray]  # of one observation
    support: Support | None
    exploration: float

    def __call__(self, params: Params, x: np.ndarray, random: np.random.Generator | None) -> int:
        values = _expected(self.outputs(params, x), self.support, np)
        if random is None:
            return int(values.argmax())
        best = int(random.choice(np.flatnonzero(values == values.max())))
        return int(random.integers(len(values))) if random.random() < self.exploration else best


def _expected(outputs: Any, support: Support | None, xp: Any) -> Any:
    """Returns the values of the actions, from the outputs of a network, `[..., actions * atoms]`."""
    if support is None:
        return outputs
    logits = outputs.reshape(*outputs.shape[:-1], -1, support[2])
    weights = xp.exp(logits - logits.max(-1, keepdims=True))
    return (weights * xp.linspace(*support, dtype=np.float32)).sum(-1) / weights.sum(-1)


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
    support: Support | None = None,
    seed: int = 0,
    **options: object,
) -> Agent[QState, Params]:
    """Creates a deep Q-learning agent with a double-Q target and optax's Adam.

    With `support`, the network learns the distribution of the returns, as probabilities of equally spaced atoms (C51).

    Args:
        environment: Name in Gymnasium's registry; actions must be discrete, and observations discrete or a box.
        network: `network(observations, actions, rngs=rngs)` creates an `nnx.Module` that maps `[..., observations]` to
            values `[..., actions]`. Pass a class from a module that workers can import. The variables of type
            `nnx.Param` are learned; modules with other variables are rejected. The default is a network with one
            hidden layer, whose actors do not need JAX.
        hidden: Number of hidden units of the default network.
        discount: Discount factor γ.
        exploration: Probability of a random action.
        learning_rate: Learning rate of Adam.
        follow: Fraction by which the target's parameters move towards the learner's parameters in each step.
        unroll: Number of steps that an actor takes before it fetches parameters again.
        episodes: Number of episodes in one evaluation, without exploration.
        longest: Maximum number of steps in an episode of an evaluation.
        support: Lowest return, highest return and number of atoms. A `network` needs this number of outputs per action.
        seed: Seed of the first parameters.
        **options: Options of `gymnasium.make`, such as `is_slippery=False`.

    Returns:
        The agent. Its curve shows the mean return over `episodes`.

    Raises:
        MissingDependencyError: if `gymnasium` is not installed (extra `rl`), or Flax for a `network` (extra `course`).
        ProgramError: if actions are not discrete, if observations are neither discrete nor boxes, or if a network has
            variables besides its parameters.

    References:
        Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015; van Hasselt et al., "Deep
        Reinforcement Learning with Double Q-learning", AAAI 2016 (arXiv 1509.06461); Bellemare, Dabney and Munos, "A
        Distributional Perspective on Reinforcement Learning", ICML 2017 (arXiv 1707.06887).
    """
    atoms = support[2] if support else 1
    playing = Playing(
        environment, tuple(sorted(options.items())), _Greedy(_numpy_values, support, exploration), unroll, episodes,
        longest, seed,
    )  # fmt: skip
    made = playing.make()
    observations, actions = made.observation_space, made.action_space
    size = getattr(observations, "n", None) or int(np.prod(observations.shape or (0,)))
    if not hasattr(actions, "n") or size == 0:
        message = (
            f"`deep_q_agent` received {environment!r} with actions {actions} and observations {observations}. A "
            "Q-network has one output per action and reads a vector: use an environment with discrete actions and "
            "discrete or box observations."
        )
        raise ProgramError(message)
    values, outputs = q_values, int(actions.n) * atoms
    if network is None:
        first, second = jax.random.split(jax.random.key(seed))
        draw = jax.nn.initializers.he_normal()
        params = {
            "in": draw(first, (int(size), hidden)), "b": jnp.zeros(hidden),
            "out": 0.1 * draw(second, (hidden, outputs)), "c": jnp.zeros(outputs),
        }  # fmt: skip
    else:
        values = module = _Module(network, int(size), outputs)
        policy = _Greedy(_Jitted(module), support, exploration)
        playing, params = dataclasses.replace(playing, policy=policy), module.start(seed)
    params = jax.tree.map(np.asarray, params)
    state = QState(params, params, jax.tree.map(np.asarray, optax.adam(learning_rate).init(params)))
    return Agent(
        name=f"deep Q-learning of {environment}",
        actor=playing.actor,
        learn=functools.partial(_learn, (values, support), (discount, learning_rate, follow)),
        state=state,
        params_of=_params_of,
        evaluate=playing.evaluate,
    )


def q_values(params: Params, x: AnyArray, maximum: Callable = jnp.maximum) -> jax.Array:
    """Computes the value of each action with the default network."""
    return maximum(x @ params["in"] + params["b"], 0) @ params["out"] + params["c"]


def _numpy_values(params: Params, x: np.ndarray) -> np.ndarray:
    return np.asarray(q_values(params, x, np.maximum))


@dataclasses.dataclass(frozen=True)
class _Module:
    """A Flax NNX network as a function of its parameters; processes receive only the function that creates it."""

    network: Callable[..., "nnx.Module"]
    observations: int
    actions: int

    def start(self, seed: int) -> Params:
        """Returns the first parameters."""
        with needs_library("flax", extra="course", needed_for="`deep_q_agent(network=...)`"):
            from flax import nnx

        _, params, other = nnx.split(self._made(seed), nnx.Param, ...)
        if found := jax.tree.leaves(other):
            message = (
                f"`deep_q_agent` received a network with {len(found)} variables besides its parameters, such as "
                "those of dropout or batch statistics. Learner and actors exchange only parameters: remove the layers "
                "that have other variables."
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
    """The structure of a network, without parameter values."""
    from flax import nnx

    return nnx.split(nnx.eval_shape(lambda: module._made(0)))


@functools.lru_cache(maxsize=16)
def _compiled(module: _Module) -> Callable[[Params, AnyArray], jax.Array]:
    return jax.jit(module)


@dataclasses.dataclass(frozen=True)
class _Jitted:
    """Computes a network's outputs for single observations; each process compiles the network once."""

    module: _Module

    def __call__(self, params: Params, x: np.ndarray) -> np.ndarray:
        return np.asarray(_compiled(self.module)(params, x))


def _params_of(state: QState) -> Params:
    """Converts parameters to NumPy arrays, which can be sent to processes and make single actions fast."""
    return jax.tree.map(np.asarray, state.params)


def _learn(
    how: tuple[Any, Any], rates: Sequence[float], state: QState, items: list[Transition], probabilities: list[float]
) -> tuple[QState, np.ndarray]:
    columns = [np.stack(column) for column in zip(*items, strict=True)]
    weight = 1 / np.asarray(probabilities, np.float32)
    state, error = _step(how, state, columns, weight / weight.max(), *rates)
    return state, np.asarray(error) + 1e-3


@functools.partial(jax.jit, static_argnums=0)
def _step(
    how: tuple[Callable[[Params, AnyArray], jax.Array], Support | None],
    state: QState,
    columns: Sequence[np.ndarray],
    weight: np.ndarray,
    discount: float,
    learning_rate: float,
    follow: float,
) -> tuple[QState, jax.Array]:
    now, action, reward, after, goes_on = columns
    outputs, support = how

    def of_action(params: Params, x: AnyArray, action: AnyArray) -> jax.Array:
        """The value of an action, or the logits of its atoms."""
        found = outputs(params, x).reshape(len(x), -1, support[2] if support else 1)
        return jnp.take_along_axis(found, action[:, None, None], 1)[:, 0]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        best = _expected(outputs(state.params, after), support, jnp).argmax(-1)
        beyond = of_action(state.target, after, best)
        if support is None:
            goal = reward + discount * goes_on * beyond[:, 0]
        else:
            goal = _project(jax.nn.softmax(beyond), reward, discount * goes_on, support)

        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            found = of_action(params, now, action)
            if support is not None:
                each = optax.losses.softmax_cross_entropy(found, goal)
                return (weight * each).mean(), each
            return (weight * optax.losses.huber_loss(found[:, 0], goal)).mean(), jnp.abs(found[:, 0] - goal)

        gradient, error = jax.grad(loss, has_aux=True)(state.params)
        updates, optimizer = optax.adam(learning_rate).update(gradient, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        target = jax.tree.map(lambda old, new: old + follow * (new - old), state.target, params)
    return QState(params, target, optimizer), error  # pyright: ignore[reportArgumentType]


def _project(shares: jax.Array, reward: AnyArray, discount: AnyArray, support: Support) -> jax.Array:
    """Moves the atoms by the Bellman equation, and divides each atom between its neighbours on the grid."""
    lowest, highest, atoms = support
    grid = jnp.linspace(lowest, highest, atoms)
    moved = jnp.clip(reward[:, None] + discount[:, None] * grid, lowest, highest)
    place = (moved - lowest) * ((atoms - 1) / (highest - lowest))
    near = jnp.maximum(1 - jnp.abs(place[:, :, None] - jnp.arange(atoms)), 0)
    return jnp.einsum("bi,bij->bj", shares, near)
