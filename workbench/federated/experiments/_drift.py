"""Client drift in one round of an experiment, projected onto two principal directions."""

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
        clients: Up to 12 of the clients that answered.
        steps: Local steps at which parameters were recorded; the first is 0.
        paths: `[clients, steps, 2]`, coordinates along the two principal directions, in the same units as the
            parameters (L2).
        mean: `[steps, 2]`, the mean over all clients that answered, weighted as the server weights them.
        shares: Share of the squared distance from the server that lies in each direction.
        apart: `[clients]`, each client's final distance from the mean, over all parameters.
        moved: The mean's final distance from the server, over all parameters.
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
    """Repeats a round's local training and records every client's parameters along the way.

    If only one client answers and the server adds its update unchanged, the round ends at that client's parameters.
    With fewer local steps, the round ends at the client's intermediate parameters. The paths are therefore exact for
    every algorithm, including control variates, momentum and proximal terms.

    Args:
        algorithm: The clients' part of the algorithm, combined with a server that adds the mean update unchanged.
        state: State of the algorithm before the round.
        batches: The clients' batches, whose entry `weight` is 0 for clients that do not answer.
        round: Number of the round.

    Raises:
        ProgramError: if no client answers in that round.
    """
    weights = batches["weight"]
    answered = np.flatnonzero(weights)
    if not len(answered):
        message = (
            f"`drift` received round {round}, in which none of the {len(weights)} clients answered. A drift path needs "
            "at least one client that trains. Pass another round, or raise `participation`."
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
            new_state, _ = algorithm.round(state, {**data, "weight": weight})
            return ravel_pytree(algorithm.params_of(new_state))[0]

        return jax.lax.map(end, rows)

    def after(count: int) -> np.ndarray:
        data = {name: jnp.asarray(batches[name][:, :count]) for name in ("x", "y")}
        return np.asarray(ends(data, rows))

    origin = np.asarray(ravel_pytree(algorithm.params_of(state))[0])
    offsets = [np.zeros((len(rows), len(origin))), *(after(int(count)) - origin for count in steps[1:])]
    points = np.stack(offsets, axis=1)  # [rows, steps, parameters]
    _, sizes, directions = np.linalg.svd(points.reshape(-1, points.shape[-1]), full_matrices=False)
    plane = points @ directions[:2].T
    plane *= np.where(plane[-1, -1] < 0, -1.0, 1.0)  # orient the plane so that the mean moves right and up
    total = max(float((sizes**2).sum()), 1e-30)
    return Drift(
        round=round,
        clients=tuple(int(client) for client in shown),
        steps=tuple(int(step) for step in steps),
        paths=plane[:-1],
        mean=plane[-1],
        shares=(float(sizes[0] ** 2) / total, float(sizes[1] ** 2) / total),
        apart=np.linalg.norm(points[:-1, -1] - points[-1, -1], axis=1),
        moved=float(np.linalg.norm(points[-1, -1])),
    )


def local_only(settings: Settings) -> Settings:
    """Keeps the local training, but makes the server add the mean update unchanged."""
    algorithm = "FedAvg" if same_clients_as_fedavg(settings) else settings.algorithm
    return dataclasses.replace(settings, algorithm=algorithm, server_learning_rate=1.0, noise=0.0, compression="none")


def same_clients_as_fedavg(settings: Settings) -> bool:
    """Returns whether an algorithm differs from FedAvg only at the server."""
    return settings.algorithm in ("FedAdam", "DiLoCo")
