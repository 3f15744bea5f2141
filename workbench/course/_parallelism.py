"""Exercises of notebooks 22 and 23: collectives as algorithms, and ways to parallelise one transformer."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from workbench.course._grading import (
    called,
    collectives,
    compiled,
    exercise,
    expect_number,
    expect_values,
    sent_bytes,
    specs,
    wrong,
)


@exercise("22.1", "a ring all-reduce made of collective-permutes, sending at most 2 S (n − 1) / n bytes")
def ring_all_reduce(answer: Callable) -> str:
    mesh = jax.make_mesh((8,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    values = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
    x = jax.device_put(jnp.asarray(values), NamedSharding(mesh, PartitionSpec("ring")))
    mapped = jax.shard_map(answer, mesh=mesh, in_specs=PartitionSpec("ring"), out_specs=PartitionSpec("ring"))
    result = called(jax.jit(mapped), x)
    hint = "Every device should end with the sum over all devices, in its row of shape (1, 64)."
    expect_values(result, np.tile(values.sum(0), (8, 1)), hint)
    used = collectives(compiled(mapped, x, mesh=mesh))
    if any(record.kind != "collective-permute" for record in used):
        wrong(
            f"the program uses {', '.join(sorted({e.kind for e in used}))}: build the all-reduce from "
            "`jax.lax.ppermute` only."
        )
    limit = 2 * 64 * 4 * 7 / 8
    if (traffic := sent_bytes(used)) > limit:
        wrong(f"a device sends {traffic:,.0f} bytes; a ring needs {limit:,.0f}: send chunks of 8 numbers.")
    return f"a device sends {traffic:,.0f} bytes, which is the lower bound."


@exercise("22.2", "the message size at which ring and tree cost the same")
def crossover(answer: object) -> str:
    alpha, bandwidth, n = 1e-5, 50e9, 256
    ring_steps, tree_steps = 2 * (n - 1), 2 * np.log2(n)
    per_byte = (2 * np.log2(n) - 2 * (n - 1) / n) / bandwidth
    expect_number(
        answer, (ring_steps - tree_steps) * alpha / per_byte, "Set both costs equal and solve for S.", rtol=0.02
    )
    return "below this size the tree is faster (fewer steps), above it the ring (fewer bytes)."


@exercise("22.3", "bytes over a slow link with a hierarchical all-reduce")
def slow_bytes(answer: object) -> str:
    size, fast, slow = 2**30, 8, 4
    hint = "After the reduce-scatter inside a host, a device holds S/8; the ring over 4 hosts sends 2 (S/8) (3/4)."
    expect_number(answer, 2 * (size / fast) * (slow - 1) / slow, hint, rtol=5e-3)
    return "a device sends less than a tenth of what a flat ring of 32 devices sends over each slow link."


@exercise("23.1", "bytes per device of parameters and AdamW state under FSDP")
def fsdp_memory(answer: object) -> str:
    expect_number(
        answer,
        7e9 * 16 / 64,
        "16 bytes per parameter: weights, gradient and two moments in float32. Divide by 64.",
        rtol=0.01,
    )
    return "a device stores 1.75 GB instead of 112 GB, which few chips could store."


@exercise("23.2", "micro-batches for a bubble of at most 10 %")
def bubble(answer: object) -> str:
    expect_number(
        answer, 63, "Find the smallest m for which the bubble (p − 1) / (m + p − 1), with p = 8, is at most 0.1."
    )
    return "8 stages need 63 micro-batches."


@exercise("23.3", "shardings of an MLP with one all-reduce")
def tensor_parallel(answer: object) -> str:
    answer = specs(answer, "up", "down")
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))

    def placed(shape: tuple[int, ...], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    def mlp(w: dict, x: jax.Array) -> jax.Array:
        out = jax.nn.gelu(x @ w["up"]) @ w["down"]
        return jax.lax.with_sharding_constraint(out, NamedSharding(mesh, PartitionSpec()))

    weights = {"up": placed((64, 256), answer["up"]), "down": placed((256, 64), answer["down"])}
    for name, weight in weights.items():
        shard = weight.sharding.shard_shape(weight.shape)
        if np.prod(shard) > weight.size // 8:
            wrong(f"a device stores {shard} of `{name}` {weight.shape}, which is more than an eighth of the array.")
    records = collectives(compiled(mlp, weights, placed((32, 64), PartitionSpec()), mesh=mesh))
    if [record.kind for record in records] != ["all-reduce"]:
        wrong(
            f"the program uses {', '.join(r.kind for r in records) or 'no collective'}; one all-reduce would be enough."
        )
    if records[0].payload_bytes > 32 * 64 * 4:
        wrong(f"one all-reduce, but of {records[0].payload_bytes:,} bytes; 8,192 bytes would be enough.")
    return "columns first, then rows: only the output needs an all-reduce."
