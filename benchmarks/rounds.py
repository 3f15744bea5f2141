"""A round of federated averaging against drjax, `jit(vmap)` and `shard_map`: time, memory, tracing, compiling.

Every row is one program on one number of clients and devices; the peers run interleaved in one process, and times are
medians. Ratios are to drjax (`pip install --no-deps drjax==0.2.1` first); temporary memory is the compiler's, for one
device.

    python -m benchmarks.rounds                       # the table of the README (about 10 minutes on two cores)
    python -m benchmarks.rounds --clients 64 --devices 1 --model mlp
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Table = list[dict[str, Any]]


def main() -> None:
    """Runs one point in this process, or every point in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[8, 64, 512])
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--model", choices=["mlp", "transformer"], nargs="*", default=["mlp"])
    parser.add_argument("--calls", type=int, default=7)
    parser.add_argument("--gradient", action="store_true", help="the gradient through a round")
    parser.add_argument("--memory-only", action="store_true", help="compile, but do not run")
    options = parser.parse_args()
    points = [(m, c, d) for m in options.model for c in options.clients for d in options.devices]
    if len(points) > 1:  # the number of devices is fixed when JAX starts
        print(describe_machine())
        for model, clients, devices in points:
            same = [f"--clients={clients}", f"--devices={devices}", f"--model={model}", f"--calls={options.calls}"]
            flags = ["--gradient"] * options.gradient + ["--memory-only"] * options.memory_only
            subprocess.run([sys.executable, "-m", "benchmarks.rounds", *same, *flags], check=False)
        return
    model, clients, devices = points[0]
    rows = measure_point(model, clients, devices, options)
    kind = "gradient of a round" if options.gradient else "round"
    print(f"\n{model}, {kind}, {clients} clients on {devices} device(s)")
    print(f"{'program':<22}{'run':>10}{'ratio':>8}{'temporary':>12}{'trace+lower':>13}{'compile':>10}{'error':>10}")
    for row in rows:
        run = "" if row["run"] is None else f"{1e3 * row['run']:.1f} ms"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        error = "" if row["error"] is None else f"{row['error']:.0e}"
        times = f"{row['lower']:>11.2f} s{row['compile']:>8.2f} s"
        print(f"{row['name']:<22}{run:>10}{ratio:>8}{row['temporary'] / 2**20:>8.1f} MiB{times}{error:>10}")


def describe_machine() -> str:
    """What the figures were taken on."""
    load = os.getloadavg()[0]
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}"


def measure_point(model: str, clients: int, devices: int, options: argparse.Namespace) -> Table:
    """All peers at one point, interleaved."""
    import jax

    import workbench as wb

    wb.simulate_devices(devices)
    mesh = wb.make_mesh(clients=devices)
    params, data, train = MODELS[model](clients)
    with jax.set_mesh(mesh):
        data = jax.device_put(data, jax.NamedSharding(mesh, jax.P("clients")))
        params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
        peers = programs(train, clients)
        if options.gradient:
            peers = {name: gradient_of(fn) for name, fn in peers.items()}
        compiled, rows = {}, {}
        for name, fn in peers.items():
            jitted: Any = wb.jit(fn) if name == "workbench" else jax.jit(fn)
            began = time.perf_counter()
            lowered = jitted.lower(params, data)
            lowered_at = time.perf_counter()
            compiled[name] = lowered.compile()
            rows[name] = {
                "name": name,
                "lower": lowered_at - began,
                "compile": time.perf_counter() - lowered_at,
                "temporary": compiled[name].memory_analysis().temp_size_in_bytes,
                "run": None,
                "ratio": None,
                "error": None,
            }
        if not options.memory_only:
            run_interleaved(compiled, (params, data), options.calls, rows)
    return list(rows.values())


def run_interleaved(compiled: dict[str, Any], args: Any, calls: int, rows: dict[str, dict[str, Any]]) -> None:
    """Fills in median seconds, their ratio to drjax and the largest difference from its result."""
    import jax
    import jax.numpy as jnp

    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    results = {name: jax.block_until_ready(program(*args)) for name, program in compiled.items()}
    for _ in range(calls):
        for name, program in compiled.items():
            began = time.perf_counter()
            jax.block_until_ready(program(*args))
            seconds[name].append(time.perf_counter() - began)
    for name, row in rows.items():
        row["run"] = statistics.median(seconds[name])
        row["ratio"] = row["run"] / statistics.median(seconds["drjax"])
        pairs = zip(jax.tree.leaves(results[name]), jax.tree.leaves(results["drjax"]), strict=True)
        row["error"] = max(float(jnp.abs(a - b).max()) for a, b in pairs)


