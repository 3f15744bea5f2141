"""Kills processes at random times, and checks that nothing is lost: `python -m benchmarks.faults --kills 100`.

Six parts share the kills. `rounds` is a checkpointed run that resumes after each kill, and `sweeps` is a stored sweep
that also resumes. `files` are overwritten repeatedly, and `aot` are entries of the compilation cache. `engines` are
kernels that run clients in a pool of processes, and `launch` are kernels whose nodes are processes. The last two must
leave no process and no file. `--signal INT` sends Ctrl-C instead. Prints one line per part, with the numbers of tried
kills, survived kills and losses, and one line with the sums. The exit status is the number of losses.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import workbench as wb
from benchmarks import sweep_kills
from workbench.aot._cache import CompilationCache
from workbench.engines import Executor
from workbench.launch import Program, PyNode, ServiceNode, launch
from workbench.measurement import History, Run, load_checkpoint
from workbench.records.live import RoundRecord

_ROUNDS = 10**6
_CONTEXT = multiprocessing.get_context("forkserver")  # a process that has imported all this starts in milliseconds
_LIBRARIES = ["jax", "orbax.checkpoint", "workbench.measurement", "workbench.aot", "benchmarks.sweep_kills"]


def _step(state: Any, round: int) -> tuple[Any, dict[str, float]]:
    """A round whose result depends on every round before it, to the last bit."""
    after = {"w": np.sin(state["w"] * 1.7 + round), "count": state["count"] + 1}
    return after, {"sum": float(after["w"].sum())}


def _start() -> Any:
    return {"w": np.linspace(0.0, 1.0, 1000), "count": np.int64(0)}


def run_on(folder: str) -> None:
    """A run that resumes from its folder."""
    Run(_step, _start(), _ROUNDS, checkpoint_dir=folder, progress=False).start()


def _history(rounds: int, scale: float) -> History:
    records = [RoundRecord(round=i, seconds=0.5, metrics={"loss": scale * i}) for i in range(rounds)]
    return History(tuple(records))


def _writers(folder: Path) -> dict[str, Callable[[int], object]]:
    """A function that overwrites a file with one of two contents."""
    two = (_history(40, 1.0), _history(400, 2.0))
    return {
        "history.json": lambda turn: two[turn].to_json(folder / "history.json"),
    }


def write_in(folder: str) -> None:
    """Overwrites files in an endless loop."""
    writers = _writers(Path(folder))
    for turn in range(_ROUNDS):
        for write in writers.values():
            write(turn % 2)


def store_in(folder: str) -> None:
    """Stores cache entries under the digests of their content, in an endless loop."""
    cache = CompilationCache(folder, limit_bytes=4 << 20)
    for turn in range(_ROUNDS):
        hlo = f"HloModule m{turn % 50}\n" * 2000
        cache.store(hashlib.sha256(hlo.encode()).hexdigest(), {"hlo": hlo})


@wb.program(clients=4)
def _sums(x: Any) -> Any:
    """The clients' function."""
    return wb.reduce_sum(wb.map_fn(lambda row: row * 2.0, x))


