"""Kills processes of an engine at random times: `python -m benchmarks.engine_faults spark --kills 5`.

A kernel runs the same program repeatedly on the engine. Workers of each kind are killed one after another. The affected
run must return the same bytes or raise an `EngineError`, and the next run must return the same bytes. Then kernels are
killed. No process and no file of a kernel may remain. Prints one line per kind, with the outcomes and with the time
from the end of a kernel until its last process and file are gone. The exit status is the number of failures.
`--what driver` kills only one kind. `--what stop` stops a worker (SIGSTOP) of an engine with `timeout_seconds`, and
`--what interrupt` interrupts the kernel (Ctrl-C); these two run only if requested. The kind `ray-machines` simulates
the loss of a machine: it kills a second raylet, started as by `ray start`.
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import importlib
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil

import workbench as wb
from workbench.engines import Beam, Engine, Executor, Ray, Spark
from workbench.errors import EngineError

LONG = 240.0  # seconds after which a run or an end counts as hung
MARK = "WORKBENCH_FAULTS_OF"  # in the environment of a kernel, and so of every process that it starts
WORKERS = {  # words of their command lines
    "processes": {"worker": "multiprocessing-fork"},
    "loky": {"worker": "popen_loky_posix"},
    "dask": {"worker": "multiprocessing-fork"},
    "ray": {"worker": "ray::_run", "raylet": "raylet/raylet"},
    "ray-machines": {"raylet of another machine": "--node-name=other"},
    "spark": {"executor": "CoarseGrainedExecutorBackend", "Python worker": "pyspark.daemon", "JVM": "SparkSubmit"},
    "beam": {"worker": "sdk_worker_main"},
}
KEPT = {"dask-scratch-space", "ray"}  # in the folder for temporary files: what libraries keep until their next start


@wb.program(clients=8)
def sines(steps: Any, x: Any) -> Any:
    """Seconds of work with an unpredictable result."""

    def one(steps: Any, row: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, v: jnp.sin(v) + row, row)

    return wb.reduce_sum(wb.map_fn(one, (wb.broadcast(steps), x)))


@contextlib.contextmanager
def running(name: str, limit: float | None) -> Iterator[Callable[[], Engine]]:
    """Yields a function that returns the engine for the next run, like a user who continues after an error."""
    if name == "processes":
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        pools = [ProcessPoolExecutor(2, get_context("spawn"))]

        def again() -> Engine:
            if pools[-1]._broken:
                pools.append(ProcessPoolExecutor(2, get_context("spawn")))
            return Executor(pools[-1], clients_per_task=1, timeout_seconds=limit)

        yield again
        pools[-1].shutdown()
    elif name == "loky":
        from loky import get_reusable_executor

        yield lambda: Executor(get_reusable_executor(2), clients_per_task=1, timeout_seconds=limit)
        get_reusable_executor().shutdown()
    elif name == "dask":
        distributed: Any = importlib.import_module("distributed")

        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
        with cluster, distributed.Client(cluster) as client:
            yield lambda: Executor(client.get_executor(), clients_per_task=1, timeout_seconds=limit)
    elif name.startswith("ray"):
        yield from running_ray(limit, machines=2 if name == "ray-machines" else 1)
    elif name == "spark":
        conf = {"spark.driver.memory": "512m", "spark.deploy.maxExecutorRetries": "-1"}
        with Spark("local-cluster[2,1,1024]", conf=conf, clients_per_batch=1, timeout_seconds=limit) as engine:
            yield lambda: engine
    else:
        options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
        yield lambda: Beam(options, clients_per_batch=2, timeout_seconds=limit)


def running_ray(limit: float | None, machines: int) -> Iterator[Callable[[], Engine]]:
    """Yields the same for two CPUs on simulated Ray machines; lost machines are started again."""
    import ray

    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
    others: list[subprocess.Popen[bytes]] = []

    def again() -> Engine:
        if ray.is_initialized() and not alive():
            ray.shutdown()
        if not ray.is_initialized():
            for trial in range(3):  # Ray gives its node 30 s, which is too little on a busy machine
                try:
                    ray.init(
                        num_cpus=2 // machines, include_dashboard=False, log_to_driver=False, logging_level="error",
                        object_store_memory=100 * 2**20, runtime_env={"env_vars": environment},
                    )  # fmt: skip
                    break
                except Exception:
                    if trial == 2:
                        raise
                    ray.shutdown()
        if alive() < machines:
            address = ray.get_runtime_context().gcs_address
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--num-cpus=1"]
            command += ["--node-name=other", "--object-store-memory=100000000", "--block"]
            others.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            until = time.monotonic() + LONG
            while alive() < machines and time.monotonic() < until:
                time.sleep(0.1)
        return Ray(clients_per_task=1, timeout_seconds=limit)

    def alive() -> int:
        return sum(node["Alive"] for node in ray.nodes())

    yield again
    for other in others:
        other.terminate()
        other.wait(LONG)
    ray.shutdown()


def kernel(name: str, limit: float | None) -> None:
    """Runs until standard input is closed, and prints the outcome of each run."""
    ended, steps, x = threading.Event(), jnp.int32(5_000_000), np.arange(8, dtype=np.float32)
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    first = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with running(name, limit) as engine:
        while not ended.is_set():
            try:
                result = np.asarray(engine().run(sines, steps, x).results).tobytes()
            except EngineError as error:
                print("error", str(error)[:300], flush=True)
                continue
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                continue
            first = first or result
            print("same" if result == first else "differs", flush=True)


class Kernel:
    """A kernel in a separate process, its lines, and its remaining processes and files."""

    def __init__(self, name: str, limit: float | None = None) -> None:
        self.mark, self.folder = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="faults-"))
        folder = str(self.folder)
        environment = {**os.environ, MARK: self.mark, "TMPDIR": folder, "RAY_TMPDIR": folder, "JAX_PLATFORMS": "cpu"}
        paths = [str(Path.cwd()), *(path for path in sys.path if path)]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, "-m", "benchmarks.engine_faults", name, "--kernel"]
        command += [f"--limit={limit}"] if limit else []
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("same", "differs", "error", "interrupted")):  # libraries print lines of their own
                self._lines.put(line.strip())

    def line(self) -> str:
        """The outcome of the next run; "hung" or "ended" if the kernel hangs or has ended."""
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            ended = self.process.poll() is not None
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=1.0)
            if ended:
                return "ended"
        return "hung"

    def forget(self) -> None:
        """Drops the lines of runs that are over."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._lines.get_nowait()

    def living(self, words: str = "") -> list[psutil.Process]:
        """The kernel's processes, including orphans."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                own = process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
                if own and process.pid != self.process.pid and words in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def workers(self, words: str) -> list[psutil.Process]:
        """Processes of one kind; for daemons that fork, the forked workers."""
        found = self.living(words)
        return [p for p in found if words != "pyspark.daemon" or p.parent() in found]

    def close(self) -> None:
        """Ends the kernel as a user would."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LONG)

    def left(self) -> tuple[list[str], float]:
        """What remains a minute after the kernel's end, which is then killed, and the seconds until all was gone."""
        killed = self.process.poll() == -signal.SIGKILL
        began = time.monotonic()
        while (living := self.living()) + (files := self.files(killed)) and time.monotonic() < began + 60:
            time.sleep(0.1)
        seconds = time.monotonic() - began
        names = [f"{p.pid} {' '.join(p.cmdline())[:60]}" for p in living if p.is_running()]
        for process in [*living, psutil.Process(self.process.pid)] if self.process.poll() is None else living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        return [*names, *(file.name for file in files)], seconds

    def files(self, killed: bool) -> list[Path]:
        """Files that the kernel left in the folder; Ray keeps the logs of a session that ended normally."""
        found = [file for file in self.folder.iterdir() if file.name not in KEPT]
        return found + (list(self.folder.glob("ray/session_*")) if killed else [])


