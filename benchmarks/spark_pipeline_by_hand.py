"""The pipeline of `examples.spark_pipeline` without Workbench, for comparison in `benchmarks.spark_pipeline`."""

# pyright: reportMissingImports=false

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from examples.spark_pipeline import FEATURES, features_of, logits


def loss(w: Any, x: Any, y: Any, n: Any) -> Any:
    z = logits(w, x)
    losses = jax.nn.softplus(z) - y * z
    return jnp.where(jnp.arange(len(y)) < n, losses, 0).sum()


@jax.jit
def gradients(w: Any, x: Any, y: Any, n: Any) -> Any:
    values = jax.vmap(jax.value_and_grad(loss), (None, 0, 0, 0))(w, x, y, n)
    return jax.tree.map(lambda rows: rows.sum(0), values)


score = jax.jit(jax.vmap(logits, (None, 0)))


def pack(batches: Iterator[pa.RecordBatch], length: int, users: int) -> Iterator[pa.RecordBatch]:
    """Pads the sorted rows of a partition to `[users, length, ...]`, one batch of users per row."""
    table = pa.Table.from_batches(batches)
    if not len(table):
        return
    names = table.column("user").combine_chunks().dictionary_encode().indices.to_numpy()
    starts = np.flatnonzero(np.diff(names, prepend=-1))
    x = table.column("x").combine_chunks().flatten().to_numpy().reshape(-1, FEATURES)
    y, counts = table.column("y").to_numpy(), np.diff(starts, append=len(names))
    for first in range(0, len(starts), users):
        some = np.zeros((users, length, FEATURES), np.float32), np.zeros((users, length), np.float32)
        n = np.zeros(users, np.int32)
        n[: len(counts[first : first + users])] = counts[first : first + users]
        for slot, begin in enumerate(starts[first : first + users]):
            some[0][slot, : n[slot]], some[1][slot, : n[slot]] = x[begin : begin + n[slot]], y[begin : begin + n[slot]]
        cells = [pa.array([array.tobytes()], pa.binary()) for array in (*some, n)]
        yield pa.RecordBatch.from_arrays(cells, ["x", "y", "n"])


def compute(batches: Iterator[pa.RecordBatch], w: Any, length: int) -> Iterator[pa.RecordBatch]:
    total, gradient, count = 0.0, np.zeros(FEATURES, np.float32), 0
    for batch in batches:
        for x, y, n in zip(*(batch.column(name) for name in ("x", "y", "n")), strict=True):
            n = np.frombuffer(n.as_buffer(), np.int32)
            x = np.frombuffer(x.as_buffer(), np.float32).reshape(len(n), length, FEATURES)
            losses, slopes = gradients(w, x, np.frombuffer(y.as_buffer(), np.float32).reshape(len(n), length), n)
            total, gradient, count = total + float(losses), gradient + np.asarray(slopes), count + int(n.sum())
    cells = pa.array([total]), pa.array([gradient.tolist()], pa.list_(pa.float32())), pa.array([count])
    yield pa.RecordBatch.from_arrays(list(cells), ["loss", "gradient", "count"])


def predict(batches: Iterator[pa.RecordBatch], w: Any, rows: int = 1024) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            some = batch.slice(start, rows)
            x = np.zeros((rows, FEATURES), np.float32)
            x[: some.num_rows] = some.column("x").flatten().to_numpy().reshape(-1, FEATURES)
            scores = pa.array(np.asarray(score(w, x))[: some.num_rows])
            yield pa.RecordBatch.from_arrays([some.column("at"), scores], ["at", "score"])


def run_pipeline(session: Any, folder: Path, rounds: int = 40, users_per_batch: int = 3) -> dict[str, Any]:
    """Writes the same files and numbers as `examples.spark_pipeline.run_pipeline`."""
    features = features_of(session.read.parquet(str(folder / "events.parquet"))).cache()
    length = features.groupBy("user").count().agg({"count": "max"}).first()[0]
    ordered = features.repartition(session.sparkContext.defaultParallelism, "user").sortWithinPartitions("user", "at")
    to_batches = functools.partial(pack, length=length, users=users_per_batch)
    packed = ordered.mapInArrow(lambda b: to_batches(b), "x binary, y binary, n binary").persist()
    w, losses = np.zeros(FEATURES, np.float32), []
    for _ in range(rounds):
        step = functools.partial(compute, w=w, length=length)
        found = packed.mapInArrow(lambda b: step(b), "loss double, gradient array<float>, count bigint").toArrow()  # noqa: B023
        total, count = (found.column(name).to_numpy().sum() for name in ("loss", "count"))
        losses.append(total / count)
        w = w - np.float32(2.0 / count) * np.sum(found.column("gradient").to_pylist(), axis=0).astype(np.float32)
    packed.unpersist()
    rows = jax.ShapeDtypeStruct((jax.export.symbolic_shape("rows")[0], FEATURES), jnp.float32)
    exported = jax.export.export(jax.jit(logits))(jax.ShapeDtypeStruct(w.shape, w.dtype), rows)
    (folder / "model.bin").write_bytes(exported.serialize())
    np.save(folder / "weights.npy", w)
    add_score = functools.partial(predict, w=w)
    scored = features.select("at", "x").mapInArrow(lambda b: add_score(b), "at bigint, score float")
    scored.write.mode("overwrite").parquet(str(folder / "scores.parquet"))
    return {"losses": losses, "weights": w, "scores": folder / "scores.parquet"}
