"""Algorithms of the field against numpy loops and the properties that their papers prove."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms

pytestmark = pytest.mark.usefixtures("little_optimized")

CLIENTS, STEPS = 4, 3
SGD = optax.sgd(0.1)
CURVATURE = np.array([1.0, 2.0, 4.0, 0.5], np.float32)
TARGET = np.array([1.0, -2.0, 3.0, 5.0], np.float32)
# The minimum of the mean of a_i (w − t_i)² / 2.
OPTIMUM = float((CURVATURE * TARGET).sum() / CURVATURE.sum())


def quadratic(w: Any, batch: Any) -> Any:
    """Client i's loss is a_i (w − t_i)² / 2, the same in every batch."""
    return 0.5 * batch["a"].mean() * (w - batch["t"].mean()) ** 2


def batches(**more: Any) -> dict[str, Any]:
    def rows(values: np.ndarray) -> Any:
        return jnp.asarray(np.broadcast_to(values[:, None, None], (CLIENTS, STEPS, 1)))

    return {"a": rows(CURVATURE), "t": rows(TARGET), **more}


def rounds(algorithm: Any, data: Any, count: int, start: float = 0.0) -> Any:
    step, state = jax.jit(algorithm.round), algorithm.init(jnp.float32(start))
    for _ in range(count):
        state, metrics = step(state, data)
    return state, metrics


def ragged() -> dict[str, Any]:
    """Clients of 1, 3, 2 and 1 real steps."""
    counts = np.array([1, 3, 2, 1])
    return batches(mask=jnp.asarray(np.arange(STEPS)[None, :, None] < counts[:, None, None]))


def test_fednova_is_its_equation_in_numpy() -> None:
    state, _ = rounds(algorithms.fednova(quadratic, clients=CLIENTS, client_optimizer=SGD), ragged(), 2)
    w = 0.0
    for _ in range(2):
        directions, taus = [], np.array([1, 3, 2, 1])
        for a, t, tau in zip(CURVATURE, TARGET, taus, strict=True):
            local = w
            for _ in range(tau):
                local -= 0.1 * a * (local - t)
            directions.append((local - w) / tau)
        w += taus.mean() * np.mean(directions)
    assert float(state.params) == pytest.approx(w, rel=1e-5)


def test_fednova_is_fedavg_where_all_take_the_same_steps() -> None:
    nova, _ = rounds(algorithms.fednova(quadratic, clients=CLIENTS, client_optimizer=SGD), batches(), 3)
    average, _ = rounds(algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=SGD), batches(), 3)
    assert float(nova.params) == pytest.approx(float(average.params), rel=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    [
        algorithms.fedlin(quadratic, clients=CLIENTS, learning_rate=0.3),
        algorithms.feddyn(quadratic, clients=CLIENTS, learning_rate=0.2, alpha=1.0),
    ],
    ids=["FedLin", "FedDyn"],
)
def test_exact_methods_reach_the_optimum_where_fedavg_does_not(algorithm: Any) -> None:
    exact, _ = rounds(algorithm, batches(), 150)
    average, _ = rounds(algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=optax.sgd(0.2)), batches(), 150)
    assert float(exact.params) == pytest.approx(OPTIMUM, abs=1e-3)
    assert abs(float(average.params) - OPTIMUM) > 0.05


def test_fedlin_is_exact_with_different_numbers_of_steps() -> None:
    exact, _ = rounds(algorithms.fedlin(quadratic, clients=CLIENTS, learning_rate=0.3), ragged(), 150)
    assert float(exact.params) == pytest.approx(OPTIMUM, abs=1e-3)


def test_feddyn_is_its_algorithm_in_numpy_with_absent_clients() -> None:
    algorithm = algorithms.feddyn(quadratic, clients=CLIENTS, learning_rate=0.1, alpha=0.5)
    state, w, h, duals = algorithm.init(jnp.float32(0)), 0.0, 0.0, np.zeros(CLIENTS)
    for present in ([1, 1, 0, 1], [0, 1, 1, 0]):
        state, _ = algorithm.round(state, batches(weight=jnp.asarray(present, jnp.float32)))
        ends, moved = [], 0.0
        for i in np.flatnonzero(present):
            local = w
            for _ in range(STEPS):
                local -= 0.1 * (CURVATURE[i] * (local - TARGET[i]) - duals[i] + 0.5 * (local - w))
            duals[i] -= 0.5 * (local - w)
            ends.append(local)
            moved += local - w
        h -= 0.5 * moved / CLIENTS
        w = np.mean(ends) - h / 0.5
    assert float(state.params) == pytest.approx(w, rel=1e-5)
    np.testing.assert_allclose(state.duals, duals, rtol=1e-5)


