"""Predicted seconds compared with published measurements, for programs compiled for chips that are not attached.

    python -m benchmarks.predictions                # every point without a result, then the table and the plot
    python -m benchmarks.predictions O012 C018      # only these points, again
    python -m benchmarks.predictions --print        # prints the table; does not write the page and the plot

Points are programs with published seconds. The programs are rebuilt with shapes, compiled by `wb.inspect(fn,
on=target)`, and priced. `benchmarks/predictions.json` stores the results, so the command can resume. For every kind and
chip, each second point may be used to fit `workbench/cost/_rates.py`; the other points only evaluate the fit. Needs the
extras `tpu-aot` and `gpu-aot`; points without their compiler are omitted.
"""

# ruff: noqa: E501 -- one point a line

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.cost import family_of, known_chip
from workbench.render.units import share_text

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).with_name("predictions.json")
PAGE = DOCS / "predictions.md"
PLOT = DOCS / "predictions.png"
BEGIN, END = "<!-- table: made by benchmarks/predictions.py -->", "<!-- end of the table -->"
BEGIN_MEMORY, END_MEMORY = "<!-- memory: made by benchmarks/predictions.py -->", "<!-- end of memory -->"
Shape = jax.ShapeDtypeStruct
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


@dataclass(frozen=True, slots=True)
class Program:
    """A call that is compiled: `fn(*args)` on a mesh."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: AbstractMesh | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One published measurement."""

    id: str
    kind: str  # matrix product, memory, layout, collective, training step
    chip: str  # of the table, with the network where it has several hosts
    target: str
    seconds: float  # measured
    build: Callable[[], Program]
    program: str
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """One published statement about memory."""

    id: str
    target: str
    build: Callable[[], Program]
    program: str
    source: str
    measured: float  # bytes
    part: str  # of `MemoryRecord`, without "_bytes"
    ran: bool | None = None  # None where nothing was run


LLMCOMPASS = "PrincetonUniversity/LLMCompass@2e015fd2"
STAS = "stas00/ml-engineering@744d01e1"
MICRO = "AI-Hypercomputer/accelerator-microbenchmarks"
OWN = "measured for this page"
MAXTEXT = "AI-Hypercomputer/maxtext@e591f30c"


# ---- programs


def product(m: int, k: int, n: int, dtype: Any, result: Any = None) -> Program:
    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.dot(x, y, preferred_element_type=result or dtype)

    return Program(multiply, (Shape((m, k), dtype), Shape((k, n), dtype)))


