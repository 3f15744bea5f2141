"""Kills a sweep repeatedly: `python -m benchmarks.sweep_kills [--kills 25]`.

A child process runs a sweep in a folder. SIGKILL ends the child at a random time, while it compiles, computes or
writes, and the next child resumes the sweep. After each kill, no trial may have fewer finished rounds than before. At
the end, all metrics and states of all trials are compared, bit by bit, with an undisturbed sweep.
"""

import argparse
import json
import multiprocessing
import random
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import workbench as wb
from workbench.federated import algorithms

ROUNDS = 1000


def run(directory: str | None) -> Any:
    def make(lr: Any, momentum: Any) -> algorithms.Algorithm:
        return algorithms.fedavg(
            lambda w, x: ((w - x) ** 2).mean(),
            clients=4,
            client_optimizer=optax.sgd(lr),
            server_optimizer=optax.sgd(1.0, momentum=momentum),
        )

    return wb.experiments.sweep(
        make,
        {"lr": [0.01, 0.1, 1e20], "momentum": [0.0, 0.9]},  # 1e20 diverges at once
        params=lambda key: jax.random.normal(key, (8,)),
        data=lambda key: jax.random.normal(key, (4, 2, 8)),
        seeds=2,
        rounds=ROUNDS,
        rounds_per_call=1,
        directory=directory,
        progress=False,
    )


def stored_rounds(folder: str) -> dict[tuple[int, int], int]:
    file = Path(folder) / "sweep.sqlite"
    if not file.exists():
        return {}
    with sqlite3.connect(file) as base:
        try:
            return {(t, s): n for t, s, n in base.execute("select trial, seed, rounds from members")}
        except sqlite3.OperationalError:  # killed before it made its tables
            return {}


def assert_same_bits(folder: str) -> list[str]:
    """Finishes the sweep, compares all metrics and states with an undisturbed sweep, and returns the statuses."""
    result, whole = run(folder), run(None)
    for trial in range(len(whole.settings)):
        for seed in whole.seeds:
            found, expected = result.metrics(trial, seed), whole.metrics(trial, seed)
            assert found.keys() == expected.keys()
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name])
            jax.tree.map(np.testing.assert_array_equal, result.state(trial, seed), whole.state(trial, seed))
    assert result.trials[["status", "rounds"]].equals(whole.trials[["status", "rounds"]])
    return result.trials["status"].tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=25)
    arguments = parser.parse_args()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["benchmarks.sweep_kills"])  # imports once, compiles in every child
    dice, kills, seen, moments = random.Random(0), 0, {}, []
    with tempfile.TemporaryDirectory() as folder:
        while kills < arguments.kills:
            child = processes.Process(target=run, args=(folder,))
            child.start()
            size = _size(folder)
            if kills % 4:  # three of four die after they have begun to write, the others at any moment
                while child.is_alive() and _size(folder) == size and stored_total(seen) < 12 * ROUNDS:
                    time.sleep(0.01)
                time.sleep(dice.uniform(0, 0.6))
            else:
                time.sleep(dice.uniform(0, 6))
            if not child.is_alive():
                break  # it has finished: fewer kills than asked for, which is reported
            child.kill()
            child.join()
            kills += 1
            now = stored_rounds(folder)
            assert all(now.get(member, -1) >= rounds for member, rounds in seen.items()), (seen, now)
            moments.append(sum(now.values()))
            seen = now
        began = time.perf_counter()
        status = assert_same_bits(folder)
    print(json.dumps({"kills": kills, "rounds after each": moments, "status": status}))
    print(f"all bits equal an undisturbed sweep; the last part took {time.perf_counter() - began:.1f} s")


def stored_total(seen: dict[tuple[int, int], int]) -> int:
    return sum(seen.values())


def _size(folder: str) -> tuple[int, int]:
    file = Path(folder) / "sweep.sqlite"
    if not file.exists():
        return 0, 0
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


if __name__ == "__main__":
    main()
