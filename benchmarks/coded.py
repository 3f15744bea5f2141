"""Coded products on engines with late workers: speed-up of continuing after k of n answers.

A worker answers 3 (1 + Exp(1)) / k seconds after it has computed its product, as in the paper's model. The engine
continues after the first k answers and cancels the other tasks. Without a code, the engine needs all n blocks. Both
products are timed one after another, in alternating order. A pair begins when every worker is free again.
"""

# pyright: reportMissingImports=false

import concurrent.futures
import contextlib
import importlib
import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

import workbench as wb
from workbench import algorithms
from workbench.engines import Executor

WORKERS, BLOCKS, PAIRS, SCALE = 10, 5, 8, 3.0  # blocks of pairs; seconds of the whole work on one worker, at least


def late(seconds: float, fn: Callable[..., Any], *args: Any) -> Any:
    """Calls a function, and answers later."""
    answer = fn(*args)
    time.sleep(seconds)
    return answer


class Late(concurrent.futures.Executor):
    """A pool whose tasks answer late; each delay is the next of the given seconds."""

    _max_workers = WORKERS

    def __init__(self, pool: concurrent.futures.Executor) -> None:
        self.pool, self.delays, self.sent = pool, iter(()), []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.sent.append(self.pool.submit(late, next(self.delays, 0.0), fn, *args, **kwargs))
        return self.sent[-1]

    def drain(self) -> int:
        """Waits until all workers are free; returns the number of cancelled tasks."""
        cancelled = sum(future.cancelled() for future in self.sent)
        concurrent.futures.wait([future for future in self.sent if not future.cancelled()])
        self.sent.clear()
        return cancelled


@contextlib.contextmanager
def pool_of(name: str) -> Iterator[concurrent.futures.Executor]:
    """A pool of worker processes or Dask workers."""
    if name == "processes":
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=context) as pool:
            yield pool
        return
    distributed: Any = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@wb.program(clients=WORKERS)
def products(blocks: Any, x: Any) -> Any:
    """The product of each worker's block."""
    return wb.map_fn(lambda block, x: block @ x, (blocks, wb.broadcast(x)))


def seconds_of(pool: Late, blocks: Any, x: Any, needed: int, delays: np.ndarray) -> tuple[float, np.ndarray, str]:
    """The seconds of a product that continues after `needed` answers, the product, and the run's note."""
    pool.delays = iter(delays)
    began = time.perf_counter()
    run = Executor(pool, clients_per_task=1, quorum=needed).run(products, blocks, x)
    product = np.asarray(algorithms.decode_blocks(run.results, needed=needed))
    seconds = time.perf_counter() - began
    time.sleep(max(began + float(delays.max()) + 0.1 - time.perf_counter(), 0))  # until every worker is free
    return seconds, product, next((note for note in run.notes if "went on" in note), "")


def coded_engines() -> dict:
    """Speed-up of a coded product over waiting for all answers, on processes and on Dask."""
    needed = algorithms.best_needed(WORKERS)
    random = np.random.default_rng(0)
    a = random.normal(size=(WORKERS * needed * 10, 64)).astype(np.float32)
    x = random.normal(size=(64, 8)).astype(np.float32)
    coded = {
        k: np.asarray(algorithms.encode_blocks(jnp.asarray(a), workers=WORKERS, needed=k)) for k in (needed, WORKERS)
    }
    places = ["processes", *(["Dask"] if importlib.util.find_spec("distributed") else [])]
    result, runs, worst = {}, {}, 0.0
    for place in places:
        gains = []
        with pool_of(place) as own:
            pool = Late(own)
            for k in (needed, WORKERS, needed, WORKERS):  # workers start, and compile
                seconds_of(pool, coded[k], x, k, np.full(WORKERS, 0.2))
            for block in range(BLOCKS):
                spent = {needed: 0.0, WORKERS: 0.0}
                for pair in range(PAIRS):
                    waits = SCALE * (1 + random.exponential(size=WORKERS))
                    for k in (needed, WORKERS) if pair % 2 else (WORKERS, needed):
                        seconds, product, _ = seconds_of(pool, coded[k], x, k, waits / k)
                        spent[k] += seconds
                        worst = max(worst, float(np.abs(product - a @ x).max()))
                gains.append(spent[WORKERS] / spent[needed])
                print(
                    f"  {place}, block {block}: {spent[WORKERS]:.2f} s for all, {spent[needed]:.2f} s coded", flush=True
                )
        runs[place] = {"values": gains}
        result[f"speed-up on {place}"] = gains
    latency = algorithms.expected_latency
    return {
        "paper": "Lee et al., IEEE Trans. Inf. Theory 2018, section III",
        "link": "https://arxiv.org/abs/1512.02673",
        "claim": "Continuing after the first k of n coded answers is faster than waiting for all answers.",
        "settings": (
            f"There are n = {WORKERS} workers, and k = {needed} answers are needed, which is the best value for μ = "
            f"1. A worker answers {SCALE:g} (1 + Exp(1)) / k s after it has computed its product. There are {BLOCKS} "
            f"blocks of {PAIRS} pairs of products. In a pair, one product waits for all answers, and the other "
            "continues after k answers; both have the same delays, and their order alternates. The speed-up of a "
            "block is the total time with all answers, divided by the total time with k answers. "
            "`Executor(pool, clients_per_task=1, quorum=k)` cancels tasks that have not begun, and discards later "
            "answers."
        ),
        "result": result
        | {
            "speed-up predicted by the model": f"{latency(WORKERS, WORKERS) / latency(WORKERS, needed):.2f}, "
            "ratio of mean seconds",
            "largest error of a product": f"{worst:.1e}",
        },
        "runs": runs,
        "deviation": ("The workers sleep on one machine; in the paper's experiments, stragglers occur in a cluster."),
    }
