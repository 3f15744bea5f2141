"""Rounds of sampled cohorts: the state of a client follows the client, as the definitions of the papers have it."""

from collections.abc import Callable

import algorithm_registry
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms, data
from workbench.federated.data._padding import Padded

pytestmark = pytest.mark.usefixtures("little_optimized")

CLIENTS, COHORT, ROUNDS = 200, 10, 3
SGD = optax.sgd(0.05)


def loss(w, batch):
    error = jnp.where(batch["mask"], batch["x"] @ w["w"] + w["b"] - batch["y"], 0.0)
    return jnp.sum(error**2) / jnp.maximum(batch["mask"].sum(dtype=jnp.float32), 1)


@pytest.fixture(scope="module")
def held() -> data.ClientData:
    random = np.random.default_rng(0)
    sizes = random.integers(3, 9, CLIENTS)
    arrays = {}
    for client, size in enumerate(sizes):
        x = random.normal(size=(size, 2)).astype("float32")
        arrays[f"c{client}"] = {"x": x, "y": (x @ np.array([1, -2]) + client / 4).astype("float32")}
    return data.ClientData(arrays=arrays)


def rounds_of(held, **options):
    return list(data.cohorts(held, COHORT, key=5, rounds=ROUNDS, batch_size=4, **options))


def among_all(padded: Padded) -> dict:
    """The same round as one of all clients, in which those outside of the cohort have weight 0."""
    cohort = padded.cohort
    present = cohort.numbers < cohort.population

    def scattered(rows):
        table = np.zeros((cohort.population, *rows.shape[1:]), rows.dtype)
        table[cohort.numbers[present]] = rows[present]
        return table

    return {name: scattered(rows) for name, rows in padded.tree.items() if name != "cohort"}


STATEFUL: dict[str, Callable[[int], algorithms.Algorithm]] = {
    "scaffold": lambda n: algorithms.scaffold(loss, clients=n, learning_rate=0.05),
    "feddyn": lambda n: algorithms.feddyn(loss, clients=n, learning_rate=0.05, alpha=0.5),
    "ditto": lambda n: algorithms.ditto(loss, clients=n, client_optimizer=SGD, strength=0.3),
    "fedrep": lambda n: algorithms.fedrep(loss, clients=n, client_optimizer=SGD, is_personal=lambda path: path == "b"),
    "apfl": lambda n: algorithms.apfl(loss, clients=n, learning_rate=0.05, adaptive=True),
    "diloco": lambda n: algorithms.diloco(loss, clients=n, inner_optimizer=optax.adam(0.01)),
    "error feedback": lambda n: algorithms.fedavg(
        loss, clients=n, client_optimizer=SGD, aggregator=algorithms.compressed_mean(algorithms.top_k(0.4))
    ),
    "top-k": lambda n: algorithms.fedavg(loss, clients=n, client_optimizer=SGD, aggregator=algorithms.top_k_mean(0.4)),
    "FedBuff": lambda n: algorithms.fedbuff(loss, clients=n, client_optimizer=SGD),
    "PowerSGD": lambda n: algorithms.fedavg(
        loss, clients=n, client_optimizer=SGD, aggregator=algorithms.power_sgd_mean(1)
    ),
}
REPLICAS: dict[str, Callable[[int], algorithms.Algorithm]] = {  # which train in every round: nobody is absent
    "streaming DiLoCo": lambda n: algorithms.streaming_diloco(loss, clients=n, inner_optimizer=SGD, fragments=2),
    "PAPA": lambda n: algorithms.papa(loss, clients=n, optimizer=SGD, keep=0.9),
}
START = {"w": jnp.zeros(2), "b": jnp.zeros(())}


@pytest.mark.parametrize("name", STATEFUL)
def test_sampled_rounds_are_those_of_all_clients_with_the_others_absent(name: str, held: data.ClientData) -> None:
    whole = STATEFUL[name](CLIENTS)
    sampled = algorithms.in_cohorts(STATEFUL[name], clients=CLIENTS, cohort=COHORT)
    expected, state = whole.init(START), sampled.init(START)
    by_all, by_cohort = wb.jit(whole.round), wb.jit(sampled.round)
    for padded in rounds_of(held):
        expected, told = by_all(expected, among_all(padded))
        state, metrics = by_cohort(state, padded.tree)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), (expected, told), (state, metrics)
        )


