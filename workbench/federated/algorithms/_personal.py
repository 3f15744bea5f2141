"""Ditto and FedRep: a personal model, or personal layers, that are never sent."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree, PyTreeDef
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._local import Trained, split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, ClientParams, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean

Form: TypeAlias = tuple[Sequence[bool], PyTreeDef]
"""One flag per parameter (True for a personal one), in the order of the leaves, and the structure of the tree."""


class PersonalState(NamedTuple):
    """State of the server, and of each client (`own`, `[clients, ...]`)."""

    server: ServerState
    own: Params

    @property
    def params(self) -> Params:
        """The parameters at the server."""
        return self.server.params


def ditto(
    loss: Loss,
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    strength: float,
    personal_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Trains a shared model and, for each client, a personal model pulled towards it.

    A personal model minimises `loss + λ/2 ‖v − w_server‖²`. Sends as many bytes as `fedavg`; personal models stay on
    the clients.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of clients. Clients with weight 0 are absent from a round and keep their personal model.
        client_optimizer: Optimizer for the shared model's local steps.
        strength: λ. With 0, each client trains alone. With a large value, all clients use the shared model.
        personal_optimizer: Optimizer for the personal models. Default: `client_optimizer`.
        server_optimizer: As in `fedavg`.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, with batches as in `fedavg` and the metrics `loss`, `squared_drift` and `personal_loss`;
        `personalize` returns the personal models.

    Example:
        >>> algorithm = ditto(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(0.25), strength=0.0)
        >>> batches = jnp.array([[1.0], [3.0]])
        >>> state, _ = algorithm.round(algorithm.init(jnp.float32(0)), batches)
        >>> float(state.params), algorithm.personalize(state, batches).tolist()
        (1.0, [0.5, 1.5])

    References:
        Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv 2012.04221),
        Algorithm 1.
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    init_server = with_server_optimizer(server, combiner, clients)
    own_optimizer = client_optimizer if personal_optimizer is None else personal_optimizer

    def train(params: Params, model: Params, weight: jax.Array, batches: Batches) -> PyTree[Array]:
        def pulled(local: Params, gradient: Params) -> PyTree[Array]:
            return jax.tree.map(lambda g, v, w: g + strength * (v - w), gradient, local, params)

        trained = train_locally(loss, client_optimizer, params, batches)
        personal = train_locally(loss, own_optimizer, model, batches, pulled)
        new_model = jax.tree.map(lambda v, x: jnp.where(weight > 0, v + x, v), model, personal.update)
        return trained.update, new_model, (trained.loss, trained.squared_drift, personal.loss)

    @program(clients=clients)
    def ditto_round(state: PersonalState, client_batches: ClientBatches) -> tuple[PersonalState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="ditto")
        update, model, results = map_fn(train, (broadcast(state.server.params), state.own, weight, batches))
        update, aggregation = combiner.combine(update, weight, state.server.aggregation)
        value, drift, personal = reduce_weighted_mean(results, weight)
        after = server_step(server, state.server, update, aggregation)
        return PersonalState(after, model), {"loss": value, "squared_drift": drift, "personal_loss": personal}

    @program(clients=clients)
    def init(params: Params) -> PersonalState:
        return PersonalState(init_server(params), broadcast(params))

    return Algorithm(name="Ditto", init=init, round=ditto_round, personalize=lambda state, client_batches: state.own)


def fedrep(
    loss: Loss,
    *,
    clients: int,
    is_personal: Callable[[str], bool],
    client_optimizer: optax.GradientTransformation,
    head_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Trains a shared representation with personal heads that stay on their clients.

    A client makes two passes over its batches. The client first trains its head with the representation fixed, then the
    representation with the head fixed. Only the representation is communicated, once in each direction.

    Args:
        loss: `loss(params, batch)`, a scalar; `params` contains all parameters.
        clients: Number of clients. Clients with weight 0 are absent from a round and keep their head.
        is_personal: Function that returns whether the parameter at a path, such as "head.kernel", belongs to the head.
        client_optimizer: Optimizer for the representation's local steps.
        head_optimizer: Optimizer for the head. Default: `client_optimizer`.
        server_optimizer: As in `fedavg`.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, with batches and metrics as in `fedavg`. `params_of` returns the representation with the first
        client's head; `personalize` returns all parameters for every client.

    Raises:
        ProgramError: if `is_personal` selects no parameters, or all of them.

    Example:
        >>> def loss(w, x):
        ...     return (w["body"] + w["head"] - x) ** 2
        >>> sgd = optax.sgd(0.25)
        >>> algorithm = fedrep(loss, clients=2, client_optimizer=sgd, is_personal=lambda path: path == "head")
        >>> batches = jnp.array([[1.0], [3.0]])
        >>> state, _ = algorithm.round(algorithm.init({"body": jnp.float32(0), "head": jnp.float32(0)}), batches)
        >>> algorithm.personalize(state, batches)["head"].tolist(), float(algorithm.params_of(state)["body"])
        ([0.5, 1.5], 0.5)

    References:
        Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021
        (arXiv 2102.07078), Algorithm 1.
    """
    server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    own_optimizer = client_optimizer if head_optimizer is None else head_optimizer

    def split(params: Params) -> tuple[list[Any], list[Any], Sequence[bool], PyTreeDef]:
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        personal = [is_personal(jax.tree_util.keystr(path, simple=True, separator=".")) for path, _ in leaves]
        if len(set(personal)) < 2:
            names = ", ".join(jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves[:8])
            message = (
                f"`fedrep` received an `is_personal` that chooses {sum(personal)} of {len(personal)} parameters "
                f"({names}). Choose some of these paths as the clients' heads; the server shares the rest."
            )
            raise ProgramError(message)
        shared = [leaf for (_, leaf), is_head in zip(leaves, personal, strict=True) if not is_head]
        return shared, [leaf for (_, leaf), h in zip(leaves, personal, strict=True) if h], personal, structure

    def join(shared: list[Any], heads: list[Any], form: Form) -> PyTree[Array]:
        personal, structure = form
        parts = {True: iter(heads), False: iter(shared)}
        return structure.unflatten([next(parts[is_head]) for is_head in personal])

    def train(form: Form, shared: Params, heads: Params, weight: jax.Array, batches: Batches) -> PyTree[Array]:
        head = train_locally(lambda h, batch: loss(join(shared, h, form), batch), own_optimizer, heads, batches)
        learned = jax.tree.map(jnp.add, heads, head.update)
        body: Trained = train_locally(
            lambda b, batch: loss(join(b, learned, form), batch), client_optimizer, shared, batches
        )
        new_heads = jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), learned, heads)
        return body.update, new_heads, (body.loss, body.squared_drift)

    def form_of(state: PersonalState) -> Form:
        return split(state.server.aggregation[1])[2:]

    @program(clients=clients)
    def fedrep_round(state: PersonalState, client_batches: ClientBatches) -> tuple[PersonalState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="fedrep")
        inner, first = state.server.aggregation
        form = form_of(state)
        update, heads, results = map_fn(
            lambda *args: train(form, *args), (broadcast(state.server.params), state.own, weight, batches)
        )
        update, inner = combiner.combine(update, weight, inner)
        value, drift = reduce_weighted_mean(results, weight)
        after = server_step(server, state.server, update, (inner, first))
        return PersonalState(after, heads), {"loss": value, "squared_drift": drift}

    @program(clients=clients)
    def init(params: Params) -> PersonalState:
        shared, heads, _, _ = split(params)
        started = ServerState(shared, server.init(shared), (combiner.init(shared), params))
        return PersonalState(started, broadcast(heads))

    @program(clients=clients)
    def personalize(state: PersonalState, client_batches: ClientBatches) -> ClientParams:
        form = form_of(state)
        return map_fn(lambda shared, heads: join(shared, heads, form), (broadcast(state.server.params), state.own))

    def params_of(state: PersonalState) -> Params:
        _, heads, personal, structure = split(state.server.aggregation[1])
        return join(state.server.params, heads, (personal, structure))

    return Algorithm(name="FedRep", init=init, round=fedrep_round, params_of=params_of, personalize=personalize)
