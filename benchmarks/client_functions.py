"""Runs all client functions of the tests in all modes: `python -m benchmarks.client_functions`.

Each case runs a client function in one mode (eager, `jax.jit`, `wb.jit` in chunks, derivatives, meshes of 8 devices)
and compares the result with plain `vmap`. The cases run in a child process. A case that crashes or hangs counts as
wrong, and a new process continues with the next case. Every result is written to `--results` immediately; a later call
with the same file runs only the missing cases. Prints a line for each function and for each case that raises or gives
other numbers, then the counts. The exit status is the number of wrong cases.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
Case = tuple[str, str]


def main() -> int:
    """Runs all combinations of the named functions and modes; by default of all functions and modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="*", help="keys of FUNCTIONS in tests/client_functions.py")
    parser.add_argument("--ways", nargs="*", help="keys of WAYS")
    parser.add_argument("--results", type=Path, default=Path("client-functions.jsonl"), help="one JSON line per case")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit for one case in seconds")
    parser.add_argument("--minutes", type=float, default=None, help="start no new functions after this time")
    parser.add_argument("--again", action="store_true", help="rerun the wrong cases in the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _work([(function, way) for function, way in json.loads(given.child)])
        return 0
    return _supervise(given)


def _supervise(given: argparse.Namespace) -> int:
    functions, ways = _names()
    cases = [(f, w) for f in given.functions or functions for w in given.ways or ways]
    answers = _read(given.results)
    if given.again:
        answers = {case: answer for case, answer in answers.items() if answer["found"] != "wrong"}
    open_cases = [case for case in cases if case not in answers]
    print(f"{len(cases)} cases, {len(cases) - len(open_cases)} of them in {given.results}", flush=True)
    began = time.monotonic()
    with given.results.open("a") as file:
        progress = _Progress(len(open_cases), began)
        while open_cases:
            if given.minutes is not None and time.monotonic() - began > 60 * given.minutes:
                print(f"stopped after {given.minutes:g} minutes; {len(open_cases)} cases are left", flush=True)
                break
            for answer in _in_a_child(_next_group(open_cases), given.seconds):
                answers[answer["function"], answer["way"]] = answer
                file.write(json.dumps(answer) + "\n")
                file.flush()
                progress.add(answer)
            open_cases = [case for case in open_cases if case not in answers]
    counts = Counter(answers[case]["found"] for case in cases if case in answers)
    seconds = sum(answers[case]["seconds"] for case in cases if case in answers)
    print(
        f"{counts.total()} of {len(cases)} cases run: {counts['equal']} equal, {counts['wrong']} wrong, "
        f"{counts['impossible']} that plain vmap cannot run; {seconds:.0f} s"
    )
    for case in cases:
        if case in answers and answers[case]["found"] == "wrong":
            print(f"{case[0]} [{case[1]}]: {answers[case]['text']}")
    return min(counts["wrong"], 99)


class _Progress:
    """Prints the outcome of each unequal case, and a line after every function."""

    def __init__(self, cases: int, began: float) -> None:
        self._seen, self._cases, self._began, self._function = 0, cases, began, ""

    def add(self, answer: dict[str, Any]) -> None:
        if self._function != answer["function"]:
            self._function = answer["function"]
            spent = time.monotonic() - self._began
            print(f"  {self._seen} of {self._cases} cases, {spent:.0f} s; {self._function}", flush=True)
        self._seen += 1
        if answer["found"] == "wrong":
            print(f"{answer['function']} [{answer['way']}]: {answer['text']}", flush=True)


def _next_group(cases: list[Case]) -> list[Case]:
    """The cases of the next ten functions; a separate process for them bounds the memory."""
    functions = list(dict.fromkeys(function for function, _ in cases))[:10]
    return [case for case in cases if case[0] in functions]


def _in_a_child(cases: list[Case], limit: float) -> Iterator[dict[str, Any]]:
    """The answers of a process until its end, including the case that ended the process or took too long."""
    command = [sys.executable, __file__, "--child", json.dumps(cases)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=listen, daemon=True).start()
    left = list(cases)
    try:
        while left:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                yield _answer(left[0], "wrong", f"no answer after {limit:g} s", limit)
                return
            if line is None:
                yield _answer(left[0], "wrong", f"ended the process with exit code {child.wait()}", 0.0)
                return
            if line.startswith('{"function"'):
                answer = json.loads(line)
                left.remove((answer["function"], answer["way"]))
                yield answer
    finally:
        child.kill()
        child.wait()


def _answer(case: Case, found: str, text: str, seconds: float) -> dict[str, Any]:
    return {"function": case[0], "way": case[1], "found": found, "text": text, "seconds": round(seconds, 2)}


def _read(path: Path) -> dict[Case, dict[str, Any]]:
    if not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {(answer["function"], answer["way"]): answer for answer in found}


def _names() -> tuple[list[str], list[str]]:
    code = "import json, client_functions as c; print(json.dumps([list(c.FUNCTIONS), list(c.WAYS)]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True)
    functions, ways = json.loads(done.stdout.splitlines()[-1])
    return functions, ways


def _work(cases: list[Case]) -> None:
    """Runs the cases one after another in this process, and prints an answer for each."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("NPROC", "64")  # more threads than simulated devices
    sys.path.insert(0, str(TESTS))
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    from client_functions import difference

    warnings.simplefilter("ignore")
    expected: dict[Any, Any] = {}
    before = ""
    for function, way in cases:
        if function != before:
            expected, before = {}, function
            jax.clear_caches()
        began = time.monotonic()
        try:
            wrong = difference(function, way, expected)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"[:400]
        found = "impossible" if wrong is None else "wrong" if wrong else "equal"
        print(json.dumps(_answer((function, way), found, wrong or "", time.monotonic() - began)), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