def test_fedbuff_is_fedavg_when_everybody_delivers() -> None:
    buffered, metrics = rounds(algorithms.fedbuff(quadratic, clients=CLIENTS, client_optimizer=SGD), batches(), 3)
    average, _ = rounds(algorithms.fedavg(quadratic, clients=CLIENTS, client_optimizer=SGD), batches(), 3)
    assert float(buffered.params) == pytest.approx(float(average.params), rel=1e-6)
    assert float(metrics["staleness"]) == 0


def test_fedbuff_is_an_asynchronous_loop_in_numpy() -> None:
    algorithm = algorithms.fedbuff(quadratic, clients=CLIENTS, client_optimizer=SGD)
    state, w, fetched = algorithm.init(jnp.float32(0)), 0.0, [(0.0, 0)] * CLIENTS
    for step, delivers in enumerate(([0, 1], [1, 2], [3, 0])):
        weight = np.isin(np.arange(CLIENTS), delivers).astype(np.float32)
        state, metrics = algorithm.round(state, batches(weight=jnp.asarray(weight)))
        updates, ages = [], []
        for i in delivers:
            local, at = fetched[i]
            begun = local
            for _ in range(STEPS):
                local -= 0.1 * CURVATURE[i] * (local - TARGET[i])
            updates.append((local - begun) / np.sqrt(1 + step - at))
            ages.append(step - at)
        w += np.mean(updates)
        for i in delivers:
            fetched[i] = (w, step + 1)
        assert float(metrics["staleness"]) == np.mean(ages)
    assert float(state.params) == pytest.approx(w, rel=1e-5)


def test_ditto_personal_models_lie_between_their_own_optimum_and_the_shared_model() -> None:
    algorithm = algorithms.ditto(quadratic, clients=CLIENTS, client_optimizer=SGD, strength=2.0)
    state, _ = rounds(algorithm, batches(), 200)
    shared = float(state.params)
    # The minimum of a (v − t)² / 2 + λ (v − w)² / 2.
    expected = (CURVATURE * TARGET + 2.0 * shared) / (CURVATURE + 2.0)
    np.testing.assert_allclose(algorithm.personalize(state, batches()), expected, rtol=1e-3)


def linear(params: Any, batch: Any) -> Any:
    return ((batch["x"] @ params["body"] @ params["head"] - batch["y"]) ** 2).mean()


def test_fedrep_recovers_a_shared_representation_under_different_heads() -> None:
    random = np.random.default_rng(0)
    body, heads = np.linalg.qr(random.normal(size=(6, 2)))[0], random.normal(size=(CLIENTS, 2))
    x = random.normal(size=(CLIENTS, 10, 8, 6)).astype(np.float32)
    y = np.einsum("csbi,ij,cj->csb", x, body, heads).astype(np.float32)
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    algorithm = algorithms.fedrep(
        linear, clients=CLIENTS, client_optimizer=optax.sgd(0.05), is_personal=lambda path: path == "head"
    )
    params = {"body": jnp.asarray(random.normal(size=(6, 2)), jnp.float32), "head": jnp.zeros(2)}
    step, state = jax.jit(algorithm.round), algorithm.init(params)
    for _ in range(400):
        state, _ = step(state, data)
    found = np.linalg.qr(np.asarray(algorithm.params_of(state)["body"]))[0]
    # Principal angle distance between the two column spaces, the paper's measure.
    assert np.linalg.norm((np.eye(6) - found @ found.T) @ body, 2) < 0.1


def test_fedrep_sends_the_representation_alone() -> None:
    algorithm = algorithms.fedrep(
        linear, clients=CLIENTS, client_optimizer=SGD, is_personal=lambda path: path == "head"
    )
    state = algorithm.init({"body": jnp.ones((6, 2)), "head": jnp.zeros(2)})
    data = {"x": jnp.ones((CLIENTS, 1, 2, 6)), "y": jnp.ones((CLIENTS, 1, 2))}
    plan = wb.trace(algorithm.round)(state, data).plan
    sent = [stage.moved_bytes for stage in plan.stages if stage.kind == "broadcast"]
    assert sum(sent) == CLIENTS * 6 * 2 * 4


