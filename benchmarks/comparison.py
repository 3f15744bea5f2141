"""Rounds per second of one federated averaging: here, FedJAX and Flower, wherever they are installed.

The round of `benchmarks.engines` (64-128-1 network, five gradient steps on 32 examples, the mean of the changes): the
same numbers in every framework, checked, and every framework's round in turn in one run; medians. Needs, beside the
workbench, `pip install fedjax` and `pip install "mapreduce-workbench[flower]"`, each as far as it is to be compared.
FedJAX 0.0.16 uses `jax.tree_map`, which JAX 0.10 no longer has; here that name is given back to it.

`python -m benchmarks.comparison --clients 64`
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb
from benchmarks.engines import STEPS, client, make_round, start
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
    if flower and importlib.util.find_spec("flwr") is not None:
        from benchmarks.flower_by_hand import FlowerByHand

        engine = Flower()
        program = make_round(clients)
        found["workbench on Flower"] = lambda w, data: engine.run(program, w, data).results
        found["Flower, written by hand"] = stack.enter_context(FlowerByHand(clients))
    return found


def fedjax_round(data: Any) -> Round:
    """The same round for FedJAX: one batch of all examples, gone through five times."""
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


def _apart(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


if __name__ == "__main__":
    main()
