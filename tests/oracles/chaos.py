"""Faults on a real cluster: answers and arguments are dropped, doubled, reordered, delayed, changed and swapped.

    python -m tests.oracles.chaos dask --seconds 300

Programs drawn by chance run on Dask, Ray or Spark. A proxy damages what travels to the workers and back; sources read
their clients again in another order. Each run gives the mesh's results, or an `EngineError` that says what happened.
Prints the number of passes, runs, faults, errors, and wrong results; the exit status is the number of wrong results.
"""

# pyright: reportMissingImports=false

import argparse
import concurrent.futures
import contextlib
import dataclasses
import importlib
import itertools
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import workbench as wb
from tests.drawn_programs import CLIENTS, DATA, drawn_program
from workbench.engines import ClientReader, Engine, Executor, Ray, Spark
from workbench.errors import EngineError

KINDS = ("drop", "late", "double", "reorder", "foreign", "delay", "rows", "values", "outputs", "shape")
WEIGHTS = [0.2 if kind == "late" else 1.0 for kind in KINDS]  # a run waits `STARVED` seconds for a late answer
CLEAR = (
    "exactly one answer|changed|did not answer|failed for|failed in its Spark job|different clients|"
    "a different order|was not done|partial results|answered more than once|do not belong"
)
ROUNDS = 10
SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that compiles little takes half the time
STARVED = 10.0  # seconds after which a run gives up an answer that never comes


def damaged(fn: Callable, kind: str, task: Any, values: Any, *parts: Any) -> Any:
    """What a worker does with a task that is damaged on its way, or whose answer is."""
    if kind == "delay":
        time.sleep(0.05)
    if kind == "rows":
        task = dataclasses.replace(task, operands=[*task.operands[:-1], np.asarray(task.operands[-1]) + 1])
    if kind == "values":
        arrays = [np.asarray(x) + np.asarray(1, np.asarray(x).dtype) for x in values.arrays]
        values = dataclasses.replace(values, arrays=arrays or [np.zeros(1)])
    if kind == "drop":
        message = "the connection to the driver was lost"
        raise ConnectionError(message)
    reply = fn(task, values, *parts)
    outputs = [np.asarray(x) for x in reply.outputs]
    if kind == "outputs":
        return dataclasses.replace(reply, outputs=[x + np.ones((), x.dtype) for x in outputs])
    if kind == "shape":
        return dataclasses.replace(reply, outputs=[x[None] for x in outputs])
    return reply


