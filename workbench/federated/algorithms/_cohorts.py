"""Rounds with sampled cohorts; a client's state follows the client, not its slot."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from workbench.errors import ProgramError
from workbench.federated.algorithms._algorithm import Algorithm
from workbench.federated.algorithms._types import ClientBatches, Metrics
from workbench.federated.data import Cohort
from workbench.primitives import map_fn, program, select


def in_cohorts(make: Callable[[int], Algorithm], *, clients: int, cohort: int) -> Algorithm:
    """Creates an algorithm that trains a cohort per round and keeps state for all clients.

    A round selects the state rows of the cohort's clients, runs the algorithm for `cohort` clients, and writes the rows
    back. All other clients keep their rows. Computation and memory for the batches grow with the cohort; only the state
    grows with the number of clients. `select` moves rows between devices, so a plan lists the rows of the cohort's
    state as rows that the server reads.

    Args:
        make: `make(clients)` returns the algorithm for this number of clients.
        clients: Total number of clients.
        cohort: Number of clients in a round.

    Returns:
        The algorithm. A round needs the entry `cohort` in its batches, which `data.cohorts` adds.

    Raises:
        ProgramError: if the cohort is empty or larger than the number of clients, or if batches have no `cohort`.

    Example:
        >>> from workbench.federated import algorithms, data
        >>> distance = lambda w, batch: jnp.mean((w - batch["x"]) ** 2)
        >>> algorithm = algorithms.in_cohorts(
        ...     lambda clients: algorithms.scaffold(distance, clients=clients, learning_rate=0.25), clients=4, cohort=2
        ... )
        >>> held = data.ClientData(arrays={str(i): {"x": np.full(4, float(i), "float32")} for i in range(4)})
        >>> state = algorithm.init(jnp.float32(0))
        >>> [cohort] = data.cohorts(held, 2, key=3, rounds=1, batch_size=4)
        >>> state, _ = algorithm.round(state, cohort.tree)
        >>> cohort.clients, state.client_controls.tolist()  # the gradient of client i at 0 is -2 i
        (('0', '3'), [0.0, 0.0, 0.0, -6.0])
    """
    base = make(clients)
    if not 1 <= cohort <= clients:
        message = (
            f"{base.name} was given cohort={cohort} and clients={clients}. A cohort is drawn without replacement from "
            f"all clients: pass a `cohort` from 1 to {clients}."
        )
        raise ProgramError(message)
    part, probe = make(cohort), make(clients + 1)
    part = part if part.part_of is None else part.part_of(clients)

    def has_rows(state: object) -> list[bool]:
        """Finds the leaves with a row per client, which are those whose shape depends on the number of clients."""
        params = jax.eval_shape(base.params_of, state)
        here, there = (jax.tree.leaves(jax.eval_shape(algorithm.init, params)) for algorithm in (base, probe))
        return [x.shape != y.shape for x, y in zip(here, there, strict=True)]

    @program(clients=clients)
    def cohort_round(state: Any, client_batches: ClientBatches) -> tuple[Any, Metrics]:
        batches, numbers = _split_cohort(base.name, client_batches, clients, cohort)
        leaves, structure = jax.tree.flatten(state)
        kept_at_clients = has_rows(state)
        seats = jnp.minimum(numbers, clients - 1)  # an empty slot has weight 0, and its row is dropped below
        seated = [select(x, seats) if rows else x for x, rows in zip(leaves, kept_at_clients, strict=True)]
        after, metrics = part.round(structure.unflatten(seated), batches)
        seat = jnp.full(clients, -1, jnp.int32).at[numbers].set(jnp.arange(cohort, dtype=jnp.int32), mode="drop")
        updated = jax.tree.leaves(after)
        with program(clients=cohort):
            returned = [
                select(x, jnp.maximum(seat, 0)) for x, rows in zip(updated, kept_at_clients, strict=True) if rows
            ]
        before = [x for x, rows in zip(leaves, kept_at_clients, strict=True) if rows]
        table = iter(map_fn(_keep, (before, returned, seat)) if before else ())
        mixed = [next(table) if rows else x for x, rows in zip(updated, kept_at_clients, strict=True)]
        return structure.unflatten(mixed), metrics

    return Algorithm(
        name=base.name, init=base.init, round=cohort_round, params_of=base.params_of, personalize=base.personalize
    )


def _keep(before: list[jax.Array], returned: list[jax.Array], seat: jax.Array) -> list[jax.Array]:
    return [jnp.where(seat >= 0, new, old) for old, new in zip(before, returned, strict=True)]


def _split_cohort(name: str, client_batches: ClientBatches, clients: int, size: int) -> tuple[Any, jax.Array]:
    cohort = client_batches.get("cohort") if isinstance(client_batches, dict) else None
    if not isinstance(cohort, Cohort):
        message = (
            f"The round of {name} with cohort={size} received batches without the entry `cohort`. The entry must "
            f"contain the client numbers of this round's cohort, out of {clients} clients: pass `.tree` of each "
            "item of `data.cohorts`, such as `data=(cohort.tree for cohort in cohorts)` in `run_rounds`, or add "
            f'`"cohort": data.Cohort(numbers, {clients})` to a dictionary of batches.'
        )
        raise ProgramError(message)
    if cohort.population != clients or cohort.numbers.shape != (size,):
        message = (
            f"The round of {name} with clients={clients} and cohort={size} received a cohort of "
            f"{cohort.numbers.shape[0]} slots out of {cohort.population} clients. Both sizes must match: create the "
            f"algorithm with clients={cohort.population}, cohort={cohort.numbers.shape[0]}."
        )
        raise ProgramError(message)
    batches = {key: value for key, value in client_batches.items() if key != "cohort"}
    return batches, jnp.asarray(cohort.numbers)
