"""Rounds over clients that are read from disk: `python -m benchmarks.out_of_core`.

Speed: one round of federated averaging (the MLP of `benchmarks.rounds`, local SGD of 4 batches of 20, 250 KB per
    client). The clients are either in a memory map (`engines.MeshEngine` with an `ArrayReader`) or all on the devices
    (`wb.jit`). Both rounds are interleaved in one process, also for programs with less work per client. Memory: a round
    over
10^4, 10^5 and 10^6 clients of 1 KB each, with a separate process for each number. The table has the peak of resident
memory, and the part of this peak that does not consist of file pages.
"""

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds import describe_machine, local_sgd, mlp

LOCAL_PASSES = (1, 4, 16)


def main() -> None:
    """Prints both tables; in a child process, measures the memory of one number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--calls", type=int, default=7)
    parser.add_argument("--clients", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--speed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.speed:
        measure_speed(asked.speed, asked.calls)
        return
    if asked.memory:
        measure_memory(asked.memory)
        return
    print(describe_machine())
    print("| program | devices | MB of clients | resident | from disk | resident / from disk | range |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for devices in asked.devices:
        again = [sys.executable, "-m", "benchmarks.out_of_core", f"--speed={devices}", f"--calls={asked.calls}"]
        subprocess.run(again, check=True)
    print("\n| clients | MB of clients | seconds per round | peak memory | private part |")
    print("|---|---|---|---|---|", flush=True)
    for clients in asked.clients:
        subprocess.run([sys.executable, "-m", "benchmarks.out_of_core", f"--memory={clients}"], check=True)


def measure_speed(devices: int, calls: int) -> None:
    """One row per program: rounds from disk and with resident clients, in turn."""
    os.environ.setdefault("NPROC", "64")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    import workbench as wb

    wb.simulate_devices(devices)
    mesh = wb.make_mesh(clients=devices)
    for name, clients, make in PROGRAMS:
        params, data, train = make(clients)

        @wb.program(clients=clients)
        def round_of(params: Any, data: Any, train: Any = train) -> Any:
            return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

        with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
            reader = wb.engines.ArrayReader(on_disk(data, Path(folder)))
            resident = jax.device_put(data, jax.NamedSharding(mesh, jax.P("clients")))
            params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
            engine = wb.engines.MeshEngine()
            forms = {
                "resident": functools.partial(wb.jit(round_of), params, resident),
                "from disk": functools.partial(engine.run, round_of, params, reader),
            }
            results = [forms["resident"](), forms["from disk"]().results]
            for a, b in zip(*map(jax.tree.leaves, results), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            seconds: dict[str, list[float]] = {form: [] for form in forms}
            for turn in range(calls):
                for form in list(forms)[:: 1 if turn % 2 else -1]:
                    began = time.perf_counter()
                    found = forms[form]()
                    jax.block_until_ready(found if form == "resident" else found.results)
                    seconds[form].append(time.perf_counter() - began)
        ratios = [a / b for a, b in zip(seconds["resident"], seconds["from disk"], strict=True)]
        size = sum(x.nbytes for x in jax.tree.leaves(data)) / 1e6
        median = {form: statistics.median(times) for form, times in seconds.items()}
        print(
            f"| {name}, {clients:,} clients | {devices} | {size:,.0f} | {1e3 * median['resident']:,.0f} ms "
            f"| {1e3 * median['from disk']:,.0f} ms | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} |",
            flush=True,
        )


def linear(clients: int) -> tuple[Any, Any, Any]:
    """Linear regression of 32 features, 10 steps on 64 examples: 8 KB per client and little to compute."""
    import jax.numpy as jnp

    x = np.random.default_rng(0).normal(size=(clients, 10, 64, 32)).astype(np.float32)
    y = np.tanh(x.sum(-1))
    return jnp.zeros(32), (x, y), local_sgd(lambda w, batch: jnp.mean((jnp.tanh(batch[0] @ w) - batch[1]) ** 2))


def passes(make: Any, count: int) -> Any:
    """The same model with several local passes over a client's data."""

    def made(clients: int) -> tuple[Any, Any, Any]:
        import jax

        params, data, train = make(clients)

        def longer(params: Any, data: Any) -> Any:
            start = params

            def one(params: Any, _: Any) -> tuple[Any, None]:
                return jax.tree.map(lambda p, change: p + change, params, train(params, data)), None

            params, _ = jax.lax.scan(one, params, None, length=count)
            return jax.tree.map(lambda new, old: new - old, params, start)

        return params, data, longer

    return made


PROGRAMS = [
    ("linear regression, one pass", 4000, linear),
    *((f"MLP, {count} local pass{'es' * (count > 1)}", 1600 // count, passes(mlp, count)) for count in LOCAL_PASSES),
]


def on_disk(data: Any, folder: Path) -> Any:
    """The arrays as read-only memory maps."""
    import jax

    leaves, tree = jax.tree.flatten(data)
    for number, leaf in enumerate(leaves):
        np.save(folder / f"{number}.npy", leaf)
    return jax.tree.unflatten(tree, [np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(len(leaves))])


def measure_memory(clients: int) -> None:
    """One row: the peak of this process during a round over clients in a file."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax.numpy as jnp

    import workbench as wb

    @wb.program(clients=clients)
    def round_of(w: Any, x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(lambda w, x: w - 0.1 * x.T @ (x @ w), (wb.broadcast(w), x)))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        written = np.lib.format.open_memmap(path, "w+", np.float32, (clients, 8, 32))
        for start in range(0, clients, 10_000):
            written[start : start + 10_000] = np.float32(start % 7)
        del written
        engine, reader = wb.engines.MeshEngine(), wb.engines.ArrayReader(np.load(path, mmap_mode="r"))
        done, peak = threading.Event(), {"VmRSS": 0, "RssAnon": 0}

        def watch() -> None:
            while not done.wait(0.01):
                for name, value in _memory_kib().items():
                    peak[name] = max(peak[name], value)

        watcher = threading.Thread(target=watch)
        watcher.start()
        run = engine.run(round_of, jnp.ones(32), reader)
        done.set()
        watcher.join()
    print(
        f"| {clients:,} | {clients * 1024 / 1e6:,.0f} | {run.seconds:.2f} | {peak['VmRSS'] / 1024:,.0f} MiB "
        f"| {peak['RssAnon'] / 1024:,.0f} MiB |",
        flush=True,
    )


def _memory_kib() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0][:-1]: int(words[1]) for words in lines if words[0] in ("VmRSS:", "RssAnon:")}


if __name__ == "__main__":
    main()
