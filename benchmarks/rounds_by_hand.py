"""A round of federated averaging compared with the best hand-written form: `python -m benchmarks.rounds_by_hand`.

The hand-written forms process chunks of 1, 4, 8 or 32 clients in a `scan`. They add the changes with a plain sum or
with a product with ones and, on several devices, use a `shard_map` with a `psum`. For gradients, chunks of 1, 4 or 8
run with and without rematerialisation. All these forms, and Workbench with `chunk_size="auto"` and `"tune"`, run
interleaved in one process per point, in alternating order.

The best hand-written form is the form with the smallest median. The table has the median and the quartiles of the ratio
Workbench / best form, taken within a repetition. A machine that is slower for some repetitions changes this ratio
little. No rule of the library was fitted to the models in `HELD_OUT` or to the points in `HELD_OUT_POINTS`.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rounds import describe_machine, gradient_of, local_sgd, mlp, transformer

CHUNKS = (1, 4, 8, 32)
LEAST_SECONDS = 0.02
HELD_OUT = ("autoencoder", "ridge", "lstm", "resnet", "mlp-bf16")
HELD_OUT_POINTS = (  # model, clients, devices, whether it is the gradient
    ("logistic", 4096, 8, False),
    ("cnn", 64, 8, False),
    ("gru", 64, 8, False),
    ("maml", 64, 8, False),
    ("evaluation", 64, 8, False),
    ("gru", 64, 1, True),
)


def main() -> None:
    """Runs one point in this process, or every point in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), nargs="*", default=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--calls", type=int, default=7)
    parser.add_argument("--tune-seconds", type=float, default=30)
    parser.add_argument("--gradient", action="store_true", help="the gradient through a round")
    parser.add_argument("--save", type=Path, help="file to which the rows are appended, as JSON lines")
    asked = parser.parse_args()
    points = list(itertools.product(asked.model, asked.clients, asked.devices))
    if len(points) == 1:  # the number of devices is fixed when JAX starts
        row = measure_point(*points[0], asked.gradient, asked.calls, asked.tune_seconds)
        print(as_markdown(row), flush=True)
        if asked.save:
            with asked.save.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return
    print(describe_machine())
    print("| program | clients × devices | auto / hand | tuned / hand | quarters of tuned | tuned | best by hand |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for model, clients, devices in points:
        point = [f"--model={model}", f"--clients={clients}", f"--devices={devices}", f"--calls={asked.calls}"]
        point.append(f"--tune-seconds={asked.tune_seconds}")
        flags = ["--gradient"] * asked.gradient + ([f"--save={asked.save}"] if asked.save else [])
        subprocess.run([sys.executable, "-m", "benchmarks.rounds_by_hand", *point, *flags], check=False)


def as_markdown(row: dict[str, Any]) -> str:
    """One point as a row of the table."""
    median = {name: statistics.median(times) for name, times in row["seconds"].items()}
    hand = min((name for name in median if name not in ("auto", "tune")), key=median.__getitem__)
    auto, tuned = (sorted(_ratios(row["seconds"], name, hand)) for name in ("auto", "tune"))
    point = (row["model"], row["clients"], row["devices"], bool(row["gradient"]))
    held_out = row["model"] in HELD_OUT or point in HELD_OUT_POINTS
    name = row["model"] + (", gradient" if row["gradient"] else "") + (" *" if held_out else "")
    return (
        f"| {name} | {row['clients']:,} × {row['devices']} | {statistics.median(auto):.2f} "
        f"| {statistics.median(tuned):.2f} | {tuned[len(tuned) // 4]:.2f} to {tuned[-1 - len(tuned) // 4]:.2f} "
        f"| {row['chosen']}: {1e3 * median['tune']:.3g} ms | {hand}: {1e3 * median[hand]:.3g} ms |"
    )


def _ratios(seconds: dict[str, list[float]], name: str, other: str) -> list[float]:
    return [a / b for a, b in zip(seconds[name], seconds[other], strict=True)]


def measure_point(
    model: str, clients: int, devices: int, gradient: bool, calls: int, tune_seconds: float
) -> dict[str, Any]:
    """Seconds of every form at one point."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import jax.numpy as jnp

    import workbench as wb

    if devices > 1:
        wb.simulate_devices(devices)
    mesh = wb.make_mesh(clients=devices)
    params, data, train = MODELS[model](clients)
    transform: Callable = gradient_of if gradient else lambda fn: fn

    @wb.program(clients=clients)
    def ours(params: Any, data: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

    with jax.set_mesh(mesh):
        data = jax.device_put(data, jax.NamedSharding(mesh, jax.P("clients")))
        params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
        tuned = wb.jit(transform(ours), chunk_size="tune", tune_seconds=tune_seconds)
        forms: dict[str, Callable] = {"auto": wb.jit(transform(ours)), "tune": tuned}
        for chunk, product, remat in itertools.product(CHUNKS, (False, True), (False, True) if gradient else (False,)):
            unlike = chunk == 32 or product != (chunk > 1) if gradient else chunk == 1 and product
            if (clients // devices) % chunk or unlike:
                continue
            name = f"chunks of {chunk}{', product' * product}{', remat' * remat}"
            by_hand = streamed(train, clients, devices, chunk, product=product, remat=remat)
            forms[name] = jax.jit(transform(by_hand))
        results = {name: jax.block_until_ready(form(params, data)) for name, form in forms.items()}
        for name, result in results.items():
            for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(results["auto"]), strict=True):
                scale, most = float(jnp.abs(b).max()), max(1e-3, 16 * float(jnp.finfo(b.dtype).eps))
                assert float(jnp.abs(a - b).max()) <= most * scale + 1e-6, (name, float(jnp.abs(a - b).max()), scale)
        seconds: dict[str, list[float]] = {name: [] for name in forms}
        for turn in range(calls):
            for name in list(forms) if turn % 2 else list(forms)[::-1]:
                began, repeats, taken = time.perf_counter(), 0, 0.0
                while taken < LEAST_SECONDS:  # rounds follow each other: the first after a pause is slower
                    jax.block_until_ready(forms[name](params, data))
                    repeats, taken = repeats + 1, time.perf_counter() - began
                seconds[name].append(taken / repeats)
    point = {"model": model, "gradient": gradient, "clients": clients, "devices": devices, "seconds": seconds}
    assert tuned.plan_choice is not None
    return {**point, "chosen": in_short(tuned.plan_choice), "machine": describe_machine()}


def in_short(choice: Any) -> str:
    """A choice in few words: "8", "8, kept, unroll 2"."""
    kept = {None: ", kept", 0: ", made again"}.get(choice.kept_bytes, "")
    unroll = f", unroll {choice.unroll}" if choice.unroll > 1 else ""
    return f"{choice.chunk_size or 'all'}{kept}{unroll}{', vmap' if choice.spread == 'vmap' else ''}"


def streamed(
    train: Callable, clients: int, devices: int, chunk: int, *, product: bool, remat: bool
) -> Callable[[Any, Any], Any]:
    """The round as written by hand for speed: a scan over chunks of clients with running sums."""
    import jax
    import jax.numpy as jnp

    def share(params: Any, data: Any) -> Any:
        def add(x: Any) -> Any:
            return jnp.tensordot(jnp.ones(chunk, x.dtype), x, 1) if product else x.sum(0)

        def one(total: Any, rows: Any) -> tuple[Any, None]:
            if chunk == 1:
                change = train(params, jax.tree.map(lambda x: x[0], rows))
            else:
                change = jax.tree.map(add, jax.vmap(train, in_axes=(None, 0))(params, rows))
            return jax.tree.map(jnp.add, total, change), None

        rows = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), data)
        result = jax.eval_shape(train, params, jax.tree.map(lambda x: x[0, 0], rows))
        start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), result)
        total, _ = jax.lax.scan(jax.checkpoint(one) if remat else one, start, rows)
        if devices > 1:
            total = jax.lax.psum(total, "clients")
        return jax.tree.map(lambda x: x / clients, total)

    if devices == 1:
        return share
    specs = {"in_specs": (jax.P(), jax.P("clients")), "out_specs": jax.P()}
    return jax.shard_map(share, **specs, check_vma=False)


def logistic(clients: int) -> tuple[Any, Any, Callable]:
    """Logistic regression, 784 inputs and 10 classes, 4 batches of 20."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    params = {"w": 0.05 * jax.random.normal(key, (784, 10)), "b": jnp.zeros(10)}
    images = jax.random.normal(key, (clients, 4, 20, 784))
    labels = jax.random.randint(key, (clients, 4, 20), 0, 10)
    return params, (images, labels), local_sgd(lambda p, b: _cross_entropy(b[0] @ p["w"] + p["b"], b[1]))


def cnn(clients: int) -> tuple[Any, Any, Callable]:
    """Two convolutions of 16 and 32 channels on 16 × 16 pixels, 4 batches of 8."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    shapes = {"c1": (3, 3, 1, 16), "c2": (3, 3, 16, 32), "w": (512, 10)}
    params = {name: 0.1 * jax.random.normal(key, shape) for name, shape in shapes.items()}
    images = jax.random.normal(key, (clients, 4, 8, 16, 16, 1))
    labels = jax.random.randint(key, (clients, 4, 8), 0, 10)

    def loss(p: Any, batch: Any) -> Any:
        x = batch[0]
        for name in ("c1", "c2"):
            x = jax.lax.conv_general_dilated(x, p[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x)
        return _cross_entropy(jnp.reshape(x, (x.shape[0], -1)) @ p["w"], batch[1])

    return params, (images, labels), local_sgd(loss)


def gru(clients: int) -> tuple[Any, Any, Callable]:
    """A gated recurrent unit of width 128 over 16 steps of 32 inputs, 2 batches of 8."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    shapes = {"x": (32, 384), "h": (128, 384), "out": (128, 10)}
    params = {name: 0.05 * jax.random.normal(key, shape) for name, shape in shapes.items()}
    inputs = jax.random.normal(key, (clients, 2, 16, 8, 32))
    labels = jax.random.randint(key, (clients, 2, 8), 0, 10)

    def loss(p: Any, batch: Any) -> Any:
        def step(h: Any, x: Any) -> tuple[Any, None]:
            gates, inner = x @ p["x"], h @ p["h"]
            reset, update = jnp.split(jax.nn.sigmoid(gates[:, :256] + inner[:, :256]), 2, axis=1)
            new = jnp.tanh(gates[:, 256:] + reset * inner[:, 256:])
            return (1 - update) * new + update * h, None

        h, _ = jax.lax.scan(step, jnp.zeros((8, 128)), batch[0])
        return _cross_entropy(h @ p["out"], batch[1])

    return params, (inputs, labels), local_sgd(loss)


def lstm(clients: int) -> tuple[Any, Any, Callable]:
    """A long short-term memory of width 64 over 20 steps of 24 inputs, 3 batches of 8."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    params = {"x": 0.1 * jax.random.normal(key, (88, 256)), "out": 0.1 * jax.random.normal(key, (64, 10))}
    inputs = jax.random.normal(key, (clients, 3, 20, 8, 24))
    labels = jax.random.randint(key, (clients, 3, 8), 0, 10)

    def loss(p: Any, batch: Any) -> Any:
        def step(state: Any, x: Any) -> tuple[Any, None]:
            h, memory = state
            forget, add, out, new = jnp.split(jnp.concatenate([x, h], 1) @ p["x"], 4, axis=1)
            memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(add) * jnp.tanh(new)
            return (jax.nn.sigmoid(out) * jnp.tanh(memory), memory), None

        (h, _), _ = jax.lax.scan(step, (jnp.zeros((8, 64)), jnp.zeros((8, 64))), batch[0])
        return _cross_entropy(h @ p["out"], batch[1])

    return params, (inputs, labels), local_sgd(loss)


def resnet(clients: int) -> tuple[Any, Any, Callable]:
    """A residual block of two convolutions of 12 channels on 8 × 8 pixels, 3 batches of 6."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    shapes = {"c0": (3, 3, 3, 12), "c1": (3, 3, 12, 12), "c2": (3, 3, 12, 12), "w": (12, 10)}
    params = {name: 0.1 * jax.random.normal(key, shape) for name, shape in shapes.items()}
    images = jax.random.normal(key, (clients, 3, 6, 8, 8, 3))
    labels = jax.random.randint(key, (clients, 3, 6), 0, 10)

    def loss(p: Any, batch: Any) -> Any:
        def convolved(x: Any, name: str) -> Any:
            x = jax.lax.conv_general_dilated(x, p[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return (x - x.mean((1, 2, 3), keepdims=True)) / jnp.sqrt(x.var((1, 2, 3), keepdims=True) + 1e-5)

        x = jax.nn.relu(convolved(batch[0], "c0"))
        x = jax.nn.relu(x + convolved(jax.nn.relu(convolved(x, "c1")), "c2"))
        return _cross_entropy(x.mean((1, 2)) @ p["w"], batch[1])

    return params, (images, labels), local_sgd(loss)


def mlp_bf16(clients: int) -> tuple[Any, Any, Callable]:
    """The MLP of `benchmarks.rounds` in bfloat16."""
    import jax
    import jax.numpy as jnp

    params, data, train = mlp(clients)

    def half(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, tree)

    return half(params), half(data), lambda p, batches: half(train(p, batches))


def lora(clients: int) -> tuple[Any, Any, Callable]:
    """Adapters of rank 4 for a frozen network of three layers of 256, 4 batches of 16."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    frozen = 0.06 * jax.random.normal(key, (3, 256, 256))
    params = {"a": 0.1 * jax.random.normal(key, (3, 256, 4)), "b": jnp.zeros((3, 4, 256))}
    inputs = jax.random.normal(key, (clients, 4, 16, 256))
    labels = jax.random.randint(key, (clients, 4, 16), 0, 256)

    def loss(p: Any, batch: Any) -> Any:
        x = batch[0]
        for layer in range(3):
            x = jnp.tanh(x @ frozen[layer] + (x @ p["a"][layer]) @ p["b"][layer])
        return _cross_entropy(x, batch[1])

    return params, (inputs, labels), local_sgd(loss)


def maml(clients: int) -> tuple[Any, Any, Callable]:
    """Second-order MAML: the gradient through one inner step of a network 1-40-40-1 on 10 points, as in its paper."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    sizes = (1, 40, 40, 1)
    params = [0.3 * jax.random.normal(key, shape) for shape in itertools.pairwise(sizes)]
    x = jax.random.normal(key, (clients, 2, 10, 1))
    data = (x, jnp.sin(x + jnp.arange(clients)[:, None, None, None]))

    def loss(p: Any, x: Any, y: Any) -> Any:
        for w in p[:-1]:
            x = jax.nn.relu(x @ w)
        return ((x @ p[-1] - y) ** 2).mean()

    def train(p: Any, task: Any) -> Any:
        (x, x_test), (y, y_test) = task

        def after_step(p: Any) -> Any:
            return loss([w - 0.1 * g for w, g in zip(p, jax.grad(loss)(p, x, y), strict=True)], x_test, y_test)

        return jax.grad(after_step)(p)

    return params, data, train


def evaluation(clients: int) -> tuple[Any, Any, Callable]:
    """Evaluation only: squared errors of one shared network of three layers of 192, 4 batches of 16."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    params = {"layers": 0.07 * jax.random.normal(key, (3, 192, 192)), "out": 0.07 * jax.random.normal(key, (192, 62))}
    inputs = jax.random.normal(key, (clients, 4, 16, 192))
    labels = jax.random.randint(key, (clients, 4, 16), 0, 62)

    def measure(p: Any, data: Any) -> Any:
        def one(total: Any, batch: Any) -> tuple[Any, None]:
            x = batch[0]
            for layer in range(3):
                x = jnp.tanh(x @ p["layers"][layer])
            return total + _cross_entropy(x @ p["out"], batch[1]), None

        total, _ = jax.lax.scan(one, 0.0, data)
        return {"loss": total}

    return params, (inputs, labels), measure


def recommender(clients: int) -> tuple[Any, Any, Callable]:
    """Matrix factorisation: ratings of 500 items, embeddings of 32 numbers gathered and scattered, 4 batches of 32."""
    import jax

    key = jax.random.key(0)
    params = {"items": 0.1 * jax.random.normal(key, (500, 32)), "user": 0.1 * jax.random.normal(key, (32,))}
    items = jax.random.randint(key, (clients, 4, 32), 0, 500)
    ratings = jax.random.normal(key, (clients, 4, 32))

    def loss(p: Any, batch: Any) -> Any:
        chosen, rating = batch
        return ((p["items"][chosen] @ p["user"] - rating) ** 2).mean()

    return params, (items, ratings), local_sgd(loss)


def autoencoder(clients: int) -> tuple[Any, Any, Callable]:
    """An autoencoder 256-64-16-64-256 by Adam, 6 batches of 12."""
    import jax
    import jax.numpy as jnp
    import optax

    key = jax.random.key(0)
    params = [0.1 * jax.random.normal(key, shape) for shape in itertools.pairwise((256, 64, 16, 64, 256))]
    data = jax.random.normal(key, (clients, 6, 12, 256))
    adam = optax.adam(1e-3)

    def loss(p: Any, batch: Any) -> Any:
        x = batch
        for w in p[:-1]:
            x = jnp.tanh(x @ w)
        return ((x @ p[-1] - batch) ** 2).mean()

    def train(p: Any, batches: Any) -> Any:
        def step(carry: Any, batch: Any) -> tuple[Any, None]:
            local, state = carry
            updates, state = adam.update(jax.grad(loss)(local, batch), state)
            return (optax.apply_updates(local, updates), state), None

        (local, _), _ = jax.lax.scan(step, (p, adam.init(p)), batches)
        return jax.tree.map(jnp.subtract, local, p)

    return params, data, train


def ridge(clients: int) -> tuple[Any, Any, Callable]:
    """Ridge regression in closed form: a Cholesky factorisation of 48 × 48 numbers from 200 rows, and its solution."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    params = {"w": jnp.zeros((48, 4))}
    inputs, outputs = jax.random.normal(key, (clients, 200, 48)), jax.random.normal(key, (clients, 200, 4))

    def train(p: Any, data: Any) -> Any:
        x, y = data
        factor = jax.scipy.linalg.cho_factor(x.T @ x / 200 + 0.1 * jnp.eye(48))
        return {"w": jax.scipy.linalg.cho_solve(factor, x.T @ (y - x @ p["w"]) / 200)}

    return params, (inputs, outputs), train


def _cross_entropy(logits: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


MODELS: dict[str, Callable[[int], tuple[Any, Any, Callable]]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "gru": gru,
    "lstm": lstm,
    "resnet": resnet,
    "mlp-bf16": mlp_bf16,
    "transformer": transformer,
    "lora": lora,
    "maml": maml,
    "evaluation": evaluation,
    "recommender": recommender,
    "autoencoder": autoencoder,
    "ridge": ridge,
}


if __name__ == "__main__":
    main()
