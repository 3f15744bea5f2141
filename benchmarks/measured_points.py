"""Programs that this project measured on one attached GPU: points of `benchmarks.predictions`.

    python -m benchmarks.measured_points --out points.json            # on a machine with a GPU; no network
    python -m benchmarks.measured_points --out points.json --only P   # points whose names match

The calls of a run follow one another for a tenth of a second; steps run on their own results. The seconds of a point
are the median over seven runs of the mean time of a call. `measured_points.json` omits points below 60 µs, because the
host determines their time (38 µs per call). S01 and S02 were measured with separate loops: the medians of three runs of
30 calls and of eight runs of 60 calls.
"""

# ruff: noqa: E501 -- one point a line

import argparse
import gc
import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.predictions import BF16, F16, F32, Program, Shape, layer_norm, product
from workbench.inspection import inspect_module

RUN_SECONDS, RUNS = 0.12, 7


@dataclass(frozen=True, slots=True)
class Measured:
    """One program; `fed` leading results are the leading arguments of the next call."""

    id: str
    kind: str
    program: str
    build: Callable[[], Program]
    fed: int = 0


RESULTS = Path(__file__).with_name("measured_points.json")


def kept() -> list[tuple[Measured, float]]:
    """The points with their measured seconds."""
    seconds = json.loads(RESULTS.read_text(encoding="utf-8"))["seconds"]
    return [(point, seconds[point.id]) for point in (*operations(), *steps()) if point.id in seconds]


# ---- single operations


def call(fn: Callable[..., Any], *shapes: tuple[tuple[int, ...], Any]) -> Program:
    return Program(fn, tuple(Shape(shape, dtype) for shape, dtype in shapes))


def precise(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision="highest")


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def scatter(table: jax.Array, rows: jax.Array, updates: jax.Array) -> jax.Array:
    return table.at[rows].add(updates)


def recurrent(w: jax.Array, x: jax.Array) -> jax.Array:
    def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(row + h @ w), None

    return lax.scan(step, jnp.zeros_like(x[0]), x)[0]


def random_bits() -> jax.Array:
    return jax.random.uniform(jax.random.key(0), (2**27,))


