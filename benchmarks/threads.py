"""Every public call concurrently with every other call, compared with one thread: `python -m benchmarks.threads`.

* threads: four threads make calls until each pair of calls has run concurrently in two threads;
* asyncio: the same with tasks of one event loop;
* nested: each call inside a round of `run_rounds` and inside `watch_compilations`;
* forked: each call in a child that `os.fork` made of the process that has done all this, and a plain `jax.jit` there.

Prints one line per kind, with the numbers of all answers, of answers equal to one thread's, and of different answers.
The process, JAX's configuration and the temporary folder must be unchanged afterwards.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import workbench as wb
from benchmarks.public_calls import W, X, average, calls, changes, world

Calls = dict[str, Callable[[], Any]]
THREADS = 4


class Pairs:
    """Pairs of calls that have run concurrently, and pairs that are left."""

    def __init__(self, names: Iterable[str], seed: int) -> None:
        self.missing = {frozenset(pair) for pair in itertools.combinations_with_replacement(names, 2)}
        self.count = len(self.missing)
        self._running: list[str] = []
        self._lock = threading.Lock()
        self._draw = random.Random(seed)

    def take(self) -> str | None:
        """The next call that has not yet run concurrently with the running calls; None if all pairs have."""
        with self._lock:
            if not self.missing:
                return None
            wanted = [pair for pair in self.missing if pair & set(self._running) or not self._running]
            pair = self._draw.choice(sorted(map(sorted, wanted or self.missing)))
            others = [name for name in pair if name not in self._running] or pair
            name = others[0]
            self.missing -= {frozenset((name, other)) for other in self._running}
            self._running.append(name)
            return name

    def end(self, name: str) -> None:
        """Removes a call from the running calls."""
        with self._lock:
            self._running.remove(name)


def answer(call: Callable[[], Any]) -> Any:
    """A call's result as comparable text, or its error."""
    try:
        return json.dumps(call(), sort_keys=True, default=str)
    except Exception as error:
        return f"raised {type(error).__name__}: {str(error)[:300]}"


def _worker(known: Calls, alone: dict[str, Any], pairs: Pairs, wrong: list[str], count: list[str]) -> None:
    while (name := pairs.take()) is not None:
        try:
            found = answer(known[name])
        finally:
            pairs.end(name)
        count.append(name)
        if found != alone[name]:
            wrong.append(f"{name}: {_difference(alone[name], found)}")


def _difference(due: str, found: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(due, found, strict=False)) if a != b), min(len(due), len(found)))
    return f"…{found[max(at - 60, 0) : at + 60]}… instead of …{due[max(at - 60, 0) : at + 60]}…"


def of_threads(known: Calls, alone: dict[str, Any], seed: int) -> tuple[int, list[str], str]:
    """Numbers of requested and differing answers, and the covered pairs."""
    pairs, wrong, count = Pairs(known, seed), list[str](), list[str]()
    with ThreadPoolExecutor(THREADS) as pool:
        for each in [pool.submit(_worker, known, alone, pairs, wrong, count) for _ in range(THREADS)]:
            each.result()
    return len(count), wrong, f"{pairs.count} of {pairs.count} pairs"


def of_tasks(known: Calls, alone: dict[str, Any], seed: int) -> tuple[int, list[str], str]:
    """The same numbers for tasks of an event loop, with each call in a thread of the loop."""
    pairs, wrong, count = Pairs(known, seed), list[str](), list[str]()

    async def task() -> None:
        while (name := pairs.take()) is not None:
            try:
                found = await asyncio.to_thread(answer, known[name])
            finally:
                pairs.end(name)
            count.append(name)
            if found != alone[name]:
                wrong.append(f"{name}: {_difference(alone[name], found)}")

    async def all_tasks() -> None:
        await asyncio.gather(*(task() for _ in range(THREADS)))

    asyncio.run(all_tasks())
    return len(count), wrong, f"{pairs.count} of {pairs.count} pairs"


def in_a_round(call: Callable[[], Any]) -> Any:
    """The answer of a call inside a round."""
    found = []
    wb.run_rounds(lambda state, _: (found.append(answer(call)) or state, {}), 0, 1, progress=False)
    return found[0]


