"""Coded products and shuffles: exact whoever is late, and gains as in the formulas of the paper."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import lambertw

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms

pytestmark = pytest.mark.usefixtures("little_optimized")
_RANDOM = np.random.default_rng(0)
A = jnp.asarray(_RANDOM.normal(size=(12, 5)), jnp.float32)
X = jnp.asarray(_RANDOM.normal(size=(5, 2)), jnp.float32)


@pytest.mark.parametrize("late", list(itertools.combinations(range(6), 2)), ids=str)
def test_the_product_is_right_whichever_two_of_six_workers_are_late(late: tuple[int, int]) -> None:
    coded = algorithms.encode_blocks(A, workers=6, needed=4)
    broken = coded.at[jnp.array(late)].set(jnp.nan)  # what late workers hold is never read
    finished = jnp.ones(6, bool).at[jnp.array(late)].set(False)
    product = algorithms.coded_matmul(broken, X, finished, needed=4)
    np.testing.assert_allclose(product, np.asarray(A) @ np.asarray(X), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    "dtypes", list(itertools.product(["float32", "bfloat16", "float16", "complex64"], repeat=2)), ids=str
)
def test_the_product_is_right_in_every_precision_and_in_mixed_ones(dtypes: tuple[str, str]) -> None:
    a, x = A.astype(dtypes[0]), X.astype(dtypes[1])
    coded = algorithms.encode_blocks(a, workers=6, needed=4)
    product = algorithms.coded_matmul(coded, x, jnp.array([0, 1, 1, 0, 1, 1], bool), needed=4)
    exact = np.asarray(a, np.complex128) @ np.asarray(x, np.complex128)
    np.testing.assert_allclose(np.asarray(product, np.complex128), exact, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_are_refused_instead_of_encoded_as_zeros(dtype: str) -> None:
    with pytest.raises(ProgramError, match=f"encode_blocks.*`a` of dtype {dtype}.*float32"):
        algorithms.encode_blocks(A.astype(dtype), workers=6, needed=4)
    coded = algorithms.encode_blocks(A, workers=6, needed=4)
    with pytest.raises(ProgramError, match=f"coded_matmul.*`x` of dtype {dtype}"):
        algorithms.coded_matmul(coded, X.astype(dtype), jnp.ones(6, bool), needed=4)


def test_rows_of_a_run_with_a_quorum_are_decoded_without_a_mask() -> None:
    """Rows of workers that did not answer are NaN."""
    coded = algorithms.encode_blocks(A, workers=6, needed=4)
    answers = jnp.einsum("wrk,km->wrm", coded, X).at[jnp.array([0, 4])].set(jnp.nan)
    np.testing.assert_allclose(algorithms.decode_blocks(answers, needed=4), A @ X, rtol=2e-3, atol=2e-4)
    finished = jnp.array([1, 1, 1, 0, 0, 1], bool)
    decoded = algorithms.decode_blocks(jnp.einsum("wrk,km->wrm", coded, X), finished, needed=4)
    np.testing.assert_allclose(decoded, A @ X, rtol=2e-3, atol=2e-4)
    assert jnp.isnan(algorithms.decode_blocks(answers.at[1].set(jnp.nan), needed=4)).all()
    with pytest.raises(ProgramError, match="`decode_blocks` was given `answers` of dtype int32"):
        algorithms.decode_blocks(jnp.ones((6, 3, 2), jnp.int32), needed=4)


def test_too_few_workers_give_no_wrong_answer() -> None:
    coded = algorithms.encode_blocks(A, workers=6, needed=4)
    assert jnp.isnan(algorithms.coded_matmul(coded, X, jnp.arange(6) < 3, needed=4)).all()


def test_the_product_has_the_derivative_of_a_product_and_is_closed(clients: int, hidden_communication: Any) -> None:
    coded = algorithms.encode_blocks(A, workers=clients, needed=4)
    finished = jnp.arange(clients) % 2 == 1

    def total(coded: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(algorithms.coded_matmul(coded, x, finished, needed=4)))

    slope = jax.grad(total, argnums=1)(coded, X)
    np.testing.assert_allclose(slope, jax.grad(lambda x: jnp.sum(jnp.sin(A @ x)))(X), rtol=5e-2, atol=5e-3)
    assert hidden_communication(jax.grad(total, argnums=(0, 1)), coded, X) == []


@pytest.mark.parametrize(("workers", "needed"), [(10, 10), (10, 7), (10, 1)])
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_simulated_waiting_is_the_formulas(workers: int, needed: int, rate: float) -> None:
    drawn = algorithms.simulate_latency(jax.random.key(0), workers, needed, rate=rate, trials=20_000)
    error = float(drawn.std()) / np.sqrt(20_000)
    expected = algorithms.expected_latency(workers, needed, rate=rate)
    assert float(drawn.mean()) == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0])
def test_the_best_code_needs_the_share_that_the_paper_finds(rate: float) -> None:
    share = 1 + 1 / lambertw(-np.exp(-rate - 1), -1).real  # Lee et al., section III.C, from d E[T] / dk = 0
    assert algorithms.best_needed(2000, rate=rate) / 2000 == pytest.approx(share, abs=2e-3)


def test_the_gain_of_coding_grows_like_the_logarithm_of_the_workers() -> None:
    workers = np.array([2**i for i in range(6, 13)])
    latency, best = algorithms.expected_latency, algorithms.best_needed
    gains = [latency(n, n) / latency(n, best(n)) for n in workers.tolist()]
    # Times n, waiting tends to 1 + 0.5772 + log n without a code, and to −W₋₁(−e⁻²) = 3.146 with the best one.
    assert gains == pytest.approx((1.5772 + np.log(workers)) / 3.146, rel=0.02)


@pytest.mark.parametrize(("workers", "cached"), [(4, 200), (5, 80), (8, 300)], ids=["half", "a batch", "most"])
def test_every_worker_decodes_its_new_batch_out_of_messages_and_its_cache(workers: int, cached: int) -> None:
    random = np.random.default_rng(0)
    rows = 80 * workers // 1 if cached == 80 else 400
    plan = algorithms.plan_shuffle(rows, workers, cached, seed=1)
    data = jnp.asarray(random.integers(2**32, size=(rows, 3), dtype=np.uint32))
    batches = algorithms.coded_shuffle(plan, data)
    assert np.array_equal(batches, np.asarray(data)[plan.batches])
    program = wb.trace(lambda data: algorithms.coded_shuffle(plan, data))(data).plan
    (sent,) = [s.moved_bytes for s in program.stages if s.operation == "broadcast"]
    assert sent == len(plan.messages) * 3 * 4 * workers


def test_no_worker_is_sent_what_it_holds_and_each_missing_row_comes_once() -> None:
    plan = algorithms.plan_shuffle(600, 6, 300)
    for worker in range(6):
        brought = plan.messages[:, worker]
        brought = brought[brought >= 0]
        missing = np.setdiff1d(plan.batches[worker], plan.caches[worker])
        assert sorted(brought.tolist()) == sorted(missing.tolist())
    assert (plan.messages >= 0).sum() == plan.uncoded


@pytest.mark.parametrize(("workers", "share"), [(3, 0.5), (4, 0.5), (4, 0.75), (5, 0.4)])
def test_simulated_shuffles_send_what_the_formula_says(workers: int, share: float) -> None:
    rows = 6000 * workers
    plan = algorithms.plan_shuffle(rows, workers, round(share * rows))
    uncoded, coded = algorithms.shuffle_messages(rows, workers, share)
    assert plan.uncoded == pytest.approx(uncoded, rel=0.02)
    # The formula is that of many rows: lists of a group have equal lengths then, here the longest is sent.
    assert coded * 0.98 <= len(plan.messages) <= coded * 1.06


@pytest.mark.parametrize(("workers", "copies"), [(4, 2), (6, 3), (6, 2)])
def test_balanced_caches_reach_the_papers_gain(workers: int, copies: int) -> None:
    rows = 1200 * workers
    plan = algorithms.plan_shuffle(rows, workers, copies * rows // workers, balanced=True)
    assert all(len(set(cache)) == copies * rows // workers for cache in plan.caches.tolist())
    assert plan.uncoded / len(plan.messages) == pytest.approx(copies + 1, rel=0.12)  # α n + 1 for many rows
    data = jnp.arange(rows, dtype=jnp.uint32)[:, None]
    assert np.array_equal(algorithms.coded_shuffle(plan, data)[..., 0], plan.batches)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_gain_of_coded_shuffling_is_the_papers_to_first_order(share: float) -> None:
    for workers in (50, 200, 1000):
        for gamma in (1.0, workers / 3, workers):
            uncoded, coded = algorithms.shuffle_messages(10**6, workers, share, gamma=gamma)
            assert share <= uncoded / coded / gamma <= share + 1 / workers
            uncoded, coded = algorithms.shuffle_messages(10**6, workers, share, gamma=gamma, balanced=True)
            assert uncoded / coded == pytest.approx((share + 1 / workers) * gamma)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: algorithms.encode_blocks(A, workers=6, needed=5), "12 rows.*needed=5.*rows of zeros"),
        (lambda: algorithms.encode_blocks(A, workers=3, needed=4), "Pass a `needed` from 1 to 3"),
        (lambda: algorithms.plan_shuffle(10, 3, 5), "10 rows, workers=3.*multiple of 3"),
        (lambda: algorithms.plan_shuffle(12, 3, 3), "cached=3.*4 to 12"),
        (lambda: algorithms.plan_shuffle(24, 4, 13, balanced=True), "cached=13 and balanced=True"),
    ],
    ids=["rows", "workers", "batches", "cache", "unbalanced"],
)
def test_impossible_codes_are_refused(call: Any, says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        call()
