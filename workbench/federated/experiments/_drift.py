"""Drift of clients in one round of an experiment: their paths, in the plane that shows most of it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms import Algorithm
from workbench.federated.experiments._settings import Settings

_MOST_CLIENTS, _MOST_POINTS = 12, 9


@dataclass(frozen=True)
class Drift:
    """Paths of clients' parameters in one round, relative to the parameters that the server sent.

    Attributes:
        round: The round, from 0.
        clients: Who is drawn: up to 12 of those that answered.
        steps: The local steps at which parameters were read; the first is 0.
        paths: `[clients, steps, 2]`, in the plane of the two principal directions, in units of the parameters (L2).
        mean: `[steps, 2]`, the mean over all clients that answered, weighted as the server weights them.
        shares: How much of the squared distance from the server each direction holds.
        apart: `[clients]`, the distance of each client from the mean at the end, in all directions.
        moved: The distance of the mean from the server at the end, in all directions.
    """

    round: int
    clients: tuple[int, ...]
    steps: tuple[int, ...]
    paths: np.ndarray
    mean: np.ndarray
    shares: tuple[float, float]
    apart: np.ndarray
    moved: float


def drift_of(algorithm: Algorithm, state: PyTree[Array], batches: Mapping[str, np.ndarray], round: int) -> Drift:
    """Repeats a round's local training from the state before it, and reads every client's parameters on the way.

    A round in which one client alone answers, with a server that takes its update as it is, ends at that client's
    parameters; with fewer local steps, at those on its way. So this is exact for every algorithm, with its control
    variates, momentum or proximal terms.

    Args:
        algorithm: The clients' part of the algorithm, with a server that takes the mean as it is.
        state: Its state before the round.
        batches: What the clients train on, and their `weight`: 0 for those that do not answer.
        round: Which round this is.

    Raises:
        ProgramError: if no client answers in that round.
    """
    weights = batches["weight"]
    answered = np.flatnonzero(weights)
    if not len(answered):
        message = (
            f"`drift` received round {round}, in which none of {len(weights)} clients answers. A path needs a client "
            "that trains. Ask for another round, or raise `participation`."
        )
        raise ProgramError(message)
    shown = answered[np.linspace(0, len(answered) - 1, min(len(answered), _MOST_CLIENTS)).round().astype(int)]
    alone = np.where(np.arange(len(weights)) == shown[:, None], weights, 0)
    rows = jnp.asarray(np.concatenate([alone, weights[None]]))
    local_steps = batches["x"].shape[1]
    steps = np.unique(np.linspace(0, local_steps, min(local_steps + 1, _MOST_POINTS)).round().astype(int))

    @jax.jit
    def ends(data: PyTree[Array], rows: jax.Array) -> jax.Array:
        def end(weight: jax.Array) -> jax.Array:
            made, _ = algorithm.round(state, {**data, "weight": weight})
            return ravel_pytree(algorithm.params_of(made))[0]

        return jax.lax.map(end, rows)

    def after(count: int) -> np.ndarray:
        data = {name: jnp.asarray(batches[name][:, :count]) for name in ("x", "y")}
        return np.asarray(ends(data, rows))

    origin = np.asarray(ravel_pytree(algorithm.params_of(state))[0])
    read = [np.zeros((len(rows), len(origin))), *(after(int(count)) - origin for count in steps[1:])]
    points = np.stack(read, axis=1)  # [rows, steps, parameters]
    _, sizes, directions = np.linalg.svd(points.reshape(-1, points.shape[-1]), full_matrices=False)
    plane = points @ directions[:2].T
    plane *= np.where(plane[-1, -1] < 0, -1.0, 1.0)  # the mean goes to the right and up
    whole = max(float((sizes**2).sum()), 1e-30)
    return Drift(
        round=round,
        clients=tuple(int(each) for each in shown),
        steps=tuple(int(each) for each in steps),
        paths=plane[:-1],
        mean=plane[-1],
        shares=(float(sizes[0] ** 2) / whole, float(sizes[1] ** 2) / whole),
        apart=np.linalg.norm(points[:-1, -1] - points[-1, -1], axis=1),
        moved=float(np.linalg.norm(points[-1, -1])),
    )


def local_only(settings: Settings) -> Settings:
    """The same local training, and a server that takes the mean as it is."""
    algorithm = "FedAvg" if same_clients_as_fedavg(settings) else settings.algorithm
    return dataclasses.replace(settings, algorithm=algorithm, server_learning_rate=1.0, noise=0.0, compression="none")


def same_clients_as_fedavg(settings: Settings) -> bool:
    """Returns whether an algorithm differs at the server only, so that its state is of no use to the clients."""
    return settings.algorithm in ("FedAdam", "DiLoCo")
