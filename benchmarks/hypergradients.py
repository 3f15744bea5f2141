"""Does descending hypergradients beat random search at equal cost? `python -m benchmarks.hypergradients`.

Two problems (handwritten digits with a linear model; ill-conditioned least squares) with a client and a server learning
rate. The cost is counted in rounds forward: a step of the descent counts as four times its rounds, and random search
gets as many trials as that makes. What both find is then run for more rounds.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

import workbench as wb
from workbench.federated import algorithms, data
from workbench.federated.experiments import HypergradientSearch, RandomSearch

CLIENTS, SHORT, LONG = 8, 5, 40
SPACE = {"lr": scipy.stats.loguniform(1e-3, 1.0), "server_lr": scipy.stats.loguniform(0.1, 10.0)}


def digits() -> tuple[Any, Any, Any]:
    train, _ = data.digits(CLIENTS, alpha=0.3, seed=0)
    padded = jax.tree.map(jnp.asarray, data.pad_clients(train, batch_size=16, key=0).tree)
    batches = {name: padded[name][:, :4] for name in ("x", "y", "mask")}

    def loss(params: Any, batch: Any) -> Any:
        logits = batch["x"] @ params["w"] + params["b"][None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return jnp.where(batch["mask"], losses, 0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(losses.dtype)

    return loss, {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}, batches


def least_squares() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(CLIENTS, 4, 16, 20)) * np.logspace(0, -1.5, 20)
    y = x @ random.normal(size=20) + 0.3 * random.normal(size=(CLIENTS, 1, 1))

    def loss(w: Any, batch: Any) -> Any:
        return ((batch["x"] @ w - batch["y"]) ** 2).mean()

    return loss, jnp.zeros(20), {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def compare(problem: Any, repeats: int) -> dict[str, Any]:
    loss, params, batches = problem()

    def make(lr: Any, server_lr: Any) -> Any:
        optimizer, server = optax.sgd(lr), optax.sgd(server_lr)
        return algorithms.fedavg(loss, clients=CLIENTS, client_optimizer=optimizer, server_optimizer=server)

    def run(strategy: Any) -> Any:
        return wb.sweep(
            make,
            SPACE,
            params=params,
            data=batches,
            rounds=SHORT,
            strategy=strategy,
            progress=False,
            rounds_per_call=SHORT,
        )

    rows = []
    for seed in range(repeats):
        descent = HypergradientSearch(metric="loss", steps=10, rounds=SHORT, trials=4, seed=seed)
        # 4 starts × 10 steps, each about four times its rounds forward: 160 trials.
        many = RandomSearch(trials=4 * 10 * 4, seed=seed)
        found = {name: run(strategy) for name, strategy in (("descent", descent), ("random", many))}
        row = {}
        for name, result in found.items():
            best = result.best("loss")
            row[name] = {"short": float(result.final("loss")["mean"].min()), **best}
            again = wb.sweep(
                make, {k: [v] for k, v in best.items()}, params=params, data=batches, rounds=LONG, progress=False
            )
            ends = again.metrics(0, 0)["loss"]
            row[name]["long"] = float(ends[-1])
        rows.append(row)
    return {"repeats": rows}


if __name__ == "__main__":
    for one in (digits, least_squares):
        print(one.__name__, json.dumps(compare(one, 2), indent=1), flush=True)
