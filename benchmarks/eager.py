"""Time of single eager calls of primitives in microseconds, compared with drjax and plain JAX.

The calls are interleaved, and the table has medians. Needs `pip install --no-deps drjax==0.2.1`.
`python -m benchmarks.eager`
"""

import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import drjax  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp

import workbench as wb

CLIENTS, TURNS, CALLS = 8, 15, 40


def main() -> None:
    """Prints the table."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # drjax warns at every call without a mesh
    x, weight = jnp.ones((CLIENTS, 16)), jnp.ones(CLIENTS)
    row = jnp.ones(16)
    ours, theirs = wb.program(clients=CLIENTS), drjax.program(placements={"clients": CLIENTS})

    def pair(mine: Callable[[], Any], peer: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return ours(mine), theirs(peer)

    def square(client: Any) -> Any:
        return client**2

    def plain_weighted() -> Any:
        return (x * weight[:, None]).sum(0) / weight.sum()

    def plain_broadcast() -> Any:
        return jnp.broadcast_to(row, (CLIENTS, 16))

    cases = {
        "enter an empty program": (*pair(lambda: None, lambda: None), lambda: None),
        "broadcast": (*pair(lambda: wb.broadcast(row), lambda: drjax.broadcast(row)), plain_broadcast),
        "map_fn": (*pair(lambda: wb.map_fn(square, x), lambda: drjax.map_fn(square, x)), lambda: jax.vmap(square)(x)),
        "reduce_sum": (*pair(lambda: wb.reduce_sum(x), lambda: drjax.reduce_sum(x)), lambda: x.sum(0)),
        "reduce_mean": (*pair(lambda: wb.reduce_mean(x), lambda: drjax.reduce_mean(x)), lambda: x.mean(0)),
        "reduce_weighted_mean": (
            *pair(lambda: wb.reduce_weighted_mean(x, weight), lambda: drjax.reduce_weighted_mean(x, weight)),
            plain_weighted,
        ),
    }
    print(f"{'':<26}{'workbench':>12}{'drjax':>12}{'plain JAX':>12}{'ours/drjax':>12}{'ours/plain':>12}")
    for name, calls in cases.items():
        mine, peer, plain = interleaved(calls)
        print(f"{name:<26}{mine:>9.1f} µs{peer:>9.1f} µs{plain:>9.1f} µs{mine / peer:>12.2f}{mine / plain:>12.2f}")


def interleaved(calls: tuple[Callable[[], Any], ...]) -> list[float]:
    """Median microseconds of each call."""
    for call in calls:
        jax.block_until_ready(call())
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for own, call in zip(seconds, calls, strict=True):
            began = time.perf_counter()
            jax.block_until_ready([call() for _ in range(CALLS)][-1])
            own.append((time.perf_counter() - began) / CALLS)
    return [1e6 * statistics.median(own) for own in seconds]


if __name__ == "__main__":
    main()
