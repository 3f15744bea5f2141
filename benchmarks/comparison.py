"""Rounds per second of federated averaging in Workbench, FedJAX, pfl-research and Flower.

The round is the round of `benchmarks.engines`: a 64-128-1 network, five gradient steps on 32 examples, and the mean of
the changes. All frameworks must compute the same numbers. Their rounds run in turn, and the table has medians. The
benchmark compares the installed frameworks:

* FedJAX: `pip install fedjax`. Version 0.0.16 uses `jax.tree_map`, which this module adds because JAX 0.10 lacks it.
* pfl-research with its TensorFlow bridge: `pip install pfl tensorflow-cpu tf_keras tensorflow_probability`.
* Flower's simulation runtime: `pip install "mapreduce-workbench[flower]"`.

`python -m benchmarks.comparison --clients 64`
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import importlib.util
import itertools
import logging
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb
from benchmarks.engines import make_round
from benchmarks.engines_round import FEATURES, HIDDEN, STEPS, client, start
from workbench.engines import Flower

Round = Callable[[Any, Any], Any]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--without-flower", action="store_true")
    settings = parser.parse_args()
    columns = list(zip(*[client(i) for i in range(settings.clients)], strict=True))
    data, w = (np.stack(columns[0]), np.stack(columns[1])), start()
    with contextlib.ExitStack() as stack:
        rounds = _rounds(settings.clients, data, stack, flower=not settings.without_flower)
        results = {name: one_round(w, data) for name, one_round in rounds.items()}  # compiles
        spent: dict[str, list[float]] = {name: [] for name in rounds}
        for _ in range(settings.rounds):
            for name, one_round in rounds.items():
                began = time.perf_counter()
                jax.block_until_ready(one_round(w, data))
                spent[name].append(time.perf_counter() - began)
    ours = statistics.median(spent["workbench"])
    print(f"{'':<28}{'rounds per second':>18}{'workbench is faster':>21}{'largest difference':>20}")
    for name, seconds in spent.items():
        middle = statistics.median(seconds)
        print(
            f"{name:<28}{1 / middle:>18.1f}{middle / ours:>20.1f}×{_apart(results[name], results['workbench']):>20.1e}"
        )


def _rounds(clients: int, data: Any, stack: contextlib.ExitStack, *, flower: bool) -> dict[str, Round]:
    compiled = wb.jit(make_round(clients))
    found: dict[str, Round] = {"workbench": compiled}
    if importlib.util.find_spec("fedjax") is not None:
        found["FedJAX"] = fedjax_round(data)
    if importlib.util.find_spec("pfl") is not None and importlib.util.find_spec("tf_keras") is not None:
        found["pfl-research (TensorFlow)"] = pfl_round(data)
    if flower and importlib.util.find_spec("flwr") is not None:
        from benchmarks.flower_by_hand import FlowerByHand

        engine = Flower()
        program = make_round(clients)
        found["workbench on Flower"] = lambda w, data: engine.run(program, w, data).results
        found["Flower, written by hand"] = stack.enter_context(FlowerByHand(clients))
    return found


def fedjax_round(data: Any) -> Round:
    """The same round for FedJAX, with five passes over one batch of all examples."""
    import fedjax

    jax.tree_map = jax.tree.map  # type: ignore[attr-defined]

    def gradient(params: Any, batch: Any, key: Any) -> Any:
        return jax.grad(lambda w: jnp.mean((jnp.tanh(batch["x"] @ w["in"]) @ w["out"] - batch["y"]) ** 2))(params)

    x, y = data
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        fedjax.optimizers.sgd(0.1),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=x.shape[1], num_epochs=STEPS, drop_remainder=False),
    )
    clients = [
        (str(i), fedjax.ClientDataset({"x": x[i], "y": y[i]}), key)
        for i, key in enumerate(jax.random.split(jax.random.PRNGKey(0), len(x)))
    ]

    def one_round(w: Any, _: Any) -> Any:
        state, _diagnostics = algorithm.apply(algorithm.init(w), clients)
        return state.params

    return one_round


def pfl_round(data: Any) -> Round:
    """The same round for pfl-research: a Keras model, one central iteration over all users."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # pfl 0.6 keeps variables by names that Keras 3 no longer makes unique
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("pfl").setLevel(logging.ERROR)
    import tensorflow as tf
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.tensorflow import TFModel

    x, y = data
    layers = [tf.keras.layers.Dense(HIDDEN, "tanh", use_bias=False), tf.keras.layers.Dense(1, use_bias=False)]
    network = tf.keras.Sequential(layers)
    network.build((None, FEATURES))
    network.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    model = TFModel(model=network, metrics={}, central_optimizer=tf.keras.optimizers.SGD(1.0))
    users = [Dataset((tf.constant(rows), tf.constant(labels[:, None]))) for rows, labels in zip(x, y, strict=True)]
    turn = itertools.cycle(range(len(users)))
    backend = SimulatedBackend(FederatedDataset(users.__getitem__, lambda: next(turn)), None)
    one = NNAlgorithmParams(
        central_num_iterations=1, evaluation_frequency=2, train_cohort_size=len(users), val_cohort_size=None
    )
    local = NNTrainHyperParams(local_num_epochs=STEPS, local_learning_rate=0.1, local_batch_size=None)

    def one_round(w: Any, _: Any) -> Any:
        network.set_weights([w["in"], w["out"][:, None]])
        FederatedAveraging().run(one, backend, model, local, NNEvalHyperParams(local_batch_size=None))
        inner, outer = network.get_weights()
        return {"in": inner, "out": outer[:, 0]}

    return one_round


def _apart(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


if __name__ == "__main__":
    main()
