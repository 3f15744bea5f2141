"""FedAvg, FedProx, FedOpt and SCAFFOLD on quadratics, whose optimum and whose drift are known by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from algorithm_registry import regression

import workbench as wb
from workbench.federated import algorithms
from workbench.measurement import run_rounds

pytestmark = pytest.mark.usefixtures("little_optimized")

STEPS, ETA = 5, 0.1
CURVATURE = np.array([1.0, 4.0, 9.0], np.float32)
CENTRE = np.array([-1.0, 2.0, -2.0], np.float32)


def quadratic(w: Any, batch: Any) -> Any:
    return 0.5 * batch["a"] * (w - batch["b"]) ** 2


def squared(w: Any, batch: Any) -> Any:
    residual = jnp.where(batch["mask"], batch["x"] @ w - batch["y"], 0)
    return 0.5 * (residual**2).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(residual.dtype)


def quadratics(steps: int = STEPS) -> dict[str, Any]:
    return {name: jnp.tile(value[:, None], (1, steps)) for name, value in (("a", CURVATURE), ("b", CENTRE))}


def rounds_of(algorithm: algorithms.Algorithm, batches: Any, rounds: int, start: Any = 0.0) -> Any:
    step = wb.jit(algorithm.round)
    run = run_rounds(step, algorithm.init(jnp.float32(start)), rounds, data=batches, progress=False)
    assert run.status == "finished"
    return run


def test_fedsgd_is_gradient_descent_on_the_pooled_data() -> None:
    batches = regression(3, steps=1)
    algorithm = algorithms.fedavg(squared, clients=3, client_optimizer=optax.sgd(ETA))
    state = algorithm.init(jnp.ones(2))
    w = np.ones(2)
    for _ in range(3):
        state, _ = algorithm.round(state, batches)
        x, y = np.asarray(batches["x"])[:, 0], np.asarray(batches["y"])[:, 0]
        gradients = np.einsum("nbf,nb->nf", x, x @ w - y) / 4  # four examples each, weights 1, 2, 3
        w = w - ETA * np.array([1, 2, 3]) @ gradients / 6
    np.testing.assert_allclose(state.params, w, rtol=1e-5)


def test_fedavg_settles_where_the_drift_of_local_steps_puts_it() -> None:
    # K steps shrink client i's distance to its centre by (1 − ηa)^K, so the fixed point weighs centre i by the rest.
    pull = 1 - (1 - ETA * CURVATURE) ** STEPS
    run = rounds_of(algorithms.fedavg(quadratic, clients=3, client_optimizer=optax.sgd(ETA)), quadratics(), 40)
    assert float(run.state.params) == pytest.approx((pull * CENTRE).sum() / pull.sum(), rel=1e-4)


def test_scaffold_reaches_the_true_optimum_where_fedavg_is_biased() -> None:
    optimum = (CURVATURE * CENTRE).sum() / CURVATURE.sum()
    averaged = rounds_of(algorithms.fedavg(quadratic, clients=3, client_optimizer=optax.sgd(ETA)), quadratics(), 60)
    corrected = rounds_of(algorithms.scaffold(quadratic, clients=3, learning_rate=ETA), quadratics(), 60)
    assert float(corrected.state.params) == pytest.approx(optimum, abs=1e-4)
    assert abs(float(averaged.state.params) - optimum) > 0.1
    # At the optimum each control is that client's gradient there, and they cancel.
    np.testing.assert_allclose(corrected.state.client_controls, CURVATURE * (optimum - CENTRE), atol=1e-3)
    assert float(corrected.state.control) == pytest.approx(0, abs=1e-3)


def test_scaffold_leaves_absent_clients_and_the_server_as_if_they_were_not_there() -> None:
    algorithm = algorithms.scaffold(quadratic, clients=3, learning_rate=ETA)
    state = algorithm.init(jnp.float32(0))
    state, _ = algorithm.round(state, {**quadratics(1), "weight": jnp.array([1.0, 0.0, 0.0])})
    # Client 0's gradient at 0 is a(0 − b) = 1; the server's control gets a third of it.
    assert state.client_controls.tolist() == pytest.approx([1, 0, 0])
    assert float(state.control) == pytest.approx(1 / 3)
    assert float(state.params) == pytest.approx(-ETA)


def test_fedprox_without_a_pull_is_fedavg_and_more_pull_means_less_drift() -> None:
    sgd = optax.sgd(ETA)
    runs = [rounds_of(algorithms.fedavg(quadratic, clients=3, client_optimizer=sgd), quadratics(), 2)]
    runs += [
        rounds_of(algorithms.fedprox(quadratic, clients=3, client_optimizer=sgd, proximal=mu), quadratics(), 2)
        for mu in (0.0, 1.0, 5.0)
    ]
    drift = [run.history.summary()["squared_drift"].iloc[0] for run in runs]
    assert float(runs[0].state.params) == float(runs[1].state.params)
    assert drift[0] == drift[1] > drift[2] > drift[3]


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_fedopt_with_one_full_step_is_the_optimizer_on_the_pooled_gradient(name: str) -> None:
    server = getattr(optax, name)(0.1)
    run = rounds_of(
        algorithms.fedopt(quadratic, clients=3, client_optimizer=optax.sgd(1.0), server_optimizer=server),
        quadratics(steps=1),
        4,
    )
    w, state = jnp.float32(0), server.init(jnp.float32(0))
    for _ in range(4):
        gradient = jnp.asarray((CURVATURE * (np.asarray(w) - CENTRE)).mean())
        with jax.numpy_dtype_promotion("standard"):
            updates, state = server.update(gradient, state, w)
            w = optax.apply_updates(w, updates)
    assert float(run.state.params) == pytest.approx(float(w), rel=1e-5)


def test_steps_of_padding_change_nothing() -> None:
    batches = regression(3, steps=2)
    longer = {name: jnp.concatenate([x, jnp.zeros_like(x)], axis=1) for name, x in batches.items() if name != "weight"}
    longer["weight"] = batches["weight"]
    for algorithm in (
        algorithms.fedprox(squared, clients=3, client_optimizer=optax.adam(ETA), proximal=1.0),
        algorithms.scaffold(squared, clients=3, learning_rate=ETA),
    ):
        state = algorithm.round(algorithm.init(jnp.ones(2)), batches)[0]  # so that controls are not 0
        short, long = (algorithm.round(state, given) for given in (batches, longer))
        for a, b in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_listener_hears_each_client_at_each_step() -> None:
    algorithm = algorithms.fedavg(quadratic, clients=3, client_optimizer=optax.sgd(ETA))
    with wb.listen() as received:
        wb.jit(algorithm.round)(algorithm.init(jnp.float32(0)), quadratics())
    assert received.latest("client loss").shape == (3, STEPS)
    np.testing.assert_allclose(received.latest("client loss")[:, 0], 0.5 * CURVATURE * CENTRE**2, rtol=1e-6)
    assert received.latest("client drift").shape == (3,)
