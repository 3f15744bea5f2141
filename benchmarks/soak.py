"""Memory and threads over many rounds, inspections and explorers: `python -m benchmarks.soak --share 1`."""

import argparse
import ctypes
import gc
import sys
import threading
import time

import jax.numpy as jnp
import psutil

import workbench as wb


def _now() -> tuple[float, int]:
    """RSS in MiB and the number of threads; what the C library has free and keeps is given back before."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss / 2**20, threading.active_count()


def main() -> None:
    """Prints one line per part, a tenth of it having run before as a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of 5,000 rounds, 500 inspections and 200 explorers")
    share = parser.parse_args().share
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

    for part, whole in ((rounds, 5000), (inspections, 500), (explorers, 200)):
        count = max(1, int(whole * share))
        part(max(1, count // 10))
        before, started = _now(), time.monotonic()
        part(count)
        after = _now()
        seconds = time.monotonic() - started
        print(
            f"{count} {part.__name__}: RSS {before[0]:.0f} -> {after[0]:.0f} MiB, threads {before[1]} -> {after[1]}, "
            f"{seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
