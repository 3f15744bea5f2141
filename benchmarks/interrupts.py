"""Interrupts work at moments drawn by chance, and does it once more: `python -m benchmarks.interrupts --bursts 20`.

Every kind of work is done once undisturbed, for its result and its duration; then, again and again, one to three
SIGINTs (Ctrl-C) arrive while it goes on. After each burst the same work must give the same result, and nothing of the
burst may be left: no listener, no thread. A line per kind says how many bursts were sent, how many of them ended the
work, and how often it was not usable afterwards; the exit status is the number of these.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import workbench as wb
from workbench.federated import algorithms
from workbench.federated.experiments import sweep

CLIENTS, WIDTH = 4, 16


@wb.program(clients=CLIENTS)
def mean_product(w: Any, x: Any) -> Any:
    """A mean over clients."""
    return wb.reduce_mean(wb.map_fn(lambda w, x: jnp.tanh(x @ w).sum(0), (wb.broadcast(w), x)))


ARGUMENTS = (np.ones((WIDTH, WIDTH), np.float32), np.ones((CLIENTS, 8, WIDTH), np.float32))


def _again() -> Callable[..., Any]:
    """The program as a function that nothing has been compiled of."""
    return lambda w, x: mean_product(w, x)


def trace() -> Any:
    """The stages of a plan."""
    return [(stage.kind, stage.flops_per_client) for stage in wb.trace(_again())(*ARGUMENTS).plan.walk()]


def compile_program() -> Any:
    """What a compiled program returns."""
    return np.asarray(wb.jit(_again())(*ARGUMENTS)).tolist()


def inspect() -> Any:
    """What one call costs."""
    module = wb.inspect(_again())(*ARGUMENTS).module
    assert module is not None
    return module.flops, len(module.instructions), module.memory.peak_bytes


def measure() -> Any:
    """Where a call was measured."""
    return sorted({stage.where for stage in wb.measure(_again(), rounds=2)(*ARGUMENTS).stages})


def rounds() -> Any:
    """The state after 40 rounds: an interrupt ends a run between two of them, and the run goes on."""
    call = wb.jit(_again())
    run = wb.Run(lambda w, round: (w * 0.9 + call(w, ARGUMENTS[1]), {}), ARGUMENTS[0], 40, progress=False)
    while run.status != "finished":
        try:
            run.start()
        except KeyboardInterrupt as error:
            if getattr(error, "run", run) is not run or run.status not in ("ready", "interrupted", "finished"):
                raise AssertionError(run.status) from error
    return np.asarray(run.state).tolist()


def _make(rate: float) -> algorithms.Algorithm:
    return algorithms.fedavg(lambda w, x: (w["w"] - x) ** 2, clients=CLIENTS, client_optimizer=optax.sgd(rate))


def sweep_trials() -> Any:
    """The losses of two trials; an interrupted sweep goes on."""
    data = jnp.arange(2.0 * CLIENTS).reshape(CLIENTS, 2)
    first = lambda key: {"w": jax.random.normal(key)}  # noqa: E731
    options = {"data": data, "rounds": 3, "rounds_per_call": 1, "progress": False}
    call = lambda: sweep(_make, {"rate": [0.1, 0.2]}, params=first, **options)  # noqa: E731
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


def explore() -> Any:
    """The tabs of an explorer."""
    view = wb.explore(_again())(*ARGUMENTS)
    try:
        return sorted(view.get_state())
    finally:
        view.close()


WORK = {
    "trace": trace,
    "compile": compile_program,
    "inspect": inspect,
    "measure": measure,
    "run_rounds": rounds,
    "sweep": sweep_trials,
    "explore": explore,
}


class Bursts:
    """Sends SIGINTs to the main thread while a piece of work goes on; none arrives after it."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *_: object) -> None:
        if self.armed:
            raise KeyboardInterrupt

    def disturb(self, work: Callable[[], Any], moments: list[float]) -> bool:
        """Whether interrupts at these moments (seconds) ended the work."""
        timers = [threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)) for seconds in moments]
        for timer in timers:
            timer.start()
        try:
            self.armed = True
            work()
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


def unusable(name: str, bursts: int, draw: random.Random) -> tuple[int, list[str]]:
    """How many bursts ended the work, and what was wrong afterwards."""
    work, sender = WORK[name], Bursts()
    work()
    began = time.perf_counter()
    expected = work()
    took = time.perf_counter() - began
    threads, wrong, ended = threading.active_count(), [], 0
    for _ in range(bursts):
        moments = sorted(draw.uniform(0, took) for _ in range(draw.randint(1, 3)))
        where = f"after interrupts at {', '.join(f'{each:.3f}' for each in moments)} of {took:.3f} s"
        try:
            ended += sender.disturb(work, moments)
            if work() != expected:
                wrong.append(f"another result {where}")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {str(error)[:200]} {where}")
        if float(jax.jit(lambda x: x + 1)(1.0)) != 2.0:
            wrong.append(f"JAX computes wrong {where}")
    if threading.active_count() > threads + 1:
        wrong.append(f"{threading.active_count() - threads} threads are left")
    return ended, wrong


def main() -> int:
    """How often something was not usable afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=10, help="of each kind of work")
    parser.add_argument("--work", action="append", choices=list(WORK))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    total = [0, 0, 0]
    for name in given.work or list(WORK):
        ended, wrong = unusable(name, given.bursts, random.Random(given.seed))
        print(f"{name}: {given.bursts} bursts, {ended} ended it, {len(wrong)} times not usable afterwards", flush=True)
        for line in wrong:
            print(f"  {line}")
        total = [total[0] + given.bursts, total[1] + ended, total[2] + len(wrong)]
    print(f"all: {total[0]} bursts, {total[1]} ended their work, {total[2]} times not usable afterwards")
    return min(total[2], 100)


if __name__ == "__main__":
    sys.exit(main())
