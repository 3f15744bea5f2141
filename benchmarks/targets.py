"""Time and memory of the compilers for absent hardware, and the topologies that they know.

    python benchmarks/targets.py                     # one program on one topology per chip
    python benchmarks/targets.py v5e:16x16 h100:8    # on these topologies
    python benchmarks/targets.py --all               # on every topology that `list_targets()` offers

The seconds are measured on this machine. Needs the extra `tpu-aot` or `gpu-aot`; chips without a compiler are omitted.
"""

import argparse
import tempfile
import time

import jax
import jax.numpy as jnp
import psutil
from jax.sharding import NamedSharding, PartitionSpec

from workbench.aot import compile_for_target, fit_axes, list_targets, lower_for_target, parse_target, target_mesh
from workbench.aot._cache import CompilationCache
from workbench.aot._process import Worker
from workbench.records.compiled import TargetCompilation

WIDTH = 512


def local_sgd(params: dict[str, jax.Array], data: jax.Array) -> dict[str, jax.Array]:
    """Four SGD steps of a two-layer network at every client, then the mean over clients."""

    def train(x: jax.Array) -> dict[str, jax.Array]:
        def step(params, _):
            def loss(params):
                return jnp.mean((jax.nn.relu(x @ params["a"]) @ params["b"]) ** 2)

            return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params)), None

        return jax.lax.scan(step, params, None, length=4)[0]

    return jax.tree.map(lambda p: p.mean(0), jax.vmap(train)(data))


def compile_once(name: str, worker: Worker, cache: CompilationCache) -> tuple[TargetCompilation, float]:
    """The program on one target, and the seconds from the request to the record."""
    target = parse_target(name)
    axes = fit_axes(target, {"clients": 1, "model": 2 if target.devices > 1 else 1})
    mesh = target_mesh(target, tuple(axes.values()), tuple(axes))

    def struct(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh.abstract, PartitionSpec(*spec)))

    params = {"a": struct((WIDTH, WIDTH), None, "model"), "b": struct((WIDTH, WIDTH), "model", None)}
    data = struct((2 * axes["clients"], 32, WIDTH), "clients")
    text = lower_for_target(local_sgd, (params, data), mesh)
    started = time.monotonic()
    done = compile_for_target(text, target, mesh_axes=axes, worker=worker, cache=cache, timeout_seconds=300)
    return done, time.monotonic() - started


def chosen(names: list[str], every: bool) -> list[str]:
    """Names of targets with installed compilers: the requested targets, one of medium size per chip, or all."""
    chips = [chip for chip in list_targets() if chip.installed]
    if names:
        installed = {chip.chip for chip in chips}
        return [name for name in names if parse_target(name).chip in installed]
    if every:
        return [f"{chip.chip}:{topology}" for chip in chips for topology in chip.topologies]
    return [f"{chip.chip}:{chip.topologies[min(3, len(chip.topologies) - 1)]}" for chip in chips]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the compilers of absent hardware.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true", dest="every")
    arguments = parser.parse_args()
    names = chosen(arguments.names, arguments.every)
    if not names:
        lines = sorted({chip.install for chip in list_targets() if chip.install})
        print("no compiler for absent hardware is installed:", *lines, sep="\n  ")
        return
    print(f"{'target':16} {'devices':>7} {'compile s':>9} {'request s':>9} {'peak MiB':>8} {'worker MiB':>10}")
    workers = {platform: Worker() for platform in ("tpu", "cuda")}
    with tempfile.TemporaryDirectory() as directory:
        cache = CompilationCache(directory)
        for name in names:
            worker = workers[parse_target(name).platform]
            try:
                done, seconds = compile_once(name, worker, cache)
            except (ValueError, RuntimeError) as error:
                print(f"{name:16} FAILED {error}", flush=True)
                continue
            resident = psutil.Process(worker.pid).memory_info().rss / 2**20
            peak = (done.memory.peak_bytes or 0) / 2**20
            figures = f"{done.target.devices:7d} {done.seconds:9.1f} {seconds:9.1f} {peak:8.1f} {resident:10.0f}"
            print(f"{name:16} {figures}", flush=True)
    for worker in workers.values():
        worker.close()


if __name__ == "__main__":
    main()
