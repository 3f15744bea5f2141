"""Sampled clients of simulated rounds really train."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from workbench import render
from workbench.errors import ProgramError
from workbench.federated import algorithms
from workbench.federated.population import Buffered, Population, Synchronous, simulate, train
from workbench.records.run import WorkRecord

PEOPLE = Population(10**6, availability=None)
WORK = WorkRecord(flops=1e10, download_bytes=1e5, upload_bytes=1e5)


def loss(w, batch):
    return jnp.mean((w - batch["x"]) ** 2)


def data_of(ids, round):
    return {"x": np.broadcast_to((ids % 2 * 2.0).astype(np.float32)[:, None, None], (len(ids), 4, 1))}


def fedavg(clients):
    return algorithms.fedavg(loss, clients=clients, client_optimizer=optax.sgd(0.25))


def buffered_fedavg(clients, **options):
    return algorithms.buffered_fedavg(loss, clients=clients, client_optimizer=optax.sgd(0.25), **options)


@pytest.mark.parametrize(
    ("schedule", "algorithm"),
    [(Synchronous(cohort=40), fedavg), (Buffered(60, 20), buffered_fedavg)],
    ids=["synchronous", "buffered"],
)
def test_training_finds_the_mean_of_the_population(schedule, algorithm):
    simulation = simulate(PEOPLE, WORK, schedule, rounds=20, sampled=16)
    frame = train(simulation, algorithm(16), jnp.zeros(1), data_of, evaluate=lambda w: {"w": w[0]})
    assert frame["w"].iloc[-12:].mean() == pytest.approx(1.0, abs=0.3)  # half the clients hold 0, half 2
    assert frame["hours"].is_monotonic_increasing


def test_evaluations_are_as_rare_as_asked():
    simulation = simulate(PEOPLE, WORK, Synchronous(cohort=4), rounds=7, sampled=4)
    frame = train(simulation, fedavg(4), jnp.zeros(1), data_of, evaluate=lambda w: {"w": w[0]}, every=3)
    assert frame["w"].notna().tolist() == [False, False, True, False, False, True, True]


def test_first_round_is_the_round_of_the_algorithm_on_the_sampled_clients():
    simulation = simulate(PEOPLE, WORK, Synchronous(cohort=40), rounds=1, sampled=8)
    frame = train(simulation, fedavg(8), jnp.zeros(1), data_of, evaluate=lambda w: {"w": w[0]})
    algorithm = fedavg(8)
    state, _ = algorithm.round(algorithm.init(jnp.zeros(1)), data_of(simulation.sampled_ids[0], 0))
    assert frame["w"][0] == pytest.approx(float(algorithm.params_of(state)[0]))


def test_rounds_with_fewer_clients_than_sampled_weigh_only_those():
    simulation = simulate(PEOPLE, WORK, Synchronous(cohort=3), rounds=1, sampled=8)
    frame = train(simulation, fedavg(8), jnp.zeros(1), data_of, evaluate=lambda w: {"w": w[0]})
    x = simulation.sampled_ids[0][:3] % 2 * 2.0
    assert frame["w"][0] == pytest.approx(x.mean() * (1 - 0.5**4), rel=1e-5)  # four steps, each half of the way
    with pytest.raises(ProgramError, match="return a dictionary"):
        train(simulation, fedavg(8), jnp.zeros(1), lambda ids, round: data_of(ids, round)["x"])


def test_lost_rounds_change_nothing():
    schedule = Synchronous(cohort=10, deadline_seconds=1e-3, minimum_share=1.0)
    simulation = simulate(PEOPLE, WORK, schedule, rounds=2, sampled=4)
    frame = train(simulation, fedavg(4), jnp.zeros(1), data_of, evaluate=lambda w: {"w": w[0]})
    assert frame["w"].tolist() == [0.0, 0.0]


def test_staleness_scales_an_update_that_started_from_its_own_version():
    algorithm = buffered_fedavg(2, versions=2, exponent=1.0)
    state = algorithm.init(jnp.zeros(1))
    fresh = {"x": jnp.full((2, 1, 1), 4.0), "staleness": jnp.array([0, 0])}
    state, _ = algorithm.round(state, fresh)  # half of the way to 4
    assert float(algorithm.params_of(state)[0]) == 2.0
    state, metrics = algorithm.round(state, {**fresh, "staleness": jnp.array([0, 1])})
    # The fresh one goes from 2 to 3; the stale one from 0 to 2, which counts half.
    assert float(algorithm.params_of(state)[0]) == 2 + (1 + 2 / 2) / 2
    assert float(metrics["staleness"]) == 0.5


def test_buffered_fedavg_without_staleness_is_fedavg():
    one, two = fedavg(4), buffered_fedavg(4)
    x = {"x": jnp.arange(8.0).reshape(4, 2, 1)}
    first, _ = one.round(one.init(jnp.zeros(1)), x)
    second, _ = two.round(two.init(jnp.zeros(1)), {**x, "staleness": jnp.zeros(4, jnp.int32)})
    np.testing.assert_allclose(one.params_of(first), two.params_of(second))


def test_figure_draws_one_panel_per_cost_and_one_line_per_table():
    frame = simulate(PEOPLE, WORK, Synchronous(cohort=10), rounds=3).frame().assign(accuracy=[0.1, np.nan, 0.3])
    figure = render.plot({"a": frame, "b": frame})
    assert [axes.get_xlabel() for axes in figure.axes] == ["hours", "moved (GB)", "energy (kWh)"]
    assert [len(line.get_xdata()) for line in figure.axes[0].get_lines()] == [2, 2]
    with pytest.raises(ValueError, match="without loss"):
        render.plot({"a": frame}, "loss")
