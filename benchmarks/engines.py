"""Overhead of an engine compared with a hand-written pipeline: `python -m benchmarks.engines`.

Both use the same executor, the same client function (a few steps of a small network) and the same batches, interleaved
in one run. The table has milliseconds per client and round (medians over repetitions), and the median of the ratios
with their spread. `--dask` adds a local Dask cluster, and `--beam` the in-process Beam runner, each with a hand-written
pipeline. `--spark` compares only with two hand-written Spark jobs, and `--flower` measures only Flower. `--reader
--clients 1000 10000` reads clients one by one, with a separate process for each number of clients, and prints the peaks
of memory.
"""

# pyright: reportMissingImports=false

import argparse
import functools
import importlib
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor as Pool, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil

import workbench as wb
from benchmarks.engines_round import client, start, train
from workbench.engines import Beam, ClientReader, Executor, MeshEngine, Sequential


def make_round(clients: int) -> Callable:
    @wb.program(clients=clients)
    def one_round(w: Any, data: Any) -> Any:
        delta = wb.map_fn(train, (wb.broadcast(w), *data))
        return jax.tree.map(jnp.add, w, wb.reduce_mean(delta))

    return one_round


def _some(w: Any, x: Any, y: Any) -> Any:
    return jax.tree.map(lambda rows: rows.sum(0), jax.vmap(train, in_axes=(None, 0, 0))(w, x, y))


some = jax.jit(_some)


def task(w: Any, x: Any, y: Any) -> Any:
    return jax.tree.map(np.asarray, some(w, x, y))


def by_hand(pool: Pool | None, size: int, share: Callable = lambda w: w) -> Callable:
    def run(w: Any, data: Any) -> Any:
        x, y = data
        shared = share(w)
        batches = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
        if pool is None:
            sums = [task(w, *batch) for batch in batches]
        else:
            # By its name, so that a worker process compiles it once: what stands in `__main__` is pickled anew.
            call = importlib.import_module("benchmarks.engines").task
            sums = [future.result() for future in [pool.submit(call, shared, *batch) for batch in batches]]
        return jax.tree.map(lambda v, *parts: v + sum(parts) / len(x), w, *sums)

    return run


