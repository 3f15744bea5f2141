"""A soft actor-critic agent for `run_agent` and Gymnasium environments with continuous actions."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from examples.acting import Params, Playing, Transition
from examples.agents import Agent
from workbench.errors import ProgramError


class SacState(NamedTuple):
    """The learner's parameters, the target critics, the optimizer's state, and the number of steps."""

    params: Params  # "actor", "critics" (two, side by side), and "temperature", the logarithm of α
    target: Params
    optimizer: optax.OptState
    steps: np.ndarray


class _Options(NamedTuple):
    """Static options of a step."""

    discount: float
    learning_rate: float
    follow: float
    reward_scale: float
    devices: int


def soft_actor_critic_agent(
    environment: str,
    *,
    hidden: int = 64,
    discount: float = 0.99,
    learning_rate: float = 1e-3,
    follow: float = 0.01,
    reward_scale: float = 1.0,
    unroll: int = 16,
    episodes: int = 5,
    longest: int = 500,
    devices: int = 1,
    seed: int = 0,
    **options: object,
) -> Agent[SacState, Params]:
    """Creates a soft actor-critic agent with two critics and a learned temperature.

    The networks have two hidden layers; optax's Adam trains them.

    Args:
        environment: Name in Gymnasium's registry; actions must be a bounded box, and observations a box.
        hidden: Number of units in each hidden layer.
        discount: Discount factor γ.
        learning_rate: Learning rate of Adam.
        follow: Fraction by which the target critics move towards the learner's critics in each step.
        reward_scale: Factor applied to the rewards that the critics learn; the curve shows unscaled rewards.
        unroll: Number of steps that an actor takes before it fetches parameters again.
        episodes: Number of episodes in one evaluation, which uses the mean action.
        longest: Maximum number of steps in an episode of an evaluation.
        devices: Devices of the learner, over which the batch is sharded; gradients are then summed by an all-reduce.
        seed: Seed of the first parameters and of the learner's noise.
        **options: Options of `gymnasium.make`.

    Returns:
        The agent. Its curve shows the mean return over `episodes`.

    Raises:
        MissingDependencyError: if `gymnasium` is not installed (extra `rl`).
        ProgramError: if actions are not a bounded box, or if observations are not a box.

    References:
        Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv 1812.05905, Algorithm 1.
    """
    made = Playing(environment, tuple(sorted(options.items())), _no_policy).make()
    observations, actions = made.observation_space, made.action_space
    if (
        not getattr(actions, "shape", None)
        or not observations.shape
        or not np.isfinite([actions.low, actions.high]).all()
    ):
        message = (
            f"`soft_actor_critic_agent` received {environment!r} with actions {actions} and observations "
            f"{observations}. Its actor draws vectors between bounds: use an environment with bounded box actions and "
            "box observations, or `deep_q_agent` for discrete actions."
        )
        raise ProgramError(message)
    size, width = int(np.prod(observations.shape)), int(np.prod(actions.shape))
    bounds = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
    policy = functools.partial(_policy, bounds)
    playing = Playing(environment, tuple(sorted(options.items())), policy, unroll, episodes, longest, seed)
    keys = jax.random.split(jax.random.key(seed), 3)
    critics = [_network(key, (size + width, hidden, hidden, 1)) for key in keys[1:]]
    params = {
        "actor": _network(keys[0], (size, hidden, hidden, 2 * width)),
        "critics": jax.tree.map(lambda a, b: jnp.stack([a, b]), *critics),
        "temperature": jnp.zeros(()),
    }
    state = SacState(params, params["critics"], optax.adam(learning_rate).init(params), np.zeros((), np.int32))
    how = _Options(discount, learning_rate, follow, reward_scale, devices)
    return Agent(
        name=f"soft actor-critic of {environment}",
        actor=playing.actor,
        learn=functools.partial(_learn, how, bounds, seed),
        state=jax.tree.map(np.asarray, state),
        params_of=_actor_of,
        evaluate=playing.evaluate,
    )


def _no_policy(params: Params, x: np.ndarray, random: np.random.Generator | None) -> None: ...


def _network(key: jax.Array, sizes: tuple[int, ...]) -> Params:
    keys = jax.random.split(key, len(sizes) - 1)
    draw = jax.nn.initializers.lecun_normal()
    layers = zip(keys, sizes, sizes[1:], strict=False)
    return {f"{i}": {"w": draw(key, (a, b)), "b": jnp.zeros((1, b))} for i, (key, a, b) in enumerate(layers)}


def _forward(params: Params, x: Any, maximum: Any = jnp.maximum) -> Any:
    """Computes the outputs for rows of inputs, `[rows, outputs]`."""
    for i in range(len(params) - 1):
        x = maximum(x @ params[f"{i}"]["w"] + params[f"{i}"]["b"], 0)
    last = params[f"{len(params) - 1}"]
    return x @ last["w"] + last["b"]


def _policy(
    bounds: tuple[np.ndarray, np.ndarray], params: Params, x: np.ndarray, random: np.random.Generator | None
) -> np.ndarray:
    """Returns an action between the bounds: a random draw, or the mean."""
    mean, log_scale = np.split(_forward(params, x[None], np.maximum)[0], 2)
    if random is not None:
        mean = mean + np.exp(np.clip(log_scale, -5, 2)) * random.normal(size=mean.shape)
    low, high = bounds
    return (low + (np.tanh(mean).reshape(low.shape) + 1) / 2 * (high - low)).astype(np.float32)


def _actor_of(state: SacState) -> Params:
    """Returns the actor's parameters as NumPy arrays, which make single actions fast."""
    return jax.tree.map(np.asarray, state.params["actor"])