def engine_in(folder: str) -> None:
    """Runs clients in a pool of processes, in an endless loop."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        engine = Executor(pool, clients_per_task=1)
        for _ in range(_ROUNDS):
            engine.run(_sums, np.ones((4, 1000), np.float32))


class Held:
    """A service whose calls take a while."""

    def work(self, rows: np.ndarray) -> float:
        """Returns a number after a moment."""
        time.sleep(0.01)
        return float(rows.sum())


def call(held: Any) -> None:
    """Calls the service in an endless loop."""
    for _ in range(_ROUNDS):
        held.work(np.ones(1000, np.float32))


def launch_in(folder: str) -> None:
    """Two nodes as processes; one node calls the other."""
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    program = Program("held")
    held = program.add_node(ServiceNode(Held))
    program.add_node(PyNode(call, held))
    with launch(program, "processes") as launched:
        launched.wait()


def _begin(target: Callable[[str], None], folder: str, ready: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    ready.send(True)
    target(folder)


def _killed(target: Callable[[str], None], folder: Path, seconds: float, signal_number: int) -> None:
    """Starts a process that works in a folder, and kills it after a number of seconds."""
    receive, send = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_begin, args=(target, str(folder), send), daemon=True)
    process.start()
    assert receive.poll(300), f"{target.__name__} did not begin"
    time.sleep(seconds)
    assert process.is_alive(), f"{target.__name__} ended by itself with {process.exitcode}"
    assert process.pid is not None
    os.kill(process.pid, signal_number)
    process.join(300)
    assert not process.is_alive(), f"{target.__name__} continues after signal {signal_number}"


def _left(target: Callable[[str], None], folder: Path, seconds: float, number: int) -> str:
    """Describes the processes and files that a killed kernel leaves; empty if there are none."""
    receive, send = _CONTEXT.Pipe(duplex=False)
    kernel = _CONTEXT.Process(target=_begin, args=(target, str(folder), send))
    kernel.start()
    assert kernel.pid is not None
    assert receive.poll(300), f"{target.__name__} did not begin"
    time.sleep(seconds)
    assert kernel.is_alive(), f"{target.__name__} ended by itself with {kernel.exitcode}"
    below = _below(kernel.pid)
    os.kill(kernel.pid, number)
    kernel.join(300)
    until = time.monotonic() + 60
    while True:
        living = [each for each in below if _lives(each)]
        files = [path.name for path in folder.iterdir()]
        if not kernel.is_alive() and not living and not files:
            return ""
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    for each in living:
        with contextlib.suppress(psutil.Error):
            each.kill()
    for name in files:
        shutil.rmtree(folder / name, ignore_errors=True)
    return f"{len(living)} processes and the files {files} after a kill at {seconds:.2f} s"


def _below(pid: int) -> list[psutil.Process]:
    """All descendants of a running process."""
    while True:
        with contextlib.suppress(psutil.NoSuchProcess):  # one of them ended between two looks
            return psutil.Process(pid).children(recursive=True)


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def engines(kills: int, draw: random.Random, number: int, folder: Path) -> list[str]:
    """Kills kernels that run clients in a pool of processes; nothing may remain."""
    return [left for _ in range(kills) if (left := _left(engine_in, folder, draw.uniform(0.1, 6.0), number))]


def launches(kills: int, draw: random.Random, number: int, folder: Path) -> list[str]:
    """Kills kernels whose nodes are processes; nothing may remain."""
    return [left for _ in range(kills) if (left := _left(launch_in, folder, draw.uniform(0.1, 4.0), number))]


def rounds(kills: int, draw: random.Random, number: int, folder: Path) -> list[str]:
    """Kills one run repeatedly; no round may be lost, differ or run twice."""
    lost, before = [], -1
    for _ in range(kills):
        _killed(run_on, folder, draw.uniform(0.3, 1.5), number)
        try:
            finished = load_checkpoint(folder, _start())[0]
        except Exception as error:
            finished = 0
            if before > 0:
                lost.append(f"{type(error).__name__}: {error}")
        if finished < before:
            lost.append(f"round {before} was on disk, and after the next kill {finished}")
        before = finished
    if before <= 0:
        return [*lost, "no round finished, so nothing was tested"]
    finished, state, history = load_checkpoint(folder, _start())
    expected, sums = _start(), []
    for index in range(finished):
        expected, metrics = _step(expected, index)
        sums.append(metrics["sum"])
    if any(np.asarray(state[name]).tobytes() != np.asarray(expected[name]).tobytes() for name in expected):
        lost.append(f"the state after {finished} rounds differs from the state of an undisturbed run")
    if [record.metrics["sum"] for record in history] != sums:
        lost.append("the history differs from the history of an undisturbed run")
    print(f"  {finished} rounds were finished between the kills")
    return lost


def run_sweep(folder: str) -> None:
    """A sweep that resumes from its folder."""
    sweep_kills.run(folder)


def sweeps(kills: int, draw: random.Random, number: int, folder: Path) -> list[str]:
    """Kills sweeps while they compile, compute or write; no stored round may be lost or differ."""
    lost, before, place, turn = [], dict[tuple[int, int], int](), folder / "0", 0
    for _ in range(kills):
        if sum(before.values()) > 6 * sweep_kills.ROUNDS:  # nearly at its end: the next one
            turn += 1
            lost, before, place = [*lost, *_differs(place)], {}, folder / str(turn)
        _killed(run_sweep, place, draw.uniform(0.3, 5.0), number)
        now = sweep_kills.stored_rounds(str(place))
        if any(now.get(member, -1) < rounds for member, rounds in before.items()):
            lost.append(f"rounds were stored, and after the next kill fewer: {before}, {now}")
        before = now
    return [*lost, *_differs(place)]


def _differs(folder: Path) -> list[str]:
    try:
        sweep_kills.assert_same_bits(str(folder))
    except AssertionError as error:
        return [f"the sweep differs from an undisturbed sweep: {error}"]
    return []


def files(kills: int, draw: random.Random, number: int, folder: Path) -> list[str]:
    """Kills a process that overwrites files; each file must have one complete content."""
    allowed: dict[str, set[bytes]] = {}
    for name, write in _writers(folder).items():
        allowed[name] = set()
        for turn in (0, 1):
            write(turn)
            allowed[name].add((folder / name).read_bytes())
    lost = []
    for _ in range(kills):
        _killed(write_in, folder, draw.uniform(0.1, 0.5), number)
        for name, contents in allowed.items():
            try:
                whole = (folder / name).read_bytes() in contents
            except Exception as error:
                lost.append(f"{name}: {type(error).__name__}: {error}")
            else:
                lost += [] if whole else [f"{name} has neither of its two contents"]
    return lost


def cache(kills: int, draw: random.Random, number: int, folder: Path) -> list[str]:
    """Kills a process that stores cache entries; each entry must be complete or absent."""
    lost, found = [], 0
    for _ in range(kills):
        _killed(store_in, folder, draw.uniform(0.1, 0.5), number)
        known = CompilationCache(folder)
        for turn in range(50):
            hlo = f"HloModule m{turn}\n" * 2000
            entry = known.load(hashlib.sha256(hlo.encode()).hexdigest())
            found += entry is not None
            if entry is not None and entry["hlo"] != hlo:
                lost.append(f"entry {turn} has other content")
    return lost if found else [*lost, "no entry was stored, so nothing was tested"]


PARTS = {"rounds": rounds, "sweeps": sweeps, "files": files, "aot": cache, "engines": engines, "launch": launches}


def main() -> int:
    """Runs the parts, and returns the number of losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="number of kills over all parts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=("KILL", "INT", "TERM"), default="KILL")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="run only this part; may be repeated")
    given = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    _CONTEXT.set_forkserver_preload(_LIBRARIES)
    number, draw, parts = signal.Signals[f"SIG{given.signal}"], random.Random(given.seed), given.part or list(PARTS)
    tried, survived, losses = 0, 0, 0
    for place, part in enumerate(parts):
        share = given.kills // len(parts) + (place < given.kills % len(parts))
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            lost = PARTS[part](share, draw, number, Path(folder))
        kept = max(share - len(lost), 0)
        seconds = time.monotonic() - began
        print(f"{part}: {share} kills tried, {kept} survived, {len(lost)} lost, {seconds:.0f} s", flush=True)
        for line in lost:
            print(f"  {line}")
        tried, survived, losses = tried + share, survived + kept, losses + len(lost)
    print(f"all: {tried} kills tried, {survived} survived, {losses} lost")
    return min(losses, 100)


if __name__ == "__main__":
    sys.exit(main())
