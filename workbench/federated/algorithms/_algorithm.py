"""The common interface of algorithms that learn in rounds."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import optax
from jaxtyping import Array, Float

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import Aggregator
from workbench.federated.algorithms._types import Batch, ClientBatches, ClientParams, Metrics, Params
from workbench.primitives import program

Loss: TypeAlias = Callable[[Params, Batch], Float[Array, ""]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm that learns in rounds.

    `round` is a program, so `wb.jit`, `wb.inspect`, `wb.plan` and `jax.grad` accept it. A compiled `round` is a step
    for `workbench.measurement.run_rounds`.

    Attributes:
        name: Name of the algorithm.
        init: `init(params)` returns the state before the first round.
        round: `round(state, client_batches)` returns the next state and metrics, a dictionary of arrays.
        params_of: `params_of(state)` returns the parameters learned so far.
        personalize: `personalize(state, client_batches)` returns parameters for every client (leaves `[clients, ...]`).
            None if the algorithm learns one model for all clients.
        part_of: `part_of(population)` returns the algorithm for a cohort drawn from `population` clients. None if a
            round does not depend on the population size.
    """

    name: str
    init: Callable[[Params], Any]
    round: Callable[[Any, ClientBatches], tuple[Any, Metrics]]
    params_of: Callable[[Any], Params] = lambda state: state.params
    personalize: Callable[[Any, ClientBatches], ClientParams] | None = None
    part_of: Callable[[int], "Algorithm"] | None = None


class ServerState(NamedTuple):
    """Server state: parameters, optimizer state and aggregator state."""

    params: Params
    optimizer: PyTree[Array]
    aggregation: PyTree[Array] = ()


def with_server_optimizer(
    optimizer: optax.GradientTransformation, aggregator: Aggregator, clients: int
) -> Callable[[Params], ServerState]:
    """Creates the `init` function for algorithms whose server has parameters and an optimizer."""

    @program(clients=clients)
    def init(params: Params) -> ServerState:
        return ServerState(params, optimizer.init(params), aggregator.init(params))

    return init


def server_step(
    optimizer: optax.GradientTransformation, state: ServerState, update: Params, aggregation: PyTree[Array]
) -> ServerState:
    """Applies the server's optimizer to the clients' mean update.

    Args:
        optimizer: The server's optimizer; `optax.sgd(1.0)` adds the update unchanged.
        state: State before the step.
        update: The clients' mean update; an update is the change of the parameters in local training.
        aggregation: The aggregator's new state.

    References:
        Reddi et al., ICLR 2021, Algorithm 1, where −update is a pseudo-gradient.
    """
    pseudo_gradient = jax.tree.map(lambda x: -x, update)
    return ServerState(*optimizer_step(optimizer, pseudo_gradient, state.optimizer, state.params), aggregation)


def optimizer_step(
    optimizer: optax.GradientTransformation, gradient: Params, optimizer_state: PyTree[Array], params: Params
) -> tuple[Params, Any]:
    """Returns the parameters and the optimizer state after one step."""
    # Optax 0.2 raises a float to the power of an int32 count, which JAX's strict promotion rejects.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state