def test_fedrep_refuses_to_share_nothing() -> None:
    with pytest.raises(ProgramError, match="body, head"):
        algorithms.fedrep(linear, clients=2, client_optimizer=SGD, is_personal=lambda path: True).init(
            {"body": jnp.ones((6, 2)), "head": jnp.zeros(2)}
        )


def combined(aggregator: Any, update: Any, weight: Any = None, times: int = 1) -> Any:
    clients = jax.tree.leaves(update)[0].shape[0]
    weight = jnp.ones(clients) if weight is None else jnp.asarray(weight, jnp.float32)
    with wb.program(clients=clients):
        state, results = aggregator.init(jax.tree.map(lambda x: x[0], update)), []
    step = jax.jit(wb.program(clients=clients)(lambda state: aggregator.combine(update, weight, state)))
    for _ in range(times):
        result, state = step(state)
        results.append(result)
    return results, state


def gaussian_rows(clients: int, size: int = 6) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(clients, size)).astype(np.float32)


def _krum_scores(rows: np.ndarray, f: int) -> np.ndarray:
    distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    return np.array([np.sort(np.delete(d, i))[: len(rows) - f - 2].sum() for i, d in enumerate(distances)])


@pytest.mark.parametrize("chosen", [1, 3])
def test_krum_is_numpys_over_those_who_are_there(chosen: int) -> None:
    rows = gaussian_rows(9)
    weight = np.ones(9)
    weight[4] = 0
    there = np.delete(rows, 4, axis=0)
    expected = there[np.argsort(_krum_scores(there, 2))[:chosen]].mean(0)
    found, _ = combined(algorithms.krum(2, chosen=chosen), jnp.asarray(rows), weight)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)


def test_bulyan_is_numpys() -> None:
    rows, f = gaussian_rows(11), 2
    left, chosen = list(range(11)), []
    while len(chosen) < 11 - 2 * f:
        scores = [np.sort(((rows[left] - rows[i]) ** 2).sum(-1))[1 : max(len(left) - f - 2, 1) + 1].sum() for i in left]
        chosen.append(left.pop(int(np.argmin(scores))))
    picked = rows[chosen]
    near = np.argsort(np.abs(picked - np.median(picked, axis=0)), axis=0)[: 11 - 4 * f]
    expected = np.take_along_axis(picked, near, axis=0).mean(0)
    found, _ = combined(algorithms.bulyan(f), jnp.asarray(rows))
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "aggregator", [algorithms.krum(2), algorithms.bulyan(2), algorithms.geometric_median()], ids=lambda a: a.name
)
def test_two_wrong_clients_do_not_move_the_result_out_of_the_others(aggregator: Any) -> None:
    rows = gaussian_rows(11)
    rows[:2] = 1e6
    found, _ = combined(aggregator, jnp.asarray(rows))
    assert np.abs(np.asarray(found[0])).max() < np.abs(rows[2:]).max()


def test_geometric_median_has_the_least_sum_of_distances() -> None:
    import scipy.optimize

    rows = gaussian_rows(7, 3)
    best = scipy.optimize.minimize(lambda v: np.linalg.norm(rows - v, axis=1).sum(), np.zeros(3)).x
    found, _ = combined(algorithms.geometric_median(iterations=60), jnp.asarray(rows))
    np.testing.assert_allclose(found[0], best, atol=1e-3)


@pytest.mark.parametrize("aggregator", [algorithms.krum(2), algorithms.bulyan(1)], ids=lambda a: a.name)
def test_too_few_clients_for_the_promise_are_refused(aggregator: Any) -> None:
    with pytest.raises(ProgramError, match="at least"):
        combined(aggregator, jnp.ones((6, 2)))