def kill_workers(name: str, what: str, words: str, kills: int, draw: random.Random) -> int:
    """Kills the workers of one kind in one kernel."""
    began, reported = time.monotonic(), Counter[str]()
    started = Kernel(name)
    first = started.line()
    for _ in range(kills if first == "same" else 0):
        until = time.monotonic() + LONG
        time.sleep(draw.uniform(0.0, 2.0))
        while not (found := started.workers(words)) and time.monotonic() < until:
            time.sleep(0.01)
        if not found:
            reported["no worker found"] += 1
            break
        started.forget()
        draw.choice(found).kill()
        outcome = started.line()
        reported["same bytes" if outcome == "same" else outcome.partition(" ")[0]] += 1
        if outcome == "error":
            print(f"    {outcome}")
        after = started.line()
        for _ in range(3):  # a second run may still meet what the kill broke
            if after.startswith("error"):
                reported["further errors"] += 1
                after = started.line()
        reported[f"then {after.partition(' ')[0]}"] += 1
    started.close()
    lefts, seconds = started.left()
    return _report(f"{name}, {what}", kills, reported, lefts, seconds, began, bad=kills - reported["then same"])


def kill_drivers(name: str, kills: int, draw: random.Random) -> int:
    """Kills kernels while they run."""
    began, lefts, slowest = time.monotonic(), list[str](), 0.0
    reported = Counter[str]()
    for _ in range(kills):
        started = Kernel(name)
        reported[started.line() + " before"] += 1
        time.sleep(draw.uniform(0.0, 2.0))
        started.process.kill()
        started.process.wait()
        left, seconds = started.left()
        lefts, slowest = lefts + left, max(slowest, seconds)
    return _report(f"{name}, driver", kills, reported, lefts, slowest, began, bad=kills - reported["same before"])