def test_scaffold_with_cohorts_is_algorithm_1_of_the_paper() -> None:
    # By hand, in float64: 200 clients with losses (w - i/100)², two local steps, 10 clients a round.
    rate, population, size = 0.1, 200, 10
    targets = np.arange(population) / 100
    held = data.ClientData(arrays={str(i): {"x": np.full(2, t, "float32")} for i, t in enumerate(targets)})
    algorithm = algorithms.in_cohorts(
        lambda n: algorithms.scaffold(lambda w, b: jnp.mean((w - b["x"]) ** 2), clients=n, learning_rate=rate),
        clients=population,
        cohort=size,
    )
    state, step = algorithm.init(jnp.float32(0)), wb.jit(algorithm.round)
    w, control, controls = 0.0, 0.0, np.zeros(population)
    for padded in data.cohorts(held, size, key=2, rounds=30, batch_size=2, epochs=2):
        moves, changes = [], []
        for client in padded.cohort.numbers:
            local = w
            for _ in range(2):
                local -= rate * (2 * (local - targets[client]) - controls[client] + control)
            change = -control + (w - local) / (2 * rate)
            moves.append(local - w)
            changes.append(change)
            controls[client] += change
        w += np.mean(moves)
        control += np.sum(changes) / population
        state, _ = step(state, padded.tree)
    np.testing.assert_allclose(state.client_controls, controls, atol=1e-4)
    np.testing.assert_allclose([state.params, state.control], [w, control], atol=1e-4)


@pytest.mark.parametrize("name", STATEFUL | REPLICAS)
def test_state_by_slot_is_refused_with_the_line_that_does_it_right(name: str, held: data.ClientData) -> None:
    by_slot = (STATEFUL | REPLICAS)[name](COHORT)
    with pytest.raises(ProgramError, match=rf"cohort of {COHORT} out of {CLIENTS}.*in_cohorts.*clients={CLIENTS}, coh"):
        by_slot.round(by_slot.init(START), rounds_of(held)[0].tree)


def test_algorithms_without_a_state_of_clients_take_cohorts(held: data.ClientData) -> None:
    algorithm = algorithms.fedavg(loss, clients=COHORT, client_optimizer=SGD)
    padded = rounds_of(held)[0]
    without = {name: value for name, value in padded.tree.items() if name != "cohort"}
    state = algorithm.init(START)
    jax.tree.map(np.testing.assert_array_equal, algorithm.round(state, padded.tree), algorithm.round(state, without))


def test_empty_slots_of_a_cohort_change_nobody(held: data.ClientData) -> None:
    padded = rounds_of(held, multiple_of=4)[0]  # ten clients in twelve slots
    assert padded.cohort.numbers[COHORT:].tolist() == [CLIENTS] * 2
    sampled = algorithms.in_cohorts(STATEFUL["scaffold"], clients=CLIENTS, cohort=12)
    state, _ = sampled.round(sampled.init(START), padded.tree)
    moved = np.flatnonzero(np.abs(np.asarray(state.client_controls["b"])) > 0)
    assert set(moved) <= set(padded.cohort.numbers[:COHORT].tolist())
    assert len(moved) >= COHORT - 1


def test_wrong_cohorts_say_what_is_right(held: data.ClientData) -> None:
    sampled = algorithms.in_cohorts(STATEFUL["ditto"], clients=CLIENTS, cohort=3)
    state, tree = sampled.init(START), rounds_of(held)[0].tree
    with pytest.raises(ProgramError, match=f"create the algorithm with clients={CLIENTS}, cohort={COHORT}"):
        sampled.round(state, tree)
    with pytest.raises(ProgramError, match=r"without the entry `cohort`.*data.cohorts"):
        sampled.round(state, {name: value for name, value in tree.items() if name != "cohort"})
    with pytest.raises(ProgramError, match=r"cohort=201 and clients=200.*1 to 200"):
        algorithms.in_cohorts(STATEFUL["ditto"], clients=CLIENTS, cohort=201)


def test_every_algorithm_with_rows_per_client_is_among_these() -> None:
    """The shapes of the first state decide; the last is a population of models, made like PAPA."""
    seen = set()
    for name, case in algorithm_registry.ALGORITHMS.items():
        if name in ("in_cohorts", "fedlora"):  # made for a number of clients of their own; adapters need matrices
            continue
        shapes = []
        for clients in (3, 4):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(algorithm_registry, "CLIENTS", clients)
                state = jax.eval_shape(case.make(loss, START).init, START)
            shapes.append([leaf.shape for leaf in jax.tree.leaves(state)])
        seen |= {name} if shapes[0] != shapes[1] else set()
    assert seen == {
        "scaffold", "feddyn", "ditto", "fedrep", "apfl", "diloco", "fedbuff",
        "streaming_diloco", "papa", "branch_train_merge",
    }  # fmt: skip