def test_power_sgd_of_full_rank_is_the_mean_after_a_round_of_feedback() -> None:
    rows = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 7)), jnp.float32), "b": jnp.ones((3, 7))}
    aggregator = algorithms.power_sgd_mean(2)
    found, state = combined(aggregator, rows, times=40)
    # Error feedback: what was applied in all rounds and the mean memory add up to all that was sent.
    applied = sum(np.asarray(result["w"]) for result in found)
    left = np.asarray(state.memory["w"]).mean(0)
    np.testing.assert_allclose(applied + left, 40 * np.asarray(rows["w"]).mean(0), rtol=1e-3, atol=1e-3)
    assert np.linalg.norm(left) < 10 * np.linalg.norm(np.asarray(rows["w"]).mean(0))
    np.testing.assert_allclose(found[-1]["b"], np.ones(7), rtol=1e-6)


def test_power_sgd_moves_the_thin_factors() -> None:
    aggregator = algorithms.power_sgd_mean(1)

    @wb.program(clients=2)
    def fn(rows: Any, weight: Any, state: Any) -> Any:
        return aggregator.combine(rows, weight, state)[0]

    with wb.program(clients=2):
        state = aggregator.init(jnp.ones((32, 16)))
    plan = wb.trace(fn)(jnp.ones((2, 32, 16)), jnp.ones(2), state).plan
    up = sum(stage.moved_bytes for stage in plan.stages if stage.kind == "reduce")
    assert 2 * 4 * (32 + 16) <= up < 2 * 4 * 32 * 16 / 4


def test_ftrl_noise_of_a_prefix_has_as_many_draws_as_its_number_has_ones() -> None:
    size, clip, z = 20000, 0.5, 2.0
    aggregator = algorithms.ftrl_mean(clip, z, rounds=8)
    found, _ = combined(aggregator, jnp.zeros((2, size)), times=8)
    prefix = np.cumsum([np.asarray(x) for x in found], axis=0) * 2  # the sum, not the mean over 2 clients
    expected = [clip * z * np.sqrt(bin(t).count("1")) for t in range(1, 9)]
    np.testing.assert_allclose(prefix.std(axis=1), expected, rtol=0.03)


def test_ftrl_noise_never_ends_after_the_rounds_of_its_tree() -> None:
    aggregator = algorithms.ftrl_mean(1.0, 1.0, rounds=4)
    found, _ = combined(aggregator, jnp.zeros((1, 20000)), times=10)
    prefix = np.cumsum([np.asarray(x) for x in found], axis=0)
    # Of every complete tree of 4 rounds one draw remains; the rounds of the third tree add up to two.
    np.testing.assert_allclose(prefix[[3, 7, 8, 9]].std(axis=1) ** 2, [1, 2, 3, 3], rtol=0.06)


def test_ftrl_epsilon_falls_with_noise_and_is_worse_than_one_release() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")
    little, much = (algorithms.ftrl_epsilon(z, rounds=64, delta=1e-5) for z in (2.0, 8.0))
    assert 0 < much < little
    assert algorithms.ftrl_epsilon(2.0, rounds=1, delta=1e-5) < little


def test_the_adaptive_clip_ends_at_the_quantile_of_the_norms() -> None:
    norms = np.linspace(1.0, 20.0, 20)
    aggregator = algorithms.adaptive_clip_mean(0.0, first_clip=0.1, quantile=0.25, learning_rate=0.3)
    rows = jnp.asarray(norms, jnp.float32)[:, None]
    _, (_, clip) = combined(aggregator, rows, times=80)
    assert np.mean(norms <= float(clip)) == pytest.approx(0.25, abs=0.06)


def test_lora_trains_adapters_alone_and_sends_nothing_else() -> None:
    random = np.random.default_rng(0)
    frozen = {"w": jnp.asarray(random.normal(size=(8, 8)), jnp.float32), "bias": jnp.zeros(8)}
    goal = frozen["w"] + jnp.outer(jnp.ones(8), jnp.arange(8.0)) / 8
    x = jnp.asarray(random.normal(size=(2, 4, 16, 8)), jnp.float32)

    def loss(params: Any, batch: Any) -> Any:
        return ((batch @ params["w"] + params["bias"][None] - batch @ goal) ** 2).mean()

    algorithm = algorithms.fedlora(loss, frozen, clients=2, client_optimizer=optax.sgd(0.1))
    adapters = algorithms.init_adapters(frozen, 1, jax.random.key(0))
    state, step = algorithm.init(adapters), jax.jit(algorithm.round)
    first = step(state, x)[1]["loss"]
    for _ in range(60):
        state, metrics = step(state, x)
    assert float(metrics["loss"]) < 0.01 * float(first)  # the difference has rank 1
    plan = wb.trace(algorithm.round)(state, x).plan
    sent = sum(stage.moved_bytes for stage in plan.stages if stage.kind == "reduce")
    assert 2 * 4 * (8 + 8) <= sent <= 2 * 4 * (8 + 8 + 4)  # adapters, and the numbers of the metrics