def beam_by_hand(size: int) -> Callable:
    """A typical hand-written pipeline: rows in one file, row numbers in the pipeline, combined partial sums."""
    import tempfile
    from pathlib import Path

    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    def compute(first: int, w: Any, folder: str) -> Any:
        x, y = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in "xy")
        return jax.tree.leaves(task(w, np.array(x[first : first + size]), np.array(y[first : first + size])))

    def add(parts: Any) -> Any:
        parts = [p for p in parts if p]
        return [np.sum(leaves, axis=0) for leaves in zip(*parts, strict=True)] if parts else []

    def run(w: Any, data: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            for name, rows in zip("xy", data, strict=True):
                np.save(Path(folder) / f"{name}.npy", rows)
            with beam.Pipeline(runner=FnApiRunner()) as pipeline:
                server = pipeline | "server" >> beam.Create([w])
                _ = (
                    pipeline
                    | "batches" >> beam.Create(range(0, len(data[0]), size))
                    | "spread" >> beam.Reshuffle()
                    | "clients" >> beam.Map(compute, beam.pvalue.AsSingleton(server), folder)
                    | "add" >> beam.CombineGlobally(add)
                    | "write" >> beam.Map(lambda sums: np.savez(Path(folder) / "sums.npz", *sums))
                )
            with np.load(Path(folder) / "sums.npz") as sums:
                parts = [sums[name] for name in sums.files]
        leaves, tree = jax.tree.flatten(w)
        return jax.tree.unflatten(tree, [v + s / len(data[0]) for v, s in zip(leaves, parts, strict=True)])

    return run


def spark_by_hand(session: Any, size: int) -> Callable:
    """A typical hand-written job: batches of rows as bytes, a jitted function, and a sum per partition."""
    import pyarrow as pa

    def run(w: Any, data: Any) -> Any:
        leaves, tree = jax.tree.flatten(w)
        shapes = [[size, *rows.shape[1:]] for rows in data]

        def compute(batches: Iterator[Any]) -> Iterator[Any]:
            call = importlib.import_module("benchmarks.engines").task  # by its name: a worker compiles it once
            total = None
            for batch in batches:
                for cells in zip(*(batch.column(name) for name in "xy"), strict=True):
                    arrays = [np.frombuffer(c.as_buffer(), "f4").reshape(s) for c, s in zip(cells, shapes, strict=True)]
                    sums = call(jax.tree.unflatten(tree, leaves), *arrays)
                    total = sums if total is None else jax.tree.map(np.add, total, sums)
            if total is not None:
                flat = [pa.array([np.asarray(x).tobytes()]) for x in jax.tree.leaves(total)]
                yield pa.RecordBatch.from_arrays(flat, names=[f"w{i}" for i in range(len(flat))])

        starts = range(0, len(data[0]), size)
        table = pa.table(
            {name: [rows[i : i + size].tobytes() for i in starts] for name, rows in zip("xy", data, strict=True)}
        )
        schema = ", ".join(f"w{i} binary" for i in range(len(leaves)))
        found = session.createDataFrame(table).mapInArrow(compute, schema).toArrow()
        sums = [
            sum(np.frombuffer(cell.as_py(), "f4").reshape(leaf.shape) for cell in found.column(i))
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(tree, [v + s / len(data[0]) for v, s in zip(leaves, sums, strict=True)])

    return run


def spark_rdd_by_hand(session: Any, size: int) -> Callable:
    """The same on the older interface: pickled arrays in an RDD, which Spark plans faster than a DataFrame."""
    context = session.sparkContext

    def run(w: Any, data: Any) -> Any:
        x, y = data

        def compute(batches: Iterator[Any]) -> Iterator[Any]:
            call = importlib.import_module("benchmarks.engines").task
            total = None
            for batch in batches:
                sums = call(w, *batch)
                total = sums if total is None else jax.tree.map(np.add, total, sums)
            return iter([] if total is None else [total])

        batches = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
        sums = context.parallelize(batches, context.defaultParallelism).mapPartitions(compute).collect()
        return jax.tree.map(lambda v, *parts: v + sum(parts) / len(x), w, *sums)

    return run


def compare_spark(clients: int, repetitions: int, master: str) -> None:
    """Times both in one session, with the same Python workers."""
    import warnings

    from workbench.engines import Spark

    warnings.simplefilter("ignore")  # PySpark 4.3 warns of pandas 3
    with Spark(master, clients_per_batch=32) as engine:
        engine.run(
            make_round(clients), start(), tuple(np.stack(x) for x in zip(*map(client, range(clients)), strict=True))
        )
        for name, theirs in (("mapInArrow", spark_by_hand), ("RDD", spark_rdd_by_hand)):
            by_hand = theirs(engine._opened(), 32)
            compare(f"Spark {master}, {name}", engine.run, by_hand, clients, repetitions)


def compare(name: str, ours: Callable, theirs: Callable, clients: int, repetitions: int, **sizes: int) -> None:
    """Times both in turn, after one compiling call of each."""
    w, data = start(**sizes), tuple(np.stack(rows) for rows in zip(*map(client, range(clients)), strict=True))
    expected, one_round = theirs(w, data), make_round(clients)
    ours(one_round, w, data)
    seconds: list[tuple[float, float]] = []
    for _ in range(repetitions):
        began = time.perf_counter()
        record = ours(one_round, w, data)
        between = time.perf_counter()
        theirs(w, data)
        seconds.append((between - began, time.perf_counter() - between))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), record.results, expected)
    mine, hand = (1e3 / clients * statistics.median(column) for column in zip(*seconds, strict=True))
    ratios = sorted(a / b for a, b in seconds)
    spread = f"{statistics.median(ratios):8.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    print(f"{name:28} {mine:8.3f} ms {hand:10.3f} ms {spread}", flush=True)


