"""A complete pipeline in one Spark cluster: features from Parquet, training, a stored model, and batch inference.

    python -m examples.spark_pipeline [MASTER]        such as local[2], or local-cluster[2,1,1024]

The driver stores the parameters but no examples: executors compute the features, the clients and the sums of the
gradients, and score the table. A task that is computed again returns the same bytes.
"""

# pyright: reportMissingImports=false

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb
from workbench.engines import Spark, clients_from

FEATURES = 4


def write_events(path: Path, users: int = 12, rows: int = 400, seed: int = 0) -> None:
    """Writes a table of events as in production: ids, text, numbers with missing values, and a label."""
    import pandas as pd

    random = np.random.default_rng(seed)
    events = pd.DataFrame(
        {
            "user": random.integers(0, users, rows).astype(str),
            "at": np.arange(rows),
            "amount": random.lognormal(size=rows),
            "age": pd.array(random.integers(1, 90, rows), dtype="Int64"),
            "device": random.choice(["phone", "web"], rows),
        }
    )
    score = np.log(events["amount"]) + (events["device"] == "web") - events["age"].to_numpy(float) / 60
    events["bought"] = (score + 0.3 * random.normal(size=rows) > 0).astype(np.int32)
    events.loc[random.random(rows) < 0.1, "age"] = pd.NA
    events.to_parquet(path)


def features_of(events: Any) -> Any:
    """Converts events to rows of numbers in Spark: one-hot text, filled gaps, scaled columns."""
    from pyspark.sql import functions as f

    mean = events.agg(f.mean("age")).first()[0]
    columns = (
        f.lit(1.0),
        f.log("amount"),
        f.coalesce((f.col("age") - mean) / 30.0, f.lit(0.0)),
        (f.col("device") == "web").cast("double"),
    )
    x = f.array(*(column.cast("float") for column in columns))
    return events.select("user", "at", x.alias("x"), f.col("bought").cast("float").alias("y"))


def logits(w: Any, x: Any) -> Any:
    """Computes the scores of several rows, or of one row."""
    return x @ w


def step(w: Any, data: Any) -> tuple[Any, dict[str, Any]]:
    """Takes a step of synchronous gradient descent over the rows of all users."""

    def loss(w: Any, data: Any) -> Any:
        z, y = logits(w, data["x"]), data["y"]
        losses = jax.nn.softplus(z) - y * z
        return jnp.where(jnp.arange(len(y)) < data["n"], losses, 0).sum()

    with wb.program(clients=len(data["n"])):
        total, gradient = wb.map_fn(jax.value_and_grad(loss), (wb.broadcast(w), data))
        rows = wb.reduce_sum(data["n"]).astype(jnp.float32)
        return w - 2.0 * wb.reduce_sum(gradient) / rows, {"loss": wb.reduce_sum(total) / rows}


def run_pipeline(
    session: Any, folder: Path, rounds: int = 40, callbacks: Sequence[Callable[..., Any]] = (), users_per_batch: int = 3
) -> dict[str, Any]:
    """Runs the whole pipeline in the cluster of a session.

    Args:
        session: A `SparkSession`, whose executors can import this module.
        folder: Folder with `events.parquet`, to which the model and the scores are written. All executors must be able
            to access it.
        rounds: Number of training steps.
        callbacks: As in `run_rounds`.
        users_per_batch: Number of users that a worker computes together.

    Returns:
        The loss of each step, the weights, and the path of the scores.
    """
    engine = Spark(session, clients_per_batch=users_per_batch)
    features = features_of(session.read.parquet(str(folder / "events.parquet"))).cache()
    clients = clients_from(features, by="user", columns=["x", "y"], order="at")
    with engine.read(clients) as packed:
        start = np.zeros(FEATURES, np.float32)
        run = wb.run_rounds(step, start, rounds, data=packed, engine=engine, callbacks=callbacks, progress=False)
    weights = np.asarray(run.state)
    many = jax.ShapeDtypeStruct((jax.export.symbolic_shape("rows")[0], FEATURES), jnp.float32)
    program = wb.trace(logits)(jax.ShapeDtypeStruct(weights.shape, weights.dtype), many).export()
    program.save(folder / "model.bin")
    np.save(folder / "weights.npy", weights)
    scored = engine.predict(features.select("at", "x"), logits, weights, columns="x", out="score")
    scored.drop("x").write.mode("overwrite").parquet(str(folder / "scores.parquet"))
    return {"losses": run.history.summary()["loss"].tolist(), "weights": weights, "scores": folder / "scores.parquet"}


def own_session(master: str) -> Any:
    """Starts a session that listens only on the loopback interface, and whose executors can import this module."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.JAX_PLATFORMS": "cpu",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "spark.ui.enabled": "false",
    }
    return SparkSession.builder.master(master).config(map=settings).getOrCreate()


def main() -> None:
    """Runs the pipeline on a generated table."""
    session = own_session((*sys.argv[1:], "local[2]")[0])
    try:
        with tempfile.TemporaryDirectory() as name:
            write_events(Path(name) / "events.parquet")
            found = run_pipeline(session, Path(name))
            print(f"loss {found['losses'][0]:.3f} to {found['losses'][-1]:.3f}, weights {found['weights']}")
    finally:
        session.stop()


if __name__ == "__main__":
    main()
