"""One round of federated averaging, written without the workbench: what `benchmarks.engines` runs on every system."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FEATURES, HIDDEN, EXAMPLES, STEPS = 64, 128, 32, 5


def start(hidden: int = HIDDEN) -> Any:
    random = np.random.default_rng(0)
    return {
        "in": (0.1 * random.normal(size=(FEATURES, hidden))).astype(np.float32),
        "out": (0.1 * random.normal(size=hidden)).astype(np.float32),
    }


def client(i: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(i).normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    return x, np.tanh(x[:, 0])


def train(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w["in"]) @ w["out"] - y) ** 2)

    def step(w: Any, _: Any) -> Any:
        return jax.tree.map(lambda v, g: v - 0.1 * g, w, jax.grad(loss)(w)), None

    return jax.tree.map(jnp.subtract, jax.lax.scan(step, w, None, length=STEPS)[0], w)
