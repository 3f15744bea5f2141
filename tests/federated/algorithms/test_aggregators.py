"""Robust, private and compressed means against numpy, against each other and against what they promise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import norm

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms

pytestmark = pytest.mark.usefixtures("little_optimized")
CLIENTS, SHAPE = 8, (3, 5)


def rows(clients: int = CLIENTS) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "w": jnp.asarray(random.normal(size=(clients, *SHAPE)), jnp.float32),
        "b": jnp.asarray(random.normal(size=(clients, 4)), jnp.float32),
    }


def combined(aggregator: algorithms.Aggregator, update: Any, weight: Any, times: int = 1) -> Any:
    @jax.jit  # eagerly, each operation of each case would be compiled
    def combine(update: Any, weight: Any) -> Any:
        with wb.program(clients=weight.shape[0]):
            state = aggregator.init(jax.tree.map(lambda x: x[0], update))
            for _ in range(times):
                mean, state = aggregator.combine(update, weight, state)
        return mean

    return combine(update, jnp.asarray(weight))


def largest_difference(a: Any, b: Any) -> float:
    return max(float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("present", [8, 7, 1], ids=["all", "odd", "one"])
def test_median_is_numpys_over_those_who_are_there(present: int) -> None:
    update = rows()
    found = combined(algorithms.median(), update, [1.0] * present + [0.0] * (CLIENTS - present))
    for name, x in update.items():
        np.testing.assert_allclose(found[name], np.median(np.asarray(x)[:present], axis=0), rtol=1e-6)


@pytest.mark.parametrize(("share", "cut"), [(0.0, 0), (0.2, 2), (0.25, 2), (0.49, 4)])
def test_trimmed_mean_averages_what_is_left_of_a_sorted_column(share: float, cut: int) -> None:
    update = rows(10)
    found = combined(algorithms.trimmed_mean(share), update, [1.0] * 10)
    for name, x in update.items():
        expected = np.sort(np.asarray(x), axis=0)[cut : 10 - cut].mean(0)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "aggregator", [algorithms.median(), algorithms.trimmed_mean(0.3)], ids=["median", "trimmed mean"]
)
def test_two_byzantine_clients_of_eight_move_a_robust_mean_no_further_than_honest_ones_are(
    aggregator: Any,
) -> None:
    update = jax.tree.map(lambda x: x.at[:2].set(jnp.array([1e9, jnp.inf]).reshape(2, *[1] * (x.ndim - 1))), rows())
    found = combined(aggregator, update, [1.0] * CLIENTS)
    for name, x in update.items():
        assert (np.asarray(found[name]) <= np.asarray(x)[2:].max(0)).all()
        assert (np.asarray(found[name]) >= np.asarray(x)[2:].min(0)).all()


@pytest.mark.parametrize("sent", [1e20, -1e30, np.inf, np.nan], ids=str)
@pytest.mark.parametrize(
    "aggregator",
    [algorithms.krum(2), algorithms.krum(2, chosen=4), algorithms.bulyan(1), algorithms.geometric_median()],
    ids=lambda aggregator: aggregator.name,
)
def test_updates_whose_distances_are_not_finite_are_far_away(aggregator: Any, sent: float) -> None:
    update = jax.tree.map(lambda x: x.at[3].set(sent).at[5].set(jnp.nan), rows())
    found = combined(aggregator, update, [1.0, 1, 1, 1, 1, 0, 1, 1])  # client 5 is absent
    for name, x in update.items():
        honest = np.delete(np.asarray(x), [3, 5], axis=0)
        np.testing.assert_array_less(found[name], honest.max(0) + 1e-5)
        np.testing.assert_array_less(honest.min(0) - 1e-5, found[name])


def test_clipping_bounds_what_one_client_adds_and_absent_clients_add_nothing() -> None:
    update = jax.tree.map(lambda x: x.at[0].set(1e6), rows())
    aggregator = algorithms.gaussian_mean(clip=0.5, noise_multiplier=0.0, expected=2)
    alone = combined(aggregator, update, [1.0] + [0.0] * 7)
    assert float(jnp.linalg.norm(ravel_pytree(alone)[0])) == pytest.approx(
        0.5 / 2, rel=1e-5
    )  # its clip over the expected two
    with_it, without = (combined(aggregator, update, [here] + [1.0] * 7) for here in (1.0, 0.0))
    difference = jax.tree.map(jnp.subtract, with_it, without)
    assert float(jnp.linalg.norm(ravel_pytree(difference)[0])) == pytest.approx(0.25, rel=1e-4)


def test_a_clip_of_bfloat16_counts_every_small_leaf() -> None:
    # 1 + 1/300 is 1 in bfloat16, so a sum in 16 bits would miss all 40 small squares: an eighth of the total.
    update = {"large": jnp.ones((1, 1), jnp.bfloat16)} | {
        str(n): jnp.full((1, 1), 300**-0.5, jnp.bfloat16) for n in range(40)
    }
    clipped = combined(algorithms.gaussian_mean(clip=1.0, noise_multiplier=0.0), update, [1.0])
    norm_after = np.linalg.norm([float(x[0]) for x in jax.tree.leaves(clipped)])
    assert norm_after == pytest.approx(1.0, rel=1e-2)


def test_a_clip_of_float16_keeps_updates_whose_squares_overflow() -> None:
    clipped = combined(
        algorithms.gaussian_mean(clip=1.0, noise_multiplier=0.0), jnp.full((1, 4), 300.0, "float16"), [1.0]
    )
    assert clipped.tolist() == [0.5] * 4


def test_noise_has_the_promised_size_and_is_fresh_in_every_round() -> None:
    still = {"w": jnp.zeros((4, 20_000))}
    aggregator = algorithms.gaussian_mean(clip=2.0, noise_multiplier=1.5, seed=3)
    first, second = (combined(aggregator, still, [1.0] * 4, times=times)["w"] for times in (1, 2))
    # z C / (qN) = 1.5 × 2 / 4; 20,000 draws know their deviation to 0.5 %.
    assert float(first.std()) == pytest.approx(0.75, rel=0.02)
    assert abs(float(first.mean())) < 0.75 * 4 / np.sqrt(20_000)
    assert abs(float(jnp.corrcoef(first, second)[0, 1])) < 0.03


def test_one_program_serves_all_noise_multipliers():
    def mean_with(noise_multiplier):
        return combined(algorithms.gaussian_mean(1.0, noise_multiplier), jnp.ones((CLIENTS, 3)), [1.0] * CLIENTS)

    compiled = jax.jit(mean_with)
    for noise_multiplier in (0.0, 2.0):
        np.testing.assert_allclose(compiled(noise_multiplier), mean_with(noise_multiplier), rtol=1e-6)
    assert compiled._cache_size() == 1
    assert jnp.isnan(compiled(-1.0)).all()


def test_a_noise_multiplier_of_float32_keeps_the_dtype_of_a_mean():
    update = jnp.ones((CLIENTS, 3), jnp.bfloat16)
    mean_with = lambda z: combined(algorithms.gaussian_mean(1.0, z), update, [1.0] * CLIENTS)  # noqa: E731
    for mean in (mean_with(jnp.float32(2)), jax.jit(mean_with)(jnp.float32(2))):
        assert mean.dtype == jnp.bfloat16
        np.testing.assert_allclose(mean.astype(float), mean_with(2.0).astype(float), rtol=1e-2)


def test_a_client_that_does_not_move_has_a_derivative_through_the_clip() -> None:
    aggregator = algorithms.gaussian_mean(clip=1.0, noise_multiplier=0.0)
    slope = jax.grad(lambda x: combined(aggregator, {"w": x}, [1.0, 1.0])["w"].sum())(jnp.zeros((2, 3)))
    assert slope.tolist() == [[0.5] * 3] * 2


def test_top_k_of_everything_is_the_mean_by_weight() -> None:
    update, weight = rows(), jnp.arange(CLIENTS, dtype=jnp.float32)
    exact = combined(algorithms.weighted_mean(), update, weight)
    assert largest_difference(combined(algorithms.top_k_mean(1.0), update, weight), exact) < 1e-6


def test_top_k_sends_the_largest_entries_as_numpy_finds_them() -> None:
    update = rows()
    flat = np.concatenate([np.asarray(update["b"]), np.asarray(update["w"]).reshape(CLIENTS, -1)], axis=1)  # b before w
    kept = np.argsort(-np.abs(flat), axis=1)[:, :4]  # 0.2 of 19, rounded up
    sparse = np.zeros_like(flat)
    np.put_along_axis(sparse, kept, np.take_along_axis(flat, kept, axis=1), axis=1)
    found = combined(algorithms.top_k_mean(0.2, memory=False), update, [1.0] * CLIENTS)
    np.testing.assert_allclose(found["b"], sparse.mean(0)[:4], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["w"].reshape(-1), sparse.mean(0)[4:], rtol=1e-5, atol=1e-7)


def test_with_memory_everything_arrives_in_the_end_and_absent_clients_keep_theirs() -> None:
    update, still = {"w": jnp.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])}, {"w": jnp.zeros((2, 3))}
    aggregator = algorithms.top_k_mean(1 / 3)
    with wb.program(clients=2):
        state, arrived = aggregator.init({"w": jnp.zeros(3)}), jnp.zeros(3)
        for rows_now, weight in ((update, [1.0, 1.0]), (update, [0.0, 0.0]), (still, [1.0, 1.0]), (still, [1.0, 1.0])):
            mean, state = aggregator.combine(rows_now, jnp.array(weight), state)
            arrived += mean["w"]
    assert arrived.tolist() == [2.0, 2.0, 2.0]  # the mean of `update`, once
    assert not state.any()


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_quantised_means_are_within_one_step_of_the_mean_by_weight(bits: int) -> None:
    update, weight = rows(), np.arange(1, CLIENTS + 1, dtype=np.float32)
    found, exact = (combined(a, update, weight) for a in (algorithms.quantized_mean(bits), algorithms.weighted_mean()))
    shares = weight / weight.sum()
    for name, x in update.items():
        largest = np.abs(np.asarray(x) * shares.reshape(-1, *[1] * (x.ndim - 1))).max()
        step = largest / (2 ** (bits - 1) - 1)
        assert np.abs(found[name] - exact[name]).max() <= CLIENTS * step * (1 + 1e-3)  # each client errs by one at most


def test_quantised_means_are_right_on_average() -> None:
    update = {"w": jnp.tile(jnp.array([[1.0, 0.3, -0.7]]), (4, 1))}
    rounds = np.arange(100, dtype=np.int32)  # the state of the aggregator
    means = []
    for aggregator in (algorithms.quantized_mean(2, seed=seed) for seed in range(2)):
        mean_of = wb.jit(wb.program(clients=4)(lambda r, a=aggregator: a.combine(update, jnp.ones(4), r)[0]["w"]))
        means += [[mean_of(number) for number in rounds]]
    assert not np.array_equal(means[0], means[1])
    # One client's coin has a deviation of at most 1/2; the mean of 4 × 200 of them, 0.018.
    np.testing.assert_allclose(np.mean(means, axis=(0, 1)), [1.0, 0.3, -0.7], atol=4 * 0.018)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_quantised_means_of_narrow_floats_are_right_on_average_and_keep_their_dtype(dtype: str) -> None:
    # In bfloat16, 0.7 of 511 levels is a multiple of 2, and adding a random number below 1 rounds up half of the time.
    update = {"x": jnp.full((4, 4000), 0.7, dtype).at[:, 0].set(1), "nothing": jnp.ones((4, 0), dtype)}
    mean = combined(algorithms.quantized_mean(10), update, [1.0] * 4)["x"]
    assert mean.dtype == jnp.dtype(dtype)
    assert float(mean.astype(jnp.float32)[1:].mean()) == pytest.approx(float(update["x"][0, 1]), abs=5e-4)


@pytest.mark.parametrize(
    "aggregator",
    [algorithms.power_sgd_mean(1), algorithms.compressed_mean(algorithms.low_rank(1))],
    ids=["PowerSGD", "low rank"],
)
def test_low_rank_means_accept_bfloat16(aggregator: Any) -> None:
    mean = combined(aggregator, jnp.full((2, 4, 4), 3.0, jnp.bfloat16), [1.0, 1.0])
    assert mean.dtype == jnp.bfloat16
    np.testing.assert_allclose(mean.astype(np.float32), 3.0, rtol=2e-2)


def test_rounding_is_the_identity_in_derivatives() -> None:
    update = rows()
    quantised, exact = (
        jax.grad(lambda x, a=a: jnp.sum(jnp.sin(combined(a, {"w": x}, [1.0] * CLIENTS)["w"])))(update["w"])
        for a in (algorithms.quantized_mean(16), algorithms.weighted_mean())
    )
    np.testing.assert_allclose(quantised, exact, atol=1e-4)


def bytes_reduced(aggregator: algorithms.Aggregator, clients: int, size: int) -> int:
    algorithm = algorithms.fedavg(
        lambda w, x: jnp.mean((w - x) ** 2), clients=clients, client_optimizer=optax.sgd(0.1), aggregator=aggregator
    )
    plan = wb.trace(algorithm.round)(algorithm.init(jnp.zeros(size)), jnp.ones((clients, 2, size))).plan
    return sum(s.moved_bytes for s in plan.stages if s.operation.startswith("reduce"))


def test_the_plan_shows_the_bytes_that_compression_saves() -> None:
    clients, size = 64, 3000
    plain = bytes_reduced(algorithms.weighted_mean(), clients, size)
    scalars = 6 * 4 * clients  # loss, drift, weights: a few numbers per client
    assert plain == pytest.approx(4 * size * clients, abs=scalars)
    assert bytes_reduced(algorithms.top_k_mean(0.1), clients, size) == pytest.approx(plain / 5, abs=scalars)
    # 4 bits are −7 … 7: the sum of 64 needs log2(64 × 14 + 1) → 10 bits, of which a word holds 3.
    assert bytes_reduced(algorithms.quantized_mean(4), clients, size) == pytest.approx(plain / 3, abs=scalars)
    assert bytes_reduced(algorithms.quantized_mean(2), clients, size) == pytest.approx(plain / 4, abs=scalars)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: algorithms.trimmed_mean(0.5), "share=0.5.*such as 0.1"),
        (lambda: algorithms.top_k_mean(0.0), "fraction=0.0.*above 0 and up to 1"),
        (lambda: algorithms.quantized_mean(1), "bits=1.*2 to 16 bits"),
        (lambda: combined(algorithms.quantized_mean(16), {"w": jnp.ones((2**17, 1))}, jnp.ones(2**17)), "at most 15"),
        (lambda: algorithms.gaussian_mean(0.0, 1.0), "clip=0.0.*positive finite `clip`"),
        (lambda: algorithms.gaussian_mean(1.0, -1.0), "noise_multiplier=-1.0"),
        (lambda: algorithms.gaussian_mean(1.0, 1.0, of=algorithms.median()), "'median'.*memory=False"),
        (lambda: algorithms.gaussian_mean(1.0, 1.0, of=algorithms.top_k_mean(0.1)), "'top 0.1'.*gives no privacy"),
        (lambda: algorithms.epsilon(1.0, rounds=1, participation=0.0, delta=1e-5), "participation=0.0"),
        (
            lambda: algorithms.epsilon(1.0, rounds=-1, participation=1.0, delta=1e-5),
            "received rounds=-1[.].*at least 0",
        ),
        (lambda: algorithms.epsilon(1.0, rounds=1, participation=1.0, delta=1.0), "delta=1.0"),
        (lambda: algorithms.ftrl_mean(1.0, -0.5, rounds=4), "noise_multiplier=-0.5"),
    ],
    ids=[
        "trim all",
        "send none",
        "one bit",
        "too many",
        "no clip",
        "noise",
        "around median",
        "memory",
        "nobody",
        "rounds",
        "certain failure",
        "noise of a tree",
    ],
)
def test_means_that_cannot_be_are_refused(call: Any, says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        call()


def test_privacy_around_top_k_without_memory_is_allowed() -> None:
    inner = algorithms.top_k_mean(1.0, memory=False)
    update = rows()
    found = combined(algorithms.gaussian_mean(100.0, 0.0, of=inner), update, [1.0] * CLIENTS)
    assert largest_difference(found, combined(algorithms.weighted_mean(), update, [1.0] * CLIENTS)) < 1e-6


def test_no_noise_is_no_privacy_and_no_round_reports_nothing() -> None:
    assert algorithms.epsilon(0.0, rounds=3, participation=0.1, delta=1e-5) == float("inf")
    assert algorithms.epsilon(1.0, rounds=0, participation=0.1, delta=1e-5) == 0.0


def test_epsilon_of_one_round_is_that_of_the_gaussian_mechanism() -> None:
    # Balle and Wang (2018), theorem 8: δ = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz); here z = 2.
    found = algorithms.epsilon(2.0, rounds=1, participation=1.0, delta=1e-5)
    delta = norm.cdf(0.25 - 2 * found) - np.exp(found) * norm.cdf(-0.25 - 2 * found)
    slack = norm.cdf(0.25 - 2 * (found - 0.11)) - np.exp(found - 0.11) * norm.cdf(-0.25 - 2 * (found - 0.11))
    assert delta <= 1e-5 <= slack


def test_epsilon_grows_with_rounds_and_with_participation_and_shrinks_with_noise() -> None:
    base = {"rounds": 50, "participation": 0.2, "delta": 1e-5}
    middle = algorithms.epsilon(1.0, **base)
    assert algorithms.epsilon(2.0, **base) < middle < algorithms.epsilon(1.0, **{**base, "rounds": 100})
    assert middle < algorithms.epsilon(1.0, **{**base, "participation": 0.4})


@pytest.mark.parametrize(
    ("noise", "rounds", "expected"),
    # the figures of dp-accounting at ten times the resolution
    [(1.0, 100, 7.0466), (0.5, 100, 31.371), (0.3, 1000, 506.19)],
)
def test_epsilon_is_computed_for_little_noise_too(noise: float, rounds: int, expected: float) -> None:
    found = algorithms.epsilon(noise, rounds=rounds, participation=0.1, delta=1e-5)
    assert expected * 0.9999 <= found <= expected * 1.001


def test_epsilon_that_cannot_be_composed_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *_: Any) -> float:
        raise ValueError("the loss is too large")

    monkeypatch.setattr("dp_accounting.pld.PLDAccountant.get_epsilon", fail)
    with pytest.raises(ProgramError, match=r"noise_multiplier=0\.3.*the loss is too large.*use more noise"):
        algorithms.epsilon(0.3, rounds=2, participation=0.5, delta=1e-5)


@pytest.mark.parametrize(
    "aggregator",
    [
        algorithms.weighted_mean(), algorithms.median(), algorithms.krum(1), algorithms.bulyan(1),
        algorithms.geometric_median(iterations=3), algorithms.top_k_mean(0.5), algorithms.quantized_mean(8),
        algorithms.compressed_mean(algorithms.top_k(0.5)), algorithms.gaussian_mean(clip=1.0, noise_multiplier=0.0),
    ],
    ids=lambda aggregator: aggregator.name,
)  # fmt: skip
def test_absent_clients_and_integer_weights_change_no_aggregate(aggregator: Any) -> None:
    """An absent client may send NaN, weights may be numbers of examples, and an empty cohort changes nothing."""
    update = rows()
    weight = jnp.array([0, *range(1, CLIENTS)], jnp.int32)
    broken = jax.tree.map(lambda x: x.at[0].set(jnp.nan), update)
    expected = combined(aggregator, update, weight.astype(jnp.float32))
    assert largest_difference(combined(aggregator, broken, weight), expected) < 1e-5
    nobody = combined(aggregator, broken, 0 * weight)
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(nobody))
