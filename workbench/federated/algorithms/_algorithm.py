"""The common form of algorithms that learn in rounds: an initial state and one round."""

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

    `round` is a program: it can be passed to `wb.jit`, `wb.inspect`, `wb.plan` and `jax.grad`, and (compiled) to
    `workbench.measurement.run_rounds`.

    Attributes:
        name: What the algorithm is called.
        init: `init(params)` makes the state before the first round.
        round: `round(state, client_batches)` returns the next state and metrics, a dictionary of arrays.
        params_of: `params_of(state)` is what was learned so far.
        personalize: `personalize(state, client_batches)` returns parameters for every client, leaves `[clients, ...]`;
            None for algorithms that learn one model for all.
        part_of: `part_of(population)` is the algorithm for a cohort out of `population` clients, where a round depends
            on that number; None where it does not.
    """

    name: str
    init: Callable[[Params], Any]
    round: Callable[[Any, ClientBatches], tuple[Any, Metrics]]
    params_of: Callable[[Any], Params] = lambda state: state.params
    personalize: Callable[[Any, ClientBatches], ClientParams] | None = None
    part_of: Callable[[int], "Algorithm"] | None = None


class ServerState(NamedTuple):
    """The parameters at the server, the state of its optimiser, and what its aggregator remembers."""

    params: Params
    optimizer: PyTree[Array]
    aggregation: PyTree[Array] = ()


def with_server_optimizer(
    optimizer: optax.GradientTransformation, aggregator: Aggregator, clients: int
) -> Callable[[Params], ServerState]:
    """The `init` of algorithms whose server holds parameters and an optimiser."""

    @program(clients=clients)
    def init(params: Params) -> ServerState:
        return ServerState(params, optimizer.init(params), aggregator.init(params))

    return init


def server_step(
    optimizer: optax.GradientTransformation, state: ServerState, update: Params, aggregation: PyTree[Array]
) -> ServerState:
    """Lets the server's optimiser take the clients' mean update as a descent direction.

    Args:
        optimizer: The server's; `optax.sgd(1.0)` adds the update as it is.
        state: Before.
        update: Mean over the clients of (parameters after local training − before).
        aggregation: What the aggregator remembers from now on.

    References:
        Reddi et al., ICLR 2021, Algorithm 1: −update is a pseudo-gradient.
    """
    pseudo_gradient = jax.tree.map(lambda x: -x, update)
    return ServerState(*optimizer_step(optimizer, pseudo_gradient, state.optimizer, state.params), aggregation)


def optimizer_step(
    optimizer: optax.GradientTransformation, gradient: Params, optimizer_state: PyTree[Array], params: Params
) -> tuple[Params, Any]:
    """The parameters and the optimiser's state after one step."""
    # Optax 0.2 raises a float to the power of an int32 count, which JAX's strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state
