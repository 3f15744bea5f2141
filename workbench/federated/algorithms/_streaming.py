"""Streaming DiLoCo: synchronises one parameter fragment at a time during training."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, at_every_client, weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm, Loss, ServerState, server_step, with_server_optimizer
from workbench.federated.algorithms._diloco import outer_nesterov
from workbench.federated.algorithms._local import split_weight, train_locally
from workbench.federated.algorithms._types import Batches, ClientBatches, Metrics, Params
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


class StreamingState(NamedTuple):
    """Server state for each fragment, and each replica's parameters and inner optimizer state."""

    fragments: tuple[ServerState, ...]
    local: Params
    inner: PyTree[Array]

    @property
    def params(self) -> Params:
        """The parameters at the server, assembled from their fragments."""
        leaves, structure = jax.tree.flatten(self.local)
        parts = [fragment.params for fragment in self.fragments]
        return jax.tree.unflatten(structure, [parts[i % len(parts)][i // len(parts)] for i in range(len(leaves))])


def streaming_diloco(
    loss: Loss,
    *,
    clients: int,
    inner_optimizer: optax.GradientTransformation,
    outer_optimizer: optax.GradientTransformation | None = None,
    fragments: int = 2,
    delay: int = 0,
    keep: float = 0.0,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """DiLoCo that synchronises one fragment of the parameters at a time.

    A round of H steps synchronises every fragment once, with H / `fragments` steps between fragments. A round sends as
    many bytes as `diloco`, but at most one fragment at a time. With a `delay`, communication overlaps with the next
    `delay` steps.

    Args:
        loss: `loss(params, batch)`, a scalar.
        clients: Number of replicas; all take part in every round.
        inner_optimizer: The replicas' optimizer; `optax.adamw` in the paper.
        outer_optimizer: The server's optimizer, with one state per fragment. Default: `outer_nesterov()`.
        fragments: Number of fragments. Parameter arrays are assigned to fragments in rotation (the paper's strided
            pattern).
        delay: τ, the number of steps between sending a fragment and receiving it.
        keep: α, the weight of a replica's own value when it receives a fragment. The paper uses 0.5 with a delay.
        aggregator: As in `fedavg`; `quantized_mean(4)` approximates the paper's 4-bit numbers.

    Returns: The algorithm, with batches as in `fedavg` and the metric `loss`. The number of steps must be a multiple of
        `fragments`.

    Raises:
        ProgramError: if there are fewer arrays than fragments, the steps do not divide evenly, or the delay is too
            long.

    Example:
        >>> algorithm = streaming_diloco(lambda w, x: ((w["a"] + w["b"] - x) ** 2), clients=1, fragments=2,
        ...     inner_optimizer=optax.sgd(0.25), outer_optimizer=optax.sgd(1.0))
        >>> start = {"a": jnp.float32(0), "b": jnp.float32(0)}
        >>> state, _ = algorithm.round(algorithm.init(start), jnp.array([[1.0, 1.0]]))
        >>> state.params  # both gradients are −2, and a step of 0.25 solves it
        {'a': Array(0.5, dtype=float32), 'b': Array(0.5, dtype=float32)}

    References:
        Douillard et al., "Streaming DiLoCo with overlapping communication", 2025 (arXiv 2501.18512), Algorithm 2.
    """
    outer = outer_nesterov() if outer_optimizer is None else outer_optimizer
    combiner = weighted_mean() if aggregator is None else aggregator
    init_fragment = with_server_optimizer(outer, combiner, clients)

    def train(local: Params, inner: PyTree[Array], batches: Batches) -> PyTree[Array]:
        trained = train_locally(loss, inner_optimizer, local, batches, optimizer_state=inner)
        return (
            jax.tree.map(jnp.add, local, trained.update),
            trained.optimizer,
            trained.loss * trained.steps,
            trained.steps,
        )

    @program(clients=clients)
    def streaming_round(state: StreamingState, client_batches: ClientBatches) -> tuple[StreamingState, Metrics]:
        batches, weight = split_weight(client_batches, clients, keeps_state="streaming_diloco")
        before, after = _segments(batches, fragments, delay)
        local, inner, sums = state.local, state.inner, []
        renewed = list(state.fragments)
        for number, fragment in enumerate(state.fragments):
            local, inner, *counted = map_fn(train, (local, inner, before[number]))
            sums.append(counted)
            updates = map_fn(_updates, (_dealt(local, number, fragments), broadcast(fragment.params)))
            if delay:  # these steps do not read values in transit, so the compiler can overlap both
                local, inner, *counted = map_fn(train, (local, inner, after[number]))
                sums.append(counted)
            update, aggregation = combiner.combine(updates, weight, fragment.aggregation)
            renewed[number] = server_step(outer, fragment, update, aggregation)
            local = _received(local, broadcast(renewed[number].params), number, fragments, keep)
        losses, steps = (reduce_weighted_mean(list(column), weight) for column in zip(*sums, strict=True))
        return StreamingState(tuple(renewed), local, inner), {"loss": sum(losses) / jnp.maximum(sum(steps), 1)}

    def init(params: Params) -> StreamingState:
        _check_fragments(params, fragments)
        states = tuple(init_fragment(_dealt(params, number, fragments)) for number in range(fragments))
        return StreamingState(states, *at_every_client((params, inner_optimizer.init(params)), clients))

    return Algorithm(name="Streaming DiLoCo", init=init, round=streaming_round)


def _dealt(params: Params, number: int, fragments: int) -> list[Any]:
    return jax.tree.leaves(params)[number::fragments]


def _updates(local: Sequence[Any], reference: Sequence[Any]) -> list[Any]:
    return [value - server for value, server in zip(local, reference, strict=True)]


def _received(local: Params, arrived: Sequence[Any], number: int, fragments: int, keep: float) -> PyTree[Array]:
    def mix(values: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        return [keep * value + (1 - keep) * update for value, update in zip(values, new, strict=True)]

    leaves, structure = jax.tree.flatten(local)
    leaves[number::fragments] = map_fn(mix, (leaves[number::fragments], list(arrived)))
    return jax.tree.unflatten(structure, leaves)


def _segments(batches: Batches, fragments: int, delay: int) -> tuple[list[Any], list[Any]]:
    """Splits the batches: for each fragment, the steps before it is sent, and the steps while it is in transit."""
    steps = jax.tree.leaves(batches)[0].shape[1]
    length = steps // fragments
    if steps % fragments or not 0 <= delay < length:
        message = (
            f"`streaming_diloco` was given {steps} steps per round for fragments={fragments} and delay={delay}. A "
            "fragment is sent every `steps / fragments` steps, and this interval must be longer than `delay`: pass a "
            f"number of steps that is a multiple of {fragments} and greater than {fragments} × {delay}."
        )
        raise ProgramError(message)
    starts = [number * length for number in range(fragments)]

    def cut(first: int, last: int) -> Batches:
        return jax.tree.map(lambda x: x[:, first:last], batches)

    return [cut(s, s + length - delay) for s in starts], [cut(s + length - delay, s + length) for s in starts]


def _check_fragments(params: Params, fragments: int) -> None:
    arrays = len(jax.tree.leaves(params))
    if not 1 <= fragments <= arrays:
        message = (
            f"`streaming_diloco` was given fragments={fragments} for parameters of {arrays} array(s). Each fragment "
            f"must contain at least one array: pass 1 to {arrays} fragments, or parameters in more arrays."
        )
        raise ProgramError(message)
