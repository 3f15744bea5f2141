"""A round of federated averaging compared with drjax, `jit(vmap)` and `shard_map`: time, memory, tracing, compiling.

Every row is one program with one number of clients and devices. The programs run interleaved in one process, in
alternating order, and times are medians. Times of tracing and lowering are processor seconds of the tracing thread, for
fresh functions and with cleared JAX caches. Ratios are relative to drjax (first `pip install --no-deps drjax==0.2.1`).
Temporary memory is the compiler's figure for one device. Programs that need more than `--limit-gib` are only compiled.

    python -m benchmarks.rounds                       # the table of the README (about 10 minutes on two cores)
    python -m benchmarks.rounds --clients 64 --devices 1 --model mlp
    python -m benchmarks.rounds --save rounds.jsonl && python -m benchmarks.rounds --table rounds.jsonl
"""

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Table = list[dict[str, Any]]
PEERS = ("drjax", "jit(vmap)", "shard_map")


def main() -> None:
    """Runs one point in this process, or every point in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[8, 64, 512])
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--model", choices=["mlp", "transformer"], nargs="*", default=["mlp"])
    parser.add_argument("--calls", type=int, default=7)
    parser.add_argument("--traces", type=int, default=5)
    parser.add_argument("--limit-gib", type=float, default=2.5)
    parser.add_argument("--gradient", action="store_true", help="the gradient through a round")
    parser.add_argument("--save", help="file to which the rows are appended, as JSON lines")
    parser.add_argument("--table", help="print the rows of such a file as a Markdown table, and exit")
    options = parser.parse_args()
    if options.table:
        print(as_markdown([json.loads(line) for line in Path(options.table).read_text().splitlines()]))
        return
    points = [(m, c, d) for m in options.model for c in options.clients for d in options.devices]
    if len(points) > 1:  # the number of devices is fixed when JAX starts
        print(describe_machine())
        for model, clients, devices in points:
            same = [f"--clients={clients}", f"--devices={devices}", f"--model={model}"]
            same += [
                f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("calls", "traces", "limit-gib")
            ]
            flags = ["--gradient"] * options.gradient + [f"--save={options.save}"] * bool(options.save)
            subprocess.run([sys.executable, "-m", "benchmarks.rounds", *same, *flags], check=False)
        return
    model, clients, devices = points[0]
    rows = measure_point(model, clients, devices, options)
    print(as_text(rows), flush=True)
    if options.save:
        with Path(options.save).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def as_text(rows: Table) -> str:
    """One point for a terminal."""
    first = rows[0]
    kind = "gradient of a round" if first["gradient"] else "round"
    lines = [f"\n{first['model']}, {kind}, {first['clients']} clients on {first['devices']} device(s)"]
    lines.append(
        f"{'program':<22}{'run':>11}{'ratio':>7}{'temporary':>12}{'trace':>16}{'lower':>16}{'compile':>9}{'error':>8}"
    )
    base = next(row for row in rows if row["name"] == "drjax")
    for row in rows:
        run = f"{'not run':>11}{'':>7}" if row["run"] is None else f"{1e3 * row['run']:>8.1f} ms{_ratio(row, base):>7}"
        error = "" if row["error"] is None else f"{row['error']:.0e}"
        traced = "".join(f"{1e3 * row[k]:>8.0f} ms{row[k] / base[k]:>5.2f}" for k in ("trace", "lower"))
        lines.append(
            f"{row['name']:<22}{run}{row['temporary'] / 2**20:>8.1f} MiB{traced}{row['compile']:>7.1f} s{error:>8}"
        )
    return "\n".join(lines)


def _ratio(row: dict[str, Any], base: dict[str, Any]) -> str:
    return "" if row["run"] is None or base["run"] is None else f"{row['run'] / base['run']:.2f}"


def as_markdown(rows: Table) -> str:
    """All points as one table: Workbench, the best peer, drjax."""
    lines = [
        "| model | clients × devices | run | ours / best peer | ours / drjax | temporary: ours | drjax | "
        "trace / drjax | lower / drjax | compile: ours | drjax |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((row["model"], row["gradient"], row["clients"], row["devices"]) for row in rows))
    for key in keys:
        point = {r["name"]: r for r in rows if (r["model"], r["gradient"], r["clients"], r["devices"]) == key}
        ours, theirs = point["workbench"], point["drjax"]
        ran = [point[name] for name in PEERS if name in point and point[name]["run"] is not None]
        best = min(ran, key=lambda row: row["run"], default=None)
        run = "not run" if ours["run"] is None else f"{1e3 * ours['run']:,.0f} ms"
        against = "the others exceed the limit" if best is None else f"{_ratio(ours, best)} ({best['name']})"
        model = f"{key[0]}, gradient" if key[1] else key[0]
        lines.append(
            f"| {model} | {key[2]:,} × {key[3]} | {run} | {against} "
            f"| {_ratio(ours, theirs)} | {ours['temporary'] / 2**20:,.1f} MiB | {theirs['temporary'] / 2**20:,.1f} MiB "
            f"| {ours['trace'] / theirs['trace']:.2f} | {ours['lower'] / theirs['lower']:.2f} "
            f"| {ours['compile']:.1f} s | {theirs['compile']:.1f} s |"
        )
    return "\n".join(lines)


def describe_machine() -> str:
    """The machine and versions of the measurement."""
    import jax

    load = os.getloadavg()[0]
    versions = f"Python {platform.python_version()}, JAX {jax.__version__}"
    return f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, {versions}, load {load:.1f}"


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

        def make() -> dict[str, Any]:
            peers = programs(train, clients)
            if options.gradient:
                peers = {name: gradient_of(fn) for name, fn in peers.items()}
            return {name: wb.jit(fn) if name == "workbench" else jax.jit(fn) for name, fn in peers.items()}

        compiled, rows = {}, {}
        for name, times in trace_interleaved(make, (params, data), options.traces).items():
            lowered = make()[name].lower(params, data)
            began = time.perf_counter()
            compiled[name] = lowered.compile()
            rows[name] = {
                "name": name,
                "model": model,
                "gradient": options.gradient,
                "clients": clients,
                "devices": devices,
                "trace": times[0],
                "lower": times[1],
                "compile": time.perf_counter() - began,
                "temporary": compiled[name].memory_analysis().temp_size_in_bytes,
                "run": None,
                "error": None,
                "machine": describe_machine(),
            }
        small = {n: c for n, c in compiled.items() if rows[n]["temporary"] * devices <= options.limit_gib * 2**30}
        run_interleaved(small, (params, data), options.calls, rows)
    return list(rows.values())


def trace_interleaved(make: Callable[[], dict[str, Any]], args: Any, times: int) -> dict[str, tuple[float, float]]:
    """Median processor seconds for tracing and lowering each program from scratch."""
    import jax

    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in make()}
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), args)
    for turn in range(times + 1):
        for name in list(seconds) if turn % 2 else list(seconds)[::-1]:
            jax.clear_caches()
            gc.collect()
            program = make()[name]
            began = time.thread_time()
            traced = program.trace(*shapes)
            between = time.thread_time()
            traced.lower()
            seconds[name].append((between - began, time.thread_time() - between))
    return {
        name: (statistics.median(trace for trace, _ in own[1:]), statistics.median(lower for _, lower in own[1:]))
        for name, own in seconds.items()
    }


def run_interleaved(compiled: dict[str, Any], args: Any, calls: int, rows: dict[str, dict[str, Any]]) -> None:
    """Adds median seconds, and the largest difference from the result of the first peer that runs."""
    import jax
    import jax.numpy as jnp

    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    results = {name: jax.block_until_ready(program(*args)) for name, program in compiled.items()}
    reference = next((results[name] for name in PEERS if name in results), None)
    for turn in range(calls):
        for name in list(compiled) if turn % 2 else list(compiled)[::-1]:
            began = time.perf_counter()
            jax.block_until_ready(compiled[name](*args))
            seconds[name].append(time.perf_counter() - began)
    for name, own in seconds.items():
        rows[name]["run"] = statistics.median(own)
        if reference is not None:
            pairs = zip(jax.tree.leaves(results[name]), jax.tree.leaves(reference), strict=True)
            rows[name]["error"] = max(float(jnp.abs(a - b).max()) for a, b in pairs)


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
