"""Rounds with a quorum against rounds that wait for all, and against what `population.simulate` predicts for both.

The delays of the clients are those of the simulated population, scaled; each client sleeps on a timer of its own.
"""

import concurrent.futures
import contextlib
import threading
import time
from typing import Any

import numpy as np

import workbench as wb
from workbench.engines import Executor
from workbench.federated.population import (
    Population,
    Synchronous,
    _rounds,
    simulate,
)
from workbench.records.run import WorkRecord

ASKED, NEEDED, ROUNDS, MEDIAN_SECONDS = 26, 20, 6, 2.0


@wb.program(clients=ASKED)
def mean(x: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(lambda row: row * 2, x))


class Delayed(concurrent.futures.Executor):
    """Each task answers after the seconds of its client, or raises when its device leaves."""

    _max_workers = ASKED

    def __init__(self, asked: Any, scale: float) -> None:
        self.seconds = np.minimum(asked.finish, asked.leave) * scale
        self.left = asked.finish > asked.leave

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        client = int(args[0].operands[0])

        def answer() -> None:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was called off
                if self.left[client]:
                    future.set_exception(OSError("the device left"))
                elif not future.cancelled():
                    future.set_result(fn(*args, **kwargs))

        timer = threading.Timer(self.seconds[client], answer)
        timer.daemon = True
        timer.start()
        return future


def main() -> None:
    """Prints one line for each round, and the sums."""
    cohorts: list[Any] = []
    select = _rounds.select
    _rounds.select = lambda *args, **options: (cohorts.append((found := select(*args, **options))[0]), found)[1]
    work = WorkRecord(flops=1e11, download_bytes=5e6, upload_bytes=5e6)
    schedule = Synchronous(cohort=NEEDED, over_selection=ASKED / NEEDED, deadline_seconds=None)
    rounds = simulate(Population(1_000_000), work, schedule, rounds=ROUNDS).record.rounds
    scale = MEDIAN_SECONDS / float(np.median([each.seconds for each in rounds]))
    x, rows = np.arange(ASKED, dtype=np.float32), []
    print("seconds: quorum, predicted | all that stay, predicted")
    for asked, simulated in zip(cohorts, rounds, strict=False):
        stay = asked.finish <= asked.leave
        row = []
        for need, predicted in ((NEEDED, simulated.seconds), (int(stay.sum()), asked.finish[stay].max())):
            engine = Executor(Delayed(asked, 0.0), clients_per_task=1, quorum=need)
            engine.run(mean, x)  # compiles
            engine.pool = Delayed(asked, scale)
            started = time.perf_counter()
            engine.run(mean, x)
            row += [time.perf_counter() - started, predicted * scale]
        rows.append(row)
        print(f"{row[0]:6.2f} {row[1]:6.2f} | {row[2]:6.2f} {row[3]:6.2f}", flush=True)
    quorum, quorum_predicted, everyone, everyone_predicted = np.sum(rows, axis=0)
    print(f"speed-up {everyone / quorum:.2f}, predicted {everyone_predicted / quorum_predicted:.2f}")


if __name__ == "__main__":
    main()
