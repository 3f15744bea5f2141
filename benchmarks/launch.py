"""Programs of nodes compared with the plain library below them: `python -m benchmarks.launch`.

For each engine, the benchmark measures the seconds from the launch to the first answer, the median round trip of one
call, calls per second with many concurrent calls, and the median round trip of an array of 25 MB. Each round measures
Workbench and the plain library in turn. The table has medians, and the median of the ratios.
"""

import argparse
import contextlib
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

# A spawned process imports this file: what only the parent needs is imported where it is used.

MEASURES = ("first answer", "round trip", "call in a burst", "array of 25 MB")
ENGINES = ("threads", "processes", "dask", "ray")
Way = Callable[[], Any]
Pair = tuple[tuple[float, ...], tuple[float, ...]]  # ours and plain, each with all measures


@dataclass(frozen=True)
class Case:
    """Workbench's and the plain form, and the number of starts per round."""

    ways: tuple[Way, Way]
    openings: int = 1


class Echo:
    def echo(self, value: int) -> int:
        return value


SERVICES: list[Echo] = []  # of a worker of `plain_processes`


def make_service() -> None:
    SERVICES.append(Echo())


def call_service(value: int) -> int:
    return SERVICES[0].echo(value)


def ours(make_engine: Callable[[], Any]) -> Way:
    from workbench.launch import Program, ServiceNode, launch

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
        program = Program("echo")
        handle = program.add_node(ServiceNode(Echo))
        with launch(program, make_engine()) as launched:
            client = launched.client(handle)
            yield client.echo, client.futures.echo

    return opened


