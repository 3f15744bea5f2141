"""A table of examples with three clients, programs that read them, and their results by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

import workbench as wb

FRAME = pd.DataFrame(
    {
        "client": ["b", "a", "b", "c", "b", "a"],
        "at": [3, 1, 1, 1, 2, 2],
        "x": [np.arange(2, dtype=np.float32) + i for i in range(6)],
        "y": np.arange(6.0),
    }
)
BY_HAND = {"a": ([1.0, 5.0], 2), "b": ([2.0, 4.0, 0.0], 3), "c": ([3.0], 1)}  # y of each, in the order of "at"


def residuals(w: Any, data: Any) -> Any:
    here = jnp.arange(len(data["y"])) < data["n"]
    return jnp.where(here, data["x"] @ w - data["y"], 0.0).sum()


@wb.program(clients=3)
def fitted(w: Any, data: Any) -> Any:
    rows = wb.map_fn(residuals, (wb.broadcast(w), data))
    return wb.reduce_weighted_mean(rows, data["n"]), rows


def expected(w: Any) -> Any:
    rows = [(np.stack(group["x"].tolist()) @ w - group["y"]).sum() for _, group in FRAME.groupby("client")]
    return np.average(rows, weights=[2, 3, 1]), rows


def in_buckets(w: Any, *buckets: Any) -> Any:
    """The weighted mean of `fitted` over clients of several lengths."""
    total = weight = jnp.float32(0)
    for data in buckets:
        with wb.program(clients=len(data["n"])):
            n = data["n"].astype(jnp.float32)
            rows = wb.map_fn(lambda w, data, n: residuals(w, data) * n, (wb.broadcast(w), data, n))
            total, weight = total + wb.reduce_sum(rows), weight + wb.reduce_sum(n)
    return total / weight
