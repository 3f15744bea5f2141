"""How long large meshes, trees and programs take to inspect and to draw: `python benchmarks/sharding_inspection.py`.

The limits are what a notebook is promised. Wall time of a busy machine says little: the processor time of this process
stands beside it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from workbench import render
from workbench.inspection import inspect_mesh, inspect_sharding, place_clients, propagate_shardings
from workbench.records.program import PlacementRecord
from workbench.render import to_pandas

MESH = AbstractMesh((1120, 8), ("clients", "model"))
SMALL = AbstractMesh((4, 2), ("clients", "model"))


def struct(mesh: AbstractMesh, shape: tuple[int, ...], *spec: str | None) -> jax.ShapeDtypeStruct:
    """An array that is not there."""
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def tree(mesh: AbstractMesh, leaves: int) -> dict[str, jax.ShapeDtypeStruct]:
    """A tree of arrays that all differ in shape."""
    return {f"layer {number}": struct(mesh, (1120, 8, number + 1), "clients", "model") for number in range(leaves)}


def train(params: Any, x: jax.Array) -> Any:
    """Ten steps of a two-layer network per client, then the mean over clients."""

    def local(params: Any, x: jax.Array) -> Any:
        def step(params: Any, _: None) -> tuple[Any, None]:
            grads = jax.grad(lambda p: (jnp.tanh(x @ p["up"]) @ p["down"]).sum())(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

        return jax.lax.scan(step, params, None, length=10)[0]

    return jax.tree.map(lambda x: x.mean(0), jax.vmap(local, in_axes=(None, 0))(params, x))


def seconds(fn: Callable[[], Any], repeats: int = 5) -> tuple[float, float]:
    """Medians of wall and of processor time over a few runs, the first one left out."""
    fn()
    taken = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        fn()
        taken.append((time.perf_counter() - wall, time.process_time() - processor))
    walls, processors = zip(*taken, strict=True)
    return statistics.median(walls), statistics.median(processors)


def main() -> None:
    """Prints one line per case: what, median seconds of wall and processor, limit."""
    mesh = place_clients(inspect_mesh(MESH), PlacementRecord(name="clients", size=17_920, mesh_axes=("clients",)))
    many, huge = tree(SMALL, 2000), tree(MESH, 2000)
    one = inspect_sharding(struct(MESH, (2240, 64, 16), "clients", "model"))
    record = inspect_sharding(many)
    params = {"up": struct(MESH, (64, 256), None, "model"), "down": struct(MESH, (256, 8), "model", None)}
    lowered = jax.jit(train).trace(params, struct(MESH, (2240, 16, 64), "clients")).lower(lowering_platforms=("cpu",))
    cases: list[tuple[str, Callable[[], Any], float]] = [
        ("inspect a mesh of 8,960 abstract devices", lambda: inspect_mesh(MESH), 1.0),
        ("draw it with its clients as SVG", lambda: render.svg(mesh), 1.0),
        ("write it as text", lambda: render.text(mesh), 1.0),
        ("inspect a tree of 2,000 leaves on 8 devices", lambda: inspect_sharding(many), 1.0),
        ("inspect a tree of 2,000 leaves on 8,960 devices", lambda: inspect_sharding(huge), 1.0),
        ("write 2,000 leaves as text", lambda: render.text(record), 1.0),
        ("write 2,000 leaves as a table", lambda: to_pandas(record), 1.0),
        ("draw an array in 8,960 slices as SVG", lambda: render.svg(one), 1.0),
        ("propagate local SGD over 1120 × 8 in-process", lambda: propagate_shardings(lowered), 1.0),
    ]
    print(f"{'case':50} {'wall s':>8} {'processor s':>12} {'limit s':>8}")
    for name, fn, limit in cases:
        wall, processor = seconds(fn)
        slow = "" if min(wall, processor) < limit else "  TOO SLOW"
        print(f"{name:50} {wall:8.3f} {processor:12.3f} {limit:8.1f}{slow}")


if __name__ == "__main__":
    main()
