"""Models trained separately and merged at the end (branch-train-merge) or regularly (PAPA)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.federated.algorithms._aggregate import at_every_client
from workbench.federated.algorithms._algorithm import Algorithm, Loss
from workbench.federated.algorithms._local import split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_mean, reduce_weighted_mean


class PopulationState(NamedTuple):
    """A model and its optimizer at every client (leaves `[clients, ...]`)."""

    members: PyTree[Array]
    optimizer: PyTree[Array]


def branch_train_merge(loss: Loss, *, clients: int, optimizer: optax.GradientTransformation) -> Algorithm:
    """Trains independent experts from one seed model; `params_of` averages them.

    A round sends only its metrics. Merging (`params_of`) sends the parameters of every expert once.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of experts, each with its own domain.
        optimizer: The experts' optimizer; its state is kept between rounds.

    Returns:
        The algorithm. `init(params)` branches, and a round trains every expert on its own batches (metric `loss`).
        `params_of(state)` returns the experts' mean, and `personalize(state, client_batches)` returns the experts.

    Example:
        >>> algorithm = branch_train_merge(lambda w, x: (w - x) ** 2, clients=2, optimizer=optax.sgd(0.5))
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> state.members.tolist(), float(algorithm.params_of(state))
        ([1.0, 3.0], 2.0)

    References:
        Li et al., "Branch-Train-Merge: Embarrassingly Parallel Training of Expert Language Models", 2022
        (arXiv 2208.03306), section 3.
    """
    return _population("Branch-train-merge", loss, clients, optimizer, keep=1.0)


def papa(loss: Loss, *, clients: int, optimizer: optax.GradientTransformation, keep: float = 0.99) -> Algorithm:
    """Trains networks that move towards their mean after every round (PAPA).

    In a round, every network sends its parameters once and receives the mean.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of networks. Networks with weight 0 do not train in a round.
        optimizer: The networks' optimizer; its state is kept between rounds.
        keep: α, the weight of a network's own parameters. The paper uses 0.99 with 10 steps per round; 0 gives
            PAPA-all.

    Returns:
        The algorithm. The metrics are `loss` and `squared_spread`, the mean squared distance of the networks from their
        mean before the move. `params_of(state)` returns the mean (the paper's average soup), and `personalize(state,
        client_batches)` returns the networks.

    Example:
        >>> algorithm = papa(lambda w, x: (w - x) ** 2, clients=2, optimizer=optax.sgd(0.5), keep=0.5)
        >>> state, metrics = algorithm.round(algorithm.init(jnp.float32(0)), jnp.array([[1.0], [3.0]]))
        >>> state.members.tolist(), float(metrics["squared_spread"])
        ([1.5, 2.5], 1.0)

    References:
        Jolicoeur-Martineau et al., "PopulAtion Parameter Averaging (PAPA)", TMLR 2024 (arXiv 2304.03094), Algorithm 1.
    """
    return _population("PAPA", loss, clients, optimizer, keep)


def _population(name: str, loss: Loss, clients: int, optimizer: optax.GradientTransformation, keep: float) -> Algorithm:
    def train(member: PyTree[Array], optimizer_state: Params, weight: jax.Array, batches: Batches) -> PyTree[Array]:
        trained = train_locally(loss, optimizer, member, batches, optimizer_state=optimizer_state)
        after = (jax.tree.map(jnp.add, member, trained.update), trained.optimizer)
        return jax.tree.map(
            lambda new, old: jnp.where(weight > 0, new, old), after, (member, optimizer_state)
        ), trained.loss

    @program(clients=clients)
    def population_round(state: PopulationState, client_batches: ClientBatches) -> tuple[PopulationState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="papa")
        (members, optimizer_state), losses = map_fn(train, (*state, weight, batches))
        metrics = {"loss": reduce_weighted_mean(losses, weight)}
        if keep < 1:
            middle = broadcast(reduce_mean(members))
            metrics["squared_spread"] = reduce_mean(map_fn(_squared_distance, (members, middle)))
            members = map_fn(
                lambda member, mean: jax.tree.map(lambda x, m: keep * x + (1 - keep) * m, member, mean),
                (members, middle),
            )
        return PopulationState(members, optimizer_state), metrics

    @program(clients=clients)
    def merged(state: PopulationState) -> PyTree[Array]:
        return reduce_mean(state.members)

    def init(params: Params) -> PopulationState:
        return PopulationState(*at_every_client((params, optimizer.init(params)), clients))

    return Algorithm(
        name=name, init=init, round=population_round, params_of=merged, personalize=lambda state, _: state.members
    )


def _squared_distance(a: object, b: object) -> jax.Array:
    return sum(
        (jnp.sum((x - y) ** 2) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)), jnp.zeros(())
    )
