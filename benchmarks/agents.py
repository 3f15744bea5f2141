"""Agents at every scale: returns of the greedy policy during training, over seeds.

    python -m benchmarks.agents [--places here threads processes dask ray] [--seeds 5]

A seed determines the initial parameters, the actors and the table. `benchmarks/agents.json` stores every curve, so the
command can resume. The gallery has the curves of the first three places: `python -m benchmarks.papers acme`.
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.agents import run_agent
from examples.deep_q import deep_q_agent
from examples.soft_actor_critic import soft_actor_critic_agent
from workbench.launch import DaskEngine, RayEngine

PLACES = ("here", "threads", "processes", "dask", "ray")
STORE = Path(__file__).with_suffix(".json")
_LAKE: dict[str, Any] = {"is_slippery": False, "exploration": 0.5, "discount": 0.95, "episodes": 1, "longest": 30}


def _lake(**options: Any) -> Callable[[int], Any]:
    return lambda seed: deep_q_agent("FrozenLake-v1", **_LAKE, **options, seed=seed)


def _pendulum(seed: int) -> Any:
    return soft_actor_critic_agent("Pendulum-v1", reward_scale=0.1, learning_rate=2e-3, longest=200, seed=seed)


_LAKE_RUN: dict[str, Any] = {"steps": 700, "batch": 64, "actors": 2, "samples_per_insert": 4.0, "evaluate_every": 50}
_PENDULUM_RUN = {"steps": 4000, "batch": 64, "min_size": 500, "samples_per_insert": 64.0, "evaluate_every": 400}
# The agent of a seed, the options of `run_agent`, and the return of a policy that has learned its task.
AGENTS: dict[str, tuple[Callable[[int], Any], dict[str, Any], float]] = {
    "deep Q, frozen lake": (_lake(learning_rate=3e-3), _LAKE_RUN, 1.0),
    "distributions (C51), frozen lake": (
        _lake(learning_rate=1e-2, support=(0.0, 1.0, 21)),
        {**_LAKE_RUN, "steps": 1400, "evaluate_every": 100},
        1.0,
    ),
    "soft actor-critic, pendulum": (_pendulum, _PENDULUM_RUN, -150.0),
}


@contextlib.contextmanager
def place(name: str) -> Iterator[Any]:
    """The value of `on` for `run_agent`."""
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


def curves(places: Sequence[str], seeds: Sequence[int]) -> dict[str, list[list[float]]]:
    """Runs what the store lacks; gives the returns during training by agent and place, a row per seed."""
    stored = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for name in places:
        missing = [(agent, seed) for agent in AGENTS for seed in seeds if f"{agent}, {name}, seed {seed}" not in stored]
        where: Any = place(name) if missing else contextlib.nullcontext()
        with where as on:
            for agent, seed in missing:
                make, options, _ = AGENTS[agent]
                run = run_agent(make(seed), on, **options, seed=100 * seed)
                steps, returns = zip(*run.curve, strict=True)
                line = {
                    "steps": steps,
                    "returns": np.round(returns, 3).tolist(),
                    "inserted": run.counts["inserted"],
                }
                print(f"  {agent}, {name}, seed {seed}: {line}", flush=True)
                stored[f"{agent}, {name}, seed {seed}"] = line
                STORE.write_text(json.dumps(stored, sort_keys=True).replace("}, ", "},\n") + "\n", encoding="utf-8")
    return {
        f"{agent}, {name}": [stored[f"{agent}, {name}, seed {seed}"]["returns"] for seed in seeds]
        for agent in AGENTS
        for name in places
    }


def acme(seeds: Sequence[int]) -> dict[str, Any]:
    """Learning curves of three agents in three places, with one definition per agent."""
    found = curves(PLACES[:3], seeds)
    learned = {}
    for name, rows in found.items():
        goal, returns = AGENTS[name.rpartition(", ")[0]][2], np.array(rows)
        learned[name] = (returns - returns[:, :1]) / (goal - returns[:, :1])
    return {
        "paper": "Hoffman et al., Acme, 2020",
        "link": "https://arxiv.org/abs/2006.00979",
        "claim": "One definition of an agent learns equally well at every scale of execution.",
        "settings": (
            "Double deep Q-learning and C51 learn Gymnasium's frozen lake (700 and 1,400 learner steps, 2 actors), "
            "and soft actor-critic learns Gymnasium's pendulum (4,000 learner steps, 1 actor). Each agent runs in "
            "one thread, on threads, and on processes. The *learned fraction* is (return − first return) / (target "
            "− first return), as a mean over the last three evaluations. The target is the return of a policy that "
            "has learned the task (1 for the frozen lake, −150 for the pendulum). For each seed, the verdict uses "
            "the worst combination of agent and engine, whose fraction must be at least 0.8."
        ),
        "result": {name: share[:, -3:].mean(1).tolist() for name, share in learned.items()},
        "runs": {
            name: {
                "values": share[:, -3:].mean(1).tolist(),
                "learned": np.round(share, 4).tolist(),
                "returns": found[name],
            }
            for name, share in learned.items()
        },
        "seconds": 0.0,  # most runs come out of the store
        "deviation": (
            "The environments are small; the paper uses Atari and the control suite. Policies are evaluated greedily."
        ),
    }


def main() -> None:
    """Runs what the store lacks, and prints the last returns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    for name, rows in curves(chosen.places, range(chosen.seeds)).items():
        print(f"{name}: {[row[-1] for row in rows]}")


if __name__ == "__main__":
    main()
