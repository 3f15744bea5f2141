"""Speed-up of a sweep over a loop over its trials: `python -m benchmarks.sweep [--trials 64]`.

The loop is the usual one: for each trial, an algorithm, `wb.jit` of its round, and a Python loop over rounds that reads
the loss. Both compile their programs. The rounds alone are also compared with a loop that compiles once, because its
round takes the hyperparameters as arguments.
"""

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import workbench as wb
from workbench.federated import algorithms

CLIENTS, STEPS, BATCH = 8, 4, 16


def problem(width: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(CLIENTS, STEPS, BATCH, 64)).astype(np.float32)
    batches = {"x": jnp.asarray(x), "y": jnp.asarray(random.integers(10, size=(CLIENTS, STEPS, BATCH)))}

    def first(key: Any) -> Any:
        one, two = jax.random.split(key)
        return {
            "in": jax.random.normal(one, (64, width)) / 8,
            "out": jax.random.normal(two, (width, 10)) / np.sqrt(width),
        }

    def loss(params: Any, batch: Any) -> Any:
        logits = jax.nn.relu(batch["x"] @ params["in"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    def make(lr: Any, server_lr: Any) -> algorithms.Algorithm:
        return algorithms.fedavg(
            loss, clients=CLIENTS, client_optimizer=optax.sgd(lr), server_optimizer=optax.sgd(server_lr)
        )

    return make, first, batches


def loop(make: Any, first: Any, batches: Any, settings: list[dict[str, float]], rounds: int) -> tuple[float, list]:
    began, losses, value = time.perf_counter(), [], 0.0
    for setting in settings:
        algorithm = make(**setting)
        step = wb.jit(algorithm.round)
        state = algorithm.init(first(jax.random.fold_in(jax.random.key(0), 0)))
        for _ in range(rounds):
            state, metrics = step(state, batches)
            value = float(metrics["loss"])
        losses.append(value)
    return time.perf_counter() - began, losses


def compiled_loop(make: Any, first: Any, batches: Any, settings: list[dict[str, float]], rounds: int) -> float:
    """The rounds of all trials with one compiled round, which takes the hyperparameters as arguments."""
    step = wb.jit(lambda state, batches, lr, server_lr: make(lr, server_lr).round(state, batches))
    state = make(0.1, 1.0).init(first(jax.random.key(0)))
    step(state, batches, jnp.float32(0.1), jnp.float32(1.0))
    began = time.perf_counter()
    for setting in settings:
        now = state
        values = [jnp.float32(setting[name]) for name in ("lr", "server_lr")]
        for _ in range(rounds):
            now, metrics = step(now, batches, *values)
            float(metrics["loss"])
    return time.perf_counter() - began


def measure(trials: int, rounds: int, width: int, looped: int) -> dict[str, Any]:
    make, first, batches = problem(width)
    side = max(1, int(np.sqrt(trials)))
    space = {"lr": np.logspace(-2, 0, trials // side).tolist(), "server_lr": np.linspace(0.5, 1.5, side).tolist()}
    began = time.perf_counter()
    result = wb.experiments.sweep(make, space, params=first, data=batches, rounds=rounds, progress=False)
    sweep_seconds = time.perf_counter() - began
    some = result.settings[:: max(1, len(result.settings) // looped)][:looped]
    seconds, losses = loop(make, first, batches, some, rounds)
    found = [result.metrics(result.settings.index(setting), 0)["loss"][-1] for setting in some]
    np.testing.assert_allclose(found, losses, rtol=1e-3)
    warm = compiled_loop(make, first, batches, some, rounds)
    group = result.groups[0]
    scale = len(result.settings) / len(some)
    return {
        "trials": len(result.settings),
        "rounds": rounds,
        "width": width,
        "sweep_seconds": sweep_seconds,
        "of_which_compiling": group.compile_seconds,
        "of_which_running": group.run_seconds,
        "loop_seconds": seconds * scale,
        "looped_trials": len(some),
        "loop_over_sweep": seconds * scale / sweep_seconds,
        "rounds_alone_loop_over_sweep": warm * scale / group.run_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument(
        "--looped", type=int, default=64, help="number of measured trials of the loop, scaled to all trials"
    )
    arguments = parser.parse_args()
    found = measure(arguments.trials, arguments.rounds, arguments.width, min(arguments.looped, arguments.trials))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
