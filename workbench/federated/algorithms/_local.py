"""Local training of one client in a round."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import squared_norm
from workbench.federated.algorithms._algorithm import Loss, optimizer_step
from workbench.federated.algorithms._types import Batch, Batches, ClientBatches, Params, Weights
from workbench.federated.data import Cohort
from workbench.primitives import emit


class Trained(NamedTuple):
    """A client's result, which contains its update, its mean loss, and its number of steps without padding.

    `optimizer` is the new optimizer state if `optimizer_state` was passed.
    """

    update: Params
    loss: Float[Array, ""]
    steps: Float[Array, ""]
    optimizer: PyTree[Array] = ()

    @property
    def squared_drift(self) -> Float[Array, ""]:
        """Squared distance between the client's and the server's parameters; it is not differentiated."""
        return squared_norm(jax.lax.stop_gradient(self.update))


def train_locally(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    params: Params,
    batches: Batches,
    adjust: Callable[[Params, Params], Params] = lambda params, gradient: gradient,
    *,
    optimizer_state: PyTree[Array] = None,
) -> Trained:
    """Takes one optimizer step per batch, starting at the server's parameters.

    Emits "client loss" at every step and "client drift" (a distance) at the end.

    Args:
        loss: `loss(params, batch)`, a scalar.
        optimizer: The client's optimizer.
        params: The server's parameters.
        batches: Pytree `[steps, ...]`. With a `mask` entry of shape `[steps, batch]`, steps that contain only
            padding change nothing and are not counted.
        adjust: `adjust(params, gradient)` returns the direction that is passed to the optimizer.
        optimizer_state: State to continue from. Default: a new state, which is not returned.

    Returns:
        The update and the mean loss; both are 0 for a client without examples.

    Example:
        >>> import optax
        >>> squares = lambda w, x: jnp.mean((w - x) ** 2)
        >>> trained = train_locally(squares, optax.sgd(0.5), jnp.zeros(()), jnp.array([[2.0], [2.0]]))
        >>> float(trained.update), float(trained.loss)  # the first step reaches the batch's mean: losses 4 and 0
        (2.0, 2.0)
    """

    def step(carry: PyTree[Array], batch: Batch) -> tuple[Any, Any]:
        local, optimizer_state = carry
        value, gradient = jax.value_and_grad(loss)(local, batch)
        emit("client loss", value)
        stepped = optimizer_step(optimizer, adjust(local, gradient), optimizer_state, local)
        real = has_examples(batch)
        new_carry = jax.tree.map(lambda new, old: jnp.where(real, new, old), stepped, carry)
        return new_carry, (jnp.where(real, value, jnp.zeros_like(value)), real.astype(value.dtype))

    started = _started(optimizer, params) if optimizer_state is None else optimizer_state
    (local, ended), (losses, real) = jax.lax.scan(step, (params, started), batches)
    steps = real.sum()
    update = jax.tree.map(jnp.subtract, local, params)
    handed_on = () if optimizer_state is None else ended
    trained = Trained(update, losses.sum() / jnp.maximum(steps, jnp.ones_like(steps)), steps, handed_on)
    emit("client drift", jnp.sqrt(trained.squared_drift))
    return trained


def _started(optimizer: optax.GradientTransformation, params: Params) -> PyTree[Array]:
    """Initializes an optimizer that is reset in every round; warns about schedules."""
    state = optimizer.init(params)
    if any(map(_is_schedule, jax.tree.leaves(state, is_leaf=_is_schedule))):
        warnings.warn(
            "The client optimizer contains a schedule. The optimizer is reset in every round, so the schedule restarts "
            "too and never gets past the steps of one round. For a rate that decays over rounds, build the algorithm "
            "inside the round with that round's rate, as in `optax.sgd(schedule(round))`.",
            stacklevel=2,
        )
    return state


def _is_schedule(state: object) -> bool:
    return type(state).__name__.endswith("ScheduleState")


def has_examples(batch: Batch) -> Bool[Array, ""]:
    """Returns whether a step has any examples; if not, it is padding."""
    return batch["mask"].any() if isinstance(batch, dict) and "mask" in batch else jnp.array(True)


def split_weight(
    client_batches: ClientBatches, clients: int, *, keeps_state: str | Literal[False] = False
) -> tuple[Any, Weights]:
    """Separates client weights (entry `weight`, or ones if it is missing) from the batches."""
    if not isinstance(client_batches, dict):
        return client_batches, jnp.ones(clients)
    cohort = client_batches.get("cohort")
    if keeps_state and isinstance(cohort, Cohort) and cohort.population != clients:
        message = (
            f"`{keeps_state}` keeps a state for each of its {clients} clients, and its round received a cohort of "
            f"{cohort.numbers.shape[0]} out of {cohort.population} clients. A client's state must follow the client, "
            f"not its slot in the cohort. Create the algorithm with `in_cohorts(lambda clients: {keeps_state}(…, "
            f"clients=clients, …), clients={cohort.population}, cohort={cohort.numbers.shape[0]})`."
        )
        raise ProgramError(message)
    batches = {name: value for name, value in client_batches.items() if name not in ("weight", "cohort")}
    weight = client_batches.get("weight")
    return batches, jnp.ones(clients) if weight is None else jnp.asarray(weight)


def mean_gradient(loss: Loss, params: Params, batches: Batches) -> PyTree[Array]:
    """Computes a client's gradient at the server's parameters over all real batches."""

    def add(total: object, batch: Batch) -> tuple[Any, None]:
        gradient = jax.grad(loss)(params, batch)
        real = has_examples(batch)
        return jax.tree.map(lambda t, g: t + jnp.where(real, g, jnp.zeros_like(g)), total, gradient), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batches)
    count = jnp.maximum(jax.vmap(has_examples)(batches).sum(), 1)
    return jax.tree.map(lambda t: t / count.astype(t.dtype), total)
