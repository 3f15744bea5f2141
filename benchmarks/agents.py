"""One agent at every scale: what the greedy policy earns along the way, over seeds.

    python -m benchmarks.agents [--places here threads processes dask ray] [--seeds 5]

Deep Q-learning on the frozen lake, as in tests/launch/test_agents.py, with seeds for first parameters, actors and
table. The score of a run is the mean of its curve from step 300 on: 1 if every greedy policy found the way.
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from examples.agents import run_agent
from examples.deep_q import deep_q_agent
from workbench.launch import DaskEngine, RayEngine

PLACES = ("here", "threads", "processes", "dask", "ray")


@contextlib.contextmanager
def place(name: str) -> Iterator[Any]:
    """What `run_agent` gets as `on`."""
    if name == "dask":
        distributed: Any = importlib.import_module("distributed")

        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=6, processes=False, dashboard_address=":0", silence_logs=50
        )
        with cluster, distributed.Client(cluster) as client:
            yield DaskEngine(client)
    elif name == "ray":
        import ray

        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 * 2**20,
            runtime_env={"env_vars": environment},
        )
        try:
            yield RayEngine()
        finally:
            ray.shutdown()
    else:
        yield name


def main() -> None:
    """Runs and prints, a line of JSON per run, then the means with their 95 % intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rate", type=float, default=4.0, help="samples per insert")
    chosen = parser.parse_args()
    for name in chosen.places:
        scores = []
        with place(name) as on:
            for seed in range(chosen.first, chosen.first + chosen.seeds):
                agent = deep_q_agent(
                    "FrozenLake-v1", is_slippery=False, exploration=0.5, discount=0.95, learning_rate=3e-3,
                    episodes=1, longest=30, seed=seed,
                )  # fmt: skip
                run = run_agent(
                    agent, on, steps=700, batch=64, actors=2, samples_per_insert=chosen.rate, evaluate_every=50,
                    seed=100 * seed,
                )  # fmt: skip
                late = [value for step, value in run.curve if step >= 300]
                scores.append(float(np.mean(late)))
                line = {"place": name, "seed": seed, "score": round(scores[-1], 3), "inserted": run.counts["inserted"],
                        "seconds": round(run.seconds, 1), "curve": [int(v) for _, v in run.curve]}  # fmt: skip
                print(json.dumps(line), flush=True)
        half = 1.96 * np.std(scores, ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else float("nan")
        print(f"{name}: {np.mean(scores):.2f} ± {half:.2f}", flush=True)


if __name__ == "__main__":
    main()