def read_many(beam: bool, clients: int) -> None:
    """One round of clients that are generated when they are read; run it in a separate process."""

    def pairs() -> Iterator[Any]:
        return ((i, client(i)) for i in range(clients))

    engine = Beam(clients_per_batch=32) if beam else Sequential()
    engine.run(make_round(64), start(), ClientReader([(i, client(i)) for i in range(64)]))  # loads libraries
    before = psutil.Process().memory_info().rss
    record = engine.run(make_round(clients), start(), ClientReader(pairs, clients=clients))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data = clients * sum(x.nbytes for x in client(0)) / 2**20
    compiled = sum("was compiled" in note for note in record.notes)
    print(
        f"{record.engine}: {clients} clients, {data:.0f} MiB of data, {record.seconds:.1f} s; "
        f"{before / 2**20:.0f} MiB before, peak {peak:.0f} MiB; {compiled} compilation(s)",
        flush=True,
    )


def compare_reading(beam: bool, numbers: Sequence[int]) -> None:
    for clients in numbers:
        process = multiprocessing.get_context("spawn").Process(target=read_many, args=(beam, clients))
        process.start()
        process.join(1800)
        process.kill()


def compare_flower(clients: int, repetitions: int) -> None:
    """Both simulations run side by side, each with its own two worker processes, and take turns."""
    from benchmarks.flower_by_hand import WORKERS, FlowerByHand
    from workbench.engines import Flower

    with Flower(workers=WORKERS, start_seconds=600) as flower, FlowerByHand(clients) as theirs:
        compare("Flower's simulation", flower.run, theirs, clients, repetitions)


def compare_dask(clients: int, repetitions: int) -> None:
    from distributed import Client, LocalCluster  # pyright: ignore[reportAttributeAccessIssue]

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as dask:
        pool = dask.get_executor()
        ours = Executor(pool, clients_per_task=32).run
        compare("2 Dask processes, 32 a task", ours, by_hand(pool, 32), clients, repetitions)
        ours = Executor(pool, clients_per_task=2).run
        shared = by_hand(dask, 2, functools.partial(dask.scatter, broadcast=True))
        for name, theirs in ("scattered", shared), ("submitted", by_hand(pool, 2)):
            compare(f"2 Dask processes, 20 MB {name}", ours, theirs, 16, repetitions, hidden=80_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[256])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--beam", action="store_true")
    parser.add_argument("--dask", action="store_true")
    parser.add_argument("--flower", action="store_true", help="Flower alone, one client per node")
    parser.add_argument("--spark", metavar="MASTER", help="Spark alone, on this master: local[2]")
    parser.add_argument("--reader", action="store_true")
    chosen = parser.parse_args()
    if chosen.reader:
        compare_reading(chosen.beam, chosen.clients)
        return
    if chosen.spark:
        compare_spark(chosen.clients[0], chosen.repetitions, chosen.spark)
        return
    if chosen.flower:
        compare_flower(chosen.clients[0], chosen.repetitions)
        return
    print(f"{'engine':28} {'ours':>11} {'by hand':>13} {'ratio':>8}")
    sizes = (chosen.clients[0], chosen.repetitions)
    compare("sequential", Sequential().run, by_hand(None, 1), *sizes)
    compare("mesh", MeshEngine(chunk_size=None).run, by_hand(None, chosen.clients[0]), *sizes)
    with ThreadPoolExecutor(2) as pool:
        compare("2 threads, 32 a task", Executor(pool, clients_per_task=32).run, by_hand(pool, 32), *sizes)
    try:
        from loky import get_reusable_executor
    except ImportError:
        print("loky is not installed")
    else:
        pool = get_reusable_executor(2)
        compare("2 loky processes, 32 a task", Executor(pool, clients_per_task=32).run, by_hand(pool, 32), *sizes)
    if chosen.dask:
        compare_dask(*sizes)
    if chosen.beam:
        compare("Beam in process, 32 a batch", Beam(clients_per_batch=32).run, beam_by_hand(32), *sizes)


if __name__ == "__main__":
    main()
