"""Real training on sampled clients of a simulated population."""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Integer

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms import Algorithm
from workbench.federated.population._simulate import Simulation
from workbench.plan import jit

if TYPE_CHECKING:
    import pandas as pd

_compiled = functools.lru_cache(maxsize=16)(jit)  # the same algorithm is often trained with several seeds


def train(
    simulation: Simulation,
    algorithm: Algorithm,
    params: PyTree[Array],
    data_of: Callable[[Integer[np.ndarray, " sampled"], int], Any],
    *,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    every: int = 1,
) -> "pd.DataFrame":
    """Trains on the clients of each simulated round; returns costs and metrics.

    The simulation determines the contributing clients: fast devices, and devices that are charging at the time of the
    round, contribute more often than others. With a buffered schedule, results have the simulated staleness. A lost
    round changes nothing.

    Args:
        simulation: A result of `simulate`. The `sampled` clients of each round train and represent the whole cohort;
            the mean over the whole cohort would be less noisy.
        algorithm: Algorithm for `clients=sampled`; a buffered schedule needs `algorithms.buffered_fedavg`.
        params: Initial parameters.
        data_of: `data_of(ids, round)` returns the batches of the given clients (leaves `[sampled, steps, ...]`), as a
            dictionary or any other pytree. In a round with fewer clients than `sampled`, the first client fills the
            other rows, with weight 0.
        evaluate: `evaluate(params)` returns metrics, such as `{"accuracy": 0.9}`.
        every: Number of rounds between evaluations.

    Returns:
        `simulation.frame()` with a column for each metric of the rounds and of `evaluate`; NaN for rounds without the
        metric.

    Raises:
        ProgramError: if the batches need weights or staleness but are not a dictionary.

    References:
        Lai et al., "FedScale", ICML 2022: statistical and system performance from one run.
    """
    frame = simulation.frame()
    state, step = algorithm.init(params), _compiled(algorithm.round)
    columns: dict[str, list[float]] = {}
    for number, round_record in enumerate(simulation.record.rounds):
        metrics: dict[str, Any] = {}
        if round_record.succeeded:
            state, results = step(state, _batches(simulation, data_of, number))
            metrics = {name: float(value) for name, value in results.items() if np.ndim(value) == 0}
        if evaluate is not None and (number % every == every - 1 or number == len(frame) - 1):
            metrics |= {name: float(value) for name, value in evaluate(algorithm.params_of(state)).items()}
        for name, value in metrics.items():
            columns.setdefault(name, [np.nan] * len(frame))[number] = value
    for name, values in columns.items():
        frame[name if name not in frame else f"{name} (trained)"] = values
    return frame


def _batches(simulation: Simulation, data_of: Callable[[Any, int], Any], number: int) -> PyTree[Array]:
    ids, staleness = simulation.sampled_ids[number], simulation.sampled_staleness[number]
    present = ids >= 0
    batches = data_of(np.where(present, ids, ids[0]), number)
    buffered = simulation.record.schedule == "buffered"
    if present.all() and not buffered:
        return batches
    if not isinstance(batches, dict):
        message = (
            f"`train` received batches of type {type(batches).__name__} for round {number}, in which "
            f"{int(present.sum())} of {len(ids)} sampled clients have "
            f"results{' from several versions' if buffered else ''}. Weights and staleness are added to the batches: "
            "return a dictionary of arrays from `data_of`."
        )
        raise ProgramError(message)
    weight = np.asarray(jax.tree.map(np.asarray, batches.get("weight", np.ones(len(ids), np.float32))))
    batches = {**batches, "weight": np.where(present, weight, 0).astype(weight.dtype)}
    return {**batches, "staleness": staleness.astype(np.int32)} if buffered else batches
