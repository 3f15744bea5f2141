"""Every algorithm and aggregator of `workbench.algorithms`, ready to be run with the parameters of any model.

`test_models.py` checks that nothing is missing here: what a public function is annotated to return decides it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from workbench.federated import algorithms, data
from workbench.federated.algorithms import Aggregator, Algorithm

CLIENTS = 3
SGD, ADAM = optax.sgd(0.05), optax.adam(0.01)
Loss = Callable[[Any, Any], Any]


class Case(NamedTuple):
    """`make(loss, params)` gives the algorithm, `start(params)` what it starts from, `batches` what its round takes."""

    make: Callable[[Loss, Any], Algorithm]
    start: Callable[[Any], Any] = lambda params: params
    batches: Callable[[Any], Any] = lambda batches: batches


def regression(clients: int, steps: int = 4, batch: int = 4) -> dict[str, Any]:
    """Batches of a linear regression with full masks; client i weighs i + 1."""
    random = np.random.default_rng(0)
    x = random.normal(size=(clients, steps, batch, 2)).astype(np.float32)
    return {
        "x": jnp.asarray(x),
        "y": jnp.asarray(x @ np.array([1, -2], np.float32) + 0.1),
        "mask": jnp.ones((clients, steps, batch), bool),
        "weight": jnp.arange(1.0, clients + 1),
    }


def _first_path(params: Any) -> str:
    return jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(params)[0][0], simple=True, separator=".")


def _of(name: str, **options: Any) -> Case:
    return Case(lambda loss, params: getattr(algorithms, name)(loss, clients=CLIENTS, **options))


def _fedrep(loss: Loss, params: Any) -> Algorithm:
    first = _first_path(params)
    return algorithms.fedrep(loss, clients=CLIENTS, client_optimizer=SGD, is_personal=lambda path: path == first)


def _cohort(batches: Any) -> Any:
    return {**batches, "cohort": data.Cohort(jnp.array([0, 4, 2], jnp.int32), 5)}


def _stale(batches: Any) -> Any:
    return {**batches, "staleness": jnp.arange(CLIENTS, dtype=jnp.int32)}


ALGORITHMS: dict[str, Case] = {
    "fedavg": _of("fedavg", client_optimizer=SGD),
    "fedprox": _of("fedprox", client_optimizer=SGD, proximal=0.1),
    "fedopt": _of("fedopt", client_optimizer=SGD, server_optimizer=ADAM),
    "buffered_fedavg": _of("buffered_fedavg", client_optimizer=SGD, versions=3)._replace(batches=_stale),
    "scaffold": _of("scaffold", learning_rate=0.05),
    "fednova": _of("fednova", client_optimizer=SGD),
    "feddyn": _of("feddyn", learning_rate=0.05, alpha=1.0),
    "fedlin": _of("fedlin", learning_rate=0.05),
    "fedbuff": _of("fedbuff", client_optimizer=SGD),
    "ditto": _of("ditto", client_optimizer=SGD, strength=0.1),
    "fedrep": Case(_fedrep),
    "fedlora": Case(
        lambda loss, params: algorithms.fedlora(loss, params, clients=CLIENTS, client_optimizer=SGD),
        start=lambda params: algorithms.init_adapters(params, 2, jax.random.key(0)),
    ),
    "mime_lite": _of("mime_lite", optimizer=optax.sgd(0.05, momentum=0.9)),
    "diloco": _of("diloco", inner_optimizer=ADAM),
    "streaming_diloco": _of("streaming_diloco", inner_optimizer=ADAM, fragments=2),
    "reptile": _of("reptile", client_optimizer=SGD),
    "maml": _of("maml", inner_optimizer=SGD, server_optimizer=ADAM),
    "apfl": _of("apfl", learning_rate=0.05),
    "branch_train_merge": _of("branch_train_merge", optimizer=ADAM),
    "papa": _of("papa", optimizer=ADAM, keep=0.9),
    "in_cohorts": Case(
        lambda loss, params: algorithms.in_cohorts(
            lambda clients: algorithms.scaffold(loss, clients=clients, learning_rate=0.05), clients=5, cohort=CLIENTS
        ),
        batches=_cohort,
    ),
    "newton": _of("newton", ridge=1.0)._replace(batches=lambda batches: jax.tree.map(lambda x: x[:, 0], batches)),
    "reweighted": Case(
        lambda loss, params: algorithms.reweighted(
            algorithms.fedavg(loss, clients=CLIENTS, client_optimizer=SGD), jnp.arange(1.0, CLIENTS + 1)
        )
    ),
}

# Their state is no model's parameters: centroids, and an eigenvector.
WITHOUT_A_MODEL = {"kmeans", "power_iteration"}

AGGREGATORS: dict[str, Callable[[], Aggregator]] = {
    "weighted_mean": algorithms.weighted_mean,
    "median": algorithms.median,
    "trimmed_mean": lambda: algorithms.trimmed_mean(0.2),
    "krum": lambda: algorithms.krum(0),
    "bulyan": lambda: algorithms.bulyan(0),
    "geometric_median": lambda: algorithms.geometric_median(iterations=2),
    "gaussian_mean": lambda: algorithms.gaussian_mean(1.0, 1.0),
    "adaptive_clip_mean": lambda: algorithms.adaptive_clip_mean(1.0),
    "ftrl_mean": lambda: algorithms.ftrl_mean(1.0, 1.0, rounds=8),
    "power_sgd_mean": lambda: algorithms.power_sgd_mean(1),
    "top_k_mean": lambda: algorithms.top_k_mean(0.5),
    "quantized_mean": lambda: algorithms.quantized_mean(4),
    "secure_mean": lambda: algorithms.secure_mean(CLIENTS, clip=1.0),
    "compressed_mean": lambda: algorithms.compressed_mean(algorithms.scaled_sign()),
    "compressed_mean without memory": lambda: algorithms.compressed_mean(algorithms.low_rank(1), memory=False),
}

COMPRESSORS: dict[str, Callable[[], Any]] = {
    "top_k": lambda: algorithms.top_k(0.25),
    "random_k": lambda: algorithms.random_k(0.25),
    "scaled_sign": algorithms.scaled_sign,
    "round_to_bits": lambda: algorithms.round_to_bits(3),
    "low_rank": lambda: algorithms.low_rank(1),
}


def public_functions(kind: type) -> set[str]:
    """Names of the public functions whose annotation says that they return this class."""
    found = set()
    for name, value in vars(algorithms).items():
        returned = getattr(value, "__annotations__", {}).get("return")
        if not name.startswith("_") and callable(value) and not isinstance(value, type) and returned is kind:
            found.add(name)
    return found
