"""Compressors are contractions, and error feedback makes converge what does not without it."""

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

COMPRESSORS = {
    "top k": algorithms.top_k(0.25),
    "random k": algorithms.random_k(0.25),
    "sign": algorithms.scaled_sign(),
    "3 bits": algorithms.round_to_bits(3),
    "low rank": algorithms.low_rank(1),
}


def rows(clients: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "w": jnp.asarray(random.normal(size=(clients, 6, 5)), jnp.float32),
        "b": jnp.asarray(random.normal(size=(clients, 4)), jnp.float32),
    }


def squares(tree: Any) -> Any:
    return sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree))


def least_share(name: str, row: Any) -> float:
    """δ of E ‖x − C(x)‖² ≤ (1 − δ) ‖x‖², as the papers prove it."""
    flat = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(row)])
    if name == "sign":
        return np.abs(flat).sum() ** 2 / (flat.size * (flat**2).sum())
    if name == "3 bits":
        return np.abs(flat).max() ** 2 / (flat**2).sum()  # nearest: the largest is exact, no other error grows
    if name == "low rank":
        return float(squares(row["b"]) / squares(row))  # what is too small for factors is sent as it is
    return 0.25


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_is_a_contraction(name: str) -> None:
    coder, row = COMPRESSORS[name], jax.tree.map(lambda x: x[0], rows())

    def error(key: Any) -> Any:
        return squares(jax.tree.map(jnp.subtract, row, coder.decode(coder.encode(row, key), row, key))) / squares(row)

    errors = jax.jit(jax.vmap(error))(jax.random.split(jax.random.key(0), 400))
    # 400 draws of the random ones; the deviation of their mean is below 0.01.
    assert float(errors.mean()) <= 1 - least_share(name, row) + (0.03 if name == "random k" else 1e-5)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_arrived_and_what_is_left_are_all_that_was_sent(name: str) -> None:
    update, weight = rows(), jnp.array([1.0, 2.0, 3.0])
    aggregator = algorithms.compressed_mean(COMPRESSORS[name])
    with wb.program(clients=3):
        state = aggregator.init(jax.tree.map(lambda x: x[0], update))
    step = jax.jit(wb.program(clients=3)(lambda state: aggregator.combine(update, weight, state)))
    arrived = jax.tree.map(lambda x: np.zeros(x.shape[1:]), update)
    for _ in range(20):
        mean, state = step(state)
        arrived = jax.tree.map(np.add, arrived, mean)
    for part, rest, sent in zip(*map(jax.tree.leaves, (arrived, state.memory, update)), strict=True):
        np.testing.assert_allclose(
            part + np.average(rest, axis=0, weights=weight), 20 * np.average(sent, axis=0, weights=weight), atol=1e-3
        )
        assert np.abs(rest).max() < 20 * np.abs(sent).max() / 2  # and the rest does not grow with the rounds


def test_top_k_is_the_same_as_the_sum_by_position_that_has_its_own_memory() -> None:
    update = rows()
    results = []
    for aggregator in (algorithms.compressed_mean(algorithms.top_k(0.2)), algorithms.top_k_mean(0.2)):
        with wb.program(clients=3):
            state = aggregator.init(jax.tree.map(lambda x: x[0], update))
        step = jax.jit(wb.program(clients=3)(lambda weight, state, a=aggregator: a.combine(update, weight, state)))
        for weight in ([1.0, 2.0, 0.0], [1.0, 1.0, 1.0]):  # the third is absent first
            mean, state = step(jnp.array(weight), state)
        results.append(mean)
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_signs_alone_never_leave_a_line_and_with_feedback_they_reach_the_minimum() -> None:
    """Counterexample 3 of the paper: the losses ⟨aᵢ, w⟩², where both aᵢ have the signs of ±(1, −1)."""
    a = jnp.array([[1.0, -1.0], [-1.0, 1.0]]) + 0.5

    def ends(aggregator: algorithms.Aggregator) -> Any:
        algorithm = algorithms.fedavg(
            lambda w, x: (x @ w) ** 2, clients=2, client_optimizer=optax.sgd(0.05), aggregator=aggregator
        )
        step, state = jax.jit(algorithm.round), algorithm.init(jnp.array([1.0, 1.0]))
        for _ in range(400):
            state, _ = step(state, a[:, None])
        return state.params

    without = ends(algorithms.compressed_mean(algorithms.scaled_sign(), memory=False))
    assert float(without.sum()) == pytest.approx(2.0, abs=1e-4)
    assert float(jnp.abs(ends(algorithms.compressed_mean(algorithms.scaled_sign()))).max()) < 1e-2


def test_the_plan_moves_one_bit_per_entry_and_a_scale() -> None:
    aggregator = algorithms.compressed_mean(algorithms.scaled_sign())

    @wb.program(clients=2)
    def fn(rows: Any, weight: Any) -> Any:
        return aggregator.combine(rows, weight, aggregator.init(rows[0]))[0]

    plan = wb.trace(fn)(jnp.ones((2, 640)), jnp.ones(2)).plan
    up = sum(stage.moved_bytes for stage in plan.stages if stage.kind == "reduce")
    keys = 3 * 4  # of the sums by key, which name the client: of words, scale and weight
    assert 640 / 8 + 4 + 4 <= up / 2 <= 640 / 8 + 4 + 4 + keys


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: algorithms.top_k(0), "fraction=0"),
        (lambda: algorithms.random_k(1.5), "fraction=1.5"),
        (lambda: algorithms.round_to_bits(1), "2 to 16 bits"),
        (lambda: algorithms.low_rank(0), "rank=0"),
    ],
)
def test_what_is_no_compression_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        make()


def test_a_compiled_mean_has_the_derivative_of_the_exact_mean() -> None:
    aggregator = algorithms.compressed_mean(algorithms.scaled_sign())

    @jax.jit
    def total(update: Any) -> Any:
        with wb.program(clients=3):
            state = aggregator.init(jax.tree.map(lambda x: x[0], update))
            mean, _ = aggregator.combine(update, jnp.array([1.0, 2.0, 1.0]), state)
        return mean["w"].sum()

    slope = jax.grad(total)(rows())
    expected = np.broadcast_to(np.array([0.25, 0.5, 0.25])[:, None, None], (3, 6, 5))
    np.testing.assert_allclose(slope["w"], expected, rtol=1e-6)
    assert not slope["b"].any()
