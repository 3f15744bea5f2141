"""Time, memory and lines of the pipeline on Spark, with Workbench and by hand: `python -m benchmarks.spark_pipeline`.

Both versions read the same Parquet file and write the same model and scores. To measure time, both versions alternate
in one session, after one compiling call of each; the order changes in every pair. To measure memory (`--memory`), each
run has its own process and session. Memory is the maximum of sampled proportional set sizes, summed over the driver's
Python, the JVM and all Python workers. Ratios are between the two runs of a pair: median, lowest and highest.
"""

# pyright: reportMissingImports=false

import argparse
import contextlib
import inspect
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

VERSIONS = ("workbench", "by hand")
PLACES = ("driver", "JVM", "workers")


def run(version: str, session: Any, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs a pipeline, and returns its seconds, the weights and the last loss."""
    from benchmarks import spark_pipeline_by_hand
    from examples import spark_pipeline

    pipeline: Any = spark_pipeline if version == "workbench" else spark_pipeline_by_hand
    session.catalog.clearCache()
    began, used = time.perf_counter(), processor_seconds()
    found = pipeline.run_pipeline(session, folder, arguments.rounds, users_per_batch=arguments.users_per_batch)
    times = {"seconds": time.perf_counter() - began, "processor, s": processor_seconds() - used}
    return {**times, "weights": found["weights"].tolist(), "loss": float(found["losses"][-1])}


def processor_seconds() -> float:
    """Processor time of this process, the JVM and the workers, which depends less on other load."""
    total = 0.0
    for process in (root := psutil.Process(), *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # with children that have ended
    return total


def memory_of(root: psutil.Process) -> dict[str, float]:
    """Current MiB of each process group."""
    memory: dict[str, float] = dict.fromkeys(PLACES, 0.0)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            place = "driver" if process == root else "JVM" if process.name() == "java" else "workers"
            memory[place] += process.memory_full_info().pss / 2**20
    return memory


def measure(version: str, flags: Sequence[str]) -> dict[str, Any]:
    """Runs one version in a separate process, and samples its memory."""
    command = [sys.executable, "-m", "benchmarks.spark_pipeline", "--version", version, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        peak: dict[str, float] = dict.fromkeys(PLACES, 0.0)
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                peak = {place: max(peak[place], mib) for place, mib in memory_of(root).items()}
            time.sleep(0.3)
        result = json.loads(process.stdout.read().splitlines()[-1])
    return {**result, **peak, "all": sum(peak.values())}


def lines_of(*objects: Any) -> int:
    """Lines with code, without docstrings and comments."""
    count = 0
    for thing in objects:
        lines: set[int] = set()
        previous = tokenize.NEWLINE
        for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(thing)).readline):
            layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            if token.type not in (*layout, tokenize.ENDMARKER) and not (
                token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT)
            ):
                lines.update(range(token.start[0], token.end[0] + 1))
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                previous = token.type
        count += len(lines)
    return count


def print_lines() -> None:
    from benchmarks import spark_pipeline_by_hand as hand
    from examples import spark_pipeline as ours

    shared = lines_of(ours.features_of, ours.logits)
    mine = lines_of(ours.step, ours.run_pipeline)
    theirs = lines_of(hand.loss, hand.gradients, hand.pack, hand.compute, hand.predict, hand.run_pipeline) + 1
    print(f"lines without imports: {shared + mine} with Workbench, {shared + theirs} by hand ({shared} are shared)")


def compare(pairs: int, call: Callable[[str], dict[str, Any]], figures: Sequence[str]) -> None:
    """Calls both versions in turn, and prints medians and ratios."""
    runs: dict[str, list[dict[str, Any]]] = {version: [] for version in VERSIONS}
    for pair in range(pairs):
        for version in VERSIONS if pair % 2 == 0 else reversed(VERSIONS):
            runs[version].append(call(version))
            print("#", version, json.dumps(runs[version][-1]), flush=True)
        np.testing.assert_allclose(*(runs[version][-1]["weights"] for version in VERSIONS), rtol=1e-4, atol=1e-5)
    print(f"{'':20} {VERSIONS[0]:>10} {VERSIONS[1]:>10}  ratio (lowest to highest)")
    for figure in figures:
        mine, theirs = ([one[figure] for one in runs[version]] for version in VERSIONS)
        ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
        print(
            f"{figure:20} {statistics.median(mine):10.2f} {statistics.median(theirs):10.2f}  "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=240_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--users-per-batch", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help="measure memory, not time")
    parser.add_argument("--version", choices=VERSIONS, help="run only this version, and measure its memory")
    parser.add_argument("--folder", type=Path, help="folder with events.parquet; default: a new table")
    chosen = parser.parse_args()
    with contextlib.ExitStack() as stack:
        from examples.spark_pipeline import own_session, write_events

        folder = chosen.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "events.parquet").exists():
            write_events(folder / "events.parquet", users=chosen.users, rows=chosen.rows)
        flags = [f"--folder={folder}", f"--rounds={chosen.rounds}", f"--users-per-batch={chosen.users_per_batch}"]
        if chosen.version and not chosen.folder:
            print(json.dumps(measure(chosen.version, flags)))
            return
        if chosen.memory:
            compare(chosen.pairs, lambda version: measure(version, flags), (*PLACES, "all"))
            return
        session = own_session("local[2]")
        stack.callback(session.stop)
        if chosen.version:
            print(json.dumps(run(chosen.version, session, folder, chosen)))
            return
        print_lines()
        for version in VERSIONS:
            print("# first call:", version, json.dumps(run(version, session, folder, chosen)), flush=True)
        compare(chosen.pairs, lambda version: run(version, session, folder, chosen), ("seconds", "processor, s"))


if __name__ == "__main__":
    main()