def stop_or_interrupt(name: str, what: str, times: int, limit: float, draw: random.Random) -> int:
    """Stops a worker of a kernel, or interrupts the kernel."""
    began, reported, longest = time.monotonic(), Counter[str](), 0.0
    words = next(iter(WORKERS[name].values())) if name != "spark" else WORKERS[name]["Python worker"]
    started = Kernel(name, limit if what == "stop" else None)
    first = started.line()
    for _ in range(times if first == "same" else 0):
        time.sleep(draw.uniform(0.2, 2.0))
        started.forget()
        if what == "stop":
            until = time.monotonic() + LONG
            while not (found := started.workers(words)) and time.monotonic() < until:
                time.sleep(0.01)
            stopped = draw.choice(found)
            stopped.suspend()
        else:
            started.process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        outcome = started.line()
        while what == "interrupt" and outcome == "same":
            outcome = started.line()  # of a run that had ended
        longest = max(longest, time.monotonic() - sent)
        reported[outcome.partition(" ")[0]] += 1
        if outcome.startswith("error"):
            print(f"    {outcome}")
        after = started.line()
        while after.startswith("error") and reported["further errors"] < 3 * times:
            reported["further errors"] += 1
            after = started.line()
        reported[f"then {after.partition(' ')[0]}"] += 1
    started.close()
    lefts, seconds = started.left()
    print(f"    longest time until the run ended: {longest:.1f} s")
    return _report(f"{name}, {what}", times, reported, lefts, seconds, began, bad=times - reported["then same"])


def _report(
    title: str, kills: int, reported: Counter[str], lefts: list[str], seconds: float, began: float, *, bad: int
) -> int:
    what = ", ".join(f"{count} {word}" for word, count in reported.items())
    gone = f"left: {len(lefts)} after {seconds:.1f} s"
    print(f"{title}: {kills} kills: {what}; {gone}; {time.monotonic() - began:.0f} s in all", flush=True)
    for line in lefts:
        print(f"    left: {line}", flush=True)
    return bad + len(lefts)


def main() -> int:
    """Runs the kills, and returns the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=list(WORKERS))
    parser.add_argument("--kills", type=int, default=3, help="kills per kind of process")
    parser.add_argument("--what", help="only this kind of process; the kernel is the driver")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, help="`timeout_seconds` with `--what stop`")
    parser.add_argument("--kernel", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kernel:
        kernel(given.engine, given.limit)
        return 0
    draw, failures = random.Random(given.seed), 0
    if given.what in ("stop", "interrupt"):
        return stop_or_interrupt(given.engine, given.what, given.kills, given.limit or 20.0, draw)
    for what, words in WORKERS[given.engine].items():
        if given.what in (None, what):
            failures += kill_workers(given.engine, what, words, given.kills, draw)
    if given.what in (None, "driver") and given.engine != "ray-machines":  # does not end others
        failures += kill_drivers(given.engine, given.kills, draw)
    return failures


if __name__ == "__main__":
    sys.exit(main())
