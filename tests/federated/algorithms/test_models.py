"""Models of NNX, Equinox and Haiku as parameters of every algorithm; optax on clients and server; grain as data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms
from workbench.federated.experiments import sweep

CLIENTS = 3
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
SGD = optax.sgd(0.05)


def every_algorithm(loss: Any, first: Callable[[str], bool]) -> dict[str, Any]:
    common = {"clients": CLIENTS}
    return {
        "FedAvg": algorithms.fedavg(loss, **common, client_optimizer=SGD),
        "FedAdam": algorithms.fedopt(loss, **common, client_optimizer=SGD, server_optimizer=optax.adam(0.01)),
        "SCAFFOLD": algorithms.scaffold(loss, **common, learning_rate=0.05),
        "Mime-lite": algorithms.mime_lite(loss, **common, optimizer=optax.sgd(0.05, momentum=0.9)),
        "DiLoCo": algorithms.diloco(loss, **common, inner_optimizer=optax.adam(0.01)),
        "FedNova": algorithms.fednova(loss, **common, client_optimizer=SGD),
        "FedDyn": algorithms.feddyn(loss, **common, learning_rate=0.05, alpha=1.0),
        "FedLin": algorithms.fedlin(loss, **common, learning_rate=0.05),
        "FedBuff": algorithms.fedbuff(loss, **common, client_optimizer=SGD),
        "Ditto": algorithms.ditto(loss, **common, client_optimizer=SGD, strength=0.1),
        "FedRep": algorithms.fedrep(loss, **common, client_optimizer=SGD, is_personal=first),
        "APFL": algorithms.apfl(loss, **common, learning_rate=0.05),
        "MAML": algorithms.maml(loss, **common, inner_optimizer=SGD, server_optimizer=SGD),
        "PAPA": algorithms.papa(loss, **common, optimizer=optax.adam(0.01), keep=0.9),
        "PowerSGD": algorithms.fedavg(loss, **common, client_optimizer=SGD, aggregator=algorithms.power_sgd_mean(1)),
        "Krum": algorithms.fedavg(loss, **common, client_optimizer=SGD, aggregator=algorithms.krum(0)),
    }


@pytest.mark.parametrize("library", MODELS)
def test_a_model_of_this_library_passes_through_every_algorithm(library: str) -> None:
    params, apply = MODELS[library]()

    def loss(params: Any, batch: Any) -> Any:
        return ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()

    paths = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]
    ]
    form = jax.tree.structure(params)
    # Haiku and Equinox add biases to batches of another rank.
    with jax.numpy_rank_promotion("allow"):
        for name, algorithm in every_algorithm(loss, lambda path: path == paths[0]).items():
            state, metrics = jax.eval_shape(lambda p, a=algorithm: a.round(a.init(p), BATCHES), params)
            assert metrics["loss"].shape == (), name
            assert jax.tree.structure(jax.eval_shape(algorithm.params_of, state)) == form, name
        algorithm = algorithms.fedopt(loss, clients=CLIENTS, client_optimizer=SGD, server_optimizer=optax.adam(0.02))
        run = wb.run_rounds(wb.jit(algorithm.round), algorithm.init(params), 5, data=BATCHES, progress=False)
    losses = run.history.summary()["loss"]
    assert losses.iloc[-1] < losses.iloc[0]


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


def test_clients_keep_their_own_optimisers_between_rounds() -> None:
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
