"""Compares the search for shardings with experts' specs, on programs whose best specs are known.

    python -m benchmarks.shardings --devices 8
    python -m benchmarks.shardings --devices 256 --planned --only fsdp

Each row has the predicted seconds of the search's choice, of the expert's specs, and of data parallelism. All programs
are compiled by the chip's own compiler, or only planned with `--planned`. The row also has the search's CPU seconds.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

import workbench as wb
from workbench.advice._search._program import SearchProgram
from workbench.advice._search._search import Search

Spec = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A program, its mesh on `devices` devices, and the specs that an expert writes."""

    name: str
    build: Callable[[int], tuple[Callable, tuple[Any, ...]]]
    mesh: Callable[[int], Mapping[str, int]]
    expert: Mapping[str, Spec]  # by pattern; what is not named is replicated
    memory_bytes: int | None = None
    notes: str = field(default="")


def shape(*sizes: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    """A shape."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def sgd(loss: Callable) -> Callable:
    """One step of gradient descent that donates the parameters."""

    def step(params: Any, batch: Any) -> Any:
        gradient = jax.grad(loss)(params, batch)
        return jax.tree.map(lambda w, g: w - jnp.asarray(0.01, w.dtype) * g, params, gradient)

    return jax.jit(step, donate_argnums=0)


def mlp_loss(params: Any, x: jax.Array) -> jax.Array:
    """Two residual blocks."""
    for w in params["layers"]:
        x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
    return jnp.mean(jnp.square(x.astype("float32")))


def mlp(width: int, hidden: int, layers: int = 2) -> Any:
    """Its parameters."""
    return {"layers": [{"up": shape(width, hidden), "down": shape(hidden, width)} for _ in range(layers)]}


def attention(params: Any, x: jax.Array) -> jax.Array:
    """Multi-head attention with a separate dimension for the heads."""
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, params[name]) for name in ("q", "k", "v"))
    scores = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k).astype("float32"), axis=-1).astype(x.dtype)
    return jnp.einsum("bhst,bhtk,hkd->bsd", scores, v, params["out"])


def attention_loss(params: Any, x: jax.Array) -> jax.Array:
    """A scalar of the attention's output."""
    return jnp.mean(jnp.square((x + attention(params, x)).astype("float32")))


def long_sequence(scale: jax.Array, x: jax.Array) -> jax.Array:
    """Normalization and pointwise work along a sequence of one example."""
    x = x.astype("float32")
    centred = x - x.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6) * scale
    return (normal + jax.nn.gelu(normal)).astype("bfloat16")