def programs(train: Callable, clients: int) -> dict[str, Callable]:
    """The same round, five times: `fn(params, data)` → mean change."""
    import drjax  # pyright: ignore[reportMissingImports]
    import jax

    import workbench as wb

    @wb.program(clients=clients)
    def ours(params: Any, data: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

    @drjax.program(placements={"clients": clients})
    def theirs(params: Any, data: Any) -> Any:
        return drjax.reduce_mean(drjax.map_fn(train, (drjax.broadcast(params), data)))

    def vmapped(params: Any, data: Any) -> Any:
        return jax.tree.map(lambda x: x.mean(0), jax.vmap(train, in_axes=(None, 0))(params, data))

    def by_hand(params: Any, data: Any) -> Any:
        def share(params: Any, data: Any) -> Any:
            changes = jax.vmap(train, in_axes=(None, 0))(params, data)
            return jax.tree.map(lambda x: jax.lax.psum(x.sum(0), "clients") / clients, changes)

        specs = {"in_specs": (jax.P(), jax.P("clients")), "out_specs": jax.P()}
        return jax.shard_map(share, **specs, check_vma=False)(params, data)

    return {
        "workbench": ours,
        "workbench, plain jit": ours,
        "drjax": theirs,
        "jit(vmap)": vmapped,
        "shard_map": by_hand,
    }


def gradient_of(fn: Callable) -> Callable:
    """The gradient, with respect to the parameters, of a number computed from a round."""
    import jax
    import jax.numpy as jnp

    def size_of_change(params: Any, data: Any) -> Any:
        return sum(jnp.vdot(x, x) for x in jax.tree.leaves(fn(params, data)))

    return jax.grad(size_of_change)


def local_sgd(loss: Callable) -> Callable:
    """Four steps of gradient descent at one client; returns the change."""
    import jax
    import jax.numpy as jnp

    def train(params: Any, batches: Any) -> Any:
        def step(local: Any, batch: Any) -> tuple[Any, None]:
            return jax.tree.map(lambda p, g: p - 0.1 * g, local, jax.grad(loss)(local, batch)), None

        return jax.tree.map(jnp.subtract, jax.lax.scan(step, params, batches)[0], params)

    return train


def mlp(clients: int) -> tuple[Any, Any, Callable]:
    """784-128-62, 108 thousand parameters, 4 batches of 20 per client."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    shapes = {"w1": (784, 128), "b1": (128,), "w2": (128, 62), "b2": (62,)}
    params = {name: 0.05 * jax.random.normal(key, shape) for name, shape in shapes.items()}
    images = jax.random.normal(key, (clients, 4, 20, 784))
    labels = jax.random.randint(key, (clients, 4, 20), 0, 62)

    def loss(params: Any, batch: Any) -> Any:
        images, labels = batch
        logits = jax.nn.relu(images @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    return params, (images, labels), local_sgd(loss)


def transformer(clients: int) -> tuple[Any, Any, Callable]:
    """Two layers of width 192, 0.9 million parameters, 4 batches of 2 × 32 tokens per client."""
    import jax
    import jax.numpy as jnp

    key, width, tokens = jax.random.key(0), 192, 64
    shapes = {
        "qkv": (2, width, 3 * width),
        "out": (2, width, width),
        "up": (2, width, 4 * width),
        "down": (2, 4 * width, width),
    }
    params = {name: 0.02 * jax.random.normal(key, shape) for name, shape in shapes.items()}
    params["embed"] = 0.02 * jax.random.normal(key, (tokens, width))
    text = jax.random.randint(key, (clients, 4, 2, 33), 0, tokens)

    def layer(x: Any, weights: Any) -> tuple[Any, None]:
        q, k, v = jnp.split(x @ weights["qkv"], 3, axis=-1)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", q, k) / width**0.5, -1e9)
        x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v) @ weights["out"]
        return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"], None

    def loss(params: Any, batch: Any) -> Any:
        layers = {name: params[name] for name in shapes}
        x, _ = jax.lax.scan(layer, params["embed"][batch[:, :-1]], layers)
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.take_along_axis(logits, batch[:, 1:, None], -1).mean()

    return params, text, local_sgd(loss)


MODELS: dict[str, Callable] = {"mlp": mlp, "transformer": transformer}

if __name__ == "__main__":
    main()