def _learn(
    how: _Options,
    bounds: tuple[np.ndarray, np.ndarray],
    seed: int,
    state: SacState,
    items: list[Transition],
    probabilities: list[float],
) -> tuple[SacState, None]:
    now, action, reward, after, goes_on = (np.stack(column) for column in zip(*items, strict=True))
    low, high = bounds
    action = ((action - low[None]) / (high - low)[None] * 2 - 1).reshape(len(now), -1)
    columns, key = (now, action, reward, after, goes_on), jax.random.key(seed)
    if how.devices > 1:
        mesh = Mesh(np.array(jax.devices()[: how.devices]), "batch")
        columns = jax.device_put(columns, NamedSharding(mesh, P("batch")))
        state, key = jax.device_put((state, key), NamedSharding(mesh, P()))
    return _step(how, state, columns, key), None


def draw(actor: Params, x: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws actions in (-1, 1) for rows of observations, with the logarithms of their densities."""
    mean, log_scale = jnp.split(_forward(actor, x), 2, axis=-1)
    log_scale = jnp.clip(log_scale, -5, 2)
    normal = jax.random.normal(key, mean.shape)
    before = mean + jnp.exp(log_scale) * normal
    densities = -0.5 * normal**2 - log_scale - 0.5 * np.log(2 * np.pi)
    squash = 2 * (np.log(2) - before - jax.nn.softplus(-2 * before))  # log(1 - tanh²), without cancellation
    return jnp.tanh(before), (densities - squash).sum(-1)


@functools.partial(jax.jit, static_argnums=0)
def _step(how: _Options, state: SacState, columns: tuple[np.ndarray, ...], key: jax.Array) -> SacState:
    now, action, reward, after, goes_on = columns
    first, second = jax.random.split(jax.random.fold_in(key, state.steps))

    def values(critics: Params, x: Any, action: Any) -> jax.Array:
        """Returns the values of both critics, `[2, rows]`."""
        return jax.vmap(_forward, (0, None))(critics, jnp.concatenate([x, action], axis=-1))[..., 0]

    temperature = jnp.exp(state.params["temperature"])
    following, density = draw(state.params["actor"], after, first)
    beyond = values(state.target, after, following).min(0) - temperature * density
    goal = jax.lax.stop_gradient(how.reward_scale * reward + how.discount * goes_on * beyond)

    def loss(params: Params) -> jax.Array:
        drawn, density = draw(params["actor"], now, second)
        critics = jax.lax.stop_gradient(params["critics"])
        of_critics = jnp.square(values(params["critics"], now, action) - goal[None]).mean(1).sum() / 2
        of_actor = (temperature * density - values(critics, now, drawn).min(0)).mean()
        entropy = jax.lax.stop_gradient(density).mean() - action.shape[1]  # to be the size of the action, negated
        return of_critics + of_actor - params["temperature"] * entropy

    gradient = jax.grad(loss)(state.params)
    with jax.numpy_dtype_promotion("standard"):  # of optax
        updates, optimizer = optax.adam(how.learning_rate).update(gradient, state.optimizer)
    params: Any = optax.apply_updates(state.params, updates)  # pyright: ignore[reportArgumentType]
    target = jax.tree.map(lambda old, new: old + how.follow * (new - old), state.target, params["critics"])
    return SacState(params, target, optimizer, state.steps + 1)
