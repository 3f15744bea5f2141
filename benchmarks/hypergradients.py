"""Compares hypergradient descent with grid and random search at equal cost: `python -m benchmarks.hypergradients`.

Two problems have five learning rates each, one for the server and one for each part of the model. The problems are
real handwritten digits with a two-layer network, and ill-conditioned least squares. With `--few`, there are only two
learning rates: the clients' and the server's.

The cost is counted in forward rounds: a descent step counts as four times its rounds. A grid with three values per
learning rate and random search get the number of trials that this cost allows. Each method's result is chosen by the
held-out loss after `SHORT` rounds with one seed. The result is evaluated by the held-out loss with other seeds, after
`SHORT` and `LONG` rounds.
"""

import argparse
import json
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

import workbench as wb
from workbench.federated import algorithms, data
from workbench.federated.experiments import Grid, HypergradientSearch, RandomSearch

CLIENTS, SHORT, LONG = 8, 8, 40
JUDGES = [100, 101, 102, 103, 104]
LOW, HIGH = 1e-3, 1.0


def digits(seed: int) -> tuple[Any, Any, Any, Any]:
    train, test = data.digits(CLIENTS, alpha=0.3, seed=seed)
    padded = jax.tree.map(jnp.asarray, data.pad_clients(train, batch_size=16, key=seed).tree)
    batches = {name: padded[name][:, :4] for name in ("x", "y", "mask")}
    x, y = jnp.asarray(test.x), jnp.asarray(test.y)

    def losses(params: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"][None])
        logits = hidden @ params["out"]["w"] + params["out"]["b"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    def loss(params: Any, batch: Any) -> Any:
        own = losses(params, batch["x"], batch["y"])
        return jnp.where(batch["mask"], own, 0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(own.dtype)

    def first(key: Any) -> Any:
        one, two = jax.random.split(key)
        layer = {"w": jax.random.normal(one, (64, 32)) / 8, "b": jnp.zeros(32)}
        return {"in": layer, "out": {"w": jax.random.normal(two, (32, 10)) / 6, "b": jnp.zeros(10)}}

    return loss, first, batches, lambda params: {"held out": losses(params, x, y).mean()}


def least_squares(seed: int) -> tuple[Any, Any, Any, Any]:
    random = np.random.default_rng(seed)
    parts = {"in": {"w": 1.0, "b": 0.3}, "out": {"w": 0.1, "b": 0.03}}  # deviations of the features of each part
    w = jax.tree.map(lambda scale: random.normal(size=6) / scale, parts)

    def rows(*shape: int) -> Any:
        x = jax.tree.map(lambda scale: random.normal(size=(*shape, 6)) * scale, parts)
        y = sum(a @ b for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(w), strict=True))
        y = y + 0.3 * random.normal(size=shape[:1] + (1,) * (len(shape) - 1))  # clients differ
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), {"x": x, "y": y})

    def loss(params: Any, batch: Any) -> Any:
        products = [x @ v for x, v in zip(jax.tree.leaves(batch["x"]), jax.tree.leaves(params), strict=True)]
        return ((sum(products[1:], products[0]) - batch["y"]) ** 2).mean()

    held_out, batches = rows(512), rows(CLIENTS, 4, 16)
    return (
        loss,
        lambda key: jax.tree.map(lambda _: 0.1 * jax.random.normal(key, (6,)), parts),
        batches,
        lambda params: {"held out": loss(params, held_out)},
    )


def compare(problem: Any, repeats: int, few: bool) -> dict[str, Any]:
    names = ["lr"] if few else ["in_w", "in_b", "out_w", "out_b"]
    values = {name: (LOW, HIGH) for name in names} | {"server_lr": (0.1, 10.0)}
    per_axis = 15 if few else 3  # 225 or 243 trials
    cost = per_axis ** len(values)
    starts, steps = 4, round(cost / 16)
    rows = []
    for seed in range(repeats):
        loss, first, batches, evaluate = problem(seed)

        def make(server_lr: Any, lr: Any = None, loss: Any = loss, **rates: Any) -> Any:
            def scaled(updates: Any, state: Any, params: Any = None) -> Any:
                rate = {part: {name: rates.get(f"{part}_{name}", lr) for name in "wb"} for part in ("in", "out")}
                return jax.tree.map(lambda g, by: -by * g, updates, rate), state

            client = optax.GradientTransformation(lambda params: (), scaled)
            return algorithms.fedavg(
                loss, clients=CLIENTS, client_optimizer=client, server_optimizer=optax.sgd(server_lr)
            )

        def run(space: Any, strategy: Any, rounds: int, seeds: Any, of: Any = (first, batches, evaluate)) -> Any:
            return wb.experiments.sweep(
                make,
                space,
                params=of[0],
                data=of[1],
                evaluate=of[2],
                rounds=rounds,
                strategy=strategy,
                seeds=seeds,
                progress=False,
                rounds_per_call=rounds,
            )

        drawn = {name: scipy.stats.loguniform(*ends) for name, ends in values.items()}
        listed = {name: np.geomspace(*ends, per_axis).tolist() for name, ends in values.items()}
        descent = HypergradientSearch(metric="held out", steps=steps, rounds=SHORT, trials=starts, seed=seed)
        row: dict[str, Any] = {"load": os.getloadavg()[0]}
        for name, space, strategy in (
            ("descent", drawn, descent),
            ("random", drawn, RandomSearch(trials=cost, seed=seed)),
            ("grid", listed, Grid()),
        ):
            began = time.perf_counter()
            best = run(space, strategy, SHORT, [seed]).best("held out")
            seconds = time.perf_counter() - began
            judged = run({k: [v] for k, v in best.items()}, Grid(), LONG, JUDGES)
            ends = np.array([judged.metrics(0, judge)["held out"] for judge in JUDGES]) if _lasted(judged) else None
            row[name] = {
                "short": None if ends is None else float(ends[:, SHORT - 1].mean()),
                "long": None if ends is None else float(ends[:, -1].mean()),
                "seconds": seconds,
                **best,
            }
        rows.append(row)
        print(json.dumps(row), flush=True)
    found = {"trials of grid and random search": cost, "starts": starts, "steps": steps}
    for name in ("grid", "random"):
        for when in ("short", "long"):
            pairs = [(_or_infinite(row["descent"][when]), _or_infinite(row[name][when])) for row in rows]
            found[f"{name}, {when}"] = {
                "descent better in": f"{sum(a < b for a, b in pairs)} of {len(pairs)}",
                "median loss of descent": float(np.median([a for a, _ in pairs])),
                "median loss of the other": float(np.median([b for _, b in pairs])),
            }
    return found


def _lasted(result: Any) -> bool:
    return set(result.trials["status"]) == {"finished"}


def _or_infinite(value: float | None) -> float:
    return np.inf if value is None else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--few", action="store_true")
    arguments = parser.parse_args()
    for one in (digits, least_squares):
        print(one.__name__, json.dumps(compare(one, arguments.repeats, arguments.few), indent=1), flush=True)