class Proxy(concurrent.futures.Executor):
    """A pool in front of a cluster's pool, which damages some of its tasks and answers."""

    def __init__(self, pool: Any, draw: random.Random, rate: float) -> None:
        self.pool, self.draw, self.rate = pool, draw, rate
        self.faults: Counter[str] = Counter()
        self.last: Any = None
        self.held: list[tuple[Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        kind = self.draw.choices(KINDS, WEIGHTS)[0] if self.draw.random() < self.rate else ""
        self.faults[kind] += bool(kind)
        outer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        inner = self.pool.submit(damaged, fn, kind, *args)
        if kind == "double":
            self.pool.submit(damaged, fn, "", *args).add_done_callback(lambda done: self._answer(kind, outer, done))
        inner.add_done_callback(lambda done: self._answer(kind, outer, done))
        return outer

    def _answer(self, kind: str, outer: Any, done: Any) -> None:
        if kind == "late":
            return  # the answer never comes
        held, self.held = self.held, [(outer, done)] if kind == "reorder" else []
        if kind != "reorder":
            held.insert(0, (outer, done))
        for each, answer in held:
            self._pass_on(kind if each is outer else "", each, answer)

    def _pass_on(self, kind: str, outer: Any, done: Any) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # it is cancelled, or has another answer
            if done.cancelled():
                outer.cancel()
                return
            if (error := done.exception()) is not None:
                outer.set_exception(error)
                return
            reply = done.result()
            foreign, self.last = self.last or reply, reply
            outer.set_result(foreign if kind == "foreign" else reply)


class Damaged:
    """A step of a Spark job whose input and output tables lose, double, reorder and change rows."""

    kinds = ("drop", "double", "reorder", "swap", "delay", "change", "input drop", "input double", "input change")

    def __init__(self, step: Any, kind: str, seed: int) -> None:
        self.step, self.kind, self.seed = step, kind, seed

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        here = context.partitionId() == self.seed % 2 and (context.attemptNumber() == 0 or self.seed % 3 == 0)
        draw, kind = random.Random(self.seed), self.kind if here else ""
        if kind.startswith("input"):
            batches = iter(self._changed(list(batches), kind.removeprefix("input "), draw))
        outputs = list(self.step(batches))
        yield from outputs if kind.startswith("input") else self._changed(outputs, kind, draw)

    def _changed(self, batches: list[Any], kind: str, draw: random.Random) -> list[Any]:
        import pyarrow as pa

        rows = [batch.slice(i, 1) for batch in batches for i in range(batch.num_rows)]
        if not rows or not kind:
            return batches
        i, j = draw.randrange(len(rows)), draw.randrange(len(rows))
        if kind == "delay":
            time.sleep(0.05)
        elif kind == "drop":
            del rows[i]
        elif kind == "double":
            rows.append(rows[i])
        elif kind == "reorder":
            draw.shuffle(rows)
        else:
            name = draw.choice([name for name in rows[i].schema.names if name not in ("report", "part", "grp")])
            column, other = rows[i].column(name), rows[j].column(name)
            if kind == "change" and (value := column[0].as_py()) is not None:
                if isinstance(value, bytes):
                    value = value[:-1] + bytes([value[-1] ^ 1]) if value else b"x"
                else:
                    value = value + 1 if isinstance(value, int) else value
                other = pa.array([value], column.type)
            rows[i] = rows[i].set_column(rows[i].schema.get_field_index(name), rows[i].schema.field(name), other)
        return rows


@contextlib.contextmanager
def damaged_spark(draw: random.Random, rate: float, faults: Counter[str]) -> Iterator[None]:
    """Damages each step of Spark jobs in which the engine computes or merges clients."""
    from pyspark.sql.classic.dataframe import DataFrame

    original = DataFrame.mapInArrow

    def map_in_arrow(self: Any, step: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        if type(step).__name__ in ("Compute", "Merge"):
            kind = draw.choice(Damaged.kinds) if draw.random() < rate else ""
            faults[kind] += bool(kind)
            step = Damaged(step, kind, draw.randrange(2**62))
        return original(self, step, schema, *args, **kwargs)

    DataFrame.mapInArrow = map_in_arrow
    try:
        yield
    finally:
        DataFrame.mapInArrow = original


@contextlib.contextmanager
def engines(name: str, draw: random.Random, rate: float) -> Iterator[Callable[[int], tuple[Engine, Any]]]:
    """What makes an engine with batches of a size, and its proxy."""
    if name == "spark":
        conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": SHORT_JOBS}
        with Spark("local[2,2]", conf=conf) as engine:
            faults = Counter[str]()

            def sized(size: int) -> tuple[Engine, Any]:
                faults.clear()
                engine.clients_per_batch = size
                return engine, SimpleNamespace(faults=faults)

            with damaged_spark(draw, 4 * rate, faults):  # a job has one step for many tasks
                yield sized
        return
    if name == "ray":
        from tests.ray_cluster import running_ray

        with running_ray():
            yield lambda size: behind_proxy(Ray(clients_per_task=size, timeout_seconds=STARVED), draw, rate)
        return
    distributed: Any = importlib.import_module("dask.distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        pool = client.get_executor()
        yield lambda size: behind_proxy(
            Executor(pool, clients_per_task=size, timeout_seconds=STARVED, backups=draw.random() < 0.5), draw, rate
        )


def behind_proxy(engine: Executor, draw: random.Random, rate: float) -> tuple[Engine, Proxy]:
    """An engine whose tasks pass a proxy."""
    proxy = Proxy(engine.pool, draw, rate)
    engine.pool = proxy
    return engine, proxy


def run(name: str, *, seed: int, seconds: float, passes: int, rate: float = 0.01) -> Counter[str]:
    """Runs drawn programs under faults until the time or the number of passes is reached; returns the counts."""
    draw, counts, until = random.Random(seed), Counter[str](), time.monotonic() + seconds
    with engines(name, draw, rate) as make:
        number = seed
        while time.monotonic() < until and counts["passes"] < passes:
            engine, proxy = make(draw.choice([1, 3, 5]))
            _run_program(engine, number, draw, counts, min(until, time.monotonic() + min(seconds / 4, 30)), passes)
            counts.update({f"fault: {kind}": count for kind, count in proxy.faults.items() if kind})
            number += 1
    return counts


def _run_program(
    engine: Engine, seed: int, draw: random.Random, counts: Counter[str], until: float, passes: int
) -> None:
    one, w, data = drawn_program(seed), np.linspace(0.1, 0.4, 3, dtype=np.float32), DATA / 64

    def turn(w: Any, x: Any) -> Any:
        w = jax.tree.leaves(one(w, x))[0]
        return w, w

    def program(w: Any, x: Any) -> Any:
        """Rounds of the drawn program, all of which are compared."""
        return jax.lax.scan(lambda w, _: turn(w, x), w, None, length=ROUNDS)[1]

    expected = wb.jit(program)(w, data)
    compute, orders = engine._compute, list[list[int]]()

    def counted(work: Any) -> None:
        counts["passes"] += 1
        compute(work)

    def read() -> Any:
        orders.append(draw.sample(range(CLIENTS), CLIENTS) if draw.random() < 0.02 else list(range(CLIENTS)))
        yield from ((i, data[i]) for i in orders[-1])

    engine._compute = counted  # pyright: ignore[reportAttributeAccessIssue]
    for number in itertools.count():
        if time.monotonic() > until or counts["passes"] >= passes:
            break
        orders.clear()
        counts["runs"] += 1
        try:
            results = engine.run(program, w, ClientReader(read, clients=CLIENTS) if number % 4 == 0 else data).results
        except EngineError as error:
            counts["errors"] += 1
            if not re.search(CLEAR, str(error)):
                counts["unclear"] += 1
                print(f"unclear (seed {seed}): {error}", flush=True)
            continue
        if any(order != list(range(CLIENTS)) for order in orders):
            continue  # all passes had one other order, which pairs clients with other weights
        close = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=1e-4, atol=1e-6), results, expected)
        if not all(jax.tree.leaves(close)):
            counts["wrong"] += 1
            print(f"wrong (seed {seed}, run {number}): {results} instead of {expected}", flush=True)
    engine._compute = compute  # pyright: ignore[reportAttributeAccessIssue]


def main() -> int:
    """Prints the counts; returns the number of wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["dask", "ray", "spark"])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--passes", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts = run(given.engine, seed=given.seed, seconds=given.seconds, passes=given.passes)
    for name in ("passes", "runs", "errors", "unclear", "wrong"):
        print(f"{given.engine}: {counts[name]} {name}")
    print({name: count for name, count in counts.items() if name.startswith("fault")}, flush=True)
    return counts["wrong"]


if __name__ == "__main__":
    sys.exit(main())