@contextlib.contextmanager
def plain_threads() -> Iterator[tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    with ThreadPoolExecutor(1) as pool:
        service = pool.submit(Echo).result()  # made where it is called, as a node's object is
        yield lambda value: pool.submit(service.echo, value).result(), lambda value: pool.submit(service.echo, value)


@contextlib.contextmanager
def plain_processes() -> Iterator[tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=make_service) as pool:
        yield lambda value: pool.submit(call_service, value).result(), lambda value: pool.submit(call_service, value)


@contextlib.contextmanager
def plain_dask(client: Any) -> Iterator[tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    future = client.submit(Echo, actor=True, pure=False)
    actor = future.result()
    yield lambda value: actor.echo(value).result(), actor.echo
    future.release()


@contextlib.contextmanager
def plain_ray(ray: Any, **options: Any) -> Iterator[tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    actor = ray.remote(num_cpus=0, **options)(Echo).remote()

    class Later:
        def __init__(self, value: int) -> None:
            self.reference = actor.echo.remote(value)

        def result(self) -> Any:
            return ray.get(self.reference)

    yield lambda value: ray.get(actor.echo.remote(value)), Later
    ray.kill(actor)


def seconds_to_first_answer(opened: Any) -> float:
    began = time.perf_counter()
    with opened as (call, _):
        call(0)
        return time.perf_counter() - began


def measured(opened: Any, calls: int, burst: int) -> tuple[float, float, float, float]:
    """Seconds to the first answer, of a round trip, per call of a burst, and of a large array's round trip."""
    import numpy as np

    array = np.random.default_rng(0).random(25 * 10**6 // 8)
    began = time.perf_counter()
    with opened as (call, submit):
        call(0)
        first = time.perf_counter() - began
        trips = []
        for value in range(calls):
            start = time.perf_counter()
            call(value)
            trips.append(time.perf_counter() - start)
        bursts = []
        for _ in range(5):
            start = time.perf_counter()
            for future in [submit(value) for value in range(burst)]:
                future.result()
            bursts.append((time.perf_counter() - start) / burst)
        arrays = []
        for _ in range(6):
            start = time.perf_counter()
            assert call(array)[-1] == array[-1]
            arrays.append(time.perf_counter() - start)
    return first, statistics.median(trips), statistics.median(bursts), statistics.median(arrays[1:])


def one_round(case: Case, calls: int, burst: int, turn: int) -> Pair:
    """Ours and the plain way, each first in every other turn. What opens quickly is opened often."""
    order = (0, 1) if turn % 2 else (1, 0)
    firsts: tuple[list[float], list[float]] = ([], [])
    found: dict[int, tuple[float, float, float, float]] = {}
    for side in order:
        found[side] = measured(case.ways[side](), calls, burst)
    for _ in range(case.openings - 1):
        for side in order:
            firsts[side].append(seconds_to_first_answer(case.ways[side]()))
    mine, theirs = ((statistics.median([found[side][0], *firsts[side]]), *found[side][1:]) for side in (0, 1))
    return mine, theirs


def table(name: str, pairs: list[Pair]) -> list[str]:
    """One line per measure: Workbench, plain, and the median of the rounds' ratios."""
    lines = []
    for place, measure in enumerate(MEASURES):
        mine, theirs = ([round_[side][place] for round_ in pairs] for side in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        a, b = statistics.median(mine), statistics.median(theirs)
        rate = f"{1 / a:11,.0f} {1 / b:11,.0f}" if measure == "call in a burst" else " " * 23
        lines.append(f"{name:38} {measure:16} {a * 1e6:12,.1f} {b * 1e6:12,.1f} {ratio:7.2f} {rate}")
    return lines


def cluster_cases(stack: contextlib.ExitStack, wanted: Collection[str]) -> dict[str, Case]:
    """Peers whose libraries are installed; prints the missing libraries."""
    found = {}
    for library, extra, make in (("distributed", "dask", dask_cases), ("ray", "ray", ray_cases)):
        if extra not in wanted:
            continue
        if importlib.util.find_spec(library) is None:
            print(f'{extra}: not measured, as `{library}` is not installed: pip install "mapreduce-workbench[{extra}]"')
        else:
            found |= make(stack)
    return found


def dask_cases(stack: contextlib.ExitStack) -> dict[str, Case]:
    from distributed import Client, LocalCluster  # pyright: ignore[reportAttributeAccessIssue]

    from workbench.launch import DaskEngine

    cluster = LocalCluster(1, threads_per_worker=4, processes=True, dashboard_address=":0", silence_logs=50)
    client = stack.enter_context(Client(stack.enter_context(cluster), direct_to_workers=True))
    return {"dask, actors": Case((ours(lambda: DaskEngine(client)), lambda: plain_dask(client)), openings=5)}


def ray_cases(stack: contextlib.ExitStack) -> dict[str, Case]:
    """Compares with an actor, and with an actor that answers other calls while it works, as nodes do."""
    import ray  # pyright: ignore[reportMissingImports]

    from workbench.launch import RayEngine

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    stack.callback(ray.shutdown)
    return {
        "ray, actors": Case((ours(RayEngine), lambda: plain_ray(ray))),
        "ray, actors with a concurrency group": Case(
            (ours(RayEngine), lambda: plain_ray(ray, concurrency_groups={"control": 4}))
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--burst", type=int, default=1000)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    options = parser.parse_args()
    from workbench.launch import Launched  # so that the first round does not pay for the import

    del Launched
    cases = {
        "threads, ThreadPoolExecutor": Case((ours(lambda: "threads"), plain_threads), openings=25),
        "processes, ProcessPoolExecutor": Case((ours(lambda: "processes"), plain_processes)),
    }
    cases = {name: case for name, case in cases.items() if name.split(",")[0] in options.engines}
    with contextlib.ExitStack() as stack:
        cases |= cluster_cases(stack, options.engines)
        print(f"{'engine':38} {'measure':16} {'ours µs':>12} {'plain µs':>12} {'ratio':>7}", end="")
        print(f" {'ours /s':>11} {'plain /s':>11}")
        for name, case in cases.items():
            pairs = [one_round(case, options.calls, options.burst, turn) for turn in range(options.rounds)]
            print("\n".join(table(name, pairs)), flush=True)


if __name__ == "__main__":
    main()
