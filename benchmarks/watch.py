"""Overhead of `wb.watch` per call: the same loop with and without it, interleaved, for steps of several lengths.

Use the figures only from a quiet machine. `python -m benchmarks.watch [--turns 15] [--profile]`
"""

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import workbench as wb

WIDTHS, CALLS = (64, 512, 900), 40  # of a product of square matrices, and calls of one turn


def main() -> None:
    """Prints the table: milliseconds per step, and the overhead as a median over turns with its quartiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="print the time of the calling thread by function")
    arguments = parser.parse_args()
    print(
        f"{'width':>6}{'loop':>14}{'plain ms':>10}{'watched ms':>12}{'overhead':>10}{'quartiles':>20}{'added µs':>10}"
    )
    for width in WIDTHS:
        for blocking in (False, True):
            pairs = interleaved(width, blocking=blocking, turns=arguments.turns)
            plain, watched = (statistics.median(side) for side in zip(*pairs, strict=True))
            low, middle, high = statistics.quantiles([with_it / without - 1 for without, with_it in pairs], n=4)
            added = statistics.median(1e6 * (with_it - without) for without, with_it in pairs)
            kind = "waits" if blocking else "does not wait"
            spread = f"{100 * low:.2f} % to {100 * high:.2f} %"
            times = f"{1e3 * plain:>10.3f}{1e3 * watched:>12.3f}"
            print(f"{width:>6}{kind:>14}{times}{middle:>10.2%}{spread:>20}{added:>10.1f}", flush=True)
    names = ("calling thread", "all threads")
    for name, added in zip(names, added_processor_seconds(arguments.turns), strict=True):
        low, middle, high = (1e6 * each for each in statistics.quantiles(added, n=4))
        share = f"{middle / 100:.2f} % of a step of 10 ms"
        print(f"processor time added, {name}: {middle:.1f} µs ({low:.1f} to {high:.1f}), {share}")
    if arguments.profile:
        show_profile()


def make_step(width: int) -> tuple[Callable[..., tuple[jax.Array, jax.Array]], jax.Array]:
    """A step and its state."""

    @jax.jit
    def step(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = jnp.tanh(w @ w) / width
        return new, new.sum()

    return step, jnp.ones((width, width))


def interleaved(width: int, *, blocking: bool, turns: int) -> list[tuple[float, float]]:
    """Seconds per step without and with the watch in every repetition, in alternating order."""
    step, w = make_step(width)
    watched = wb.watch(step, show=False)
    for call in (step, watched):
        jax.block_until_ready(call(w))
    time.sleep(1.0)  # the compiled step is read in the background
    pairs = []
    for turn in range(turns):
        seconds: dict[int, float] = {}
        for place, call in sorted(enumerate((step, watched)), reverse=turn % 2 == 1, key=lambda entry: entry[0]):
            began, state = time.perf_counter(), w
            for _ in range(CALLS):
                state, loss = call(state)
                if blocking:
                    float(loss)
            jax.block_until_ready(state)
            seconds[place] = (time.perf_counter() - began) / CALLS
        pairs.append((seconds[0], seconds[1]))
    watched.close()
    return pairs


def added_processor_seconds(turns: int) -> tuple[list[float], list[float]]:
    """Processor seconds that a watch adds to a call, for the calling thread and for all threads."""
    step, w = make_step(WIDTHS[0])
    watched = wb.watch(step, show=False)
    for call in (step, watched):
        jax.block_until_ready(call(w))
    time.sleep(1.0)
    calls, caller, everything = 400, [], []
    for turn in range(turns):
        spent: dict[bool, tuple[float, float]] = {}
        for is_watched in (False, True) if turn % 2 else (True, False):
            call, state = watched if is_watched else step, w
            began = time.thread_time(), time.process_time()
            for _ in range(calls):
                state, loss = call(state)
                float(loss)
            thread = time.thread_time() - began[0]
            if is_watched:
                _ = watched.record  # waits until the other thread has recorded the calls
            spent[is_watched] = thread / calls, (time.process_time() - began[1]) / calls
        caller.append(spent[True][0] - spent[False][0])
        everything.append(spent[True][1] - spent[False][1])
    watched.close()
    return caller, everything


def show_profile() -> None:
    """Prints the calling thread's functions, sorted by own time."""
    step, w = make_step(WIDTHS[0])
    watched = wb.watch(step, show=False)
    jax.block_until_ready(watched(w))
    with cProfile.Profile() as profile:
        for _ in range(1000):
            watched(w)
    pstats.Stats(profile).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