def while_watched(call: Callable[[], Any]) -> Any:
    """The answer of a call inside `watch_compilations`."""
    with wb.watch_compilations(quiet=True):
        return answer(call)


OUTER = {"in a round": in_a_round, "while watched": while_watched}


def of_nested(known: Calls, alone: dict[str, Any], seed: int) -> tuple[int, list[str], str]:
    """Runs each call inside others."""
    del seed
    wrong, count = [], 0
    for name, call in known.items():
        for outer, run in OUTER.items():
            count += 1
            if (found := run(call)) != alone[name]:
                wrong.append(f"{name} {outer}: {_difference(alone[name], found)}")
    return count, wrong, f"{len(OUTER)} calls around each"


def _in_child(call: Callable[[], Any], sending: Any) -> None:
    sending.send(answer(call))
    sending.close()


def of_forks(known: Calls, alone: dict[str, Any], seed: int) -> tuple[int, list[str], str]:
    """Runs each call in a forked child, which answers like the parent or reports that JAX cannot run there."""
    del seed
    fork = multiprocessing.get_context("fork")

    def in_fork(call: Callable[[], Any], seconds: float) -> Any:
        receiving, sending = fork.Pipe(duplex=False)
        child = fork.Process(target=_in_child, args=(call, sending))
        child.start()
        sending.close()
        try:
            return receiving.recv() if receiving.poll(seconds) else None
        except EOFError:
            return None
        finally:
            child.kill()
            child.join()
            child.close()
            receiving.close()

    plain = in_fork(lambda: float(jax.jit(lambda x: jnp.tanh(x) @ x)(jnp.ones((64, 64))).sum()), 20)
    wrong, refused = [], 0
    for name, call in known.items():
        found = in_fork(call, 60)
        if found is None and not (plain is None and name in OF_THE_USER):
            wrong.append(f"{name}: no answer")
        elif found is None:
            refused += 1
        elif "`os.fork`" in found:
            refused += 1
        elif found != alone[name]:
            wrong.append(f"{name}: {_difference(alone[name], found)}")
    note = "answers" if plain is not None else "gives no answer"
    return len(known), wrong, f"{refused} calls refused with the cause; plain jax.jit {note} there"


OF_THE_USER = ("watch", "watch_compilations")  # what hangs is the user's own `jax.jit`, which these calls only watch
KINDS = {"threads": of_threads, "asyncio": of_tasks, "nested": of_nested, "forked": of_forks}


def main() -> int:
    """Runs the kinds, and returns the number of differing answers and remaining changes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--calls", nargs="*", help="names of calls; default: all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    lost = 0
    with tempfile.TemporaryDirectory() as place:
        known = calls(Path(place), wb.inspect(average())(W, X))
        known = {name: known[name] for name in given.calls or known if name != "show"}  # it prints
        alone = {name: answer(call) for name, call in known.items()}
        again = {name: answer(call) for name, call in known.items()}
        unsteady = [name for name in known if alone[name] != again[name]]
        print(f"{len(known)} calls; different when repeated in one thread: {unsteady or 'none'}")
        known = {name: call for name, call in known.items() if name not in unsteady}
        tempfile.tempdir = tempfile.mkdtemp(dir=place)
        for kind in given.kinds:
            before, began = world(Path(tempfile.tempdir)), time.monotonic()
            count, wrong, covered = KINDS[kind](known, alone, given.seed)
            left = changes(before, world(Path(tempfile.tempdir)))
            print(
                f"{kind}: {count} answers, {count - len(wrong)} equal to one thread's, {len(wrong)} different; "
                f"{covered}; changed afterwards: {sorted(left) or 'nothing'}; {time.monotonic() - began:.0f} s",
                flush=True,
            )
            for line in [*wrong[:20], *(f"{key}: {value}"[:600] for key, value in left.items())]:
                print(f"  {line}", flush=True)
            lost += len(wrong) + len(left)
    return min(lost, 100)


if __name__ == "__main__":
    sys.exit(main())
