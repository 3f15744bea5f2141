"""Interrupts long calls at random times: `python -m benchmarks.interrupts --landed 1000`.

Each call is first made twice undisturbed, to measure its answer and its duration. Bursts of one to three SIGINTs
(Ctrl-C) then arrive while the call runs, until `--landed` interrupts have hit a running call. After each burst, the
process must be unchanged (JAX's configuration, patches, filters, threads, children, descriptors, temporary files, …),
and JAX must compute. After each fourth burst, the same call must give the same answer. Prints one line per call, with
the numbers of interrupts that landed, of ended calls, and of faults. The exit status is the number of faults. Calls
that use up `--seconds` of processor time leave the rest of their interrupts to cheaper calls, which come last.
"""

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import workbench as wb
from benchmarks.public_calls import BATCHES, KEEPS, W, X, average, calls, changes, descent, world
from workbench.federated.experiments import sweep

Call = Callable[[], Any]


def continued_run() -> Any:
    """The state after 40 rounds; an interrupt ends the cell between two rounds, and the run then continues."""
    call = wb.jit(average())
    run = wb.Run(lambda w, round: (w * 0.9 + call(w, X) / 100, {}), W, 40, progress=False)
    while run.status != "finished":
        try:
            run.start()
        except KeyboardInterrupt as error:
            if getattr(error, "run", run) is not run or run.status not in ("ready", "interrupted", "finished"):
                raise AssertionError(run.status) from error
    return np.asarray(run.state).tolist()


def continued_sweep() -> Any:
    """The losses of two trials; an interrupted sweep is resumed."""
    options = {"data": BATCHES, "rounds": 3, "rounds_per_call": 1, "progress": False}
    call = lambda: sweep(descent, {"lr": [0.1, 0.2]}, params=W, **options)  # noqa: E731
    while True:
        try:
            result = call()
            break
        except KeyboardInterrupt as error:
            interrupted = getattr(error, "result", None)
            if interrupted is None:  # before there was one
                raise
            call = interrupted.resume
    return [np.asarray(result.metrics(trial, 0)["loss"]).tolist() for trial in range(2)]


LONG = (
    "search", "advise", "fit", "sweep", "measure", "why", "inspect", "inspect a program", "explore", "page",
    "run_rounds with checkpoints", "run_rounds in a folder", "export and load", "executor engine", "tap",
    "sequential engine", "run_rounds", "watch_compilations", "grad", "jit", "compare", "json", "trace",
    "calibrate", "watch", "launch", "open_profile", "playground",
)  # fmt: skip


class Bursts:
    """Sends SIGINTs to the main thread during a call; none arrives after the call."""

    def __init__(self) -> None:
        self.armed = False
        self.landed = 0
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: object) -> None:
        if self.armed:
            self.landed += 1
            raise KeyboardInterrupt

    def disturb(self, call: Call, moments: list[float]) -> bool:
        """Returns whether interrupts at these moments (seconds) ended the call."""
        timers = [threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)) for seconds in moments]
        for timer in timers:
            timer.start()
        try:
            self.armed = True
            call()
            self.armed = False
        except KeyboardInterrupt:
            self.armed = False
            return True
        finally:
            self.armed = False
            for timer in timers:
                timer.cancel()
                timer.join()
        return False


def unusable(
    call: Call, name: str, wanted: int, draw: random.Random, seconds: float
) -> tuple[int, int, int, list[str]]:
    """Numbers of bursts, landed interrupts and ended calls, and the faults found afterwards."""
    place, sender = Path(tempfile.gettempdir()), Bursts()
    tanh, until = jax.jit(jax.numpy.tanh), time.process_time() + seconds
    call()
    began = time.perf_counter()
    expected = call()
    took = time.perf_counter() - began
    before, wrong, ended, bursts = world(place), [], 0, 0
    while sender.landed < wanted and (time.process_time() < until or sender.landed < 10):
        moments = sorted(draw.uniform(0, took) for _ in range(draw.randint(1, 3)))
        where = f"after interrupts at {', '.join(f'{each:.3f}' for each in moments)} of {took:.3f} s"
        bursts += 1
        try:
            ended += sender.disturb(call, moments)
            if bursts % 4 == 0 and call() != expected:
                wrong.append(f"another answer {where}")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {str(error)[:200]} {where}")
        if not np.isclose(tanh(bursts), np.tanh(bursts)):
            wrong.append(f"JAX computes wrong {where}")
        if left := _left(name, before, place):
            wrong.append(f"{left} {where}")
            before = world(place)
    return bursts, sender.landed, ended, wrong


def _left(name: str, before: dict[str, Any], place: Path) -> dict[str, Any]:
    """The differences from the earlier state; threads and processes have ten seconds to end."""
    until = time.monotonic() + 10
    while True:
        left = changes(before, world(place))
        if name in KEEPS:  # the process that compiles is another one now: one is kept, with its folder
            left = {key: value for key, value in left.items() if key not in ("children", "descriptors", "threads")}
            left = {key: value for key, value in left.items() if key != "temporary files" or len(value[1]) > 1}
        if not left or time.monotonic() > until:
            return left
        gc.collect()
        time.sleep(0.05)


def main() -> int:
    """Runs the calls, and returns the number of faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--landed", type=int, default=1000, help="number of interrupts that hit a running call, over all calls"
    )
    parser.add_argument("--seconds", type=float, default=60, help="maximum processor time for one call")
    parser.add_argument("--call", action="append", help="run only this call; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total = np.zeros(4, int)
    with tempfile.TemporaryDirectory() as place:
        tempfile.tempdir = tempfile.mkdtemp(dir=place)
        known = calls(Path(place), wb.inspect(average())(W, X))
        chosen = {name: known[name] for name in LONG}
        chosen = {"a resumed sweep": continued_sweep, "a continued run": continued_run} | chosen
        chosen = {name: chosen[name] for name in given.call or chosen}
        for done, (name, call) in enumerate(chosen.items()):
            began = time.monotonic()
            wanted = -(-(given.landed - int(total[1])) // (len(chosen) - done))
            bursts, landed, ended, wrong = unusable(call, name, wanted, random.Random(given.seed), given.seconds)
            total += [bursts, landed, ended, len(wrong)]
            print(
                f"{name}: {bursts} bursts, {landed} interrupts landed, {ended} ended it, {len(wrong)} faults; "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
            for line in wrong[:10]:
                print(f"  {line[:600]}")
    bursts, landed, ended, left = total
    print(f"all: {bursts} bursts, {landed} interrupts landed, {ended} ended the call, {left} faults")
    return min(int(left), 100)


if __name__ == "__main__":
    sys.exit(main())
