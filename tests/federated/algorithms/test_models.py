"""Models of NNX, Equinox and Haiku as parameters of every algorithm; optax on clients and server; grain as data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from algorithm_registry import (
    AGGREGATORS,
    ALGORITHMS,
    CLIENTS,
    COMPRESSORS,
    SGD,
    WITHOUT_A_MODEL,
    Case,
    public_functions,
)

import workbench as wb
from workbench.federated import algorithms
from workbench.federated.experiments import sweep

pytestmark = pytest.mark.usefixtures("little_optimized")
RANDOM = np.random.default_rng(0)
BATCHES = {
    "x": jnp.asarray(RANDOM.normal(size=(CLIENTS, 2, 4, 5)), jnp.float32),
    "y": jnp.asarray(RANDOM.normal(size=(CLIENTS, 2, 4, 1)), jnp.float32),
}


def of_nnx() -> tuple[Any, Any]:
    pytest.importorskip("flax", reason="needs flax")
    from flax import nnx

    model = nnx.Sequential(nnx.Linear(5, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 1, rngs=nnx.Rngs(1)))
    graph, params = nnx.split(model, nnx.Param)
    return params, lambda params, x: nnx.merge(graph, params)(x)


def of_equinox() -> tuple[Any, Any]:
    eqx = pytest.importorskip("equinox", reason="needs equinox")
    model = eqx.nn.MLP(5, 1, 4, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)


def of_haiku() -> tuple[Any, Any]:
    hk = pytest.importorskip("haiku", reason="needs dm-haiku")
    network = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([4, 1])(x)))
    return network.init(jax.random.key(0), BATCHES["x"][0, 0]), network.apply


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {"NNX": of_nnx, "Equinox": of_equinox, "Haiku": of_haiku}


def model_of(library: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    params, apply = MODELS[library]()
    return params, lambda params, batch: ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()


def passes_through(case: Case, loss: Any, params: Any) -> tuple[Any, Any]:
    """The forms of the metrics of a round, and of the parameters after it; a round keeps the form of its state."""
    algorithm, start = case.make(loss, params), case.start(params)

    def run(start: Any) -> Any:
        state = algorithm.init(start)
        after, metrics = algorithm.round(state, case.batches(BATCHES))
        return state, after, metrics, algorithm.params_of(after)

    # Haiku and Equinox add biases to batches of another rank.
    with jax.numpy_rank_promotion("allow"):
        before, after, metrics, found = jax.eval_shape(run, start)
    assert alike(after, before)
    return metrics, found


def alike(found: Any, params: Any) -> bool:
    """Whether two pytrees have the same structure, shapes and dtypes."""
    forms = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (found, params)]
    return jax.tree.structure(found) == jax.tree.structure(params) and forms[0] == forms[1]


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_model_of_this_library_passes_through_this_algorithm(name: str, library: str) -> None:
    params, loss = model_of(library)
    metrics, after = passes_through(ALGORITHMS[name], loss, params)
    assert metrics["loss"].shape == ()
    assert alike(after, ALGORITHMS[name].start(params))


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_updates_of_this_library_pass_through_this_aggregator(name: str, library: str) -> None:
    params, loss = model_of(library)
    case = Case(
        lambda loss, params: algorithms.fedavg(
            loss, clients=CLIENTS, client_optimizer=SGD, aggregator=AGGREGATORS[name]()
        )
    )
    _, after = passes_through(case, loss, params)
    assert alike(after, params)


@pytest.mark.parametrize("library", MODELS)
def test_a_model_of_this_library_learns(library: str) -> None:
    params, loss = model_of(library)
    with jax.numpy_rank_promotion("allow"):
        algorithm = algorithms.fedopt(loss, clients=CLIENTS, client_optimizer=SGD, server_optimizer=optax.adam(0.02))
        run = wb.run_rounds(wb.jit(algorithm.round), algorithm.init(params), 5, data=BATCHES, progress=False)
    losses = run.history.summary()["loss"]
    assert losses.iloc[-1] < losses.iloc[0]


@pytest.mark.parametrize(
    ("kind", "listed"),
    [
        (algorithms.Algorithm, ALGORITHMS.keys() | WITHOUT_A_MODEL),
        (algorithms.Aggregator, {name.split()[0] for name in AGGREGATORS}),  # some in several forms
        (algorithms.Compressor, COMPRESSORS.keys()),
    ],
    ids=["algorithms", "aggregators", "compressors"],
)
def test_the_registry_of_the_tests_has_every_public_one(kind: type, listed: Any) -> None:
    assert public_functions(kind) == set(listed)


def test_a_sweep_trains_an_equinox_model() -> None:
    params, apply = of_equinox()

    def make(lr: float) -> algorithms.Algorithm:
        return algorithms.fedavg(
            lambda params, batch: ((apply(params, batch["x"]) - batch["y"]) ** 2).mean(),
            clients=CLIENTS,
            client_optimizer=optax.sgd(lr),
        )

    with jax.numpy_rank_promotion("allow"):
        result = sweep(make, {"lr": [0.01, 0.1]}, params=params, data=BATCHES, rounds=2, progress=False)
    assert result.trials["status"].tolist() == ["finished"] * 2
    assert jax.tree.structure(result.params(1, 0)) == jax.tree.structure(params)


def test_clients_keep_their_own_optimizers_between_rounds() -> None:
    algorithm = algorithms.diloco(lambda w, x: (w - x) ** 2, clients=2, inner_optimizer=optax.sgd(0.1, momentum=0.9))
    batches = jnp.array([[1.0], [3.0]])
    state, _ = algorithm.round(algorithm.init(jnp.float32(0)), batches)
    momenta = [leaf for leaf in jax.tree.leaves(state.inner) if leaf.shape == (2,) and leaf.dtype == jnp.float32]
    assert momenta[0].tolist() == [-2.0, -6.0]  # each client's own gradient at 0


def test_a_grain_pipeline_per_client_is_the_data_of_a_sweep() -> None:
    grain = pytest.importorskip("grain", reason="needs grain")
    held = [np.arange(10, dtype=np.float32) + 100 * client for client in range(CLIENTS)]

    def batches(round: int, seed: int) -> np.ndarray:
        rows = []
        for client, rows_held in enumerate(held):
            pipeline = grain.MapDataset.source(rows_held).seed(1000 * seed + client).shuffle().repeat().batch(2)
            rows.append(pipeline[round])
        return np.stack(rows)[:, None]

    result = sweep(
        lambda lr: algorithms.fedavg(
            lambda w, x: ((w - x) ** 2).mean(), clients=CLIENTS, client_optimizer=optax.sgd(lr)
        ),
        {"lr": [0.0]},
        params=jnp.float32(0),
        rounds=2,
        batches=batches,
        seeds=[3],
        progress=False,
    )
    expected = [np.mean([(row**2).mean() for row in batches(round, 3)]) for round in range(2)]
    np.testing.assert_allclose(result.metrics(0, 3)["loss"], expected, rtol=1e-5)