def operations() -> list[Measured]:
    square = {"bfloat16": BF16, "float16": F16, "float8": jnp.float8_e4m3fn, "int8": jnp.int8, "float32": F32}
    found = []

    def add(kind: str, program: str, build: Callable[[], Program]) -> None:
        found.append(Measured(f"P{len(found) + 1:02}", kind, program, build))

    for name, size in (("bfloat16", 1024), ("bfloat16", 2048), ("bfloat16", 4096), ("bfloat16", 8192), ("bfloat16", 16384),
                       ("float16", 8192), ("float8", 8192), ("int8", 8192), ("float32", 4096), ("float32", 8192)):  # fmt: skip
        result = {"int8": jnp.int32, "float8": BF16}.get(name)
        add("matrix product", f"{name} {size}³", partial(product, size, size, size, square[name], result))
    add(
        "matrix product",
        "float32 4096³, precision highest",
        partial(call, precise, ((4096, 4096), F32), ((4096, 4096), F32)),
    )
    for m, k, n in ((8, 8192, 8192), (64, 8192, 28672), (512, 4096, 16384), (8192, 4096, 1024)):
        add("matrix product", f"bfloat16 {m}×{k}×{n}", partial(product, m, k, n, BF16))
    batched = partial(jnp.einsum, "bmk,bkn->bmn")
    add(
        "matrix product",
        "bfloat16 128 × 2048×128×2048",
        partial(call, batched, ((128, 2048, 128), BF16), ((128, 128, 2048), BF16)),
    )
    add(
        "matrix product",
        "bfloat16 128 × 2048×2048×128",
        partial(call, batched, ((128, 2048, 2048), BF16), ((128, 2048, 128), BF16)),
    )
    add(
        "matrix product",
        "convolution 3×3 of 128×56×56×64",
        partial(call, convolve, ((128, 56, 56, 64), BF16), ((3, 3, 64, 64), BF16)),
    )
    add(
        "matrix product",
        "convolution 3×3 of 128×14×14×512",
        partial(call, convolve, ((128, 14, 14, 512), BF16), ((3, 3, 512, 512), BF16)),
    )
    for size in (2**24, 2**26, 2**29, 2**32):
        add("memory", f"copy of {size / 1e6:,.0f} MB", partial(call, jnp.copy, ((size // 2,), BF16)))
    add(
        "memory", "sum of two float32 arrays of 1,074 MB each", partial(call, jnp.add, ((2**28,), F32), ((2**28,), F32))
    )
    add("memory", "softmax of 4096×32768", partial(call, partial(jax.nn.softmax, axis=-1), ((4096, 32768), BF16)))
    add("memory", "layer norm of 32768×4096", partial(call, layer_norm, ((32768, 4096), BF16)))
    add("memory", "gelu of 8×2048×12288", partial(call, jax.nn.gelu, ((8, 2048, 12288), BF16)))
    add("memory", "sum of the rows of 65536×8192", partial(call, partial(jnp.sum, axis=1), ((65536, 8192), BF16)))
    add("memory", "sum of the columns of 65536×8192", partial(call, partial(jnp.sum, axis=0), ((65536, 8192), BF16)))
    add("memory", "cumulative sum of 16384×8192", partial(call, partial(jnp.cumsum, axis=1), ((16384, 8192), F32)))
    add(
        "memory",
        "gather of 65,536 rows from 128000×2048",
        partial(call, lambda t, i: t[i], ((128000, 2048), BF16), ((65536,), jnp.int32)),
    )
    add(
        "memory",
        "scatter-add of 65,536 rows into 128000×2048",
        partial(call, scatter, ((128000, 2048), F32), ((65536,), jnp.int32), ((65536, 2048), F32)),
    )
    add("memory", "sort of 16,777,216 numbers", partial(call, jnp.sort, ((2**24,), F32)))
    add(
        "memory",
        "top 8 in each row of 8192×32768",
        partial(call, lambda x: lax.top_k(x, 8), ((8192, 32768), F32)),
    )
    add("memory", "134,217,728 random numbers", partial(call, random_bits))
    add("layout", "transpose of 16384×16384", partial(call, lambda x: jnp.copy(x.T), ((16384, 16384), BF16)))
    add(
        "layout",
        "transpose of length and heads, 16×2048×32×128",
        partial(call, lambda x: jnp.copy(x.transpose(0, 2, 1, 3)), ((16, 2048, 32, 128), BF16)),
    )
    add(
        "layout",
        "reversal of the minor dimension, 16384×16384",
        partial(call, lambda x: lax.rev(x, (1,)), ((16384, 16384), F32)),
    )
    add(
        "layout",
        "reversal of the major dimension, 16384×16384",
        partial(call, lambda x: lax.rev(x, (0,)), ((16384, 16384), F32)),
    )
    heads = ((8, 2048, 16, 128), BF16)
    add("attention", "attention of 8×2048×16×128", partial(call, attention, heads, heads, heads))
    add(
        "loop",
        "recurrent layer of 512 steps, 256×1024",
        partial(call, recurrent, ((1024, 1024), BF16), ((512, 256, 1024), BF16)),
    )
    return found  # fmt: skip


# ---- steps


def language_model(layers: int, width: int, batch: int, length: int, vocabulary: int) -> Program:
    """A step of AdamW of a decoder with unrolled layers and a tied embedding, in bfloat16."""
    import optax

    heads, optimizer = width // 64, optax.adamw(1e-3)
    shapes = {"qkv": (width, 3 * width), "o": (width, width), "up": (width, 4 * width), "down": (4 * width, width),
              "norms": (2, width)}  # fmt: skip
    layer = {name: Shape(shape, F32) for name, shape in shapes.items()}
    params = {"layers": [layer] * layers, "embedding": Shape((vocabulary, width), F32)}

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        wide = x.astype(F32)
        return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)

    def block(x: jax.Array, w: Any) -> jax.Array:
        w = jax.tree.map(lambda each: each.astype(BF16), w)
        q, k, v = jnp.split(norm(x, w["norms"][0]) @ w["qkv"], 3, -1)
        q, k, v = (each.reshape(*each.shape[:2], heads, -1) for each in (q, k, v))
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["o"]
        return x + jax.nn.gelu(norm(x, w["norms"][1]) @ w["up"]) @ w["down"]

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        table = params["embedding"].astype(BF16)
        x = table[tokens]
        for w in params["layers"]:
            x = block(x, w)
        logits = (x @ table.T).astype(F32)
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    def step(params: Any, state: Any, tokens: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    tokens = Shape((batch, length), jnp.int32)
    return Program(jax.jit(step, donate_argnums=(0, 1)), (params, jax.eval_shape(optimizer.init, params), tokens))


def steps() -> list[Measured]:
    return [
        Measured(
            "S01",
            "training step",
            "decoder, 2 layers of 512, 8×512 tokens",
            partial(language_model, 2, 512, 8, 512, 8192),
            2,
        ),
        Measured(
            "S02",
            "training step",
            "decoder, 4 layers of 768, 8×1024 tokens",
            partial(language_model, 4, 768, 8, 1024, 16384),
            2,
        ),
    ]


# ---- runs


def filled(leaf: Any) -> jax.Array:
    """Random numbers of a shape: equal bits draw less power, so that chips run faster on zeros."""
    key = jax.random.key(np.prod(leaf.shape, dtype=np.int64) % 9973)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.jit(
            lambda: (0.02 * jax.random.normal(key, leaf.shape, BF16 if leaf.dtype.itemsize < 4 else F32)).astype(
                leaf.dtype
            )
        )()
    high = 100 if leaf.dtype == jnp.int8 else 30000
    return jax.jit(lambda: jax.random.randint(key, leaf.shape, 0, high, jnp.int32).astype(leaf.dtype))()


def measure(point: Measured) -> dict[str, Any]:
    """Compiles and runs one point on the first device."""
    device, program = jax.devices()[0], point.build()
    shapes = jax.tree.map(lambda x: Shape(x.shape, x.dtype), program.args)
    fn: Any = program.fn if hasattr(program.fn, "lower") else jax.jit(program.fn)
    begin = time.monotonic()
    compiled = fn.lower(*shapes).compile()
    found: dict[str, Any] = {"program": point.program, "compiled_in": round(time.monotonic() - begin, 1)}
    found["planned_bytes"] = inspect_module(compiled).memory.peak_bytes
    state = range(1, point.fed)  # moments of an optimizer are not negative
    args = [
        jax.tree.map(lambda x, place=place: abs(filled(x)) if place in state else filled(x), arg)
        for place, arg in enumerate(shapes)
    ]
    jax.block_until_ready(args)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(args))
    stats = device.memory_stats() or {}
    before, at_rest = stats.get("peak_bytes_in_use", 0), stats.get("bytes_in_use", 0)

    def run(count: int) -> float:
        nonlocal args
        result: Any = None
        began = time.perf_counter()
        for _ in range(count):
            result = compiled(*args)
            if point.fed:
                args = [*result[: point.fed], *args[point.fed :]]
        jax.block_until_ready(result)
        return (time.perf_counter() - began) / count

    run(1)
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    found["peak_bytes"] = peak - at_rest + held if peak > before else None
    count = max(2, min(2000, int(RUN_SECONDS / max(run(2), run(2), 1e-6))))
    walls = [run(count) for _ in range(RUNS)]
    low, middle, high = statistics.quantiles(walls, n=4, method="inclusive")
    return found | {"seconds": middle, "quartiles": [low, high], "calls": count * RUNS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--only", default="", help="regular expression for names of points")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no point after this number of seconds")
    given = parser.parse_args()
    begin, device = time.monotonic(), jax.devices()[0]
    results: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__, "points": {}}
    for point in (*operations(), *steps()):
        if not re.match(given.only, point.id) or time.monotonic() - begin > given.seconds:
            continue
        try:
            found = measure(point)
        except Exception as error:  # the next points are measured all the same
            found = {"program": point.program, "error": f"{type(error).__name__}: {str(error)[:300]}"}
        results["points"][point.id] = found
        print(f"{time.monotonic() - begin:5.0f} s  {point.id}: {found}", flush=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        gc.collect()


if __name__ == "__main__":
    main()
