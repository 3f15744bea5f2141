"""Memory and threads over many rounds, inspections and explorers: `python -m benchmarks.soak --share 1`.

With `--minutes 20`, the three kinds of work alternate for this time, each time with a twentieth of the share.
"""

import argparse
import ctypes
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable

import jax.numpy as jnp
import psutil

import workbench as wb


def _now() -> tuple[float, int]:
    """RSS in MiB and the number of threads, after the C library has returned its free memory."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / 2**20, threading.active_count()


def main() -> None:
    """Prints one line per part, after a tenth of the part as a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of 5,000 rounds, 500 inspections and 200 explorers"
    )
    parser.add_argument("--minutes", type=float, help="alternate the work for at least this number of minutes")
    given = parser.parse_args()
    share = given.share
    program = wb.program(clients=4)(lambda x: wb.reduce_mean(wb.map_fn(lambda row: row * 2, x)))
    x = jnp.ones(4)

    def rounds(count: int) -> None:
        wb.run_rounds(lambda state, round: (state + 1, {"loss": 1.0}), 0, count, progress=False)

    def inspections(count: int) -> None:
        for _ in range(count):
            wb.inspect(program)(x)

    def explorers(count: int) -> None:
        record = wb.inspect(program)(x)
        for _ in range(count):
            wb.explore(record).close()

    parts = {"rounds": (rounds, 5000), "inspections": (inspections, 500), "explorers": (explorers, 200)}
    if given.minutes:
        _by_time(parts, share, given.minutes * 60)
        return
    for name, (part, whole) in parts.items():
        count = max(1, int(whole * share))
        part(max(1, count // 10))
        before, started = _now(), time.monotonic()
        part(count)
        after = _now()
        _report(f"{count} {name}", before, after, time.monotonic() - started)


def _by_time(parts: dict[str, tuple[Callable[[int], None], int]], share: float, seconds: float) -> None:
    """Alternates the parts until the time is over and each part is complete; the first pass is a warm-up."""
    counts, before, highest = dict.fromkeys(parts, 0), (0.0, 0), 0.0
    started = time.monotonic()
    for turn in itertools.count():
        if turn > 20 and time.monotonic() - started > seconds:
            break
        for name, (part, whole) in parts.items():
            count = max(1, int(whole * share / 20))
            part(count)
            counts[name] += count if turn else 0
        now = _now()
        if turn == 0:
            before = now
        highest = max(highest, now[0])
        if turn % 20 == 0:
            print(f"  turn {turn}: RSS {now[0]:.1f} MiB, threads {now[1]}", flush=True)
    done = ", ".join(f"{count} {name}" for name, count in counts.items())
    _report(f"highest RSS {highest:.0f} MiB; {done}", before, _now(), time.monotonic() - started)


def _report(what: str, before: tuple[float, int], after: tuple[float, int], seconds: float) -> None:
    memory, threads = f"{before[0]:.0f} -> {after[0]:.0f} MiB", f"{before[1]} -> {after[1]}"
    print(f"{what}: RSS {memory}, threads {threads}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