def mixture(params: Any, x: jax.Array) -> jax.Array:
    """A mixture of experts with a fixed capacity: tokens go to the devices of their experts and come back."""
    gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", x, params["router"]).astype("float32"))
    capacity = max(1, 2 * x.shape[1] // gates.shape[-1])
    chosen = jax.nn.one_hot(jnp.argmax(gates, -1), gates.shape[-1], dtype=jnp.int32)
    place = jax.nn.one_hot((jnp.cumsum(chosen, 1) * chosen).max(-1) - 1, capacity, dtype=x.dtype)
    dispatch = jnp.einsum("gse,gsc->gsec", chosen.astype(x.dtype), place)
    inside = jnp.einsum("gsec,gsm->egcm", dispatch, x)
    done = jnp.einsum("egcf,efm->egcm", jax.nn.gelu(jnp.einsum("egcm,emf->egcf", inside, params["up"])), params["down"])
    return jnp.einsum("gsec,egcm->gsm", dispatch, done)


def pipeline(params: jax.Array, batches: jax.Array) -> jax.Array:
    """Concurrent stages, each with a different micro-batch, which then moves to the next stage."""
    stages = params.shape[0]

    def tick(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.roll(state, 1, 0).at[0].set(batch)
        state = jax.vmap(lambda w, x: jnp.tanh(x @ w))(params, state)
        return state, state[-1]

    state = jnp.zeros((stages, *batches.shape[1:]), batches.dtype)
    return jax.lax.scan(tick, state, batches)[1]


def language_loss(params: Any, batch: Any) -> jax.Array:
    """Embedding, one block, softmax over a large vocabulary."""
    x = params["embedding"][batch["tokens"]]
    x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
    logits = jnp.einsum("bsd,vd->bsv", x, params["embedding"]).astype("float32")
    picked = jnp.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def diloco(params: Any, batch: jax.Array) -> Any:
    """Two-level training: replicas take separate local steps, then average."""

    def local(w: Any, batches: jax.Array) -> Any:
        def one(w: Any, x: jax.Array) -> tuple[Any, None]:
            gradient = jax.grad(mlp_loss)(w, x)
            return jax.tree.map(lambda a, g: a - jnp.asarray(0.01, a.dtype) * g, w, gradient), None

        return jax.lax.scan(one, w, batches)[0]

    replicas = jax.vmap(local, in_axes=(None, 0))(params, batch)
    return jax.tree.map(lambda w: w.mean(0), replicas)


def federated_round(clients: int) -> Callable:
    """A round of clients, each of which trains a copy of the model."""

    @wb.program(clients=clients)
    def fedavg(params: Any, data: jax.Array) -> Any:
        def train(w: Any, x: jax.Array) -> Any:
            gradient = jax.grad(mlp_loss)(w, x)
            return jax.tree.map(lambda a, g: a - jnp.asarray(0.01, a.dtype) * g, w, gradient)

        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

    return fedavg


def one_axis(name: str) -> Callable[[int], Mapping[str, int]]:
    """All devices along one axis."""
    return lambda devices: {name: devices}


def two_axes(first: str, second: str, size: int = 4) -> Callable[[int], Mapping[str, int]]:
    """`size` devices along the second axis, the others along the first."""
    return lambda devices: {first: devices // size, second: size}


D, M = "data", "model"
UP, DOWN = "params['layers'][*]['up']", "params['layers'][*]['down']"
CASES = (
    Case("data parallel", lambda n: (sgd(mlp_loss), (mlp(512, 2048), shape(4096 * n, 512))), one_axis(D),
         {"batch": (D,)}),
    Case("fsdp", lambda n: (sgd(mlp_loss), (mlp(4096, 16384, 4), shape(1024 * n, 4096))), one_axis(D),
         {"batch": (D,), UP: (None, D), DOWN: (D,)}, memory_bytes=2 << 30),
    Case("tensor parallel mlp", lambda n: (mlp_loss, (mlp(8192, 32768), shape(512, 8192))), one_axis(M),
         {UP: (None, M), DOWN: (M,)}),
    Case("tensor parallel attention", lambda n: (attention_loss, (
        {name: shape(4096, 32, 128) for name in "qkv"} | {"out": shape(32, 128, 4096)}, shape(2, 1024, 4096))),
        lambda n: {D: 2, M: n // 2} if n <= 64 else {D: n // 32, M: 32},
        {"x": (D,), **{f"params['{name}']": (None, M) for name in "qkv"}, "params['out']": (M,)}),
    Case("sequence parallel", lambda n: (long_sequence, (shape(4096), shape(1, 8192 * n, 4096))), one_axis("sequence"),
         {"x": (None, "sequence")}),
    Case("mixture of experts", lambda n: (mixture, (
        {"router": shape(1024, n), "up": shape(n, 1024, 4096), "down": shape(n, 4096, 1024)}, shape(n, 1024, 1024))),
        one_axis("expert"), {"x": ("expert",), "params['up']": ("expert",), "params['down']": ("expert",)}),
    Case("pipeline", lambda n: (pipeline, (shape(n, 4096, 4096), shape(4 * n, 512, 4096))), one_axis("stage"),
         {"params": ("stage",)}),
    Case("2-D matmul", lambda n: (lambda a, b: a @ b, (shape(16384, 16384), shape(16384, 16384))),
         lambda n: {"x": 2 ** (int(math.log2(n)) // 2), "y": n // 2 ** (int(math.log2(n)) // 2)},
         {"a": ("x",), "b": (None, "y")}),
    Case("2.5-D matmul", lambda n: (lambda a, b: a @ b, (shape(8192, 65536), shape(65536, 8192))),
         lambda n: {"x": 2, "y": 2, "z": n // 4}, {"a": ("x", "z"), "b": ("z", "y")}),
    Case("vocabulary", lambda n: (sgd(language_loss), (
        {"embedding": shape(131072, 2048), "up": shape(2048, 8192), "down": shape(8192, 2048)},
        {"tokens": shape(8 * n // 4, 256, dtype="int32"), "targets": shape(8 * n // 4, 256, dtype="int32")})),
        two_axes(D, M),
        {"batch['tokens']": (D,), "batch['targets']": (D,), "params['embedding']": (M,),
         "params['up']": (None, M), "params['down']": (M,)}),
    Case("two-level (DiLoCo)", lambda n: (diloco, (mlp(1024, 4096), shape(n // 4, 4, 4096, 1024))),
         two_axes("replica", D), {"batch": ("replica", None, D)}),
    Case("federated round with model parallelism", lambda n: (federated_round(n // 2), (
        mlp(2048, 8192), shape(n // 2, 512, 2048))), lambda n: {"clients": n // 2, M: 2},
        {"data": ("clients",), UP: (None, M), DOWN: (M,)}),
)  # fmt: skip


def specs_of(case: Case, program: SearchProgram) -> tuple[Any, ...]:
    """The expert's specs in the order of the program's groups."""
    found = []
    for group in program.groups:
        given = case.expert.get(group.pattern, ())
        entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in given]
        found.append((*entries, *[()] * (len(group.shape) - len(entries))))
    unknown = set(case.expert) - {group.pattern for group in program.groups}
    assert not unknown, f"{case.name}: {unknown} of {[group.pattern for group in program.groups]}"
    return tuple(found)


def measure(
    case: Case, devices: int, *, chip: str, planned: bool, seconds: float, compiler: Any, with_baseline: bool = True
) -> dict[str, Any]:
    """One row: search, expert and data parallelism."""
    fn, args = case.build(devices)
    sizes = case.mesh(devices)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
    began, cpu = time.monotonic(), time.process_time()
    call: Any = wb.trace(fn, on=mesh)(*args)._call
    program = SearchProgram(call, mesh, chip, memory_bytes=case.memory_bytes, compiler=compiler)
    search = Search(program, seconds=seconds, compiled=not planned)
    record = search.run()
    took, used = time.monotonic() - began, time.process_time() - cpu
    expert, baseline, chosen = specs_of(case, program), search.data_parallel, search.chosen
    was_planned, was_compiled = search.is_planned(expert), search.is_rehearsed(expert) or search.is_compiled(expert)
    price = program.plan if planned else program.compile
    wanted = (chosen, expert, baseline) if with_baseline else (chosen, expert)
    priced = {specs: price(specs) for specs in dict.fromkeys(wanted)}
    return {
        "program": case.name,
        "search": priced[chosen].seconds,
        "expert": priced[expert].seconds,
        "data parallel": priced[baseline].seconds if baseline in priced and priced[baseline].fits else None,
        "baseline": "not compiled" if baseline not in priced else "does not fit",
        "same specs": "same"
        if chosen == expert
        else "compiled"
        if was_compiled
        else "planned"
        if was_planned
        else "no",
        "planned": record.planned_count,
        "rehearsed": sum(each.how == "rehearsed" for each in record.choices),
        "compiled": record.compiled_count,
        "ended": record.ended,
        "CPU s": used,
        "took s": took,
        "specs": {g.pattern: s for g, s in zip(program.groups, chosen, strict=True) if any(s)},
    }


def main() -> None:
    """Prints a table in Markdown; the chosen specs go to standard error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--chip", default="v5e")
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--no-baseline", action="store_true", help="do not compile data parallelism")
    parser.add_argument("--compiler", choices=("auto", "cpu"), default="auto")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    heads = (
        "search, ms",
        "expert, ms",
        "search / expert",
        "data parallel, ms",
        "expert's specs",
        "planned",
        "compiled",
        "s",
    )
    print(f"| program | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for case in CASES:
        if options.only not in case.name:
            continue
        try:
            row = measure(
                case,
                options.devices,
                chip=options.chip,
                planned=options.planned,
                seconds=options.seconds,
                compiler=options.compiler,
                with_baseline=not options.no_baseline,
            )
        except Exception as error:  # one program that fails is a row of the table
            print(f"| {case.name} | failed: {type(error).__name__}: {str(error).splitlines()[0][:120]} |", flush=True)
            continue
        ms = {
            name: row["baseline"] if row[name] is None else f"{row[name] * 1e3:.3f}"
            for name in ("search", "expert", "data parallel")
        }
        ratio = f"{row['search'] / row['expert']:.2f}" if row["search"] and row["expert"] else "-"
        print(
            f"| {case.name} | {ms['search']} | {ms['expert']} | {ratio} | {ms['data parallel']} | "
            f"{row['same specs']} | {row['planned']} | {row['rehearsed']}+{row['compiled']} | {row['took s']:.0f} |",
            flush=True,
        )
        print(f"{case.name}: {row['specs']} CPU {row['CPU s']:.0f} s, {row['ended']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
