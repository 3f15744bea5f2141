"""k-means, statistics, word count, power iteration, Newton and hypergradients against numpy and scikit-learn."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms, data

pytestmark = pytest.mark.usefixtures("little_optimized")


def test_kmeans_ends_where_lloyds_algorithm_on_the_pooled_points_does() -> None:
    random = np.random.default_rng(0)
    centres = np.array([[0, 0], [5, 0], [0, 5]], np.float32)
    points = (centres[random.integers(3, size=(4, 30))] + random.normal(size=(4, 30, 2))).astype(np.float32)
    start = points[0, :3]
    algorithm = algorithms.kmeans(clients=4)
    step, state = wb.jit(algorithm.round), algorithm.init(jnp.asarray(start))
    for _ in range(30):
        state, metrics = step(state, jnp.asarray(points))
    pooled = points.reshape(-1, 2)
    oracle = KMeans(3, init=start, n_init=1, algorithm="lloyd", max_iter=100, tol=0).fit(pooled)
    np.testing.assert_allclose(state, oracle.cluster_centers_, rtol=1e-4, atol=1e-4)
    assert float(metrics["inertia"]) == pytest.approx(oracle.inertia_ / len(pooled), rel=1e-4)


def test_kmeans_ignores_padding_and_keeps_a_centre_that_nobody_is_near() -> None:
    data = {"x": jnp.array([[[1.0], [100.0]], [[3.0], [0.0]]]), "mask": jnp.array([[True, False], [True, False]])}
    centres, metrics = algorithms.kmeans(clients=2).round(jnp.array([[0.0], [50.0]]), data)
    assert centres.tolist() == [[2.0], [50.0]]
    assert float(metrics["inertia"]) == 5.0  # (1² + 3²) / 2


@pytest.mark.parametrize("shape", [(5, 40), (5, 4, 10), (5,)], ids=["rows", "matrices", "single values"])
def test_histogram_is_numpys(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=shape).astype(np.float32)
    x.flat[:2] = [-2, 2]  # both ends
    counts = algorithms.histogram(jnp.asarray(x), bins=8, low=-2, high=2)
    assert counts.tolist() == np.histogram(x, bins=8, range=(-2, 2))[0].tolist()


def test_histogram_does_not_count_nan() -> None:
    assert algorithms.histogram(jnp.array([[jnp.nan, 0.5]]), bins=1, low=0, high=1).tolist() == [1]


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_quantile_is_numpys(q: float) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(5, 41)).astype(np.float32)
    expected = np.quantile(x, q, method="inverted_cdf")
    assert float(algorithms.quantile(jnp.asarray(x), q)) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16"])
def test_statistics_of_narrow_values_are_numpys(dtype: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(30, 12, size=(5, 400)).clip(0, 60)).astype(dtype)
    plain = np.asarray(x).astype(np.float64)
    counts = algorithms.histogram(x, bins=7, low=0, high=60)
    assert counts.tolist() == np.histogram(plain, bins=7, range=(0, 60))[0].tolist()
    for q in (0.0, 0.1, 0.5, 0.999, 1.0):
        answer = algorithms.quantile(x, q)
        assert answer.dtype == x.dtype
        assert float(answer) == np.quantile(plain, q, method="inverted_cdf")


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32"])
def test_words_of_narrow_integers_are_counted_once(dtype: str) -> None:
    words = np.random.default_rng(0).integers(0, 256, size=(90, 20))
    expected = np.stack([np.bincount(row, minlength=256) for row in words], axis=1)  # 256 × 90 exceeds 16 bits
    index = algorithms.inverted_index(jnp.asarray(words, dtype), 256)
    np.testing.assert_array_equal(index, expected)
    counts = algorithms.word_count(jnp.asarray(words, dtype), 256)
    np.testing.assert_array_equal(counts, expected.sum(1))
    assert (index.dtype, counts.dtype) == (jnp.int32, jnp.int32)


def test_word_count_is_counters() -> None:
    random = np.random.default_rng(0)
    words = random.integers(-1, 6, size=(4, 50)).astype(np.int32)
    counted = Counter(words.ravel().tolist())
    assert algorithms.word_count(jnp.asarray(words), 6).tolist() == [counted[word] for word in range(6)]


def test_inverted_index_is_a_dictionarys() -> None:
    random = np.random.default_rng(0)
    words = random.integers(-1, 7, size=(4, 50)).astype(np.int32)
    index = np.asarray(algorithms.inverted_index(jnp.asarray(words), 6))
    for word in range(6):  # 6 itself is outside of the vocabulary
        assert index[word].tolist() == [Counter(document.tolist())[word] for document in words]


def test_inverted_index_of_pythons_reference_finds_the_topics_of_a_word() -> None:
    text = data.python_reference(documents=6)
    padded = data.pad_clients(text.data)
    words = np.where(padded.mask, padded["word"], -1)
    index = algorithms.inverted_index(jnp.asarray(words), len(text.vocabulary))
    word = text.vocabulary.index("class")
    holding = [name for name, count in zip(padded.clients, np.asarray(index[word]), strict=True) if count]
    assert holding == [name for name in padded.clients if word in np.asarray(text.data[name]["word"])]
    assert int(index.sum()) == int(text.data.counts.sum())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: algorithms.histogram(jnp.ones((2, 3)), bins=0, low=0, high=1), "received bins=0[.]"),
        (
            lambda: algorithms.histogram(jnp.ones((2, 3)), bins=2, low=1, high=1),
            "received low=1 and high=1[.]",
        ),
        (lambda: algorithms.quantile(jnp.ones((2, 3)), 95), "q=95.*0.95 instead of 95"),
    ],
    ids=["no bins", "no room", "percent"],
)
def test_impossible_questions_are_refused(call: Any, says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        call()


def test_power_iteration_finds_the_first_singular_vector_of_all_rows() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(4, 6, 3)).astype(np.float32) * np.array([3, 1, 1], np.float32)
    algorithm = algorithms.power_iteration(clients=4)
    step, v = wb.jit(algorithm.round), algorithm.init(jnp.ones(3))
    for _ in range(30):
        v, metrics = step(v, jnp.asarray(rows))
    _, singular, vectors = np.linalg.svd(rows.reshape(-1, 3))
    assert abs(float(v @ vectors[0])) == pytest.approx(1, abs=1e-5)
    assert float(metrics["eigenvalue"]) == pytest.approx(singular[0] ** 2, rel=1e-5)


def logistic(w: Any, batch: Any) -> Any:
    return optax.sigmoid_binary_cross_entropy(batch["x"] @ w, batch["y"]).mean()


def test_newtons_logistic_regression_is_scikit_learns() -> None:
    x, y = make_classification(60, 4, n_informative=3, n_redundant=0, flip_y=0.2, random_state=0)
    batches = {
        "x": jnp.asarray(x.reshape(5, 12, 4), jnp.float32),
        "y": jnp.asarray(y.reshape(5, 12), jnp.float32),
    }
    algorithm = algorithms.newton(logistic, clients=5, ridge=1 / 60)  # scikit-learn: C Σ losses + ½‖w‖², here over n
    step, w = wb.jit(algorithm.round), algorithm.init(jnp.zeros(4))
    for _ in range(6):
        w, _ = step(w, batches)
    oracle = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(x, y)
    np.testing.assert_allclose(w, oracle.coef_[0], rtol=1e-3)


def linear(w: Any, batch: Any) -> Any:
    return 0.5 * ((batch["x"] @ w - batch["y"]) ** 2).mean()


def tuning(clients: int) -> Any:
    random = np.random.default_rng(0)
    x = random.normal(size=(clients, 2, 4, 3)).astype(np.float32)
    y = (x @ np.array([1, -1, 2], np.float32) + random.normal(size=(clients, 1, 1))).astype(np.float32)
    batches = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    held_out = {name: value[:, 0] for name, value in batches.items()}

    @wb.program(clients=clients)
    def objective(w: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(linear, (wb.broadcast(w), held_out)))

    def make(settings: Any) -> algorithms.Algorithm:
        return algorithms.fedavg(
            linear,
            clients=clients,
            client_optimizer=optax.sgd(settings["client"]),
            server_optimizer=optax.sgd(settings["server"], momentum=0.5),
        )

    return algorithms.hypergradient(make, objective, rounds=4), batches


def test_hypergradients_agree_with_finite_differences() -> None:
    tune, batches = tuning(4)
    tune = jax.jit(tune)
    settings = {"client": jnp.float32(0.05), "server": jnp.float32(0.8)}
    _, slopes = tune(settings, jnp.zeros(3), batches)
    for name in settings:
        up, down = (
            float(tune({**settings, name: settings[name] + shift}, jnp.zeros(3), batches)[0]) for shift in (2e-3, -2e-3)
        )
        assert float(slopes[name]) == pytest.approx((up - down) / 4e-3, rel=0.01)


def test_hypergradients_of_client_weights_agree_with_finite_differences_through_several_rounds() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 2, 6, 3)).astype(np.float32)
    y = (x @ np.array([1, -1, 2], np.float32) + random.normal(size=(4, 1, 1))).astype(np.float32)
    batches = {"x": jnp.asarray(x), "y": jnp.asarray(y)}

    def make(settings: Any) -> algorithms.Algorithm:
        averaging = algorithms.fedavg(
            linear, clients=4, client_optimizer=optax.sgd(0.1), server_optimizer=optax.sgd(1.0, momentum=0.3)
        )
        return algorithms.reweighted(averaging, jax.nn.softmax(settings))

    target = jnp.array([1.0, -1.0, 2.0])
    tune = jax.jit(algorithms.hypergradient(make, lambda w: ((w - target) ** 2).sum(), rounds=5))
    logits = jnp.array([0.3, -0.2, 0.0, 0.5])
    _, slopes = tune(logits, jnp.zeros(3), batches)
    assert abs(float(slopes.sum())) < 1e-4  # a softmax does not see a common shift
    for client in range(4):
        up, down = (float(tune(logits.at[client].add(s), jnp.zeros(3), batches)[0]) for s in (1e-2, -1e-2))
        assert float(slopes[client]) == pytest.approx((up - down) / 2e-2, rel=0.01)


def _derivatives(clients: int) -> dict[str, tuple[Any, Any]]:
    random = np.random.default_rng(0)
    rows = jnp.asarray(random.normal(size=(clients, 4, 3)), jnp.float32)
    batches = {"x": rows, "y": jnp.asarray(random.integers(2, size=(clients, 4)), jnp.float32)}
    kmeans, power = algorithms.kmeans(clients=clients), algorithms.power_iteration(clients=clients)
    newton = algorithms.newton(logistic, clients=clients, ridge=1.0)
    tune, tuned = tuning(clients)
    settings = {"client": jnp.float32(0.05), "server": jnp.float32(0.8)}
    return {
        "kmeans": (jax.grad(lambda c: kmeans.round(c, rows)[0].sum()), jnp.ones((2, 3))),
        "power iteration": (jax.grad(lambda v: power.round(v, rows)[0].sum()), jnp.ones(3)),
        "newton": (jax.grad(lambda w: newton.round(w, batches)[0].sum()), jnp.zeros(3)),
        "hypergradient": (lambda w: tune(settings, w, tuned), jnp.zeros(3)),
        "histogram": (lambda x: algorithms.histogram(x, bins=3, low=0, high=1), rows),
        "quantile": (jax.grad(lambda x: algorithms.quantile(x, 0.5)), rows),
        "inverted index": (lambda x: algorithms.inverted_index(x.reshape(clients, -1).astype(jnp.int32), 5), rows),
        "word count": (lambda x: algorithms.word_count(x.astype(jnp.int32), 5), rows),
    }


@pytest.mark.parametrize("name", sorted(_derivatives(2)))
def test_the_derivative_communicates_by_our_primitives_alone(
    name: str, clients: int, hidden_communication: Any
) -> None:
    fn, at = _derivatives(clients)[name]
    assert hidden_communication(fn, at) == []
