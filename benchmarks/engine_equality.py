"""Compares all federated algorithms on an engine with one `jax.jit`: `python -m benchmarks.engine_equality spark`.

Runs a round of every algorithm twice on each engine named on the command line; with `--aggregators`, it runs federated
averaging with every aggregator instead. Prints a row per engine for docs/engines.md: the number of rounds, the largest
relative difference from `jax.jit` on one device, and the number of rounds whose second run returned the same bytes. The
exit status is the number of rounds that raised an exception or differ by more than 1e-5.
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.engine_faults import running
from tests import algorithm_registry as registry
from workbench.engines import Beam, Engine, Executor, Flower, MeshEngine, Sequential
from workbench.federated import algorithms

CLIENTS = 8


def rounds(aggregators: bool) -> Iterator[tuple[str, Callable, tuple[Any, Any]]]:
    """The name, the function and the arguments of each round."""
    random = np.random.default_rng(0)
    params = {"w": np.float32(0.1 * random.normal(size=(5, 4))), "v": np.float32(0.1 * random.normal(size=4))}
    points = jnp.asarray(random.normal(size=(CLIENTS, 6, 5)), jnp.float32)

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ params["w"]) @ params["v"] - batch["y"]) ** 2)

    def averaging(make: Callable[[], algorithms.Aggregator], loss: Any, _: Any) -> algorithms.Algorithm:
        return algorithms.fedavg(loss, clients=CLIENTS, client_optimizer=registry.SGD, aggregator=make())

    cases = registry.ALGORITHMS
    if aggregators:
        cases = {name: registry.Case(functools.partial(averaging, make)) for name, make in registry.AGGREGATORS.items()}
    for name, case in cases.items():
        registry.CLIENTS = clients = 3 if name == "in_cohorts" else CLIENTS  # its cohort in the registry has three
        batches = {
            "x": jnp.asarray(random.normal(size=(clients, 2, 4, 5)), jnp.float32),
            "y": jnp.asarray(random.normal(size=(clients, 2, 4)), jnp.float32),
            "weight": jnp.arange(1.0, clients + 1),
        }
        if name == "newton":  # the registry takes the first step of every entry
            del batches["weight"]
        algorithm = case.make(loss, params)
        yield name, algorithm.round, (algorithm.init(case.start(params)), case.batches(batches))
    for name in () if aggregators else sorted(registry.WITHOUT_A_MODEL):
        algorithm = getattr(algorithms, name)(clients=CLIENTS)
        start = points[:3, 0] if name == "kmeans" else points[0, 0]
        yield name, algorithm.round, (algorithm.init(start), points)


def arrays(results: Any) -> list[np.ndarray]:
    leaves = (jnp.asarray(leaf) for leaf in jax.tree.leaves(results))
    return [
        np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in leaves
    ]


def difference(ours: list[np.ndarray], reference: list[np.ndarray]) -> float:
    """The largest difference of an array, relative to the largest value of the reference."""
    largest = 0.0
    for left, right in zip(ours, reference, strict=True):
        if left.shape != right.shape or left.dtype != right.dtype:
            return float("inf")
        left, right = left.astype(np.float64), right.astype(np.float64)
        if right.size and not np.array_equal(left, right, equal_nan=True):
            relative = np.abs(left - right).max() / (np.abs(right).max() or 1.0)
            largest = max(largest, float("inf") if np.isnan(relative) else float(relative))
    return largest


@contextlib.contextmanager
def engine_of(name: str) -> Iterator[Callable[[], Engine]]:
    if name in ("sequential", "mesh"):
        made = Sequential() if name == "sequential" else MeshEngine(jax.make_mesh((4,), ("clients",)))
        yield lambda: made
    elif name == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield lambda: Executor(pool, clients_per_task=1)
    elif name == "flower":
        with Flower(workers=2) as flower:
            yield lambda: flower
    elif name == "beam-here":
        yield lambda: Beam(clients_per_batch=1)
    else:
        with running(name, None) as engine:
            yield engine


def compare(name: str, cases: list[tuple[str, Callable, Any, list[np.ndarray]]]) -> int:
    """Prints the row of one engine, and returns the number of rounds that failed or differ."""
    count, same, worst, failures = 0, 0, (0.0, ""), 0
    with engine_of(name) as engine:
        for title, fn, args, reference in cases:
            try:
                first, second = (arrays(engine().run(fn, *args).results) for _ in range(2))
            except Exception as error:
                print(f"{name}, {title}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                failures += 1
                continue
            found = difference(first, reference)
            count, worst = count + 1, max(worst, (found, title))
            same += all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
            failures += found > 1e-5
    print(f"| {name} | {count} | {worst[0]:.1e} ({worst[1]}) | {same} of {count} |", flush=True)
    return failures


def main() -> int:
    local = ("sequential", "mesh", "threads")
    names = (*local, "processes", "loky", "dask", "ray", "spark", "beam-here", "beam", "flower")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=names, default=local)
    parser.add_argument("--aggregators", action="store_true")
    options = parser.parse_args()
    cases = [(name, fn, args, arrays(jax.jit(fn)(*args))) for name, fn, args in rounds(options.aggregators)]
    return sum([compare(name, cases) for name in options.engines])


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    sys.exit(main())