def test_the_mean_of_adapters_is_exact_where_a_is_frozen() -> None:
    frozen = {"w": jnp.zeros((3, 3))}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 4, 3)), jnp.float32)
    algorithm = algorithms.fedlora(
        lambda p, b: ((b @ p["w"] - b) ** 2).mean(), frozen, clients=2, client_optimizer=SGD, freeze_a=True
    )
    adapters = algorithms.init_adapters(frozen, 2, jax.random.key(0))
    together, _ = jax.jit(algorithm.round)(algorithm.init(adapters), x)
    assert jnp.array_equal(together.params["w"]["a"], adapters["w"]["a"])
    alone = [
        algorithms.fedlora(
            lambda p, b: ((b @ p["w"] - b) ** 2).mean(), frozen, clients=1, client_optimizer=SGD, freeze_a=True
        )
        for _ in range(2)
    ]
    products = [
        algorithms.merge_adapters(frozen, jax.jit(one.round)(one.init(adapters), x[i : i + 1])[0].params)["w"]
        for i, one in enumerate(alone)
    ]
    merged = algorithms.merge_adapters(frozen, together.params)["w"]
    np.testing.assert_allclose(merged, sum(products) / 2, rtol=1e-5, atol=1e-6)


VOCABULARY, WIDTH = 12, 16


def transformer() -> dict[str, Any]:
    """The parameters of one causal layer of attention and one of ReLU, with tied embeddings."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return jnp.asarray(random.normal(size=(rows, columns)) / np.sqrt(rows), jnp.float32)

    attention = {name: matrix(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
    mlp = {"up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH)}
    return {"embed": matrix(VOCABULARY, WIDTH), "attention": attention, "mlp": mlp}


def token_loss(params: Any, tokens: Any) -> Any:
    x = params["embed"][tokens[:, :-1]]
    query, key, value = (x @ params["attention"][name] for name in ("query", "key", "value"))
    scores = jnp.einsum("btd,bsd->bts", query, key) / np.sqrt(WIDTH)
    mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
    weights = jax.nn.softmax(jnp.where(mask[None], scores, -1e9), axis=-1)
    x = x + jnp.einsum("bts,bsd->btd", weights, value) @ params["attention"]["out"]
    x = x + jax.nn.relu(x @ params["mlp"]["up"]) @ params["mlp"]["down"]
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["embed"].T, tokens[:, 1:]).mean()


def test_lora_of_a_frozen_transformer_starts_as_it_and_learns_the_clients_text() -> None:
    frozen = transformer()
    tokens = jnp.arange(9)[None, None, None] + jnp.arange(4)[None, None, :, None]  # counting upwards
    tokens = jnp.broadcast_to(tokens % VOCABULARY, (2, 4, 4, 9))
    algorithm = algorithms.fedlora(token_loss, frozen, clients=2, client_optimizer=optax.sgd(0.5))
    adapters = algorithms.init_adapters(frozen, 2, jax.random.key(0), select=lambda path: "attention" in path)
    assert set(adapters) == {f"attention.{name}" for name in ("query", "key", "value", "out")}
    # b is 0, so the adapted model is the frozen one: section 4.1 of the paper.
    merged = algorithms.merge_adapters(frozen, adapters)
    assert float(token_loss(merged, tokens[0, 0])) == float(token_loss(frozen, tokens[0, 0]))
    step, state = jax.jit(algorithm.round), algorithm.init(adapters)
    for _ in range(20):
        state, metrics = step(state, tokens)
    assert float(metrics["loss"]) < 0.5 * float(token_loss(frozen, tokens[0, 0]))
    plan = wb.trace(algorithm.round)(state, tokens).plan
    sent = sum(stage.moved_bytes for stage in plan.stages if stage.kind == "reduce") / 2
    adapted = 4 * 4 * 2 * (WIDTH + WIDTH)  # four matrices of rank 2, in bytes
    assert adapted <= sent <= adapted + 16  # and the numbers of the metrics
