"""Mime-lite, MAML, Reptile, APFL, PAPA and branch-train-merge against loops written out in numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms

pytestmark = pytest.mark.usefixtures("little_optimized")

CLIENTS, STEPS, ETA = 3, 4, 0.1
CURVATURE = np.array([1.0, 2.0, 4.0])
CENTRE = np.array([-1.0, 2.0, -2.0])


def quadratic(w: Any, batch: Any) -> Any:
    return 0.5 * batch["a"] * (w - batch["b"]) ** 2


def slope(w: Any, client: int) -> Any:
    return CURVATURE[client] * (w - CENTRE[client])


def quadratics(weight: Any = (1.0, 1.0, 1.0)) -> dict[str, Any]:
    rows = {"a": CURVATURE, "b": CENTRE}
    tiled = {name: jnp.asarray(np.tile(x[:, None], (1, STEPS)), jnp.float32) for name, x in rows.items()}
    return {**tiled, "weight": jnp.asarray(weight, jnp.float32)}


def rounds_of(algorithm: algorithms.Algorithm, rounds: int, batches: Any = None) -> tuple[Any, Any]:
    step, state = wb.jit(algorithm.round), algorithm.init(jnp.float32(0.5))
    metrics: Any = {}
    for _ in range(rounds):
        state, metrics = step(state, quadratics() if batches is None else batches)
    return state, metrics


def test_mime_lite_with_momentum_is_its_listing() -> None:
    x, momentum, decay = 0.5, 0.0, 0.9
    for _ in range(5):
        ends = []
        for client in range(CLIENTS):
            y = x
            for _ in range(STEPS):
                y -= ETA * (slope(y, client) + decay * momentum)  # the momentum stays the server's
            ends.append(y)
        momentum = np.mean([slope(x, client) for client in range(CLIENTS)]) + decay * momentum
        x = np.mean(ends)
    state, _ = rounds_of(algorithms.mime_lite(quadratic, clients=CLIENTS, optimizer=optax.sgd(ETA, momentum=decay)), 5)
    assert float(state.params) == pytest.approx(x, rel=1e-4)
    assert float(jax.tree.leaves(state.optimizer)[0]) == pytest.approx(momentum, rel=1e-4)


def test_mime_lite_without_statistics_is_fedavg() -> None:
    sgd = optax.sgd(ETA)
    ours, _ = rounds_of(algorithms.mime_lite(quadratic, clients=CLIENTS, optimizer=sgd), 3)
    theirs, _ = rounds_of(algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=sgd), 3)
    assert float(ours.params) == pytest.approx(float(theirs.params), rel=1e-6)


@pytest.mark.parametrize("first_order", [False, True], ids=["second order", "first order"])
def test_maml_follows_the_gradient_that_a_quadratic_gives_by_hand(first_order: bool) -> None:
    # Two inner steps (the even ones of four): w' − b = (1 − ηa)² (w − b), and the query gradient is a (w' − b).
    shrink = (1 - ETA * CURVATURE) ** 2
    w = 0.5
    for _ in range(3):
        w -= 0.2 * (CURVATURE * shrink * (w - CENTRE) * (1 if first_order else shrink)).mean()
    algorithm = algorithms.maml(
        quadratic,
        clients=CLIENTS,
        inner_optimizer=optax.sgd(ETA),
        server_optimizer=optax.sgd(0.2),
        first_order=first_order,
    )
    state, _ = rounds_of(algorithm, 3)
    assert float(state.params) == pytest.approx(w, rel=1e-4)
    tuned = algorithm.personalize(state, quadratics()) if algorithm.personalize else None
    np.testing.assert_allclose(tuned, CENTRE + (1 - ETA * CURVATURE) ** STEPS * (w - CENTRE), rtol=1e-4)


def test_maml_starts_where_a_few_steps_help_more_than_from_the_mean() -> None:
    sgd = optax.sgd(ETA)
    meta = algorithms.maml(quadratic, clients=CLIENTS, inner_optimizer=sgd, server_optimizer=optax.sgd(0.3))
    plain = algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=optax.sgd(0.01))

    def adapted_loss(w: Any) -> float:  # the loss after the two inner steps that MAML takes
        return float((0.5 * CURVATURE * ((1 - ETA * CURVATURE) ** 2 * (float(w) - CENTRE)) ** 2).mean())

    assert adapted_loss(rounds_of(meta, 60)[0].params) < adapted_loss(rounds_of(plain, 200)[0].params)


def test_reptile_is_fedavg_with_a_careful_server_and_personalizes_by_training() -> None:
    sgd = optax.sgd(ETA)
    algorithm = algorithms.reptile(quadratic, clients=CLIENTS, client_optimizer=sgd, server_learning_rate=0.25)
    state, _ = rounds_of(algorithm, 1)
    update = (1 - (1 - ETA * CURVATURE) ** STEPS) * (CENTRE - 0.5)
    assert float(state.params) == pytest.approx(0.5 + 0.25 * update.mean(), rel=1e-5)
    assert algorithm.personalize is not None
    w = float(state.params)
    np.testing.assert_allclose(
        algorithm.personalize(state, quadratics()), CENTRE + (1 - ETA * CURVATURE) ** STEPS * (w - CENTRE), rtol=1e-4
    )


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed share", "learned share"])
def test_apfl_is_its_listing(adaptive: bool) -> None:
    server, own, share = 0.5, np.full(CLIENTS, 0.5), np.full(CLIENTS, 0.3)
    for _ in range(4):
        ends = []
        for client in range(CLIENTS):
            a, w, v = share[client], server, own[client]
            if adaptive:
                mixed = a * v + (1 - a) * w
                share[client] = np.clip(a - ETA * (v - w) * slope(mixed, client), 0, 1)
            for _ in range(STEPS):
                pull, push = slope(w, client), a * slope(a * v + (1 - a) * w, client)
                w, v = w - ETA * pull, v - ETA * push
            own[client] = v
            ends.append(w)
        server = np.mean(ends)
    algorithm = algorithms.apfl(quadratic, clients=CLIENTS, learning_rate=ETA, mixing=0.3, adaptive=adaptive)
    state, metrics = rounds_of(algorithm, 4)
    assert float(state.params) == pytest.approx(server, rel=1e-4)
    np.testing.assert_allclose(state.own, own, rtol=1e-4)
    np.testing.assert_allclose(state.mixing, share, rtol=1e-4)
    assert float(metrics["mixing"]) == pytest.approx(share.mean(), rel=1e-4)
    assert algorithm.personalize is not None
    np.testing.assert_allclose(algorithm.personalize(state, None), share * own + (1 - share) * server, rtol=1e-4)


def test_apfl_serves_clients_that_differ_better_than_one_model_for_all() -> None:
    _, metrics = rounds_of(algorithms.apfl(quadratic, clients=CLIENTS, learning_rate=ETA), 60)
    shared, _ = rounds_of(algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=optax.sgd(ETA)), 60)
    one_for_all = float((0.5 * CURVATURE * (float(shared.params) - CENTRE) ** 2).mean())
    assert float(metrics["personal_loss"]) < 0.1 * one_for_all


@pytest.mark.parametrize("algorithm", ["apfl", "papa", "branch_train_merge"])
def test_absent_clients_keep_what_is_their_own(algorithm: str) -> None:
    made = {
        "apfl": lambda: algorithms.apfl(quadratic, clients=CLIENTS, learning_rate=ETA, adaptive=True),
        "papa": lambda: algorithms.papa(quadratic, clients=CLIENTS, optimizer=optax.adam(ETA), keep=1.0),
        "branch_train_merge": lambda: algorithms.branch_train_merge(
            quadratic, clients=CLIENTS, optimizer=optax.adam(ETA)
        ),
    }[algorithm]()
    before, _ = rounds_of(made, 1)
    after, _ = made.round(before, quadratics((1.0, 0.0, 1.0)))
    own = [
        (old, new)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        if old.shape[:1] == (CLIENTS,)
    ]
    assert own
    assert all(float(old[1]) == float(new[1]) for old, new in own)
    assert any(float(old[0]) != float(new[0]) for old, new in own)


def test_experts_of_branch_train_merge_do_not_talk_and_merge_to_their_mean() -> None:
    algorithm = algorithms.branch_train_merge(quadratic, clients=CLIENTS, optimizer=optax.sgd(ETA))
    state, _ = rounds_of(algorithm, 3)
    experts = CENTRE + (1 - ETA * CURVATURE) ** (3 * STEPS) * (0.5 - CENTRE)
    np.testing.assert_allclose(state.members, experts, rtol=1e-4)
    assert float(algorithm.params_of(state)) == pytest.approx(experts.mean(), rel=1e-4)
    plan = wb.trace(algorithm.round)(state, quadratics()).plan
    assert max(s.moved_bytes for s in plan.stages) <= 8 * CLIENTS  # a loss and a weight from each


def test_papa_is_its_listing() -> None:
    members = np.full(CLIENTS, 0.5)
    for _ in range(5):
        members = CENTRE + (1 - ETA * CURVATURE) ** STEPS * (members - CENTRE)
        spread = ((members - members.mean()) ** 2).mean()
        members = 0.9 * members + 0.1 * members.mean()
    algorithm = algorithms.papa(quadratic, clients=CLIENTS, optimizer=optax.sgd(ETA), keep=0.9)
    state, metrics = rounds_of(algorithm, 5)
    np.testing.assert_allclose(state.members, members, rtol=1e-4)
    assert float(metrics["squared_spread"]) == pytest.approx(spread, rel=1e-4)


def test_papa_that_keeps_nothing_averages_everybody_after_every_round() -> None:
    all_alike, _ = rounds_of(algorithms.papa(quadratic, clients=CLIENTS, optimizer=optax.sgd(ETA), keep=0.0), 3)
    averaged, _ = rounds_of(algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=optax.sgd(ETA)), 3)
    np.testing.assert_allclose(all_alike.members, np.full(CLIENTS, float(averaged.params)), rtol=1e-5)