def copied(size: int) -> Program:
    return Program(jnp.copy, (Shape((size // 2,), BF16),))


def elementwise(fn: Callable[[jax.Array], jax.Array], *shape: int) -> Program:
    return Program(fn, (Shape(shape, F16),))


def layer_norm(x: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    mean, variance = jnp.mean(wide, -1, keepdims=True), jnp.var(wide, -1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-5)).astype(x.dtype)


def mesh_of(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def sent(kind: str, length: int, dtype: Any, group: str = "x", **axes: int) -> Program:
    """A collective over one axis; `length` is the length of one device's operand."""
    mesh = mesh_of(**axes)
    count = axes[group]

    def body(x: jax.Array) -> jax.Array:
        if kind == "all-reduce":
            return lax.psum(x, group)
        if kind == "all-gather":
            return lax.all_gather(x, group, tiled=True)
        if kind == "reduce-scatter":
            return lax.psum_scatter(x, group, tiled=True)
        return lax.ppermute(x, group, [(i, (i + 1) % count) for i in range(count)])

    spec = P(tuple(axes))
    out = spec
    fn = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    whole = Shape((length * math.prod(axes.values()),), dtype, sharding=NamedSharding(mesh, spec))
    return Program(fn, (whole,), mesh)


def bus(kind: str, size: float, count: int, gigabytes: float) -> float:
    """Seconds that follow from the bus bandwidth of nccl-tests, for `size` bytes in the largest buffer."""
    share = 2 * (count - 1) / count if kind == "all-reduce" else (count - 1) / count
    return size * share / gigabytes / 1e9


def fused_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention as kernels of stated FLOPs, as published TPU steps use it; arguments are [batch, head, length, size].

    The kernels below are stand-ins: they have the operands and results of a fused kernel and state its work, and compute
    nothing of use. A compiled module shows no more of a real kernel. Blocks above the diagonal are left out.
    """
    block = 512
    batch, heads, length, size = q.shape
    product = batch * heads * length * length * size  # FLOPs of one product of two matrices, half of its blocks

    def call(results: tuple[Shape, ...], products: int, *operands: jax.Array) -> Any:
        def kernel(*refs: Any) -> None:
            total = sum(ref[...].astype(F32)[0, 0, :1, :1] for ref in refs[: len(operands)])
            for ref in refs[len(operands) :]:
                ref[...] = jnp.broadcast_to(total, ref.shape).astype(ref.dtype)

        def spec(value: Any) -> pl.BlockSpec:
            flat = value.shape[2] == 1
            shape = (1, 1, 1, block) if flat else (1, 1, block, value.shape[3])
            return pl.BlockSpec(shape, (lambda b, h, i: (b, h, 0, i)) if flat else (lambda b, h, i: (b, h, i, 0)))

        moved = sum(math.prod(value.shape) * value.dtype.itemsize for value in (*operands, *results))
        return pl.pallas_call(
            kernel, out_shape=results, grid=(batch, heads, length // block), in_specs=[spec(x) for x in operands],
            out_specs=tuple(spec(x) for x in results),
            cost_estimate=pl.CostEstimate(flops=products * product, bytes_accessed=moved, transcendentals=0),
        )(*operands)  # fmt: skip

    like, sums = Shape(q.shape, q.dtype), Shape((batch, heads, 1, length), F32)

    @jax.custom_vjp
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return call((like, sums), 2, q, k, v)[0]

    def forward(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        result, logsumexp = call((like, sums), 2, q, k, v)
        return result, (q, k, v, result, logsumexp)

    def backward(kept: Any, change: jax.Array) -> Any:  # two kernels, each of which computes the scores again
        by_q = call((like,), 3, *kept, change)
        return (*by_q, *call((like, like), 4, *kept, change))

    attention.defvjp(forward, backward)
    return attention(q, k, v)


def decoder_step(
    *, width: int, heads: int, kv_heads: int, hidden: int, layers: int, vocabulary: int, length: int, batch: int,
    remat: str, fsdp: int, tensor: int = 1, fused: bool = True, moment: Any = F32, flags: dict[str, Any] | None = None,
) -> Program:  # fmt: skip
    """A MaxText-like decoder: RMS norm, attention, SwiGLU, scanned layers, AdamW in float32, `batch` a device.

    `remat` says what the backward pass keeps: "full" a layer's input, "minimal" products too, "context" the input, the
    attention's operands and its result. `moment` is the dtype of Adam's first moment; `flags` go to the compiler.
    """
    size = width // heads if kv_heads == heads else 128
    mesh = mesh_of(fsdp=fsdp, tensor=tensor)

    def spread(*spec: str | None, shape: tuple[int, ...], dtype: Any = F32) -> Shape:
        return Shape(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    weights = {
        "q": spread(None, "fsdp", "tensor", None, shape=(layers, width, heads, size)),
        "k": spread(None, "fsdp", "tensor", None, shape=(layers, width, kv_heads, size)),
        "v": spread(None, "fsdp", "tensor", None, shape=(layers, width, kv_heads, size)),
        "o": spread(None, "tensor", None, "fsdp", shape=(layers, heads, size, width)),
        "gate": spread(None, "fsdp", "tensor", shape=(layers, width, hidden)),
        "up": spread(None, "fsdp", "tensor", shape=(layers, width, hidden)),
        "down": spread(None, "tensor", "fsdp", shape=(layers, hidden, width)),
        "norms": spread(None, None, "fsdp", shape=(layers, 2, width)),
    }
    ends = {
        "embedding": spread("tensor", "fsdp", shape=(vocabulary, width)),
        "head": spread("fsdp", "tensor", shape=(width, vocabulary)),
    }
    params = {"layers": weights, "ends": ends}
    tokens = spread("fsdp", None, shape=(batch * fsdp * tensor, length), dtype=jnp.int32)

    def constrained(x: jax.Array, *spec: str | None) -> jax.Array:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        wide = x.astype(F32)
        return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(BF16)

    def named(x: jax.Array) -> jax.Array:
        return checkpoint_name(x, "context") if remat == "context" else x

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        n = w["norms"]
        w = {name: value.astype(BF16) for name, value in w.items() if name != "norms"}
        h = norm(x, n[0])
        q, k, v = (jnp.einsum("bld,dhk->blhk", h, w[name]) for name in "qkv")
        q, k, v = (named(each) for each in (q, k, v))
        k, v = (jnp.repeat(each, heads // kv_heads, 2) for each in (k, v))
        if fused:
            spec = P("fsdp", "tensor", None, None)
            each = jax.shard_map(fused_attention, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
            mixed = each(*(jnp.moveaxis(x, 2, 1) for x in (q, k, v)))
            mixed = jnp.moveaxis(mixed, 1, 2)
        else:
            scores = jnp.einsum("bqhk,bshk->bhqs", q, k, preferred_element_type=F32) / size**0.5
            mask = jnp.tril(jnp.ones((length, length), bool))
            shares = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1).astype(BF16)
            mixed = jnp.einsum("bhqs,bshk->bqhk", shares, v)
        x += jnp.einsum("blhk,hkd->bld", named(mixed), w["o"])
        x = constrained(x, "fsdp", None, "tensor")
        h = norm(x, n[1])
        x += (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
        return constrained(x, "fsdp", None, "tensor"), None

    policies = {
        "full": jax.checkpoint_policies.nothing_saveable,
        "minimal": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "context": jax.checkpoint_policies.save_only_these_names("context"),
    }

    def loss(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
        x = constrained(params["ends"]["embedding"].astype(BF16)[tokens], "fsdp", None, "tensor")
        x, _ = lax.scan(jax.checkpoint(layer, policy=policies[remat]), x, params["layers"])
        logits = (x @ params["ends"]["head"].astype(BF16)).astype(F32)
        logits = constrained(logits, "fsdp", None, "tensor")
        picked = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def step(params: Any, first: Any, second: Any, tokens: jax.Array) -> Any:
        gradient = jax.grad(loss)(params, tokens)
        first = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g).astype(moment), first, gradient)
        second = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, second, gradient)
        params = jax.tree.map(lambda p, m, v: p - 1e-4 * (m * lax.rsqrt(v + 1e-8) + 0.1 * p), params, first, second)
        return params, first, second

    first = jax.tree.map(lambda x: Shape(x.shape, moment, sharding=x.sharding), params)
    compiled = jax.jit(step, donate_argnums=(0, 1, 2), compiler_options=flags)
    return Program(compiled, (params, first, params, tokens), mesh)


def maxtext(scale: tuple[int, int, int, int], batch: int, **options: Any) -> Program:
    width, heads, hidden, layers = scale
    return decoder_step(
        width=width, heads=heads, kv_heads=heads, hidden=hidden, layers=layers, vocabulary=32000, length=2048,
        batch=batch, **options,
    )  # fmt: skip


# Options of the compiler that the published steps of MaxText were run with, on v5e and on v5p.
_V5E = {
    f"xla_{name}": True
    for name in (
        "tpu_enable_data_parallel_all_reduce_opt", "tpu_data_parallel_opt_different_sized_ops",
        "tpu_enable_async_collective_fusion", "tpu_enable_async_collective_fusion_fuse_all_gather",
        "tpu_enable_async_collective_fusion_multiple_steps", "tpu_overlap_compute_collective_tc",
        "enable_async_all_gather",
    )
}  # fmt: skip
_V5P = _V5E | {
    "xla_tpu_megacore_fusion_allow_ags": False,
    "xla_enable_async_collective_permute": True,
    "xla_tpu_enable_ag_backward_pipelining": True,
}


# ---- points


def points() -> list[Point]:
    found: list[Point] = []

    def add(id: str, kind: str, chip: str, target: str, seconds: float, build: Any, program: str, source: str) -> None:
        found.append(Point(id, kind, chip, target, seconds, build, program, source))

    for id, size, tera in (
        ("O001", 128, 2.58996),
        ("O005", 2048, 679.285),
        ("O006", 4096, 892.945),
        ("O007", 16384, 950.129),
    ):
        add(id, "matrix product", "tpu7x", "tpu7x:1x1x1", 2 * size**3 / tera / 1e12, partial(product, size, size, size, BF16),
            f"bfloat16 {size}³", MICRO)  # fmt: skip
    for id, size, ms in (("O012", 4096, 0.82729), ("O013", 8192, 6.047148), ("O014", 16384, 46.953)):
        add(id, "matrix product", "v5e", "v5e:1x1", ms / 1e3, partial(product, size, size, size, BF16),
            f"bfloat16 {size}³, host time", "jax-ml/jax docs/pallas/tpu/matmul")  # fmt: skip
    for id, m, k, n, ms in (
        ("O020", 64, 12288, 12288, 0.19), ("O023", 4096, 12288, 12288, 4.4576), ("O024", 16384, 12288, 12288, 17.0307),
        ("O027", 8192, 4096, 4096, 1.021), ("O045", 16384, 12288, 9216, 13.7218), ("O049", 16384, 12288, 12288, 17.4643),
        ("O050", 16384, 12288, 12288, 17.4856), ("O054", 8, 12288, 9216, 0.21243), ("O058", 8, 12288, 12288, 0.18597),
        ("O059", 8, 12288, 12288, 0.18609),
    ):  # fmt: skip
        add(
            id,
            "matrix product",
            "A100",
            "a100:1",
            ms / 1e3,
            partial(product, m, k, n, F16),
            f"float16 {m}×{k}×{n}",
            LLMCOMPASS,
        )
    add("O033", "matrix product", "B200", "b200:1", 2 * 1792 * 16128 * 3072 / 1745e12, partial(product, 1792, 3072, 16128, BF16),
        "bfloat16 1792×16128×3072, best of a sweep", STAS)  # fmt: skip
    add("O035", "matrix product", "H100", "h100:1", 2 * 1024 * 9216 * 14336 / 1402.6e12,
        partial(product, 1024, 14336, 9216, jnp.float8_e4m3fn, BF16), "float8 1024×9216×14336, best of a sweep", STAS)  # fmt: skip
    add("O039", "matrix product", "B200", "b200:1", 2 * 4096 * 4096 * 8192 / (0.6338 * 2250e12), partial(product, 4096, 8192, 4096, F16),
        "float16 4096×4096×8192", "jax-ml/jax docs/pallas/gpu")  # fmt: skip
    add("O042", "matrix product", "A100 40GB", "a100:1", 731e-6, lambda: Program(
        lambda q, k: jnp.einsum("bqc,bkc->bqk", q, k), (Shape((1536, 384, 16), BF16), Shape((1536, 384, 16), BF16))),
        "1,536 thin products of 384×16×384", "jax-ml/jax issue")  # fmt: skip
    batched = Shape((8, 24, 2048, 128), F16)
    add("O046", "matrix product", "A100", "a100:1", 1.8811e-3, lambda: Program(
        lambda q, k: jnp.einsum("bhqc,bhkc->bhqk", q, k), (batched, batched)), "float16 192 × 2048×128×2048", LLMCOMPASS)  # fmt: skip
    add("O047", "matrix product", "A100", "a100:1", 1.1832e-3, lambda: Program(
        lambda a, v: jnp.einsum("bhqk,bhkc->bhqc", a, v), (Shape((8, 24, 2048, 2048), F16), batched)),
        "float16 192 × 2048×2048×128", LLMCOMPASS)  # fmt: skip

    for id, size, rate in (
        ("B001", 2097152, 1379.335), ("B005", 33554432, 3009.836), ("B006", 67108864, 3097.218), ("B008", 536870912, 3199.02),
        ("B009", 1073741824, 3198.414), ("B010", 8589934592, 3210.481),
    ):  # fmt: skip
        add(
            id,
            "memory",
            "tpu7x",
            "tpu7x:1x1x1",
            2 * size / rate / 1e9,
            partial(copied, size),
            f"copy of {size / 1e6:,.0f} MB",
            MICRO,
        )
    add("B011", "memory", "v6e", "v6e:1x1", 49.359414e-6, partial(copied, 33554432), "copy of 34 MB", MICRO)
    softmax = partial(jax.nn.softmax, axis=-1)
    gelu = partial(jax.nn.gelu, approximate=True)
    for id, fn, shape, seconds, name in (
        ("B014", softmax, (4096, 32768), 4096 * 32768 / 240.8857e9, "softmax of 4096×32768"),
        ("B016", layer_norm, (32768, 4096), 32768 * 4096 / 385.8464e9, "layer norm of 32768×4096"),
        ("O051", softmax, (8, 24, 2048, 2048), 2.8015e-3, "softmax of 8×24×2048×2048"),
        ("O052", layer_norm, (8, 2048, 12288), 0.6816e-3, "layer norm of 8×2048×12288"),
        ("O053", gelu, (8, 2048, 12288), 0.5243e-3, "gelu of 8×2048×12288"),
    ):
        add(id, "memory", "A100", "a100:1", seconds, partial(elementwise, fn, *shape), name, LLMCOMPASS)
    add("O061", "layout", "H100", "h100:1", 1 / 1400, lambda: Program(
        lambda x: x[..., ::-1] + 1, (Shape((32, 64, 16, 16, 8, 31), F32),)), "reversal of the minor dimension",
        "jax-ml/jax issue")  # fmt: skip

    for id, target, rows, rate in (
        ("C001", "2x2x1", 64, 71.7703), ("C004", "2x2x1", 4096, 174.7655), ("C005", "2x2x1", 16384, 178.7714),
        ("C006", "2x2x2", 64, 69.5321), ("C007", "2x2x2", 1024, 162.0864), ("C008", "2x2x2", 16384, 178.7593),
    ):  # fmt: skip
        size = rows * 8 * 128 * 4
        chips = math.prod(map(int, target.split("x")))
        axes = {"pairs": chips // 4, "x": 4, "core": 2} if chips > 4 else {"x": 4, "core": 2}
        # per chip and both of its groups: the three operands that come in, twice
        add(id, "collective", "tpu7x", f"tpu7x:{target}", 2 * 3 * size / rate / 1e9,
            partial(sent, "all-gather", size // 4, F32, **axes), f"all-gather of {size / 1e6:,.2f} MB over 4", MICRO)  # fmt: skip
    add(
        "C010",
        "collective",
        "v5p",
        "v5p:2x2x1",
        781.98e-6,
        partial(sent, "permute", 2**25, BF16, x=4),
        "permute of 64 MiB",
        "jax-ml/jax issue",
    )
    add(
        "C014",
        "collective",
        "v5p",
        "v5p:2x2x1",
        5e-6,
        partial(sent, "permute", 2**11, BF16, x=4),
        "permute of 4 KiB",
        "jax-ml/jax issue",
    )
    add(
        "C015",
        "collective",
        "H100",
        "h100:8",
        4.06e-3,
        partial(sent, "all-reduce", 2**28, F32, x=8),
        "all-reduce of 1 GiB over 8",
        STAS,
    )
    add("C017", "collective", "H100", "h100:8", 1.5e-3, partial(sent, "all-gather", 4096 * 65536 // 8, BF16, x=8),
        "all-gather of 536 MB over 8",
        "scaling book, gpus.md")  # fmt: skip
    for id, size, us in (
        ("C020", 2**15, 43.83),
        ("C024", 2**26, 684.6),
        ("C025", 2**28, 2420.6),
        ("C026", 2**30, 8203.9),
        ("C027", 2**32, 32136),
    ):
        add(id, "collective", "A100", "a100:8", us / 1e6, partial(sent, "all-reduce", size // 4, F32, x=8),
            f"all-reduce of {size / 2**20:,g} MiB over 8", LLMCOMPASS)  # fmt: skip
    for id, size, us in (
        ("C053", 2**16, 22.93),
        ("C054", 2**20, 60.75),
        ("C057", 2**28, 1883.7),
        ("C059", 2**34, 110277),
    ):
        add(id, "collective", "A100", "a100:4", us / 1e6, partial(sent, "all-reduce", size // 4, F32, x=4),
            f"all-reduce of {size / 2**20:,g} MiB over 4", LLMCOMPASS)  # fmt: skip
    for id, size, rate in (("C029", 2**20, 39.93), ("C030", 2**24, 219.89), ("C031", 2**26, 346.51),
                           ("C032", 2**28, 436.15), ("C033", 2**30, 463.58), ("C034", 2**34, 482.26)):  # fmt: skip
        add(id, "collective", "H200", "h200:8", bus("all-reduce", size, 8, rate), partial(sent, "all-reduce", size // 4, F32, x=8),
            f"all-reduce of {size / 2**20:,g} MiB over 8", STAS)  # fmt: skip
    add("C037", "collective", "H200", "h200:8", bus("all-gather", 2**34, 8, 361.4), partial(sent, "all-gather", 2**32 // 8, F32, x=8),
        "all-gather of 16 GiB over 8", STAS)  # fmt: skip
    add("C038", "collective", "H200", "h200:8", bus("reduce-scatter", 2**34, 8, 362.9), partial(sent, "reduce-scatter", 2**32, F32, x=8),
        "reduce-scatter of 16 GiB over 8", STAS)  # fmt: skip
    for id, size, rate in (("C041", 2**24, 254.96), ("C043", 2**26, 400.6), ("C049", 2**32, 740.64)):
        add(id, "collective", "B200", "b200:8", bus("all-reduce", size, 8, rate), partial(sent, "all-reduce", size // 4, F32, x=8),
            f"all-reduce of {size / 2**20:,g} MiB over 8", STAS)  # fmt: skip
    for id, size, rate in (("C046", 2**28, 229.09), ("C052", 2**34, 381.8)):
        add(id, "collective", "B200@8x400G", "b200:4x8", bus("all-reduce", size, 32, rate),
            partial(sent, "all-reduce", size // 4, F32, x=32),
            f"all-reduce of {size / 2**20:,g} MiB over 4 hosts of 8", STAS)  # fmt: skip
    add("C072", "collective", "H200@efa-p5", "h200:4x8", bus("all-reduce", 2**32, 32, 364.87),
        partial(sent, "all-reduce", 2**30, F32, x=32),
        "all-reduce of 4 GiB over 4 hosts of 8", STAS)  # fmt: skip

    # Steps of MaxText, with its fused attention on TPUs and its activations sharded over the tensor axis.
    small, large = (8192, 64, 28672, 32), (8192, 64, 28672, 64)
    add(
        "T002",
        "training step",
        "v5e",
        "v5e:16x16",
        12.09,
        partial(maxtext, small, 4, remat="full", fsdp=256, flags=_V5E),
        "decoder of 32B, FSDP 256",
        MAXTEXT,
    )
    add(
        "T003",
        "training step",
        "v5e",
        "v5e:16x16",
        13.47,
        partial(maxtext, large, 2, remat="full", fsdp=256, flags=_V5E),
        "decoder of 64B, FSDP 256",
        MAXTEXT,
    )
    add("T011", "training step", "v5p", "v5p:4x4x4", 7.30, partial(maxtext, small, 6, remat="minimal", fsdp=16, tensor=4, flags=_V5P),
        "decoder of 32B, FSDP 16 × tensor 4", MAXTEXT)  # fmt: skip
    add("T012", "training step", "v5p", "v5p:4x4x4", 7.38, partial(maxtext, large, 3, remat="minimal", fsdp=16, tensor=4, flags=_V5P),
        "decoder of 64B, FSDP 16 × tensor 4", MAXTEXT)  # fmt: skip
    add("T022", "training step", "tpu7x", "tpu7x:4x4x4", 12.2, partial(decoder_step, width=8192, heads=64, kv_heads=8, hidden=28672,
        layers=80, vocabulary=128256, length=8192, batch=2, remat="context", fsdp=128, moment=BF16),
        "Llama-3.1-70B, FSDP 128", "AI-Hypercomputer/tpu-recipes@c8cfe2f6")  # fmt: skip
    add("T068", "training step", "H100", "h100:8", 0.721, partial(decoder_step, width=4096, heads=32, kv_heads=32, hidden=11008,
        layers=32, vocabulary=32000, length=4096, batch=2, remat="minimal", fsdp=8, fused=False),
        "Llama-2-7B, FSDP 8", MAXTEXT)  # fmt: skip
    from benchmarks.measured_points import kept  # which takes programs from here

    for point, seconds in kept():
        add(point.id, point.kind, "H200", "h200:1", seconds, point.build, point.program, OWN)
    return found


def fitted(all_points: Iterable[Point]) -> set[str]:
    """The points for fitting rates: each second point of a kind and chip, by name; no training steps."""
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for point in sorted(all_points, key=lambda point: point.id):
        if point.kind == "training step":  # all of them judge
            continue
        groups[point.kind, point.chip].append(point.id)
    return {id for ids in groups.values() for id in ids[1::2]}


# ---- memory

GIB = 2.0**30


def convolution() -> Program:
    """Two channels, in tiles of 128: most of the memory is padding."""

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        dimensions = ("NDHWC", "DHWIO", "NDHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1, 1), ((1, 1), (1, 1), (0, 0)), dimension_numbers=dimensions)

    return Program(convolve, (Shape((1, 8, 2176, 1056, 2), F32), Shape((3, 3, 1, 2, 1), F32)))


def residuals() -> Program:
    """Values that a dense layer keeps for its backward pass: the leaves of the function that `jax.vjp` returns."""

    def kept(x: jax.Array, w: jax.Array) -> Any:
        return jax.vjp(jnp.dot, x, w)[1]

    return Program(kept, (Shape((1024, 1024), BF16), Shape((1024, 1024), BF16)))


def gemma_7b() -> Program:
    """One forward pass of Gemma 7B, without attention's scores: 28 layers, 16 heads of 256, in bfloat16."""
    width, hidden, layers, inner, vocabulary = 3072, 24576, 28, 16 * 256, 256_000
    params = {
        "embedding": Shape((vocabulary, width), BF16),
        "layers": {
            "qkv": Shape((layers, width, 3 * inner), BF16), "out": Shape((layers, inner, width), BF16),
            "gate": Shape((layers, width, hidden), BF16), "up": Shape((layers, width, hidden), BF16),
            "down": Shape((layers, hidden, width), BF16), "norms": Shape((layers, 2, width), BF16),
        },
        "norm": Shape((width,), BF16),
    }  # fmt: skip

    def forward(params: Any, tokens: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            value = (x * w["norms"][0] @ w["qkv"])[:, -inner:]
            x = x + value @ w["out"]
            y = x * w["norms"][1]
            return x + (jax.nn.gelu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

        x, _ = lax.scan(layer, params["embedding"][tokens], params["layers"])
        return (x * params["norm"]) @ params["embedding"].T

    return Program(forward, (params, Shape((1024,), jnp.int32)))


def llama_70b() -> Program:
    """Llama 2 70B with int8 weights on 8 chips after loading: bfloat16 embedding and norms, float32 scales."""
    width, hidden, layers, kv, vocabulary = 8192, 28672, 80, 8 * 128, 32_000
    mesh = mesh_of(tensor=8)

    def spread(shape: tuple[int, ...], axis: int | None, dtype: Any = jnp.int8) -> Shape:
        spec = ["tensor" if each == axis else None for each in range(len(shape))]
        return Shape(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    outputs = {"q": width, "k": kv, "v": kv, "gate": hidden, "up": hidden}
    params = {name: spread((layers, width, n), 2) for name, n in outputs.items()}
    params |= {f"{name} scale": spread((layers, n), 1, F32) for name, n in outputs.items()}
    params |= {"o": spread((layers, width, width), 1), "down": spread((layers, hidden, width), 1)}
    params |= {f"{name} scale": spread((layers, width), None, F32) for name in ("o", "down")}
    params |= {"head": spread((width, vocabulary), 1), "head scale": spread((vocabulary,), 0, F32)}
    params |= {"embedding": spread((vocabulary, width), 1, BF16), "norms": spread((2 * layers + 1, width), None, BF16)}
    return Program(lambda params: jax.tree.map(lambda x: x.ravel()[0], params), (params,), mesh)


FLAX, EASYDEL = "google/flax issue 1733", "erfanzar/EasyDeL issue 142"
MEMORY = (
    Memory("M008", "v3:2x2", convolution, "convolution with 2 channels, program", FLAX, 10.96 * GIB, "temporary"),
    Memory("M011", "v3:2x2", gemma_7b, "Gemma 7B for inference, arguments", EASYDEL, 15.90 * GIB, "argument", ran=False),
    Memory("M007", "v6e:2x4", llama_70b, "Llama 2 70B in int8 over 8 chips, loaded", "AI-Hypercomputer/JetStream@acd4f5ad",
           8.1 * GIB, "argument", ran=True),
    Memory("M013", "h100:1", residuals, "residuals of a dense layer, 1024³ bfloat16", "NVIDIA/TransformerEngine@d0067d0d",
           4.0 * 2**20, "output"),
)  # fmt: skip


# ---- runs


def predict(point: Point) -> dict[str, Any]:
    """Compiles one point and prices it."""
    program, begin = point.build(), time.monotonic()
    # The target without its mesh, where a program names none: one device.
    on = (point.target, point.chip) if program.mesh is None else (point.target, point.chip, program.mesh)
    record = wb.inspect(program.fn, on=on)(*program.args)
    cost = record.cost
    assert cost is not None
    memory = None if record.module is None else record.module.memory.peak_bytes
    alone = point.kind == "collective"  # as it was measured, without the copy of an operand that is not given away
    return {
        "predicted": sum(stage.collective_seconds or 0.0 for stage in cost.stages) if alone else cost.seconds,
        "collectives": sum(stage.collective_seconds or 0.0 for stage in cost.stages),
        "hidden": sum(stage.hidden_seconds for stage in cost.stages),
        "peak_bytes": memory,
        "compiled_in": round(time.monotonic() - begin, 1),
    }


def run(names: list[str]) -> dict[str, dict[str, Any]]:
    """Predicts the named points, or all points without a result; stores each result immediately."""
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for point in points():
        if point.id not in names and (names or "predicted" in results.get(point.id, {})):
            continue
        print(point.id, point.program, "…", flush=True)
        try:
            results[point.id] = predict(point)
        except wb.errors.WorkbenchError as error:
            results[point.id] = {"error": str(error).split(". ")[0][:160]}
        print("  ", results[point.id], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    for point in MEMORY:
        if point.id in names or (not names and "bytes" not in results.get(point.id, {})):
            results[point.id] = remembered(point)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return results


def remembered(point: Memory) -> dict[str, Any]:
    """The predicted bytes of a point, and whether the point fits."""
    program = point.build()
    on = point.target if program.mesh is None else (point.target, program.mesh)
    record = wb.inspect(program.fn, on=on)(*program.args)
    assert record.module is not None
    assert record.inputs is not None
    size = getattr(record.module.memory, f"{point.part}_bytes")
    if size is None and point.part == "argument":  # the compiler gave up; the placement of the arguments is known
        size = record.inputs.bytes_per_device
    return {"bytes": size, "fits": record.module.memory.fits}


def memory_table(results: dict[str, dict[str, Any]]) -> str:
    """Predicted and published bytes, and the programs that fit."""
    lines = [
        "| point | program | chip | published memory | predicted / published memory, or predicted memory "
        "| the program ran | predicted to fit | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    said = {True: "yes", False: "no", None: ""}
    for point in MEMORY:
        if "bytes" not in (found := results.get(point.id, {})):
            continue
        size = f"{point.measured / GIB:.2f} GiB" if point.measured > GIB else f"{point.measured / 2**20:.1f} MiB"
        fits = said[found["fits"]] if point.ran is not None else ""
        ratio = f"{found['bytes'] / point.measured:.2f}"
        cells = (point.id, point.program, point.target, size, ratio, said[point.ran], fits, point.source)
        lines.append(f"| {' | '.join(cells)} |")
    for point in points():
        peak = results.get(point.id, {}).get("peak_bytes")
        chip = known_chip(point.chip)
        if point.kind == "training step" and peak and chip is not None and chip.hbm_bytes:
            available = chip.hbm_bytes / chip.devices_per_chip
            fits = said[peak <= available]
            needed = f"{peak / GIB:.1f} GiB of {available / GIB:.1f}"
            cells = (point.id, point.program, point.target, "–", needed, "yes", fits, point.source)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(results: dict[str, dict[str, Any]]) -> str:
    """The errors by kind and family of chips, then every point."""
    known = [(point, results[point.id]["predicted"] / point.seconds) for point in points()
             if results.get(point.id, {}).get("predicted")]  # fmt: skip
    may_fit = fitted(points())
    groups: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for point, ratio in known:
        if point.id not in may_fit:
            chip = known_chip(point.chip)
            groups[point.kind, family_of(chip) if chip else "CPU"].append(abs(ratio - 1))
    lines = ["| kind | chips | evaluated points | median error | largest error |", "|---|---|--:|--:|--:|"]
    for (kind, family), errors in sorted(groups.items()):
        lines.append(
            f"| {kind} | {family} | {len(errors)} | {share_text(statistics.median(errors), 0)} | {share_text(max(errors), 0)} |"
        )
    lines += ["", "| point | program | chip | measured time | predicted / measured | used for | source |",
              "|---|---|---|--:|--:|---|---|"]  # fmt: skip
    for point, ratio in known:
        use = "fit" if point.id in may_fit else "evaluation"
        lines.append(
            f"| {point.id} | {point.program} | {point.target} | {written(point.seconds)} | {ratio:.2f} | {use} | {point.source} |"
        )
    missing = [
        f"{point.id} ({results[point.id]['error']})" for point in points() if "error" in results.get(point.id, {})
    ]
    return "\n".join(lines) + (f"\n\nWithout a prediction: {'; '.join(missing)}." if missing else "")


def written(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def draw(results: dict[str, dict[str, Any]]) -> None:
    """Predicted against measured, with bands of 10 % and of a factor of 2."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    ends = (2e-6, 30.0)
    axes.fill_between(
        ends, [end / 2 for end in ends], [end * 2 for end in ends], color="0.93", label="within a factor of 2"
    )
    axes.fill_between(ends, [end / 1.1 for end in ends], [end * 1.1 for end in ends], color="0.8", label="within 10 %")
    marks = {"TPU": "o", "NVIDIA": "s"}
    colours = {
        "matrix product": "C0",
        "memory": "C1",
        "layout": "C4",
        "collective": "C2",
        "training step": "C3",
        "attention": "C5",
        "loop": "C6",
    }
    may_fit, seen = fitted(points()), set()
    for point in points():
        predicted = results.get(point.id, {}).get("predicted")
        chip = known_chip(point.chip)
        if not predicted or chip is None:
            continue
        label = f"{point.kind}, {family_of(chip)}"
        axes.plot(
            point.seconds, predicted, marks[family_of(chip)], color=colours[point.kind], markersize=6,
            markerfacecolor="none" if point.id in may_fit else None, label=None if label in seen else label,
        )  # fmt: skip
        seen.add(label)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured seconds", ylabel="predicted seconds")
    axes.set_title("Predicted against measured seconds; hollow points were used to fit rates", fontsize=10)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(PLOT, dpi=110)


def write_page(results: dict[str, dict[str, Any]]) -> None:
    """Puts the tables into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for begin, end, made in ((BEGIN, END, table(results)), (BEGIN_MEMORY, END_MEMORY, memory_table(results))):
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end)[1]}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", help="points to predict again")
    parser.add_argument("--print", action="store_true", help="print the table; do not write the page and the plot")
    arguments = parser.parse_args()
    results = run(arguments.points)
    print(table(results), memory_table(results), sep="\n\n")
    if not arguments.print:
        write_page(results)
        draw(results)


if __name__ == "__main__":
    main()
